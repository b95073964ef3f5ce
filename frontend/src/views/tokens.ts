// Token attention: which token attends to which, in one text or between two, for each head.

import { html, useEffect, useMemo, useRef, useState, type VNode } from "../core/html";
import { pixels } from "../core/canvas";
import { Button, Choice as Choices, Select, Slider, Toggle } from "../core/controls";
import { Frame } from "../core/frame";
import type { Key } from "../core/keys";
import { recalled, remember, useRecalled, wholeNumber } from "../core/memory";
import type { NumberArray, Payload } from "../core/payload";
import { type Theme, useTheme } from "../core/theme";
import { zoomHint, type Zooming, zoomKeys } from "../core/zooming";
import { Atlas, type AtlasRow, largestParts, makeStrip, type Strip, thumbnailSide } from "../maps/atlas";
import { type Cell, isPooled, middle, moved, showing, shownText, spanView, type Viewport, whole, zoomed } from "../maps/heat";
import { type Choice, fitChoice, type Layer, type LayerAbout, layersOf, mostVisible, headNumbers, type Opening, type Order, ORDERS, patternOptions, percent, sortedHeads, shortNames, thing, type Which } from "../maps/layer";
import { Legend } from "../maps/legend";
import { sizeText } from "../maps/place";
import { quoted } from "../maps/quote";
import { Residuals } from "../maps/residuals";
import { Rollout } from "../maps/rollout";
import { headName, secondOf, secondOptions, spelled, TwoHeads } from "../maps/second";
import { massOf, type Span, spanText } from "../maps/span";
import { colorsOf, type Pooling, POOLINGS, type Scale, shade, type Shading } from "../maps/scale";
import { isSpecial, makeTable, type Table, top, wholeMatrix } from "../maps/table";
import type { ViewProps } from "./index";
import { Main } from "./tokens-main";

interface TokenAbout extends LayerAbout {
  asks: string | null;
  reads: string | null;
}

interface Meta {
  layers: TokenAbout[];
  tokens: Record<string, string[]>;
  notes: string[];
  rollout: boolean;
  opening?: Opening;
  /** Whether these are differences of maps: they are small, so each has its own scale. */
  difference?: boolean;
}

const THUMBNAIL = 48;
const SCALES: [Scale, string][] = [["uniform", "relative to uniform attention"], ["map", "relative to the map's largest"], ["row", "relative to the row's largest"], ["root", "square root, for faint weights"]];
const AXES: Record<string, string> = { source: "read", target: "written" };
const OVER: Record<"tokens" | "channels" | "samples", Partial<Record<"queries" | "keys", string>>> = {
  tokens: {},
  channels: { queries: "query channels", keys: "key channels" },
  samples: { keys: "each query's own keys" },
};

