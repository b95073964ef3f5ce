import { describe, expect, it } from "vitest";
import type { NumberArray } from "../src/core/payload";
import { themes } from "../src/core/theme";
import type { Pen } from "../src/core/pen";
import { fitted, widestRow } from "../src/maps/atlas";
import { numbered, rangeOf } from "../src/maps/headnumbers";
import { type Cell, cellAt, box, inside, isUpright, showing, stepped, whole, zoomed } from "../src/maps/heat";
import { fitChoice, Layer, type LayerAbout, percent, residualText, shortNames, sortedHeads } from "../src/maps/layer";
import { chipText, drawOverlay, places, whoIsAt } from "../src/maps/overlay";
import { cellOf, centerOf, type ImageAbout, isElsewhere, isMerged, type Query, queryIn, queryName } from "../src/maps/place";
import { startQuery } from "../src/views/image";
import { becameOf, Rollout } from "../src/maps/rollout";
import { colorsOf, drawLegend, position, shade, type Shading, ticks } from "../src/maps/scale";
import { isSpecial, makeTable, threshold, top, visible } from "../src/maps/table";
import numbers from "./numbers.json";

const about = (more: Partial<LayerAbout> = {}): LayerAbout => ({
  name: "layer", heads: [0, 1], queries: 3, keys: 3, rows: null, residual: 1e-7, agrees: true, against: "kernel", kind: "sdpa", kernel: null, calls: 1, joined: false, ...more,
});

/** Rows that sum to one, as floats. */
function weights(heads: number, queries: number, keys: number, seed: number): NumberArray {
  const data = new Float32Array(heads * queries * keys).map((_, i) => 1 + Math.sin(seed + 7.3 * i));
  for (let row = 0; row < heads * queries; row++) {
    const part = data.subarray(row * keys, (row + 1) * keys);
    const sum = part.reduce((a, b) => a + b);
    part.forEach((x, k) => (part[k] = x / sum));
  }
  return { shape: [heads, queries, keys], data, scale: null, squared: false, block: data.length };
}

describe("a layer", () => {
  it("has rows, maps and their mean", () => {
    const layer = new Layer(about(), weights(2, 3, 3, 1));
    const [a, b] = [layer.matrix(0), layer.matrix(1)];
    expect(Array.from(layer.row(1, 2))).toEqual(Array.from(b.subarray(6)));
    layer.mean().forEach((x, i) => expect(x).toBeCloseTo((a[i] + b[i]) / 2, 6));
  });

  it("finds the rows that were kept", () => {
    const layer = new Layer(about({ rows: [5, 9] }), weights(2, 2, 3, 1));
    expect([5, 9, 0].map((query) => layer.rowOf(query))).toEqual([0, 1, -1]);
  });

  it("is found again among fewer layers and heads", () => {
    const layers = [new Layer(about(), weights(2, 3, 3, 1)), new Layer(about({ heads: [0] }), weights(1, 3, 3, 1))];
    expect(fitChoice({ layer: 7, which: 1 }, layers, true)).toEqual({ layer: 1, which: 0 });
    expect(fitChoice({ layer: 0, which: "mean" }, layers, true)).toEqual({ layer: 0, which: "mean" });
    expect([true, false].map((rollout) => fitChoice({ layer: 0, which: "rollout" }, layers, rollout).which)).toEqual(["rollout", "mean"]);
  });

  it("says what its residual is, and when it is too large", () => {
    expect(residualText(about())).toBe("residual 1.0e-7 against the kernel");
    expect(residualText(about({ residual: 0 }))).toBe("residual 0 against the kernel");
    expect(residualText(about({ agrees: false }))).toContain("more than rounding");
    expect(residualText(about({ residual: null, against: "nothing: given" }))).toBe("no residual: given");
  });
});

