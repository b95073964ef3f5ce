// The visible range of each layer's panel, and the range of the sharpness colors: the same at all steps.

import { type HeadLayer, type Moments, reach, sharpness } from "./moments";

export interface Range {
  /** Half the visible height and half the visible width, in tokens of the layer. */
  rows: number;
  columns: number;
  /** The sharpness at the start and at the end of the color ramp: the same for all layers. */
  low: number;
  high: number;
}

const LEAST = 1.5; // the smallest ratio of the ramp's end to its start

type Axis = "rows" | "columns";

/** "image": all layers have one scale, so that positions can be compared; "grid": each grid has a scale that fits its heads. */
export type Scale = "image" | "grid";

/** Whether layers have different grids, so that their tokens have different sizes. */
export function isMerged(layers: HeadLayer[]): boolean {
  return layers.some((layer) => !isSame(layer, layers[0]));
}

const isSame = (a: HeadLayer, b: HeadLayer): boolean => a.axes === b.axes && String(a.grid) === String(b.grid);

/** The range of each layer: around its heads at all steps, or with `wholeGrid` its whole grid. */
export function rangesOf(moments: Moments, wholeGrid: boolean, scale: Scale): Range[] {
  const { layers } = moments;
  const [low, high] = ramp(moments);
  const needs = layers.map((_, l) => needOf(moments, l, wholeGrid));
  if (!isMerged(layers)) {
    const most = (axis: Axis) => Math.max(...needs.map((need) => need[axis]));
    return layers.map(() => ({ rows: most("rows"), columns: most("columns"), low, high }));
  }
  if (scale === "grid") {
    const wide = layers.map((layer) => Math.max(...needs.filter((_, l) => isSame(layer, layers[l])).map(({ columns }) => columns)));
    const tallest = Math.max(...needs.map(({ rows }, l) => rows / wide[l])); // panels side by side are equally high
    return wide.map((columns) => ({ rows: columns * tallest, columns, low, high }));
  }
  // The same share of every grid is the same part of the image. A head counts only within its grid, so that a layer of a
  // few tokens does not make all other layers small.
  const share = (l: number, axis: Axis) => Math.min(needs[l][axis] / tokens(layers[l], axis), layers[l].grid ? 1 : Infinity);
  return layers.map((layer) => {
    const alike = layers.map((_, l) => l).filter((l) => layers[l].axes === layer.axes && (layers[l].grid === null) === (layer.grid === null));
    const most = (axis: Axis) => tokens(layer, axis) * Math.max(...alike.map((l) => share(l, axis)));
    return { rows: most("rows"), columns: most("columns"), low, high };
  });
}

/** One scale, unless the heads of some layer would crowd in the middle. */
export function likelyScale(moments: Moments): Scale {
  const ranges = rangesOf(moments, false, "image");
  const crowded = (l: number) => needOf(moments, l, false).columns < ranges[l].columns / 4;
  return moments.layers.some((_, l) => crowded(l)) ? "grid" : "image";
}

/** The height or width of the image in tokens of the layer; 1 if unknown. */
function tokens({ grid, axes }: HeadLayer, axis: Axis): number {
  if (!grid) return 1;
  return axis === "columns" ? grid[axes - 1] : axes === 2 ? grid[0] : 1;
}

function needOf(moments: Moments, l: number, wholeGrid: boolean): Record<Axis, number> {
  const layer = moments.layers[l];
  let [rows, columns] = [2, 2];
  for (const head of headsOf(moments, l)) {
    // The inner contour should be fully visible, unless it is much wider than the heads' centers.
    const around = Math.min(1.5, reach(sharpness(head, layer.axes), 0.5, layer.axes) ?? 0);
    // The fitted center of a flat map may be anywhere, so it is limited to the extent of the grid.
    const far = (n: number) => (layer.fitted ? n / 2 + 1 : n + 1);
    const [most, widest] = layer.grid ? [far(layer.grid[0]), far(layer.grid[layer.axes - 1])] : [16, 16];
    rows = Math.max(rows, Math.min(most, Math.abs(head.row) + around + 0.5));
    columns = Math.max(columns, Math.min(widest, Math.abs(head.column) + around + 0.5));
  }
  if (wholeGrid && layer.grid) {
    const [gridRows, gridColumns] = layer.axes === 2 ? layer.grid : [4, layer.grid[0]];
    rows = Math.max(rows, gridRows / 2 + 0.5);
    columns = Math.max(columns, gridColumns / 2 + 0.5);
  }
  return { rows, columns };
}

function ramp(moments: Moments): [low: number, high: number] {
  let [low, high] = [Infinity, 0];
  moments.layers.forEach(({ axes }, l) => {
    for (const head of headsOf(moments, l)) {
      const value = sharpness(head, axes);
      if (value > 0) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
  });
  if (high === 0) return [0.1, 1];
  // Heads of similar sharpness should not get opposite colors.
  const wider = Math.max(1, Math.sqrt(LEAST / (high / low)));
  return [low / wider, high * wider];
}

/** The heads of a layer at about fifty steps, including the last. */
function* headsOf(moments: Moments, l: number) {
  const last = moments.steps.length - 1;
  const every = Math.max(1, Math.floor((last + 1) / 50));
  for (let time = 0; time <= last; time++) {
    if (time % every !== 0 && time !== last) continue;
    for (let h = 0; h < moments.layers[l].heads; h++) yield moments.at(l, h, time);
  }
}

/** The position of a sharpness on the color ramp, by its logarithm. */
export function shade(value: number, { low, high }: Pick<Range, "low" | "high">): number {
  if (!(value > 0)) return 0;
  return Math.min(1, Math.max(0, Math.log(value / low) / Math.log(high / low)));
}
