// One head in detail: its map from the middle of the grid, and its history.

import { pixels, type Draw } from "../../core/canvas";
import { css, table as colorTable } from "../../core/color";
import type { Pen } from "../../core/pen";
import type { Theme } from "../../core/theme";
import { percent } from "../../maps/layer";
import { gaussianMap, type Moments, sharpness } from "./moments";

export interface InspectorState {
  moments: Moments;
  layer: number;
  head: number;
  time: number;
}

/** The grid that a head's map is drawn on: the layer's own, or a neighborhood. */
export function gridOf({ moments, layer }: { moments: Moments; layer: number }): [number, number] {
  const { grid, axes } = moments.layers[layer];
  if (axes === 1) return [1, grid ? Math.min(64, grid[0]) : 17];
  return grid ? [grid[0], grid[1]] : [11, 11];
}

export const mapHeight = (state: InspectorState) => (width: number): number => {
  const [rows, columns] = gridOf(state);
  return 24 + Math.max(18, Math.min(360, (width * rows) / columns)) + 4;
};

export function drawMap(state: InspectorState, theme: Theme): Draw {
  const grid = gridOf(state);
  const [rows, columns] = grid;
  const query: [number, number] = [Math.floor(rows / 2), Math.floor(columns / 2)];
  const weights = gaussianMap(state.moments.at(state.layer, state.head, state.time), grid, query);
  const max = weights.reduce((a, b) => Math.max(a, b), 0);
  const colors = colorTable(theme.heat);
  const image = pixels(columns, rows, (i) => colors[Math.round((255 * weights[i]) / max)]);
  return (pen, size) => {
    heading(pen, `map over ${rows > 1 ? `${rows} × ${columns}` : columns} tokens, largest weight ${percent(max)}`, theme);
    const height = size.height - 28;
    const unit = Math.min((size.width - 2) / columns, height / rows);
    const tall = rows === 1 ? height : unit;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image, 1, 24, unit * columns, tall * rows);
    pen.strokeStyle = theme.line;
    pen.lineWidth = 1;
    pen.strokeRect(0.5, 23.5, unit * columns + 1, tall * rows + 1);
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 2;
    pen.strokeRect(1 + query[1] * unit, 24 + query[0] * tall, unit, tall);
  };
}

interface Line {
  name: string;
  color: string;
  dash: number[];
  value: (time: number) => number;
}

export const historyHeight = 190;

/** Center and sharpness over the steps. */
export function drawHistory(state: InspectorState, theme: Theme): Draw {
  const { moments, layer, head } = state;
  const { axes } = moments.layers[layer];
  const at = (time: number) => moments.at(layer, head, time);
  const centers: Line[] =
    axes === 2
      ? [
          { name: "row offset", color: theme.hover, dash: [], value: (t) => at(t).row },
          { name: "column offset", color: theme.accent, dash: [5, 3], value: (t) => at(t).column },
        ]
      : [{ name: "offset", color: theme.hover, dash: [], value: (t) => at(t).column }];
  const sharp: Line[] = [{ name: "sharpness (log)", color: theme.ink, dash: [], value: (t) => Math.log(sharpness(at(t), axes)) }];
  return (pen, size) => {
    const half = (size.height - 8) / 2;
    chart(pen, centers, state, 0, half, size.width, theme, (x) => x.toFixed(1));
    chart(pen, sharp, state, half + 8, half, size.width, theme, (x) => Math.exp(x).toPrecision(2));
  };
}

