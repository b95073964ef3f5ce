// Attention over long texts: every head as the exact mass of its cells, with curves over all tokens.

import { html, useEffect, useMemo, useState, type VNode } from "../core/html";
import { type Draw, Picture, type Size } from "../core/canvas";
import { Button, Choice as Choices, Select, Slider } from "../core/controls";
import { Frame } from "../core/frame";
import type { Key } from "../core/keys";
import { recalled, remember, wholeNumber } from "../core/memory";
import { slice } from "../core/payload";
import { type Theme, useTheme } from "../core/theme";
import { wheelHint, ZOOM_KEYS, zoomHint, type Zooming, zoomKeys } from "../core/zooming";
import { Atlas, type AtlasRow, fitted, makeStrip, type Strip, thumbnailSide } from "../maps/atlas";
import { boxesOf, type Box, brightness, type Cells, cellsOf, type Curve, drawCells, drawCurve, everything, largestIn, longHeight, type Measure, pooled, valueAt, type Window, within, zoomedAt } from "../maps/cells";
import { type LayerAbout, percent, shortNames, thing } from "../maps/layer";
import { type Hit, hits, type Lists, nameAt, type Named, type Side, sideOf } from "../maps/naming";
import { Residuals } from "../maps/residuals";
import { colorsOf, drawLegend } from "../maps/scale";
import type { ViewProps } from "./index";

interface LongAbout extends LayerAbout, Named {
  /** Queries and keys of a cell. */
  cell: [number, number];
  /** Queries per bin of the entropy, and keys per bin of the received mass. */
  bin: [number, number];
}

interface Meta {
  layers: LongAbout[];
  tokens: Lists;
  notes: string[];
  opening: { layer: number; head: number; why: string };
}

interface Place {
  /** The position as shares of all queries and of all keys. */
  q: number;
  k: number;
}

const THUMBNAIL = 24;
const MEASURES: [Measure, string][] = [["mass", "Mass"], ["largest", "Largest weight"]];

