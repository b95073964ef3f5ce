// Words in lines, each colored by its weight.

import type { Draw, Size } from "../core/canvas";
import { css } from "../core/color";
import type { Theme } from "../core/theme";
import { fitted } from "./atlas";
import { rampOf } from "./scale";

export interface Word {
  /** Its place in the sequence. */
  at: number;
  text: string;
  /** Begins a new paragraph: text after an image. */
  first: boolean;
}

export interface WordBox {
  at: number;
  x: number;
  y: number;
  width: number;
}

const LINE = 26;
const TALL = 21;
const SIZE = 13;

/** An estimate that is safe for any font, so that the height is known before drawing. */
const WIDTHS: [RegExp, number][] = [[/[\u2E80-\u{10FFFF}ЖШЩЮжшщю]/u, 13.5], [/[mwMW@%<>+=~#&]/, 13], [/[iljtf.,:;'!| ]/, 5.3], [/[A-Z\u00C0-\u2E7F]/, 10.4]];
const widthOf = (text: string): number => 10 + [...text].reduce((sum, letter) => sum + (WIDTHS.find(([kind]) => kind.test(letter))?.[1] ?? 8.4), 0);

export function flow(words: Word[], width: number): { boxes: WordBox[]; height: number } {
  const boxes: WordBox[] = [];
  let [x, y] = [0, 0];
  for (const word of words) {
    const room = Math.min(width - 2, widthOf(word.text));
    if (word.first && boxes.length) [x, y] = [0, y + LINE + 10];
    else if (x + room > width) [x, y] = [0, y + LINE];
    boxes.push({ at: word.at, x, y, width: room });
    x += room + 3;
  }
  return { boxes, height: y + LINE };
}

export function wordAt(words: Word[], x: number, y: number, size: Size): number | null {
  const found = flow(words, size.width).boxes.find((box) => x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + LINE);
  return found ? found.at : null;
}

export interface FlowState {
  words: Word[];
  /** The position of each token on the color scale, by its index in the sequence. */
  place: (at: number) => number;
  signed: boolean;
  query: number;
  pinned: boolean;
  over: number | null;
}

export function drawFlow(state: FlowState): Draw {
  return (pen, size, theme: Theme) => {
    const { boxes } = flow(state.words, size.width);
    const ramp = rampOf(theme, state.signed);
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    boxes.forEach((box, i) => {
      const t = state.place(box.at);
      const shade = ramp(state.signed ? (t + 1) / 2 : Math.max(0, t));
      pen.fillStyle = css(shade);
      pen.fillRect(box.x, box.y, box.width, TALL);
      const bright = 0.3 * shade[0] + 0.59 * shade[1] + 0.11 * shade[2];
      pen.fillStyle = bright > 140 ? "#1a1f26" : "#ffffff";
      pen.font = `${SIZE}px ${theme.font}`;
      pen.fillText(fitted(pen, state.words[i].text, box.width - 4), box.x + box.width / 2, box.y + TALL / 2 + 0.5);
      const marked = box.at === state.query ? (state.pinned ? theme.accent : theme.hover) : box.at === state.over ? theme.hover : theme.line;
      pen.strokeStyle = marked;
      pen.lineWidth = marked === theme.line ? 1 : 2.2;
      pen.strokeRect(box.x + 0.5, box.y + 0.5, box.width - 1, TALL - 1);
    });
  };
}
