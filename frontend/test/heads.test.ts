import { describe, expect, it } from "vitest";
import { Payload } from "../src/core/payload";
import { erf, gaussianMap, type HeadsMeta, inverseErf, Moments, principalAxes, reach, sharpness } from "../src/views/heads/moments";
import { plane } from "../src/views/heads/draw";
import { isMerged, likelyScale, rangesOf, shade } from "../src/views/heads/range";

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

  it("factorizes into one per axis where the matrix is diagonal", () => {
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
    const [range] = rangesOf(moments, false, "image");
    expect(range.rows).toBeGreaterThanOrEqual(2.5);
    expect(rangesOf(moments, true, "image")[0].rows).toBe(4.5);
    expect(shade(range.low, range)).toBe(0);
    expect(shade(range.high, range)).toBe(1);
  });

  it("have colors that do not tell apart what hardly differs", () => {
    const [{ low, high }] = rangesOf(still([{ away: 1, grid: [8, 8] }, { away: 2, grid: [8, 8] }]), false, "image"); // all of sharpness 4
    expect(high / low).toBeCloseTo(1.5, 8);
    expect(shade(4, { low, high })).toBeCloseTo(0.5, 8);
  });
});

/** One head per layer, at a moment: its offset in tokens and the layer's grid. */
function still(layers: { away: number; grid: [number, number] | null }[]): Moments {
  const meta: HeadsMeta = { name: "", steps: [0], curve: [], layers: layers.map(({ grid }, l) => ({ name: `layer${l}`, heads: 1, axes: 2, grid })) };
  const values = Float32Array.from(layers.flatMap(({ away }) => [0, away, 4, 0, 0, 4]));
  const arrays = Object.fromEntries(
    layers.flatMap((_, l) => [
      [`center${l}`, { dtype: "float32", shape: [1, 1, 2], offset: 24 * l, length: 8 }],
      [`sharpness${l}`, { dtype: "float32", shape: [1, 1, 2, 2], offset: 24 * l + 8, length: 16 }],
    ]),
  );
  return new Moments(new Payload({ view: "heads", version: 1, meta, arrays: JSON.parse(JSON.stringify(arrays)) }, values.buffer));
}

describe("layers whose tokens were merged", () => {
  const moments = still([{ away: 4, grid: [16, 16] }, { away: 2, grid: [8, 8] }, { away: -1, grid: [8, 8] }]);
  const size = { width: 302, height: 326 };

  it("show one part of the image: as far on it is as far in the panel", () => {
    for (const wholeGrid of [false, true]) {
      const ranges = rangesOf(moments, wholeGrid, "image");
      expect(ranges[0].columns).toBeCloseTo(2 * ranges[1].columns, 10);
      expect(ranges[2]).toEqual(ranges[1]);
      const x = ranges.map((range, l) => plane(range, size, 2, 1).x(moments.at(l, 0, 0).column));
      expect(x[1]).toBeCloseTo(x[0], 8); // two tokens of 8 × 8 are four of 16 × 16
      const middle = plane(ranges[2], size, 2, 1).x(0);
      expect(2 * (middle - x[2])).toBeCloseTo(x[1] - middle, 8);
      expect(plane(ranges[1], size, 2, 1).unit).toBeCloseTo(2 * plane(ranges[0], size, 2, 1).unit, 8);
    }
  });

  it("may be shown each grid by itself, as large as its own heads need", () => {
    const ranges = rangesOf(moments, false, "grid");
    expect(ranges[0].columns).toBeGreaterThan(4.5);
    expect(ranges[0].columns).toBeLessThan(5.5);
    expect(ranges[1].columns).toBeGreaterThan(2.5);
    expect(ranges[1].columns).toBeLessThan(3.5);
    expect(ranges[2]).toEqual(ranges[1]); // of the same grid
    expect(ranges[0].rows / ranges[0].columns).toBeCloseTo(ranges[2].rows / ranges[2].columns, 10);
    expect(new Set(ranges.map(({ low, high }) => `${low} ${high}`)).size).toBe(1); // colors are the same for all
  });

  it("begin with each grid by itself where some heads would lie in a heap", () => {
    expect(likelyScale(moments)).toBe("image");
    expect(likelyScale(still([{ away: 1, grid: [56, 56] }, { away: 3, grid: [7, 7] }]))).toBe("grid");
  });

  it("are told from layers with one grid, which have one scale in any case", () => {
    expect(isMerged(moments.layers)).toBe(true);
    const equal = still([{ away: 4, grid: [8, 8] }, { away: 1, grid: [8, 8] }]);
    expect(isMerged(equal.layers)).toBe(false);
    for (const scale of ["image", "grid"] as const) {
      const [a, b] = rangesOf(equal, false, scale);
      expect(a).toEqual(b);
      expect(a.columns).toBeGreaterThan(4.5);
    }
  });

  it("without a grid have their tokens for a unit, and a grid of one token does not make all others small", () => {
    const [known, unknown, one] = rangesOf(still([{ away: 1, grid: [8, 8] }, { away: 6, grid: null }, { away: 0, grid: [1, 1] }]), false, "image");
    expect(unknown.columns).toBeGreaterThan(6.5);
    expect(unknown.columns).toBeLessThan(8);
    expect([known.columns, one.columns]).toEqual([8, 1]);
  });
});