export function LongView({ payload, host }: ViewProps): VNode {
  const meta = payload.meta as Meta;
  const { layers, tokens } = meta;
  const names = useMemo(() => shortNames(layers.map((layer) => layer.name)), [payload]);
  const kept = recalled(host, "long");
  const [at, setAt] = useState(() => ({ layer: wholeNumber(kept.layer) ?? meta.opening.layer, head: wholeNumber(kept.head) ?? meta.opening.head }));
  const [hovered, setHovered] = useState<{ layer: number; head: number } | null>(null);
  const [measure, setMeasure] = useState<Measure>("mass");
  const [view, setView] = useState<Window>(everything);
  const [over, setOver] = useState<Place | null>(null);
  const [text, setText] = useState("");
  const [reached, setReached] = useState(-1);
  useEffect(() => setOver(null), [view]); // another cell is under the pointer now
  const [row, setRow] = useState(-1);

  const safe = { layer: clamp(at.layer, layers.length), head: 0 };
  safe.head = clamp(at.head, layers[safe.layer].heads.length);
  const shown = hovered ?? safe;
  const about = layers[shown.layer];
  const smallest = Math.min(1, Math.max(4 / Math.max(about.keys, about.queries), 1 / 65536));
  const cells = useMemo(() => cellsIn(payload, about, shown.layer, shown.head, measure), [payload, measure, shown.layer, shown.head]);
  const curve = (name: string, count: number): Curve => {
    const array = payload.array(`${name}${shown.layer}`);
    return { values: slice(array, shown.head * array.shape[1], array.shape[1]), count };
  };
  const received = useMemo(() => curve("received", about.keys / about.bin[1]), [payload, shown.layer, shown.head]);
  const entropy = useMemo(() => curve("entropy", about.queries / about.bin[0]), [payload, shown.layer, shown.head]);
  // A row that was kept in full has a value for every key.
  const rows = about.rows ?? [];
  const full = useMemo(() => {
    if (row < 0 || row >= rows.length || !payload.has(`rows${shown.layer}`)) return null;
    const array = payload.array(`rows${shown.layer}`);
    return { values: slice(array, (shown.head * rows.length + row) * about.keys, about.keys), count: about.keys };
  }, [payload, shown.layer, shown.head, row]);
  const found = useMemo(() => hits(about, tokens, text), [payload, shown.layer, text]);
  const next = () => {
    const to = (reached + 1) % found.length;
    setReached(to);
    setView(placeOf(view, found[to], about, smallest));
  };

  useEffect(() => host.select?.({ layer: about.name, head: about.heads[shown.head] }), [safe.layer, safe.head]);
  useEffect(() => remember(host, "long", { layer: safe.layer, head: String(safe.head) }), [safe.layer, safe.head]);

  const choose = (layer: number, head: number) => (setAt({ layer: clamp(layer, layers.length), head }), setHovered(null));
  const zoom = (factor: number, place?: Place) => setView(zoomedAt(view, factor, place?.k ?? view.x + view.share / 2, place?.q ?? view.y + view.share / 2, smallest));
  const zooming: Zooming = { times: 1 / view.share, zoom, pan: (across, down) => setView(within({ ...view, x: view.x + across * view.share, y: view.y + down * view.share }, smallest)), reset: () => setView(everything) };
  const keys: Key[] = [
    ...zoomKeys(zooming),
    { keys: ["ArrowLeft", "ArrowRight"], shown: "← →", means: "another head", run: (key) => choose(safe.layer, clamp(safe.head + (key === "ArrowRight" ? 1 : -1), layers[safe.layer].heads.length)) },
    { keys: ["PageUp", "PageDown"], shown: "PgUp PgDn", means: "another layer", run: (key) => choose(safe.layer + (key === "PageDown" ? 1 : -1), safe.head) },
    { keys: ["m"], means: "mass or largest weight", run: () => setMeasure(measure === "mass" ? "largest" : "mass") },
    { keys: ["Escape"], shown: "Esc", means: "show everything", run: () => (setView(everything), setOver(null), setHovered(null)) },
  ];
  const atlas: AtlasRow[] = layers.map((layer, i) => ({ label: layers.length > 1 ? names[i] : "", layer: i, heads: layer.heads.map((_, head) => head), warn: !layer.agrees }));
  const opened = safe.layer === meta.opening.layer && safe.head === meta.opening.head && !over && !hovered;
  const controls = html`
    <${Choices} label="cells show" value=${measure} options=${MEASURES} onChange=${setMeasure} />
    <${Select} label="layer" value=${String(safe.layer)} options=${layers.map((layer, i) => [String(i), layer.name])} onChange=${(value: string) => choose(Number(value), safe.head)} />
    <${Select} label="head" value=${String(safe.head)} options=${layers[safe.layer].heads.map((head, i) => [String(i), `head ${head}`])} onChange=${(value: string) => choose(safe.layer, Number(value))} />
    <${Slider} label="zoom" value=${-Math.log2(view.share)} min=${0} max=${Math.ceil(-Math.log2(smallest))} step=${0.1} text=${`${(1 / view.share).toFixed(view.share > 0.1 ? 1 : 0)}×`} onInput=${(value: number) => zoom(view.share * 2 ** value)} />
    ${rows.length ? html`<${Select} label="row in full" value=${String(row)} options=${[["-1", "none"], ...rows.map((number, i) => [String(i), nameAt(sideOf(about, tokens, 0), number, 16)])]} onChange=${(value: string) => setRow(Number(value))} />` : null}
    ${Object.keys(tokens).length ? html`<div class="rg-control"><label>find a token <input type="search" value=${text} size="10" onInput=${(event: Event) => (setText((event.target as HTMLInputElement).value), setReached(-1))} /></label>
      <output>${text ? `${found.length}${found.length >= 2000 ? "+" : ""} found` : ""}</output>
      ${found.length ? html`<${Button} label="go to the next one" onClick=${next}>next<//>` : null}</div>` : null}
  `;
  return html`<${Frame}
    name="long"
    title=${about.over === "channels" ? "Attention over channels" : "Attention over a long text"}
    subtitle=${describe(about, shown.head, cells, measure, over, received, entropy, tokens, view) + (opened ? ` · ${meta.opening.why}` : "")}
    host=${host}
    keys=${keys}
    controls=${controls}
    hint=${`Point at a cell to read it; a click zooms in. A click on a small map selects its head.${zoomHint(zooming)}`}
    footer=${html`<${Residuals} layers=${layers} current=${shown.layer} notes=${meta.notes} />`}
  >
    <div class="rg-beside">
      <${LongAtlas} payload=${payload} layers=${layers} rows=${atlas} measure=${measure} picked=${safe} onHover=${setHovered} onPick=${(to: { layer: number; head: number | null }) => choose(to.layer, to.head ?? 0)} />
      <${Main} about=${about} cells=${cells} measure=${measure} received=${received} entropy=${entropy} full=${full} tokens=${tokens} found=${found} view=${within(view, smallest)} over=${over} onOver=${setOver} onView=${(next: Window) => setView(within(next, smallest))} zoom=${zoom} />
    </div>
  <//>` as VNode;
}

