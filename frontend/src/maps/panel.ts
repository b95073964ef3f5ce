// One of several maps that are compared side by side. They are zoomed together, and their cells are read by pointer or by keys.

import { html, useMemo, type VNode } from "../core/html";
import { Picture, type Size } from "../core/canvas";
import { useTheme } from "../core/theme";
import { wheelHint, ZOOM_KEYS } from "../core/zooming";
import { anchor, type Cell, cellAt, dragged, drawHeat, heatHeight, inside, painter, showing, stepped, type Viewport, whole, zoomed } from "./heat";
import { percent } from "./layer";
import { weightTip } from "./quote";
import type { Pooling, Shading } from "./scale";
import type { Table } from "./table";

export interface MapPanelProps {
  table: Table;
  signed: boolean;
  top: number;
  pooling: Pooling;
  view: Viewport;
  over: Cell | null;
  /** Whether the pointer is on this map, not on another one. */
  pointed: boolean;
  label: string;
  onOver: (cell: Cell | null) => void;
  onView: (view: Viewport) => void;
}

export function MapPanel({ table, signed, top, pooling, view: wanted, over, pointed, label, onOver, onView }: MapPanelProps): VNode {
  const theme = useTheme();
  const shading: Shading = { scale: "uniform", top, signed };
  const paint = useMemo(() => painter(table, shading, pooling, theme), [table, signed, top, pooling, theme]);
  const view = inside(wanted, table);
  const draw = drawHeat({ table, paint, shading, view, over, pinned: null, axes: ["queries", "keys"] });
  const find = (x: number, y: number, size: Size) => cellAt(table, view, x, y, size);
  const step = (key: string): boolean => {
    const to = stepped(view, table, over, key);
    if (!to) return false;
    onOver(to);
    if (view.zoom > 1) onView(showing(view, table, to.q, to.k));
    return true;
  };
  return html`<${Picture}
    class="rg-main"
    draw=${draw}
    height=${heatHeight(table)}
    label=${`${label}, ${table.queries.length} × ${table.keys.length} tokens`}
    cursor="crosshair"
    movable=${view.zoom > 1}
    focusable
    tip=${pointed && over && over.q >= 0 && over.k >= 0 ? weightTip(table.queries[over.q], table.keys[over.k], percent(table.weights[over.q * table.keys.length + over.k])) : null}
    onPoint=${(x: number, y: number, _: unknown, size: Size) => onOver(find(x, y, size))}
    onLeave=${() => onOver(null)}
    onDrag=${(dx: number, dy: number, _: unknown, size: Size) => view.zoom > 1 && onView(dragged(view, table, dx, dy, size))}
    onZoom=${(factor: number, x: number, y: number, size: Size) => onView(zoomed(view, table, factor, anchor(find(x, y, size), view, table)))}
    onDouble=${() => onView(whole)}
    onKey=${step}
    description=${`The arrow keys mark a cell. ${ZOOM_KEYS}`}
    wheelSays=${wheelHint({ times: view.zoom })}
  />` as VNode;
}
