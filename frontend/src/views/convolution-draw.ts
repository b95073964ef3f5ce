// The pictures of "attention is convolution": planes, the heads' maps, and the error against its bound.

import { type Draw, pixels } from "../core/canvas";
import { table, type Ramp } from "../core/color";
import type { Pen } from "../core/pen";
import type { Theme } from "../core/theme";
import type { AxisMatrix } from "./maths/axis";
import { headMap, type Plane } from "./maths/convolution";
import { brief, power } from "./maths/words";

const gray: Ramp = (t) => [255 * t, 255 * t, 255 * t];
const GRAYS = table(gray);

/** Values from `low` to `high` in gray. */
export function grayPlane(plane: Plane, low: number, high: number): HTMLCanvasElement {
  const scale = 255 / Math.max(1e-12, high - low);
  return pixels(plane.columns, plane.rows, (i) => GRAYS[Math.min(255, Math.max(0, Math.round((plane.data[i] - low) * scale)))]);
}

/** The difference of two planes on a logarithmic scale, from 10⁻⁸ to 1 times `largest`. */
export function differencePlane(a: Plane, b: Plane, largest: number, ramp: Ramp): HTMLCanvasElement {
  const colors = table(ramp);
  return pixels(a.columns, a.rows, (i) => {
    const apart = Math.abs(a.data[i] - b.data[i]) / Math.max(1e-300, largest);
    return colors[apart > 0 ? Math.min(255, Math.max(0, Math.round(255 * (1 + Math.log10(apart) / 8)))) : 0];
  });
}

/** Draws a plane in the full size of the picture, with an optional mark on it. */
export function drawPlane(image: HTMLCanvasElement, mark: Mark | null): Draw {
  return (pen, { width, height }, theme) => {
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image, 0, 0, width, height);
    if (!mark) return;
    const [w, h] = [width / image.width, height / image.height];
    for (const { row, column, weight } of mark.targets) {
      pen.strokeStyle = theme.hover;
      pen.lineWidth = 1 + 2 * weight;
      pen.strokeRect(column * w, row * h, w, h);
    }
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 2.5;
    pen.strokeRect(mark.column * w, mark.row * h, w, h);
  };
}

export interface Mark {
  row: number;
  column: number;
  targets: { row: number; column: number; weight: number }[];
}

export const WINDOW = 13;

/** A window of the grid around a pixel, kept inside the grid if the grid is large enough. */
export function windowAround(at: number, size: number): number {
  return Math.max(0, Math.min(size - WINDOW, Math.round(at) - (WINDOW - 1) / 2));
}

/** Nine maps in the order of the kernel's taps, each scaled from 0 to its largest weight, around the query. */
export function drawHeads(axes: { rows: AxisMatrix[]; columns: AxisMatrix[] }, asks: Asks, kernel: number[][]): Draw {
  return (pen, { width, height }, theme) => {
    const taps = kernel.length;
    const gap = 6;
    const side = Math.min((width - gap * (taps - 1)) / taps, (height - gap * (taps - 1)) / taps);
    const colors = table(theme.heat);
    const largest = Math.max(...kernel.flat().map(Math.abs)) || 1;
    kernel.forEach((weights, a) =>
      weights.forEach((weight, b) => {
        const map = headMap(axes, a, b, asks.row, asks.column);
        const [top, left] = [windowAround(asks.middle[0], map.rows), windowAround(asks.middle[1], map.columns)];
        const [rows, columns] = [Math.min(WINDOW, map.rows), Math.min(WINDOW, map.columns)];
        const most = map.data.reduce((x, y) => Math.max(x, y), 0) || 1;
        const image = pixels(columns, rows, (i) => {
          const at = (top + Math.floor(i / columns)) * map.columns + left + (i % columns);
          return colors[Math.round((255 * map.data[at]) / most)];
        });
        const [x, y] = [b * (side + gap), a * (side + gap)];
        pen.globalAlpha = weight === 0 ? 0.35 : 1;
        pen.imageSmoothingEnabled = false;
        pen.drawImage(image, x, y, side, side);
        pen.globalAlpha = 1;
        const cell = side / columns;
        pen.strokeStyle = theme.accent;
        pen.lineWidth = 1.5;
        pen.strokeRect(x + (asks.middle[1] - left) * cell, y + (asks.middle[0] - top) * cell, cell, cell);
        pen.strokeStyle = weight === 0 ? theme.faint : theme.line;
        pen.lineWidth = weight === 0 ? 1 : 1 + (2 * Math.abs(weight)) / largest;
        pen.strokeRect(x, y, side, side);
        chip(pen, `× ${brief(weight, 2)}`, x + 6, y + side - 11, theme);
      }),
    );
  };
}

