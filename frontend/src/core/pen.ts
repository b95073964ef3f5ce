// A drawing is a function of a pen. A canvas is one pen, an SVG document another, so the saved file shows the same.

export interface Pen {
  fillStyle: string | CanvasGradient | CanvasPattern;
  strokeStyle: string | CanvasGradient | CanvasPattern;
  lineWidth: number;
  lineCap: CanvasLineCap;
  lineJoin: CanvasLineJoin;
  globalAlpha: number;
  font: string;
  textAlign: CanvasTextAlign;
  textBaseline: CanvasTextBaseline;
  imageSmoothingEnabled: boolean;
  save(): void;
  restore(): void;
  translate(x: number, y: number): void;
  rotate(angle: number): void;
  scale(x: number, y: number): void;
  beginPath(): void;
  closePath(): void;
  moveTo(x: number, y: number): void;
  lineTo(x: number, y: number): void;
  quadraticCurveTo(cx: number, cy: number, x: number, y: number): void;
  bezierCurveTo(ax: number, ay: number, bx: number, by: number, x: number, y: number): void;
  arc(x: number, y: number, radius: number, start: number, end: number): void;
  ellipse(x: number, y: number, rx: number, ry: number, turn: number, start: number, end: number): void;
  rect(x: number, y: number, width: number, height: number): void;
  fill(): void;
  stroke(): void;
  clip(): void;
  fillRect(x: number, y: number, width: number, height: number): void;
  strokeRect(x: number, y: number, width: number, height: number): void;
  fillText(text: string, x: number, y: number): void;
  measureText(text: string): { width: number };
  setLineDash(dashes: number[]): void;
  drawImage(image: HTMLCanvasElement, x: number, y: number, width: number, height: number): void;
}

/** Pixels per unit of the drawing. An image with more pixels than its place would lose some of them: pool it to fewer before. */
export const resolution = (pen: Pen): number => (pen as Partial<CanvasRenderingContext2D>).getTransform?.().a ?? 1;

type Matrix = [number, number, number, number, number, number];

interface State {
  fillStyle: string;
  strokeStyle: string;
  lineWidth: number;
  lineCap: CanvasLineCap;
  lineJoin: CanvasLineJoin;
  globalAlpha: number;
  font: string;
  textAlign: CanvasTextAlign;
  textBaseline: CanvasTextBaseline;
  imageSmoothingEnabled: boolean;
  dashes: number[];
  matrix: Matrix;
  clip: string | null;
}

const FRESH: State = {
  fillStyle: "#000",
  strokeStyle: "#000",
  lineWidth: 1,
  lineCap: "butt",
  lineJoin: "miter",
  globalAlpha: 1,
  font: "10px sans-serif",
  textAlign: "start",
  textBaseline: "alphabetic",
  imageSmoothingEnabled: true,
  dashes: [],
  matrix: [1, 0, 0, 1, 0, 0],
  clip: null,
};

const ANCHOR: Record<string, string> = { start: "start", left: "start", center: "middle", end: "end", right: "end" };
// The distance of the baseline below the given point, as a share of the font size.
const BASELINE: Record<string, number> = { alphabetic: 0, middle: 0.35, top: 0.8, hanging: 0.8, bottom: -0.2, ideographic: -0.2 };

/** The pen that writes SVG. */
export class SvgPen implements Pen {
  private state: State = { ...FRESH };
  private readonly stack: State[] = [];
  private readonly parts: string[] = [];
  private readonly definitions: string[] = [];
  private readonly smooth = new Map<HTMLCanvasElement, string>();
  private readonly sharp = new Map<HTMLCanvasElement, string>();
  private path = "";
  private ruler: CanvasRenderingContext2D | null | undefined;

  constructor(readonly name = "c") {}

  /** Everything drawn so far, as elements. */
  get content(): string {
    return (this.definitions.length ? `<defs>${this.definitions.join("")}</defs>` : "") + this.parts.join("");
  }

