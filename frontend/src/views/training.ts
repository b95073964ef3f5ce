// Training curves: loss and accuracy against steps.

import { html, useMemo, useState, type ComponentChildren, type VNode } from "../core/html";
import { Picture, type Size } from "../core/canvas";
import { Choice, Slider } from "../core/controls";
import { Frame } from "../core/frame";
import type { Host } from "../core/host";
import { chart, type Line, type Overlaid } from "./chart";
import type { ViewProps } from "./index";

interface Meta {
  lines: Line[];
  name: string;
}

/** The data of a saved report. */
export function TrainingView({ payload, host }: ViewProps): VNode {
  const { lines, name } = payload.meta as Meta;
  return html`<${Curves} lines=${lines} host=${host} words=${name} />` as VNode;
}

export interface CurvesProps {
  lines: Line[];
  host: Host;
  /** Text before the step. */
  words: string;
  others?: Overlaid[];
  controls?: ComponentChildren;
  children?: ComponentChildren;
}

const NONE: Overlaid[] = [];

export function Curves({ lines, host, words, others = NONE, controls, children }: CurvesProps): VNode {
  const [memory, setMemory] = useState(0.8);
  const [scale, setScale] = useState("linear");
  const [over, setOver] = useState<number | null>(null);
  const [at, setAt] = useState("");
  const key = others.map((one) => `${one.id} ${one.lines.length}`).join(" ");
  const loss = useMemo(() => chart({ title: "Loss", lines, name: "loss", memory, log: scale === "log", others }, over), [lines, memory, scale, over, key]);
  const right = useMemo(() => chart({ title: "Accuracy", lines, name: "accuracy", memory, log: false, share: true, others }, over), [lines, memory, over, key]);
  const step = lines.at(-1)?.step ?? 0;
  const height = (width: number) => Math.max(200, Math.min(360, width * 0.55));
  const part = ({ draw, stepAt, tip, last }: ReturnType<typeof chart>, label: string) => {
    /** Arrow keys move by a hundredth of the run; Home and End go to its ends. */
    const move = (pressed: string): boolean => {
      const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[pressed];
      if (pressed === "Escape") setOver(null);
      else if (by !== undefined) setOver(Math.min(last, Math.max(0, (over ?? last) + by * Math.max(1, Math.round(last / 100)))));
      return by !== undefined || pressed === "Escape";
    };
    return html`<${Picture} draw=${draw} height=${height} label=${label} cursor="crosshair" focusable onKey=${move} tip=${at === label ? tip() : null}
      onPoint=${(x: number, _: number, __: Event, size: Size) => (setOver(stepAt(x, size)), setAt(label))} onLeave=${() => setOver(null)} />`;
  };
  return html`<${Frame} name="training" title="Training" subtitle=${words ? `${words}, step ${(over ?? step)?.toLocaleString("en")}` : ""} host=${host}
    controls=${html`<${Choice} label="scale of the loss" value=${scale} options=${[["linear", "Linear"], ["log", "Logarithmic"]]} onChange=${setScale} />
      <${Slider} label="smoothing" value=${memory} min=${0} max=${0.99} step=${0.01} text=${memory.toFixed(2)} onInput=${setMemory} />
      ${controls}`}>
    ${children}
    <div class="rg-two">${part(loss, "loss against steps")}${part(right, "accuracy against steps")}</div>
  <//>` as VNode;
}
