// Two sets of maps side by side, and the second minus the first. The cell under the pointer is marked in all three.

import { html, useEffect, useMemo, useState, type VNode } from "../core/html";
import { Select } from "../core/controls";
import { Frame } from "../core/frame";
import type { Key } from "../core/keys";
import { recalled, remember, wholeNumber } from "../core/memory";
import { type Payload, slice } from "../core/payload";
import { useTheme } from "../core/theme";
import { zoomHint, type Zooming, zoomKeys } from "../core/zooming";
import { Atlas, type AtlasRow, makeStrip, type Strip, thumbnailSide } from "../maps/atlas";
import { type Cell, middle, moved, shownText, type Viewport, whole, zoomed } from "../maps/heat";
import { percent, residualText, shortNames } from "../maps/layer";
import { MapPanel } from "../maps/panel";
import { quoted } from "../maps/quote";
import { colorsOf, type Pooling, POOLINGS, shade } from "../maps/scale";
import { makeTable, type Table } from "../maps/table";
import type { ViewProps } from "./index";

interface Side {
  queries: number;
  keys: number;
  /** The numbers of the queries, where some were chosen. */
  rows: number[] | null;
  /** Whether queries and keys are tokens of the text. */
  named: [boolean, boolean];
  residual: number | null;
  agrees: boolean;
  against: string;
  kernel: string | null;
  kind: string;
}

export interface ComparedLayer {
  name: string;
  other_name: string;
  heads: number[];
  sides: [Side, Side];
  /** Pairs of matching queries and of matching keys: the index on the first side, the index on the second. */
  rows: [number, number][];
  columns: [number, number][];
  /** For each head, the share of the attention that differs. */
  change: number[];
}

interface Meta {
  layers: ComparedLayer[];
  names: [string, string];
  tokens: [string[] | null, string[] | null];
  notes: string[];
  opening: { layer: number; head: number; why: string };
}

const THUMBNAIL = 40;

