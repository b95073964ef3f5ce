// Color scales: by default a weight relative to uniform attention, on one scale for all maps.

import { css, type Ramp, table as colorTable } from "../core/color";
import type { Pen } from "../core/pen";
import type { Theme } from "../core/theme";
import { percent } from "./layer";

/** "uniform": the weight as a multiple of 1/n, with n keys visible to the query; the same for all maps. Others: a share of the largest weight of the map (or row). */
export type Scale = "uniform" | "map" | "root" | "row";
/** How the weights of one pixel are pooled: their largest, or their mean (which shows the mass). */
export type Pooling = "max" | "mass";

export const POOLINGS: [Pooling, string][] = [["max", "largest weight"], ["mass", "mass"]];

export interface Shading {
  scale: Scale;
  /** The largest n of all maps: weight 1 over n keys is the end of the scale. */
  top: number;
  /** Weights may be negative: the colors diverge from zero. */
  signed: boolean;
}

/** The position of a multiple of uniform attention (lift) on the scale 0 … 1, in proportion to log(1 + lift). */
export const position = (lift: number, top: number): number => Math.sign(lift) * Math.min(1, Math.log1p(Math.abs(lift)) / Math.log1p(Math.max(top, 1)));

/** Colors of positions −1 … 1 (signed) or 0 … 1 on the scale. */
export function colorsOf(theme: Theme, signed: boolean, alpha?: (t: number) => number): (t: number) => number {
  const colors = colorTable(rampOf(theme, signed), alpha);
  return signed ? (t) => colors[Math.round(127.5 + 127.5 * Math.max(-1, Math.min(1, t)))] : (t) => colors[Math.round(255 * Math.max(0, Math.min(1, t)))];
}

export const rampOf = (theme: Theme, signed: boolean): Ramp => (signed ? theme.signed : theme.heat);

/** A matrix of weights as positions on the scale; `visible` counts the keys that each query may see. */
export interface Shaded {
  data: Float32Array;
  rows: number;
  columns: number;
  /** The weight at the end of the scale, where that is not a multiple of uniform attention: of pooled mass, the largest mean. */
  most: number;
}

export interface Region {
  row: number;
  column: number;
  rows: number;
  columns: number;
}

/** A part of a map in at most `tall` × `wide` pixels. No weight is skipped: cells smaller than a pixel are pooled. */
export function shade(
  weights: Float32Array,
  columns: number,
  visible: ArrayLike<number>,
  { scale, top }: Shading,
  how: Pooling,
  region: Region,
  tall: number,
  wide: number,
): Shaded {
  const [r, c] = [Math.max(1, Math.min(region.rows, Math.floor(tall))), Math.max(1, Math.min(region.columns, Math.floor(wide)))];
  const data = new Float32Array(r * c);
  const bins = Uint32Array.from({ length: region.columns }, (_, j) => Math.floor((j * c) / region.columns));
  const wholeMap = scale === "map" || scale === "root" ? largestOf(weights) : 1;
  for (let i = 0; i < region.rows; i++) {
    const from = (region.row + i) * columns + region.column;
    const out = Math.floor((i * r) / region.rows) * c;
    const factor = scale === "uniform" ? visible[region.row + i] : 1 / ((scale === "row" ? largestOf(weights.subarray((region.row + i) * columns, (region.row + i + 1) * columns)) : wholeMap) || 1);
    for (let j = 0; j < region.columns; j++) {
      const [value, at] = [weights[from + j] * factor, out + bins[j]];
      if (how === "mass") data[at] += value;
      else if (Math.abs(value) > Math.abs(data[at])) data[at] = value;
    }
  }
  if (how === "mass" && (r < region.rows || c < region.columns)) average(data, r, c, region);
  // Largest weights keep the scale of the whole map, wherever one zooms to; means are as large as their pixels let them be.
  const most = scale !== "uniform" && how === "mass" ? largestOf(data) || 1 : 1;
  for (let i = 0; i < data.length; i++) data[i] = scale === "uniform" ? position(data[i], top) : scale === "root" ? Math.sign(data[i]) * Math.sqrt(Math.abs(data[i] / most)) : data[i] / most;
  return { data, rows: r, columns: c, most: most * wholeMap };
}

