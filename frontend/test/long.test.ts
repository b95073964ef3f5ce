// Windows onto long maps, pooling that loses nothing, and search.

import { expect, test } from "vitest";
import { type Cells, everything, pooled, search, valueAt, within, zoomedAt } from "../src/maps/cells";
import { binSize, nextPlace, tipText } from "../src/views/long";

const cells = (rows: number, columns: number, at: (r: number, c: number) => number): Cells => ({
  data: Float32Array.from({ length: rows * columns }, (_, i) => at(Math.floor(i / columns), i % columns)),
  rows,
  columns,
  tall: rows,
  wide: columns,
});

test("a window stays inside, and its point stays where it was", () => {
  expect(within({ x: 0.9, y: -1, share: 0.5 }, 0.01)).toEqual({ x: 0.5, y: 0, share: 0.5 });
  expect(within({ x: 0, y: 0, share: 1e-9 }, 0.25).share).toBe(0.25);
  const view = zoomedAt(everything, 4, 0.6, 0.2, 1e-4);
  expect(view.share).toBe(0.25);
  expect((0.6 - view.x) / view.share).toBeCloseTo(0.6);
  expect((0.2 - view.y) / view.share).toBeCloseTo(0.2);
});

test("one bright cell is seen however few pixels there are", () => {
  for (const side of [1, 7, 64, 500]) {
    const part = pooled(cells(128, 128, (r, c) => (r === 77 && c === 3 ? 1 : 0)), everything, side, side);
    expect(Math.max(...part.data)).toBe(1);
    expect(part.rows).toBe(Math.min(side, 128));
  }
});

test("a window has the cells that it touches", () => {
  const part = pooled(cells(10, 10, (r, c) => 10 * r + c), { x: 0.25, y: 0.5, share: 0.2 }, 99, 99);
  expect([part.from, part.to]).toEqual([[5, 2], [7, 5]]);
  expect([...part.data]).toEqual([52, 53, 54, 62, 63, 64]);
});

test("the last cell may be small", () => {
  const small = { ...cells(3, 3, (r, c) => 3 * r + c), tall: 2.1, wide: 2.1 };
  expect(pooled(small, everything, 9, 9).to).toEqual([3, 3]);
  expect(pooled(small, { x: 0, y: 0, share: 0.5 }, 9, 9).to).toEqual([2, 2]);
  expect(valueAt({ values: Float32Array.of(1, 2, 3), count: 2.1 }, 0.99)).toBe(3);
});

test("search finds tokens in either case, and next goes round", () => {
  const found = search(["The", "cat", " sat", "the"], "THE");
  expect(found).toEqual([0, 3]);
  expect(search(["a"], " ")).toEqual([]);
  const first = nextPlace(everything, [10, 900], 1000, 1e-4);
  expect((first.x + first.share / 2) * 1000).toBeCloseTo(900.5);
  const again = nextPlace(first, [100, 900], 1000, 1e-4);
  expect((again.x + again.share / 2) * 1000).toBeCloseTo(100.5);
});

test("queries that are not the tokens have numbers", () => {
  const about = (named: [boolean, boolean]) => ({ queries: 2, keys: 3, cell: [1, 1], named }) as unknown as Parameters<typeof tipText>[0];
  const one = cells(2, 3, () => 0.25);
  const tip = (named: [boolean, boolean]) => tipText(about(named), one, "mass", { q: 0, k: 0.9 }, ["a", "b", "c"]);
  expect(tip([true, true])).toContain("0 “a” → 2 “c”");
  expect(tip([false, true])).toContain("0 → 2 “c”");
});

test("the last bin of a curve may have fewer tokens", () => {
  expect([0, 0.5, 0.9999].map((share) => binSize(share, 9001, 5))).toEqual([5, 5, 1]);
});
