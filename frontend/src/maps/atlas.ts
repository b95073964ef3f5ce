// Heads as thumbnails: a row per layer, or the heads of one layer in a block. Hovering enlarges, a click locks.

import { html, useRef, useState } from "../core/html";
import { Picture, pixels, type Draw, type Size } from "../core/canvas";
import { type Pen, resolution } from "../core/pen";
import { isPrinting } from "../core/print";
import { useTheme } from "../core/theme";
import { isAscending, numbered, rangeOf } from "./headnumbers";

/** The thumbnails of one layer, in lines. Each is padded by its own edge, because smoothing mixes neighbors. */
export interface Strip {
  image: HTMLCanvasElement;
  /** Thumbnails in a line, and lines. */
  across: number;
  down: number;
  /** Pixels of one thumbnail, without its border. */
  rows: number;
  columns: number;
}

const SIDES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192];

/** The pixels of a thumbnail along an axis with `count` entries: no more than the screen has room for, since it would skip the
 * others. There are few sizes, so that few thumbnails are made while a window is resized. */
export const thumbnailSide = (count: number, room: number): number => (count <= room ? count : Math.max(1, ...SIDES.filter((side) => side <= room)));

/** The entry of the largest absolute value of each part of a matrix; parts of NaN alone stay NaN. */
export function largestParts(data: ArrayLike<number>, from: [number, number], to: [number, number]): Float32Array {
  const [[rows, columns], [tall, wide]] = [from, to];
  const out = new Float32Array(tall * wide).fill(NaN);
  for (let i = 0; i < rows * columns; i++) {
    const at = Math.floor((Math.floor(i / columns) * tall) / rows) * wide + Math.floor(((i % columns) * wide) / columns);
    if (Number.isNaN(out[at]) || Math.abs(data[i]) > Math.abs(out[at])) out[at] = data[i];
  }
  return out;
}

/** Every browser draws images of so many pixels a side. */
const LARGEST_IMAGE = 8192;

/** `color` gives the pixel of a head at a row and a column. */
export function makeStrip(heads: number, rows: number, columns: number, color: (head: number, row: number, column: number) => number): Strip {
  const across = Math.max(1, Math.min(heads, Math.floor(LARGEST_IMAGE / (columns + 2))));
  const down = Math.max(1, Math.ceil(heads / across));
  const wide = across * (columns + 2);
  const within = (x: number, count: number) => Math.min(count - 1, Math.max(0, x - 1));
  const image = pixels(wide, down * (rows + 2), (i) => {
    const [x, y] = [i % wide, Math.floor(i / wide)];
    const head = Math.floor(y / (rows + 2)) * across + Math.floor(x / (columns + 2));
    return head < heads ? color(head, within(y % (rows + 2), rows), within(x % (columns + 2), columns)) : 0;
  });
  return { image, across, down, rows, columns };
}

export interface AtlasRow {
  label: string;
  layer: number;
  /** Indices of the heads in their layer. */
  heads: number[];
  warn?: boolean;
}

export interface AtlasProps {
  rows: AtlasRow[];
  /** The thumbnails of a layer for places of so many pixels; for a file or for paper at once, since no later frame draws them. */
  strip: (layer: number, tall: number, wide: number, atOnce: boolean) => Strip;
  headName: (layer: number, head: number) => string;
  /** Height of a thumbnail over its width. */
  aspect: number;
  largest: number;
  smooth?: boolean;
  backdrop?: HTMLCanvasElement | null;
  /** Drawn over a thumbnail. */
  onTop?: (pen: Pen, layer: number, head: number, place: { x: number; y: number; width: number; height: number }) => void;
  picked: { layer: number; head: number | null };
  /** The head that the selected one is compared with. */
  second?: { layer: number; head: number } | null;
  label: string;
  /** A short description of a head, beside its name. */
  about?: (layer: number, head: number) => string;
  onHover: (at: { layer: number; head: number } | null) => void;
  /** `beside` is true with Shift: compare this head with the selected one. */
  onPick: (at: { layer: number; head: number | null }, beside: boolean) => void;
}

interface Geometry {
  lines: AtlasRow[];
  left: number;
  top: number;
  cell: number;
  tall: number;
  gap: number;
  /** Room above a line for the numbers of its heads, where a layer has several lines. */
  above: number;
  /** Whether a line has the numbers of its heads beside it: its thumbnails are too small for one each. */
  ranges: boolean;
}

