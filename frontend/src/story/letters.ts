// Rows of letters with lines between them: the input, the output, and the attention weights between them.

import type { Draw, Size } from "../core/canvas";
import type { Pen } from "../core/pen";
import type { Theme } from "../core/theme";

/** The displayed form of a token: special tokens become a sign. */
export function letter(token: string): string {
  return { " ": "␣", "<U>": "⇧", "<L>": "⇩", "<end>": "■", "<begin>": "▸" }[token] ?? token;
}

const cellWidth = (count: number, width: number) => Math.min(44, width / Math.max(1, count));
const startOf = (count: number, cell: number, width: number) => (width - count * cell) / 2;

/** The index of the letter at x; null if there is none. */
export function letterAt(count: number, x: number, { width }: Size): number | null {
  const cell = cellWidth(count, width);
  const at = Math.floor((x - startOf(count, cell, width)) / cell);
  return at >= 0 && at < count ? at : null;
}

function row(pen: Pen, tokens: string[], y: number, width: number, theme: Theme, count: number, look: (at: number) => { ink: string; back: string | null }): (at: number) => number {
  const cell = cellWidth(count, width);
  const left = startOf(count, cell, width);
  pen.font = `600 ${Math.min(25, cell * 0.95)}px ${theme.mono}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  tokens.forEach((token, at) => {
    const { ink, back } = look(at);
    if (back) {
      pen.fillStyle = back;
      pen.fillRect(left + at * cell + 0.5, y - 20, cell - 1, 40);
    }
    pen.fillStyle = token === " " ? theme.line : ink;
    pen.fillText(letter(token), left + (at + 0.5) * cell, y);
  });
  return (at) => left + (at + 0.5) * cell;
}

export interface Alignment {
  read: string[];
  written: string[];
  /** (written, read) */
  weights: Float32Array[];
  /** The written letter under the pointer. */
  over: number | null;
}

export const ALIGNMENT_HEIGHT = 210;

/** Input letters above, output letters below, and lines as strong as the attention between them. */
export function drawAlignment({ read, written, weights, over }: Alignment): Draw {
  return (pen, { width, height }, theme) => {
    const count = Math.max(read.length, written.length);
    const [top, bottom] = [22, height - 22];
    const strongest = (at: number) => (over === null ? 0 : (weights[over]?.[at] ?? 0));
    const x = row(pen, read, top, width, theme, count, (at) => ({ ink: theme.ink, back: strongest(at) > 0.02 ? tinted(theme.hover, strongest(at)) : null }));
    row(pen, written, bottom, width, theme, count, (at) => ({ ink: over === at ? theme.background : theme.accent, back: over === at ? theme.accent : null }));
    weights.forEach((weight, w) => {
      for (let r = 0; r < read.length; r++) {
        if (weight[r] < 0.03) continue;
        const faded = over !== null && over !== w;
        pen.globalAlpha = Math.min(1, weight[r]) * (faded ? 0.1 : over === w ? 1 : 0.6);
        pen.strokeStyle = over === w ? theme.accent : theme.hover;
        pen.lineWidth = 0.6 + 3.4 * weight[r];
        pen.beginPath();
        pen.moveTo(x(w), bottom - 23);
        pen.bezierCurveTo(x(w), height / 2, x(r), height / 2, x(r), top + 23);
        pen.stroke();
      }
    });
    pen.globalAlpha = 1;
  };
}

export interface LookBack {
  read: string[];
  /** The query letter. */
  from: number;
  /** For each visible head: its color and its weights over the letters. */
  heads: { color: string; weights: Float32Array }[];
  /** The predicted next letter. */
  next: string;
}

export const LOOK_BACK_HEIGHT = 200;

/** One row of letters with arcs above it, from the query letter to those that heads look at; the prediction follows. */
export function drawLookBack({ read, from, heads, next }: LookBack): Draw {
  return (pen, { width, height }, theme) => {
    const count = read.length + 1;
    const y = height - 22;
    const looked = (at: number) => Math.max(0, ...heads.map(({ weights }) => weights[at] ?? 0));
    const shown = [...read, from === read.length - 1 ? next : ""];
    const x = row(pen, shown, y, width, theme, count, (at) => {
      if (at === read.length) return { ink: theme.background, back: next && from === read.length - 1 ? theme.accent : null };
      if (at === from) return { ink: theme.background, back: theme.ink };
      return { ink: at > from ? theme.line : theme.ink, back: looked(at) > 0.03 ? tinted(theme.hover, 0.7 * looked(at)) : null };
    });
    const tallest = (y - 30) / 0.98;
    heads.forEach(({ color, weights }) => {
      for (let k = 0; k <= from; k++) {
        const weight = weights[k];
        if (!(weight > 0.03)) continue;
        pen.globalAlpha = Math.min(1, 0.12 + 0.88 * weight);
        pen.strokeStyle = color;
        pen.lineWidth = 0.8 + 3.2 * weight;
        pen.beginPath();
        const [a, b] = [x(from), x(k)];
        if (k === from) pen.arc(a, y - 28, 6, 0, 2 * Math.PI);
        else {
          const up = Math.min(tallest, 14 + Math.abs(a - b) * 0.55);
          pen.moveTo(a, y - 22);
          pen.bezierCurveTo(a, y - 22 - up * 1.25, b, y - 22 - up * 1.25, b, y - 22);
        }
        pen.stroke();
      }
    });
    pen.globalAlpha = 1;
  };
}

const tinted = (color: string, share: number) => `${color}${Math.round(255 * Math.min(0.6, 0.6 * share)).toString(16).padStart(2, "0")}`;
