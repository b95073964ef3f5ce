// Axis matrices: where Gaussian heads look along one axis of a grid. The definitions are those of
// regard.functional.axis_matrix and regard.convert, and tests compare the numbers.

export type Border = "native" | "zeros" | "reflect" | "replicate" | "circular";
export const BORDERS: readonly Border[] = ["zeros", "reflect", "replicate", "circular", "native"];

/** Rows of weights over the inputs, one for each output. */
export interface AxisMatrix {
  outputs: number;
  inputs: number;
  data: Float64Array;
}

export interface Padding {
  before: number;
  after: number;
}

/** The input that a padded coordinate copies. */
export function sourceCoordinate(at: number, size: number, border: Border): number {
  if (border === "replicate" || border === "native" || size === 1) return Math.min(size - 1, Math.max(0, at));
  if (border === "circular") return modulo(at, size);
  const period = 2 * (size - 1);
  const wrapped = modulo(at, period);
  return Math.min(wrapped, period - wrapped);
}

function modulo(a: number, n: number): number {
  return ((a % n) + n) % n;
}

/**
 * A[o, j] = softmax over j of −α (j − target[o])², over the padded coordinates. Weight on padding is dropped (zeros)
 * or added to the input that the padding copies. `native` attends to the existing inputs and takes no padding.
 */
export function axisMatrix(
  targets: readonly number[],
  alpha: number,
  size: number,
  border: Border,
  padding: Padding = { before: 0, after: 0 },
): AxisMatrix {
  const { before, after } = border === "native" ? { before: 0, after: 0 } : padding;
  const data = new Float64Array(targets.length * size);
  const low = -before;
  const high = size - 1 + after;
  const weights = new Float64Array(high - low + 1);
  targets.forEach((target, o) => {
    // Scores relative to the nearest key: the largest is exactly 0, and nothing cancels.
    const nearest = Math.min(high, Math.max(low, roundHalfEven(target)));
    const shift = nearest - target;
    let total = 0;
    for (let j = low; j <= high; j++) {
      const step = j - nearest;
      const weight = Math.exp(-alpha * step * (step + 2 * shift));
      weights[j - low] = weight;
      total += weight;
    }
    for (let j = low; j <= high; j++) {
      const inside = j >= 0 && j < size;
      if (!inside && border === "zeros") continue;
      data[o * size + (inside ? j : sourceCoordinate(j, size, border))] += weights[j - low] / total;
    }
  });
  return { outputs: targets.length, inputs: size, data };
}

function roundHalfEven(x: number): number {
  const floor = Math.floor(x);
  const rest = x - floor;
  if (rest !== 0.5) return Math.round(x);
  return floor % 2 === 0 ? floor : floor + 1;
}

/** T = 2 Σ e^{−αr²}, r ≥ 1: all the weight off the target, relative to the target's. */
export function tail(alpha: number): number {
  if (!(alpha > 0)) return Infinity;
  let total = 0;
  for (let r = 1; ; r++) {
    const term = 2 * Math.exp(-alpha * r * r);
    total += term;
    if (term <= 1e-20 * total || term === 0) return total;
  }
}

/** The largest L1 distance of a head's row from a shift, over the given axes: 2 (1 − Π 1/(1+T)); 2T/(1+T) for one. */
export function shiftLeak(alpha: number, axes: number): number {
  const T = tail(alpha);
  return T === Infinity ? 2 : -2 * Math.expm1(-axes * Math.log1p(T));
}
