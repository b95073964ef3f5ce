// How attention works, interactively: scores, weights and output of a few vectors in the plane.

import { html, useEffect, useMemo, useRef, useState, type VNode } from "../core/html";
import { Picture, type Size } from "../core/canvas";
import { Button, Choice, Select, Slider } from "../core/controls";
import { Frame } from "../core/frame";
import type { Key } from "../core/keys";
import { useTheme } from "../core/theme";
import type { ViewProps } from "./index";
import { attention, betaAt, entropy, type Matrix, positionOf } from "./maths/attention";
import { brief, percent, subscript, vector } from "./maths/words";
import {
  colorOf,
  drawFlow,
  drawKeys,
  drawMap,
  drawSweep,
  drawValues,
  type Extent,
  extentOf,
  flowHeight,
  frame,
  mapHeight,
  queryAt,
  type Scene,
  sweepBeta,
} from "./mechanism-draw";
import style from "./mechanism.css";
import { useSheet } from "./sheet";

interface Example {
  name: string;
  title: string;
  note: string;
  query: Matrix;
  key: Matrix;
  value: Matrix;
  /** null stands for ∞. */
  beta: number | null;
  asks: number;
}

type Vectors = Pick<Example, "query" | "key" | "value">;
type Part = keyof Vectors;
const MOST = 6;
const PARTS: [Part, string, string][] = [
  ["query", "Queries", "q"],
  ["key", "Keys", "k"],
  ["value", "Values", "v"],
];

