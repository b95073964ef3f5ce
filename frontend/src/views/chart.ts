// Training and validation curves against steps, with other runs for comparison.

import { type Draw, type Size } from "../core/canvas";
import type { Pen } from "../core/pen";
import type { Theme } from "../core/theme";
import { lineOf } from "../maps/legend";
import { brief, percent } from "./maths/words";

/** The metrics of one step, by name. */
export type Line = Record<string, number | null>;

interface Series {
  steps: number[];
  values: number[];
}

export function series(lines: Line[], name: string): Series {
  const found = lines.filter((line) => typeof line[name] === "number" && typeof line.step === "number");
  return { steps: found.map((line) => line.step as number), values: found.map((line) => line[name] as number) };
}

/** An exponential moving average over about 1/(1 − memory) values. */
export function smooth(values: number[], memory: number): number[] {
  let [total, weight] = [0, 0];
  return values.map((value) => {
    total = memory * total + (1 - memory) * value;
    weight = memory * weight + (1 - memory);
    return total / weight;
  });
}

const MARGIN = { left: 50, right: 14, top: 26, bottom: 30 };

export interface ChartProps {
  title: string;
  lines: Line[];
  name: string;
  memory: number;
  log: boolean;
  share?: boolean;
  /** Other runs in the same picture. */
  others: Overlaid[];
}

/** Another run in the chart. */
export interface Overlaid {
  id: string;
  title: string;
  lines: Line[];
}

/** The value at a step: the first at or after it, else the last. */
export function valueAt({ steps }: Series, values: number[], step: number | null): number | undefined {
  if (step === null) return values.at(-1);
  const after = steps.findIndex((one) => one >= step);
  return after < 0 ? values.at(-1) : values[after];
}

export function chart({ title, lines, name, memory, log, share, others }: ChartProps, over: number | null): { draw: Draw; stepAt: (x: number, size: Size) => number | null; tip: () => string | null; last: number } {
  const train = series(lines, name);
  const held = series(lines, `validation_${name}`);
  const soft = smooth(train.values, memory);
  const beside = others.map((other, i) => {
    const [trained, kept] = [series(other.lines, name), series(other.lines, `validation_${name}`)];
    return { ...other, head: i + 2, trained, soft: smooth(trained.values, memory), kept };
  });
  const last = Math.max(1, ...[train, held, ...beside.flatMap(({ trained, kept }) => [trained, kept])].flatMap((one) => one.steps.slice(-1)));
  const all = [...soft, ...held.values, ...beside.flatMap((one) => [...one.soft, ...one.kept.values])].filter((v) => Number.isFinite(v) && (!log || v > 0));
  const pad = log ? 0 : 0.06 * (Math.max(...all, 0) - Math.min(...all, share ? 0 : Infinity));
  const lowest = share ? 0 : all.length ? Math.min(...all) - pad : 0;
  const highest = share ? 1 : all.length ? Math.max(...all) + pad : 1;
  const scale = (v: number) => (log ? Math.log10(Math.max(1e-12, v)) : v);
  const [low, high] = [scale(lowest), scale(highest) > scale(lowest) ? scale(highest) : scale(lowest) + 1];
  const width = (size: Size) => size.width - MARGIN.left - MARGIN.right;
  const x = (step: number, size: Size) => MARGIN.left + (width(size) * step) / last;
  const y = (value: number, size: Size) =>
    MARGIN.top + (size.height - MARGIN.top - MARGIN.bottom) * (1 - Math.min(1.02, Math.max(-0.02, (scale(value) - low) / (high - low))));
  const say = (v: number) => (share ? percent(v) : brief(v, 3));
  const draw: Draw = (pen, size, theme) => {
    text(pen, title, MARGIN.left, 12, theme.ink, theme, "left", true);
    axes(pen, size, theme, { low, high, log, last, say, x, y });
    if (!train.steps.length && !held.steps.length) text(pen, "no data yet", size.width / 2, size.height / 2, theme.muted, theme, "center");
    pen.lineWidth = 1;
    pen.strokeStyle = theme.hover;
    pen.globalAlpha = 0.22;
    stroke(pen, train.steps, train.values, size, x, y);
    pen.globalAlpha = 1;
    pen.lineWidth = 2;
    stroke(pen, train.steps, soft, size, x, y);
    for (const one of beside) {
      const { color, dash } = lineOf(one.head, theme);
      pen.strokeStyle = color;
      pen.setLineDash(dash);
      pen.lineWidth = 1.5;
      pen.globalAlpha = one.kept.steps.length ? 0.45 : 1;
      stroke(pen, one.trained.steps, one.soft, size, x, y);
      pen.globalAlpha = 1;
      pen.lineWidth = 2;
      stroke(pen, one.kept.steps, one.kept.values, size, x, y);
    }
    pen.setLineDash([]);
    pen.strokeStyle = pen.fillStyle = theme.accent;
    stroke(pen, held.steps, held.values, size, x, y);
    held.steps.forEach((step, i) => {
      pen.beginPath();
      pen.arc(x(step, size), y(held.values[i], size), 3, 0, 2 * Math.PI);
      pen.fill();
    });
    const right = size.width - MARGIN.right;
    const [trained, kept] = [valueAt(train, soft, over), valueAt(held, held.values, over)];
    if (kept !== undefined) text(pen, `validation ${say(kept)}`, right, 12, theme.accent, theme, "right", true);
    const room = kept === undefined ? 0 : pen.measureText(`validation ${say(kept)}`).width + 14;
    // On a narrow page the chart's title has priority over the training value.
    const begins = trained === undefined ? 0 : right - room - pen.measureText(`training ${say(trained)}`).width;
    if (trained !== undefined && begins > MARGIN.left + pen.measureText(title).width + 14) text(pen, `training ${say(trained)}`, right - room, 12, theme.hover, theme, "right", true);
    if (over !== null) {
      pen.strokeStyle = theme.muted;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(x(over, size), MARGIN.top);
      pen.lineTo(x(over, size), size.height - MARGIN.bottom);
      pen.stroke();
    }
  };
  const stepAt = (px: number, size: Size) => {
    const step = Math.round((last * (px - MARGIN.left)) / width(size));
    return step >= 0 && step <= last ? step : null;
  };
  /** Every run's value at the pointer, and by how much it differs from the first. */
  const tip = () => {
    if (over === null || !beside.length) return null;
    const own = valueAt(held, held.values, over) ?? valueAt(train, soft, over);
    const rest = beside.map((one) => {
      const value = valueAt(one.kept, one.kept.values, over) ?? valueAt(one.trained, one.soft, over);
      if (value === undefined) return `${one.title}: no data yet`;
      const apart = own === undefined ? 0 : value - own;
      return `${one.title}: ${say(value)}${own === undefined ? "" : ` (${apart < 0 ? "−" : "+"}${share ? `${(100 * Math.abs(apart)).toFixed(1)} points` : brief(Math.abs(apart), 3)})`}`;
    });
    return [`step ${over.toLocaleString("en")}`, ...(own === undefined ? [] : [`this run: ${say(own)}`]), ...rest].join("\n");
  };
  return { draw, stepAt, tip, last };
}

