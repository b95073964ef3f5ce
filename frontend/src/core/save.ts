// Saves any view as PNG or SVG: its canvases in their arrangement, under a title.

import type { Shown } from "./canvas";
import { escape, type Pen, SvgPen } from "./pen";
import type { Theme } from "./theme";

interface Placed extends Shown {
  x: number;
  y: number;
}

const MARGIN = 20;

interface Plan {
  width: number;
  height: number;
  placed: Placed[];
}

/** The positions of the pictures relative to each other. */
export function arrange(pictures: Iterable<Shown>): Plan {
  const boxes = [...pictures]
    .map((one) => ({ one, box: one.element.getBoundingClientRect() }))
    .filter(({ box, one }) => box.width > 1 && box.height > 1 && one.size.width > 0);
  const left = Math.min(...boxes.map(({ box }) => box.left));
  const top = Math.min(...boxes.map(({ box }) => box.top));
  const placed = boxes.map(({ one, box }) => ({ ...one, x: (box.left - left) / one.zoom, y: (box.top - top) / one.zoom }));
  return {
    width: Math.max(0, ...placed.map((p) => p.x + p.size.width)),
    height: Math.max(0, ...placed.map((p) => p.y + p.size.height)),
    placed,
  };
}

/** A text in lines that fit, broken between words. */
export function lines(pen: Pick<Pen, "measureText">, text: string, width: number): string[] {
  const found: string[] = [];
  for (const word of text.split(" ").filter(Boolean)) {
    const longer = found.length ? `${found[found.length - 1]} ${word}` : word;
    if (found.length && pen.measureText(longer).width <= width) found[found.length - 1] = longer;
    else found.push(word);
  }
  return found;
}

const LINE = 17;

/** Write the title and the line about what is shown, which may need several; returns where the pictures begin. */
function heading(pen: Pen, title: string, subtitle: string, theme: Theme, width: number): number {
  pen.fillStyle = theme.ink;
  pen.textAlign = "left";
  pen.textBaseline = "alphabetic";
  pen.font = `600 18px ${theme.font}`;
  pen.fillText(title, MARGIN, MARGIN + 14);
  pen.fillStyle = theme.muted;
  pen.font = `12px ${theme.font}`;
  const said = lines(pen, subtitle, width);
  said.forEach((line, i) => pen.fillText(line, MARGIN, MARGIN + 34 + LINE * i));
  return MARGIN + (said.length ? 33 + LINE * said.length : 30);
}

export function toSvg(pictures: Iterable<Shown>, title: string, subtitle: string, theme: Theme): Blob {
  const plan = arrange(pictures);
  const head = new SvgPen("t");
  const top = heading(head, title, subtitle, theme, plan.width);
  const [width, height] = [plan.width + 2 * MARGIN, plan.height + top + MARGIN];
  const parts = plan.placed.map(({ draw, size, x, y }, i) => {
    const pen = new SvgPen(`p${i}-`);
    draw(pen, size, theme, true);
    return `<g transform="translate(${x + MARGIN} ${y + top})">${pen.content}</g>`;
  });
  const text =
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">` +
    `<title>${escape(title)}</title><rect width="100%" height="100%" fill="${theme.background}"/>` +
    `${head.content}${parts.join("")}</svg>`;
  return new Blob([text], { type: "image/svg+xml" });
}

export function toPng(pictures: Iterable<Shown>, title: string, subtitle: string, theme: Theme): Promise<Blob> {
  const plan = arrange(pictures);
  const top = heading(new SvgPen("t"), title, subtitle, theme, plan.width);
  const [width, height] = [plan.width + 2 * MARGIN, plan.height + top + MARGIN];
  // Fine enough to print, and within the size that every browser allows.
  const ratio = Math.max(1, Math.min(3, 8000 / Math.max(width, height)));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d")!;
  pen.scale(ratio, ratio);
  pen.fillStyle = theme.background;
  pen.fillRect(0, 0, width, height);
  heading(pen, title, subtitle, theme, plan.width);
  for (const { draw, size, x, y } of plan.placed) {
    pen.save();
    pen.translate(x + MARGIN, y + top);
    pen.beginPath();
    pen.rect(0, 0, size.width, size.height);
    pen.clip();
    draw(pen, size, theme, true);
    pen.restore();
  }
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the picture is too large"))), "image/png"),
  );
}
