// Long maps in cells: a window onto the cells of one head, pooled to pixels, and curves over the tokens.

import { pixels, type Size } from "../core/canvas";
import type { NumberArray } from "../core/payload";
import { slice } from "../core/payload";
import { type Pen, resolution } from "../core/pen";
import type { Theme } from "../core/theme";
import { colorsOf } from "./scale";

export type Measure = "mass" | "largest";

/** The visible part of the tokens, as shares of the whole: x over keys, y over queries. */
export interface Window {
  x: number;
  y: number;
  /** The visible share, the same for both axes. */
  share: number;
}

export const everything: Window = { x: 0, y: 0, share: 1 };

export function within({ x, y, share }: Window, smallest: number): Window {
  const s = share > 0.999 ? 1 : Math.max(smallest, share); // a slider at its end is not exact
  const keep = (at: number) => Math.min(1 - s, Math.max(0, at));
  return { x: keep(x), y: keep(y), share: s };
}

/** Zoom by a factor and keep the point (x, y) of the tokens in place. */
export function zoomedAt(view: Window, factor: number, x: number, y: number, smallest: number): Window {
  const share = Math.min(1, Math.max(smallest, view.share / factor));
  const shrink = share / view.share;
  return within({ x: x - (x - view.x) * shrink, y: y - (y - view.y) * shrink, share }, smallest);
}

export interface Cells {
  data: Float32Array;
  rows: number;
  columns: number;
  /** All tokens, in cells: less than rows and columns where the last cells are partly filled. */
  tall: number;
  wide: number;
}

export function cellsOf(array: NumberArray, head: number, tall: number, wide: number): Cells {
  const [, rows, columns] = array.shape;
  return { data: slice(array, head * rows * columns, rows * columns), rows, columns, tall, wide };
}

/** Square root of the share, so that faint cells are visible beside strong ones. The mass of a query is at most 1. */
export const brightness = (value: number, most: number): number => Math.sqrt(Math.min(1, value / (most || 1)));

export function largestIn({ data }: Cells): number {
  let most = 0;
  for (const value of data) if (value > most) most = value;
  return most;
}

/** The window in at most tall × wide pixels. A pixel shows the largest of its cells, or their mass: what a query of these rows
 * gives to all keys of the pixel, on average. So no line disappears. A cell on two pixels divides its mass between them: if all
 * of it went to one, pixels with more cells than others would be stripes that the map does not have. */
export function pooled(cells: Cells, view: Window, tall: number, wide: number, measure: Measure): { data: Float32Array; rows: number; columns: number; from: [number, number]; to: [number, number] } {
  const span = (at: number, count: number): [number, number] => [Math.floor(at * count), Math.ceil(Math.min(1, at + view.share) * count - 1e-9)];
  const [top, bottom] = span(view.y, cells.tall);
  const [left, right] = span(view.x, cells.wide);
  const [r, c] = [Math.max(1, Math.min(bottom - top, Math.floor(tall))), Math.max(1, Math.min(right - left, Math.floor(wide)))];
  const data = new Float32Array(r * c);
  const queries = new Float32Array(r); // of each row of pixels, in cells
  const first = Uint32Array.from({ length: right - left }, (_, j) => Math.floor((j * c) / (right - left)));
  const inFirst = Float32Array.from(first, (pixel, j) => Math.min(1, ((pixel + 1) * (right - left)) / c - j));
  for (let i = top; i < bottom; i++) {
    const down = Math.floor(((i - top) * r) / (bottom - top));
    const out = down * c;
    const part = Math.min(1, cells.tall - i); // the last cells may hold fewer queries
    queries[down] += part;
    for (let j = left; j < right; j++) {
      const at = out + first[j - left];
      const value = cells.data[i * cells.columns + j];
      if (measure === "largest") data[at] = Math.max(data[at], value);
      else {
        const share = inFirst[j - left];
        data[at] += share * part * value;
        if (share < 1 && first[j - left] + 1 < c) data[at + 1] += (1 - share) * part * value;
      }
    }
  }
  if (measure === "mass") for (let i = 0; i < data.length; i++) data[i] /= queries[Math.floor(i / c)];
  return { data, rows: r, columns: c, from: [top, left], to: [bottom, right] };
}

