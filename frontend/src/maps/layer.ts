// The maps of one layer, as they came: bytes with a factor per row. Values are made where they are needed.

import { type NumberArray, type Payload, slice } from "../core/payload";

export interface LayerAbout {
  name: string;
  /** Numbers of the heads that were kept. */
  heads: number[];
  queries: number;
  keys: number;
  /** Numbers of the rows that were kept; null for all. */
  rows: number[] | null;
  residual: number | null;
  agrees: boolean;
  against: string;
  kind: string;
  kernel: string | null;
  calls: number;
  joined: boolean;
  /** How many of the last rows were written one by one. */
  steps?: number;
  /** How the keys lie, where it is known: so many tokens before a grid, row by row. */
  grid?: number[] | null;
  prefix?: number;
  /** Whether some weights are negative. */
  signed?: boolean;
  /** How many keys every query may see; null where queries differ, and then an array has the numbers. */
  visible?: number | null;
  /** Numbers of each head, by name. */
  statistics?: Statistics;
  /** What each head mostly does, in a word. */
  patterns?: string[];
}

export type Statistics = Record<"structure" | "surprise" | "entropy" | "distance" | "locality", (number | null)[]>;

/** Words for patterns, in the order in which they are offered. */
export const PATTERNS: Record<string, string> = {
  itself: "looks at itself",
  previous: "looks at the previous token",
  next: "looks at the next token",
  neighbors: "looks at its neighbors",
  first: "looks at the first token",
  "one key": "looks at one place from everywhere",
  uniform: "looks everywhere alike",
  other: "no simple pattern",
};

/** The choices of a filter: patterns that some head has. */
export function patternOptions(layers: LayerAbout[]): [string, string][] {
  const found = new Map<string, number>();
  for (const { patterns } of layers) for (const name of patterns ?? []) found.set(name, (found.get(name) ?? 0) + 1);
  const known = Object.keys(PATTERNS).filter((name) => found.has(name));
  return [["any", "any pattern"], ...known.map((name): [string, string] => [name, `${PATTERNS[name]} (${found.get(name)})`])];
}

/** What a view opens on, and why. */
export interface Opening extends Record<"layer" | "head", number> {
  why: string;
}

/** Which of a layer's maps: a head (by its place), all of them in the middle, or all layers up to here. */
export type Which = number | "mean" | "rollout";

export interface Choice {
  layer: number;
  which: Which;
}

export class Layer<About extends LayerAbout = LayerAbout> {
  private average: Float32Array | null = null;

  constructor(
    readonly about: About,
    private readonly array: NumberArray | null,
    visible: ArrayLike<number> | null = null,
    private readonly opening: { head: number; array: NumberArray } | null = null,
  ) {
    this.visible = visible ?? new Float32Array(about.queries).fill(about.visible ?? about.keys);
  }

  /** How many keys each query may see, (queries). */
  readonly visible: ArrayLike<number>;

  /** Whether its maps have been read. Before that there is the one that the view opens on; others are empty. */
  get complete(): boolean { return this.array !== null; }
  get heads(): number { return this.about.heads.length; }
  get queries(): number { return this.about.queries; }
  get keys(): number { return this.about.keys; }

  /** Weights of one row of one head, (keys). */
  row(head: number, query: number, out?: Float32Array): Float32Array {
    if (!this.array) return this.matrix(head).subarray(query * this.keys, (query + 1) * this.keys);
    return slice(this.array, (head * this.queries + query) * this.keys, this.keys, out);
  }

  /** Weights of one head, (queries · keys). */
  matrix(head: number, out?: Float32Array): Float32Array {
    const size = this.queries * this.keys;
    if (this.array) return slice(this.array, head * size, size, out);
    return head === this.opening?.head ? slice(this.opening.array, 0, size, out) : (out?.fill(0) ?? new Float32Array(size));
  }

  /** The mean over some heads, (queries · keys). */
  meanOf(heads: number[]): Float32Array {
    if (heads.length === this.heads) return this.mean();
    const sum = new Float32Array(this.queries * this.keys);
    for (const head of heads) {
      const one = this.matrix(head);
      for (let i = 0; i < sum.length; i++) sum[i] += one[i] / heads.length;
    }
    return sum;
  }

  /** The mean over heads, (queries · keys). */
  mean(): Float32Array {
    if (this.average) return this.average;
    const sum = new Float32Array(this.queries * this.keys);
    const one = new Float32Array(sum.length);
    for (let head = 0; head < this.heads; head++) {
      this.matrix(head, one);
      for (let i = 0; i < sum.length; i++) sum[i] += one[i];
    }
    for (let i = 0; i < sum.length; i++) sum[i] /= this.heads;
    this.average = sum;
    return sum;
  }

