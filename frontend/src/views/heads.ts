// Heads over training: where each head of each layer looks from the query, from the first step to the last.

import { html, useEffect, useMemo, useRef, useState, type VNode } from "../core/html";
import { Picture, type Size } from "../core/canvas";
import { Play, Select, Slider, Toggle, useFrames } from "../core/controls";
import { Frame } from "../core/frame";
import type { Key } from "../core/keys";
import { recalled, remember, useRecalled, wholeNumber } from "../core/memory";
import { useTheme } from "../core/theme";
import { percent, shortNames } from "../maps/layer";
import { sizeText } from "../maps/place";
import { drawPanel, headAt, panelHeight, type PanelState } from "./heads/draw";
import { drawCurve, drawHistory, drawLegend, drawMap, historyHeight, type InspectorState, mapHeight } from "./heads/inspector";
import { type HeadsMeta, Moments, sharpness } from "./heads/moments";
import { isMerged, likelyScale, type Range, rangesOf, type Scale } from "./heads/range";
import type { ViewProps } from "./index";

interface Place {
  layer: number;
  head: number;
}

const SECONDS = 8; // to play a whole training

export function HeadsView({ payload, host }: ViewProps): VNode {
  const meta = payload.meta as HeadsMeta;
  const moments = useMemo(() => new Moments(payload), [payload]);
  const last = meta.steps.length - 1;
  const names = useMemo(() => shortNames(meta.layers.map((layer) => layer.name)), [payload]);
  const grids = meta.layers.some((layer) => layer.grid !== null);
  const merged = useMemo(() => isMerged(meta.layers), [payload]);

  const kept = (choices: Record<string, string>) => {
    const [begin, layer, head] = [choices.step, choices.layer, choices.head].map(wholeNumber);
    const time = begin === null ? last : meta.steps.findIndex((step) => step >= begin);
    const exists = layer !== null && head !== null && head < (meta.layers[layer]?.heads ?? 0);
    return { time: time < 0 ? last : time, place: exists ? { layer, head } : null };
  };
  const [time, setTime] = useState(() => kept(recalled(host, "heads")).time);
  const [playing, setPlaying] = useState(false);
  const [kernel, setKernel] = useState(() => likelyKernel(meta));
  const [trails, setTrails] = useState(true);
  const [wholeGrid, setWholeGrid] = useState(false);
  const [scale, setScale] = useState<Scale>(() => likelyScale(moments));
  const [locked, setLocked] = useState<Place | null>(() => kept(recalled(host, "heads")).place);
  const [hovered, setHovered] = useState<Place | null>(null);
  const ranges = useMemo(() => rangesOf(moments, wholeGrid, scale), [moments, wholeGrid, scale]);
  // A running training extends the trajectory; a view at its end stays at the end.
  const end = useRef(last);
  useEffect(() => {
    const before = end.current;
    end.current = last;
    setTime((now) => (now >= before ? last : Math.min(now, last)));
  }, [last]);

  useFrames(playing, (seconds) => {
    const next = time + (seconds * Math.max(1, last)) / SECONDS;
    if (next >= last) setPlaying(false);
    setTime(Math.min(last, next));
  });
  const play = () => {
    if (!playing && time >= last) setTime(0);
    setPlaying(!playing && last > 0);
  };
  const go = (to: number) => {
    setPlaying(false);
    setTime(Math.min(last, Math.max(0, to)));
  };
  const there = (place: Place | null) => (place && place.head < (meta.layers[place.layer]?.heads ?? 0) ? place : null);
  const active = there(hovered) ?? there(locked);
  useEffect(() => {
    host.select?.({ step: moments.step(time), layer: locked && meta.layers[locked.layer].name, head: locked && moments.number(locked.layer, locked.head) });
  }, [locked]);
  useEffect(() => {
    if (!playing) remember(host, "heads", { step: Math.round(time) >= last ? null : meta.steps[Math.round(time)], layer: locked?.layer ?? null, head: locked?.head ?? null });
  }, [locked, playing, Math.round(time), last]);
  useRecalled(host, "heads", (choices) => {
    setTime(kept(choices).time);
    setLocked(kept(choices).place);
  });
  const nextHead = (by: number) => {
    const all = meta.layers.flatMap((layer, l) => Array.from({ length: layer.heads }, (_, h) => ({ layer: l, head: h })));
    const now = locked ? all.findIndex((place) => place.layer === locked.layer && place.head === locked.head) : by > 0 ? -1 : all.length;
    setLocked(all[(now + by + all.length) % all.length]);
  };
  const flat = meta.layers.every((layer) => layer.axes === 1);
  const kernels = ["0", "3", "5", "7"];
  const keys: Key[] = [
    { keys: [" "], shown: "space", means: "play or pause", run: play },
    { keys: ["ArrowLeft", "ArrowRight"], shown: "← →", means: "previous or next step", run: (key) => go(Math.round(time) + (key === "ArrowRight" ? 1 : -1)) },
    { keys: ["Home", "End"], means: "first or last step", run: (key) => go(key === "Home" ? 0 : last) },
    { keys: ["ArrowUp", "ArrowDown"], shown: "↑ ↓", means: "another head", run: (key) => nextHead(key === "ArrowDown" ? 1 : -1) },
    { keys: ["c"], means: "show a convolution kernel", run: () => setKernel(Number(kernels[(kernels.indexOf(String(kernel)) + 1) % kernels.length])) },
    { keys: ["t"], means: "trails", run: () => setTrails(!trails) },
    ...(merged ? [{ keys: ["l"], means: "one scale for all layers", run: () => setScale(scale === "image" ? "grid" : "image") }] : []),
    ...(grids ? [{ keys: ["g"], means: "whole grid", run: () => setWholeGrid(!wholeGrid) }] : []),
    { keys: ["Escape"], shown: "Esc", means: "clear the selection", run: () => (setLocked(null), setHovered(null)) },
  ];
  const controls = html`
    ${last > 0
      ? html`<${Play} playing=${playing} onToggle=${play} />
          <${Slider} wide label="step" value=${Math.round(time)} min=${0} max=${last} text=${moments.step(time).toLocaleString("en")} onInput=${go} />`
      : null}
    <${Select} label="convolution" value=${String(kernel)} options=${kernels.map((k) => [k, k === "0" ? "none" : flat ? k : `${k} × ${k}`])} onChange=${(value: string) => setKernel(Number(value))} />
    <${Toggle} label="trails" checked=${trails} onChange=${setTrails} />
    ${merged ? html`<${Toggle} label="one scale for all layers" checked=${scale === "image"} onChange=${(on: boolean) => setScale(on ? "image" : "grid")} />` : null}
    ${grids ? html`<${Toggle} label="whole grid" checked=${wholeGrid} onChange=${setWholeGrid} />` : null}
  `;
  const missing = meta.layers.reduce((sum, layer, l) => sum + Array.from({ length: layer.heads }, (_, h) => moments.at(l, h, time)).filter((head) => !(sharpness(head, layer.axes) > 0)).length, 0);
  const footer = html`
    <span>${flat ? "thick: half of a head's weight lies inside; thin: 90 %" : "solid: half of a head's weight lies inside; dashed: 90 %; +: the query"}</span>
    <span>offsets are key − query${flat ? "" : ", rows down"}${merged ? "; a square is a token of that layer, the unit of its offsets and sharpness" : ""}</span>
    ${merged && scale === "grid" ? html`<span>layers with different grids have different scales</span>` : null}
    ${meta.layers.some((layer) => layer.fitted) ? html`<span>centers and sharpness are those of the Gaussians that fit the maps best</span>` : html`<span>centers and sharpness are the heads' own parameters: nothing is reconstructed, the residual is 0</span>`}
    ${missing ? html`<span class="rg-warn">${missing} ${missing === 1 ? "head has" : "heads have"} no contour: the sharpness is not positive</span>` : null}
  `;
  return html`<${Frame}
    name="heads"
    title=${meta.title ?? (meta.name ? `Heads over training · ${meta.name}` : "Heads over training")}
    subtitle=${describe(moments, meta, time, active, merged)}
    host=${host}
    keys=${keys}
    controls=${controls}
    footer=${footer}
  >
    ${meta.curve.length > 1 && last > 0 ? html`<${Curve} meta=${meta} moments=${moments} time=${time} onGo=${go} />` : null}
    <div class="rg-heads">
      <div class="rg-panels" style=${{ "--rg-count": columnsFor(meta.layers.length) }}>
        ${meta.layers.map((_, l) => html`<${Panel} key=${l} state=${{ moments, layer: l, title: meta.layers.length > 1 ? `layer ${names[l]}` : names[l], sized: merged, time, range: ranges[l], kernel, trails, active: active?.layer === l ? active.head : null, locked: locked !== null && !hovered }} onHover=${setHovered} onMove=${(place: Place) => (setHovered(null), setLocked(place))} onPick=${(place: Place | null) => setLocked(place && locked && place.layer === locked.layer && place.head === locked.head ? null : place)} />`)}
      </div>
      <${Inspector} moments=${moments} place=${active} time=${time} range=${ranges[0]} />
    </div>
  <//>` as VNode;
}

