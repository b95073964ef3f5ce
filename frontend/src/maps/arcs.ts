// A map as arcs: from each query token, on the left, to its key tokens, on the right.

import type { Draw, Size } from "../core/canvas";
import { css } from "../core/color";
import type { Pen } from "../core/pen";
import type { Theme } from "../core/theme";
import { fitted } from "./atlas";
import type { Cell, Viewport } from "./heat";
import { inSpan, type Span } from "./span";
import { percent } from "./layer";
import { lineOf } from "./legend";
import { isolated } from "./quote";
import { largestOf } from "./scale";
import { type Table, threshold } from "./table";

export interface ArcState {
  table: Table;
  view: Viewport;
  over: Cell | null;
  pinned: number | null;
  axes: [query: string, key: string];
  /** Several heads at once, each with its own weights; the table is then their mean. */
  heads: HeadArcs[] | null;
  /** Weights may be negative: the arcs of one map then have the colors of their signs. */
  signed: boolean;
  /** Draw only arcs between these tokens. */
  span?: Span | null;
}

export interface HeadArcs {
  name: string;
  /** The index of the head in its layer, which determines the color. */
  head: number;
  weights: Float32Array;
}

const TOP = 26;
const MOST = 1500;

interface Column {
  left: number;
  right: number;
  query: number;
  key: number;
  height: number;
}

/** The color of a sign, as on heat maps. */
const ofSign = (theme: Theme, weight: number) => theme.signed(weight < 0 ? 0.12 : 0.88);

/** The mark behind a label: its opacity is proportional to the weight, and faint enough to read the letters. */
export function tint(theme: Theme, weight: number, signed: boolean): string {
  const opacity = 0.55 * Math.min(1, Math.abs(weight));
  return signed ? css(ofSign(theme, weight), opacity) : `${theme.hover}${Math.round(255 * opacity).toString(16).padStart(2, "0")}`;
}

export const arcHeight = (table: Table) => (): number => {
  const count = Math.max(table.queries.length, table.keys.length, 1);
  return TOP + Math.max(160, Math.min(720, count * 22)) + 8;
};

function columns(table: Table, view: Viewport, size: Size): Column {
  const longest = (labels: string[]) => Math.min(size.width * 0.3, 24 + 7.5 * Math.max(2, ...labels.map((label) => label.length)));
  const inner = size.height - TOP - 8;
  const height = Math.min(30, inner / Math.max(1, Math.max(table.queries.length, table.keys.length)));
  return {
    left: longest(table.queries),
    right: size.width - longest(table.keys),
    query: (table.queries.length === 1 ? height : Math.min(30, inner / Math.max(1, table.queries.length))) * view.zoom,
    key: Math.min(30, inner / Math.max(1, table.keys.length)) * view.zoom,
    height: inner,
  };
}

/** The token under a point: {q, −1} on the left, {−1, k} on the right. */
export function tokenAt(table: Table, view: Viewport, x: number, y: number, size: Size): Cell | null {
  const c = columns(table, view, size);
  const q = Math.floor(view.q + (y - TOP) / c.query);
  const k = Math.floor(view.k + (y - TOP) / c.key);
  if (y < TOP) return null;
  if (x < (c.left + c.right) / 2) return q < table.queries.length ? { q, k: -1 } : null;
  return k < table.keys.length ? { q: -1, k } : null;
}

export function drawArcs(state: ArcState): Draw {
  const { table, view } = state;
  // One scale for all heads, with and without the pointer, so that pointing at a weight never makes it fainter.
  const heads = state.heads ?? [{ name: "", head: 0, weights: table.weights }];
  const max = Math.max(...heads.map((head) => largestOf(head.weights))) || 1;
  const shown = heads.map((head) => ({ ...head, least: threshold(head.weights, max, MOST / heads.length) }));
  return (pen, size, theme, saved) => {
    const c = columns(table, view, size);
    const yq = (q: number) => TOP + (q - view.q + 0.5) * c.query;
    const yk = (k: number) => TOP + (k - view.k + 0.5) * c.key;
    const active = state.over ?? (state.pinned === null ? null : { q: state.pinned, k: -1 });
    const count = table.keys.length;
    pen.save();
    pen.beginPath();
    pen.rect(0, TOP - 7, size.width, c.height + 14);
    pen.clip();
    pen.lineCap = "round";
    const arc = (q: number, k: number, strength: number, strong: boolean) => {
      const [from, to] = [yq(q), yk(k)];
      if (Math.max(from, to) < TOP || Math.min(from, to) > TOP + c.height) return;
      const middle = (c.left + c.right) / 2;
      pen.globalAlpha = Math.min(1, (strong ? 0.15 : 0.04) + strength * (strong ? 0.85 : state.heads ? 0.45 : 0.6));
      pen.lineWidth = 0.6 + strength * (strong ? 5 : state.heads ? 1.6 : 2.4);
      pen.beginPath();
      pen.moveTo(c.left, from);
      pen.bezierCurveTo(middle, from, middle, to, c.right, to);
      pen.stroke();
    };
    shown.forEach(({ weights, least, head }) => {
      const line = lineOf(head, theme);
      pen.strokeStyle = state.heads ? line.color : active && !state.over ? theme.accent : theme.hover;
      pen.setLineDash(state.heads ? line.dash : []);
      const some = (q: number, k: number, from: number, strong: boolean) => {
        const [weight, size] = [weights[q * count + k], Math.abs(weights[q * count + k])];
        if (size <= from || !inSpan(state.span, q, k)) return;
        if (state.signed && !state.heads) pen.strokeStyle = css(ofSign(theme, weight));
        arc(q, k, size / max, strong);
      };
      if (!active) for (let q = 0; q < table.queries.length; q++) for (let k = 0; k < count; k++) some(q, k, least, false);
      else if (active.q >= 0) for (let k = 0; k < count; k++) some(active.q, k, 0.002, true);
      else for (let q = 0; q < table.queries.length; q++) some(q, active.k, 0.002, true);
    });
    pen.setLineDash([]);
    pen.globalAlpha = 1;
    tokens(pen, state, active, c, yq, yk, size, theme);
    pen.restore();
    pen.fillStyle = theme.muted;
    pen.font = `italic 11px ${theme.font}`;
    pen.textBaseline = "middle";
    // Beside short tokens there is less room than these words need: they then reach over the arcs.
    const [asks, reads] = state.axes.map((axis) => pen.measureText(axis).width);
    pen.textAlign = "left";
    pen.fillText(state.axes[0], Math.max(2, c.left - 8 - asks), 10);
    pen.fillText(state.axes[1], Math.min(c.right + 8, size.width - 2 - reads), 10);
    if (state.heads && saved) legend(pen, state.heads, c, theme);
  };
}