  /** The place of a query among the rows that were kept; −1 where it was not. */
  rowOf(query: number): number {
    const { rows } = this.about;
    if (rows) return rows.indexOf(query);
    return query < this.queries ? query : -1;
  }
}

/** The same choice among other layers, or the nearest that there is. */
export function fitChoice(choice: Choice, layers: Layer[], rollout: boolean): Choice {
  const layer = Math.min(choice.layer, layers.length - 1);
  const which = choice.which === "rollout" && !rollout ? "mean" : choice.which;
  return { layer, which: typeof which === "number" ? Math.min(which, layers[layer].heads - 1) : which };
}

export function layersOf<About extends LayerAbout>(payload: Payload<{ layers: About[]; opening?: Opening }>): Layer<About>[] {
  const { layers, opening } = payload.meta;
  return layers.map((about, i) => {
    const first = opening?.layer === i && payload.has("opening") ? { head: opening.head, array: payload.array("opening") } : null;
    return new Layer(about, payload.has(`map${i}`) ? payload.array(`map${i}`) : null, about.visible === null ? payload.values(`visible${i}`) : null, first);
  });
}

export type Order = "place" | keyof Statistics;
export const ORDERS: [Order, string][] = [["place", "in their order"], ["structure", "most structured first"], ["entropy", "sharpest first"], ["distance", "nearest first"], ["locality", "most local first"]];
/** Bits below which a head is as good as uniform. */
const EVEN = 0.05;

/** The heads of a layer in an order, those that are nearly uniform left out where asked. */
export function sortedHeads({ statistics, heads, patterns }: LayerAbout, order: Order, structured: boolean, pattern = "any"): number[] {
  const all = heads
    .map((_, head) => head)
    .filter((head) => !structured || (statistics?.surprise[head] ?? Infinity) > EVEN)
    .filter((head) => pattern === "any" || patterns?.[head] === pattern);
  if (order === "place" || !statistics) return all;
  const sign = order === "structure" || order === "locality" || order === "surprise" ? -1 : 1;
  const value = (head: number) => (statistics[order][head] === null ? Infinity : sign * statistics[order][head]!);
  return all.sort((a, b) => value(a) - value(b) || a - b);
}

/** A head in numbers. */
export function headNumbers({ statistics, patterns }: LayerAbout, head: number): string {
  if (!statistics) return "";
  const { structure, entropy, distance, locality } = statistics;
  const said = [`${structure[head]?.toFixed(1)} bits of structure`, `entropy ${percent(entropy[head] ?? 0)} of uniform`];
  if (distance[head] !== null) said.push(`looks ${distance[head]!.toFixed(1)} away`, `${percent(locality[head] ?? 0)} local`);
  const pattern = PATTERNS[patterns?.[head] ?? ""];
  return (pattern ? [pattern, ...said] : said).join(" · ");
}

/** The end of the one scale for all maps: the most keys that any query sees. */
export function mostVisible(layers: Layer[]): number {
  let most = 1;
  for (const { visible } of layers) for (let q = 0; q < visible.length; q++) most = Math.max(most, visible[q]);
  return most;
}

/** Names without the parts that all of them share, so that they fit beside a row of pictures. */
export function shortNames(names: string[]): string[] {
  const split = names.map((name) => name.split("."));
  const shortest = Math.min(...split.map((parts) => parts.length));
  let [front, back] = [0, 0];
  if (names.length > 1) {
    while (front < shortest - 1 && split.every((parts) => parts[front] === split[0][front])) front++;
    while (back < shortest - 1 - front && split.every((parts) => parts[parts.length - 1 - back] === split[0][split[0].length - 1 - back])) back++;
  }
  const short = split.map((parts) => parts.slice(front, parts.length - back).join("."));
  // "encoder.0.attention" says no more than "encoder.0", as long as nothing else is called so.
  const shorter = short.map((name) => name.replace(/[._]?(attention|attn)$/, ""));
  return shorter.every(Boolean) && new Set(shorter).size === names.length ? shorter : short;
}

export const percent = (x: number): string => (x < 0 ? `−${percent(-x)}` : x >= 0.0995 || x === 0 ? `${Math.round(100 * x)} %` : `${(100 * x).toPrecision(2)} %`);

/** Two digits tell its size; exactly 0 is said so. */
export const residualNumber = (x: number) => (x === 0 ? "0" : x.toExponential(1));

/** What the residual of a map says, in words. */
export function residualText(about: Pick<LayerAbout, "residual" | "agrees" | "against">): string {
  if (about.residual === null) return `no residual: ${about.against.replace(/^nothing: /, "")}`;
  return `residual ${residualNumber(about.residual)} against the ${about.against}${about.agrees ? "" : ", more than rounding explains"}`;
}
