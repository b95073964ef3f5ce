import { describe, expect, it, test } from "vitest";
import { categorical, css, diverging, divergingNight, luminance, night, paper, plasma, table } from "../src/core/color";
import { SvgPen } from "../src/core/pen";
import { lines } from "../src/core/save";
import { themes } from "../src/core/theme";

const rgb = (hex: string): [number, number, number] => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)) as [number, number, number];
const contrast = (a: string, b: string): number => {
  const [low, high] = [luminance(rgb(a)), luminance(rgb(b))].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};

describe("colors", () => {
  it("of a ramp get steadily lighter or darker, so that no color vision is needed", () => {
    for (const [ramp, sign] of [[paper, -1], [night, 1], [plasma, 1]] as const) {
      for (let i = 0; i < 64; i++) expect(sign * (luminance(ramp((i + 1) / 64)) - luminance(ramp(i / 64)))).toBeGreaterThan(0);
    }
  });

  it("of weights with a sign go steadily apart from zero", () => {
    for (const [ramp, sign] of [[diverging, -1], [divergingNight, 1]] as const) {
      for (let i = 0; i < 32; i++) for (const side of [1, -1]) expect(sign * (luminance(ramp(0.5 + (side * (i + 1)) / 64)) - luminance(ramp(0.5 + (side * i) / 64)))).toBeGreaterThan(0);
    }
  });

  it("of text stand out from the page, in light and in dark", () => {
    for (const theme of Object.values(themes)) {
      for (const color of [theme.ink, theme.muted, theme.warn]) expect(contrast(color, theme.background)).toBeGreaterThan(4.5);
      for (const color of [theme.accent, theme.hover]) expect(contrast(color, theme.background)).toBeGreaterThan(3);
    }
  });

  it("come as bytes and as words", () => {
    expect(css([1, 2, 3], 0.5)).toBe("rgb(1 2 3 / 0.500)");
    const bytes = new Uint8Array(table(paper, (t) => t).buffer);
    expect(Array.from(bytes.subarray(0, 4))).toEqual([255, 255, 255, 0]);
    expect(bytes[1023]).toBe(255);
    expect(new Set(categorical).size).toBe(7);
  });
});

describe("the pen that writes SVG", () => {
  const parse = (pen: SvgPen): Document => new DOMParser().parseFromString(`<svg xmlns="http://www.w3.org/2000/svg">${pen.content}</svg>`, "image/svg+xml");

  it("writes a document that a reader accepts, whatever the text", () => {
    const pen = new SvgPen();
    pen.font = '600 12px "Segoe UI", sans-serif';
    for (const text of ['<a & "b">', "a\x00\x1b\x9b\ufffe\uffff\ud83d", "👩‍👩‍👧‍👦"]) pen.fillText(text, 1, 2);
    pen.fillStyle = "rgb(1 2 3 / 0.5)";
    pen.fillRect(0, 0, 5, 5);
    const found = parse(pen);
    expect(found.querySelector("parsererror")).toBeNull();
    expect([...found.querySelectorAll("text")].map((one) => one.textContent)).toEqual(['<a & "b">', "a\ufffd\ufffd\x9b\ufffd\ufffd\ufffd", "👩‍👩‍👧‍👦"]);
  });

  it("writes the opacity of a color apart from it, as SVG 1.1 has it", () => {
    const pen = new SvgPen();
    pen.fillStyle = "rgb(1 2 3 / 0.5)";
    pen.fillRect(0, 0, 5, 5);
    [pen.strokeStyle, pen.globalAlpha] = ["#01020333", 0.5];
    pen.strokeRect(0, 0, 5, 5);
    const [filled, stroked] = parse(pen).querySelectorAll("rect");
    expect(["fill", "fill-opacity"].map((name) => filled.getAttribute(name))).toEqual(["rgb(1,2,3)", "0.5"]);
    expect(["stroke", "stroke-opacity"].map((name) => stroked.getAttribute(name))).toEqual(["#010203", "0.1"]);
  });

  it("draws a whole ellipse, tilted", () => {
    const pen = new SvgPen();
    pen.beginPath();
    pen.ellipse(10, 20, 4, 2, Math.PI / 6, 0, 2 * Math.PI);
    pen.stroke();
    const path = parse(pen).querySelector("path")!.getAttribute("d")!;
    expect(path.match(/A4 2 30 0 1/g)).toHaveLength(2);
    const [start, end] = [/^M(\S+) (\S+?)A/.exec(path)!, / (\S+) (\S+)$/.exec(path)!];
    expect([end[1], end[2]].map(Number)).toEqual([start[1], start[2]].map(Number));
  });

  it("writes a picture down once, however often it is drawn", () => {
    const pen = new SvgPen("x");
    const image = { toDataURL: () => "data:image/png;base64,AAAA" } as unknown as HTMLCanvasElement;
    pen.translate(1, 1);
    for (const x of [0, 10]) pen.drawImage(image, x, 2, 30, 40);
    const found = parse(pen);
    expect(found.querySelectorAll("image")).toHaveLength(1);
    const uses = [...found.querySelectorAll("use")];
    expect(uses.map((use) => use.getAttribute("transform"))).toEqual(["matrix(30 0 0 40 1 3)", "matrix(30 0 0 40 11 3)"]);
    expect(uses[1].getAttribute("href")).toBe(`#${found.querySelector("image")!.id}`);
  });

  it("keeps what is saved: transforms, clips and styles end with restore", () => {
    const pen = new SvgPen();
    pen.save();
    pen.translate(3, 4);
    pen.rotate(Math.PI / 2);
    pen.beginPath();
    pen.rect(0, 0, 2, 2);
    pen.clip();
    pen.globalAlpha = 0.5;
    pen.fillRect(0, 0, 1, 1);
    pen.restore();
    pen.fillRect(0, 0, 1, 1);
    const found = parse(pen);
    const [first, second] = [...found.querySelectorAll("rect")];
    expect(first.getAttribute("transform")).toBe("matrix(0 1 -1 0 3 4)");
    expect(first.parentElement!.getAttribute("clip-path")).toBe(`url(#${found.querySelector("clipPath")!.id})`);
    expect(first.getAttribute("fill-opacity")).toBe("0.5");
    expect(second.getAttribute("transform")).toBeNull();
    expect(second.parentElement!.tagName).toBe("svg");
  });
});

test("what a saved picture says is broken into lines that fit, and no word is lost", () => {
  const pen = { measureText: (text: string) => ({ width: 6 * text.length }) };
  const said = "layer 0 · head 0 · the head furthest from uniform attention (5.0 bits)";
  for (const width of [1, 90, 200, 5000]) {
    const found = lines(pen, said, width);
    expect(found.join(" ")).toBe(said);
    for (const line of found) expect(6 * line.length <= width || !line.includes(" ")).toBe(true);
  }
  expect(lines(pen, said, 5000)).toHaveLength(1);
  expect(lines(pen, "", 100)).toEqual([]);
});