describe("rollout", () => {
  const layers = [1, 2, 3].map((seed) => new Layer(about({ queries: 4, keys: 4 }), weights(2, 4, 4, seed)));
  const rollout = new Rollout(layers);

  it("is the product of the layers, half of each the identity", () => {
    let product = [0, 1, 2, 3].map((i) => [0, 1, 2, 3].map((j) => Number(i === j)));
    layers.forEach((layer, l) => {
      const mean = layer.mean();
      product = [0, 1, 2, 3].map((i) => [0, 1, 2, 3].map((j) => 0.5 * product[i][j] + 0.5 * [0, 1, 2, 3].reduce((sum, k) => sum + mean[i * 4 + k] * product[k][j], 0)));
      for (let q = 0; q < 4; q++) rollout.row(l, q).forEach((x, k) => expect(x).toBeCloseTo(product[q][k], 5));
    });
  });

  it("is the library's where squares of tokens become one on the way", () => {
    for (const { prefix, grids, weights: maps, rollout: expected } of numbers.rollout) {
      const merged = grids.map((grid: number[], l: number) => {
        const [heads, tokens] = [maps[l].length, maps[l][0].length];
        const data = Float32Array.from((maps[l] as number[][][]).flat(2));
        return new Layer(about({ heads: Array.from({ length: heads }, (_, h) => h), queries: tokens, keys: tokens, grid, prefix }), { shape: [heads, tokens, tokens], data, scale: null, squared: false, block: data.length });
      });
      const one = new Rollout(merged);
      (expected as number[][][]).forEach((product, l) => {
        one.work(l, 1000);
        expect(one.done(l)).toBe(true);
        const found = one.matrix(l);
        expect(found.length).toBe(product.length * merged[0].keys);
        product.flat().forEach((x, i) => expect(found[i]).toBeCloseTo(x, 6));
      });
    }
    expect(numbers.rollout.length).toBeGreaterThan(3);
  });

  it("knows which token each became a part of", () => {
    expect(Array.from(becameOf({ grid: [2, 4], prefix: 1 }, { grid: [1, 2], prefix: 1 }))).toEqual([0, 1, 1, 2, 2, 1, 1, 2, 2]);
    expect(Array.from(becameOf({ grid: [6], prefix: 0 }, { grid: [2], prefix: 0 }))).toEqual([0, 0, 0, 1, 1, 1]);
  });

  it("has rows that sum to one, and says when all are known", () => {
    const fresh = new Rollout(layers);
    expect(fresh.done(2)).toBe(false);
    fresh.work(2, 1000);
    expect(fresh.done(2)).toBe(true);
    const all = fresh.matrix(2);
    for (let q = 0; q < 4; q++) expect(all.subarray(4 * q, 4 * q + 4).reduce((a, b) => a + b)).toBeCloseTo(1, 5);
  });

  it("carries a row with nothing to attend to by itself", () => {
    const empty = { shape: [1, 2, 2], data: new Float32Array([0, 0, 0.5, 0.5]), scale: null, squared: false, block: 4 };
    const one = new Rollout([new Layer(about({ heads: [0], queries: 2, keys: 2 }), empty)]);
    expect(Array.from(one.row(0, 0))).toEqual([1, 0]);
    expect(Array.from(one.row(0, 1))).toEqual([0.25, 0.75]);
  });
});

