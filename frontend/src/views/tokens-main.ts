// The heat map or the arcs of token attention, which can be pointed at, zoomed and marked.

import { html, useMemo } from "../core/html";
import { Picture, type Size } from "../core/canvas";
import { useTheme } from "../core/theme";
import { wheelHint, ZOOM_KEYS } from "../core/zooming";
import { arcHeight, drawArcs, type HeadArcs, tokenAt } from "../maps/arcs";
import { anchor, type Cell, cellAt, dragged, drawHeat, heatHeight, inside, painter, type Viewport, whole } from "../maps/heat";
import { percent } from "../maps/layer";
import { weightTip } from "../maps/quote";
import type { Pooling, Shading } from "../maps/scale";
import { type Span, spanOf } from "../maps/span";
import type { Table } from "../maps/table";

interface MainProps {
  mode: "heat" | "arcs";
  table: Table;
  heads: HeadArcs[] | null;
  shading: Shading;
  pooling: Pooling;
  noun: string;
  view: Viewport;
  over: Cell | null;
  pinned: number | null;
  axes: [string, string];
  span: Span | null;
  onSpan: (span: Span | null) => void;
  onOver: (cell: Cell | null) => void;
  onPin: (query: number | null) => void;
  onView: (view: Viewport) => void;
  zoom: (factor: number, at?: Cell) => void;
}

export function Main({ mode, table, heads, shading, pooling, noun, view, over, pinned, axes, span, onOver, onPin, onView, onSpan, zoom }: MainProps) {
  const theme = useTheme();
  const paint = useMemo(() => painter(table, shading, pooling, theme), [table, shading.scale, shading.top, shading.signed, pooling, theme]);
  const safe = { table, view: inside(view, table), over, pinned: pinned !== null && pinned < table.queries.length ? pinned : null, axes, span };
  const draw = mode === "heat" ? drawHeat({ ...safe, paint, shading }) : drawArcs({ ...safe, heads, signed: shading.signed });
  const at = mode === "heat" ? cellAt : tokenAt;
  const find = (x: number, y: number, size: Size) => at(table, safe.view, x, y, size);
  const point = (x: number, y: number, _: unknown, size: Size) => {
    const cell = find(x, y, size);
    if (cell?.q !== over?.q || cell?.k !== over?.k) onOver(cell);
  };
  const press = (x: number, y: number, _: unknown, size: Size) => {
    const cell = find(x, y, size);
    if (cell && cell.q >= 0) onPin(cell.q === pinned ? null : cell.q);
    else if (!cell) onPin(null);
  };
  /** Dragging pans a zoomed picture; on a whole picture, or with Shift, it marks a span. */
  const drag = (dx: number, dy: number, event: PointerEvent, size: Size, from: [number, number], to: [number, number]) => {
    if (view.zoom === 1 || event.shiftKey) {
      const [start, end] = [find(...from, size), find(...to, size)];
      if (start && end) onSpan(spanOf(start, end));
      return;
    }
    if (mode === "heat") return onView(dragged(view, table, dx, dy, size));
    const line = ((size.height - 34) / Math.max(1, table.queries.length)) * view.zoom;
    onView(inside({ ...view, q: view.q - dy / line, k: view.k - dy / line }, table));
  };
  return html`<${Picture}
    class="rg-main"
    draw=${draw}
    height=${mode === "heat" ? heatHeight(table) : arcHeight(table)}
    label=${`${mode === "heat" ? "heat map" : "arcs"} of ${table.queries.length} × ${table.keys.length} ${noun}s`}
    cursor="crosshair"
    movable=${view.zoom > 1}
    focusable
    tip=${over && over.q >= 0 && over.k >= 0 ? weightTip(table.queries[over.q], table.keys[over.k], percent(table.weights[over.q * table.keys.length + over.k])) : null}
    onPoint=${point}
    onLeave=${() => onOver(null)}
    onPress=${press}
    onDrag=${drag}
    onZoom=${(factor: number, x: number, y: number, size: Size) => zoom(factor, anchor(find(x, y, size), view, table))}
    onDouble=${() => onView(whole)}
    description=${ZOOM_KEYS}
    wheelSays=${wheelHint({ times: view.zoom })}
  />`;
}
