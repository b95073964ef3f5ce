// Tokens on an image: prefix tokens first (class, registers), then a grid, row by row.

import type { LayerAbout } from "./layer";

export interface ImageAbout extends LayerAbout {
  grid: [number, number];
  prefix: number;
  /** Null if queries are not tokens of the grid; then all of them count as prefix. */
  query_grid: [number, number] | null;
  query_prefix: number;
}

/** Whether layers have patches of different sizes, so that the name of a patch needs the grid as well. */
export function isMerged(abouts: ImageAbout[]): boolean {
  return abouts.some((about) => String(about.grid) !== String(abouts[0].grid));
}

export const sizeText = (grid: number[]): string => grid.join(" × ");

/** A query: a prefix token by its number, or a position on the image, as shares of its height and width. */
export interface Query {
  prefix: number | null;
  y: number;
  x: number;
}

/** The index of the query in a layer. Layers may have grids of different sizes, or none. */
export function queryIn(about: ImageAbout, query: Query): number {
  const { query_grid: grid, query_prefix: prefix } = about;
  if (!grid) return Math.min(query.prefix ?? 0, prefix - 1);
  if (query.prefix !== null && query.prefix < prefix) return query.prefix;
  const [row, column] = cellOf(grid, query);
  return prefix + row * grid[1] + column;
}

/** Whether two positions lie in different patches of any layer, as a query or as a key. */
export function isElsewhere(abouts: ImageAbout[], a: Query | null, b: Query | null): boolean {
  if (a === null || b === null || a.prefix !== b.prefix) return a !== b;
  const differ = (grid: [number, number] | null) => grid !== null && String(cellOf(grid, a)) !== String(cellOf(grid, b));
  return abouts.some((about) => differ(about.query_grid) || differ(about.grid));
}

/** Row and column of a position. */
export function cellOf(grid: [number, number], { y, x }: { y: number; x: number }): [number, number] {
  const at = (share: number, count: number) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
  return [at(y, grid[0]), at(x, grid[1])];
}

/** The middle of a cell. */
export function centerOf(grid: [number, number], row: number, column: number): Query {
  const at = (n: number, count: number) => (Math.min(count - 1, Math.max(0, n)) + 0.5) / count;
  return { prefix: null, y: at(row, grid[0]), x: at(column, grid[1]) };
}

export function prefixName(number: number, count: number, onGrid: boolean): string {
  if (!onGrid) return count === 1 ? "the pooling query" : `query ${number}`;
  return number === 0 ? "class token" : `prefix ${number}`;
}

export function queryName(about: ImageAbout, query: Query, sized = false): string {
  const number = queryIn(about, query);
  if (number < about.query_prefix) return prefixName(number, about.query_prefix, about.query_grid !== null);
  const at = number - about.query_prefix;
  return patchName(about.query_grid!, at, sized);
}

export function patchName(grid: [number, number], number: number, sized: boolean): string {
  return `patch (${Math.floor(number / grid[1])}, ${number % grid[1]})${sized ? ` of ${sizeText(grid)}` : ""}`;
}