export function MechanismView({ payload, host }: ViewProps): VNode {
  const examples = payload.meta.examples as Example[];
  const [example, setExample] = useState(examples[0]);
  const [vectors, setVectors] = useState<Vectors>(examples[0]);
  const [beta, setBeta] = useState(examples[0].beta ?? Infinity);
  const [asks, setAsks] = useState(examples[0].asks);
  const [picked, setPicked] = useState(-1);
  const [way, setWay] = useState("push");
  const place = useRef<HTMLDivElement>(null);
  useSheet(place, style);

  const soft = useMemo(() => attention(vectors.query, vectors.key, vectors.value, beta), [vectors, beta]);
  const hard = useMemo(() => attention(vectors.query, vectors.key, vectors.value, Infinity), [vectors]);
  const scene: Scene = { ...vectors, beta, asks, soft, hard, picked };

  // The visible part of the plane does not change during a drag.
  const dragging = useRef<{ part: Part; row: number; start: number[]; at: [number, number] } | null>(null);
  const extents = useRef<{ keys: Extent; values: Extent } | null>(null);
  if (!extents.current || !dragging.current) {
    extents.current = { keys: extentOf([vectors.query[asks], ...vectors.key]), values: extentOf(vectors.value) };
  }
  const [, settle] = useState(0);
  useEffect(() => {
    const end = () => {
      if (!dragging.current) return;
      dragging.current = null;
      settle((n) => n + 1);
    };
    window.addEventListener("pointerup", end);
    window.addEventListener("pointercancel", end);
    return () => {
      window.removeEventListener("pointerup", end);
      window.removeEventListener("pointercancel", end);
    };
  }, []);

  const choose = (name: string) => {
    const next = examples.find((one) => one.name === name) ?? examples[0];
    setExample(next);
    setVectors(next);
    setBeta(next.beta ?? Infinity);
    setAsks(next.asks);
    setPicked(-1);
  };
  const edit = (part: Part, row: number, entry: number[]) =>
    setVectors({ ...vectors, [part]: vectors[part].map((old, i) => (i === row ? entry : old)) });
  const resize = (queries: number, keys: number) => {
    const fill = (list: Matrix, count: number) =>
      Array.from({ length: count }, (_, i) => list[i] ?? [Math.cos(i), Math.sin(i)].map((x) => round(x * typical(list))));
    setVectors({ query: fill(vectors.query, queries), key: fill(vectors.key, keys), value: fill(vectors.value, keys) });
    setAsks(Math.min(asks, queries - 1));
    setPicked(picked < keys ? picked : -1);
  };

  /** The key, or else the current query, whose tip is near. */
  const nearest = (x: number, y: number, size: Size): [Part, number] | null => {
    const { to } = frame(extents.current!.keys, size);
    const far = [...vectors.key, vectors.query[asks]].map((v) => Math.hypot(to(v)[0] - x, to(v)[1] - y));
    const best = far.indexOf(Math.min(...far));
    if (far[best] > 30) return null;
    return best < vectors.key.length ? ["key", best] : ["query", asks];
  };
  const pickAt = (x: number, y: number, size: Size) => {
    const found = nearest(x, y, size);
    setPicked(found?.[0] === "key" ? found[1] : -1);
    return found;
  };
  const drag = (dx: number, dy: number, event: PointerEvent, size: Size) => {
    const box = (event.target as HTMLElement).getBoundingClientRect();
    const at: [number, number] = [event.clientX - box.left, event.clientY - box.top];
    if (!dragging.current) {
      const found = pickAt(at[0] - dx, at[1] - dy, size);
      if (!found) return;
      const [part, row] = found;
      dragging.current = { part, row, start: vectors[part][row], at: [at[0] - dx, at[1] - dy] };
    }
    const { part, row, start, at: from } = dragging.current;
    const { scale } = frame(extents.current!.keys, size);
    const moved = [start[0] + (at[0] - from[0]) / scale, start[1] - (at[1] - from[1]) / scale];
    edit(part, row, (way === "stretch" ? along(start, moved) : moved).map(round));
  };

  const index = picked < 0 ? 0 : picked;
  const push = (dx: number, dy: number) => {
    const step = extents.current!.keys.radius / 40;
    setPicked(index);
    edit("key", index, [vectors.key[index][0] + dx * step, vectors.key[index][1] + dy * step].map(round));
  };
  const stretch = (factor: number) => {
    setPicked(index);
    edit("key", index, vectors.key[index].map((x) => round(x * factor)));
  };
  const ARROWS: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  const keys: Key[] = [
    { keys: Object.keys(ARROWS), shown: "← → ↑ ↓", means: "move the selected key", run: (key) => push(...ARROWS[key]) },
    { keys: ["+", "="], shown: "+", means: "lengthen the selected key", run: () => stretch(1.1) },
    { keys: ["-"], shown: "−", means: "shorten the selected key", run: () => stretch(1 / 1.1) },
    { keys: ["k"], means: "select the next key", run: () => setPicked((picked + 1) % vectors.key.length) },
    { keys: ["q"], means: "select the next query", run: () => setAsks((asks + 1) % vectors.query.length) },
    { keys: ["["], means: "smaller β", run: () => setBeta(betaAt(positionOf(beta) - 0.02)) },
    { keys: ["]"], means: "larger β", run: () => setBeta(betaAt(positionOf(beta) + 0.02)) },
  ];

  const weights = soft.weights[asks];
  const best = weights.indexOf(Math.max(...weights));
  const subtitle =
    `At β = ${brief(beta)}, q${subscript(asks + 1)} gives ${percent(weights[best])} of its attention to k${subscript(best + 1)}; ` +
    `its output is ${vector(soft.output[asks])}, hard attention's ${vector(hard.output[asks])}`;
  const root = 1 / Math.SQRT2;
  const presets: [string, number][] = [["0", 0], ["1/√d", root], ["1", 1], ["∞", Infinity]];

  const controls = html`
    <${Select} label="example" value=${example.name} options=${examples.map(({ name, title }) => [name, title])} onChange=${choose} />
    <${Slider} label="β" wide min=${0} max=${1} step=${0.001} value=${positionOf(beta)} text=${brief(beta, 3)} onInput=${(at: number) => setBeta(betaAt(at))} />
    <span class="rg-presets" role="group" aria-label="β">
      ${presets.map(([name, value]) => html`<${Button} key=${name} pressed=${beta === value} label=${`β = ${name}`} onClick=${() => setBeta(value)}>${name}<//>`)}
    </span>
    <${Choice} label="what dragging does" value=${way} options=${[["push", "move"], ["stretch", "stretch"]]} onChange=${setWay} />
    <${Button} onClick=${() => choose(example.name)}>reset<//>
  `;
  const square = (width: number) => Math.min(width, 420);
  return html`<${Frame}
    name="mechanism"
    title="How attention works"
    subtitle=${subtitle}
    host=${host}
    keys=${keys}
    controls=${controls}
    footer=${html`<span>effective number of keys: ${brief(Math.exp(entropy(weights)), 3)} of ${weights.length} keys</span>
      <span>output = Σ softmax(β · q·kⱼ) vⱼ</span>`}
  >
    <div ref=${place}>
      ${example.note ? html`<p class="rg-note">${example.note}</p>` : null}
      <div class="rg-mechanism">
        <section class="rg-whole">
          <div class="rg-vectors">
            ${PARTS.map(([part, title, letter]) =>
              html`<${Vectors} key=${part} part=${part} title=${title} letter=${letter} rows=${vectors[part]} asks=${asks} picked=${picked} edit=${edit} ask=${setAsks} pick=${setPicked} />`,
            )}
            <div class="rg-hint">
              ${Count("queries", vectors.query.length, (n) => resize(n, vectors.key.length))}
              ${Count("keys", vectors.key.length, (n) => resize(vectors.query.length, n))}
            </div>
          </div>
        </section>
        <section>
          <h3>Keys along the query</h3>
          <${Picture} class="rg-drag" draw=${drawKeys(scene, extents.current.keys)} height=${square} cursor="grab" focusable
            label=${`query ${vector(vectors.query[asks])} and keys ${vectors.key.map((k) => vector(k)).join(", ")}`}
            onDrag=${drag} onPress=${(x: number, y: number, _: MouseEvent, size: Size) => pickAt(x, y, size)} />
          <p class="rg-hint">Drag a key or the query. Moving a key at right angles to the query keeps its score.</p>
        </section>
        <section class="rg-scores">
          <h3>Scores → weights → output</h3>
          <${Picture} draw=${drawFlow(scene)} height=${flowHeight(vectors.key.length)} label=${subtitle} />
          <h3>All queries</h3>
          <${Picture} draw=${drawMap(scene)} height=${mapHeight(vectors.query.length)} cursor="pointer" label="weights of all queries"
            onPress=${(_: number, y: number) => setAsks(queryAt(y, vectors.query.length))} />
        </section>
        <section>
          <h3>The output among the values</h3>
          <${Picture} draw=${drawValues(scene, extents.current.values)} height=${square}
            label=${`values ${vectors.value.map((v) => vector(v)).join(", ")}, output ${vector(soft.output[asks])}`} />
          <p class="rg-hint">It stays in the convex hull of the values. As β grows, it approaches the value of the best key.</p>
        </section>
        <section class="rg-whole">
          <h3>Weights for every β</h3>
          <${Picture} class="rg-drag" draw=${drawSweep(scene)} height=${130} cursor="ew-resize" label=${`weights of the keys against β; now ${brief(beta)}`}
            onPress=${(x: number, _: number, __: MouseEvent, size: Size) => setBeta(sweepBeta(x, size.width))}
            onDrag=${(_: number, __: number, event: PointerEvent, size: Size) =>
              setBeta(sweepBeta(event.clientX - (event.target as HTMLElement).getBoundingClientRect().left, size.width))} />
        </section>
      </div>
    </div>
  <//>` as VNode;
}

