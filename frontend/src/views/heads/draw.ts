// One layer's heads: centers, contours of 50 % and 90 % of their weight, and the convolution behind them.

import type { Draw, Size } from "../../core/canvas";
import { css } from "../../core/color";
import type { Pen } from "../../core/pen";
import type { Theme } from "../../core/theme";
import { fitted } from "../../maps/atlas";
import { sizeText } from "../../maps/place";
import { type Head, type Moments, principalAxes, reach, sharpness } from "./moments";
import { type Range, shade } from "./range";

export interface PanelState {
  moments: Moments;
  layer: number;
  title: string;
  /** Whether the title names the grid, because other layers have different ones. */
  sized: boolean;
  time: number;
  range: Range;
  /** Size of the convolution kernel drawn behind the heads; 0 for none. */
  kernel: number;
  trails: boolean;
  /** The selected head, or the one under the pointer. */
  active: number | null;
  locked: boolean;
  /** A color for each head, instead of that of its sharpness. */
  colors?: string[];
}

const TITLE = 24;

export interface Plane {
  x: (column: number) => number;
  y: (row: number) => number;
  unit: number;
}

export function plane(range: Range, size: Size, axes: 1 | 2, heads: number): Plane {
  const [width, height] = [size.width - 2, size.height - TITLE - 2];
  if (axes === 1) {
    const unit = width / (2 * range.columns);
    const tall = height / Math.max(1, heads);
    return { unit, x: (column) => 1 + width / 2 + column * unit, y: (head) => TITLE + (head + 0.5) * tall };
  }
  const unit = Math.min(width / (2 * range.columns), height / (2 * range.rows));
  return { unit, x: (column) => 1 + width / 2 + column * unit, y: (row) => TITLE + height / 2 + row * unit };
}

export const panelHeight = (range: Range, axes: 1 | 2, heads: number) => (width: number): number =>
  axes === 1 ? TITLE + 2 + Math.max(60, 22 * heads) : TITLE + 2 + Math.min(620, (width * range.rows) / range.columns);

export function drawPanel(state: PanelState): Draw {
  return (pen, size, theme) => {
    const { moments, layer: at } = state;
    const layer = moments.layers[at];
    const p = plane(state.range, size, layer.axes, layer.heads);
    pen.fillStyle = theme.ink;
    pen.font = `600 12px ${theme.font}`;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    const title = fitted(pen, state.title, size.width - 4);
    pen.fillText(title, 2, 10);
    if (state.sized && layer.grid) {
      const left = 2 + pen.measureText(title).width + 8;
      pen.font = `12px ${theme.font}`;
      pen.fillStyle = theme.muted;
      const [short, long] = [sizeText(layer.grid), `${sizeText(layer.grid)} tokens`];
      pen.fillText(pen.measureText(long).width <= size.width - left - 2 ? long : short, left, 10);
    }
    pen.save();
    pen.beginPath();
    pen.rect(1, TITLE, size.width - 2, size.height - TITLE - 1);
    pen.clip();
    pen.fillStyle = theme.surface;
    pen.fillRect(0, TITLE, size.width, size.height);
    if (layer.axes === 2) drawPlane(pen, state, p, size, theme);
    else drawLine(pen, state, p, size, theme);
    pen.restore();
    pen.strokeStyle = theme.line;
    pen.lineWidth = 1;
    pen.strokeRect(1.5, TITLE + 0.5, size.width - 3, size.height - TITLE - 2);
  };
}

/** The color of a head that is not active. */
const ownColor = (state: PanelState, head: Head, h: number, axes: 1 | 2, theme: Theme): string => state.colors?.[h] ?? shadeOf(head, axes, state.range, theme);

export const shadeOf = (head: Head, axes: 1 | 2, range: Range, theme: Theme): string => css(theme.order(shade(sharpness(head, axes), range)));