/** Divide sums by counts: pixels may pool different numbers of weights. */
function average(data: Float32Array, r: number, c: number, region: Region): void {
  const count = (n: number, bins: number) => {
    const counts = new Uint32Array(bins);
    for (let i = 0; i < n; i++) counts[Math.floor((i * bins) / n)]++;
    return counts;
  };
  const [tall, wide] = [count(region.rows, r), count(region.columns, c)];
  for (let i = 0; i < r; i++) for (let j = 0; j < c; j++) data[i * c + j] /= tall[i] * wide[j];
}

export function largestOf(values: Float32Array): number {
  let most = 0;
  for (let i = 0; i < values.length; i++) if (Math.abs(values[i]) > most) most = Math.abs(values[i]);
  return most;
}

/** Marks of a legend: the position, and the share of attention there for a query that sees n keys. Where there are negative numbers, as in a difference, none of them is uniform attention. A scale of zeros has no other mark. */
export function ticks({ scale, top, signed }: Shading, n: number, most: number): { at: number; text: string }[] {
  if (scale === "row") return [...(signed ? [{ at: -1, text: "−largest" }] : []), { at: 0, text: "0" }, { at: 1, text: signed ? "largest" : "largest of the row" }];
  // A query that sees no key has no uniform attention. Weights beyond the end of the scale have its last color.
  const even = n >= 1 ? [1 / n, ...[0.1, 0.5, 1].filter((share) => share > 1.8 / n && share * n <= top)] : [];
  const shares = scale === "uniform" ? [0, ...even] : most > 0 ? (scale === "root" ? [0, most / 4, most] : [0, most]) : [0];
  const place = (share: number) => (scale === "uniform" ? position(share * n, top) : scale === "root" ? Math.sqrt(share / (most || 1)) : share / (most || 1));
  const found = shares.map((share, i) => ({ at: place(share), text: scale === "uniform" && i === 1 && !signed ? `${percent(share)} = uniform` : share ? percent(share) : "0" }));
  if (!signed) return found;
  return [...found.slice(1).reverse().map(({ at, text }) => ({ at: -at, text: `−${text}` })), ...found];
}

export interface LegendPlace {
  x: number;
  y: number;
  width: number;
}

/** The color ramp with marks in percent below, as many as fit. */
export function drawLegend(pen: Pen, theme: Theme, shading: Shading, n: number, most: number, { x, y, width }: LegendPlace, ramp: Ramp = rampOf(theme, shading.signed)): void {
  for (let i = 0; i < 64; i++) {
    pen.fillStyle = css(ramp(i / 63));
    pen.fillRect(x + (i * width) / 64, y, width / 64 + 0.6, 8);
  }
  pen.strokeStyle = theme.line;
  pen.lineWidth = 1;
  pen.strokeRect(x - 0.5, y - 0.5, width + 1, 9);
  pen.fillStyle = theme.muted;
  pen.font = `10px ${theme.font}`;
  pen.textBaseline = "top";
  const taken: [number, number][] = [];
  const marks = ticks(shading, n, most).map((mark) => ({ ...mark, at: shading.signed ? (mark.at + 1) / 2 : mark.at }));
  // The mark for uniform attention (or for zero, between negative and positive) comes first, then the ends; others fill the
  // remaining room from outside, so that negative and positive marks are the same.
  const rank = ({ at, text }: { at: number; text: string }) => (text.endsWith("uniform") || (shading.signed && text === "0") ? -1 : 0.5 - Math.abs(at - 0.5));
  pen.textAlign = "center";
  for (const { at, text } of [...marks].sort((a, b) => rank(a) - rank(b))) {
    const wide = pen.measureText(shading.signed && !text.startsWith("−") ? `−${text}` : text).width;
    const left = Math.max(x, Math.min(x + width - wide, x + at * width - wide / 2));
    pen.fillRect(x + Math.min(width - 1, at * width), y + 8, 1, 4);
    if (taken.some(([from, to]) => left < to + 5 && left + wide > from - 5)) continue;
    pen.fillText(text, left + wide / 2, y + 13);
    taken.push([left, left + wide]);
  }
}
