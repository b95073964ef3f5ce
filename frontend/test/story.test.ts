// The page that is scrolled: lines around what heads look at, letters, and payloads inside a payload.

import { describe, expect, it } from "vitest";
import { contours, headContours, levelOf, type Loop, smoothField } from "../src/story/contours";
import { resampled } from "../src/story/enlarge";
import { letterAt } from "../src/story/letters";
import { partOf } from "../src/story/parts";
import { Payload } from "../src/core/payload";

/** Twice the signed area of a closed line. */
const area = (loop: Loop) => loop.reduce((sum, [x, y], i) => sum + x * loop[(i + 1) % loop.length][1] - y * loop[(i + 1) % loop.length][0], 0);

const weights = (rows: number, columns: number, where: [number, number, number][]) => {
  const out = new Float32Array(rows * columns);
  for (const [r, c, w] of where) out[r * columns + c] = w;
  return out;
};

describe("contours", () => {
  it("go round a token that has all the weight", () => {
    const [loop, ...others] = headContours(weights(6, 8, [[2, 5, 1]]), 6, 8, 0.6);
    expect(others).toEqual([]);
    const middle = [0, 1].map((axis) => loop.reduce((sum, point) => sum + point[axis], 0) / loop.length);
    expect(middle[0]).toBeCloseTo(5.5, 1);
    expect(middle[1]).toBeCloseTo(2.5, 1);
  });

  it("are as many as there are heaps, and stay whole at the border", () => {
    expect(headContours(weights(8, 8, [[0, 0, 0.5], [7, 7, 0.5]]), 8, 8, 0.6).length).toBe(2);
    for (const loop of headContours(weights(8, 8, [[0, 0, 0.5], [7, 7, 0.5]]), 8, 8, 0.6)) expect(Math.abs(area(loop))).toBeGreaterThan(0.5);
  });

  it("hold the share of the weight that they say", () => {
    const field = smoothField(weights(9, 9, [[4, 4, 0.6], [4, 5, 0.3], [1, 1, 0.1]]), 9, 9);
    const level = levelOf(field, 0.6);
    const total = field.data.reduce((a, b) => a + b);
    const inside = field.data.filter((x) => x >= level).reduce((a, b) => a + b);
    expect(inside / total).toBeGreaterThanOrEqual(0.6);
    expect(inside / total).toBeLessThan(0.65);
    for (const loop of contours(field, level)) expect(loop.length).toBeGreaterThan(8);
  });

  it("of even weights go around the grid, without ripples", () => {
    const loops = headContours(new Float32Array(36).fill(1 / 36), 6, 6, 0.95);
    expect(loops.length).toBe(1);
    const [low, high] = [Math.min(...loops[0].map(([x]) => x)), Math.max(...loops[0].map(([x]) => x))];
    expect(low).toBeLessThan(0.3);
    expect(high).toBeGreaterThan(5.7);
  });
});

it("an enlarged photo keeps what is flat, and its pixels where they were", () => {
  for (const value of resampled(new Uint8Array(48).fill(100), 4, 4, 9, 7)) expect(value).toBeCloseTo(100, 3);
  const photo = Uint8Array.from({ length: 5 * 4 * 3 }, (_, i) => (i * 37) % 256);
  const large = resampled(photo, 5, 4, 15, 12); // thrice: the middle of each three is a pixel
  for (let r = 0; r < 5; r++) for (let c = 0; c < 4; c++) expect(large[((3 * r + 1) * 12 + 3 * c + 1) * 3]).toBeCloseTo(photo[(r * 4 + c) * 3], 2);
});

it("letters are found under the pointer", () => {
  expect(letterAt(4, 10, { width: 400, height: 10 })).toBeNull();
  expect(letterAt(4, 200, { width: 400, height: 10 })).toBe(2);
  expect(letterAt(40, 399, { width: 400, height: 10 })).toBe(39);
});

it("a part is a payload over the same bytes", () => {
  const arrays = {
    "a/x.scale": { dtype: "float32" as const, shape: [1], offset: 0, length: 4 },
    "a/x": { dtype: "uint8" as const, shape: [1, 2], offset: 8, length: 2, scale: "a/x.scale" },
    "ab/x": { dtype: "uint8" as const, shape: [1], offset: 16, length: 1 },
  };
  const buffer = new ArrayBuffer(24);
  new Float32Array(buffer, 0, 1)[0] = 2;
  new Uint8Array(buffer, 8, 2).set([3, 4]);
  const whole = new Payload({ view: "story", version: 1 as const, meta: { title: "", run: null, example: "", parts: { a: { view: "heads", meta: { n: 1 }, own: true } } }, arrays }, buffer);
  const part = partOf(whole, "a");
  expect([part.view, part.meta.n, ...part.values("x")]).toEqual(["heads", 1, 6, 8]);
  expect(part.has("ab/x")).toBe(false);
  expect(() => partOf(whole, "b")).toThrow("no part b");
});
