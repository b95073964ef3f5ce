import { describe, expect, it } from "vitest";
import { Payload } from "../src/core/payload";
import { erf, gaussianMap, type HeadsMeta, inverseErf, Moments, principalAxes, reach, sharpness } from "../src/views/heads/moments";
import { rangeOf, shade } from "../src/views/heads/range";

function random(seed: number): () => number {
  return () => ((seed = (seed * 16807) % 2147483647) / 2147483647);
}

const next = random(7);
const heads = Array.from({ length: 20 }, () => {
  const [a, b, c] = [0.2 + next(), next() - 0.5, 0.3 + next()];
  return { row: 3 * (next() - 0.5), column: 3 * (next() - 0.5), rr: a + b * b, rc: b, cc: c + b * b, fit: null };
});

describe("the axes of a head", () => {
  it("rebuild its matrix", () => {
    for (const head of heads) {
      const { first, second, angle } = principalAxes(head);
      const [c, s] = [Math.cos(angle), Math.sin(angle)];
      expect(first * c * c + second * s * s).toBeCloseTo(head.cc, 10);
      expect(first * s * s + second * c * c).toBeCloseTo(head.rr, 10);
      expect((first - second) * s * c).toBeCloseTo(head.rc, 10);
      expect(first).toBeGreaterThanOrEqual(second);
    }
  });

  it("hold the share of the weight that they say, in the plane", () => {
    for (const mass of [0.5, 0.9]) {
      const head = { ...heads[0], row: 0, column: 0 };
      let [inside, all] = [0, 0];
      for (let y = -6; y <= 6; y += 0.02) {
        for (let x = -6; x <= 6; x += 0.02) {
          const form = head.rr * y * y + 2 * head.rc * x * y + head.cc * x * x;
          all += Math.exp(-form);
          if (form <= -Math.log(1 - mass)) inside += Math.exp(-form);
        }
      }
      expect(inside / all).toBeCloseTo(mass, 2);
      // The contour's point on the first axis lies on that very level.
      const { first, angle } = principalAxes(head);
      const far = reach(first, mass, 2)!;
      const [x, y] = [far * Math.cos(angle), far * Math.sin(angle)];
      expect(head.rr * y * y + 2 * head.rc * x * y + head.cc * x * x).toBeCloseTo(-Math.log(1 - mass), 8);
    }
  });

  it("along one axis reach to where the error function says", () => {
    for (const x of [0.1, 0.4769, 1.163, 2]) expect(inverseErf(erf(x))).toBeCloseTo(x, 8);
    expect(erf(reach(2.5, 0.9, 1)! * Math.sqrt(2.5))).toBeCloseTo(0.9, 8);
  });

  it("do not exist where it spreads without end", () => {
    expect(reach(0, 0.5, 2)).toBeNull();
    expect(sharpness({ row: 0, column: 0, rr: 1, rc: 2, cc: 1, fit: null }, 2)).toBeNaN();
  });
});

describe("a head's map", () => {
  it("sums to one and is largest nearest to its center", () => {
    for (const head of heads) {
      const map = gaussianMap(head, [7, 9], [3, 4]);
      expect(map.reduce((a, b) => a + b)).toBeCloseTo(1, 10);
    }
    const sharp = gaussianMap({ row: -1, column: 2, rr: 50, rc: 0, cc: 50, fit: null }, [7, 9], [3, 4]);
    expect(sharp[2 * 9 + 6]).toBeCloseTo(1, 8);
  });

  it("factorises into one per axis where the matrix is diagonal", () => {
    const head = { ...heads[3], rc: 0 };
    const whole = gaussianMap(head, [5, 6], [2, 2]);
    const rows = gaussianMap({ ...head, cc: 0, column: 0 }, [5, 1], [2, 0]);
    const columns = gaussianMap({ ...head, rr: 0, row: 0 }, [1, 6], [0, 2]);
    whole.forEach((weight, i) => expect(weight).toBeCloseTo(rows[Math.floor(i / 6)] * columns[i % 6], 12));
  });
});

describe("moments", () => {
  const meta: HeadsMeta = { name: "", steps: [0, 10, 40], curve: [], layers: [{ name: "a", heads: 2, axes: 2, grid: [8, 8] }] };
  const values = new Float32Array(3 * 2 * 2 + 3 * 2 * 4);
  for (let t = 0; t < 3; t++) {
    for (let h = 0; h < 2; h++) {
      values.set([t, -h], (t * 2 + h) * 2);
      values.set([1 + t, 0.5, 0.5, 2], 12 + (t * 2 + h) * 4);
    }
  }
  const arrays = {
    center0: { dtype: "float32", shape: [3, 2, 2], offset: 0, length: 48 },
    sharpness0: { dtype: "float32", shape: [3, 2, 2, 2], offset: 48, length: 96 },
  } as const;
  const moments = new Moments(new Payload({ view: "heads", version: 1, meta, arrays: JSON.parse(JSON.stringify(arrays)) }, values.buffer));

  it("are what was written down, and in between a mixture", () => {
    expect(moments.at(0, 1, 2)).toEqual({ row: 2, column: -1, rr: 3, rc: 0.5, cc: 2, fit: null });
    expect(moments.at(0, 1, 0.5)).toMatchObject({ row: 0.5, rr: 1.5 });
    expect(moments.at(0, 1, 9).row).toBe(2);
  });

  it("have steps, and steps have times", () => {
    expect([0, 0.5, 1, 1.5, 2].map((time) => moments.step(time))).toEqual([0, 5, 10, 25, 40]);
    for (const step of [0, 5, 10, 25, 40]) expect(moments.step(moments.time(step))).toBe(step);
  });

  it("are all in the range that is shown", () => {
    const range = rangeOf(moments, false);
    expect(range.rows).toBeGreaterThanOrEqual(2.5);
    expect(rangeOf(moments, true).rows).toBe(4.5);
    expect(shade(range.low, range)).toBe(0);
    expect(shade(range.high, range)).toBe(1);
  });
});