export function CompareView({ payload, host }: ViewProps): VNode {
  const meta = payload.meta as Meta;
  const kept = recalled(host, "compare");
  const [layer, setLayer] = useState(() => clamp(wholeNumber(kept.layer) ?? meta.opening.layer, meta.layers.length));
  const [head, setHead] = useState(() => wholeNumber(kept.head) ?? meta.opening.head);
  const [pooling, setPooling] = useState<Pooling>("max");
  const [over, setOver] = useState<{ side: number; cell: Cell } | null>(null);
  const [seen, setSeen] = useState<{ side: number; view: Viewport }>({ side: 0, view: whole });
  const about = meta.layers[layer];
  const chosen = clamp(head, about.heads.length);
  const tables = useMemo(() => [0, 1, 2].map((side) => tableOf(payload, layer, chosen, side)), [payload, layer, chosen]);
  const top = useMemo(() => Math.max(1, ...meta.layers.flatMap(({ sides }) => sides.map((side) => side.keys))), [payload]);
  useEffect(() => host.select?.({ layer: about.name, head: about.heads[chosen] }), [layer, chosen]);
  useEffect(() => remember(host, "compare", { layer, head: String(chosen) }), [layer, chosen]);
  useEffect(() => setOver(null), [payload, layer, chosen]);
  useEffect(() => setSeen({ side: 0, view: whole }), [payload, layer]);
  const { side: on, view } = seen;
  const show = (next: Viewport) => setSeen({ side: on, view: next });
  const zooming: Zooming = { times: view.zoom, zoom: (factor) => show(zoomed(view, tables[on], factor, middle(view, tables[on]))), pan: (across, down) => show(moved(view, tables[on], across, down)), reset: () => show(whole) };

  const choose = (to: number, which: number) => {
    const at = clamp(to, meta.layers.length);
    setLayer(at);
    setHead(clamp(which, meta.layers[at].heads.length));
  };
  const keys: Key[] = [
    ...zoomKeys(zooming),
    { keys: ["ArrowLeft", "ArrowRight"], shown: "← →", means: "another head", run: (key) => choose(layer, chosen + (key === "ArrowRight" ? 1 : -1)) },
    { keys: ["PageUp", "PageDown"], shown: "PgUp PgDn", means: "another layer", run: (key) => choose(layer + (key === "PageDown" ? 1 : -1), chosen) },
    { keys: ["Escape"], shown: "Esc", means: "clear the selection, then the zoom", run: () => (over ? setOver(null) : show(whole)) },
  ];
  const most = Math.max(...tables.map((table) => Math.max(table.queries.length, table.keys.length)));
  const titles = [meta.names[0], meta.names[1], `${meta.names[1]} − ${meta.names[0]}`];
  const opened = layer === meta.opening.layer && chosen === meta.opening.head && !over;
  const names = shortNames(meta.layers.map((one) => one.name));
  const rows: AtlasRow[] = meta.layers.map((one, i) => ({ label: meta.layers.length > 1 ? names[i] : "", layer: i, heads: one.heads.map((_, place) => place), warn: !one.sides.every((side) => side.agrees) }));
  const controls = html`
    <${Select} label="layer" value=${String(layer)} options=${meta.layers.map((one, i) => [String(i), one.name === one.other_name ? one.name : `${one.name} | ${one.other_name}`])} onChange=${(value: string) => choose(Number(value), chosen)} />
    <${Select} label="head" value=${String(chosen)} options=${about.heads.map((number, i) => [String(i), `head ${number} · ${percent(about.change[i])} moved`])} onChange=${(value: string) => setHead(Number(value))} />
    ${most > THUMBNAIL ? html`<${Select} label="pixels show" value=${pooling} options=${POOLINGS} onChange=${setPooling} />` : null}
  `;
  return html`<${Frame}
    name="compare"
    title="Attention, compared"
    subtitle=${describe(about, chosen, tables, over, titles) + (over ? "" : shownText(view, tables[on])) + (opened ? ` · ${meta.opening.why}` : "")}
    host=${host}
    keys=${keys}
    controls=${controls}
    hint=${`Point at a cell to read its weight on both sides; a click on a small map selects its head.${zoomHint(zooming)}`}
    footer=${html`${about.sides.map((side, i) => html`<span class=${side.agrees ? "" : "rg-warn"}><b>${meta.names[i]}</b> ${residualText(side)}</span>`)}${meta.notes.map((note) => html`<span>${note}</span>`)}`}
  >
    <div class="rg-compared">
      ${rows.length > 1 || about.heads.length > 1 ? html`<${Differences} payload=${payload} rows=${rows} top=${top} pooling=${pooling} picked=${{ layer, head: chosen }} onPick=${(at: { layer: number; head: number | null }) => choose(at.layer, at.head ?? 0)} />` : null}
      <div class="rg-three">
        ${tables.map((table, side) => html`<figure><figcaption>${titles[side]}</figcaption><${MapPanel} table=${table} signed=${side === 2} top=${top} pooling=${pooling} view=${viewOn(about, seen, tables, side)} over=${cellOn(about, over, side)} pointed=${over?.side === side} label=${titles[side]} onOver=${(cell: Cell | null) => setOver(cell && { side, cell })} onView=${(to: Viewport) => setSeen({ side, view: to })} /></figure>`)}
      </div>
    </div>
  <//>` as VNode;
}

function Differences({ payload, rows, top, pooling, picked, onPick }: { payload: Payload<Meta>; rows: AtlasRow[]; top: number; pooling: Pooling; picked: { layer: number; head: number }; onPick: (at: { layer: number; head: number | null }) => void }) {
  const theme = useTheme();
  const strips = useMemo(() => new Map<string, Strip>(), [payload, theme]);
  const strip = (index: number, high: number, broad: number): Strip => {
    const room: [number, number] = [thumbnailSide(THUMBNAIL, high), thumbnailSide(THUMBNAIL, broad)];
    const key = `${index} ${room} ${pooling}`;
    let made = strips.get(key);
    if (!made) {
      const about = payload.meta.layers[index];
      const [tall, wide] = [about.rows.length, about.columns.length];
      const color = colorsOf(theme, true);
      const parts = about.heads.map((_, head) => tableOf(payload, index, head, 2)).map(({ weights, visible }) => shade(weights, wide, visible, { scale: "uniform", top, signed: true }, pooling, { row: 0, column: 0, rows: tall, columns: wide }, ...room));
      made = makeStrip(about.heads.length, parts[0].rows, parts[0].columns, (head, row, column) => color(parts[head].data[row * parts[head].columns + column] ?? 0));
      strips.set(key, made);
    }
    return made;
  };
  return html`<${Atlas}
    rows=${rows}
    strip=${strip}
    headName=${(layer: number, head: number) => String(payload.meta.layers[layer].heads[head])}
    aspect=${1}
    largest=${56}
    picked=${picked}
    about=${(layer: number, head: number) => `${percent(payload.meta.layers[layer].change[head])} moved`}
    label="the difference of every head"
    onHover=${() => undefined}
    onPick=${onPick}
  />`;
}

