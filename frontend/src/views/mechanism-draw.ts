// The pictures of the mechanism: keys and their scores, weights, values and the output among them.

import type { Draw, Size } from "../core/canvas";
import { categorical, css, luminance } from "../core/color";
import type { Pen } from "../core/pen";
import type { Mode, Theme } from "../core/theme";
import { betaAt, type Attended, type Matrix, mix, positionOf, softargmax } from "./maths/attention";
import { brief, percent, subscript, vector } from "./maths/words";

/** The current state of the view. */
export interface Scene {
  query: Matrix;
  key: Matrix;
  value: Matrix;
  beta: number;
  /** The query whose attention is shown. */
  asks: number;
  soft: Attended;
  hard: Attended;
  /** The key that is picked, or −1. */
  picked: number;
}

// The same hues, light enough to be read on a dark page.
const LIGHTER = ["#4fb0e8", "#f2b632", "#2fc69b", "#e6a0c7", "#a5daf7", "#ff9457"];

export function colorOf(key: number, mode: Mode = "light"): string {
  const colors = mode === "dark" ? LIGHTER : categorical.slice(0, 6);
  return colors[key % colors.length];
}

/** A text color that is readable on a background color. */
function onColor(hex: string): string {
  const rgb = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)) as [number, number, number];
  return luminance(rgb) > 0.3 ? "#111" : "#fff";
}

/** The part of the plane that contains these points and the origin, with a margin. */
export interface Extent {
  x: number;
  y: number;
  radius: number;
}

export function extentOf(points: Matrix): Extent {
  const xs = [0, ...points.map((p) => p[0])];
  const ys = [0, ...points.map((p) => p[1])];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const radius = (Math.max(right - left, high - low) / 2) * 1.25 || 1;
  return { x: (left + right) / 2, y: (low + high) / 2, radius };
}

/** Maps between the plane and the picture. */
export function frame({ x, y, radius }: Extent, { width, height }: Size) {
  const scale = Math.min(width, height) / 2 / radius;
  return {
    scale,
    to: ([px, py]: readonly number[]): [number, number] => [width / 2 + (px - x) * scale, height / 2 - (py - y) * scale],
    from: (sx: number, sy: number): [number, number] => [x + (sx - width / 2) / scale, y - (sy - height / 2) / scale],
  };
}

function backdrop(pen: Pen, size: Size, theme: Theme, extent: Extent): void {
  const { to } = frame(extent, size);
  pen.fillStyle = theme.surface;
  pen.fillRect(0, 0, size.width, size.height);
  const step = niceStep(extent.radius / 2);
  pen.lineWidth = 1;
  pen.strokeStyle = theme.faint;
  const reach = (extent.radius * Math.max(size.width, size.height)) / Math.min(size.width, size.height);
  for (let at = Math.ceil((extent.x - reach) / step) * step; at <= extent.x + reach; at += step) line(pen, [to([at, 0])[0], 0], [to([at, 0])[0], size.height]);
  for (let at = Math.ceil((extent.y - reach) / step) * step; at <= extent.y + reach; at += step) line(pen, [0, to([0, at])[1]], [size.width, to([0, at])[1]]);
  pen.strokeStyle = theme.line;
  const [ox, oy] = to([0, 0]);
  line(pen, [ox, 0], [ox, size.height]);
  line(pen, [0, oy], [size.width, oy]);
}

function niceStep(x: number): number {
  const base = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 5, 10].map((m) => m * base).find((step) => step >= x / 2) ?? base;
}

function line(pen: Pen, a: readonly number[], b: readonly number[]): void {
  pen.beginPath();
  pen.moveTo(a[0], a[1]);
  pen.lineTo(b[0], b[1]);
  pen.stroke();
}

function arrow(pen: Pen, from: readonly number[], to: readonly number[], color: string, thickness: number): void {
  const length = Math.hypot(to[0] - from[0], to[1] - from[1]);
  if (length < 2) return;
  const [ux, uy] = [(to[0] - from[0]) / length, (to[1] - from[1]) / length];
  const head = Math.min(length, 7 + 1.6 * thickness);
  pen.strokeStyle = pen.fillStyle = color;
  pen.lineWidth = thickness;
  pen.lineCap = "round";
  line(pen, from, [to[0] - ux * head * 0.8, to[1] - uy * head * 0.8]);
  pen.beginPath();
  pen.moveTo(to[0], to[1]);
  pen.lineTo(to[0] - ux * head - uy * head * 0.45, to[1] - uy * head + ux * head * 0.45);
  pen.lineTo(to[0] - ux * head + uy * head * 0.45, to[1] - uy * head - ux * head * 0.45);
  pen.closePath();
  pen.fill();
}

