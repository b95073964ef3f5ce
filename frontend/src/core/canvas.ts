// A canvas that adapts to its size and to the screen's resolution, and that can be saved.

import { html, createContext, useContext, useEffect, useLayoutEffect, useRef } from "./html";
import { useId } from "./controls";
import type { Pen } from "./pen";
import { isPrinting } from "./print";
import { type Theme, useTheme } from "./theme";

export interface Size {
  width: number;
  height: number;
}

/** `saved` is true when the drawing is written to a file: text beside it on the page must then be part of it. */
export type Draw = (pen: Pen, size: Size, theme: Theme, saved?: boolean) => void;

/** A drawing of a view, as needed for saving. */
export interface Shown {
  element: HTMLElement;
  draw: Draw;
  size: Size;
  /** Pixels of the page per unit of the drawing. */
  zoom: number;
}

/** A very wide view is probably projected on a wall: everything in the drawing is scaled up to stay readable. */
export function zoomFor(width: number): number {
  return width >= 2400 ? 1.6 : width >= 1500 ? 1.25 : 1;
}

export const Pictures = createContext<Set<Shown>>(new Set());

export interface PictureProps {
  draw: Draw;
  /** In pixels, or computed from the available width. */
  height: number | ((width: number) => number);
  /** A description for screen readers; empty where text beside the picture says the same. */
  label: string;
  class?: string;
  cursor?: string;
  /** Whether it is zoomed: a finger then moves the picture, not the page. */
  movable?: boolean;
  /** Whether the picture can have the keyboard focus. */
  focusable?: boolean;
  onPoint?: (x: number, y: number, event: PointerEvent, size: Size) => void;
  onLeave?: () => void;
  onPress?: (x: number, y: number, event: MouseEvent, size: Size) => void;
  /** `from` is where the drag began, `to` where it is. */
  onDrag?: (dx: number, dy: number, event: PointerEvent, size: Size, from: [number, number], to: [number, number]) => void;
  /** Zoom around a point: Ctrl + wheel (a trackpad sends a pinch as this), or two fingers. */
  onZoom?: (factor: number, x: number, y: number, size: Size) => void;
  onDouble?: () => void;
  /** For screen readers: what the keys do with the picture. */
  description?: string;
  /** Called with a key while the picture has the focus; returns true if it used the key. Arrows with Shift move a zoomed picture. */
  onKey?: (key: string) => boolean;
  /** The tooltip at the pointer. */
  tip?: string | null;
  /** A short hint, shown when the wheel scrolls the page instead of zooming. */
  wheelSays?: string;
}

