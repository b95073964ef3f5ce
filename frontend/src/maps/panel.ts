// One of several maps that are compared side by side.

import { html, useMemo, type VNode } from "../core/html";
import { Picture, type Size } from "../core/canvas";
import { useTheme } from "../core/theme";
import { type Cell, cellAt, drawHeat, heatHeight, inside, painter, whole } from "./heat";
import { percent } from "./layer";
import { weightTip } from "./quote";
import type { Pooling, Shading } from "./scale";
import type { Table } from "./table";

export interface MapPanelProps {
  table: Table;
  signed: boolean;
  top: number;
  pooling: Pooling;
  over: Cell | null;
  /** Whether the pointer is on this map, not on another one. */
  pointed: boolean;
  label: string;
  onOver: (cell: Cell | null) => void;
}

export function MapPanel({ table, signed, top, pooling, over, pointed, label, onOver }: MapPanelProps): VNode {
  const theme = useTheme();
  const shading: Shading = { scale: "uniform", top, signed };
  const paint = useMemo(() => painter(table, shading, pooling, theme), [table, signed, top, pooling, theme]);
  const view = inside(whole, table);
  const draw = drawHeat({ table, paint, shading, view, over, pinned: null, axes: ["queries", "keys"] });
  return html`<${Picture}
    class="rg-main"
    draw=${draw}
    height=${heatHeight(table)}
    label=${`${label}, ${table.queries.length} × ${table.keys.length} tokens`}
    cursor="crosshair"
    tip=${pointed && over && over.q >= 0 && over.k >= 0 ? weightTip(table.queries[over.q], table.keys[over.k], percent(table.weights[over.q * table.keys.length + over.k])) : null}
    onPoint=${(x: number, y: number, _: unknown, size: Size) => onOver(cellAt(table, view, x, y, size))}
    onLeave=${() => onOver(null)}
  />` as VNode;
}
