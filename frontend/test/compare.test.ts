import { describe, expect, it } from "vitest";
import { joined, Payload } from "../src/core/payload";
import { Layer, type LayerAbout, layersOf, type Opening } from "../src/maps/layer";
import { apart, difference, secondOf, secondOptions } from "../src/maps/second";
import type { Table } from "../src/maps/table";
import { whole } from "../src/maps/heat";
import { flow, wordAt } from "../src/maps/textflow";
import { cellOn, type ComparedLayer, viewOn } from "../src/views/compare";
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
  it("shows the matching part of every side", () => {
    const names = (count: number) => Array.from({ length: count }, (_, i) => String(i));
    const tables = [3, 4, 3].map((count) => ({ queries: names(count), keys: names(count) }) as Table);
    const seen = { side: 0, view: { q: 1, k: 0, zoom: 3 } }; // one token in the middle of each side: 1 and 0
    expect(viewOn(about, seen, tables, 0)).toBe(seen.view);
    const middle = (side: number) => {
      const { q, k, zoom } = viewOn(about, seen, tables, side);
      return [q + tables[side].queries.length / zoom / 2, k + tables[side].keys.length / zoom / 2];
    };
    expect(middle(1)).toEqual([2.5, 0.5].map((at) => expect.closeTo(at)));
    expect(middle(2)).toEqual([1.5, 0.5].map((at) => expect.closeTo(at)));
    expect(viewOn(about, { side: 0, view: whole }, tables, 1)).toEqual(whole);
    expect(viewOn({ ...about, rows: [] }, seen, tables, 1).q).toBeCloseTo(4 / 3); // nothing matches: the same share
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
    const layer = (rows: number[] | null) => new Layer({ name: "x", heads: [0], queries: 3, keys: 3, rows } as LayerAbout, { shape: [1, 3, 3], data, scale: null, squared: false, block: 9 });
    expect([...weightsOf(layer(null), 0, 1, "from")!]).toEqual([3, 4, 5]);
    expect([...weightsOf(layer(null), 0, 1, "to")!]).toEqual([1, 4, 7]);
    expect(weightsOf(layer([0, 2, 5]), 0, 1, "from")).toBeNull();
    expect([...weightsOf(layer([0, 2, 5]), 0, 1, "to")!]).toEqual([1, 0, 4, 0, 0, 7]);
  });
});

describe("a second head", () => {
  const about = (name: string, heads: number, queries: number, keys: number) => ({ name, heads: Array.from({ length: heads }, (_, i) => i + 1), queries, keys, rows: null }) as unknown as LayerAbout;
  const layer = (name: string, heads: number, queries: number, keys: number) => new Layer(about(name, heads, queries, keys), null);
  const layers = [layer("a", 2, 3, 3), layer("b", 1, 3, 3), layer("c", 2, 2, 3)];
  it("is any of a layer with maps of the same size, by its number", () => {
    expect(secondOptions(layers, { layer: 0, which: 1 })).toEqual([["", "no other head"], ["0.0", "a · head 1"], ["0.mean", "a · mean over heads"], ["1.0", "b · head 1"]]);
    expect(secondOptions(layers.slice(0, 1), { layer: 0, which: "mean" })).toEqual([["", "no other head"], ["0.0", "head 1"], ["0.1", "head 2"]]);
  });
  it("is read from an address, if it is there and fits", () => {
    expect(secondOf("1.0", layers, layers[0])).toEqual({ layer: 1, which: 0 });
    expect(secondOf("0.mean", layers, layers[0])).toEqual({ layer: 0, which: "mean" });
    for (const wrong of ["1.1", "2.0", "9.0", "0.x", "0.-1", "0.0x", "1.", "0.1e0", "", null]) expect(secondOf(wrong, layers, layers[0])).toBeNull();
  });
  it("differs by as much as lies elsewhere", () => {
    const table = (weights: number[]) => ({ queries: ["q", "r"], weights: Float32Array.from(weights) }) as unknown as Table;
    const less = difference(Float32Array.from([0, 1, 0.5, 0.5]), Float32Array.from([1, 0, 0.5, 0.5]));
    expect([...less]).toEqual([-1, 1, 0, 0]);
    expect(apart(table([...less]))).toBe(0.5);
  });
});

describe("maps that are still being read", () => {
  it("are empty, but for the head that the view opens on", () => {
    const meta = { layers: [{ name: "a", heads: [0, 1], queries: 1, keys: 2, visible: 2 }], opening: { layer: 0, head: 1, why: "" } };
    const arrays = { opening: { dtype: "float32", shape: [1, 2], offset: 0, length: 8 }, map0: { dtype: "float32", shape: [2, 1, 2], offset: 8, length: 16 } };
    const numbers = Float32Array.from([0.25, 0.75, 0.5, 0.5, 0.25, 0.75]);
    const payload = (bytes: number) => new Payload({ view: "tokens", version: 1, meta, arrays } as never, numbers.buffer.slice(0, bytes)) as unknown as Payload<{ layers: LayerAbout[]; opening: Opening }>;
    const [early] = layersOf(payload(8));
    expect([early.complete, [...early.matrix(1)], [...early.matrix(0)], [...early.row(1, 0)]]).toEqual([false, [0.25, 0.75], [0, 0], [0.25, 0.75]]);
    const [whole] = layersOf(payload(24));
    expect([whole.complete, [...whole.matrix(0)]]).toEqual([true, [0.5, 0.5]]);
    expect(new Uint8Array(joined(numbers.buffer.slice(0, 8), numbers.buffer.slice(8)))).toEqual(new Uint8Array(numbers.buffer));
  });
});
