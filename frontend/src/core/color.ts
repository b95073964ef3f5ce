// Colors that work with any color vision: ramps of monotonic lightness, and the palette of Okabe and Ito.

export type Ramp = (t: number) => [number, number, number];

function ramp(...stops: string[]): Ramp {
  const colors = stops.map(parse);
  return (t) => {
    const at = Math.min(1, Math.max(0, Number.isFinite(t) ? t : 0)) * (colors.length - 1);
    const low = Math.min(colors.length - 2, Math.floor(at));
    const [a, b, f] = [colors[low], colors[low + 1], at - low];
    return [a[0] + (b[0] - a[0]) * f, a[1] + (b[1] - a[1]) * f, a[2] + (b[2] - a[2]) * f];
  };
}

function parse(hex: string): [number, number, number] {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

/** From light to dark, for maps on a light page. */
export const paper = ramp("#ffffff", "#dceaf6", "#a5cbe6", "#5a9fcf", "#2170ae", "#0d4583", "#061f47");
/** From dark to light, for maps on a dark page. */
export const night = ramp("#12161d", "#16304f", "#1f5383", "#3f83b0", "#7bb6c9", "#c6e2c8", "#fff8cf");
/** Orange below zero, purple above: for weights with a sign, on a light page and on a dark one. */
export const diverging = ramp("#7f3b08", "#b35806", "#e08214", "#fdc783", "#ffffff", "#c5bfe0", "#8073ac", "#542788", "#2d004b");
export const divergingNight = ramp("#ffd9a8", "#fdb863", "#e08214", "#8a4a10", "#12161d", "#4a3a80", "#8073ac", "#b9b2dc", "#ece8ff");
/** For an ordered quantity drawn as lines: blue, magenta, orange, yellow, ever lighter. */
export const plasma = ramp("#0d0887", "#46039f", "#7201a8", "#9c179e", "#bd3786", "#d8576b", "#ed7953", "#fb9f3a", "#fdca26", "#f0f921");

export const categorical = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];

/** A part of a ramp. */
export function between(colors: Ramp, low: number, high: number): Ramp {
  return (t) => colors(low + (high - low) * Math.min(1, Math.max(0, t)));
}

export function css([r, g, b]: [number, number, number], alpha = 1): string {
  const numbers = `${Math.round(r)} ${Math.round(g)} ${Math.round(b)}`;
  return alpha === 1 ? `rgb(${numbers})` : `rgb(${numbers} / ${alpha.toFixed(3)})`;
}

/** 256 colors as packed bytes, to paint many pixels quickly. `alpha` may change along the ramp. */
export function table(colors: Ramp, alpha: (t: number) => number = () => 1): Uint32Array {
  const out = new Uint8ClampedArray(1024);
  for (let i = 0; i < 256; i++) {
    const [r, g, b] = colors(i / 255);
    out.set([r, g, b, 255 * alpha(i / 255)], 4 * i);
  }
  return new Uint32Array(out.buffer);
}

/** Relative luminance after WCAG, in [0, 1]. */
export function luminance([r, g, b]: [number, number, number]): number {
  const linear = (x: number) => (x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}