const SIDES = ["first", "second", "difference"];
const clamp = (at: number, count: number) => Math.min(count - 1, Math.max(0, Number.isFinite(at) ? at : 0));

function weightsOf(payload: Payload<Meta>, layer: number, head: number, side: number): Float32Array {
  const array = payload.array(`${SIDES[side]}${layer}`);
  const size = array.shape[1] * array.shape[2];
  return slice(array, head * size, size);
}

function tableOf(payload: Payload<Meta>, layer: number, head: number, side: number): Table {
  const { layers, tokens } = payload.meta;
  const about = layers[layer];
  const first = side === 2 ? 0 : side;
  const { queries, keys, named, rows: numbers } = about.sides[first];
  const label = (at: number, axis: number) => (named[axis] && tokens[first] ? tokens[first]![at] : String(at));
  const asks = Array.from({ length: queries }, (_, i) => label(numbers ? numbers[i] : i, 0));
  const reads = Array.from({ length: keys }, (_, i) => label(i, 1));
  const visible = payload.values(`visible_${SIDES[first]}${layer}`);
  if (side < 2) return makeTable(weightsOf(payload, layer, head, side), keys, asks, reads, false, visible);
  const rows = about.rows.map(([row]) => row);
  return makeTable(weightsOf(payload, layer, head, 2), about.columns.length, rows.map((row) => asks[row]), about.columns.map(([column]) => reads[column]), false, rows.map((row) => visible[row]));
}

/** The matching cell on another side. */
export function cellOn(about: ComparedLayer, over: { side: number; cell: Cell } | null, side: number): Cell | null {
  if (!over || over.side === side) return over?.cell ?? null;
  const across = (pairs: [number, number][], at: number): number => {
    if (at < 0) return -1;
    const pair = over.side === 2 ? at : pairs.findIndex((both) => both[over.side] === at);
    return pair < 0 || pair >= pairs.length ? -1 : side === 2 ? pair : pairs[pair][side];
  };
  const cell = { q: across(about.rows, over.cell.q), k: across(about.columns, over.cell.k) };
  return cell.q < 0 && cell.k < 0 ? null : cell;
}

/** The matching part of another side: around the tokens that match those in the middle. */
export function viewOn(about: ComparedLayer, { side, view }: { side: number; view: Viewport }, tables: Table[], to: number): Viewport {
  if (to === side || view.zoom === 1) return view;
  const across = (pairs: [number, number][], at: number, before: number, after: number): number => {
    const place = (pair: number, where: number) => (where === 2 ? pair : pairs[pair][where]);
    let last = -1;
    while (last + 1 < pairs.length && place(last + 1, side) <= at) last++;
    return last < 0 ? (at * after) / before : place(last, to) + at - place(last, side);
  };
  const [from, there] = [tables[side], tables[to]];
  const at = middle(view, from);
  const start = (center: number, count: number) => center - count / view.zoom / 2;
  const q = start(across(about.rows, at.q, from.queries.length, there.queries.length), there.queries.length);
  return { q, k: start(across(about.columns, at.k, from.keys.length, there.keys.length), there.keys.length), zoom: view.zoom };
}

function describe(about: ComparedLayer, head: number, tables: Table[], over: { side: number; cell: Cell } | null, titles: string[]): string {
  const start = `${about.name} · head ${about.heads[head]} · ${percent(about.change[head])} of the attention differs`;
  const cells = [0, 1, 2].map((side) => cellOn(about, over, side));
  const said = tables.map((table, side) => {
    const cell = cells[side];
    return cell && cell.q >= 0 && cell.k >= 0 ? `${titles[side]} ${percent(table.weights[cell.q * table.keys.length + cell.k])}` : null;
  });
  const at = over && over.cell.q >= 0 && over.cell.k >= 0 ? tables[over.side] : null;
  if (!over || !at) return start;
  return `${about.name} · head ${about.heads[head]} · ${quoted(at.queries[over.cell.q])} → ${quoted(at.keys[over.cell.k])}: ${said.filter(Boolean).join(", ")}`;
}
