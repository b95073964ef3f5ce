// Where heads look at any time of a training, interpolated between the recorded steps.

import type { Payload } from "../../core/payload";

export interface HeadLayer {
  name: string;
  heads: number;
  /** Numbers of the heads, if only some of them are shown. */
  numbers?: number[];
  axes: 1 | 2;
  grid: number[] | null;
  /** Whether these are fits to maps instead of the heads' own parameters. */
  fitted?: boolean;
}

export interface HeadsMeta {
  /** Replaces the usual title, to say that these are fits. */
  title?: string;
  name: string;
  steps: number[];
  layers: HeadLayer[];
  curve: [step: number, accuracy: number][];
}

/** A symmetric 2 × 2 matrix [[rr, rc], [rc, cc]] (rows, columns); with one axis only `cc`. */
export interface Head {
  row: number;
  column: number;
  rr: number;
  rc: number;
  cc: number;
  fit: number | null;
}

export class Moments {
  constructor(private readonly payload: Payload<HeadsMeta>) {}

  get steps(): number[] { return this.payload.meta.steps; }
  get layers(): HeadLayer[] { return this.payload.meta.layers; }

  /** A head at a time in [0, steps − 1]. */
  at(layer: number, head: number, time: number): Head {
    const before = Math.min(this.steps.length - 1, Math.max(0, Math.floor(time)));
    const after = Math.min(this.steps.length - 1, before + 1);
    const share = Math.min(1, Math.max(0, time - before));
    const { heads, axes } = this.layers[layer];
    const mix = (name: string, size: number, entry: number): number => {
      const values = this.payload.values(`${name}${layer}`);
      const [a, b] = [before, after].map((moment) => values[(moment * heads + head) * size + entry]);
      return a + (b - a) * share;
    };
    const fit = this.payload.has(`fit${layer}`) ? mix("fit", 1, 0) : null;
    if (axes === 1) return { row: 0, column: mix("center", 1, 0), rr: 0, rc: 0, cc: mix("sharpness", 1, 0), fit };
    return {
      row: mix("center", 2, 0),
      column: mix("center", 2, 1),
      rr: mix("sharpness", 4, 0),
      rc: mix("sharpness", 4, 1),
      cc: mix("sharpness", 4, 3),
      fit,
    };
  }

  number(layer: number, head: number): number {
    return this.layers[layer].numbers?.[head] ?? head;
  }

  /** The step at a time. */
  step(time: number): number {
    const before = Math.min(this.steps.length - 1, Math.floor(time));
    const after = Math.min(this.steps.length - 1, before + 1);
    return Math.round(this.steps[before] + (this.steps[after] - this.steps[before]) * (time - before));
  }

  /** The time of a step. */
  time(step: number): number {
    const { steps } = this;
    for (let i = 1; i < steps.length; i++) {
      if (step <= steps[i]) return i - 1 + Math.max(0, step - steps[i - 1]) / Math.max(1, steps[i] - steps[i - 1]);
    }
    return steps.length - 1;
  }
}

export interface Axes {
  /** Eigenvalues of S: how sharp the head is along its two axes. */
  first: number;
  second: number;
  /** Direction of the first axis, from the columns' axis toward the rows' (down). */
  angle: number;
}

/** S = Q diag(first, second) Qᵀ, in the plane of (column, row). */
export function principalAxes({ rr, rc, cc }: { rr: number; rc: number; cc: number }): Axes {
  const middle = (rr + cc) / 2;
  const spread = Math.hypot((cc - rr) / 2, rc);
  return { first: middle + spread, second: middle - spread, angle: 0.5 * Math.atan2(2 * rc, cc - rr) };
}

/** The radius of the contour that holds a share `mass` of the Gaussian, along an axis of sharpness `value`. */
export function reach(value: number, mass: number, axes: 1 | 2): number | null {
  if (!(value > 0)) return null;
  return axes === 2 ? Math.sqrt(-Math.log(1 - mass) / value) : inverseErf(mass) / Math.sqrt(value);
}

/** erf⁻¹ by Newton's method on Abramowitz and Stegun's series of erf. */
export function inverseErf(y: number): number {
  if (y <= -1 || y >= 1) return Math.sign(y) * Infinity;
  let x = Math.sign(y) * Math.sqrt(Math.max(0, -Math.log(1 - Math.abs(y)))) * 0.9;
  for (let i = 0; i < 40; i++) x -= ((erf(x) - y) * Math.sqrt(Math.PI)) / 2 / Math.exp(-x * x);
  return x;
}

export function erf(x: number): number {
  // The series Σ (−1)ⁿ x²ⁿ⁺¹ / (n! (2n + 1)), times 2/√π: exact enough for |x| ≤ 4, beyond which erf is 1.
  if (Math.abs(x) > 4) return Math.sign(x);
  let [term, sum] = [x, x];
  for (let n = 1; n < 120; n++) {
    term *= (-x * x) / n;
    sum += term / (2 * n + 1);
  }
  return (2 / Math.sqrt(Math.PI)) * sum;
}

/** The sharpness of a head as one number: the geometric mean over the axes; NaN if S is not positive. */
export function sharpness(head: Head, axes: 1 | 2): number {
  if (axes === 1) return head.cc > 0 ? head.cc : NaN;
  const { first, second } = principalAxes(head);
  return second > 0 ? Math.sqrt(first * second) : NaN;
}

/** Weights of a head from a query: softmax of −(k − q − Δ)ᵀ S (k − q − Δ) over the keys of a grid, row by row. */
export function gaussianMap(head: Head, grid: [number, number], query: [number, number]): Float64Array {
  const [rows, columns] = grid;
  const out = new Float64Array(rows * columns);
  let max = -Infinity;
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const [y, x] = [i - query[0] - head.row, j - query[1] - head.column];
      const score = -(head.rr * y * y + 2 * head.rc * x * y + head.cc * x * x);
      out[i * columns + j] = score;
      if (score > max) max = score;
    }
  }
  let sum = 0;
  for (let i = 0; i < out.length; i++) sum += out[i] = Math.exp(out[i] - max);
  for (let i = 0; i < out.length; i++) out[i] /= sum;
  return out;
}
