// Compare two heads: both maps, and the second minus the first.

import { html, useEffect, useMemo, useState, type VNode } from "../core/html";
import { wholeNumber } from "../core/memory";
import { type Cell, shownText, type Viewport } from "./heat";
import { type Choice, type Layer, percent } from "./layer";
import { MapPanel } from "./panel";
import { quoted } from "./quote";
import type { Pooling } from "./scale";
import type { Table } from "./table";

/** The spelling in an address: the indices of layer and head. */
export const spelled = ({ layer, which }: Choice): string => `${layer}.${which}`;

/** Parse this spelling; null unless the head exists and its map has the size of the first. */
export function secondOf(text: string | null | undefined, layers: Layer[], first: Layer): Choice | null {
  const [layer, which] = (text ?? "").split(".");
  const [at, head] = [wholeNumber(layer), wholeNumber(which)];
  const found = at === null ? undefined : layers[at];
  if (at === null || !found || !fits(found, first)) return null;
  if (which === "mean") return { layer: at, which };
  return head !== null && head < found.heads ? { layer: at, which: head } : null;
}

/** Maps can be subtracted if they have the same numbers of tokens in the same layout. */
const fits = (one: Layer, other: Layer): boolean =>
  one.queries === other.queries && one.keys === other.keys && String(one.about.grid ?? "") === String(other.about.grid ?? "") && one.about.prefix === other.about.prefix;

/** Every head that the first can be compared with. */
export function secondOptions(layers: Layer[], { layer, which }: Choice): [string, string][] {
  const options: [string, string][] = [["", "no other head"]];
  layers.forEach((one, l) => {
    if (!fits(one, layers[layer])) return;
    const place = layers.length > 1 ? `${one.about.name} · ` : "";
    one.about.heads.forEach((head, h) => l === layer && h === which ? null : options.push([spelled({ layer: l, which: h }), `${place}head ${head}`]));
    if (one.heads > 1 && !(l === layer && which === "mean")) options.push([spelled({ layer: l, which: "mean" }), `${place}mean over heads`]);
  });
  return options;
}

export function headName(layers: Layer[], { layer, which }: Choice): string {
  const { about } = layers[layer];
  const head = typeof which === "number" ? `head ${about.heads[which]}` : which === "mean" ? "mean over heads" : "rollout";
  return layers.length > 1 ? `${about.name} · ${head}` : head;
}

export function difference(second: Float32Array, first: Float32Array): Float32Array {
  return second.map((weight, i) => weight - first[i]);
}

/** The share of attention that differs: half the L1 distance of the rows, averaged over queries. */
export function apart(table: Table): number {
  return table.weights.reduce((sum, weight) => sum + Math.abs(weight), 0) / 2 / Math.max(1, table.queries.length);
}

export interface TwoHeadsProps {
  /** Of the same tokens. */
  first: Table;
  second: Table;
  names: [string, string];
  top: number;
  pooling: Pooling;
  signed: boolean;
  /** The visible part, the same of all three maps. */
  view: Viewport;
  onView: (view: Viewport) => void;
  onSay: (text: string) => void;
}

/** Two maps and their difference; the cell under the pointer is marked in all three. */
export function TwoHeads({ first, second, names, top, pooling, signed, view, onView, onSay }: TwoHeadsProps): VNode {
  const [over, setOver] = useState<{ side: number; cell: Cell } | null>(null);
  const tables = useMemo(() => {
    const weights = difference(second.weights, first.weights);
    return [first, second, { ...first, weights, max: weights.reduce((most, weight) => Math.max(most, Math.abs(weight)), 0) }];
  }, [first, second]);
  const titles = [...names, "second − first"];
  useEffect(() => setOver(null), [first, second]);
  useEffect(() => onSay(say(tables, names, over?.cell ?? null, view)), [tables, over, view]);
  return html`<div class="rg-three">
    ${tables.map((table, side) => html`<figure><figcaption>${titles[side]}</figcaption><${MapPanel} table=${table} signed=${signed || side === 2} top=${top} pooling=${pooling} view=${view} over=${over?.cell ?? null} pointed=${over?.side === side} label=${titles[side]} onOver=${(cell: Cell | null) => setOver(cell && { side, cell })} onView=${onView} /></figure>`)}
  </div>` as VNode;
}

function say([first, second, less]: Table[], names: [string, string], cell: Cell | null, view: Viewport): string {
  const start = `${names[0]} and ${names[1]}`;
  if (!cell || cell.q < 0 || cell.k < 0) return `${start} · ${percent(apart(less))} of the attention differs${shownText(view, first)}`;
  const at = cell.q * first.keys.length + cell.k;
  return `${start} · ${quoted(first.queries[cell.q])} → ${quoted(first.keys[cell.k])} ${percent(first.weights[at])} and ${percent(second.weights[at])}, ${less.weights[at] < 0 ? "" : "+"}${percent(less.weights[at])}`;
}