/** Draw a window of cells into a rectangle. Cells at its edges are clipped. */
export function drawCells(pen: Pen, theme: Theme, cells: Cells, view: Window, measure: Measure, most: number, box: Box, reuse?: HTMLCanvasElement): void {
  const fine = resolution(pen);
  const part = pooled(cells, view, box.height * fine, box.width * fine, measure);
  const color = colorsOf(theme, false);
  const image = pixels(part.columns, part.rows, (i) => color(brightness(part.data[i], most)), reuse);
  const place = (at: number, from: number, count: number, start: number, size: number) => start + ((at / count - from) / view.share) * size;
  const [x0, x1] = [part.from[1], part.to[1]].map((at) => place(at, view.x, cells.wide, box.x, box.width));
  const [y0, y1] = [part.from[0], part.to[0]].map((at) => place(at, view.y, cells.tall, box.y, box.height));
  pen.save();
  pen.beginPath();
  pen.rect(box.x, box.y, box.width, box.height);
  pen.clip();
  pen.imageSmoothingEnabled = false;
  pen.drawImage(image, x0, y0, x1 - x0, y1 - y0);
  pen.restore();
  pen.strokeStyle = theme.line;
  pen.lineWidth = 1;
  pen.strokeRect(box.x - 0.5, box.y - 0.5, box.width + 1, box.height + 1);
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export const LEFT = 62;
export const CURVE = 58;
const GAP = 10;
const LEGEND = 34;

/** The layout of the map and its curves: received mass below, entropy at the right, and the legend of the colors at the bottom. */
export function boxesOf(size: Size): { map: Box; received: Box; entropy: Box; legend: { x: number; y: number; width: number } } {
  const side = Math.max(40, Math.min(size.width - LEFT - CURVE - GAP - 4, size.height - CURVE - GAP - 44 - LEGEND));
  const map = { x: LEFT, y: 18, width: side, height: side };
  return {
    map,
    received: { x: LEFT, y: map.y + side + GAP, width: side, height: CURVE },
    entropy: { x: LEFT + side + GAP, y: map.y, width: CURVE, height: side },
    legend: { x: LEFT, y: map.y + side + GAP + CURVE + 24, width: Math.min(200, side / 2) },
  };
}

export const longHeight = (width: number): number => Math.min(760, width - CURVE - LEFT + CURVE + 50) + LEGEND;

/** Values over the tokens. `count` is the length of all tokens in bins: fractional where the last bin is partly filled. */
export interface Curve {
  values: Float32Array;
  count: number;
}

/** The values of the window as bars, vertical or horizontal; a pixel shows the largest of its values. */
export function drawCurve(pen: Pen, theme: Theme, { values, count }: Curve, from: number, share: number, box: Box, upright: boolean, scale?: number): number {
  const [first, last] = [Math.floor(from * count), Math.min(values.length, Math.ceil(Math.min(1, from + share) * count - 1e-9))];
  const length = upright ? box.width : box.height;
  let most = scale ?? 0;
  if (!scale) for (let i = first; i < last; i++) most = Math.max(most, values[i]);
  const bars = new Float32Array(Math.max(1, Math.floor(length)));
  for (let i = first; i < last; i++) {
    const start = ((i / count - from) / share) * bars.length;
    const stop = (((i + 1) / count - from) / share) * bars.length;
    for (let p = Math.max(0, Math.floor(start)); p < Math.min(bars.length, Math.max(Math.floor(start) + 1, stop)); p++) bars[p] = Math.max(bars[p], values[i]);
  }
  pen.fillStyle = theme.accent;
  pen.globalAlpha = 0.75;
  pen.beginPath();
  for (let p = 0; p < bars.length; p++) {
    const tall = (bars[p] / (most || 1)) * ((upright ? box.height : box.width) - 2);
    if (tall <= 0) continue;
    if (upright) pen.rect(box.x + p, box.y + box.height - tall, 1, tall);
    else pen.rect(box.x, box.y + p, tall, 1);
  }
  pen.fill();
  pen.globalAlpha = 1;
  pen.strokeStyle = theme.line;
  pen.strokeRect(box.x - 0.5, box.y - 0.5, box.width + 1, box.height + 1);
  return most;
}

/** The bin of a curve at a share of the tokens. */
export const valueAt = ({ values, count }: Curve, at: number): number => values[Math.min(values.length - 1, Math.max(0, Math.floor(at * count)))];

/** Indices of the tokens that contain a text, ignoring case; at most as many as can be marked. */
export function search(tokens: string[], text: string, most = 2000): number[] {
  const wanted = text.trim().toLowerCase();
  const found: number[] = [];
  if (!wanted) return found;
  for (let i = 0; i < tokens.length && found.length < most; i++) if (tokens[i].toLowerCase().includes(wanted)) found.push(i);
  return found;
}
