// Numbers of heads beside lines of thumbnails, where a layer has more heads than fit in a line.

import type { AtlasRow } from "./atlas";

/** Whether the heads of every line are in their own order, not sorted by something else. */
export const isAscending = (rows: AtlasRow[]): boolean => rows.every((row) => row.heads.every((head, c) => c === 0 || head > row.heads[c - 1]));

/** First and last head of a line. */
export function rangeOf({ layer, heads }: AtlasRow, name: (layer: number, head: number) => string): string {
  if (!heads.length) return "";
  const [first, last] = [heads[0], heads[heads.length - 1]].map((head) => name(layer, head));
  return first === last ? first : `${first}–${last}`;
}

/** The lines that have a text beside them, at least `step` lines apart: the selected layer first, then names of layers, then numbers of heads. */
export function numbered(rows: AtlasRow[], step: number, chosen: number, ranges: boolean): Set<number> {
  const found = new Set<number>();
  const add = (r: number) => [...found].every((other) => Math.abs(other - r) >= step) && found.add(r);
  if (chosen >= 0 && rows[chosen].label) add(chosen);
  rows.forEach((row, r) => row.label && add(r));
  if (ranges) rows.forEach((row, r) => !row.label && add(r));
  return found;
}