interface PanelProps {
  state: PanelState;
  onHover: (place: Place | null) => void;
  onPick: (place: Place | null) => void;
  onMove: (place: Place) => void;
}

function Panel({ state, onHover, onPick, onMove }: PanelProps) {
  const layer = state.moments.layers[state.layer];
  const find = (x: number, y: number, size: Size): Place | null => {
    const head = headAt(state, x, y, size);
    return head === null ? null : { layer: state.layer, head };
  };
  const hover = (x: number, y: number, _: unknown, size: Size) => {
    const place = find(x, y, size);
    if ((place?.head ?? null) !== state.active || !place) onHover(place);
  };
  return html`<${Picture}
    draw=${drawPanel(state)}
    height=${panelHeight(state.range, layer.axes, layer.heads)}
    label=${`where the ${layer.heads} heads of ${layer.name} look`}
    cursor="pointer"
    focusable
    onKey=${(key: string) => {
      if (key !== "ArrowUp" && key !== "ArrowDown") return false;
      const by = key === "ArrowDown" ? 1 : -1;
      // Arrow keys move among the heads of the focused layer.
      const now = state.active ?? (by > 0 ? -1 : layer.heads);
      onMove({ layer: state.layer, head: (now + by + layer.heads) % layer.heads });
      return true;
    }}
    onPoint=${hover}
    onLeave=${() => onHover(null)}
    onPress=${(x: number, y: number, _: unknown, size: Size) => onPick(find(x, y, size))}
  />`;
}

