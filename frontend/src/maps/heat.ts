// A map as a heat map: queries down, keys across.

import { pixels, type Draw, type Size } from "../core/canvas";
import { type Pen, resolution } from "../core/pen";
import type { Theme } from "../core/theme";
import { fitted } from "./atlas";
import { colorsOf, drawLegend, type Pooling, type Region, shade, type Shading } from "./scale";
import { type Span, spanText } from "./span";
import type { Table } from "./table";

/** The visible part, in tokens. */
export interface Viewport {
  q: number;
  k: number;
  zoom: number;
}

export const whole: Viewport = { q: 0, k: 0, zoom: 1 };

export interface Cell {
  q: number;
  k: number;
}

export interface HeatState {
  table: Table;
  paint: ReturnType<typeof painter>;
  shading: Shading;
  view: Viewport;
  over: Cell | null;
  pinned: number | null;
  axes: [query: string, key: string];
  span?: Span | null;
}

export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
  /** Pixels per key and per query: the same, unless there are few of one and many of the other. */
  cellWidth: number;
  cellHeight: number;
}

/** The largest size of a token in pixels: a few words are drawn larger than many. */
const largestCell = (tokens: number) => (tokens <= 8 ? 54 : tokens <= 16 ? 46 : 38);
const TALLEST = 680;
/** A few queries over many keys are drawn at least so tall, and a few keys so wide. */
const LEAST = 96;

interface Painted {
  image: HTMLCanvasElement;
  region: Region;
  /** The weight of the last color. */
  most: number;
}

/** The visible part as an image, no finer than the screen's pixels, and its position in tokens. */
export function painter(table: Table, shading: Shading, how: Pooling, theme: Theme): (view: Viewport, place: Box, fine: number) => Painted {
  const color = colorsOf(theme, shading.signed);
  let [key, made] = ["", null as Painted | null];
  return (view, place, fine) => {
    const [tall, wide] = [place.height * fine, place.width * fine];
    const now = [view.q, view.k, view.zoom, tall, wide].join(" ");
    if (made && key === now) return made;
    const span = (start: number, count: number): [number, number] => {
      const first = Math.max(0, Math.floor(start));
      return [first, Math.max(1, Math.min(count, Math.ceil(start + count / view.zoom)) - first)];
    };
    const [row, rows] = span(view.q, table.queries.length);
    const [column, columns] = span(view.k, table.keys.length);
    const region = { row, column, rows, columns };
    const part = shade(table.weights, table.keys.length, table.visible, shading, how, region, tall, wide);
    key = now;
    made = { image: pixels(part.columns, part.rows, (i) => color(part.data[i])), region, most: part.most };
    return made;
  };
}

/** Whether several weights share a pixel, at least on a phone, so that it matters how they are pooled. */
export const isPooled = (table: Table): boolean => Math.max(table.queries.length, table.keys.length) > 200;

function labelRoom(labels: string[], most: number): number {
  const longest = Math.max(2, ...labels.map((label) => label.length));
  return Math.min(most, 22 + 8 * longest);
}

export function box(table: Table, { width }: { width: number }): Box {
  const [rows, columns] = [table.queries.length || 1, table.keys.length || 1];
  const left = 18 + labelRoom(table.queries, Math.min(120, width * 0.22));
  const top = 18 + labelRoom(table.keys, 96);
  const cell = Math.min(largestCell(Math.max(rows, columns)), (width - left - 4) / columns, TALLEST / rows);
  const atLeast = (count: number, most: number) => Math.max(cell, Math.min(largestCell(count), most, LEAST / count));
  const [cellWidth, cellHeight] = [atLeast(columns, (width - left - 4) / columns), atLeast(rows, TALLEST / rows)];
  return { left, top, width: cellWidth * columns, height: cellHeight * rows, cellWidth, cellHeight };
}

export const heatHeight = (table: Table) => (width: number): number => {
  const place = box(table, { width });
  return place.top + place.height + 44;
};

/** The cell under a point; a label counts for its row or column (the other is −1). */
export function cellAt(table: Table, view: Viewport, x: number, y: number, size: Size): Cell | null {
  const place = box(table, size);
  const q = Math.floor(view.q + (y - place.top) / (place.cellHeight * view.zoom));
  const k = Math.floor(view.k + (x - place.left) / (place.cellWidth * view.zoom));
  const [inRow, inColumn] = [y >= place.top && y < place.top + place.height, x >= place.left && x < place.left + place.width];
  if (inRow && inColumn) return { q: Math.min(q, table.queries.length - 1), k: Math.min(k, table.keys.length - 1) };
  if (inRow && x < place.left) return { q, k: -1 };
  if (inColumn && y < place.top) return { q: -1, k };
  return null;
}

