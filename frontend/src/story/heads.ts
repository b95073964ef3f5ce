// Section 1: heads move from their start to their final places. The animation plays once, by itself.

import { html, useEffect, useMemo, useRef, useState, type VNode } from "../core/html";
import { Picture } from "../core/canvas";
import { Play, Slider, useFrames } from "../core/controls";
import type { Payload } from "../core/payload";
import { useTheme } from "../core/theme";
import { percent, shortNames } from "../maps/layer";
import { drawPanel, panelHeight } from "../views/heads/draw";
import { type HeadsMeta, Moments } from "../views/heads/moments";
import { likelyScale, rangesOf } from "../views/heads/range";
import { headColor, isStill, useSeen } from "./section";

const SECONDS = 9;
const MOST_LAYERS = 6;

export function HeadsScene({ payload }: { payload: Payload<HeadsMeta> }): VNode {
  const { meta } = payload;
  const theme = useTheme();
  const moments = useMemo(() => new Moments(payload), [payload]);
  const ranges = useMemo(() => rangesOf(moments, false, likelyScale(moments)), [moments]);
  const last = meta.steps.length - 1;
  // Heads move most in early steps, so these get more time.
  const timeAt = (share: number) => last * share ** 1.6;
  const [share, setShare] = useState(() => (isStill() ? 1 : 0));
  const [playing, setPlaying] = useState(false);
  const place = useRef<HTMLDivElement>(null);
  const seen = useSeen(place, "0px", 0.35);
  useEffect(() => {
    if (seen && !isStill()) setPlaying(true);
  }, [seen]);
  useFrames(playing, (seconds) => {
    const next = share + seconds / SECONDS;
    setShare(Math.min(1, next));
    if (next >= 1) setPlaying(false);
  });
  const play = () => {
    if (!playing && share >= 1) setShare(0);
    setPlaying(!playing);
  };
  const time = timeAt(share);
  const layers = meta.layers.slice(0, MOST_LAYERS);
  const names = shortNames(meta.layers.map((layer) => layer.name));
  const colors = Array.from({ length: Math.max(...layers.map((layer) => layer.heads)) }, (_, head) => headColor(head, theme.mode === "light"));
  return html`<div ref=${place} class="rg-stage" data-playing=${playing} data-share=${share.toFixed(2)}>
    <div class="rg-six" style=${{ "--rg-count": Math.min(3, layers.length), "--rg-small": layers.length % 2 ? Math.min(3, layers.length) : 2 }}>
      ${layers.map((layer, l) => html`<${Picture} key=${l} draw=${drawPanel({ moments, layer: l, title: `layer ${names[l]}`, sized: false, time, range: ranges[l], kernel: layer.axes === 2 ? 3 : 0, trails: true, active: null, locked: false, colors })} height=${panelHeight(ranges[l], layer.axes, layer.heads)} label=${`where the ${layer.heads} heads of layer ${names[l]} look`} />`)}
    </div>
    <div class="rg-run">
      <${Play} playing=${playing} onToggle=${play} />
      <${Slider} wide label="training" value=${share} min=${0} max=${1} step=${0.005} text=${say(meta, moments, time)} onInput=${(to: number) => (setPlaying(false), setShare(to))} />
    </div>
  </div>` as VNode;
}

/** Whether the heads start one token apart, like the taps of a convolution. */
export function startsAsGrid(payload: Payload<HeadsMeta>): boolean {
  const moments = new Moments(payload);
  const near = (x: number) => Math.abs(x - Math.round(x)) < 0.05;
  return payload.meta.layers.every((layer, l) => Array.from({ length: layer.heads }, (_, h) => moments.at(l, h, 0)).every(({ row, column }) => near(row) && near(column)));
}

/** The step and the validation accuracy at that step. */
function say(meta: HeadsMeta, moments: Moments, time: number): string {
  const step = moments.step(time);
  const before = meta.curve.filter(([at]) => at <= step);
  const right = before.length ? ` · validation accuracy ${percent(before[before.length - 1][1])}` : "";
  return step === 0 ? "before training" : `step ${step.toLocaleString("en")}${right}`;
}
