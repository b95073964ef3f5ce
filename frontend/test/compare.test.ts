import { describe, expect, it } from "vitest";
import { Layer, type LayerAbout } from "../src/maps/layer";
import { flow, wordAt } from "../src/maps/textflow";
import { cellOn, type ComparedLayer } from "../src/views/compare";
import { weightsOf, wordsOf } from "../src/views/mixed";

describe("a comparison", () => {
  // The second text has a word more, at place 1.
  const pairs: [number, number][] = [[0, 0], [1, 2], [2, 3]];
  const about = { rows: pairs, columns: pairs } as unknown as ComparedLayer;
  it("marks the cell that belongs to the one under the pointer", () => {
    const over = { side: 0, cell: { q: 1, k: 2 } };
    expect(cellOn(about, over, 0)).toEqual({ q: 1, k: 2 });
    expect(cellOn(about, over, 1)).toEqual({ q: 2, k: 3 });
    expect(cellOn(about, over, 2)).toEqual({ q: 1, k: 2 });
    expect(cellOn(about, { side: 2, cell: { q: 2, k: 0 } }, 1)).toEqual({ q: 3, k: 0 });
  });
  it("marks nothing for a word that the other side does not have", () => {
    expect(cellOn(about, { side: 1, cell: { q: 1, k: 1 } }, 0)).toBeNull();
    expect(cellOn(about, { side: 1, cell: { q: 1, k: 2 } }, 0)).toEqual({ q: -1, k: 1 });
    expect(cellOn(about, null, 1)).toBeNull();
  });
});

describe("text with an image in it", () => {
  const meta = { segments: [{ start: 0, count: 2, grid: null }, { start: 2, count: 4, grid: [2, 2] as [number, number] }, { start: 6, count: 1, grid: null }], tokens: ["a", "b", "p", "p", "p", "p", "c"] };
  it("has the words beside the picture, in paragraphs", () => {
    const words = wordsOf(meta);
    expect(words.map(({ at, text, first }) => [at, text, first])).toEqual([[0, "a", true], [1, "b", false], [6, "c", true]]);
    const { boxes } = flow(words, 200);
    expect(boxes[0].y).toBe(boxes[1].y);
    expect(boxes[2].y).toBeGreaterThan(boxes[1].y);
    expect(wordAt(words, boxes[2].x + 2, boxes[2].y + 2, { width: 200, height: 100 })).toBe(6);
    expect(wordAt(words, 199, 2, { width: 200, height: 100 })).toBeNull();
    expect(flow(words, 20).height).toBeGreaterThan(flow(words, 200).height);
  });
  it("shows what a token looks at, and who looks at it", () => {
    const data = Float32Array.from({ length: 9 }, (_, i) => i);
    const layer = (rows: number[] | null) => new Layer({ name: "x", heads: [0], queries: 3, keys: 3, rows } as LayerAbout, { shape: [1, 3, 3], data, scale: null, block: 9 });
    expect([...weightsOf(layer(null), 0, 1, "from")!]).toEqual([3, 4, 5]);
    expect([...weightsOf(layer(null), 0, 1, "to")!]).toEqual([1, 4, 7]);
    expect(weightsOf(layer([0, 2, 5]), 0, 1, "from")).toBeNull();
    expect([...weightsOf(layer([0, 2, 5]), 0, 1, "to")!]).toEqual([1, 0, 4, 0, 0, 7]);
  });
});