export function TokensView({ payload, host }: ViewProps): VNode {
  const meta = payload.meta as Meta;
  const layers = useMemo(() => layersOf<TokenAbout>(payload), [payload]);
  const rollout = useMemo(() => (meta.rollout ? new Rollout(layers) : null), [layers]);
  const names = useMemo(() => shortNames(meta.layers.map((layer) => layer.name)), [payload]);
  const single = layers.length === 1 && layers[0].heads === 1;

  const [mode, setMode] = useState<"heat" | "arcs">(() => (recalled(host, "tokens").picture === "arcs" ? "arcs" : "heat"));
  const [order, setOrder] = useState<Order>("place");
  const [structured, setStructured] = useState(false);
  const [chosen, setLocked] = useState<Choice>(() => startChoice(recalled(host, "tokens"), { layer: meta.opening?.layer ?? layers.length - 1, which: meta.opening?.head ?? 0 }));
  const [hovered, setHovered] = useState<Choice | null>(null);
  const [over, setOver] = useState<Cell | null>(null);
  const [pinned, setPinned] = useState<number | null>(null);
  const [hide, setHide] = useState(false);
  const [scale, setScale] = useState<Scale>("uniform");
  useEffect(() => setScale(meta.difference ? "map" : "uniform"), [meta.difference]);
  const [pooling, setPooling] = useState<Pooling>("max");
  const [view, setView] = useState<Viewport>(whole);
  const [worked, setWorked] = useState(0);
  const [all, setAll] = useState(() => recalled(host, "tokens").all === "1");
  const [off, setOff] = useState<ReadonlySet<number>>(new Set());
  const [pattern, setPattern] = useState("any");
  const [span, setSpan] = useState<Span | null>(null);
  const [written, setWritten] = useState<number | null>(null);
  const [beside, setBeside] = useState<string | null>(() => recalled(host, "tokens").beside ?? null);
  const [compared, setCompared] = useState("");

  const locked = fitChoice(chosen, layers, meta.rollout);
  // All heads of a layer together are colored arcs over their mean; a head under the pointer is shown alone.
  const complete = layers[layers.length - 1].complete;
  const together = complete && all && mode === "arcs" && !hovered && layers[locked.layer].heads > 1;
  const shown: Choice = hovered && complete ? fitChoice(hovered, layers, meta.rollout) : together ? { layer: locked.layer, which: "mean" } : locked;
  const layer = layers[shown.layer];
  const labels = (about: TokenAbout): [string[], string[]] => {
    const rows = about.rows ?? Array.from({ length: about.queries }, (_, i) => i);
    const [asks, reads] = [about.asks && meta.tokens[about.asks], about.reads && meta.tokens[about.reads]];
    return [
      rows.map((row) => (asks ? asks[row] : String(row))),
      Array.from({ length: about.keys }, (_, i) => (reads ? reads[i] : String(i))),
    ];
  };
  // Rollout is over the first layer's tokens, which may be more than this layer's.
  const read = shown.which === "rollout" && rollout ? rollout.source : layer;
  const special = useMemo(() => Object.values(meta.tokens).some((list) => list.some(isSpecial)), [payload]);
  // After generation the rows of all steps are concatenated: `written` limits them to the first steps.
  const steps = layer.about.steps ?? 0;
  const later = written === null ? 0 : Math.max(0, steps - written);
  const cut = ([queries, keys]: [string[], string[]]): [string[], string[]] => [queries.slice(0, queries.length - later), layer.queries === layer.keys ? keys.slice(0, keys.length - later) : keys];
  const on = useMemo(() => layer.about.heads.map((_, head) => head).filter((head) => !off.has(head)), [layer, off]);
  const table = useMemo(() => {
    const [queries, keys] = cut([labels(layer.about)[0], labels(read.about)[1]]);
    const matrix = together ? layer.meanOf(on) : wholeMatrix(layer, shown.which, shown.layer, rollout);
    return makeTable(matrix, read.keys, queries, keys, hide, read === layer ? layer.visible : null);
  }, [layer, shown.which, shown.layer, hide, worked, later, together, on]);
  const other = mode === "heat" && complete && shown.which !== "rollout" ? secondOf(beside, layers, layer) : null;
  const second = useMemo(() => other && makeTable(wholeMatrix(layers[other.layer], other.which, other.layer, null), layer.keys, ...cut(labels(layer.about)), hide, layers[other.layer].visible), [layer, other?.layer, other?.which, hide, later]);
  const heads = useMemo(
    () => (together ? on.map((head) => ({ name: String(layer.about.heads[head]), head, weights: makeTable(layer.matrix(head), layer.keys, ...cut(labels(layer.about)), hide).weights })) : null),
    [layer, together, hide, later, on],
  );
  // Rollout of a long text takes a while: compute a few rows per frame, so that the page stays responsive.
  useEffect(() => {
    if (shown.which !== "rollout" || !rollout || rollout.done(shown.layer)) return;
    const frame = requestAnimationFrame(() => {
      rollout.work(shown.layer, 12);
      setWorked(worked + 1);
    });
    return () => cancelAnimationFrame(frame);
  }, [shown.which, shown.layer, worked]);
  useEffect(() => {
    setView(whole);
    setOver(null);
    setPinned(null);
    setSpan(null);
  }, [payload, hide, layer.queries, read.keys, later]);
  useEffect(() => setOver(null), [view]); // another cell is under the pointer now
  useEffect(() => setOff(new Set()), [payload, locked.layer]);
  useEffect(() => host.select?.({ layer: layer.about.name, head: headNumber(layer, shown.which), query: pinned === null ? null : (table.queryAt[pinned] ?? null) }), [locked.layer, locked.which, pinned]);

  useRecalled(host, "tokens", (choices) => (setLocked(startChoice(choices, locked)), setBeside(choices.beside ?? null)));
  useEffect(() => remember(host, "tokens", { layer: locked.layer, head: String(locked.which), picture: mode === "arcs" ? mode : null, beside }), [locked.layer, locked.which, mode, beside]);

  const choose = (layerAt: number, which: Which) => {
    const at = Math.min(layers.length - 1, Math.max(0, layerAt));
    const heads = layers[at].heads;
    setLocked({ layer: at, which: typeof which === "number" ? Math.min(heads - 1, Math.max(0, which)) : which });
    setHovered(null);
  };
  const step = (by: number) => {
    const at = typeof locked.which === "number" ? locked.which + by : by > 0 ? 0 : layers[locked.layer].heads - 1;
    const heads = layers[locked.layer].heads;
    if (at < 0 && locked.layer > 0) choose(locked.layer - 1, layers[locked.layer - 1].heads - 1);
    else if (at >= heads && locked.layer < layers.length - 1) choose(locked.layer + 1, 0);
    else choose(locked.layer, at);
  };
  const move = (by: number) => {
    const to = Math.min(table.queries.length - 1, Math.max(0, (pinned ?? (by > 0 ? -1 : table.queries.length)) + by));
    setPinned(to);
    if (view.zoom > 1) setView(showing(view, table, to));
  };
  const zoom = (factor: number, at?: Cell) => setView(zoomed(view, table, factor, at ?? middle(view, table)));
  const zooming: Zooming = { times: view.zoom, zoom, pan: (across, down) => setView(moved(view, table, mode === "arcs" ? across + down : across, down)), reset: () => setView(whole) };
  const selected = beside !== null || pinned !== null || span !== null;

  const keys: Key[] = [
    ...zoomKeys(zooming),
    { keys: ["ArrowUp", "ArrowDown"], shown: "↑ ↓", means: "another token", run: (key) => move(key === "ArrowDown" ? 1 : -1) },
    { keys: ["ArrowLeft", "ArrowRight"], shown: "← →", means: "another head", run: (key) => step(key === "ArrowRight" ? 1 : -1) },
    { keys: ["PageUp", "PageDown"], shown: "PgUp PgDn", means: "another layer", run: (key) => choose(locked.layer + (key === "PageDown" ? 1 : -1), locked.which) },
    { keys: ["m"], means: "mean over heads", run: () => choose(locked.layer, "mean") },
    ...(meta.rollout ? [{ keys: ["r"], means: "rollout", run: () => choose(locked.layer, "rollout") }] : []),
    { keys: ["h"], means: "arcs of all heads", run: () => (setMode("arcs"), setAll(!(all && mode === "arcs"))) },
    { keys: ["a"], means: "heat map or arcs", run: () => setMode(mode === "heat" ? "arcs" : "heat") },
    ...(special ? [{ keys: ["s"], means: "special tokens", run: () => setHide(!hide) }] : []),
    ...(single ? [] : [{ keys: [], shown: "Shift + click", means: "compare with this head", run: () => undefined }]),
    { keys: ["Escape"], shown: "Esc", means: "clear the selection, then the zoom", run: () => (selected ? (setBeside(null), setPinned(null), setSpan(null)) : setView(whole), setOver(null), setHovered(null)) },
    ...(other ? [] : [{ keys: ["z"], means: "zoom to the marked span", run: () => span && setView(spanView(table, span)) }]),
  ];

  const rows: AtlasRow[] = layers.map((one, i) => ({ label: layers.length > 1 ? names[i] : "", layer: i, heads: sortedHeads(one.about, order, structured, pattern), warn: !one.about.agrees }));
  // With patches of several sizes, the name of a patch needs the size of its grid.
  const axis = (name: "queries" | "keys", list: string | null, { grid, over }: TokenAbout) => OVER[over ?? "tokens"][name] ?? AXES[list ?? ""] ?? (list && grid && Object.keys(meta.tokens).length > 1 ? `${name} on ${sizeText(grid)}` : name);
  const axes: [string, string] = [axis("queries", layer.about.asks, layer.about), axis("keys", read.about.reads, read.about)];
  const shading: Shading = { scale, top: useMemo(() => mostVisible(layers), [layers]), signed: meta.layers.some((about) => about.signed) };
  const opened = meta.opening && locked.layer === meta.opening.layer && locked.which === meta.opening.head && !hovered && !over && pinned === null;
  const patterns = useMemo(() => patternOptions(meta.layers), [payload]);
  const controls = html`
    <${Choices} label="picture" value=${mode} options=${[["heat", "Heat map"], ["arcs", "Arcs"]]} onChange=${setMode} />
    <${Select} label="layer" value=${String(locked.layer)} options=${layers.map((one, i) => [String(i), one.about.name])} onChange=${(value: string) => choose(Number(value), locked.which)} />
    ${single ? null : html`<${Select} label="head" value=${String(locked.which)} options=${headOptions(layers[locked.layer], meta.rollout)} onChange=${(value: string) => choose(locked.layer, asWhich(value))} />`}
    ${mode === "heat" && !single ? html`<${Select} label="compare with" value=${other ? spelled(other) : ""} options=${secondOptions(layers, locked)} onChange=${(value: string) => setBeside(value || null)} />` : null}
    ${mode === "heat" && !other ? html`<${Select} label="colors" value=${scale} options=${SCALES} onChange=${setScale} />` : null}
    ${mode === "heat" && (isPooled(table) || (!single && Math.max(table.queries.length, table.keys.length) > THUMBNAIL)) ? html`<${Select} label="pixels show" value=${pooling} options=${POOLINGS} onChange=${setPooling} />` : null}
    ${mode === "arcs" && layers[locked.layer].heads > 1 ? html`<${Toggle} label="all heads of the layer" checked=${all} onChange=${setAll} />` : null}
    ${single ? null : html`<${Select} label="thumbnails" value=${order} options=${ORDERS} onChange=${setOrder} /><${Toggle} label="hide uniform heads" checked=${structured} onChange=${setStructured} />`}
    ${!single && patterns.length > 2 ? html`<${Select} label="pattern" value=${pattern} options=${patterns} onChange=${setPattern} />` : null}
    ${steps > 0 ? html`<${Slider} label="generated" value=${written ?? steps} min=${0} max=${steps} text=${`${written ?? steps} of ${steps} tokens`} onInput=${(value: number) => setWritten(value === steps ? null : value)} />` : null}
    ${special ? html`<${Toggle} label="hide special tokens" checked=${hide} onChange=${setHide} />` : null}
    ${Math.max(table.queries.length, table.keys.length) > 24 ? html`<${Slider} label="zoom" value=${Math.log2(view.zoom)} min=${0} max=${5} step=${0.1} text=${`${view.zoom.toFixed(1)}×`} onInput=${(value: number) => zoom(2 ** value / view.zoom)} />` : null}
    ${span && !other ? html`<${Button} label="zoom to the span" onClick=${() => setView(spanView(table, span))} /><${Button} label="clear the span" onClick=${() => (setSpan(null), setView(whole))} />` : null}
  `;
  return html`<${Frame}
    name="tokens"
    title=${layer.about.over === "channels" ? "Channel attention" : "Token attention"}
    subtitle=${other ? compared : describe(layer, shown, table, over, pinned, hide, span, together ? on.length : 0, view) + (complete ? (opened ? ` · ${meta.opening!.why}` : "") : " · loading the other heads …")}
    host=${host}
    keys=${keys}
    controls=${controls}
    hint=${`Point at a cell or a token to read its weights${single ? "; a click keeps the token." : ", or at a small map to see it large; a click keeps it."}${zoomHint(zooming)}`}
    footer=${html`<${Residuals} layers=${meta.layers} current=${shown.layer} notes=${meta.notes} />`}
  >
    ${all && mode === "arcs" && layers[locked.layer].heads > 1 ? html`<${Legend} names=${layers[locked.layer].about.heads.map(String)} off=${off} onChange=${setOff} />` : null}
    <div class=${other ? "rg-compared" : single ? "" : "rg-beside"}>
      ${single ? null : html`<${TokenAtlas} payload=${payload} layers=${layers} rows=${rows} hide=${hide} shading=${shading} pooling=${pooling} labels=${labels} picked=${locked} second=${other && typeof other.which === "number" ? { layer: other.layer, head: other.which } : null} onHover=${(at: { layer: number; head: number } | null) => setHovered(at && { layer: at.layer, which: at.head })} onPick=${(at: { layer: number; head: number | null }, to: boolean) => (to && at.head !== null ? setBeside(spelled({ layer: at.layer, which: at.head })) : choose(at.layer, at.head ?? "mean"))} />`}
      ${other && second ? html`<${TwoHeads} first=${table} second=${second} names=${[headName(layers, shown), headName(layers, other)]} top=${shading.top} pooling=${pooling} signed=${shading.signed} view=${view} onView=${setView} onSay=${setCompared} />` : html`<${Main} mode=${mode} table=${table} heads=${heads} shading=${shading} pooling=${pooling} noun=${thing(layer.about)} view=${view} over=${over} pinned=${pinned} axes=${axes} span=${span} onOver=${setOver} onPin=${setPinned} onView=${setView} onSpan=${setSpan} zoom=${zoom} />`}
    </div>
  <//>` as VNode;
}

