// Names of tokens and of axes: all can be seen, and none is cut off.

import { expect, test } from "vitest";
import type { Pen } from "../src/core/pen";
import { themes } from "../src/core/theme";
import { drawArcs } from "../src/maps/arcs";
import { whole } from "../src/maps/heat";
import { quoted, weightTip } from "../src/maps/quote";
import { flow } from "../src/maps/textflow";
import { isSpecial, makeTable, visible } from "../src/maps/table";

test("tokens that cannot be seen have signs, and no two of them look alike", () => {
  const unseen = ["", " ", "  ", "\n", "\r", "\r\n", "\t", "\x00", "\x7f", "\u00ad", "\u200b", "\u200b\u200b", "\u200d", "\ufeff",
    "\x85", "\x9b", "\u2028", "\u2029", "\ufffe", "\u{10ffff}", "\u00a0", "\u3000", "\u2003", "\u3164", "\u{e0001}", "\u{e0041}", "\u{e0100}", "\ufff9", " \u00a0"];
  const shown = unseen.map(visible);
  expect(new Set(shown).size).toBe(unseen.length);
  for (const text of shown) expect(text).toMatch(/^[∅␣⏎⇥␀-␡<>+0-9A-FU]+$/);
  expect(visible("\u202eevil")).toBe("<U+202E>evil");
  for (const same of ["word", "שלום", "👩‍👩‍👧‍👦", "می‌خواهم", "<b>", "e\u0301", "  x", "10\u00a0km", "🏴\u{e0067}\u{e007f}"]) expect(visible(same)).toBe(same);
  expect(["Ġthe", "▁the", "Ġ", "Ċ"].map(visible)).toEqual(["the", "the", "␣", "⏎"]);
  expect(["ĠĠ", "▁▁▁", "ĊĊ", "ĊĊĠ", "ĠĠx", "cat</w>", "</w>"].map(visible)).toEqual(["␣␣", "␣␣␣", "⏎⏎", "⏎⏎␣", "␣␣x", "cat", "</w>"]);
});

test("bytes of a character are no special tokens", () => {
  expect(["<0xE4>", "<s>", "<|end|>", "[CLS]", "<0xE4F>", "x"].map(isSpecial)).toEqual([false, true, true, true, true, false]);
});

test("words from right to left turn nothing around them, and long ones hide nothing behind them", () => {
  expect(quoted("word")).toBe("“word”");
  for (const word of ["שלום", "مرحبا", "\u{1e900}"]) {
    expect(quoted(word)).toBe(`“\u2068${word}\u2069”`);
    expect(weightTip(word, "b", "3 %")).toBe(`\u2068${word}\u2069 → b  3 %`);
  }
  for (const said of [quoted("א".repeat(900)), weightTip("a".repeat(900), "א".repeat(900), "3 %")]) expect(said.length).toBeLessThan(70);
});

test("the names of the axes of arcs are inside the picture, however short the tokens are", () => {
  const names = (count: number) => Array.from({ length: count }, (_, i) => String(i));
  const table = makeTable(new Float32Array(12).fill(1 / 4), 4, names(3), names(4), false);
  const said: { text: string; x: number; align: unknown }[] = [];
  const pen = new Proxy({ textAlign: "" } as Record<string, unknown>, {
    get: (all, name) => name in all ? all[name as string] : name === "measureText" ? (text: string) => ({ width: 6 * text.length }) : name === "fillText" ? (text: string, x: number) => said.push({ text, x, align: all.textAlign }) : () => undefined,
    set: (all, name, value) => ((all[name as string] = value), true),
  }) as unknown as Pen;
  drawArcs({ table, view: whole, over: null, pinned: null, axes: ["queries", "each query's own keys"], heads: null, signed: false })(pen, { width: 300, height: 200 }, themes.light);
  for (const axis of ["queries", "each query's own keys"]) {
    const { x, align } = said.find(({ text }) => text === axis)!;
    const left = align === "right" ? x - 6 * axis.length : x;
    expect(left).toBeGreaterThanOrEqual(0);
    expect(left + 6 * axis.length).toBeLessThanOrEqual(300);
  }
});

test("arcs of a map with a sign have the colors of their signs", () => {
  const table = makeTable(Float32Array.from([0.5, -0.5]), 2, ["q"], ["more", "less"], false);
  const colors = (signed: boolean) => {
    const drawn: unknown[] = [];
    const pen = new Proxy({} as Record<string, unknown>, {
      get: (all, name) => name in all ? all[name as string] : name === "measureText" ? () => ({ width: 9 }) : name === "stroke" ? () => drawn.push(all.strokeStyle) : () => undefined,
      set: (all, name, value) => ((all[name as string] = value), true),
    }) as unknown as Pen;
    drawArcs({ table, view: whole, over: null, pinned: 0, axes: ["queries", "keys"], heads: null, signed })(pen, { width: 300, height: 200 }, themes.light);
    return drawn;
  };
  expect(new Set(colors(true)).size).toBe(2);
  expect(new Set(colors(false)).size).toBe(1);
});

test("words in lines have room for their letters, in a font as wide as DejaVu Sans", () => {
  // Widths in thousandths of the size of the font.
  const widths: Record<string, number> = { W: 989, M: 863, O: 787, U: 732, A: 684, m: 974, w: 818, o: 612, n: 634, i: 278, "<": 838, ">": 838, "+": 838, "#": 838, "&": 780, "2": 636, "0": 636, "%": 950, "~": 838, "Щ": 1040, "Ж": 1077, "Ω": 764 };
  for (const word of ["HOOUAM", "<U+200>", "oooooooooo", "nonnnonn", "WOMAN", "#include", "&amp;", "2000", "200%", "~~~", "ЖЩЖ"]) {
    const needed = [...word].reduce((sum, letter) => sum + 0.013 * (widths[letter] ?? 640), 0);
    const { boxes } = flow([{ at: 0, text: word, first: true }], 900);
    expect(boxes[0].width - 4, word).toBeGreaterThanOrEqual(needed);
  }
});