function Inspector({ moments, place, time, range }: { moments: Moments; place: Place | null; time: number; range: Range }) {
  const theme = useTheme();
  const legend = html`<${Picture} draw=${drawLegend(range.low, range.high)} height=${28} label="color scale of the sharpness" />`;
  if (!place) return html`<aside class="rg-inspector">${legend}<p class="rg-hint">Point at a head to see its map and its path; click to keep it selected.</p></aside>`;
  const state: InspectorState = { moments, layer: place.layer, head: place.head, time };
  return html`<aside class="rg-inspector">
    ${legend}
    <h3>head ${moments.number(place.layer, place.head)} <span class="rg-hint rg-mono">${moments.layers[place.layer].name}</span></h3>
    <${Picture} draw=${drawMap(state, theme)} height=${mapHeight(state)} label="the map of the head from the middle of the grid" />
    ${moments.steps.length > 1 ? html`<${Picture} draw=${drawHistory(state, theme)} height=${historyHeight} label="center and sharpness over the steps" />` : null}
  </aside>`;
}

function Curve({ meta, moments, time, onGo }: { meta: HeadsMeta; moments: Moments; time: number; onGo: (time: number) => void }) {
  const go = (x: number, _y: number, _: unknown, size: Size) => {
    const share = Math.min(1, Math.max(0, (x - 8) / (size.width - 16)));
    const [first, end] = [moments.steps[0], moments.steps[moments.steps.length - 1]];
    onGo(moments.time(first + share * (end - first)));
  };
  return html`<${Picture} draw=${drawCurve(meta.curve, moments, time)} height=${56} label="validation accuracy" cursor="pointer" onPress=${go} />`;
}

/** The number of panels side by side, if there is room. */
function columnsFor(layers: number): number {
  if (layers <= 4) return layers;
  return layers <= 6 || layers === 9 ? 3 : 4;
}

/** K² heads can be a K × K convolution. */
function likelyKernel(meta: HeadsMeta): number {
  const { heads, axes } = meta.layers[0];
  const side = axes === 2 ? Math.round(Math.sqrt(heads)) : heads;
  const exact = axes === 1 || side * side === heads;
  return exact && side % 2 === 1 && side >= 3 && side <= 7 ? side : 3;
}

function describe(moments: Moments, meta: HeadsMeta, time: number, place: Place | null, merged: boolean): string {
  const step = moments.step(time);
  const when = meta.steps.length === 1 ? "" : step === 0 ? "before training" : `step ${step.toLocaleString("en")}`;
  const before = meta.curve.filter(([at]) => at <= step);
  const right = before.length ? `validation accuracy ${percent(before[before.length - 1][1])}` : "";
  if (!place) return [when, right].filter(Boolean).join(" · ") || `${meta.layers.length} layers`;
  const head = moments.at(place.layer, place.head, time);
  const { name, axes, grid } = meta.layers[place.layer];
  const number = (x: number) => (Math.abs(x) < 0.005 ? "0" : x.toFixed(2).replace("-", "−"));
  const center = axes === 2 ? `looks (${number(head.row)}, ${number(head.column)}) away` : `looks ${number(head.column)} away`;
  const unit = merged && grid ? `, in tokens of ${sizeText(grid)}` : "";
  const sharp = sharpness(head, axes);
  const fit = head.fit === null ? "" : `fit ${head.fit.toFixed(2)}`;
  return [when, `${name} head ${moments.number(place.layer, place.head)}`, `${center}${unit}`, sharp > 0 ? `sharpness ${sharp.toPrecision(3)}` : "no positive sharpness", fit].filter(Boolean).join(" · ");
}
