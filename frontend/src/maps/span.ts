// A span of tokens that was marked with the pointer: how much of their attention goes where.

import type { Table } from "./table";

/** From the first to the last token of each side, both included; null for all of them. */
export interface Span {
  q: [number, number] | null;
  k: [number, number] | null;
}

const within = (range: [number, number] | null, at: number) => range === null || (at >= range[0] && at <= range[1]);
export const inSpan = (span: Span | null | undefined, q: number, k: number): boolean => !span || (within(span.q, q) && within(span.k, k));

/** Between two places; −1 stands for a label of the other side, so that all of this side counts. */
export function spanOf(from: { q: number; k: number }, to: { q: number; k: number }): Span {
  const range = (a: number, b: number): [number, number] | null => (a < 0 || b < 0 ? null : [Math.min(a, b), Math.max(a, b)]);
  return { q: range(from.q, to.q), k: range(from.k, to.k) };
}

/** The share of the marked queries' attention that goes to the marked keys, and what uniform attention would give them. */
export function massOf(table: Table, span: Span): { mass: number; uniform: number; queries: number; keys: number } {
  const [[q0, q1], [k0, k1]] = [span.q ?? [0, table.queries.length - 1], span.k ?? [0, table.keys.length - 1]];
  let [mass, uniform] = [0, 0];
  for (let q = q0; q <= q1; q++) {
    let seen = 0;
    for (let k = k0; k <= k1; k++) {
      const weight = table.weights[q * table.keys.length + k];
      mass += weight;
      // Which keys a mask hides is not recorded; the weight there is 0.
      if (weight !== 0 || table.visible[q] >= table.keys.length) seen++;
    }
    uniform += Math.min(1, seen / table.visible[q]);
  }
  const queries = q1 - q0 + 1;
  return { mass: mass / queries, uniform: uniform / queries, queries, keys: k1 - k0 + 1 };
}

/** The marked tokens in words. */
export function spanText(labels: string[], range: [number, number] | null): string {
  if (!range) return "all tokens";
  const [a, b] = range;
  return a === b ? `“${labels[a]}”` : b === a + 1 ? `“${labels[a]} ${labels[b]}”` : `“${labels[a]} … ${labels[b]}”`;
}