interface AtlasPartProps {
  payload: Payload<Meta>;
  layers: Layer<TokenAbout>[];
  rows: AtlasRow[];
  hide: boolean;
  shading: Shading;
  pooling: Pooling;
  labels: (about: TokenAbout) => [string[], string[]];
  picked: Choice;
  onHover: (at: { layer: number; head: number } | null) => void;
  second: { layer: number; head: number } | null;
  onPick: (at: { layer: number; head: number | null }, beside: boolean) => void;
}

function TokenAtlas({ payload, layers, rows, hide, shading, pooling, labels, picked, second, onHover, onPick }: AtlasPartProps) {
  const theme = useTheme();
  const strips = useMemo(() => new Map<string, Strip>(), [layers]);
  const [, again] = useState(0);
  const end = useRef(0);
  // Thumbnails of many large maps are computed over several frames, so that the page stays responsive.
  const mayWork = (): boolean => {
    if (end.current === 0) {
      end.current = performance.now() + 25;
      requestAnimationFrame(() => (end.current = 0));
    } else if (performance.now() > end.current) {
      requestAnimationFrame(() => again((n) => n + 1));
      return false;
    }
    return true;
  };
  const strip = (index: number, tall: number, wide: number, atOnce: boolean): Strip => {
    const room: [number, number] = [thumbnailSide(THUMBNAIL, tall), thumbnailSide(THUMBNAIL, wide)];
    const key = `${index} ${room} ${hide} ${theme.mode} ${shading.scale} ${shading.signed} ${pooling}`;
    let made = strips.get(key);
    if (!made) {
      const ready = !hide && shading.scale === "uniform" && pooling === "max" && payload.has(`small${index}`);
      if (!ready && (!layers[index].complete || !(atOnce || mayWork()))) return { image: emptyImage(), across: layers[index].heads, down: 1, rows: 1, columns: 1 };
      made = ready ? readyThumbnails(payload.array(`small${index}`), theme, shading, room) : thumbnails(layers[index], hide, labels(layers[index].about), theme, shading, pooling, room);
      strips.set(key, made);
    }
    return made;
  };
  return html`<${Atlas}
    rows=${rows}
    strip=${strip}
    headName=${(layer: number, head: number) => String(layers[layer].about.heads[head])}
    aspect=${1}
    largest=${rows.length === 1 ? 120 : 64}
    picked=${{ layer: picked.layer, head: typeof picked.which === "number" ? picked.which : null }}
    second=${second}
    about=${(layer: number, head: number) => headNumbers(layers[layer].about, head)}
    label="a small map of every head"
    onHover=${onHover}
    onPick=${onPick}
  />`;
}

