// One query's weights over an image.

import { pixels, type Draw, type Size } from "../core/canvas";
import { type Ramp, table as colorTable } from "../core/color";
import type { Pen } from "../core/pen";
import type { Theme } from "../core/theme";
import { fitted } from "./atlas";
import { tint } from "./arcs";
import { percent } from "./layer";
import { colorsOf, drawLegend, position, type Shading } from "./scale";
import { type Corner, strongest } from "./strongest";
import { cellOf, type ImageAbout, type Query, queryIn } from "./place";

export type Style = "color" | "spotlight" | "outlines" | "map";

/** The line around what a head looks at. */
export interface Outline {
  name: string;
  loops: Corner[][];
  color: string;
  dash: number[];
}

/** The color of a value on the scale, in the given style. The opacity is constant, so that a color means the same on any image. */
export function overlayColors(style: Style, opacity: number, theme: Theme, signed: boolean): (t: number) => number {
  if (style === "outlines") return () => 0;
  if (style === "map") return colorsOf(theme, signed);
  if (style === "color") return colorsOf(theme, signed, () => opacity);
  const shadow = colorTable(() => [0, 0, 0], (t) => opacity * (1 - t));
  return (t) => shadow[Math.round(255 * Math.min(1, Math.abs(t)))];
}

/** Where a weight lies on the scale: against uniform attention over n keys, or as a share of the largest. */
export const placeOf = ({ scale, top }: Shading, n: number, max: number) => (weight: number): number => (scale === "uniform" ? position(weight * n, top) : weight / (max || 1));

/** A row of weights as pixels: the strongest patches, which hold `share` of it. The others are transparent, or dark as a spotlight. */
export function patchPixels(row: Float32Array, about: ImageAbout, place: (weight: number) => number, color: (t: number) => number, share = 1, rest = 0): HTMLCanvasElement {
  const [rows, columns] = about.grid;
  const inside = share < 1 ? strongest(row.subarray(about.prefix), share) : null;
  return pixels(columns, rows, (i) => (inside && !inside[i] ? rest : color(place(row[about.prefix + i]))));
}

/** The largest weight of a patch, without prefix tokens, which often have more weight than any patch. */
export function largest(row: Float32Array, prefix: number): number {
  let max = 0;
  for (let i = prefix; i < row.length; i++) if (Math.abs(row[i]) > max) max = Math.abs(row[i]);
  return max;
}

export interface OverlayState {
  about: ImageAbout;
  row: Float32Array | null;
  max: number;
  shading: Shading;
  /** How many keys the query may see. */
  visible: number;
  image: HTMLCanvasElement | null;
  heat: HTMLCanvasElement | null;
  style: Style;
  smooth: boolean;
  query: Query;
  pinned: boolean;
  over: { y: number; x: number } | null;
  aspect: number;
  /** Lines around what several heads look at. */
  outlines?: Outline[];
}

interface Places {
  chips: { x: number; y: number; width: number; height: number }[];
  x: number;
  y: number;
  width: number;
  height: number;
}

const TALLEST = 620;

export function places(about: ImageAbout, aspect: number, width: number): Places {
  const count = Math.max(about.prefix, about.query_prefix);
  const columns = Math.max(1, Math.min(count, Math.floor(width / 72)));
  const room = Math.min(150, width / columns);
  const chips = Array.from({ length: count }, (_, i) => ({
    x: (i % columns) * room,
    y: 2 + Math.floor(i / columns) * 32,
    width: room - 6,
    height: 26,
  }));
  const top = count ? 2 + Math.ceil(count / columns) * 32 + 4 : 2;
  const [w, h] = width * aspect > TALLEST ? [TALLEST / aspect, TALLEST] : [width, width * aspect];
  return { chips, x: 1, y: top, width: w - 2, height: h - 2 };
}

export const overlayHeight = (about: ImageAbout, aspect: number) => (width: number): number => {
  const p = places(about, aspect, width);
  return p.y + p.height + 36;
};

/** The query at a point: a prefix token or a position on the image. */
export function whoIsAt(about: ImageAbout, aspect: number, x: number, y: number, size: Size): Query | null {
  const p = places(about, aspect, size.width);
  const chip = p.chips.findIndex((c) => x >= c.x && x < c.x + c.width && y >= c.y && y < c.y + c.height);
  if (chip >= 0) return { prefix: chip, y: 0.5, x: 0.5 };
  const [sy, sx] = [(y - p.y) / p.height, (x - p.x) / p.width];
  return sy >= 0 && sy < 1 && sx >= 0 && sx < 1 ? { prefix: null, y: sy, x: sx } : null;
}

