// Windows onto long maps, pooling that loses nothing, and search.

import { expect, test } from "vitest";
import { type Cells, everything, pooled, search, valueAt, within, zoomedAt } from "../src/maps/cells";
import { columnsOf, elided, fitted, largestParts, linesOf, thumbnailSide } from "../src/maps/atlas";
import { hits } from "../src/maps/naming";
import { amount, besideEachOther, binSize, placeOf, tipText } from "../src/views/long";
import { ticks } from "../src/maps/scale";

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
    const part = pooled(cells(128, 128, (r, c) => (r === 77 && c === 3 ? 1 : 0)), everything, side, side, "largest");
    expect(Math.max(...part.data)).toBe(1);
    expect(part.rows).toBe(Math.min(side, 128));
  }
});

test("mass is pooled as mass: a row of pixels holds what an average query of its rows gives", () => {
  const all = { ...cells(13, 13, (r, c) => ((7 * r + 3 * c) % 11) / 60), tall: 12.25, wide: 12.5 };
  const given = (row: number) => Array.from({ length: 13 }, (_, c) => all.data[13 * row + c]).reduce((a, b) => a + b);
  for (const side of [1, 2, 5, 12]) {
    const part = pooled(all, everything, side, side, "mass");
    for (let r = 0; r < part.rows; r++) {
      const rows = Array.from({ length: 13 }, (_, i) => i).filter((i) => Math.floor((i * part.rows) / 13) === r);
      const weights = rows.map((i) => Math.min(1, 12.25 - i)); // the last cells hold a quarter of the queries
      const expected = rows.reduce((sum, i, at) => sum + weights[at] * given(i), 0) / weights.reduce((a, b) => a + b);
      expect(part.data.slice(r * part.columns, (r + 1) * part.columns).reduce((a, b) => a + b)).toBeCloseTo(expected, 5);
    }
  }
});

test("thumbnails have no more pixels than the screen, and all entries count", () => {
  for (const room of [1, 3, 5, 7, 11, 30, 47, 100]) {
    expect(thumbnailSide(48, room)).toBeLessThanOrEqual(room);
    expect(2 * thumbnailSide(48, room)).toBeGreaterThanOrEqual(Math.min(48, room));
  }
  for (let at = 0; at < 35; at++) {
    const found = largestParts(Float32Array.from({ length: 35 }, (_, i) => (i === at ? -2 : 1)), [5, 7], [2, 3]);
    expect([...found].filter((value) => value === -2)).toHaveLength(1);
  }
  expect([...largestParts([NaN, NaN, NaN, 3], [2, 2], [2, 1])]).toEqual([NaN, 3]);
});

test("heads that do not fit beside each other take several lines, and none is lost", () => {
  const rows = [{ label: "a", layer: 0, heads: Array.from({ length: 64 }, (_, i) => i) }, { label: "b", layer: 1, heads: [0, 1] }, { label: "c", layer: 2, heads: [] }];
  for (const fit of [0, 1, 7, 33, 63, 64, 200]) {
    const lines = linesOf(rows, fit);
    for (const { layer, heads } of rows) expect(lines.filter((line) => line.layer === layer).flatMap((line) => line.heads)).toEqual(heads);
    for (const { heads } of lines) expect(heads.length).toBeLessThanOrEqual(Math.max(1, fit));
    expect(lines.map(({ label }) => label).filter(Boolean)).toEqual(["a", "b", "c"]);
  }
});

test("a window has the cells that it touches", () => {
  const part = pooled(cells(10, 10, (r, c) => 10 * r + c), { x: 0.25, y: 0.5, share: 0.2 }, 99, 99, "largest");
  expect([part.from, part.to]).toEqual([[5, 2], [7, 5]]);
  expect([...part.data]).toEqual([52, 53, 54, 62, 63, 64]);
});

test("the last cell may be small", () => {
  const small = { ...cells(3, 3, (r, c) => 3 * r + c), tall: 2.1, wide: 2.1 };
  expect(pooled(small, everything, 9, 9, "mass").to).toEqual([3, 3]);
  expect(pooled(small, { x: 0, y: 0, share: 0.5 }, 9, 9, "mass").to).toEqual([2, 2]);
  expect(valueAt({ values: Float32Array.of(1, 2, 3), count: 2.1 }, 0.99)).toBe(3);
});

test("search finds tokens in either case, as queries and as keys", () => {
  expect(search(["The", "cat", " sat", "the"], "THE")).toEqual([0, 3]);
  expect(search(["a"], " ")).toEqual([]);
  const lists = { text: ["The", "cat", " sat", "the"], source: ["the", "dog"], target: ["a", "b", "the"] };
  const about = { queries: 4, keys: 4, asks: "text", reads: "text", first: [0, 0] as [number, number] };
  expect(hits(about, lists, "the")).toEqual([{ q: 0, k: 0 }, { q: 3, k: 3 }]);
  expect(hits({ ...about, asks: null }, lists, "the")).toEqual([{ q: null, k: 0 }, { q: null, k: 3 }]);
  expect(hits({ ...about, queries: 3, keys: 2, asks: "target", reads: "source" }, lists, "the")).toEqual([{ q: null, k: 0 }, { q: 2, k: null }]);
  // The last step of a generation whose cache keeps two tokens.
  expect(hits({ ...about, queries: 1, keys: 2, first: [3, 2] }, lists, "the")).toEqual([{ q: 0, k: 1 }]);
});