interface VectorsProps {
  part: Part;
  title: string;
  letter: string;
  rows: Matrix;
  asks: number;
  picked: number;
  edit: (part: Part, row: number, entry: number[]) => void;
  ask: (row: number) => void;
  pick: (row: number) => void;
}

/** Vectors as numbers, to be edited in place. */
function Vectors({ part, title, letter, rows, asks, picked, edit, ask, pick }: VectorsProps) {
  const theme = useTheme();
  const name = (i: number) => `${letter}${subscript(i + 1)}`;
  const heading = (i: number) => {
    if (part === "query") return html`<${Button} pressed=${i === asks} label=${`${name(i)} asks`} onClick=${() => ask(i)}>${name(i)}<//>`;
    // A colored mark beside the name: colored letters would be too faint to read.
    const looks = { borderLeft: `5px solid ${colorOf(i, theme.mode)}`, paddingLeft: "6px", textDecoration: i === picked ? "underline" : "none" };
    return html`<span style=${looks} onClick=${() => pick(i)}>${name(i)}</span>`;
  };
  return html`<table>
    <caption>${title}</caption>
    <tbody>
      ${rows.map(
        (row, i) => html`<tr key=${i}>
          <th scope="row">${heading(i)}</th>
          ${row.map(
            (entry, d) => html`<td key=${d}>
              <input class="rg-number" type="number" step="any" value=${entry} aria-label=${`${title} ${i + 1}, ${d ? "second" : "first"} number`}
                onInput=${(event: InputEvent) => {
                  const typed = (event.target as HTMLInputElement).valueAsNumber;
                  if (Number.isFinite(typed) && Math.abs(typed) <= 1e6) edit(part, i, row.map((old, at) => (at === d ? typed : old)));
                }} />
            </td>`,
          )}
        </tr>`,
      )}
    </tbody>
  </table>`;
}

function Count(name: string, count: number, set: (count: number) => void) {
  return html`<div class="rg-count">
    <${Button} label=${`fewer ${name}`} onClick=${() => set(Math.max(1, count - 1))}>−<//>
    <${Button} label=${`more ${name}`} onClick=${() => set(Math.min(MOST, count + 1))}>+<//>
    <span>${count} ${name}</span>
  </div>`;
}

const round = (x: number) => Math.round(x * 100) / 100;

/** The part of `moved` along `start`: a stretch, not a turn. */
function along(start: number[], moved: number[]): number[] {
  const square = start[0] ** 2 + start[1] ** 2;
  if (!square) return moved;
  const share = (start[0] * moved[0] + start[1] * moved[1]) / square;
  return [share * start[0], share * start[1]];
}

function typical(list: Matrix): number {
  return Math.max(1, ...list.map((v) => Math.hypot(...v))) * 0.7;
}