function dot(pen: Pen, [x, y]: readonly number[], radius: number, fill: string | null, stroke: string | null = null, width = 2): void {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  if (fill) {
    pen.fillStyle = fill;
    pen.fill();
  }
  if (stroke) {
    pen.strokeStyle = stroke;
    pen.lineWidth = width;
    pen.stroke();
  }
}

function label(pen: Pen, text: string, [x, y]: readonly number[], color: string, theme: Theme, size: Size, side = 1, away = 12): void {
  pen.font = `600 13px ${theme.font}`;
  const left = x > size.width - 40 || (side < 0 && x > 40);
  pen.textAlign = left ? "right" : "left";
  pen.textBaseline = "middle";
  const at = x + (left ? -away : away);
  pen.fillStyle = color;
  pen.fillText(text, at, Math.min(size.height - 9, Math.max(9, y - 9)));
}

/** The query and the keys: a key's score is its length along the query, times the query's length. */
export function drawKeys(scene: Scene, extent: Extent): Draw {
  return (pen, size, theme) => {
    backdrop(pen, size, theme, extent);
    const { to } = frame(extent, size);
    const origin = to([0, 0]);
    const q = scene.query[scene.asks];
    const square = q[0] * q[0] + q[1] * q[1];
    const weights = scene.soft.weights[scene.asks];
    if (square > 0) {
      const far = (10 * extent.radius) / Math.sqrt(square);
      pen.strokeStyle = theme.muted;
      pen.lineWidth = 1;
      pen.setLineDash([2, 5]);
      line(pen, to([-far * q[0], -far * q[1]]), to([far * q[0], far * q[1]]));
      scene.key.forEach((k, j) => {
        const share = scene.soft.scores[scene.asks][j] / square;
        const foot = to([share * q[0], share * q[1]]);
        pen.setLineDash([4, 4]);
        pen.strokeStyle = colorOf(j, theme.mode);
        pen.lineWidth = 1.25;
        line(pen, to(k), foot);
        pen.setLineDash([]);
        dot(pen, foot, 3.5, colorOf(j, theme.mode));
      });
      pen.setLineDash([]);
    }
    arrow(pen, origin, to(q), theme.ink, 3);
    dot(pen, to(q), 4.5, theme.ink, theme.background, 1.5);
    label(pen, `q${subscript(scene.asks + 1)}`, to(q), theme.ink, theme, size);
    scene.key.forEach((k, j) => {
      arrow(pen, origin, to(k), colorOf(j, theme.mode), 1.5 + 4 * weights[j]);
      dot(pen, to(k), 6, colorOf(j, theme.mode), scene.picked === j ? theme.ink : theme.background, scene.picked === j ? 2.5 : 1.5);
      // On the key's side of the query, so that the labels do not overlap.
      const side = q[0] * k[1] - q[1] * k[0] > 0 === q[1] >= 0 ? -1 : 1;
      label(pen, `k${subscript(j + 1)}`, to(k), colorOf(j, theme.mode), theme, size, side);
    });
  };
}

/** The path of the output as β goes from 0 to ∞. */
export function outputPath(scene: Pick<Scene, "value" | "soft" | "asks">, points = 160): Matrix {
  return Array.from({ length: points + 1 }, (_, i) => mix(softargmax(scene.soft.scores[scene.asks], betaAt(i / points)), scene.value));
}

