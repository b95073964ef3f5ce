// What part of the plane is shown, and what the colours of sharpness mean: the same for all layers and times.

import { type Moments, reach, sharpness } from "./moments";

export interface Range {
  /** Half the height and half the width that are shown, in tokens. */
  rows: number;
  columns: number;
  /** Sharpness from the ramp's start to its end. */
  low: number;
  high: number;
}

/** Around all heads at all times; with `wholeGrid` all of the grid. */
export function rangeOf(moments: Moments, wholeGrid: boolean): Range {
  let [rows, columns, low, high] = [2, 2, Infinity, 0];
  const every = Math.max(1, Math.floor(moments.steps.length / 50));
  moments.layers.forEach((layer, l) => {
    for (let time = 0; time < moments.steps.length; time++) {
      if (time % every !== 0 && time !== moments.steps.length - 1) continue;
      for (let h = 0; h < layer.heads; h++) {
        const head = moments.at(l, h, time);
        // The inner contour is to be seen whole where it is not much wider than the heads' places.
        const around = Math.min(1.5, reach(sharpness(head, layer.axes), 0.5, layer.axes) ?? 0);
        // The center that fits a flat map may lie anywhere: no farther than the grid reaches is shown.
        const far = (n: number) => (layer.fitted ? n / 2 + 1 : n + 1);
        const [most, widest] = layer.grid ? [far(layer.grid[0]), far(layer.grid[layer.axes - 1])] : [16, 16];
        rows = Math.max(rows, Math.min(most, Math.abs(head.row) + around + 0.5));
        columns = Math.max(columns, Math.min(widest, Math.abs(head.column) + around + 0.5));
        const value = sharpness(head, layer.axes);
        if (value > 0) [low, high] = [Math.min(low, value), Math.max(high, value)];
      }
    }
    if (wholeGrid && layer.grid) {
      const [gridRows, gridColumns] = layer.axes === 2 ? layer.grid : [4, layer.grid[0]];
      rows = Math.max(rows, gridRows / 2 + 0.5);
      columns = Math.max(columns, gridColumns / 2 + 0.5);
    }
  });
  if (!(low < high)) [low, high] = high > 0 ? [high / 2, high * 2] : [0.1, 1];
  return { rows, columns, low, high };
}

/** Where a sharpness lies on the ramp: by its logarithm. */
export function shade(value: number, { low, high }: Range): number {
  if (!(value > 0)) return 0;
  return Math.min(1, Math.max(0, Math.log(value / low) / Math.log(high / low)));
}
