// A part of a map, ready to be drawn: the visible tokens, their labels, and the weights between them.

import type { Layer, Which } from "./layer";
import type { Rollout } from "./rollout";
import { largestOf } from "./scale";

export interface Table {
  queries: string[];
  keys: string[];
  /** Indices of rows and columns in the layer. */
  queryAt: number[];
  keyAt: number[];
  /** (queries · keys) */
  weights: Float32Array;
  /** The whole map, also of the tokens that are not shown, with so many columns. */
  matrix: Float32Array;
  columns: number;
  max: number;
  /** For each query: how many keys it may see. */
  visible: Float32Array;
  /** For each query: how much goes to keys that are not shown. */
  hidden: Float32Array;
}

/** [CLS], <pad>, <|endoftext|>, and the like; not <0xE4>, a byte of a character. */
export function isSpecial(token: string): boolean {
  return /^(\[[A-Za-z]\w*\]|<(?!0x[0-9A-F]{2}>)[^<>\s]+>)$/.test(token.trim());
}

/** Characters that no font draws, or that turn others around. Joiners belong to emoji and to some scripts, so they count only alone,
 * and so do spaces of other kinds. */
const UNSEEN =
  /[\x80-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e001f}\p{NChar}]|^[ \u00a0\u034f\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180d\u180f\u2000-\u200a\u200c\u200d\u202f\u205f\u3000\ufe00-\ufe0f\u{e0020}-\u{e007f}\u{e0100}-\u{e01ef}]+$/gu;
const CONTROLS: Record<string, string> = { "\n": "⏎", "\t": "⇥", "\x7f": "␡" };

/** A token without the marks of tokenizers: one before a word goes, others are the spaces and newlines that they stand for. */
function withoutMarks(token: string): string {
  const marks = /^[Ġ▁Ċ]*/.exec(token)![0];
  const rest = token.slice(marks.length).replace(/(?<=.)<\/w>$/s, "");
  if (rest && (marks === "Ġ" || marks === "▁")) return rest;
  return marks.replace(/[Ġ▁]/g, "␣").replace(/Ċ/g, "\n") + rest;
}

/** The displayed form of a token: spaces, control characters and subword marks are made visible or removed. */
export function visible(token: string): string {
  if (token === "") return "∅";
  const text = withoutMarks(token);
  if (/^ *$/.test(text)) return "␣".repeat(text.length);
  return text
    .replace(/[\x00-\x1f\x7f]/g, (one) => CONTROLS[one] ?? String.fromCharCode(0x2400 + one.charCodeAt(0)))
    .replace(UNSEEN, (some) => [...some].map((one) => `<U+${one.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}>`).join(""));
}

export function wholeMatrix(layer: Layer, which: Which, index: number, rollout: Rollout | null): Float32Array {
  if (which === "rollout" && rollout) return rollout.matrix(index);
  return typeof which === "number" ? layer.matrix(which) : layer.mean();
}

export function makeTable(
  matrix: Float32Array,
  columns: number,
  queryLabels: string[],
  keyLabels: string[],
  hide: boolean,
  seeing: ArrayLike<number> | null = null,
): Table {
  const shown = (labels: string[]) => labels.map((_, i) => i).filter((i) => !hide || !isSpecial(labels[i]));
  const [queryAt, keyAt] = [shown(queryLabels), shown(keyLabels)];
  const about = { queries: queryAt.map((q) => visible(queryLabels[q])), keys: keyAt.map((k) => visible(keyLabels[k])), queryAt, keyAt, matrix, columns, visible: Float32Array.from(queryAt, (q) => seeing?.[q] ?? columns) };
  if (queryAt.length === queryLabels.length && keyAt.length === columns) {
    // All tokens are visible, so nothing is copied: large maps must be fast while the pointer moves.
    const weights = matrix.subarray(0, queryAt.length * columns);
    return { ...about, weights, max: largestOf(weights), hidden: new Float32Array(queryAt.length) };
  }
  const weights = new Float32Array(queryAt.length * keyAt.length);
  const hidden = new Float32Array(queryAt.length);
  let max = 0;
  queryAt.forEach((q, i) => {
    let [sum, seen] = [0, 0];
    for (let k = 0; k < columns; k++) sum += matrix[q * columns + k];
    for (let j = 0; j < keyAt.length; j++) {
      const weight = matrix[q * columns + keyAt[j]];
      weights[i * keyAt.length + j] = weight;
      seen += weight;
      if (Math.abs(weight) > max) max = Math.abs(weight);
    }
    hidden[i] = Math.max(0, sum - seen);
  });
  return { ...about, weights, max, hidden };
}

/** The largest entries of a row, best first; weights with a sign by their size. */
export function top(row: ArrayLike<number>, count: number): number[] {
  const order = Array.from({ length: row.length }, (_, i) => i).sort((a, b) => Math.abs(row[b]) - Math.abs(row[a]));
  return order.slice(0, count).filter((i) => row[i] !== 0);
}

/** The threshold that the sizes of about `count` entries reach. */
export function threshold(weights: Float32Array, max: number, count: number): number {
  if (weights.length <= count || max <= 0) return 0;
  const bins = new Uint32Array(1024);
  for (let i = 0; i < weights.length; i++) bins[Math.min(1023, Math.floor((1024 * Math.abs(weights[i])) / max))]++;
  let seen = 0;
  for (let bin = 1023; bin >= 0; bin--) {
    seen += bins[bin];
    if (seen > count) return ((bin + 1) / 1024) * max;
  }
  return 0;
}