/** The values, and the output, which lies in their convex hull. */
export function drawValues(scene: Scene, extent: Extent): Draw {
  return (pen, size, theme) => {
    backdrop(pen, size, theme, extent);
    const { to } = frame(extent, size);
    const weights = scene.soft.weights[scene.asks];
    const output = to(scene.soft.output[scene.asks]);
    const hull = convexHull(scene.value).map(to);
    pen.beginPath();
    hull.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.closePath();
    pen.globalAlpha = 0.5;
    pen.fillStyle = theme.faint;
    pen.fill();
    pen.globalAlpha = 1;
    scene.value.forEach((v, j) => {
      pen.strokeStyle = colorOf(j, theme.mode);
      pen.lineWidth = 0.5 + 5 * weights[j];
      pen.globalAlpha = 0.15 + 0.6 * weights[j];
      line(pen, to(v), output);
    });
    pen.globalAlpha = 1;
    const path = outputPath(scene).map(to);
    pen.beginPath();
    path.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 1.5;
    pen.setLineDash([1, 4]);
    pen.lineCap = "round";
    pen.stroke();
    pen.setLineDash([]);
    scene.value.forEach((v, j) => {
      const radius = 4 + 11 * Math.sqrt(weights[j]);
      dot(pen, to(v), radius, colorOf(j, theme.mode), scene.picked === j ? theme.ink : null, 2.5);
      label(pen, `v${subscript(j + 1)}`, to(v), colorOf(j, theme.mode), theme, size, 1, radius + 6);
    });
    dot(pen, to(scene.hard.output[scene.asks]), 10, null, theme.ink, 1.5);
    dot(pen, output, 7, theme.accent, theme.background, 2);
    pen.font = `12px ${theme.font}`;
    pen.fillStyle = theme.muted;
    pen.textAlign = "left";
    pen.textBaseline = "alphabetic";
    pen.fillText("● soft   ○ hard   ⋯ from β = 0 to ∞", 10, size.height - 10);
  };
}

function convexHull(points: Matrix): Matrix {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const half = (list: Matrix) => {
    const out: Matrix = [];
    for (const p of list) {
      while (out.length > 1 && cross(out[out.length - 2], out[out.length - 1], p) <= 0) out.pop();
      out.push(p);
    }
    return out.slice(0, -1);
  };
  return points.length < 3 ? sorted : [...half(sorted), ...half(sorted.reverse())];
}

const cross = (a: number[], b: number[], c: number[]) => (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]);

export const ROW = 46;
export const flowHeight = (keys: number) => 30 + ROW * keys + 62;

/** Scores → weights → output, with a row for each key. */
export function drawFlow(scene: Scene): Draw {
  return (pen, size, theme) => {
    const { asks, soft, hard } = scene;
    const [scores, weights] = [soft.scores[asks], soft.weights[asks]];
    const largest = Math.max(...scores.map(Math.abs)) || 1;
    const left = 34;
    const middle = left + (size.width - left) * 0.44;
    const [scoreWidth, weightWidth] = [middle - left - 26, size.width - middle - 8];
    const zero = left + (scores.some((s) => s < 0) ? scoreWidth / 2 : 0);
    const span = zero === left ? scoreWidth : scoreWidth / 2;
    text(pen, `score  q${subscript(asks + 1)}·k`, left, 12, theme.muted, theme);
    text(pen, `weight  softmax(β · score)`, middle, 12, theme.muted, theme);
    scores.forEach((score, j) => {
      const top = 26 + ROW * j;
      const color = colorOf(j, theme.mode);
      text(pen, `k${subscript(j + 1)}`, 6, top + 17, color, theme, true);
      pen.fillStyle = theme.faint;
      pen.fillRect(left, top + 6, scoreWidth, 8);
      pen.fillRect(middle, top + 6, weightWidth, 20);
      pen.fillStyle = color;
      pen.fillRect(Math.min(zero, zero + (span * score) / largest), top + 6, Math.abs((span * score) / largest), 8);
      pen.fillRect(middle, top + 6, weightWidth * weights[j], 20);
      pen.strokeStyle = theme.ink;
      pen.lineWidth = 1.5;
      pen.strokeRect(middle, top + 5, Math.max(0.5, weightWidth * hard.weights[asks][j]), 22);
      text(pen, brief(score), left, top + 27, theme.ink, theme);
      const said = percent(weights[j]);
      pen.font = `600 13px ${theme.font}`;
      const inside = weightWidth * weights[j] > pen.measureText(said).width + 14;
      text(pen, said, inside ? middle + 7 : middle + weightWidth * weights[j] + 7, top + 16, inside ? onColor(color) : theme.ink, theme, true);
      text(pen, "→", middle - 20, top + 16, theme.muted, theme);
    });
    const bottom = 30 + ROW * scores.length + 14;
    const terms = weights.map((w, j) => `${w < 5e-4 ? 0 : brief(w, 2)}·v${subscript(j + 1)}`).join(" + ");
    pen.font = `12px ${theme.font}`;
    const fits = pen.measureText(`output  ${terms}`).width < size.width - left;
    text(pen, `output  ${fits ? terms : "Σ weight · value"}`, left, bottom, theme.muted, theme);
    text(pen, `= ${vector(soft.output[asks])}`, left, bottom + 20, theme.accent, theme, true);
    const room = left + Math.max(130, pen.measureText(`= ${vector(soft.output[asks])}`).width + 24);
    text(pen, `hard (□): ${vector(hard.output[asks])}`, room, bottom + 20, theme.ink, theme);
  };
}

