// What views 4 and 5 compute in the browser, against numbers of the Python library (tests/studio/view_numbers.py).

import { describe, expect, it } from "vitest";
import numbers from "./numbers.json";
import { attention, betaAt, entropy, HIGHEST, LOWEST, positionOf, softargmax } from "../src/views/maths/attention";
import { axisMatrix, shiftLeak, tail, type Border } from "../src/views/maths/axis";
import {
  attend,
  convolve,
  errorBound,
  headMap,
  heads,
  largestDifference,
  type Plane,
  type Setting,
} from "../src/views/maths/convolution";

const number = (x: number | string) => Number(x);

function close(found: Iterable<number>, expected: Iterable<number>, tolerance = 1e-12): void {
  const [a, b] = [Array.from(found), Array.from(expected)];
  expect(a.length).toBe(b.length);
  a.forEach((x, i) => expect(Math.abs(x - b[i])).toBeLessThanOrEqual(tolerance * Math.max(1, Math.abs(b[i]))));
}

function plane(rows: number[][]): Plane {
  return { rows: rows.length, columns: rows[0].length, data: Float64Array.from(rows.flat()) };
}

describe("softargmax", () => {
  it("equals the library's for β from 0 to ∞, ties and hidden entries included", () => {
    for (const { scores, beta, weights } of numbers.softargmax) {
      close(softargmax(scores.map(number), number(beta)), weights);
    }
  });
  it("refuses a β below 0", () => expect(() => softargmax([1, 2], -1)).toThrow("beta"));
  it("spreads less the larger β is", () => {
    const spread = [0, 0.1, 1, 10, Infinity].map((beta) => entropy(softargmax([0, 1, 3], beta)));
    expect(spread[0]).toBeCloseTo(Math.log(3), 12);
    expect(spread.at(-1)).toBe(0);
    spread.slice(1).forEach((s, i) => expect(s).toBeLessThan(spread[i]));
  });
});

describe("attention", () => {
  it("equals the library's, the worked example among it", () => {
    for (const { query, key, value, beta, weights, output } of numbers.attention) {
      const found = attention(query, key, value, number(beta));
      close(found.weights.flat(), weights.flat());
      close(found.output.flat(), output.flat());
    }
  });
});

describe("the slider of β", () => {
  it("reaches 0 and ∞ at its ends, and goes there and back", () => {
    expect([betaAt(0), betaAt(1)]).toEqual([0, Infinity]);
    expect([positionOf(0), positionOf(Infinity)]).toEqual([0, 1]);
    for (const beta of [10 ** LOWEST, 0.01, 1 / Math.SQRT2, 1, 42, 10 ** HIGHEST]) {
      expect(betaAt(positionOf(beta))).toBeCloseTo(beta, 9);
    }
  });
});

describe("axis matrices", () => {
  it("equal the library's for every border", () => {
    for (const { targets, alpha, size, border, before, after, matrix } of numbers.axis.matrices) {
      close(axisMatrix(targets, alpha, size, border as Border, { before, after }).data, matrix.flat());
    }
  });
  it("leak no more than is proven", () => {
    for (const { alpha, tail: T, leak } of numbers.axis.bounds) {
      expect(tail(alpha)).toBeCloseTo(T, 12);
      close([shiftLeak(alpha, 1), shiftLeak(alpha, 2)], leak, 1e-9);
      expect(shiftLeak(alpha, 1)).toBeCloseTo((2 * T) / (1 + T), 12);
    }
    expect(shiftLeak(0, 2)).toBe(2);
  });
});

describe("convolution and attention", () => {
  const image = plane(numbers.convolution.image);
  const { kernel } = numbers.convolution;
  for (const { border, pad, dilation, stride, output, attended } of numbers.convolution.cases) {
    const setting: Setting = { kernel, border: border as Border, pad, dilation, stride };
    it(`equal the library's: ${border}, padding ${pad}, dilation ${dilation}, stride ${stride}`, () => {
      const exact = convolve(image, setting);
      close(exact.data, output.flat());
      for (const { alpha, output: expected, bound } of attended) {
        const found = attend(image, setting, alpha);
        close(found.data, expected.flat());
        expect(errorBound(image, setting, alpha)).toBeCloseTo(bound, 9);
        expect(largestDifference(found, exact)).toBeLessThanOrEqual(bound * (1 + 1e-12));
      }
      expect(largestDifference(attend(image, setting, 60), exact)).toBeLessThan(1e-13);
    });
  }
  it("is one: the heads' maps, weighted by the kernel, give the same output", () => {
    const setting: Setting = { kernel, border: "reflect", pad: 1, dilation: 1, stride: 1 };
    const axes = heads(image, setting, 1.5);
    let total = 0;
    for (const [a, row] of kernel.entries()) {
      for (const [b, weight] of row.entries()) {
        const map = headMap(axes, a, b, 2, 3);
        expect(map.data.reduce((x, y) => x + y, 0)).toBeCloseTo(1, 12);
        total += weight * map.data.reduce((sum, w, i) => sum + w * image.data[i], 0);
      }
    }
    expect(total).toBeCloseTo(attend(image, setting, 1.5).data[2 * image.columns + 3], 12);
  });
});