let blank: HTMLCanvasElement | null = null;
const emptyImage = () => (blank ??= pixels(1, 1, () => 0));

/** The thumbnails that were sent with large maps, as positions on the color scale. */
function readyThumbnails({ data, shape: [heads, rows, columns] }: NumberArray, theme: Theme, { signed }: Shading, room: [number, number]): Strip {
  const color = colorsOf(theme, signed);
  const [tall, wide] = [Math.min(rows, room[0]), Math.min(columns, room[1])];
  const parts = Array.from({ length: heads }, (_, head) => largestParts(data.subarray(head * rows * columns), [rows, columns], [tall, wide]));
  return makeStrip(heads, tall, wide, (head, row, column) => color(parts[head][row * wide + column] / (signed ? 127 : 255)));
}

function thumbnails(layer: Layer<TokenAbout>, hide: boolean, labels: [string[], string[]], theme: Theme, shading: Shading, pooling: Pooling, [tall, wide]: [number, number]): Strip {
  const color = colorsOf(theme, shading.signed);
  const parts = Array.from({ length: layer.heads }, (_, head) => {
    const small = (weights: Float32Array, rows: number, columns: number, visible: ArrayLike<number>) =>
      shade(weights, columns, visible, shading, pooling, { row: 0, column: 0, rows, columns }, tall, wide);
    if (!hide) return small(layer.matrix(head), layer.queries, layer.keys, layer.visible);
    const table = makeTable(layer.matrix(head), layer.keys, ...labels, hide, layer.visible);
    return small(table.weights, table.queries.length, table.keys.length, table.visible);
  });
  const { rows, columns } = parts[0];
  return makeStrip(layer.heads, rows, columns, (head, row, column) => color(parts[head].data[row * columns + column] ?? 0));
}