describe("a table of tokens", () => {
  const words = ["[CLS]", "so", "Ġit", "<pad>"];
  const matrix = new Float32Array([0.1, 0.2, 0.3, 0.4, 0.25, 0.25, 0.25, 0.25, 0.7, 0.1, 0.1, 0.1, 1, 0, 0, 0]);

  it("hides special tokens, and says how much went to them", () => {
    const table = makeTable(matrix, 4, words, words, true);
    expect(table.queries).toEqual(["so", "it"]);
    expect(table.keyAt).toEqual([1, 2]);
    expect(table.hidden[0]).toBeCloseTo(0.5, 6);
    expect(table.hidden[1]).toBeCloseTo(0.8, 6);
    expect(table.max).toBeCloseTo(0.25, 6);
  });

  it("shows all of them otherwise", () => {
    expect(Array.from(makeTable(matrix, 4, words, words, false).weights)).toEqual(Array.from(matrix));
  });

  it("knows special tokens of the usual kinds, and no others", () => {
    expect(["[CLS]", "[SEP]", "<s>", "</s>", "<|endoftext|>", "<pad>", "[unused7]"].every(isSpecial)).toBe(true);
    expect(["the", "<", ">", "[", "a<b", "Ġ[", "[ ]", ""].some(isSpecial)).toBe(false);
    expect([" ", "\n", "▁of"].map(visible)).toEqual(["␣", "⏎", "of"]);
  });

  it("finds the largest entries", () => {
    expect(top([0.1, 0.5, 0, 0.4], 3)).toEqual([1, 3, 0]);
    expect(top([0.1, -0.5, 0, 0.4], 3)).toEqual([1, 3, 0]);
    const many = new Float32Array(5000).map((_, i) => i / 5000);
    const kept = many.filter((x) => x > threshold(many, 1, 500)).length;
    expect(kept).toBeLessThanOrEqual(500);
    expect(kept).toBeGreaterThan(450);
    expect(threshold(many, 1, 5000)).toBe(0);
    expect(threshold(many.map((x, i) => (i % 2 ? x : -x)), 1, 500)).toBe(threshold(many, 1, 500));
  });

  it("has marks of the same numbers on both sides of zero", () => {
    const said: string[] = [];
    const pen = { fillRect: () => 0, strokeRect: () => 0, measureText: (text: string) => ({ width: 6 * text.length }), fillText: (text: string) => said.push(text) } as unknown as Pen;
    drawLegend(pen, themes.light, { scale: "uniform", top: 10, signed: true }, 8, 1, { x: 0, y: 0, width: 300 });
    expect(said.sort()).toEqual(["0", "100 %", "13 %", "−100 %", "−13 %"]);
  });
});