/** The query: an output pixel, and the image position that it corresponds to. */
export interface Asks {
  row: number;
  column: number;
  middle: [number, number];
}

function chip(pen: Pen, text: string, x: number, y: number, theme: Theme): void {
  pen.font = `600 11px ${theme.font}`;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  const width = pen.measureText(text).width;
  pen.globalAlpha = 0.85;
  pen.fillStyle = theme.background;
  pen.fillRect(x - 3, y - 8, width + 6, 16);
  pen.globalAlpha = 1;
  pen.fillStyle = theme.ink;
  pen.fillText(text, x, y);
}

export interface Curve {
  alpha: number;
  error: number;
  bound: number;
}

export const FLOOR = 1e-17;
const MARGIN = { left: 52, right: 14, top: 12, bottom: 34 };

/** The position of a sharpness in the chart, and the inverse. */
export function chartAlpha(x: number, width: number, highest: number): number {
  const inside = (x - MARGIN.left) / (width - MARGIN.left - MARGIN.right);
  return highest * Math.min(1, Math.max(0, inside));
}

/** The largest error and its proven bound against the sharpness, on a logarithmic scale. */
export function drawError(curve: Curve[], now: Curve, highest: number): Draw {
  return (pen, { width, height }, theme) => {
    const [w, h] = [width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom];
    const top = Math.ceil(Math.log10(Math.max(...curve.map((c) => c.bound)))) || 1;
    const low = -16;
    const x = (alpha: number) => MARGIN.left + (w * alpha) / highest;
    const y = (value: number) => MARGIN.top + (h * (top - Math.max(low, Math.log10(Math.max(FLOOR, value))))) / (top - low);
    pen.font = `11px ${theme.font}`;
    for (let decade = low; decade <= top; decade += 4) {
      pen.strokeStyle = theme.faint;
      pen.lineWidth = 1;
      stroke(pen, [[MARGIN.left, y(10 ** decade)], [width - MARGIN.right, y(10 ** decade)]]);
      pen.fillStyle = theme.muted;
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText(decade === 0 ? "1" : power(10 ** decade, 0), MARGIN.left - 8, y(10 ** decade));
    }
    for (let alpha = 0; alpha <= highest; alpha += 10) {
      pen.textAlign = "center";
      pen.textBaseline = "top";
      pen.fillText(alpha ? String(alpha) : "α = 0", x(alpha), height - MARGIN.bottom + 8);
    }
    const under = curve.map((c): [number, number] => [x(c.alpha), y(c.bound)]);
    pen.beginPath();
    under.forEach(([px, py], i) => (i ? pen.lineTo(px, py) : pen.moveTo(px, py)));
    pen.lineTo(x(highest), y(10 ** low));
    pen.lineTo(x(0), y(10 ** low));
    pen.closePath();
    pen.globalAlpha = 0.12;
    pen.fillStyle = theme.hover;
    pen.fill();
    pen.globalAlpha = 1;
    pen.strokeStyle = theme.hover;
    pen.lineWidth = 2;
    pen.setLineDash([6, 4]);
    stroke(pen, under);
    pen.setLineDash([]);
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 2.5;
    stroke(pen, curve.map((c) => [x(c.alpha), y(c.error)]));
    pen.strokeStyle = theme.muted;
    pen.lineWidth = 1;
    stroke(pen, [[x(now.alpha), MARGIN.top], [x(now.alpha), height - MARGIN.bottom]]);
    point(pen, x(now.alpha), y(now.bound), theme.hover, theme);
    point(pen, x(now.alpha), y(now.error), theme.accent, theme);
    legend(pen, width, theme);
  };
}

function legend(pen: Pen, width: number, theme: Theme): void {
  const lines: [string, string][] = [[theme.hover, "proven bound"], [theme.accent, "largest error, measured"]];
  lines.forEach(([color, said], i) => {
    pen.fillStyle = color;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.font = `600 12px ${theme.font}`;
    pen.fillText(said, width - MARGIN.right - 6, MARGIN.top + 10 + 18 * i);
  });
}

function stroke(pen: Pen, points: readonly (readonly [number, number])[]): void {
  pen.beginPath();
  points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.stroke();
}

function point(pen: Pen, x: number, y: number, color: string, theme: Theme): void {
  pen.beginPath();
  pen.arc(x, y, 5.5, 0, 2 * Math.PI);
  pen.fillStyle = color;
  pen.fill();
  pen.strokeStyle = theme.background;
  pen.lineWidth = 2;
  pen.stroke();
}