/** Zoom and keep a token in place. */
export function zoomed(view: Viewport, table: Table, factor: number, at: Cell): Viewport {
  const wanted = Math.min(32, Math.max(1, view.zoom * factor));
  const zoom = wanted < 1.001 ? 1 : wanted; // a slider at its end is not exact
  const move = (start: number, fixed: number) => fixed - ((fixed - start) * view.zoom) / zoom;
  return inside({ q: move(view.q, at.q), k: move(view.k, at.k), zoom }, table);
}

/** The point to zoom around: the middle of the cell under the pointer, or of what is visible. */
export const anchor = (cell: Cell | null, view: Viewport, table: Table): Cell => (cell ? { q: Math.max(0, cell.q) + 0.5, k: Math.max(0, cell.k) + 0.5 } : middle(view, table));

/** The view that a span fills. */
export function spanView(table: Table, span: Span): Viewport {
  const [[q0, q1], [k0, k1]] = [span.q ?? [0, table.queries.length - 1], span.k ?? [0, table.keys.length - 1]];
  const zoom = Math.min(32, Math.max(1, Math.min(table.queries.length / (q1 - q0 + 1), table.keys.length / (k1 - k0 + 1))));
  const start = (a: number, b: number, count: number) => (a + b + 1) / 2 - count / zoom / 2;
  return inside({ q: start(q0, q1, table.queries.length), k: start(k0, k1, table.keys.length), zoom }, table);
}

/** Moved by shares of the visible part. */
export function moved(view: Viewport, table: Table, across: number, down: number): Viewport {
  return inside({ ...view, q: view.q + (down * table.queries.length) / view.zoom, k: view.k + (across * table.keys.length) / view.zoom }, table);
}

/** Moved by a drag of so many pixels. */
export function dragged(view: Viewport, table: Table, dx: number, dy: number, size: Size): Viewport {
  const { cellWidth, cellHeight } = box(table, size);
  return inside({ ...view, q: view.q - dy / (cellHeight * view.zoom), k: view.k - dx / (cellWidth * view.zoom) }, table);
}

/** Moved just as far as a query, and a key if there is one, needs to be visible. */
export function showing(view: Viewport, table: Table, query: number, key?: number): Viewport {
  const start = (at: number, from: number, count: number) => Math.min(at, Math.max(at + 1 - count / view.zoom, from));
  const k = key === undefined ? view.k : start(key, view.k, table.keys.length);
  return inside({ ...view, q: start(query, view.q, table.queries.length), k }, table);
}

/** The middle of what is visible. */
export const middle = (view: Viewport, table: Table): Cell => ({ q: view.q + table.queries.length / view.zoom / 2, k: view.k + table.keys.length / view.zoom / 2 });

const STEPS: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** The next cell in the direction of an arrow key, or the one in the middle if there is none yet; null for other keys. */
export function stepped(view: Viewport, table: Table, from: Cell | null, key: string): Cell | null {
  const by = STEPS[key];
  if (!by) return null;
  const keep = (at: number, count: number) => Math.min(count - 1, Math.max(0, Math.floor(at)));
  const start = from && from.q >= 0 && from.k >= 0 ? { q: from.q + by[0], k: from.k + by[1] } : middle(view, table);
  return { q: keep(start.q, table.queries.length), k: keep(start.k, table.keys.length) };
}

/** The visible tokens of a zoomed map in words; nothing where all of them are visible. */
export function shownText(view: Viewport, { queries, keys }: Table): string {
  if (view.zoom === 1) return "";
  const part = (labels: string[], start: number) => spanText(labels, [Math.floor(start), Math.min(labels.length, Math.ceil(start + labels.length / view.zoom - 1e-9)) - 1]);
  return ` · shown: queries ${part(queries, view.q)}, keys ${part(keys, view.k)}`;
}

export function inside(view: Viewport, table: Table): Viewport {
  const clamp = (start: number, count: number) => Math.min(count - count / view.zoom, Math.max(0, start));
  return { ...view, q: clamp(view.q, table.queries.length), k: clamp(view.k, table.keys.length) };
}

export function drawHeat(state: HeatState): Draw {
  return (pen, size, theme) => {
    const { table, view } = state;
    const place = box(table, size);
    const { image, region, most } = state.paint(view, place, resolution(pen));
    const [wide, tall] = [place.cellWidth * view.zoom, place.cellHeight * view.zoom];
    const x = (k: number) => place.left + (k - view.k) * wide;
    const y = (q: number) => place.top + (q - view.q) * tall;
    pen.save();
    pen.beginPath();
    pen.rect(place.left, place.top, place.width, place.height);
    pen.clip();
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image, x(region.column), y(region.row), wide * region.columns, tall * region.rows);
    if (Math.min(wide, tall) >= 14) gridLines(pen, table, x, y, place, theme);
    marks(pen, state, x, y, wide, tall, place, theme);
    pen.restore();
    pen.strokeStyle = theme.line;
    pen.lineWidth = 1;
    pen.strokeRect(place.left - 0.5, place.top - 0.5, place.width + 1, place.height + 1);
    labels(pen, state, x, y, wide, tall, place, theme);
    const asked = state.over && state.over.q >= 0 ? state.over.q : state.pinned;
    const seen = asked === null ? table.visible.reduce((a, b) => Math.max(a, b), 1) : table.visible[asked];
    drawLegend(pen, theme, state.shading, seen, most, { x: place.left, y: place.top + place.height + 14, width: Math.min(300, size.width - place.left - 8) });
  };
}