export function Picture(props: PictureProps) {
  const theme = useTheme();
  const id = useId();
  const pictures = useContext(Pictures);
  const wrapper = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const latest = useRef({ props, theme });
  latest.current = { props, theme };
  const shown = useRef<Shown | null>(null);
  const pending = useRef(0);
  const tip = useRef<HTMLDivElement>(null);
  const pointer = useRef<[number, number] | null>(null);
  const hint = useRef<HTMLDivElement>(null);
  const drag = useRef<{ x: number; y: number; moved: boolean; from: [number, number] } | null>(null);

  const paint = () => {
    pending.current = 0;
    const [element, outer] = [canvas.current, wrapper.current];
    if (!element || !outer) return;
    const { props: now, theme: colors } = latest.current;
    const zoom = zoomFor(outer.closest(".regard")?.clientWidth ?? 0);
    const width = Math.floor(outer.clientWidth / zoom);
    if (width < 1) return;
    const height = Math.max(1, Math.round(typeof now.height === "number" ? now.height : now.height(width)));
    const ratio = Math.min(3, window.devicePixelRatio || 1) * zoom;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (element.width !== w || element.height !== h) {
      element.width = w;
      element.height = h;
      element.style.height = `${height * zoom}px`;
    }
    const pen = element.getContext("2d");
    if (!pen) return;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.save();
    now.draw(pen, { width, height }, colors);
    pen.restore();
    if (shown.current) {
      shown.current.size = { width, height };
      shown.current.zoom = zoom;
      shown.current.draw = now.draw;
    }
    element.dataset.painted = String(Number(element.dataset.painted ?? 0) + 1);
  };
  const schedule = () => {
    if (isPrinting()) paint();
    else pending.current ||= requestAnimationFrame(paint);
  };

  useLayoutEffect(schedule);
  useEffect(() => {
    const outer = wrapper.current!;
    const own: Shown = { element: outer, draw: latest.current.props.draw, size: { width: 0, height: 0 }, zoom: 1 };
    shown.current = own;
    pictures.add(own);
    const observer = new ResizeObserver(schedule);
    observer.observe(outer);
    const element = canvas.current!;
    let fading = 0;
    const wheel = (event: WheelEvent) => {
      const { onZoom, wheelSays } = latest.current.props;
      if (event.ctrlKey || event.metaKey) {
        if (onZoom) event.preventDefault();
        onZoom?.(Math.exp(-event.deltaY / 200), ...place(event), own.size);
      } else if (wheelSays && hint.current) {
        hint.current.hidden = false;
        clearTimeout(fading);
        fading = window.setTimeout(() => hint.current && (hint.current.hidden = true), 1500);
      }
    };
    let apart = 0; // two fingers, at the last event
    const touch = (event: TouchEvent) => {
      const { onZoom } = latest.current.props;
      const before = apart;
      apart = 0;
      if (!onZoom || event.touches.length !== 2) return;
      event.preventDefault();
      drag.current = null;
      const [one, two] = event.touches;
      apart = Math.hypot(one.clientX - two.clientX, one.clientY - two.clientY);
      const between = { clientX: (one.clientX + two.clientX) / 2, clientY: (one.clientY + two.clientY) / 2 };
      if (before && apart) onZoom(apart / before, ...place(between), own.size);
    };
    // Not passive: a view that zooms must be able to stop the page from scrolling and from being zoomed itself.
    const events: [string, (event: never) => void][] = [["wheel", wheel], ["touchstart", touch], ["touchmove", touch], ["touchend", touch], ["touchcancel", touch]];
    for (const [name, run] of events) element.addEventListener(name, run as EventListener, { passive: false });
    return () => {
      pictures.delete(own);
      observer.disconnect();
      for (const [name, run] of events) element.removeEventListener(name, run as EventListener);
      clearTimeout(fading);
      if (pending.current) cancelAnimationFrame(pending.current);
      pending.current = 0;
    };
  }, []);

  const place = (event: Pick<MouseEvent, "clientX" | "clientY">): [number, number] => {
    const box = canvas.current!.getBoundingClientRect();
    const zoom = shown.current?.zoom ?? 1;
    return [(event.clientX - box.left) / zoom, (event.clientY - box.top) / zoom];
  };
  /** Places the tooltip to the right of the pointer, or to its left where it would leave the picture. */
  const placeTip = () => {
    if (!tip.current || !pointer.current) return;
    const box = wrapper.current!.getBoundingClientRect();
    const [x, y] = [pointer.current[0] - box.left, pointer.current[1] - box.top];
    const wide = tip.current.offsetWidth;
    const left = x + 14 + wide <= box.width ? x + 14 : Math.max(0, Math.min(x - 12, box.width) - wide);
    tip.current.style.transform = `translate(${left}px, ${y + 14}px)`;
  };
  useLayoutEffect(placeTip, [props.tip]);
  const size = () => shown.current?.size ?? { width: 1, height: 1 };
  const move = (event: PointerEvent) => {
    if (!event.isPrimary) return; // a second finger
    const held = drag.current;
    if (held && props.onDrag && event.buttons & 1) {
      const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
      if (held.moved || Math.hypot(dx, dy) > 4) {
        drag.current = { x: event.clientX, y: event.clientY, moved: true, from: held.from };
        canvas.current?.setPointerCapture?.(event.pointerId);
        const zoom = shown.current?.zoom ?? 1;
        props.onDrag(dx / zoom, dy / zoom, event, size(), held.from, place(event));
        return;
      }
    }
    pointer.current = [event.clientX, event.clientY];
    placeTip();
    props.onPoint?.(...place(event), event, size());
  };
  const key = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey || (event.shiftKey && event.key.startsWith("Arrow")) || !props.onKey?.(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
  };
  const press = (event: MouseEvent) => {
    if (!drag.current?.moved) props.onPress?.(...place(event), event, size());
    drag.current = null;
  };
  return html`<div ref=${wrapper} class=${`rg-picture ${props.class ?? ""}`}>
    <canvas
      ref=${canvas}
      role=${props.focusable ? "application" : props.label ? "img" : undefined}
      aria-roledescription=${props.focusable ? "interactive picture" : undefined}
      aria-label=${props.label || undefined}
      aria-describedby=${props.description ? id : undefined}
      aria-hidden=${props.label ? undefined : "true"}
      tabindex=${props.focusable ? 0 : undefined}
      style=${{ cursor: props.cursor, touchAction: props.movable ? "pinch-zoom" : undefined }}
      onPointerMove=${move}
      onPointerDown=${(event: PointerEvent) => event.isPrimary && (drag.current = { x: event.clientX, y: event.clientY, moved: false, from: place(event) })}
      onPointerLeave=${() => props.onLeave?.()}
      onClick=${press}
      onKeyDown=${key}
      onDblClick=${() => props.onDouble?.()}
    ></canvas>
    ${props.description ? html`<span id=${id} hidden>${props.description}</span>` : null}
    ${props.tip === undefined ? null : html`<div ref=${tip} class="rg-tip" aria-hidden="true" hidden=${!props.tip}>${props.tip}</div>`}
    ${props.wheelSays ? html`<div ref=${hint} class="rg-hint-over" aria-hidden="true" hidden>${props.wheelSays}</div>` : null}
  </div>`;
}

/** Paint numbers 0 … 255 as pixels (NaN is transparent), to be drawn with drawImage. */
export function pixels(
  width: number,
  height: number,
  color: (index: number) => number,
  reuse?: HTMLCanvasElement,
): HTMLCanvasElement {
  const canvas = reuse ?? document.createElement("canvas");
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const pen = canvas.getContext("2d");
  if (!pen) return canvas;
  const image = pen.createImageData(width, height);
  const out = new Uint32Array(image.data.buffer);
  for (let i = 0; i < out.length; i++) out[i] = color(i);
  pen.putImageData(image, 0, 0);
  return canvas;
}