function drawPlane(pen: Pen, state: PanelState, p: Plane, size: Size, theme: Theme) {
  const { moments, layer: at, time, range } = state;
  const layer = moments.layers[at];
  behind(pen, state, p, size, theme);
  const heads = Array.from({ length: layer.heads }, (_, h) => moments.at(at, h, time));
  if (state.trails) heads.forEach((_, h) => trail(pen, state, h, p, theme, false));
  if (state.active !== null) trail(pen, state, state.active, p, theme, true);
  heads.forEach((head, h) => {
    const on = state.active === h;
    const color = on ? (state.locked ? theme.accent : theme.hover) : ownColor(state, head, h, 2, theme);
    const faded = state.active !== null && !on;
    const { first, second, angle } = principalAxes(head);
    for (const mass of [0.9, 0.5]) {
      const [a, b] = [reach(first, mass, 2), reach(second, mass, 2)];
      if (a === null || b === null) continue; // sharpness not positive: a center, but no contour
      pen.beginPath();
      pen.ellipse(p.x(head.column), p.y(head.row), Math.min(1e4, a * p.unit), Math.min(1e4, b * p.unit), angle, 0, 2 * Math.PI);
      if (mass === 0.5 && Math.max(a, b) < 2 * Math.max(range.rows, range.columns)) {
        pen.globalAlpha = faded ? 0.06 : 0.2;
        pen.fillStyle = color;
        pen.fill();
      }
      pen.globalAlpha = faded ? 0.25 : 1;
      pen.strokeStyle = color;
      pen.lineWidth = mass === 0.5 ? 1.8 : 1;
      pen.setLineDash(mass === 0.5 ? [] : [4, 3]);
      pen.stroke();
    }
    pen.setLineDash([]);
    pen.globalAlpha = 1;
  });
  heads.forEach((head, h) => dot(pen, state, head, h, p.x(head.column), p.y(head.row), p.unit, theme));
}

function dot(pen: Pen, state: PanelState, head: Head, h: number, x: number, y: number, unit: number, theme: Theme) {
  const on = state.active === h;
  const axes = state.moments.layers[state.layer].axes;
  pen.fillStyle = on ? (state.locked ? theme.accent : theme.hover) : ownColor(state, head, h, axes, theme);
  pen.strokeStyle = theme.background;
  pen.lineWidth = 1.2;
  pen.beginPath();
  pen.arc(x, y, on ? 5.5 : Math.min(4.5, Math.max(2.6, unit * 0.1)), 0, 2 * Math.PI);
  pen.fill();
  pen.stroke();
  if (unit > 34 || on) {
    pen.fillStyle = theme.ink;
    pen.font = `${on ? 700 : 500} 11px ${theme.font}`;
    pen.textAlign = "left";
    pen.textBaseline = "bottom";
    pen.fillText(String(state.moments.number(state.layer, h)), x + 6, y - 3);
  }
}

/** Tokens around the query, the query itself, and the taps of a convolution. */
function behind(pen: Pen, state: PanelState, p: Plane, size: Size, theme: Theme) {
  const { range, kernel } = state;
  const grid = state.moments.layers[state.layer].grid;
  if (p.unit > 5) {
    pen.strokeStyle = theme.faint;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let r = -Math.ceil(range.rows * 2); r <= range.rows * 2; r++) {
      pen.moveTo(0, p.y(r - 0.5));
      pen.lineTo(size.width, p.y(r - 0.5));
    }
    for (let c = -Math.ceil(range.columns * 3); c <= range.columns * 3; c++) {
      pen.moveTo(p.x(c - 0.5), TITLE);
      pen.lineTo(p.x(c - 0.5), size.height);
    }
    pen.stroke();
  }
  if (grid) {
    pen.strokeStyle = theme.muted;
    pen.lineWidth = 1;
    const [rows, columns] = grid;
    pen.strokeRect(p.x(-Math.floor(columns / 2) - 0.5), p.y(-Math.floor(rows / 2) - 0.5), columns * p.unit, rows * p.unit);
  }
  if (kernel > 0) {
    const half = (kernel - 1) / 2;
    pen.fillStyle = theme.background;
    pen.fillRect(p.x(-half - 0.5), p.y(-half - 0.5), kernel * p.unit, kernel * p.unit);
    pen.strokeStyle = theme.line;
    pen.lineWidth = 1.2;
    for (let r = -half; r <= half; r++) for (let c = -half; c <= half; c++) pen.strokeRect(p.x(c - 0.5), p.y(r - 0.5), p.unit, p.unit);
    pen.strokeStyle = theme.muted;
    pen.lineWidth = 1.4;
    pen.strokeRect(p.x(-half - 0.5), p.y(-half - 0.5), kernel * p.unit, kernel * p.unit);
  }
  pen.strokeStyle = theme.ink;
  pen.globalAlpha = 0.45;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(p.x(0) - 5, p.y(0));
  pen.lineTo(p.x(0) + 5, p.y(0));
  pen.moveTo(p.x(0), p.y(0) - 5);
  pen.lineTo(p.x(0), p.y(0) + 5);
  pen.stroke();
  pen.globalAlpha = 1;
}