interface MainProps {
  about: LongAbout;
  cells: Cells;
  measure: Measure;
  received: Curve;
  entropy: Curve;
  full: Curve | null;
  tokens: Lists;
  found: Hit[];
  view: Window;
  over: Place | null;
  onOver: (place: Place | null) => void;
  onView: (view: Window) => void;
  zoom: (factor: number, place?: Place) => void;
}

function Main({ about, cells, measure, received, entropy, full, tokens, found, view, over, onOver, onView, zoom }: MainProps) {
  const canvas = useMemo(() => document.createElement("canvas"), []);
  const most = useMemo(() => (measure === "mass" ? 1 : largestIn(cells)), [cells, measure]);
  const draw: Draw = (pen, size, theme) => {
    const boxes = boxesOf(size);
    drawCells(pen, theme, cells, view, measure, most, boxes.map, canvas);
    drawCurve(pen, theme, full ?? received, view.x, view.share, boxes.received, true);
    drawCurve(pen, theme, entropy, view.y, view.share, boxes.entropy, false, Math.log(Math.max(2, about.keys)));
    marks(pen, theme, boxes, view, found, about);
    labels(pen, theme, boxes, view, about, tokens, Boolean(full));
    legend(pen, theme, boxes, measure, most);
    if (over) cross(pen, theme, boxes.map, view, over);
  };
  const placeAt = (x: number, y: number, size: Size): Place | null => {
    const { map } = boxesOf(size);
    const [across, down] = [(x - map.x) / map.width, (y - map.y) / map.height];
    if (across < 0 || across >= 1 || down < 0 || down >= 1) return null;
    return { k: view.x + across * view.share, q: view.y + down * view.share };
  };
  const tip = over ? tipText(about, cells, measure, over, tokens) : null;
  return html`<${Picture}
    class="rg-main"
    draw=${draw}
    height=${longHeight}
    label=${`${about.queries} × ${about.keys} weights in cells of ${about.cell[0]} × ${about.cell[1]}`}
    cursor="crosshair"
    movable=${view.share < 1}
    focusable
    tip=${tip}
    onPoint=${(x: number, y: number, _: unknown, size: Size) => onOver(placeAt(x, y, size))}
    onLeave=${() => onOver(null)}
    onPress=${(x: number, y: number, _: unknown, size: Size) => { const place = placeAt(x, y, size); if (place) zoom(2, place); }}
    onDrag=${(dx: number, dy: number, _: unknown, size: Size) => { const side = boxesOf(size).map.width; onView({ ...view, x: view.x - (dx / side) * view.share, y: view.y - (dy / side) * view.share }); }}
    onZoom=${(factor: number, x: number, y: number, size: Size) => zoom(factor, placeAt(x, y, size) ?? undefined)}
    onDouble=${() => onView(everything)}
    description=${ZOOM_KEYS}
    wheelSays=${wheelHint({ times: 1 / view.share })}
  />`;
}