/** Pixels of a thumbnail, at least: smaller ones could neither be seen nor met by a finger. */
const SMALLEST = 8;

/** The rows, those with more heads than fit as several lines of about the same length. Only the first of them has a label. */
export function linesOf(rows: AtlasRow[], fit: number): AtlasRow[] {
  return rows.flatMap((row) => {
    const lines = Math.ceil(row.heads.length / Math.max(1, fit));
    const length = Math.ceil(row.heads.length / Math.max(1, lines));
    return lines <= 1 ? [row] : Array.from({ length: lines }, (_, i) => ({ ...row, label: i ? "" : row.label, heads: row.heads.slice(i * length, (i + 1) * length) }));
  });
}

/** Thumbnails that have room for a head's number above each, and the height of this number. */
const [NUMBER, CAPTION] = [18, 12];

/** Thumbnails smaller than this are enlarged, if lines of fewer of them are not higher than TALL in all. */
const COMFORTABLE = 10;
const TALL = 320;

/** The width of thumbnails, at most: of images that are higher than wide, and of hundreds of layers, they are smaller. */
const widest = (largest: number, aspect: number, rows: number) => Math.min(largest, Math.min(2 * largest, Math.max(2 * SMALLEST, HIGHEST / rows)) / aspect);
/** Pixels of an atlas, about, unless its thumbnails would be too small. */
const HIGHEST = 4096;

/** How many thumbnails fit beside each other: all heads of a row, or as many as are large enough to be told apart. */
export function columnsOf(heads: number[], room: number, gap: number, aspect: number): number {
  const most = Math.max(1, ...heads);
  const side = (columns: number) => room / columns - gap;
  const smallest = Math.max(1, Math.floor(room / (SMALLEST + gap)));
  let best = Math.min(most, smallest);
  if (side(best) >= COMFORTABLE) return best;
  for (let columns = best; columns > 0; columns--) {
    const lines = heads.reduce((sum, count) => sum + Math.ceil(count / columns), 0);
    if (lines * (side(columns) * aspect + gap) > TALL) break;
    best = columns;
  }
  return best;
}

