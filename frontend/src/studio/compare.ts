// Two networks and one input: the maps of one minus those of the other.

import { html, type VNode } from "../core/html";
import { wholeNumber } from "../core/memory";
import { type ArrayInfo, type Header, Payload } from "../core/payload";
import type { LayerAbout } from "../maps/layer";
import type { RunDetail, RunSummary } from "./api";

/** The network to compare with: the same run at another step, or the last checkpoint of another run. */
export interface Other {
  run: string;
  step: number | null;
}

/** The spelling in the address: "step 100", or "run NAME". */
export function otherOf(text: string | null, run: RunDetail): Other | null {
  const [kind, ...rest] = (text ?? "").split(" ");
  const step = wholeNumber(rest[0]);
  if (kind === "step" && step) return { run: run.id, step };
  return kind === "run" && rest.length ? { run: rest.join(" "), step: null } : null;
}

export interface CompareProps {
  run: RunDetail;
  step: number | null;
  runs: RunSummary[];
  value: string | null;
  onChange: (value: string | null) => void;
}

const MOST = 200; // runs in a menu

export function Compare({ run, step, runs, value, onChange }: CompareProps): VNode | null {
  const now = step ?? run.checkpoints.at(-1)?.step;
  const steps = run.checkpoints.map((one) => one.step).filter((one) => one !== now);
  const others = runs.filter((one) => one.id !== run.id && one.kind === run.kind && one.problem === null);
  // Runs of the same recipe have maps of the same sizes.
  const likely = [...others.filter((one) => one.recipe === run.recipe), ...others.filter((one) => one.recipe !== run.recipe)].slice(0, MOST);
  if (!steps.length && !likely.length) return null;
  return html`<label class="st-step">minus
    <select value=${value ?? ""} onChange=${(event: Event) => onChange((event.target as HTMLSelectElement).value || null)}>
      <option value="" selected=${!value}>nothing</option>
      ${steps.length ? html`<optgroup label="this run">${steps.map((one) => html`<option key=${one} value=${`step ${one}`} selected=${value === `step ${one}`}>step ${one}</option>`)}</optgroup>` : null}
      ${likely.length ? html`<optgroup label="another run">${likely.map((one) => html`<option key=${one.id} value=${`run ${one.id}`} selected=${value === `run ${one.id}`}>${one.title}</option>`)}</optgroup>` : null}
    </select></label>` as VNode;
}

interface Meta {
  layers: LayerAbout[];
  notes: string[];
  tokens?: Record<string, string[]>;
  [name: string]: unknown;
}

/** The maps of `a` minus those of `b`, signed. The view opens on the head that differs most. */
export function difference(a: Payload, b: Payload, name: string): Payload {
  const [left, right] = [a.meta as unknown as Meta, b.meta as unknown as Meta];
  const shape = ({ layers }: Meta) => layers.map((layer) => `${layer.heads.length} × ${layer.queries} × ${layer.keys}`).join(", ");
  if (a.view !== b.view || shape(left) !== shape(right)) throw new Error(`Maps of ${shape(left)} (heads × queries × keys) cannot be compared with ${shape(right)}.`);
  const arrays: Record<string, ArrayInfo> = {};
  const parts: Float32Array[] = [];
  let offset = 0;
  const add = (key: string, values: Float32Array, size: number[]) => {
    arrays[key] = { dtype: "float32", shape: size, offset, length: values.byteLength };
    parts.push(values);
    offset += values.byteLength;
  };
  let opening = { layer: 0, head: 0, share: -1 };
  const layers = left.layers.map((about, i) => {
    const [one, other] = [a.values(`map${i}`), b.values(`map${i}`)];
    const values = Float32Array.from(one, (value, at) => value - other[at]);
    add(`map${i}`, values, a.array(`map${i}`).shape);
    if (a.has(`visible${i}`)) add(`visible${i}`, a.values(`visible${i}`), a.array(`visible${i}`).shape);
    const size = about.queries * about.keys;
    about.heads.forEach((_, head) => {
      let moved = 0;
      for (let at = head * size; at < (head + 1) * size; at++) moved += Math.abs(values[at]) / 2 / about.queries;
      if (moved > opening.share) opening = { layer: i, head, share: moved };
    });
    return { ...about, signed: true, statistics: undefined, patterns: undefined, residual: null, agrees: true, against: "nothing: a difference of two maps" };
  });
  if (a.has("image")) add("image", a.values("image"), a.array("image").shape);
  const buffer = new Uint8Array(offset);
  parts.reduce((at, part) => (buffer.set(new Uint8Array(part.buffer, part.byteOffset, part.byteLength), at), at + part.byteLength), 0);
  const why = `the head that changes most (${(100 * opening.share).toPrecision(2)} % of the attention differs)`;
  const meta = { ...left, layers, difference: true, rollout: false, notes: [...left.notes, ...otherTokens(left, right), `purple: more than ${name}; orange: less`], opening: { layer: opening.layer, head: opening.head, why } };
  return new Payload({ ...a.header, arrays, meta } as Header, buffer.buffer);
}

/** What the other network read or wrote, where that is not the same: a network's own answer is a part of its maps. */
function otherTokens({ tokens: here = {} }: Meta, { tokens: there = {} }: Meta): string[] {
  const differ = Object.keys(here).filter((name) => there[name]?.join(" ") !== here[name].join(" "));
  return differ.length ? [`the other network has other tokens (${there[differ[0]]?.join(" ")}): weights are compared place by place`] : [];
}