describe("the scale", () => {
  const shading = { scale: "uniform" as const, top: 40, signed: false };
  const all = (n: number) => ({ row: 0, column: 0, rows: n, columns: n });
  const full = (n: number) => new Float32Array(n).fill(n);

  it("draws uniform attention pale, and the same however many keys there are", () => {
    const places = [8, 40].map((n) => shade(new Float32Array(n * n).fill(1 / n), n, full(n), shading, "max", all(n), n, n).data);
    for (const found of places) found.forEach((t) => expect(t).toBeCloseTo(position(1, 40), 6));
    expect(places[0][0]).toBeLessThan(0.25);
    expect(position(40, 40)).toBe(1);
  });

  it("takes the keys that each query may see: causal uniform attention is one color", () => {
    const causal = new Float32Array([1, 0, 0, 0.5, 0.5, 0, 1 / 3, 1 / 3, 1 / 3]);
    const { data } = shade(causal, 3, [1, 2, 3], shading, "max", all(3), 3, 3);
    for (const i of [0, 3, 4, 6, 7, 8]) expect(data[i]).toBeCloseTo(data[0], 6);
    expect(data[1]).toBe(0);
  });

  it("skips no weight: a head that looks at the token before is seen at 1,500 tokens, by its largest and by its mass", () => {
    const n = 1500;
    const before = new Float32Array(n * n);
    for (let q = 1; q < n; q++) before[q * n + q - 1] = 1;
    for (const how of ["max", "mass"] as const) {
      const { data, rows, columns } = shade(before, n, full(n), { ...shading, top: n }, how, all(n), 400, 400);
      expect([rows, columns]).toEqual([400, 400]);
      for (let i = 0; i < 400; i++) expect(data[i * 400 + i]).toBeGreaterThan(0.7);
      expect(data[399]).toBe(0);
    }
  });

  it("pools mass, not more: the mean over pixels is the mean over weights", () => {
    const weights = new Float32Array(7 * 7).map((_, i) => (i % 5) / 10);
    const counts = [2, 2, 3];
    const { data } = shade(weights, 7, full(7), { ...shading, top: 2 ** 40 }, "mass", all(7), 3, 3);
    const lifts = Array.from(data, (t) => Math.expm1(t * Math.log1p(2 ** 40)));
    const starts = [0, 1, 2].map((b) => Array.from({ length: 7 }, (_, i) => i).filter((i) => Math.floor((i * 3) / 7) === b));
    lifts.forEach((lift, at) => {
      const cells = starts[Math.floor(at / 3)].flatMap((r) => starts[at % 3].map((c) => 7 * weights[r * 7 + c]));
      expect(lift).toBeCloseTo(cells.reduce((a, b) => a + b) / cells.length, 3);
    });
    expect(counts.reduce((a, b) => a + b)).toBe(7);
  });

  it("keeps every peak in a small picture", () => {
    const large = new Float32Array(100 * 60);
    large[57 * 60 + 31] = 1;
    const small = shade(large, 60, new Float32Array(100).fill(60), { ...shading, top: 60 }, "max", { row: 0, column: 0, rows: 100, columns: 60 }, 24, 24);
    expect([small.rows, small.columns]).toEqual([24, 24]);
    expect(small.data[Math.floor((57 * 24) / 100) * 24 + Math.floor((31 * 24) / 60)]).toBe(1);
    expect(small.data.filter((x) => x > 0).length).toBe(1);
  });

  it("keeps the scale of the whole map where a part is shown, and names the weight of the last color", () => {
    const weights = new Float32Array(16).map((_, i) => (i === 0 ? 0.8 : 0.2));
    const part = { row: 2, column: 2, rows: 2, columns: 2 };
    for (const scale of ["map", "root"] as const) {
      const found = shade(weights, 4, full(4), { ...shading, scale }, "max", part, 2, 2);
      const expected = scale === "map" ? 0.25 : 0.5;
      found.data.forEach((t) => expect(t).toBeCloseTo(expected, 6));
      expect(found.most).toBeCloseTo(0.8, 6);
      const pooled = shade(weights, 4, full(4), { ...shading, scale }, "mass", all(4), 2, 2);
      expect(pooled.data[0]).toBeCloseTo(1, 6);
      expect(pooled.most).toBeCloseTo((0.8 + 3 * 0.2) / 4, 6);
    }
  });

  it("has its marks in order and at the ends, however few keys, zeros or signs there are", () => {
    for (const scale of ["uniform", "map", "root", "row"] as const) {
      for (const signed of [false, true]) {
        for (const [top, n, most] of [[1, 1, 1], [2, 1, 1], [1, 0, 1], [2, 2, 0.5], [7, 3, 0], [5, 9, 1], [4096, 1, 1e-9]]) {
          const marks = ticks({ scale, top, signed } as Shading, n, most);
          const [places, texts] = [marks.map(({ at }) => at), marks.map(({ text }) => text)];
          expect(places).toEqual([...new Set(places)].sort((a, b) => a - b));
          expect(places.every((at) => Math.abs(at) <= 1)).toBe(true);
          expect(texts.join()).not.toMatch(/NaN|Infinity|undefined|−0,|−0$/);
          expect(texts.filter((text) => text === "0").length).toBe(1);
          if (scale === "row") expect(places).toEqual(signed ? [-1, 0, 1] : [0, 1]);
        }
      }
    }
    expect(ticks({ scale: "uniform", top: 1, signed: false }, 1, 1)).toEqual([{ at: 0, text: "0" }, { at: 1, text: "100 % = uniform" }]);
    expect(ticks({ scale: "uniform", top: 4, signed: false }, 4, 1).at(-1)).toEqual({ at: 1, text: "100 %" });
    expect(shade(new Float32Array([1, 1]), 1, [1, 1], { scale: "uniform", top: 1, signed: false }, "max", { row: 0, column: 0, rows: 2, columns: 1 }, 2, 1).data).toEqual(new Float32Array([1, 1]));
  });

  it("reads in per cent, and goes apart from zero where weights have a sign", () => {
    expect(ticks(shading, 40, 1).map(({ text }) => text)).toEqual(["0", "2.5 % = uniform", "10 %", "50 %", "100 %"]);
    const signed = { ...shading, signed: true };
    const texts = ticks(signed, 40, 1).map(({ text }) => text);
    // A difference of 2.5 % is not uniform attention.
    expect(texts).toEqual(["−100 %", "−50 %", "−10 %", "−2.5 %", "0", "2.5 %", "10 %", "50 %", "100 %"]);
    for (const theme of Object.values(themes)) {
      const color = colorsOf(theme, true);
      expect(new Set([-1, -0.5, 0, 0.5, 1].map(color)).size).toBe(5);
    }
    const { data } = shade(new Float32Array([-0.5, 0.5, 0.1, -0.1]), 2, [2, 2], signed, "max", all(2), 2, 2);
    expect(data[0]).toBeCloseTo(-data[1], 6);
  });
});