export function Atlas(props: AtlasProps) {
  const { aspect, largest } = props;
  const theme = useTheme();
  const [over, setOver] = useState<{ row: number; column: number } | null>(null);
  const width = useRef(600);
  const named = props.rows.some((row) => row.label);

  const measure = (width: number): Geometry => {
    const longest = Math.max(0, ...props.rows.map((row) => row.label.length));
    const most = Math.max(1, ...props.rows.map((row) => row.heads.length));
    const gap = most > 16 ? 2 : 4;
    const counts = props.rows.map((row) => row.heads.length);
    const within = (left: number): Geometry => {
      const lines = linesOf(props.rows, columnsOf(counts, width - left - 3, gap, aspect));
      const columns = Math.max(1, ...lines.map((line) => line.heads.length));
      const cell = Math.max(4, Math.min(widest(largest, aspect, counts.length), (width - left - 3) / columns - gap));
      const wrapped = lines.some((line, i) => i > 0 && line.layer === lines[i - 1].layer);
      const above = wrapped && cell + gap >= NUMBER ? CAPTION : 0;
      return { lines, left, top: above ? 4 : 16, cell, tall: Math.max(4, cell * aspect), gap, above, ranges: wrapped && !above && isAscending(lines) };
    };
    const left = named ? Math.min(width * 0.3, 12 + 6.4 * longest) : 2;
    const found = within(left);
    const beside = Math.max(left, ...found.lines.map((line) => 14 + 7 * rangeOf(line, props.headName).length));
    return found.ranges && left < beside ? { ...within(beside), ranges: true, above: 0, top: 16 } : found;
  };
  const height = (width: number) => {
    const g = measure(width);
    return g.top + g.lines.length * (g.above + g.tall + g.gap) + 4;
  };
  const place = (g: Geometry, row: number, column: number): [number, number] => [
    g.left + column * (g.cell + g.gap),
    g.top + row * (g.above + g.tall + g.gap) + g.above,
  ];
  const cellOf = (x: number, y: number, size: Size): { row: number; column: number } | null => {
    const g = measure(size.width);
    const row = Math.floor((y - g.top) / (g.above + g.tall + g.gap));
    const column = Math.floor((x - g.left) / (g.cell + g.gap));
    if (row < 0 || row >= g.lines.length || x < 0) return null;
    if (x < g.left) return { row, column: -1 };
    return column < g.lines[row].heads.length ? { row, column } : null;
  };

  const thumbnail = (pen: Pen, layer: number, head: number, saved: boolean, ...box: [number, number, number, number]) => {
    // On whole pixels of the screen, so that the pixels at the edges of the map are not cut.
    const fine = resolution(pen);
    const [left, top, width, height] = box.map((at) => Math.max(1, Math.round(at * fine)));
    const [x, y, w, h] = [left, top, width, height].map((at) => at / fine);
    const { image, across, down, rows: tall, columns: wide } = props.strip(layer, height, width, saved || isPrinting());
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w, h);
    pen.clip();
    pen.imageSmoothingEnabled = true;
    if (props.backdrop) pen.drawImage(props.backdrop, x, y, w, h);
    pen.imageSmoothingEnabled = Boolean(props.smooth);
    const [dx, dy] = [w / wide, h / tall];
    const [column, line] = [head % across, Math.floor(head / across)];
    pen.drawImage(image, x - (column * (wide + 2) + 1) * dx, y - (line * (tall + 2) + 1) * dy, across * (wide + 2) * dx, down * (tall + 2) * dy);
    props.onTop?.(pen, layer, head, { x, y, width: w, height: h });
    pen.restore();
    pen.strokeStyle = theme.line;
    pen.lineWidth = 1;
    pen.strokeRect(x - 0.5, y - 0.5, w + 1, h + 1);
  };

  const draw: Draw = (pen, size, _, saved = false) => {
    const g = measure((width.current = size.width));
    const rows = g.lines;
    pen.textBaseline = "middle";
    // Where rows are lower than letters, only every n-th has a label, and always the selected one.
    const chosen = rows.findIndex((row) => row.layer === props.picked.layer);
    const beside = numbered(rows, Math.ceil(11 / (g.above + g.tall + g.gap)), chosen, g.ranges);
    rows.forEach((row, r) => {
      const [, y] = place(g, r, 0);
      const current = row.layer === props.picked.layer;
      if (beside.has(r)) {
        pen.fillStyle = row.warn ? theme.warn : current ? theme.ink : theme.muted;
        pen.font = `${current && row.label ? 600 : 400} 11px ${theme.font}`;
        pen.textAlign = "right";
        pen.fillText(elided(pen, row.label || rangeOf(row, props.headName), g.left - 8), g.left - 6, y + g.tall / 2);
      }
      row.heads.forEach((head, c) => {
        const [x] = place(g, r, c);
        thumbnail(pen, row.layer, head, saved, x, y, g.cell, g.tall);
      });
    });
    pen.fillStyle = theme.muted;
    pen.textAlign = "center";
    pen.font = `10px ${theme.font}`;
    const every = Math.max(1, Math.ceil(18 / (g.cell + g.gap)));
    if (g.above) {
      rows.forEach((row, r) => row.heads.forEach((head, c) => pen.fillText(props.headName(row.layer, head), place(g, r, c)[0] + g.cell / 2, place(g, r, c)[1] - CAPTION / 2)));
    } else if (rows.length && !g.ranges && isAscending(rows)) {
      const widest = widestRow(rows);
      for (let c = 0; c < widest.heads.length; c += every) {
        pen.fillText(props.headName(widest.layer, widest.heads[c]), place(g, 0, c)[0] + g.cell / 2, 7);
      }
    }
    rows.forEach((row, r) =>
      row.heads.forEach((head, c) => {
        const first = row.layer === props.picked.layer && head === props.picked.head;
        if (!first && (row.layer !== props.second?.layer || head !== props.second.head)) return;
        const [x, y] = place(g, r, c);
        pen.strokeStyle = first ? theme.accent : theme.hover;
        pen.lineWidth = 2;
        pen.strokeRect(x - 1, y - 1, g.cell + 2, g.tall + 2);
      }),
    );
    if (over && over.column >= 0 && rows[over.row]) enlarge(pen, g, size, saved);
  };

  const enlarge = (pen: Pen, g: Geometry, size: Size, saved: boolean) => {
    const { row, column } = over!;
    const rows = g.lines;
    const w = g.cell > 60 ? g.cell * 1.25 : Math.max(g.cell * 1.6, Math.min(96, size.width / 3));
    const h = w * aspect;
    const [cx, cy] = place(g, row, column);
    const x = Math.min(size.width - w - 2, Math.max(2, cx + g.cell / 2 - w / 2));
    const y = Math.min(size.height - h - 2, Math.max(2, cy + g.tall / 2 - h / 2));
    const head = rows[row].heads[column];
    pen.fillStyle = theme.background;
    pen.fillRect(x - 2, y - 2, w + 4, h + 4);
    thumbnail(pen, rows[row].layer, head, saved, x, y, w, h);
    pen.strokeStyle = theme.hover;
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
  };

  const shown = () => measure(width.current).lines;
  const hover = (x: number, y: number, _: unknown, size: Size) => {
    const at = cellOf(x, y, size);
    if (at?.row === over?.row && at?.column === over?.column) return;
    setOver(at);
    const inside = at && at.column >= 0;
    const row = inside ? shown()[at.row] : null;
    props.onHover(row && at ? { layer: row.layer, head: row.heads[at.column] } : null);
  };
  const leave = () => {
    setOver(null);
    props.onHover(null);
  };
  const press = (x: number, y: number, event: MouseEvent, size: Size) => {
    const at = cellOf(x, y, size);
    const row = at && shown()[at.row];
    if (row) props.onPick({ layer: row.layer, head: at.column < 0 ? null : row.heads[at.column] }, event.shiftKey);
  };
  /** Arrow keys select the next head, or the first if none is selected. */
  const move = (key: string): boolean => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
    if (!step) return false;
    const rows = shown();
    const row = rows.findIndex((one) => one.layer === props.picked.layer && (props.picked.head === null || one.heads.includes(props.picked.head)));
    const column = row < 0 || props.picked.head === null ? -1 : rows[row].heads.indexOf(props.picked.head);
    const to = rows[Math.min(rows.length - 1, Math.max(0, (row < 0 ? 0 : row) + step[0]))];
    if (to.heads.length) props.onPick({ layer: to.layer, head: to.heads[Math.min(to.heads.length - 1, Math.max(0, column + step[1]))] }, false);
    return true;
  };
  const line = over && over.column >= 0 ? shown()[over.row] : undefined;
  const at = line?.heads[over!.column];
  const tip = line && at !== undefined ? `head ${props.headName(line.layer, at)}${props.about ? ` · ${props.about(line.layer, at)}` : ""}` : null;
  return html`<${Picture} class="rg-atlas" focusable onKey=${move} tip=${tip} draw=${draw} height=${height} label=${props.label} cursor="pointer" onPoint=${hover} onLeave=${leave} onPress=${press} />`;
}