function text(pen: Pen, said: string, x: number, y: number, color: string, theme: Theme, bold = false): void {
  pen.font = `${bold ? "600 13px" : "12px"} ${theme.font}`;
  pen.fillStyle = color;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.fillText(said, x, y);
}

const MARGIN = { left: 8, right: 8, top: 8, bottom: 24 };

/** The weights of the query's keys, for every β. */
export function drawSweep(scene: Scene): Draw {
  return (pen, { width, height }, theme) => {
    const [w, h] = [width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom];
    const steps = Math.max(2, Math.floor(w / 2));
    const scores = scene.soft.scores[scene.asks];
    const columns = Array.from({ length: steps + 1 }, (_, i) => softargmax(scores, betaAt(i / steps)));
    const x = (i: number) => MARGIN.left + (w * i) / steps;
    let below = columns.map(() => 0);
    scores.forEach((_, j) => {
      const above = below.map((b, i) => b + columns[i][j]);
      pen.beginPath();
      above.forEach((a, i) => (i ? pen.lineTo(x(i), MARGIN.top + h * (1 - a)) : pen.moveTo(x(i), MARGIN.top + h * (1 - a))));
      for (let i = steps; i >= 0; i--) pen.lineTo(x(i), MARGIN.top + h * (1 - below[i]));
      pen.closePath();
      pen.globalAlpha = 0.85;
      pen.fillStyle = colorOf(j, theme.mode);
      pen.fill();
      pen.globalAlpha = 1;
      below = above;
    });
    for (const beta of [0, 0.001, 0.01, 0.1, 1, 10, Infinity]) {
      const at = MARGIN.left + w * positionOf(beta);
      pen.font = `12px ${theme.font}`;
      pen.textAlign = beta === 0 ? "left" : beta === Infinity ? "right" : "center";
      pen.textBaseline = "alphabetic";
      pen.fillStyle = theme.muted;
      pen.fillText(beta === 0 ? "β = 0" : brief(beta), at, height - 6);
    }
    const at = MARGIN.left + w * positionOf(scene.beta);
    pen.strokeStyle = theme.background;
    pen.lineWidth = 5;
    line(pen, [at, MARGIN.top], [at, MARGIN.top + h]);
    pen.strokeStyle = theme.ink;
    pen.lineWidth = 2;
    line(pen, [at, MARGIN.top - 4], [at, MARGIN.top + h + 4]);
  };
}

export function sweepBeta(x: number, width: number): number {
  return betaAt(Math.min(1, Math.max(0, (x - MARGIN.left) / (width - MARGIN.left - MARGIN.right))));
}

/** All queries at once: rows of weights. */
export function drawMap(scene: Scene): Draw {
  return (pen, size, theme) => {
    const { queries, cell } = mapCells(scene, size);
    const [left, top] = [34, 26];
    scene.key.forEach((_, j) => {
      pen.font = `600 13px ${theme.font}`;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.fillStyle = colorOf(j, theme.mode);
      pen.fillText(`k${subscript(j + 1)}`, left + cell.width * (j + 0.5), 13);
    });
    for (let i = 0; i < queries; i++) {
      text(pen, `q${subscript(i + 1)}`, 6, top + cell.height * (i + 0.5), i === scene.asks ? theme.accent : theme.ink, theme, true);
      scene.soft.weights[i].forEach((weight, j) => {
        pen.fillStyle = css(theme.heat(weight));
        pen.fillRect(left + cell.width * j + 1, top + cell.height * i + 1, cell.width - 2, cell.height - 2);
        pen.font = `12px ${theme.font}`;
        pen.textAlign = "center";
        pen.textBaseline = "middle";
        pen.fillStyle = weight > 0.5 ? (theme.mode === "light" ? "#fff" : "#111") : theme.ink;
        pen.fillText(percent(weight), left + cell.width * (j + 0.5), top + cell.height * (i + 0.5));
      });
    }
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 2;
    pen.strokeRect(left, top + cell.height * scene.asks, cell.width * scene.key.length, cell.height);
  };
}

export function mapCells(scene: Scene, size: Size) {
  const queries = scene.query.length;
  return { queries, cell: { width: (size.width - 34 - 2) / scene.key.length, height: (size.height - 28) / queries } };
}

export const mapHeight = (queries: number) => 28 + 34 * queries;
export const queryAt = (y: number, queries: number) => Math.min(queries - 1, Math.max(0, Math.floor((y - 26) / 34)));
