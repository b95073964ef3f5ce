// A span of tokens marked with the pointer, and the attention between its queries and keys.

import { quoted } from "./quote";
import type { Table } from "./table";

/** First and last token (inclusive) of queries and of keys; null for all tokens. */
export interface Span {
  q: [number, number] | null;
  k: [number, number] | null;
}

const within = (range: [number, number] | null, at: number) => range === null || (at >= range[0] && at <= range[1]);
export const inSpan = (span: Span | null | undefined, q: number, k: number): boolean => !span || (within(span.q, q) && within(span.k, k));

/** The span between two cells. −1 means that a label of the other axis was marked, so all tokens of this axis count. */
export function spanOf(from: { q: number; k: number }, to: { q: number; k: number }): Span {
  const range = (a: number, b: number): [number, number] | null => (a < 0 || b < 0 ? null : [Math.min(a, b), Math.max(a, b)]);
  return { q: range(from.q, to.q), k: range(from.k, to.k) };
}

/** The share of the marked queries' attention on the marked keys, and the share under uniform attention. */
export function massOf(table: Table, span: Span): { mass: number; uniform: number; queries: number; keys: number } {
  const [[q0, q1], [k0, k1]] = [span.q ?? [0, table.queries.length - 1], span.k ?? [0, table.keys.length - 1]];
  let [mass, uniform] = [0, 0];
  for (let q = q0; q <= q1; q++) {
    const sees = keysOf(table, q);
    let seen = 0;
    for (let k = k0; k <= k1; k++) {
      mass += table.weights[q * table.keys.length + k];
      if (sees(table.keyAt[k])) seen++;
    }
    uniform += Math.min(1, seen / table.visible[q]);
  }
  const queries = q1 - q0 + 1;
  return { mass: mass / queries, uniform: uniform / queries, queries, keys: k1 - k0 + 1 };
}

/** Whether a query may see a key. It is known how many keys it sees: they are the first ones, unless others have weight. Then they
 * are those that have some. */
function keysOf({ matrix, columns, visible, queryAt }: Table, q: number): (key: number) => boolean {
  const row = matrix.subarray(queryAt[q] * columns, (queryAt[q] + 1) * columns);
  let last = columns - 1;
  while (last >= 0 && row[last] === 0) last--;
  return last >= 0 && last < visible[q] ? (key) => key < visible[q] : (key) => row[key] !== 0;
}

/** The marked tokens as text. */
export function spanText(labels: string[], range: [number, number] | null): string {
  if (!range) return "all tokens";
  const [a, b] = range;
  const between = b === a + 1 ? " " : " … ";
  return a === b ? quoted(labels[a]) : `${quoted(labels[a]).slice(0, -1)}${between}${quoted(labels[b]).slice(1)}`;
}