/** The path of a head so far; for the active head also its future path. */
function trail(pen: Pen, state: PanelState, h: number, p: Plane, theme: Theme, whole: boolean) {
  const { moments, layer, time } = state;
  const count = moments.steps.length;
  const line = (from: number, to: number) => {
    pen.beginPath();
    const every = Math.max(1, (to - from) / 80);
    for (let t = from; t < to; t += every) {
      const head = moments.at(layer, h, t);
      if (t === from) pen.moveTo(p.x(head.column), p.y(head.row));
      else pen.lineTo(p.x(head.column), p.y(head.row));
    }
    const last = moments.at(layer, h, to);
    pen.lineTo(p.x(last.column), p.y(last.row));
    pen.stroke();
  };
  const faded = state.active !== null && state.active !== h;
  pen.strokeStyle = whole ? (state.locked ? theme.accent : theme.hover) : theme.muted;
  pen.globalAlpha = whole ? 1 : faded ? 0.15 : 0.5;
  pen.lineWidth = whole ? 2 : 1;
  if (time > 0) line(0, time);
  if (whole && time < count - 1) {
    pen.globalAlpha = 0.5;
    pen.setLineDash([2, 3]);
    line(time, count - 1);
    pen.setLineDash([]);
  }
  if (whole) {
    const start = moments.at(layer, h, 0);
    pen.fillStyle = theme.background;
    pen.globalAlpha = 1;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.arc(p.x(start.column), p.y(start.row), 3.5, 0, 2 * Math.PI);
    pen.fill();
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

/** Heads along one axis: a row each. */
function drawLine(pen: Pen, state: PanelState, p: Plane, size: Size, theme: Theme) {
  const { moments, layer: at, time, range, kernel } = state;
  const layer = moments.layers[at];
  pen.strokeStyle = theme.faint;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let c = -Math.ceil(range.columns); p.unit > 4 && c <= range.columns; c++) {
    pen.moveTo(p.x(c - 0.5), TITLE);
    pen.lineTo(p.x(c - 0.5), size.height);
  }
  pen.stroke();
  if (kernel > 0) {
    const half = (kernel - 1) / 2;
    pen.fillStyle = theme.background;
    pen.fillRect(p.x(-half - 0.5), TITLE, kernel * p.unit, size.height);
    pen.strokeStyle = theme.line;
    for (let c = -half; c <= half; c++) pen.strokeRect(p.x(c - 0.5), TITLE, p.unit, size.height);
  }
  pen.strokeStyle = theme.muted;
  pen.beginPath();
  pen.moveTo(p.x(0), TITLE);
  pen.lineTo(p.x(0), size.height);
  pen.stroke();
  for (let h = 0; h < layer.heads; h++) {
    const head = moments.at(at, h, time);
    const on = state.active === h;
    const y = p.y(h);
    pen.strokeStyle = on ? (state.locked ? theme.accent : theme.hover) : ownColor(state, head, h, 1, theme);
    pen.globalAlpha = state.active !== null && !on ? 0.35 : 1;
    for (const [mass, width] of [[0.9, 1.6], [0.5, 6]]) {
      const far = reach(head.cc, mass, 1);
      if (far === null) continue;
      pen.lineWidth = width;
      pen.beginPath();
      pen.moveTo(p.x(head.column - far), y);
      pen.lineTo(p.x(head.column + far), y);
      pen.stroke();
    }
    if (state.trails || on) {
      const start = moments.at(at, h, 0);
      pen.fillStyle = theme.background;
      pen.lineWidth = 1.4;
      pen.setLineDash([2, 2]);
      pen.beginPath();
      pen.moveTo(p.x(start.column), y);
      pen.lineTo(p.x(head.column), y);
      pen.stroke();
      pen.setLineDash([]);
      pen.beginPath();
      pen.arc(p.x(start.column), y, 3, 0, 2 * Math.PI);
      pen.fill();
      pen.stroke();
    }
    pen.globalAlpha = 1;
    dot(pen, state, head, h, p.x(head.column), y, 0, theme);
  }
}

/** The head whose center is nearest to a point; null if none is near. */
export function headAt(state: PanelState, x: number, y: number, size: Size): number | null {
  const { moments, layer: at } = state;
  const layer = moments.layers[at];
  const p = plane(state.range, size, layer.axes, layer.heads);
  let [best, distance] = [-1, layer.axes === 1 ? 14 : 34];
  for (let h = 0; h < layer.heads; h++) {
    const head = moments.at(at, h, state.time);
    const away = layer.axes === 1 ? Math.abs(p.y(h) - y) : Math.hypot(p.x(head.column) - x, p.y(head.row) - y);
    if (away < distance) [best, distance] = [h, away];
  }
  return best < 0 ? null : best;
}