/** More letters than fit anywhere. */
const MOST_LETTERS = 400;

/** The first letters of a text, without half a character at the end. */
export const beginning = (text: string, letters: number): string => text.slice(0, letters).replace(/[\ud800-\udbff]$/, "");

/** The longest beginning of a text that fits. */
export const fitted = (pen: Pen, text: string, room: number): string => cut(pen, text, room, (letters) => `${beginning(text, letters)}…`);

/** Beginning and end of a name: names of modules differ at both. */
export const elided = (pen: Pen, text: string, room: number): string => cut(pen, text, room, (letters) => `${beginning(text, Math.ceil(letters / 2))}…${text.slice(text.length - Math.floor(letters / 2)).replace(/^[\udc00-\udfff]/, "")}`);

/** As many letters of a text as fit, by binary search, since a token may be very long. */
function cut(pen: Pen, text: string, room: number, shortened: (letters: number) => string): string {
  if (text.length <= MOST_LETTERS && pen.measureText(text).width <= room) return text;
  let [end, most] = [1, Math.min(text.length, MOST_LETTERS)];
  while (end < most) {
    const middle = Math.ceil((end + most) / 2);
    if (pen.measureText(shortened(middle)).width <= room) end = middle;
    else most = middle - 1;
  }
  return shortened(end);
}

/** The row with the most heads: layers may have different numbers of heads. */
export const widestRow = (rows: AtlasRow[]) => rows.reduce((most, row) => (row.heads.length > most.heads.length ? row : most));

/** Rows for an atlas of one layer: its heads in a block of about the available width. */
export function blockRows(layer: number, heads: number, columns: number): AtlasRow[] {
  const rows: AtlasRow[] = [];
  for (let at = 0; at < heads; at += columns) {
    rows.push({ label: "", layer, heads: Array.from({ length: Math.min(columns, heads - at) }, (_, i) => at + i) });
  }
  return rows;
}