  get fillStyle(): string { return this.state.fillStyle; }
  set fillStyle(x: string | CanvasGradient | CanvasPattern) { this.state.fillStyle = String(x); }
  get strokeStyle(): string { return this.state.strokeStyle; }
  set strokeStyle(x: string | CanvasGradient | CanvasPattern) { this.state.strokeStyle = String(x); }
  get lineWidth() { return this.state.lineWidth; }
  set lineWidth(x) { this.state.lineWidth = x; }
  get lineCap() { return this.state.lineCap; }
  set lineCap(x) { this.state.lineCap = x; }
  get lineJoin() { return this.state.lineJoin; }
  set lineJoin(x) { this.state.lineJoin = x; }
  get globalAlpha() { return this.state.globalAlpha; }
  set globalAlpha(x) { this.state.globalAlpha = x; }
  get font() { return this.state.font; }
  set font(x) { this.state.font = x; }
  get textAlign() { return this.state.textAlign; }
  set textAlign(x) { this.state.textAlign = x; }
  get textBaseline() { return this.state.textBaseline; }
  set textBaseline(x) { this.state.textBaseline = x; }
  get imageSmoothingEnabled() { return this.state.imageSmoothingEnabled; }
  set imageSmoothingEnabled(x) { this.state.imageSmoothingEnabled = x; }

  save() { this.stack.push({ ...this.state }); }
  restore() { this.state = this.stack.pop() ?? this.state; }
  translate(x: number, y: number) { this.multiply([1, 0, 0, 1, x, y]); }
  rotate(angle: number) {
    const [c, s] = [Math.cos(angle), Math.sin(angle)];
    this.multiply([c, s, -s, c, 0, 0]);
  }
  scale(x: number, y: number) { this.multiply([x, 0, 0, y, 0, 0]); }
  setLineDash(dashes: number[]) { this.state.dashes = dashes; }

  beginPath() { this.path = ""; }
  closePath() { this.path += "Z"; }
  moveTo(x: number, y: number) { this.path += `M${n(x)} ${n(y)}`; }
  lineTo(x: number, y: number) { this.path += `${this.path ? "L" : "M"}${n(x)} ${n(y)}`; }
  quadraticCurveTo(cx: number, cy: number, x: number, y: number) { this.path += `Q${n(cx)} ${n(cy)} ${n(x)} ${n(y)}`; }
  bezierCurveTo(ax: number, ay: number, bx: number, by: number, x: number, y: number) {
    this.path += `C${n(ax)} ${n(ay)} ${n(bx)} ${n(by)} ${n(x)} ${n(y)}`;
  }
  rect(x: number, y: number, width: number, height: number) {
    this.path += `M${n(x)} ${n(y)}h${n(width)}v${n(height)}h${n(-width)}Z`;
  }
  arc(x: number, y: number, radius: number, start: number, end: number) { this.ellipse(x, y, radius, radius, 0, start, end); }
  ellipse(x: number, y: number, rx: number, ry: number, turn: number, start: number, end: number) {
    const at = (angle: number): [number, number] => {
      const [px, py] = [rx * Math.cos(angle), ry * Math.sin(angle)];
      return [x + px * Math.cos(turn) - py * Math.sin(turn), y + px * Math.sin(turn) + py * Math.cos(turn)];
    };
    const degrees = (turn * 180) / Math.PI;
    const sweep = end >= start ? 1 : 0;
    // An SVG arc cannot go all the way round, so every arc is drawn in two halves.
    const points = [start, (start + end) / 2, end].map(at);
    this.path += `${this.path && !this.path.endsWith("Z") ? "L" : "M"}${n(points[0][0])} ${n(points[0][1])}`;
    for (const [px, py] of points.slice(1)) this.path += `A${n(rx)} ${n(ry)} ${n(degrees)} 0 ${sweep} ${n(px)} ${n(py)}`;
  }