export function headNumber(layer: Layer, which: Which): number | string {
  return typeof which === "number" ? layer.about.heads[which] : which;
}

export function headOptions(layer: Layer, rollout: boolean): [string, string][] {
  const heads = layer.about.heads.map((head, i): [string, string] => [String(i), `head ${head}`]);
  return [...heads, ["mean", "mean over heads"], ...(rollout ? [["rollout", "rollout up to this layer"] as [string, string]] : [])];
}

/** The choice in the address, else the default. */
export function startChoice(kept: Record<string, string>, otherwise: Choice): Choice {
  const layer = wholeNumber(kept.layer);
  const which = wholeNumber(kept.head) ?? (kept.head === "mean" || kept.head === "rollout" ? kept.head : null);
  return layer !== null && which !== null ? { layer, which } : otherwise;
}

export const asWhich = (value: string): Which => (value === "mean" || value === "rollout" ? value : Number(value));

function describe(layer: Layer<TokenAbout>, shown: Choice, table: Table, over: Cell | null, pinned: number | null, hide: boolean, span: Span | null, together: number, view: Viewport): string {
  const head = together && together < layer.heads ? `${together} of ${layer.heads} heads` : typeof shown.which === "number" ? `head ${layer.about.heads[shown.which]}` : shown.which === "mean" ? "mean over heads" : "rollout";
  const start = `${layer.about.name} · ${head}`;
  const columns = table.keys.length;
  if (span) {
    const { mass, uniform, queries, keys } = massOf(table, span);
    return `${start} · ${spanText(table.queries, span.q)} → ${spanText(table.keys, span.k)}: ${percent(mass)} of the attention of ${queries === 1 ? `one ${thing(layer.about)}` : `${queries} ${thing(layer.about)}s`} goes to ${keys === 1 ? "one" : keys} (uniform: ${percent(uniform)})`;
  }
  if (over && over.q >= 0 && over.k >= 0) return `${start} · ${quoted(table.queries[over.q])} → ${quoted(table.keys[over.k])} ${percent(table.weights[over.q * columns + over.k])}`;
  const query = over && over.q >= 0 ? over.q : over ? null : pinned;
  if (query !== null && query < table.queries.length) {
    const row = table.weights.subarray(query * columns, (query + 1) * columns);
    const best = top(row, 3).map((k) => `${quoted(table.keys[k])} ${percent(row[k])}`);
    const lost = hide && table.hidden[query] > 0.005 ? ` · special tokens ${percent(table.hidden[query])}` : "";
    return `${start} · ${quoted(table.queries[query])} looks at ${best.join(", ") || "nothing"}${lost}`;
  }
  if (over && over.k >= 0) {
    const column = table.queries.map((_, q) => table.weights[q * columns + over.k]);
    return `${start} · ${quoted(table.keys[over.k])} is looked at by ${top(column, 3).map((q) => `${quoted(table.queries[q])} ${percent(column[q])}`).join(", ") || `no ${thing(layer.about)}`}`;
  }
  return start + shownText(view, table);
}