function chart(pen: Pen, lines: Line[], state: InspectorState, top: number, height: number, width: number, theme: Theme, text: (x: number) => string) {
  const count = state.moments.steps.length;
  const every = Math.max(1, (count - 1) / 120);
  const times: number[] = [];
  for (let t = 0; t < count - 1; t += every) times.push(t);
  times.push(count - 1);
  const values = lines.map((line) => times.map(line.value));
  const finite = values.flat().filter(Number.isFinite);
  let [low, high] = [Math.min(...finite), Math.max(...finite)];
  if (!(high - low > 1e-6)) [low, high] = finite.length ? [low - 0.5, high + 0.5] : [0, 1];
  const [left, right, upper, lower] = [36, width - 6, top + 20, top + height - 4];
  const x = (t: number) => left + ((right - left) * t) / Math.max(1, count - 1);
  const y = (value: number) => lower - ((lower - upper) * (value - low)) / (high - low);
  pen.textBaseline = "middle";
  pen.font = `11px ${theme.font}`;
  let at = left;
  for (const line of lines) {
    pen.fillStyle = line.color;
    pen.textAlign = "left";
    pen.fillText(line.name, at, top + 9);
    at += pen.measureText(line.name).width + 14;
  }
  pen.strokeStyle = theme.faint;
  pen.lineWidth = 1;
  pen.strokeRect(left, upper, right - left, lower - upper);
  pen.fillStyle = theme.muted;
  pen.font = `10px ${theme.font}`;
  pen.textAlign = "right";
  pen.fillText(text(high), left - 4, upper + 5);
  pen.fillText(text(low), left - 4, lower - 5);
  lines.forEach((line, i) => {
    pen.strokeStyle = line.color;
    pen.lineWidth = 1.6;
    pen.setLineDash(line.dash);
    pen.beginPath();
    let drawing = false;
    times.forEach((t, j) => {
      const value = values[i][j];
      if (!Number.isFinite(value)) return void (drawing = false);
      if (drawing) pen.lineTo(x(t), y(value));
      else pen.moveTo(x(t), y(value));
      drawing = true;
    });
    pen.stroke();
  });
  pen.setLineDash([]);
  pen.strokeStyle = theme.muted;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(x(state.time), upper);
  pen.lineTo(x(state.time), lower);
  pen.stroke();
  for (const line of lines) {
    const value = line.value(state.time);
    if (!Number.isFinite(value)) continue;
    pen.fillStyle = line.color;
    pen.beginPath();
    pen.arc(x(state.time), y(value), 3, 0, 2 * Math.PI);
    pen.fill();
  }
}

function heading(pen: Pen, text: string, theme: Theme) {
  pen.fillStyle = theme.muted;
  pen.font = `11px ${theme.font}`;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.fillText(text, 1, 10);
}

/** Validation accuracy along the slider; the marker is the current step. */
export function drawCurve(curve: [number, number][], moments: Moments, time: number): Draw {
  return (pen, size, theme) => {
    const first = moments.steps[0];
    const last = moments.steps[moments.steps.length - 1];
    const x = (step: number) => 8 + ((size.width - 16) * (step - first)) / Math.max(1, last - first);
    const best = Math.max(...curve.map(([, value]) => value));
    const y = (value: number) => size.height - 5 - (size.height - 20) * (value / (best || 1));
    pen.strokeStyle = theme.faint;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(8, y(0));
    pen.lineTo(size.width - 8, y(0));
    pen.stroke();
    // The run may have been evaluated before the first recorded positions of its heads.
    pen.save();
    pen.beginPath();
    pen.rect(4, 0, size.width - 8, size.height);
    pen.clip();
    pen.strokeStyle = theme.hover;
    pen.lineWidth = 1.8;
    pen.beginPath();
    curve.forEach(([step, value], i) => (i ? pen.lineTo(x(step), y(value)) : pen.moveTo(x(step), y(value))));
    pen.stroke();
    pen.fillStyle = theme.hover;
    for (const [step, value] of curve) {
      pen.beginPath();
      pen.arc(x(step), y(value), 2.4, 0, 2 * Math.PI);
      pen.fill();
    }
    pen.restore();
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 1.8;
    pen.beginPath();
    pen.moveTo(x(moments.step(time)), 2);
    pen.lineTo(x(moments.step(time)), size.height - 2);
    pen.stroke();
    pen.fillStyle = theme.muted;
    pen.font = `10px ${theme.font}`;
    pen.textBaseline = "top";
    pen.textAlign = "left";
    pen.fillText(`validation accuracy, best ${percent(best)}`, 8, 1);
  };
}

/** The color scale of the sharpness. */
export function drawLegend(low: number, high: number): Draw {
  return (pen, size, theme) => {
    const width = Math.min(220, size.width - 8);
    for (let i = 0; i < 48; i++) {
      pen.fillStyle = css(theme.order(i / 47));
      pen.fillRect((i * width) / 48, 14, width / 48 + 0.6, 9);
    }
    pen.fillStyle = theme.muted;
    pen.font = `10px ${theme.font}`;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    pen.fillText(`sharpness ${low.toPrecision(2)}`, 0, 6);
    pen.textAlign = "right";
    pen.fillText(high.toPrecision(2), width, 6);
  };
}
