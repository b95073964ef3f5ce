// Names of tokens and of axes: all can be seen, and none is cut off.

import { expect, test } from "vitest";
import type { Pen } from "../src/core/pen";
import { themes } from "../src/core/theme";
import { drawArcs } from "../src/maps/arcs";
import { whole } from "../src/maps/heat";
import { makeTable, visible } from "../src/maps/table";

test("tokens that cannot be seen have signs, and no two of them look alike", () => {
  const unseen = ["", " ", "  ", "\n", "\r", "\r\n", "\t", "\x00", "\x7f", "\u00ad", "\u200b", "\u200b\u200b", "\u200d", "\ufeff"];
  const shown = unseen.map(visible);
  expect(new Set(shown).size).toBe(unseen.length);
  for (const text of shown) expect(text).toMatch(/^[∅␣⏎⇥␀-␡<>+0-9A-FU]+$/);
  expect(visible("\u202eevil")).toBe("<U+202E>evil");
  for (const same of ["word", "שלום", "👩‍👩‍👧‍👦", "می‌خواهم", "<b>", "e\u0301", "  x"]) expect(visible(same)).toBe(same);
  expect(["Ġthe", "▁the", "Ġ", "Ċ"].map(visible)).toEqual(["the", "the", "␣", "⏎"]);
});

test("the names of the axes of arcs are inside the picture, however short the tokens are", () => {
  const names = (count: number) => Array.from({ length: count }, (_, i) => String(i));
  const table = makeTable(new Float32Array(12).fill(1 / 4), 4, names(3), names(4), false);
  const said: { text: string; x: number; align: unknown }[] = [];
  const pen = new Proxy({ textAlign: "" } as Record<string, unknown>, {
    get: (all, name) => name in all ? all[name as string] : name === "measureText" ? (text: string) => ({ width: 6 * text.length }) : name === "fillText" ? (text: string, x: number) => said.push({ text, x, align: all.textAlign }) : () => undefined,
    set: (all, name, value) => ((all[name as string] = value), true),
  }) as unknown as Pen;
  drawArcs({ table, view: whole, over: null, pinned: null, axes: ["queries", "each query's own keys"], heads: null })(pen, { width: 300, height: 200 }, themes.light);
  for (const axis of ["queries", "each query's own keys"]) {
    const { x, align } = said.find(({ text }) => text === axis)!;
    const left = align === "right" ? x - 6 * axis.length : x;
    expect(left).toBeGreaterThanOrEqual(0);
    expect(left + 6 * axis.length).toBeLessThanOrEqual(300);
  }
});
