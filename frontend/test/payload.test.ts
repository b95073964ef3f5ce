// @vitest-environment node
import { describe, expect, it } from "vitest";
import { decode, decodeBody, halfToNumber, inflate, slice } from "../src/core/payload";

const header = {
  view: "tokens",
  version: 1,
  meta: { name: "ä" },
  arrays: {
    "map.scale": { dtype: "float32", shape: [2, 2], offset: 0, length: 16 },
    map: { dtype: "uint8", shape: [2, 2, 3], offset: 16, length: 12, scale: "map.scale" },
    roots: { dtype: "int16", shape: [2, 2], offset: 40, length: 8, scale: "roots.scale", squared: true },
    "roots.scale": { dtype: "float32", shape: [2], offset: 8, length: 8 },
    half: { dtype: "float16", shape: [2], offset: 32, length: 4 },
  },
};

function buffer(): ArrayBuffer {
  const bytes = new ArrayBuffer(48);
  new Float32Array(bytes, 0, 4).set([1, 2, 4, 8]);
  new Uint8Array(bytes, 16, 12).set([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
  new Int16Array(bytes, 40, 4).set([0, -3, 300, 2]);
  new Uint16Array(bytes, 32, 2).set([0x3c00, 0xc000]);
  return bytes;
}

describe("a payload", () => {
  it("multiplies each row with its own scale", () => {
    const payload = decode(JSON.stringify(header), buffer());
    expect(Array.from(payload.values("map"))).toEqual([0, 1, 2, 6, 8, 10, 24, 28, 32, 72, 80, 88]);
    expect(payload.array("map").shape).toEqual([2, 2, 3]);
  });

  it("squares roots, and keeps their sign", () => {
    expect(Array.from(decode(JSON.stringify(header), buffer()).values("roots"))).toEqual([0, -36, 720000, 32]);
  });

  it("gives any part of it, across rows", () => {
    const payload = decode(JSON.stringify(header), buffer());
    const all = Array.from(payload.values("map"));
    for (let start = 0; start < 12; start++) {
      for (let count = 0; start + count <= 12; count++) {
        expect(Array.from(slice(payload.array("map"), start, count))).toEqual(all.slice(start, start + count));
      }
    }
  });

  it("is read from a view into a larger buffer, wherever it starts", () => {
    const larger = new Uint8Array(60);
    larger.set(new Uint8Array(buffer()), 3);
    const payload = decode(JSON.stringify(header), new DataView(larger.buffer, 3, 48));
    expect(Array.from(payload.values("half"))).toEqual([1, -2]);
  });

  it("is read from one body", () => {
    const text = new TextEncoder().encode(JSON.stringify(header));
    const start = Math.ceil((4 + text.length) / 8) * 8;
    const body = new Uint8Array(start + 48);
    new DataView(body.buffer).setUint32(0, text.length, true);
    body.set(text, 4);
    body.set(new Uint8Array(buffer()), start);
    const payload = decodeBody(body.buffer);
    expect(payload.meta).toEqual({ name: "ä" });
    expect(payload.values("map")[11]).toBe(88);
  });

  it("of another version is refused, as is an array that is not there", () => {
    expect(() => decode(JSON.stringify({ ...header, version: 2 }), buffer())).toThrow("version 2");
    expect(() => decode(JSON.stringify(header), buffer()).array("nothing")).toThrow("nothing");
  });

  it("comes out of a file as it went in", async () => {
    const stream = new Blob([buffer()]).stream().pipeThrough(new CompressionStream("deflate"));
    const packed = new Uint8Array(await new Response(stream).arrayBuffer());
    expect(new Uint8Array(await inflate(btoa(String.fromCharCode(...packed))))).toEqual(new Uint8Array(buffer()));
  });
});

describe("binary16", () => {
  it("knows zeros, small numbers, ordinary ones and those that are none", () => {
    expect([0, 1, 0x3c00, 0x3555, 0xc000, 0x7bff].map(halfToNumber)).toEqual([0, 2 ** -24, 1, 0.333251953125, -2, 65504]);
    expect(halfToNumber(0x7c00)).toBe(Infinity);
    expect(halfToNumber(0x7e00)).toBeNaN();
  });
});
