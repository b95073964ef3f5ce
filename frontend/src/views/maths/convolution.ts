// A K×K convolution, and the K² Gaussian heads that become it as they sharpen.

import { axisMatrix, shiftLeak, sourceCoordinate, type AxisMatrix, type Border, type Padding } from "./axis";

/** One channel, row by row. */
export interface Plane {
  rows: number;
  columns: number;
  data: Float64Array;
}

export interface Setting {
  /** K rows of K taps. */
  kernel: number[][];
  border: Border;
  /** Padding on every side. `native` has no padding; it corresponds to replicated borders. */
  pad: number;
  dilation: number;
  stride: number;
}

export function outputSize(size: number, taps: number, { pad, dilation, stride }: Setting): number {
  return Math.floor((size + 2 * pad - dilation * (taps - 1) - 1) / stride) + 1;
}

/** The coordinate that each output's tap reads. */
export function tapTargets(size: number, taps: number, tap: number, setting: Setting): number[] {
  const outputs = Math.max(0, outputSize(size, taps, setting));
  return Array.from({ length: outputs }, (_, o) => o * setting.stride + tap * setting.dilation - setting.pad);
}

/** The output of the convolution, tap by tap. For `native` it has replicated borders, the sharp limit of the heads. */
export function convolve(image: Plane, setting: Setting): Plane {
  const taps = setting.kernel.length;
  const out = empty(image, setting);
  for (let a = 0; a < taps; a++) {
    const rows = tapTargets(image.rows, taps, a, setting);
    for (let b = 0; b < taps; b++) {
      const weight = setting.kernel[a][b];
      if (weight === 0) continue;
      const columns = tapTargets(image.columns, taps, b, setting);
      for (let r = 0; r < out.rows; r++) {
        for (let c = 0; c < out.columns; c++) {
          out.data[r * out.columns + c] += weight * read(image, rows[r], columns[c], setting.border);
        }
      }
    }
  }
  return out;
}

function read(image: Plane, row: number, column: number, border: Border): number {
  const outside = row < 0 || row >= image.rows || column < 0 || column >= image.columns;
  if (outside && border === "zeros") return 0;
  const r = sourceCoordinate(row, image.rows, border);
  const c = sourceCoordinate(column, image.columns, border);
  return image.data[r * image.columns + c];
}

function empty(image: Plane, setting: Setting): Plane {
  const taps = setting.kernel.length;
  const rows = Math.max(0, outputSize(image.rows, taps, setting));
  const columns = Math.max(0, outputSize(image.columns, taps, setting));
  return { rows, columns, data: new Float64Array(rows * columns) };
}

/** The axis matrix of every tap, along rows and along columns. */
export function heads(image: { rows: number; columns: number }, setting: Setting, alpha: number): {
  rows: AxisMatrix[];
  columns: AxisMatrix[];
} {
  const taps = setting.kernel.length;
  const padding: Padding = { before: setting.pad, after: setting.pad };
  const along = (size: number) =>
    Array.from({ length: taps }, (_, tap) =>
      axisMatrix(tapTargets(size, taps, tap, setting), alpha, size, setting.border, padding),
    );
  return { rows: along(image.rows), columns: along(image.columns) };
}

/** The output of the heads: Σ over taps of the tap's weight times A_rows · image · A_colsᵀ, in two passes. */
export function attend(image: Plane, setting: Setting, alpha: number): Plane {
  const taps = setting.kernel.length;
  const out = empty(image, setting);
  const { rows, columns } = heads(image, setting, alpha);
  // Columns first; heads that share a row tap are summed before the second pass.
  const passed = columns.map((matrix) => alongColumns(image, matrix));
  for (let a = 0; a < taps; a++) {
    const mixed = new Float64Array(image.rows * out.columns);
    for (let b = 0; b < taps; b++) {
      const weight = setting.kernel[a][b];
      if (weight === 0) continue;
      const part = passed[b];
      for (let i = 0; i < mixed.length; i++) mixed[i] += weight * part[i];
    }
    const { data, inputs } = rows[a];
    for (let r = 0; r < out.rows; r++) {
      for (let j = 0; j < inputs; j++) {
        const weight = data[r * inputs + j];
        if (weight === 0) continue;
        for (let c = 0; c < out.columns; c++) out.data[r * out.columns + c] += weight * mixed[j * out.columns + c];
      }
    }
  }
  return out;
}

function alongColumns(image: Plane, matrix: AxisMatrix): Float64Array {
  const { outputs, inputs, data } = matrix;
  const out = new Float64Array(image.rows * outputs);
  for (let r = 0; r < image.rows; r++) {
    for (let c = 0; c < outputs; c++) {
      let total = 0;
      for (let j = 0; j < inputs; j++) {
        const weight = data[c * inputs + j];
        if (weight !== 0) total += weight * image.data[r * inputs + j];
      }
      out[r * outputs + c] = total;
    }
  }
  return out;
}

/** Where the head of tap (a, b) looks from output (row, column): the product of its two rows. */
export function headMap(
  axes: { rows: AxisMatrix[]; columns: AxisMatrix[] },
  a: number,
  b: number,
  row: number,
  column: number,
): Plane {
  const rows = axes.rows[a];
  const columns = axes.columns[b];
  const data = new Float64Array(rows.inputs * columns.inputs);
  for (let i = 0; i < rows.inputs; i++) {
    const weight = rows.data[row * rows.inputs + i];
    if (weight === 0) continue;
    for (let j = 0; j < columns.inputs; j++) {
      data[i * columns.inputs + j] = weight * columns.data[column * columns.inputs + j];
    }
  }
  return { rows: rows.inputs, columns: columns.inputs, data };
}

export function largestDifference(a: Plane, b: Plane): number {
  let largest = 0;
  for (let i = 0; i < a.data.length; i++) largest = Math.max(largest, Math.abs(a.data[i] - b.data[i]));
  return largest;
}

const UNIT = 2 ** -53;

/** The rounding error of a sum of n products in any order, relative to the sum of their sizes: n·u/(1 − n·u). */
export function rounding(terms: number): number {
  return (terms * UNIT) / (1 - terms * UNIT);
}

/**
 * A bound on the error of every output: the leak of a head, times Σ|w|, times the image's largest value, plus the
 * rounding error of both sums, relative to the convolution of |image| with |w|.
 */
export function errorBound(image: Plane, setting: Setting, alpha: number): number {
  const norm = setting.kernel.flat().reduce((total, weight) => total + Math.abs(weight), 0);
  const leaked = shiftLeak(alpha, 2) * norm * largest(image);
  const sizes: Plane = { ...image, data: image.data.map(Math.abs) };
  const absolute = largest(convolve(sizes, { ...setting, kernel: setting.kernel.map((row) => row.map(Math.abs)) }));
  const terms = 2 * (setting.kernel.flat().length + 1) + image.rows + image.columns + 24;
  return leaked + rounding(terms) * (absolute + leaked);
}

function largest(plane: Plane): number {
  return plane.data.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
}
