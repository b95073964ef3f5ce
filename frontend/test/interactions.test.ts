// What people do with heads, patches and spans of tokens, as functions.

import { describe, expect, it } from "vitest";
import { type LayerAbout, patternOptions, sortedHeads } from "../src/maps/layer";
import { clicked } from "../src/maps/legend";
import { inSpan, massOf, type Span, spanOf, spanText } from "../src/maps/span";
import { spanView } from "../src/maps/heat";
import { loopsOf, strongest } from "../src/maps/strongest";
import { makeTable } from "../src/maps/table";

describe("heads in a legend", () => {
  it("are turned over one by one, and the last one never goes", () => {
    expect([...clicked(new Set(), 3, 1, false)]).toEqual([1]);
    expect([...clicked(new Set([1]), 3, 1, false)]).toEqual([]);
    expect([...clicked(new Set([0, 1]), 3, 2, false)]).toEqual([]);
  });
  it("are shown alone, and once more all together", () => {
    const alone = clicked(new Set([0]), 4, 2, true);
    expect([...alone].sort()).toEqual([0, 1, 3]);
    expect(clicked(alone, 4, 2, true).size).toBe(0);
  });
  it("are filtered by what they do", () => {
    const about = { heads: [4, 5, 6], patterns: ["previous", "other", "previous"] } as LayerAbout;
    expect(sortedHeads(about, "place", false, "previous")).toEqual([0, 2]);
    expect(sortedHeads(about, "place", false)).toEqual([0, 1, 2]);
    expect(patternOptions([about]).map(([name]) => name)).toEqual(["any", "previous", "other"]);
  });
});

describe("the strongest patches", () => {
  it("are the fewest that hold the share", () => {
    const row = Float32Array.from([0.1, 0.4, 0.05, 0.3, 0.15]);
    expect([...strongest(row, 0.6)]).toEqual([0, 1, 0, 1, 0]);
    expect([...strongest(row, 0.4)]).toEqual([0, 1, 0, 0, 0]);
    expect([...strongest(row, 1)]).toEqual([1, 1, 1, 1, 1]);
    expect([...strongest(new Float32Array(3), 0.5)]).toEqual([0, 0, 0]);
  });
  it("are surrounded by closed lines whose area is theirs", () => {
    for (let seed = 1; seed < 40; seed++) {
      const inside = Uint8Array.from({ length: 30 }, (_, i) => (Math.sin(seed * 12.9898 + i * 78.233) > 0.2 ? 1 : 0));
      const loops = loopsOf(inside, [5, 6]);
      let twice = 0;
      for (const loop of loops) {
        expect(loop.length % 2).toBe(0);
        loop.forEach((a, i) => {
          const b = loop[(i + 1) % loop.length];
          expect(a.x === b.x || a.y === b.y).toBe(true);
          expect([Math.abs(a.dx), Math.abs(a.dy)]).toEqual([1, 1]);
          twice += a.x * b.y - b.x * a.y;
        });
      }
      expect(twice / 2).toBe(inside.reduce((sum, one) => sum + one, 0));
    }
  });
});

describe("a span of tokens", () => {
  const labels = ["a", "b", "c", "d"];
  const table = makeTable(Float32Array.from([1, 0, 0, 0, 0.5, 0.5, 0, 0, 0.2, 0.3, 0.5, 0, 0.1, 0.2, 0.3, 0.4]), 4, labels, labels, false, [1, 2, 3, 4]);
  it("holds a share of the attention, beside what uniform attention would give", () => {
    const { mass, uniform, queries, keys } = massOf(table, spanOf({ q: 3, k: 1 }, { q: 2, k: 0 }));
    expect([queries, keys]).toEqual([2, 2]);
    expect(mass).toBeCloseTo((0.5 + 0.3) / 2);
    expect(uniform).toBeCloseTo((2 / 3 + 2 / 4) / 2);
  });
  it("counts keys whose weight was rounded to zero, and none that a mask hides", () => {
    const causal = new Float32Array([1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    const span = { q: [2, 2], k: [1, 2] } as Span;
    expect(massOf(makeTable(causal, 4, labels, labels, false, [1, 2, 3, 4]), span).uniform).toBeCloseTo(2 / 3);
    const special = ["[CLS]", "b", "c", "[SEP]"]; // of b and c, only b is before b
    const hidden = makeTable(new Float32Array([1, 0, 0, 0, 0.5, 0.5, 0, 0, 0.3, 0.3, 0.4, 0, 0.2, 0.3, 0.4, 0.1]), 4, special, special, true, [1, 2, 3, 4]);
    expect(massOf(hidden, { q: [0, 0], k: [0, 1] }).uniform).toBeCloseTo(1 / 2);
    const window = makeTable(new Float32Array([0, 0, 0.5, 0.5]), 4, ["d"], labels, false, [2]);
    expect(massOf(window, { q: [0, 0], k: [0, 2] }).uniform).toBeCloseTo(1 / 2);
  });
  it("of labels alone takes all of the other side", () => {
    const span = spanOf({ q: 1, k: -1 }, { q: 2, k: -1 });
    expect(span).toEqual({ q: [1, 2], k: null });
    expect(inSpan(span, 1, 3)).toBe(true);
    expect(inSpan(span, 0, 3)).toBe(false);
    expect(massOf(table, span).mass).toBeCloseTo(1);
    expect([spanText(labels, span.q), spanText(labels, span.k), spanText(labels, [0, 3])]).toEqual(["“b c”", "all tokens", "“a … d”"]);
  });
  it("can fill the picture", () => {
    const view = spanView(table, { q: [2, 3], k: [0, 1] });
    expect(view).toEqual({ q: 2, k: 0, zoom: 2 });
  });
});