  fill() { this.emit(`<path d="${this.path}" ${this.paint("fill")}`, "/>"); }
  stroke() { this.emit(`<path d="${this.path}" fill="none"${this.line()}`, "/>"); }
  fillRect(x: number, y: number, width: number, height: number) {
    this.emit(`<rect ${box(x, y, width, height)} ${this.paint("fill")}`, "/>");
  }
  strokeRect(x: number, y: number, width: number, height: number) {
    this.emit(`<rect ${box(x, y, width, height)} fill="none"${this.line()}`, "/>");
  }
  clip() {
    const id = `${this.name}${this.definitions.length}`;
    const inside = this.state.clip ? ` clip-path="url(#${this.state.clip})"` : "";
    this.definitions.push(`<clipPath id="${id}"${inside}><path d="${this.path}"${this.transform()}/></clipPath>`);
    this.state.clip = id;
  }
  fillText(text: string, x: number, y: number) {
    const { textAlign, textBaseline, font } = this.state;
    const shift = (BASELINE[textBaseline] ?? 0) * fontSize(font);
    const place = `x="${n(x)}" y="${n(y + shift)}" text-anchor="${ANCHOR[textAlign]}"`;
    const looks = `style="font:${escape(font)}" ${this.paint("fill")} xml:space="preserve"`;
    this.emit(`<text ${place} ${looks}`, `>${escape(text)}</text>`);
  }
  measureText(text: string): { width: number } {
    this.ruler ??= document.createElement("canvas").getContext("2d");
    if (!this.ruler) return { width: text.length * fontSize(this.state.font) * 0.55 };
    this.ruler.font = this.state.font;
    return this.ruler.measureText(text);
  }
  drawImage(image: HTMLCanvasElement, x: number, y: number, width: number, height: number) {
    // One picture is often drawn many times with different clips, so it is stored once.
    const known = this.state.imageSmoothingEnabled ? this.smooth : this.sharp;
    let id = known.get(image);
    if (!id) {
      id = `${this.name}i${this.smooth.size + this.sharp.size}`;
      known.set(image, id);
      const style = this.state.imageSmoothingEnabled ? "" : ' style="image-rendering:pixelated"';
      this.definitions.push(`<image id="${id}" width="1" height="1" preserveAspectRatio="none" href="${image.toDataURL("image/png")}"${style}/>`);
    }
    const alpha = this.state.globalAlpha === 1 ? "" : ` opacity="${n(this.state.globalAlpha)}"`;
    this.save();
    this.translate(x, y);
    this.scale(width, height);
    this.emit(`<use href="#${id}"${alpha}`, "/>");
    this.restore();
  }

  private multiply([a, b, c, d, e, f]: Matrix) {
    const [A, B, C, D, E, F] = this.state.matrix;
    this.state.matrix = [A * a + C * b, B * a + D * b, A * c + C * d, B * c + D * d, A * e + C * f + E, B * e + D * f + F];
  }
  private transform(): string {
    const m = this.state.matrix;
    return m.every((x, i) => x === FRESH.matrix[i]) ? "" : ` transform="matrix(${m.map(n).join(" ")})"`;
  }
  /** The color and its opacity apart: readers of SVG 1.1 know neither "rgb(1 2 3 / 0.5)" nor "#01020380". */
  private paint(what: "fill" | "stroke"): string {
    const [color, opacity] = apart(this.state[`${what}Style`]);
    const whole = opacity * this.state.globalAlpha;
    return `${what}="${color}"${whole === 1 ? "" : ` ${what}-opacity="${n(whole)}"`}`;
  }
  private line(): string {
    const { lineWidth, lineCap, lineJoin, dashes } = this.state;
    const more = dashes.length ? ` stroke-dasharray="${dashes.map(n).join(" ")}"` : "";
    const ends = `${lineCap === "butt" ? "" : ` stroke-linecap="${lineCap}"`}${lineJoin === "miter" ? "" : ` stroke-linejoin="${lineJoin}"`}`;
    return ` ${this.paint("stroke")} stroke-width="${n(lineWidth)}"${ends}${more}`;
  }
  private emit(open: string, close: string) {
    const element = open + this.transform() + close;
    this.parts.push(this.state.clip ? `<g clip-path="url(#${this.state.clip})">${element}</g>` : element);
  }
}

const n = (x: number) => String(Math.round(x * 1000) / 1000);
const box = (x: number, y: number, w: number, h: number) => `x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}"`;
const fontSize = (font: string) => Number(/([\d.]+)px/.exec(font)?.[1] ?? 10);

/** A color without its opacity, and the opacity. */
function apart(style: string): [string, number] {
  const [, r, g, b, alpha = "1"] = /^rgb\((\d+) (\d+) (\d+)(?: \/ ([\d.]+))?\)$/.exec(style) ?? [];
  if (r !== undefined) return [`rgb(${r},${g},${b})`, Number(alpha)];
  const [, color, end] = /^(#[0-9a-f]{6})([0-9a-f]{2})$/i.exec(style) ?? [];
  return color === undefined ? [escape(style), 1] : [color, parseInt(end, 16) / 255];
}

/** Characters that no XML file may hold, not even escaped: a reader would refuse the whole picture. */
const REFUSED = /[^\t\n\r\x20-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu;

export function escape(text: string): string {
  return text.replace(REFUSED, "\ufffd").replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]!);
}