describe("a heat map", () => {
  const labels = Array.from({ length: 40 }, (_, i) => String(i));
  const table = makeTable(new Float32Array(1600), 40, labels, labels, false);
  const size = { width: 700, height: 900 };

  it("knows the cell under every point, zoomed or not", () => {
    for (const view of [whole, zoomed(whole, table, 4, { q: 10, k: 30 })]) {
      const place = box(table, size);
      const [wide, tall] = [place.cellWidth * view.zoom, place.cellHeight * view.zoom];
      for (const at of [{ q: 8, k: 28 }, { q: 12, k: 29 }] as Cell[]) {
        const [x, y] = [place.left + (at.k + 0.5 - view.k) * wide, place.top + (at.q + 0.5 - view.q) * tall];
        expect(cellAt(table, view, x, y, size)).toEqual(at);
      }
    }
    expect(cellAt(table, whole, 0, box(table, size).top + 1, size)).toEqual({ q: 0, k: -1 });
    expect(cellAt(table, whole, 0, 0, size)).toBeNull();
  });

  it("is never a sliver: few queries over many keys are tall enough to point at, and few keys wide enough", () => {
    for (const [queries, keys] of [[1, 900], [3, 900], [900, 3], [40, 2000]]) {
      const names = (count: number) => Array.from({ length: count }, (_, i) => String(i));
      const long = makeTable(new Float32Array(queries * keys), keys, names(queries), names(keys), false);
      const place = box(long, size);
      expect(Math.min(place.width, place.height)).toBeGreaterThanOrEqual(Math.min(queries, keys) === 1 ? 38 : 95);
      expect(place.left + place.width).toBeLessThanOrEqual(size.width);
      for (let q = 0; q < queries; q += Math.ceil(queries / 7)) expect(cellAt(long, whole, place.left + 0.5 * place.cellWidth, place.top + (q + 0.5) * place.cellHeight, size)).toEqual({ q, k: 0 });
    }
    const square = box(table, size);
    expect(square.cellWidth).toBe(square.cellHeight);
  });

  it("stays on the table, and keeps the token under the pointer in its place", () => {
    const near = zoomed(whole, table, 2, { q: 0, k: 39.9 });
    expect([near.q, near.k]).toEqual([0, inside(near, table).k]);
    const view = zoomed(whole, table, 2, { q: 20, k: 20 });
    expect((20 - view.q) * view.zoom).toBeCloseTo(20, 8);
    expect(zoomed(view, table, 0.001, { q: 3, k: 3 })).toEqual(whole);
  });
});

