// Keys and hints of pictures that can be zoomed: the same in every view.

import type { Key } from "./keys";

export interface Zooming {
  /** How many times larger than the whole picture. */
  times: number;
  zoom: (factor: number) => void;
  /** Move by shares of the visible part, to the right and down. */
  pan: (across: number, down: number) => void;
  reset: () => void;
}

/** The share of the visible part by which an arrow key moves: what was at the edge can still be seen. */
const STEP = 0.25;
const ARROWS: Record<string, [number, number]> = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };

/** They come before other keys of a view: arrows without Shift select something. */
export function zoomKeys({ zoom, pan, reset }: Zooming): Key[] {
  return [
    { keys: ["+", "=", "-", "0"], shown: "+ − 0", means: "zoom in, zoom out, show everything", run: (key) => (key === "0" ? reset() : zoom(key === "-" ? 1 / 1.5 : 1.5)) },
    { keys: Object.keys(ARROWS), shift: true, shown: "Shift + arrows", means: "move the zoomed picture", run: (key) => pan(...ARROWS[key]) },
  ];
}

/** What one can do with a zoomed picture; nothing where all of it is visible. */
export const zoomHint = ({ times }: Pick<Zooming, "times">): string => (times > 1 ? " Shift + arrow keys or dragging moves the zoomed picture; 0 shows everything." : "");

/** For screen readers: the keys of a picture. */
export const ZOOM_KEYS = "Plus and minus zoom, Shift and the arrow keys move a zoomed picture, 0 shows everything.";

/** Where the wheel scrolls the page. */
export const wheelHint = ({ times }: Pick<Zooming, "times">): string => (times > 1 ? `${times.toFixed(times < 10 ? 1 : 0)}× · Ctrl + wheel to zoom, double-click to reset` : "Ctrl + wheel or pinch to zoom");