function gridLines(pen: Pen, table: Table, x: (k: number) => number, y: (q: number) => number, place: Box, theme: Theme) {
  pen.strokeStyle = theme.background;
  pen.globalAlpha = 0.6;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let k = 1; k < table.keys.length; k++) {
    pen.moveTo(x(k), place.top);
    pen.lineTo(x(k), place.top + place.height);
  }
  for (let q = 1; q < table.queries.length; q++) {
    pen.moveTo(place.left, y(q));
    pen.lineTo(place.left + place.width, y(q));
  }
  pen.stroke();
  pen.globalAlpha = 1;
}

function marks(pen: Pen, state: HeatState, x: (k: number) => number, y: (q: number) => number, wide: number, tall: number, place: Box, theme: Theme) {
  if (state.pinned !== null) {
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 2;
    pen.strokeRect(place.left + 1, y(state.pinned) - 1, place.width - 2, Math.max(tall, 2) + 2);
  }
  if (state.span) {
    const [[q0, q1], [k0, k1]] = [state.span.q ?? [0, state.table.queries.length - 1], state.span.k ?? [0, state.table.keys.length - 1]];
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 2.5;
    pen.strokeRect(x(k0), y(q0), Math.max(2, x(k1 + 1) - x(k0)), Math.max(2, y(q1 + 1) - y(q0)));
  }
  if (!state.over) return;
  pen.strokeStyle = theme.hover;
  pen.lineWidth = 1.5;
  if (state.over.q >= 0) pen.strokeRect(place.left, y(state.over.q) - 0.5, place.width, Math.max(tall, 2) + 1);
  if (state.over.k >= 0) pen.strokeRect(x(state.over.k) - 0.5, place.top, Math.max(wide, 2) + 1, place.height);
}

function labels(pen: Pen, state: HeatState, x: (k: number) => number, y: (q: number) => number, wide: number, tall: number, place: Box, theme: Theme) {
  const { table, over, pinned, axes } = state;
  const size = Math.min(13, Math.max(9, Math.min(wide, tall) * 0.8));
  // Where tokens are narrower than letters, only every n-th has a label, and always those under the pointer.
  const every = (cell: number) => Math.max(1, Math.ceil(11 / cell));
  const style = (on: boolean, fixed: boolean) => {
    pen.fillStyle = on ? theme.hover : fixed ? theme.accent : theme.muted;
    pen.font = `${on || fixed ? 600 : 400} ${size}px ${theme.font}`;
  };
  const near = (i: number, to: number | null | undefined, cell: number) => to !== null && to !== undefined && to >= 0 && i !== to && Math.abs(i - to) * cell < 11;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const visible = (i: number, start: number, span: number) => i + 0.5 >= start && i + 0.5 <= start + span;
  table.queries.forEach((label, q) => {
    const [on, fixed] = [over?.q === q, pinned === q];
    if (!visible(q, state.view.q, place.height / tall) || (!on && !fixed && (q % every(tall) !== 0 || near(q, over?.q, tall) || near(q, pinned, tall)))) return;
    style(on, fixed);
    pen.fillText(fitted(pen, label, place.left - 26), place.left - 6, y(q + 0.5));
  });
  pen.textAlign = "left";
  table.keys.forEach((label, k) => {
    const on = over?.k === k;
    if (!visible(k, state.view.k, place.width / wide) || (!on && (k % every(wide) !== 0 || near(k, over?.k, wide)))) return;
    style(on, false);
    pen.save();
    pen.translate(x(k + 0.5), place.top - 6);
    if (isUpright(label)) {
      pen.textAlign = "center";
      pen.fillText(label, 0, -size / 2);
    } else {
      pen.rotate(-Math.PI / 2);
      pen.fillText(fitted(pen, label, place.top - 24), 0, 0);
    }
    pen.restore();
  });
  pen.fillStyle = theme.muted;
  pen.font = `italic 11px ${theme.font}`;
  pen.textAlign = "left";
  pen.fillText(`${axes[1]} →`, place.left, 8);
  pen.save();
  pen.translate(8, place.top);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "right";
  pen.fillText(`← ${axes[0]}`, 0, 0);
  pen.restore();
}

/** Single characters stay upright: rotated by 90°, the sign for a space looks like a letter. */
export const isUpright = (label: string) => [...label].length === 1;