test("a found token is in the window, also at the ends", () => {
  const about = { queries: 1000, keys: 1000 };
  for (const at of [0, 3, 500, 990, 998, 999]) {
    const { x, y, share } = placeOf(everything, { q: at, k: at }, about, 1e-4);
    for (const start of [x, y]) expect(start <= at / 1000 && (at + 1) / 1000 <= start + share + 1e-9).toBe(true);
  }
  const beside = placeOf({ x: 0.5, y: 0.25, share: 0.2 }, { q: null, k: 10 }, about, 1e-4);
  expect(beside.y + beside.share / 2).toBeCloseTo(0.35);
});

test("queries that are not the tokens have numbers, and a cache says where tokens begin", () => {
  const about = (asks: string | null, first = [0, 0]) => ({ queries: 2, keys: 3, cell: [1, 1], asks, reads: "text", first }) as unknown as Parameters<typeof tipText>[0];
  const one = cells(2, 3, () => 0.25);
  const tip = (...given: Parameters<typeof about>) => tipText(about(...given), one, "mass", { q: 0, k: 0.9 }, { text: ["a", "b", "c", "d", "e"] });
  expect(tip("text")).toContain("0 “a” → 2 “c”");
  expect(tip(null)).toContain("0 → 2 “c”");
  expect(tip("text", [3, 2])).toContain("3 “d” → 4 “e”");
  expect(tip("text", [3, 4])).toContain("3 “d” → 6 "); // an empty slot of a static cache
});

test("small amounts are not rounded to nothing", () => {
  expect([0, 0.0031, 0.096, 0.5, 12.345].map(amount)).toEqual(["0.00", "0.0031", "0.096", "0.50", "12.35"]);
});

test("a name keeps its beginning and its end", () => {
  const pen = { measureText: (text: string) => ({ width: text.length }) } as unknown as Parameters<typeof elided>[0];
  expect(elided(pen, "decoder.0.1.EncDecAttention", 27)).toBe("decoder.0.1.EncDecAttention");
  expect(elided(pen, "decoder.0.1.EncDecAttention", 13)).toBe("decode…ention");
  expect(fitted(pen, "decoder.0.1.EncDecAttention", 13)).toBe("decoder.0.1.…");
});

test("the last bin of a curve may have fewer tokens", () => {
  expect([0, 0.5, 0.9999].map((share) => binSize(share, 9001, 5))).toEqual([5, 5, 1]);
});

test("labels do not lie on each other, and the ends are always there", () => {
  const pen = { measureText: (text: string) => ({ width: 6 * text.length }) };
  const long = [0, 1, 2, 3, 4].map((i) => `${130968 + 16 * i} word1309`);
  for (const [names, width, count] of [[["0", "1,250", "2,500", "3,750", "4,999"], 546, 5], [long, 546, 3], [long, 200, 2], [["0", "0", "1", "2", "2"], 546, 3]] as const) {
    const drawn = besideEachOther(pen, [...names], { x: 62, width }).map(([left, text]) => ({ left, right: left + 6 * text.length, text }));
    expect(drawn.length).toBe(count);
    expect(drawn[0].left).toBe(62);
    expect(drawn[1].right).toBe(62 + width);
    drawn.forEach((one, i) => drawn.slice(i + 1).forEach((other) => expect(one.right < other.left || other.right < one.left).toBe(true)));
  }
});

test("the legend of cells has marks where their colors are", () => {
  const marks = ticks({ scale: "root", top: 1, signed: false }, 1, 0.4);
  expect(marks.map(({ text }) => text)).toEqual(["0", "10 %", "40 %"]);
  expect(marks.map(({ at }) => at)).toEqual([0, 0.5, 1]);
});

test("attention to all keys alike has no stripes, however many cells share a pixel", () => {
  for (const side of [7, 24, 48, 62, 63]) {
    const { data, columns } = pooled(cells(63, 63, () => 1 / 63), everything, side, side, "mass");
    expect(columns).toBe(side);
    for (const mass of data) expect(mass).toBeCloseTo(1 / side, 5);
    // The mass of a cell stays whole, on the pixels where it lies.
    for (const key of [0, 5, 40, 62]) {
      const alone = pooled(cells(63, 63, (_, k) => (k === key ? 1 : 0)), everything, side, side, "mass").data.subarray(0, side);
      expect(alone.reduce((a, b) => a + b, 0)).toBeCloseTo(1, 5);
      alone.forEach((mass, pixel) => expect(mass === 0 || (pixel + 1 > (key * side) / 63 && pixel < ((key + 1) * side) / 63)).toBe(true));
    }
  }
});

test("many heads have thumbnails that can be told apart, in lines that fit on a screen", () => {
  const sides = (heads: number[], room: number) => {
    const columns = columnsOf(heads, room, 2, 1);
    const side = room / columns - 2;
    return { columns, side, tall: heads.reduce((sum, count) => sum + Math.ceil(count / columns), 0) * (side + 2) };
  };
  for (const heads of [[64], [128], [40, 40]]) {
    const { side, tall } = sides(heads, 400);
    expect(side).toBeGreaterThan(18);
    expect(tall).toBeLessThanOrEqual(320);
  }
  expect(sides([12, 12], 400).columns).toBe(12); // large enough: as before
  expect(sides([24], 375).columns).toBe(24);
  const many = sides(Array(48).fill(64), 400);
  expect(many.columns).toBe(40); // so many layers are high already
});