/** Boxes that are drawn thick, first the query's, then the one under the pointer. */
function outlines(about: ImageAbout, query: Query, over: Query, size: { width: number; height: number }): number[][] {
  const found: number[][] = [];
  const pen = new Proxy({} as Record<string, unknown>, {
    get: (kept, name: string) => kept[name] ?? (name === "strokeRect" ? (...box: number[]) => kept.lineWidth === 4 && found.push(box) : name === "measureText" ? () => ({ width: 10 }) : () => undefined),
  });
  const state = { about, row: new Float32Array(about.keys), max: 1, shading: { scale: "uniform" as const, top: 4, signed: false }, visible: 4, image: null, heat: null, style: "map" as const, smooth: false, query, pinned: true, over, aspect: 1 };
  drawOverlay(state, [])(pen as never, size, themes.light);
  return found;
}

describe("tokens on an image", () => {
  const image = (more: Partial<ImageAbout>): ImageAbout => ({ ...about(), grid: [2, 3], prefix: 1, query_grid: [2, 3], query_prefix: 1, ...more });
  it("opens on a query that was captured", () => {
    const opened = (rows: number[] | null, more: Partial<ImageAbout> = {}) => queryIn(image({ rows, ...more }), startQuery(image({ rows, ...more })));
    expect([opened(null), opened([5, 0]), opened([5, 3])]).toEqual([0, 0, 5]);
    expect([opened(null, { query_prefix: 0 }), opened([1, 2], { query_prefix: 0 })]).toEqual([4, 1]);
    expect(opened([2], { query_grid: null, query_prefix: 3 })).toBe(2);
  });

  it("are found by their place on grids of any size", () => {
    expect(queryIn(image({}), { prefix: null, y: 0.9, x: 0.1 })).toBe(1 + 3);
    expect(queryIn(image({ query_grid: [4, 6], query_prefix: 0 }), { prefix: null, y: 0.9, x: 0.1 })).toBe(18);
    for (let i = 0; i < 2; i++) for (let j = 0; j < 3; j++) expect(cellOf([2, 3], centerOf([2, 3], i, j))).toEqual([i, j]);
  });

  it("of merged layers are larger: the outline of one of 8 × 8 is four of 16 × 16", () => {
    const fine = image({ grid: [16, 16], query_grid: [16, 16], prefix: 0, query_prefix: 0 });
    const coarse = image({ grid: [8, 8], query_grid: [8, 8], prefix: 0, query_prefix: 0 });
    const size = { width: 322, height: 358 }; // 320 pixels for an image of 32: ten for each
    const p = places(coarse, 1, size.width);
    const at = whoIsAt(coarse, 1, p.x + 10 * 13.5, p.y + 10 * 21.5, size)!; // pixel (21, 13)
    expect([queryName(coarse, at, true), queryName(fine, at, true)]).toEqual(["patch (5, 3) of 8 × 8", "patch (10, 6) of 16 × 16"]);
    // Layers that look from an 8 × 8 patch at 16 × 16 (rollout) outline each by its own.
    const rolled = { ...coarse, grid: fine.grid };
    const over = whoIsAt(rolled, 1, p.x + 10 * 0.5, p.y + 10 * 3.5, size)!; // pixel (3, 0)
    const boxes = (about: ImageAbout) => outlines(about, at, over, size).map(([x, y, w, h]) => [x - p.x, y - p.y, w, h].map((n) => Math.round(n) / 10));
    expect(boxes(coarse)).toEqual([[12, 20, 4, 4], [0, 0, 4, 4]]);
    expect(boxes(fine)).toEqual([[12, 20, 2, 2], [0, 2, 2, 2]]);
    expect(boxes(rolled)).toEqual([[12, 20, 4, 4], [0, 2, 2, 2]]);
    expect([isMerged([fine, coarse]), isMerged([fine, fine])]).toEqual([true, false]);
  });

  it("are asked anew as soon as any layer's patch under the pointer is another", () => {
    const both = [image({ grid: [4, 4], query_grid: [4, 4] }), image({ grid: [2, 2], query_grid: [2, 2] })];
    const [a, b, c] = [0.1, 0.2, 0.3].map((x) => ({ prefix: null, y: 0.1, x }));
    expect([isElsewhere(both, a, b), isElsewhere(both, a, c), isElsewhere(both.slice(1), a, c)]).toEqual([false, true, false]);
    expect([isElsewhere(both, a, null), isElsewhere(both, null, null), isElsewhere(both, a, { ...a, prefix: 0 })]).toEqual([true, false, true]);
  });

  it("include prefix tokens, and queries that are no tokens of the grid", () => {
    expect(queryIn(image({}), { prefix: 0, y: 0.5, x: 0.5 })).toBe(0);
    expect(queryName(image({}), { prefix: 0, y: 0.5, x: 0.5 })).toBe("class token");
    const pooled = image({ query_grid: null, query_prefix: 1, queries: 1 });
    expect(queryIn(pooled, { prefix: null, y: 0.9, x: 0.9 })).toBe(0);
    expect(queryName(pooled, { prefix: null, y: 0.9, x: 0.9 })).toBe("the pooling query");
    // A layer without the prefix token that is asked for answers for the place.
    expect(queryIn(image({ query_prefix: 0 }), { prefix: 0, y: 0.5, x: 0.5 })).toBe(4);
  });
});

