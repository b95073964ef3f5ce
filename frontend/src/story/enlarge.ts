// Enlarges small photos smoothly (Lanczos with three lobes) for large screens.

import { pixels } from "../core/canvas";

const LOBES = 3;
const sinc = (x: number) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
const lanczos = (x: number) => (Math.abs(x) < LOBES ? sinc(x) * sinc(x / LOBES) : 0);

/** For each of `to` output pixels along a side of `from` input pixels: the input pixels and their shares. */
function taps(from: number, to: number): { at: number[]; share: number[] }[] {
  return Array.from({ length: to }, (_, i) => {
    const middle = ((i + 0.5) * from) / to - 0.5;
    const [at, share]: [number[], number[]] = [[], []];
    for (let j = Math.floor(middle) - LOBES + 1; j <= Math.floor(middle) + LOBES; j++) {
      at.push(Math.min(from - 1, Math.max(0, j)));
      share.push(lanczos(middle - j));
    }
    const total = share.reduce((sum, x) => sum + x, 0);
    return { at, share: share.map((x) => x / total) };
  });
}

/** RGB values, (height, width, 3), at another size. */
export function resampled(data: ArrayLike<number>, height: number, width: number, h: number, w: number): Float32Array {
  const [rows, columns] = [taps(height, h), taps(width, w)];
  const across = new Float32Array(height * w * 3);
  for (let r = 0; r < height; r++)
    for (let c = 0; c < w; c++)
      for (let k = 0; k < 2 * LOBES; k++)
        for (let i = 0; i < 3; i++) across[(r * w + c) * 3 + i] += columns[c].share[k] * data[(r * width + columns[c].at[k]) * 3 + i];
  const out = new Float32Array(h * w * 3);
  for (let r = 0; r < h; r++)
    for (let k = 0; k < 2 * LOBES; k++) {
      const from = rows[r].at[k] * w * 3;
      for (let i = 0; i < w * 3; i++) out[r * w * 3 + i] += rows[r].share[k] * across[from + i];
    }
  return out;
}

/** RGB bytes, (height, width, 3), as a canvas whose shorter side has `side` pixels at least. */
export function enlarged(data: ArrayLike<number>, height: number, width: number, side: number): HTMLCanvasElement {
  const times = Math.max(1, side / Math.min(height, width));
  const [h, w] = [Math.round(height * times), Math.round(width * times)];
  const values = resampled(data, height, width, h, w);
  const byte = (x: number) => Math.min(255, Math.max(0, Math.round(x)));
  return pixels(w, h, (p) => byte(values[3 * p]) | (byte(values[3 * p + 1]) << 8) | (byte(values[3 * p + 2]) << 16) | (255 << 24));
}

/** The middle square of an image file. */
export async function squareOf(file: Blob, side: number): Promise<HTMLCanvasElement> {
  const bitmap = await createImageBitmap(file);
  const short = Math.min(bitmap.width, bitmap.height);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  const pen = canvas.getContext("2d")!;
  pen.imageSmoothingQuality = "high";
  pen.drawImage(bitmap, (bitmap.width - short) / 2, (bitmap.height - short) / 2, short, short, 0, 0, side, side);
  return canvas;
}