interface AtlasPart {
  payload: ViewProps["payload"];
  layers: LongAbout[];
  rows: AtlasRow[];
  measure: Measure;
  picked: { layer: number; head: number };
  onHover: (at: { layer: number; head: number } | null) => void;
  onPick: (at: { layer: number; head: number | null }) => void;
}

function LongAtlas({ payload, layers, rows, measure, picked, onHover, onPick }: AtlasPart) {
  const theme = useTheme();
  const strips = useMemo(() => new Map<string, Strip>(), [payload]);
  const strip = (layer: number, tall: number, wide: number): Strip => {
    const room: [number, number] = [thumbnailSide(THUMBNAIL, tall), thumbnailSide(THUMBNAIL, wide)];
    const key = `${layer} ${room} ${measure} ${theme.mode}`;
    let made = strips.get(key);
    if (!made) strips.set(key, (made = thumbnails(payload, layers[layer], layer, measure, theme, room)));
    return made;
  };
  return html`<${Atlas} rows=${rows} strip=${strip} headName=${(layer: number, head: number) => String(layers[layer].heads[head])} aspect=${1} largest=${rows.length === 1 ? 120 : 64} picked=${picked} label="a small map of every head" onHover=${onHover} onPick=${onPick} />`;
}

function thumbnails(payload: ViewProps["payload"], about: LongAbout, layer: number, measure: Measure, theme: Theme, room: [number, number]): Strip {
  const color = colorsOf(theme, false);
  const parts = about.heads.map((_, head) => {
    const cells = cellsIn(payload, about, layer, head, measure);
    return { part: pooled(cells, everything, ...room, measure), most: measure === "mass" ? 1 : largestIn(cells) };
  });
  const { rows, columns } = parts[0].part;
  return makeStrip(about.heads.length, rows, columns, (head, row, column) => color(brightness(parts[head].part.data[row * columns + column], parts[head].most)));
}

const cellsIn = (payload: ViewProps["payload"], { queries, keys, cell }: LongAbout, layer: number, head: number, measure: Measure): Cells =>
  cellsOf(payload.array(`${measure}${layer}`), head, queries / cell[0], keys / cell[1]);

type Boxes = ReturnType<typeof boxesOf>;

function labels(pen: Parameters<Draw>[0], theme: Theme, { map, received, entropy }: Boxes, view: Window, about: LongAbout, tokens: Lists, full: boolean): void {
  pen.fillStyle = theme.muted;
  pen.font = `10px ${theme.font}`;
  pen.textBaseline = "middle";
  const [asks, reads] = [sideOf(about, tokens, 0), sideOf(about, tokens, 1)];
  const name = (share: number, side: Side) => {
    const number = Math.min(side.count - 1, Math.floor(share * side.count));
    return view.share * side.count < 400 ? nameAt(side, number, 8) : (side.first + number).toLocaleString("en");
  };
  const parts = [0, 0.25, 0.5, 0.75, 1];
  let above = "";
  pen.textAlign = "right";
  for (const part of parts) {
    const said = fitted(pen, name(view.y + part * view.share, asks), map.x - 8);
    if (said !== above) pen.fillText(said, map.x - 5, map.y + part * map.height); // few queries have fewer labels
    above = said;
  }
  const reading = parts.map((part) => name(view.x + part * view.share, reads));
  pen.textAlign = "left";
  for (const [left, text] of besideEachOther(pen, reading, map)) pen.fillText(text, left, received.y + received.height + 9);
  pen.textAlign = "left";
  pen.fillText("keys →  queries ↓", map.x, 9);
  pen.fillStyle = theme.ink;
  pen.fillText(full ? "weights of the row, token by token" : "mass received by each key", received.x + 4, received.y + 8);
  pen.textAlign = "center";
  pen.fillText("entropy", entropy.x + entropy.width / 2, 9);
}