describe("words", () => {
  it("names are cut to what differs", () => {
    expect(shortNames(["blocks.0.attn", "blocks.1.attn"])).toEqual(["0", "1"]);
    expect(shortNames(["encoder.0.attention", "decoder.0.cross_attention", "decoder.0.attention"])).toEqual(["encoder.0", "decoder.0.cross", "decoder.0"]);
    expect(shortNames(["attention"])).toEqual(["attention"]);
    const t5 = ["encoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.1.EncDecAttention", "decoder.block.1.layer.0.SelfAttention"];
    expect(shortNames(t5)).toEqual(["encoder.0.0.Self", "decoder.0.0.Self", "decoder.0.1.EncDec", "decoder.1.0.Self"]);
    expect(shortNames(["a.attn", "a.attention"])).toEqual(["attn", "attention"]);
  });

  it("shares are said in percent", () => {
    expect([0, 0.5, 0.0312, 0.0001].map(percent)).toEqual(["0 %", "50 %", "3.1 %", "0.010 %"]);
  });
});

describe("the atlas", () => {
  it("sorts heads by a number, unknown ones last, and leaves out uniform ones", () => {
    const statistics = { structure: [0.5, 2, 0, null], surprise: [1, 3, 0.01, 2], entropy: [0.6, 0.2, 1, 0.5], distance: [4, null, 1, 2], locality: [0, 1, 0.5, 0.2] };
    const layer = about({ heads: [4, 5, 6, 7], statistics });
    expect(sortedHeads(layer, "place", false)).toEqual([0, 1, 2, 3]);
    expect(sortedHeads(layer, "place", true)).toEqual([0, 1, 3]);
    expect(sortedHeads(layer, "structure", false)).toEqual([1, 0, 2, 3]);
    expect(sortedHeads(layer, "entropy", false)).toEqual([1, 3, 0, 2]);
    expect(sortedHeads(layer, "distance", true)).toEqual([3, 0, 1]);
    expect(sortedHeads(layer, "locality", false)).toEqual([1, 2, 3, 0]);
  });

  it("names its columns by the layer that has the most heads", () => {
    const rows = [2, 4, 3].map((heads, layer) => ({ label: "", layer, heads: Array.from({ length: heads }, (_, i) => i) }));
    expect(widestRow(rows).layer).toBe(1);
  });
});

describe("labels", () => {
  it("of one character stand upright, longer ones lie", () => {
    expect(["a", "␣", "語", "🙂"].every(isUpright)).toBe(true);
    expect(["", "<U>", "ab"].some(isUpright)).toBe(false);
  });
});