interface Axes {
  low: number;
  high: number;
  log: boolean;
  last: number;
  say: (v: number) => string;
  x: (step: number, size: Size) => number;
  y: (value: number, size: Size) => number;
}

function axes(pen: Pen, size: Size, theme: Theme, { low, high, log, last, say, x, y }: Axes): void {
  for (const value of ticks(low, high, log)) {
    pen.strokeStyle = theme.faint;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(MARGIN.left, y(value, size));
    pen.lineTo(size.width - MARGIN.right, y(value, size));
    pen.stroke();
    text(pen, say(value), MARGIN.left - 7, y(value, size), theme.muted, theme, "right");
  }
  const step = nice(last / Math.max(2, Math.floor(size.width / 130)));
  for (let at = 0; at <= last; at += step) {
    text(pen, at ? at.toLocaleString("en") : "step 0", x(at, size), size.height - MARGIN.bottom + 15, theme.muted, theme, "center");
  }
}

/** Four or so round values between these; `low` and `high` are exponents on a logarithmic scale. */
export function ticks(low: number, high: number, log: boolean): number[] {
  if (log) {
    const steps = [1, 2, 5].map((m) => Math.log10(m));
    const all = Array.from({ length: 60 }, (_, i) => Math.floor(low) + Math.floor(i / 3) + steps[i % 3]);
    return all.filter((at) => at >= low && at <= high).map((at) => 10 ** at);
  }
  const step = nice((high - low) / 5, 0);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}

function nice(x: number, least = 1): number {
  const base = 10 ** Math.floor(Math.log10(Math.max(least, x)));
  return [1, 2, 5, 10].map((m) => m * base).find((step) => step >= x) ?? base;
}

function stroke(pen: Pen, steps: number[], values: number[], size: Size, x: Axes["x"], y: Axes["y"]): void {
  pen.beginPath();
  steps.forEach((step, i) => (i ? pen.lineTo(x(step, size), y(values[i], size)) : pen.moveTo(x(step, size), y(values[i], size))));
  pen.stroke();
}

function text(pen: Pen, said: string, x: number, y: number, color: string, theme: Theme, align: CanvasTextAlign, bold = false): void {
  pen.font = `${bold ? "600 13px" : "11px"} ${theme.font}`;
  pen.fillStyle = color;
  pen.textAlign = align;
  pen.textBaseline = "middle";
  pen.fillText(said, x, y);
}