/** Labels at equal distances below a map, with their left edges. The ends come first; others that would lie on them are left out. */
export function besideEachOther(pen: Pick<Parameters<Draw>[0], "measureText">, names: string[], { x, width }: Pick<Box, "x" | "width">): [number, string][] {
  const last = names.length - 1;
  const taken: { left: number; right: number; text: string }[] = [];
  for (const i of [0, last, ...names.map((_, at) => at).slice(1, -1).sort((a, b) => Math.abs(a - last / 2) - Math.abs(b - last / 2))]) {
    const text = fitted(pen as Parameters<Draw>[0], names[i], width / 2 - 6);
    const wide = pen.measureText(text).width;
    const left = Math.min(x + width - wide, Math.max(x, x + (width * i) / last - wide / 2));
    const free = taken.every((one) => (left > one.right + 6 || left + wide < one.left - 6) && one.text !== text);
    if (free) taken.push({ left, right: left + wide, text });
  }
  return taken.map(({ left, text }) => [left, text]);
}

function legend(pen: Parameters<Draw>[0], theme: Theme, { legend: place, map }: Boxes, measure: Measure, most: number): void {
  drawLegend(pen, theme, { scale: "root", top: 1, signed: false }, 1, most, place);
  pen.fillStyle = theme.muted;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  const [left, said] = [place.x + place.width + 10, measure === "mass" ? "of each query, in a cell" : "largest weight in a cell"];
  pen.fillText(fitted(pen, said, map.x + map.width + 60 - left), left, place.y + 4);
}

function marks(pen: Parameters<Draw>[0], theme: Theme, { map }: Boxes, view: Window, found: Hit[], about: LongAbout): void {
  pen.fillStyle = theme.warn;
  for (const { q, k } of found) {
    const x = k === null ? -1 : (((k + 0.5) / about.keys - view.x) / view.share) * map.width;
    const y = q === null ? -1 : (((q + 0.5) / about.queries - view.y) / view.share) * map.height;
    if (x >= 0 && x <= map.width) pen.fillRect(map.x + x - 0.5, map.y + map.height + 1, 1.5, 7);
    if (y >= 0 && y <= map.height) pen.fillRect(map.x + map.width + 1, map.y + y - 0.5, 7, 1.5);
  }
}

function cross(pen: Parameters<Draw>[0], theme: Theme, map: Box, view: Window, { q, k }: Place): void {
  pen.strokeStyle = theme.hover;
  pen.lineWidth = 1;
  const [x, y] = [map.x + ((k - view.x) / view.share) * map.width, map.y + ((q - view.y) / view.share) * map.height];
  pen.beginPath();
  pen.moveTo(x, map.y);
  pen.lineTo(x, map.y + map.height);
  pen.moveTo(map.x, y);
  pen.lineTo(map.x + map.width, y);
  pen.stroke();
}

const clamp = (at: number, count: number): number => Math.min(count - 1, Math.max(0, Number.isFinite(at) ? at : 0));

const cellOf = (share: number, count: number, cell: number): [number, number] => {
  const start = Math.floor(Math.floor(share * count) / cell) * cell;
  return [start, Math.min(count, start + cell) - 1];
};

function range([from, to]: [number, number], side: Side): string {
  const name = (at: number) => nameAt(side, at, 16, ["“", "”"]);
  return from === to ? name(from) : `${name(from)} … ${name(to)}`;
}

