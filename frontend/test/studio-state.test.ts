// The studio's lists, uploads, comparisons and addresses, as functions.

import { beforeEach, describe, expect, it } from "vitest";
import { recalled, remember } from "../src/core/memory";
import { type Header, Payload } from "../src/core/payload";
import type { RunSummary } from "../src/studio/api";
import { difference } from "../src/studio/compare";
import { valueAt } from "../src/views/chart";
import { chosenOf } from "../src/studio/image";
import { parse } from "../src/studio/route";
import { found, grouped } from "../src/studio/runs";
import { cropNote, LONGEST, sentSize } from "../src/studio/upload";

const run = (id: string, recipe: string, accuracy: number | null = null) => ({ id, title: id, recipe, accuracy, state: "finished" }) as RunSummary;

describe("the list of runs", () => {
  const runs = [run("b-10", "demo", 0.5), run("b-9", "demo", 0.9), run("a", "text")];
  it("is searched by all words, in any order", () => {
    expect(found(runs, "DEMO b", "latest").map(({ id }) => id)).toEqual(["b-10", "b-9"]);
    expect(found(runs, "demo text", "latest")).toEqual([]);
  });
  it("is sorted, numbers by their size, what was not measured last", () => {
    expect(found(runs, "", "name").map(({ id }) => id)).toEqual(["a", "b-9", "b-10"]);
    expect(found(runs, "", "accuracy").map(({ id }) => id)).toEqual(["b-9", "b-10", "a"]);
  });
  it("is grouped by recipe", () => {
    expect(grouped(runs).map(([name, some]) => [name, some.length])).toEqual([["demo", 2], ["text", 1]]);
  });
});

describe("an image of one's own", () => {
  it("is sent as it is unless it is large", () => {
    expect(sentSize(640, 480, 1e5)).toEqual([640, 480]);
    expect(sentSize(4 * LONGEST, LONGEST, 1e5)).toEqual([LONGEST, LONGEST / 4]);
  });
  it("is said to be cut as the server cuts it", () => {
    expect(cropNote(400, 300, [3, 32, 32])).toContain("the middle 300 × 300 of 400 × 300 pixels, without its left and right, scaled to 32 × 32");
    expect(cropNote(32, 32, [3, 32, 32])).toContain("all of its 32 × 32 pixels, as they are");
    expect(cropNote(30, 90, [1, 28, 28])).toContain("top and bottom");
  });
});

describe("what stands in the address", () => {
  const studio = { kind: "studio" as const };
  beforeEach(() => history.replaceState(null, "", "#/run/a/image"));
  it("is beside the place on the page, and comes back", () => {
    remember(studio, "image", { layer: 2, head: "mean" });
    remember(studio, "", { sample: "test/5" }, true);
    expect(location.hash).toBe("#/run/a/image?image.layer=2&image.head=mean&sample=test/5");
    expect(recalled(studio, "image")).toEqual({ layer: "2", head: "mean" });
    expect(recalled(studio, "")).toEqual({ sample: "test/5" });
    expect(parse(location.hash)).toEqual({ run: "a", tab: "image" });
    remember(studio, "image", { layer: null, head: null });
    remember(studio, "", { sample: null });
    expect(location.hash).toBe("#/run/a/image");
  });
  it("is nothing in a notebook, whose address is not ours", () => {
    remember({ kind: "notebook" }, "image", { layer: 2 });
    expect(location.hash).toBe("#/run/a/image");
  });
  it("names an image, or else the first that there is", () => {
    expect(chosenOf("test/7", ["shipped", "test"], 0)).toEqual({ source: "test", index: 7 });
    expect(chosenOf("mine/0", ["test"], 1)).toEqual({ mine: 0 });
    for (const wrong of ["mine/-1", "mine/0.5", "mine/", "test/1.5", "test/-1", "test/1e1"]) expect(chosenOf(wrong, ["test"], 2)).toEqual({ source: "test", index: 0 });
    expect(chosenOf("mine/0", ["test"], 0)).toEqual({ source: "test", index: 0 });
    expect(chosenOf(null, [], 0)).toBeNull();
  });
});

function maps(values: number[]): Payload {
  const data = Float32Array.from(values);
  const layer = { name: "a", heads: [0, 1], queries: 1, keys: 2, notes: [] };
  const header = { view: "tokens", version: 1, meta: { layers: [layer], notes: [], tokens: {} }, arrays: { map0: { dtype: "float32", shape: [2, 1, 2], offset: 0, length: 16 } } };
  return new Payload(header as unknown as Header, data.buffer);
}

describe("two networks", () => {
  it("differ by what one gives more than the other, and the view opens where that is most", () => {
    const made = difference(maps([0.5, 0.5, 1, 0]), maps([0.4, 0.6, 0, 1]), "step 3");
    const apart = [...made.values("map0")];
    [0.1, -0.1, 1, -1].forEach((value, i) => expect(apart[i]).toBeCloseTo(value));
    const meta = made.meta as unknown as { opening: { head: number }; layers: { signed: boolean }[]; notes: string[] };
    expect(meta.opening.head).toBe(1);
    expect(meta.layers[0].signed).toBe(true);
    expect(meta.notes.join()).toContain("step 3");
  });
  it("say so where they wrote different tokens", () => {
    const [one, two] = [["a", "b"], ["a", "c"]].map((target) => Object.assign(maps([0, 0, 0, 0]), { meta: { ...maps([0, 0, 0, 0]).meta, tokens: { target } } }));
    const notes = (made: Payload) => (made.meta as { notes: string[] }).notes.join();
    expect(notes(difference(one, two, "x"))).toContain("has other tokens (a c)");
    expect(notes(difference(one, one, "x"))).not.toContain("other tokens");
  });
  it("of different sizes are not compared", () => {
    const other = maps([0, 0, 0, 0]);
    (other.meta as unknown as { layers: { keys: number }[] }).layers[0].keys = 3;
    expect(() => difference(maps([0, 0, 0, 0]), other, "x")).toThrow("cannot be compared");
  });
  it("are read at a step, or at the end", () => {
    const series = { steps: [1, 5, 9], values: [10, 20, 30] };
    expect([valueAt(series, series.values, 4), valueAt(series, series.values, null), valueAt(series, series.values, 50)]).toEqual([20, 30, 30]);
  });
});