describe("fitted", () => {
  const letters = (room: number, text: string) => {
    let asked = 0;
    const pen = { measureText: (said: string) => (asked++, { width: 6 * said.length }) } as unknown as Pen;
    return { said: fitted(pen, text, room), asked };
  };

  it("shows as many letters as have room", () => {
    expect(letters(60, "short").said).toBe("short");
    expect(letters(60, "a longer text").said).toBe("a longer …");
    expect(letters(1, "none").said).toBe("n…");
  });

  it("asks for a few widths, however long the text is", () => {
    const { said, asked } = letters(60, "x".repeat(20_000));
    expect(said).toBe(`${"x".repeat(9)}…`);
    expect(asked).toBeLessThan(20);
  });
});

describe("numbers on the picture", () => {
  const pen = { measureText: (text: string) => ({ width: 6 * text.length }) } as unknown as Pen;
  it("are whole or not there: never cut before the unit", () => {
    const [name, weight] = ["class token", "0.00050 %"];
    for (let room = 6; room < 160; room++) {
      const text = chipText(pen, name, weight, room);
      expect(text.length * 6).toBeLessThanOrEqual(Math.max(room, 12));
      if (/[0-9]/.test(text)) expect(text).toBe(`${name}: ${weight}`);
    }
    expect(chipText(pen, name, weight, 6 * 22)).toContain("%");
    expect(chipText(pen, name, null, 160)).toBe(name);
  });
});

describe("lines of thumbnails", () => {
  const row = (label: string, heads: number[], layer = 0) => ({ label, layer, heads });
  it("have the numbers of their first and last head", () => {
    expect(rangeOf(row("", [16, 17, 18]), (_, head) => String(head + 100))).toBe("116–118");
    expect(rangeOf(row("", [3]), (_, head) => String(head))).toBe("3");
    expect(rangeOf(row("", []), String)).toBe("");
  });
  it("have names of layers before numbers, and no text on another", () => {
    const rows = [row("a", [0, 1]), row("", [2, 3]), row("b", [0, 1], 1), row("", [2, 3], 1), row("", [4], 1)];
    expect([...numbered(rows, 1, -1, true)].sort()).toEqual([0, 1, 2, 3, 4]);
    expect([...numbered(rows, 2, -1, true)].sort()).toEqual([0, 2, 4]);
    expect([...numbered(rows, 3, 2, true)]).toEqual([2]);
    expect([...numbered(rows, 1, -1, false)].sort()).toEqual([0, 2]);
  });
});

describe("a cell marked by keys", () => {
  const table = makeTable(new Float32Array(40 * 30), 30, Array.from({ length: 40 }, String), Array.from({ length: 30 }, String), false);
  it("begins in the middle, stops at the edges and stays visible", () => {
    let [view, cell] = [zoomed(whole, table, 4, { q: 20, k: 15 }), null as Cell | null];
    expect(stepped(view, table, null, "Enter")).toBeNull();
    expect((cell = stepped(view, table, cell, "ArrowLeft"))).toEqual({ q: 20, k: 15 });
    for (const [key, to] of [["ArrowLeft", { q: 20, k: 0 }], ["ArrowUp", { q: 0, k: 0 }], ["ArrowDown", { q: 39, k: 0 }], ["ArrowRight", { q: 39, k: 29 }]] as const) {
      for (let i = 0; i < 60; i++) {
        cell = stepped(view, table, cell, key)!;
        view = showing(view, table, cell.q, cell.k);
        for (const [at, start, count] of [[cell.q, view.q, 40], [cell.k, view.k, 30]]) {
          expect(at).toBeGreaterThanOrEqual(start - 1e-9);
          expect(at + 1).toBeLessThanOrEqual(start + count / view.zoom + 1e-9);
        }
      }
      expect(cell).toEqual(to);
    }
  });
});