function valueIn(about: LongAbout, cells: Cells, { q, k }: Place): number {
  const row = Math.floor(Math.floor(q * about.queries) / about.cell[0]);
  const column = Math.floor(Math.floor(k * about.keys) / about.cell[1]);
  return cells.data[row * cells.columns + column] ?? 0;
}

export function tipText(about: LongAbout, cells: Cells, measure: Measure, place: Place, tokens: Lists): string {
  const [queries, keys] = [cellOf(place.q, about.queries, about.cell[0]), cellOf(place.k, about.keys, about.cell[1])];
  const value = percent(valueIn(about, cells, place));
  return `${range(queries, sideOf(about, tokens, 0))} → ${range(keys, sideOf(about, tokens, 1))}  ${measure === "mass" ? `${value} of each query` : `largest ${value}`}`;
}

/** How many tokens share the bin at a share of them: the last bin may have fewer. */
export function binSize(share: number, count: number, bin: number): number {
  const [from, to] = cellOf(share, count, bin);
  return to - from + 1;
}

/** Two digits behind the point; two digits that are not 0 for what is smaller: far from a sink, keys receive little. */
export const amount = (x: number): string => (x >= 0.1 || x === 0 ? x.toFixed(2) : x.toPrecision(2));

function describe(about: LongAbout, head: number, cells: Cells, measure: Measure, over: Place | null, received: Curve, entropy: Curve, tokens: Lists, view: Window): string {
  const [queries, keys] = [about.queries.toLocaleString("en"), about.keys.toLocaleString("en")];
  const square = about.queries === about.keys && about.cell[0] === about.cell[1];
  const size = square ? `${keys} ${thing(about)}s in cells of ${about.cell[1]}` : `${queries} queries × ${keys} keys in cells of ${about.cell[0]} × ${about.cell[1]}`;
  const start = `${about.name} · head ${about.heads[head]} · ${size}`;
  if (!over) return start + shownText(about, tokens, view);
  const [asks, reads] = [cellOf(over.q, about.queries, about.cell[0]), cellOf(over.k, about.keys, about.cell[1])];
  const taken = meanOver(reads, about.keys, (share) => valueAt(received, share) / binSize(share, about.keys, about.bin[1]));
  const spread = meanOver(asks, about.queries, (share) => valueAt(entropy, share));
  return `${start} · ${tipText(about, cells, measure, over, tokens)} · keys there receive ${amount(taken)} on average · entropy ${spread.toFixed(2)}`;
}

/** The mean of a value over the tokens of a cell. Its bins may lie on two cells, or be larger: each token has the value of its bin. */
function meanOver([from, to]: [number, number], count: number, value: (share: number) => number): number {
  let sum = 0;
  for (let at = from; at <= to; at++) sum += value((at + 0.5) / count);
  return sum / (to - from + 1);
}

/** The visible tokens of a zoomed map in words; nothing where all of them are visible. */
function shownText(about: LongAbout, tokens: Lists, { x, y, share }: Window): string {
  if (share === 1) return "";
  const part = (start: number, side: Side) => range([Math.floor(start * side.count), Math.min(side.count, Math.ceil((start + share) * side.count - 1e-6)) - 1], side);
  return ` · shown: queries ${part(y, sideOf(about, tokens, 0))}, keys ${part(x, sideOf(about, tokens, 1))}`;
}

/** The window around a found token: in the middle of the queries, of the keys, or of both. */
export function placeOf(view: Window, { q, k }: Hit, about: Pick<LongAbout, "queries" | "keys">, smallest: number): Window {
  const share = Math.min(view.share, 64 / Math.max(about.queries, about.keys));
  const start = (at: number | null, count: number, middle: number) => (at === null ? middle : (at + 0.5) / count) - share / 2;
  return within({ x: start(k, about.keys, view.x + view.share / 2), y: start(q, about.queries, view.y + view.share / 2), share }, smallest);
}