/** The legend of heads above the arcs of a saved picture. */
function legend(pen: Pen, heads: HeadArcs[], c: Column, theme: Theme) {
  const step = Math.min(34, (c.right - c.left) / heads.length);
  const start = (c.left + c.right - step * heads.length) / 2;
  pen.font = `10px ${theme.font}`;
  heads.forEach((head, i) => {
    const { color, dash } = lineOf(head.head, theme);
    pen.strokeStyle = color;
    pen.lineWidth = 3;
    pen.setLineDash(dash);
    pen.beginPath();
    pen.moveTo(start + i * step, 10);
    pen.lineTo(start + i * step + Math.min(14, step * 0.5), 10);
    pen.stroke();
    pen.fillStyle = theme.muted;
    if (step > 20) pen.fillText(head.name, start + i * step + 17, 10.5);
  });
  pen.setLineDash([]);
}

function tokens(
  pen: Pen,
  state: ArcState,
  active: Cell | null,
  c: Column,
  yq: (q: number) => number,
  yk: (k: number) => number,
  size: Size,
  theme: Theme,
) {
  const { table } = state;
  const count = table.keys.length;
  pen.textBaseline = "middle";
  const side = (labels: string[], tall: number, y: (i: number) => number, weight: (i: number) => number, chosen: number | undefined, left: boolean) => {
    const [from, to] = left ? [0, c.left] : [c.right, size.width];
    const seen = labels.map((_, i) => i).filter((i) => y(i) >= TOP - tall && y(i) <= TOP + c.height + tall);
    for (const i of seen) {
      const strength = weight(i);
      if (strength === 0) continue;
      pen.fillStyle = tint(theme, strength, state.signed);
      pen.fillRect(from, y(i) - tall / 2, to - from, Math.max(1, tall - 1));
    }
    // Where rows are narrower than letters, the most important ones get a label first, if there is room.
    const every = Math.max(1, Math.ceil(11 / tall));
    const rank = (i: number) => (i === chosen ? 2 : Math.abs(weight(i)) > 0.02 ? Math.abs(weight(i)) : i % every === 0 ? 0 : -1);
    const named: number[] = [];
    const order = every === 1 ? seen : seen.filter((i) => rank(i) >= 0).sort((i, j) => rank(j) - rank(i));
    for (const i of order) {
      if (every > 1 && named.some((at) => Math.abs(at - y(i)) < 10.5)) continue;
      named.push(y(i));
      const on = chosen === i;
      const strength = Math.abs(weight(i));
      pen.fillStyle = on ? (state.over ? theme.hover : theme.accent) : theme.ink;
      pen.font = `${on ? 700 : 400} ${Math.min(14, Math.max(9, tall * 0.72))}px ${theme.font}`;
      pen.textAlign = left ? "right" : "left";
      const room = (left ? c.left : size.width - c.right) - 14;
      const text = strength > 0.01 && room > 90 && (tall > 14 || strength > 0.02) ? `${isolated(labels[i])}  ${percent(weight(i))}` : labels[i];
      pen.fillText(fitted(pen, text, room), left ? c.left - 8 : c.right + 8, y(i));
    }
  };
  const out = (k: number) => (active && active.q >= 0 ? table.weights[active.q * count + k] : 0);
  const into = (q: number) => (active && active.k >= 0 && active.q < 0 ? table.weights[q * count + active.k] : 0);
  side(table.queries, c.query, yq, into, active && active.q >= 0 ? active.q : undefined, true);
  side(table.keys, c.key, yk, out, active && active.q < 0 ? active.k : undefined, false);
}
