// What part of the plane each layer's panel shows, and what the colors of sharpness mean: the same at all times.

import { type HeadLayer, type Moments, reach, sharpness } from "./moments";

export interface Range {
  /** Half the height and half the width that are shown, in tokens of the layer. */
  rows: number;
  columns: number;
  /** Sharpness from the ramp's start to its end: the same for all layers. */
  low: number;
  high: number;
}

const LEAST = 1.5; // how often the ramp's start goes into its end

type Axis = "rows" | "columns";

/** One scale of the image for all layers, so that places can be compared, or for each grid what its layers' heads need. */
export type Scale = "image" | "grid";

/** Whether layers see different grids: then two tokens of one are as far as one of another. */
export function isMerged(layers: HeadLayer[]): boolean {
  return layers.some((layer) => !isSame(layer, layers[0]));
}

const isSame = (a: HeadLayer, b: HeadLayer): boolean => a.axes === b.axes && String(a.grid) === String(b.grid);

/** For each layer, around its heads at all times; with `wholeGrid` all of its grid. */
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
  // The same share of every grid is the same part of the image. No head reaches farther than its grid, so that one of a
  // few tokens does not make all others small.
  const share = (l: number, axis: Axis) => Math.min(needs[l][axis] / tokens(layers[l], axis), layers[l].grid ? 1 : Infinity);
  return layers.map((layer) => {
    const alike = layers.map((_, l) => l).filter((l) => layers[l].axes === layer.axes && (layers[l].grid === null) === (layer.grid === null));
    const most = (axis: Axis) => tokens(layer, axis) * Math.max(...alike.map((l) => share(l, axis)));
    return { rows: most("rows"), columns: most("columns"), low, high };
  });
}

/** One scale, unless some layer's heads would lie in a heap in the middle. */
export function likelyScale(moments: Moments): Scale {
  const ranges = rangesOf(moments, false, "image");
  const crowded = (l: number) => needOf(moments, l, false).columns < ranges[l].columns / 4;
  return moments.layers.some((_, l) => crowded(l)) ? "grid" : "image";
}

/** How many of a layer's tokens the image is high or wide; 1 where that is not known. */
function tokens({ grid, axes }: HeadLayer, axis: Axis): number {
  if (!grid) return 1;
  return axis === "columns" ? grid[axes - 1] : axes === 2 ? grid[0] : 1;
}

function needOf(moments: Moments, l: number, wholeGrid: boolean): Record<Axis, number> {
  const layer = moments.layers[l];
  let [rows, columns] = [2, 2];
  for (const head of headsOf(moments, l)) {
    // The inner contour is to be seen whole where it is not much wider than the heads' places.
    const around = Math.min(1.5, reach(sharpness(head, layer.axes), 0.5, layer.axes) ?? 0);
    // The center that fits a flat map may lie anywhere: no farther than the grid reaches is shown.
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
  // Heads that hardly differ are not to look as different as can be.
  const wider = Math.max(1, Math.sqrt(LEAST / (high / low)));
  return [low / wider, high * wider];
}

/** A layer's heads at about fifty moments, the last one among them. */
function* headsOf(moments: Moments, l: number) {
  const last = moments.steps.length - 1;
  const every = Math.max(1, Math.floor((last + 1) / 50));
  for (let time = 0; time <= last; time++) {
    if (time % every !== 0 && time !== last) continue;
    for (let h = 0; h < moments.layers[l].heads; h++) yield moments.at(l, h, time);
  }
}

/** Where a sharpness lies on the ramp: by its logarithm. */
export function shade(value: number, { low, high }: Pick<Range, "low" | "high">): number {
  if (!(value > 0)) return 0;
  return Math.min(1, Math.max(0, Math.log(value / low) / Math.log(high / low)));
}
