// The maps of one layer as they were sent: bytes with a scale factor per row. Values are computed on demand.

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
  /** What the keys are: "samples" are keys that differ from query to query. */
  over?: "tokens" | "channels" | "samples";
  calls: number;
  joined: boolean;
  /** How many of the last rows were generated one by one. */
  steps?: number;
  /** The layout of the keys, if known: prefix tokens, then a grid, row by row. */
  grid?: number[] | null;
  prefix?: number;
  /** Whether some weights are negative. */
  signed?: boolean;
  /** How many keys every query may see; null if queries differ, then an array holds the counts. */
  visible?: number | null;
  /** Statistics of each head, by name. */
  statistics?: Statistics;
  /** The pattern of each head. */
  patterns?: string[];
}

/** What queries and keys of a map are called; in XCiT they are channels. */
export const thing = ({ over }: Pick<LayerAbout, "over">): "token" | "channel" => (over === "channels" ? "channel" : "token");

export type Statistics = Record<"structure" | "surprise" | "entropy" | "distance" | "locality", (number | null)[]>;

/** Descriptions of the patterns, in the order of the menu. */
export const PATTERNS: Record<string, string> = {
  itself: "looks at itself",
  previous: "looks at the previous token",
  next: "looks at the next token",
  neighbors: "looks at its neighbors",
  first: "looks at the first token",
  "one key": "looks at one key from every query",
  uniform: "looks everywhere equally",
  other: "no simple pattern",
};

/** The options of the filter: patterns that at least one head has. */
export function patternOptions(layers: LayerAbout[]): [string, string][] {
  const found = new Map<string, number>();
  for (const { patterns } of layers) for (const name of patterns ?? []) found.set(name, (found.get(name) ?? 0) + 1);
  const known = Object.keys(PATTERNS).filter((name) => found.has(name));
  return [["any", "any pattern"], ...known.map((name): [string, string] => [name, `${PATTERNS[name]} (${found.get(name)})`])];
}

/** The head that a view shows first, and why. */
export interface Opening extends Record<"layer" | "head", number> {
  why: string;
}

/** Which map of a layer: a head (by its index), the mean over heads, or the rollout up to this layer. */
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

  /** Whether its maps have arrived. Before that, only the map that the view shows first is there; others are empty. */
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

  /** The index of a query among the rows that were kept; −1 if it was not kept. */
  rowOf(query: number): number {
    const { rows } = this.about;
    if (rows) return rows.indexOf(query);
    return query < this.queries ? query : -1;
  }
}

/** The same choice among other layers, or the nearest that exists. */
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
export const ORDERS: [Order, string][] = [["place", "by number"], ["structure", "most structured first"], ["entropy", "sharpest first"], ["distance", "shortest distance first"], ["locality", "most local first"]];
/** A head with fewer bits counts as uniform. */
const EVEN = 0.05;

/** The heads of a layer, sorted; nearly uniform ones are left out on request. */
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

/** The statistics of a head as text. */
export function headNumbers({ statistics, patterns }: LayerAbout, head: number): string {
  if (!statistics) return "";
  const { structure, entropy, distance, locality } = statistics;
  const said = [`${structure[head]?.toFixed(1)} bits of structure`, `entropy ${percent(entropy[head] ?? 0)} of uniform`];
  if (distance[head] !== null) said.push(`looks ${distance[head]!.toFixed(1)} away`, `${percent(locality[head] ?? 0)} local`);
  const pattern = PATTERNS[patterns?.[head] ?? ""];
  return (pattern ? [pattern, ...said] : said).join(" · ");
}

/** The end of the common scale of all maps: the largest number of keys that any query sees. */
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
  const rest = split.map((parts) => parts.slice(front, parts.length - back));
  // "decoder.block.0.layer.1.EncDecAttention" is shortened to "decoder.0.1.EncDecAttention" if all names have "block" and "layer" there.
  const aligned = names.length > 1 && rest.every((parts) => parts.length === rest[0].length);
  const short = rest.map((parts) => parts.filter((part, i) => !aligned || /^\d+$/.test(part) || rest.some((other) => other[i] !== part)).join("."));
  // "encoder.0.attention" is shortened to "encoder.0", and "0.SelfAttention" to "0.Self", if no other name starts like this.
  const shorter = short.map((name) => name.replace(/[._]?(attention|attn)$/i, ""));
  return shorter.every(Boolean) && new Set(shorter).size === names.length ? shorter : short;
}

export const percent = (x: number): string => (x < 0 ? `−${percent(-x)}` : x >= 0.0995 || x === 0 ? `${Math.round(100 * x)} %` : `${(100 * x).toPrecision(2)} %`);

/** Two significant digits; exactly 0 is written as 0. */
export const residualNumber = (x: number) => (x === 0 ? "0" : x.toExponential(1));

/** The residual of a map as text. */
export function residualText(about: Pick<LayerAbout, "residual" | "agrees" | "against">): string {
  if (about.residual === null) return `no residual: ${about.against.replace(/^nothing: /, "")}`;
  return `residual ${residualNumber(about.residual)} against the ${about.against}${about.agrees ? "" : ", more than rounding explains"}`;
}