export function drawOverlay(state: OverlayState, chipNames: string[]): Draw {
  return (pen, size, theme, saved) => {
    const { about, row, heat, image, style } = state;
    const p = places(about, state.aspect, size.width);
    pen.save();
    pen.beginPath();
    pen.rect(p.x, p.y, p.width, p.height);
    pen.clip();
    pen.fillStyle = theme.surface;
    pen.fillRect(p.x, p.y, p.width, p.height);
    if (image && style !== "map") {
      pen.imageSmoothingEnabled = image.width >= 64;
      pen.drawImage(image, p.x, p.y, p.width, p.height);
    }
    if (heat && style !== "outlines") {
      pen.imageSmoothingEnabled = state.smooth;
      pen.drawImage(heat, p.x, p.y, p.width, p.height);
    }
    drawOutlines(pen, state.outlines ?? [], about.grid, p);
    pen.restore();
    pen.strokeStyle = theme.line;
    pen.lineWidth = 1;
    pen.strokeRect(p.x - 0.5, p.y - 0.5, p.width + 1, p.height + 1);
    chips(pen, state, p, chipNames, theme);
    const number = queryIn(about, state.query);
    if (about.query_grid && number >= about.query_prefix) outline(pen, p, about.query_grid, state.query, state.pinned ? theme.accent : theme.hover);
    if (state.over && state.pinned) outline(pen, p, about.grid, state.over, theme.hover);
    if (style !== "outlines") legend(pen, state, p, theme);
    else if (saved) nameOutlines(pen, state.outlines ?? [], p, theme);
    if (!row) {
      pen.fillStyle = theme.ink;
      pen.font = `14px ${theme.font}`;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.fillText("this row was not captured", p.x + p.width / 2, p.y + p.height / 2);
    }
  };
}

/** Where outlines of several heads coincide, they are drawn side by side. */
export function drawOutlines(pen: Pen, outlines: Outline[], grid: [number, number], p: { x: number; y: number; width: number; height: number }, width = 2.6) {
  const [h, w] = [p.height / grid[0], p.width / grid[1]];
  const most = Math.min(h, w) / 3;
  const stroke = ({ loops }: Outline, by: number) => {
    pen.beginPath();
    for (const loop of loops) {
      loop.forEach(({ y, x, dy, dx }, i) => {
        const [px, py] = [p.x + x * w + dx * by, p.y + y * h + dy * by];
        i ? pen.lineTo(px, py) : pen.moveTo(px, py);
      });
      pen.closePath();
    }
    pen.stroke();
  };
  outlines.forEach((one, i) => {
    const by = Math.min(most, width * ((i % 4) + 0.5));
    pen.setLineDash([]);
    pen.strokeStyle = "#ffffff"; // white under the color is visible on any image
    pen.lineWidth = width + 1.6;
    stroke(one, by);
    pen.setLineDash(one.dash);
    pen.strokeStyle = one.color;
    pen.lineWidth = width;
    stroke(one, by);
  });
  pen.setLineDash([]);
}

/** The legend of heads below a saved picture; the page has buttons instead. */
function nameOutlines(pen: Pen, outlines: Outline[], p: Places, theme: Theme) {
  const step = Math.min(46, p.width / Math.max(1, outlines.length));
  pen.font = `11px ${theme.font}`;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  outlines.forEach(({ name, color, dash }, i) => {
    const [x, y] = [p.x + i * step, p.y + p.height + 18];
    pen.strokeStyle = color;
    pen.setLineDash(dash);
    pen.lineWidth = 3;
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x + step * 0.4, y);
    pen.stroke();
    pen.fillStyle = theme.ink;
    pen.fillText(name, x + step * 0.5, y);
  });
  pen.setLineDash([]);
}

function outline(pen: Pen, p: Places, grid: [number, number], at: { y: number; x: number }, color: string) {
  const [row, column] = cellOf(grid, at);
  const [w, h] = [p.width / grid[1], p.height / grid[0]];
  const box: [number, number, number, number] = [p.x + column * w, p.y + row * h, w, h];
  // White under the color is visible on any image.
  pen.strokeStyle = "#ffffff";
  pen.lineWidth = 4;
  pen.strokeRect(...box);
  pen.strokeStyle = color;
  pen.lineWidth = 2.2;
  pen.strokeRect(...box);
}

function chips(pen: Pen, state: OverlayState, p: Places, names: string[], theme: Theme) {
  const { about, row } = state;
  const asked = queryIn(about, state.query);
  p.chips.forEach((chip, i) => {
    const weight = row && i < about.prefix ? row[i] : 0;
    pen.fillStyle = theme.surface;
    pen.fillRect(chip.x, chip.y, chip.width, chip.height);
    pen.fillStyle = tint(theme, weight, state.shading.signed);
    pen.fillRect(chip.x, chip.y, chip.width, chip.height);
    const isQuery = asked === i && i < about.query_prefix;
    pen.strokeStyle = isQuery ? (state.pinned ? theme.accent : theme.hover) : theme.line;
    pen.lineWidth = isQuery ? 2.2 : 1;
    pen.strokeRect(chip.x + 1, chip.y + 1, chip.width - 2, chip.height - 2);
    pen.fillStyle = theme.ink;
    pen.font = `11px ${theme.font}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(chipText(pen, names[i], i < about.prefix ? percent(weight) : null, chip.width - 6), chip.x + chip.width / 2, chip.y + chip.height / 2 + 0.5);
  });
}

/** A number is shown whole or not at all: without its % sign, or with fewer digits, it would be another number. */
export function chipText(pen: Pen, name: string, weight: string | null, room: number): string {
  const whole = `${name}: ${weight}`;
  return weight !== null && pen.measureText(whole).width <= room ? whole : fitted(pen, name, room);
}

function legend(pen: Pen, state: OverlayState, p: Places, theme: Theme) {
  const gray: Ramp = (t) => [255 * t, 255 * t, 255 * t];
  const width = Math.min(300, p.width);
  drawLegend(pen, theme, state.shading, state.visible, state.max, { x: p.x, y: p.y + p.height + 10, width }, state.style === "spotlight" ? gray : undefined);
}
