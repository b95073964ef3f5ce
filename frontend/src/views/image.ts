// Image attention: choose a patch (or the class token) and see where every head of every layer looks from there.

import { html, useEffect, useMemo, useState, type VNode } from "../core/html";
import { Picture, pixels, type Size } from "../core/canvas";
import { Choice as Choices, Select, Slider, Toggle } from "../core/controls";
import { Frame } from "../core/frame";
import type { Key } from "../core/keys";
import { recalled, remember, useRecalled } from "../core/memory";
import type { Payload } from "../core/payload";
import type { Pen } from "../core/pen";
import { type Theme, useTheme } from "../core/theme";
import { Atlas, type AtlasRow, blockRows, largestParts, makeStrip, type Strip, thumbnailSide } from "../maps/atlas";
import { type Choice, fitChoice, type Layer, layersOf, mostVisible, headNumbers, type Opening, type Order, ORDERS, patternOptions, percent, sortedHeads, shortNames, type Which } from "../maps/layer";
import { Legend, lineOf } from "../maps/legend";
import { drawOutlines, drawOverlay, largest, type Outline, overlayColors, overlayHeight, patchPixels, placeOf, type Style, whoIsAt } from "../maps/overlay";
import { cellOf, centerOf, type ImageAbout, prefixName, type Query, isElsewhere, isMerged, patchName, queryIn, queryName, sizeText } from "../maps/place";
import { Residuals } from "../maps/residuals";
import { Rollout } from "../maps/rollout";
import type { Shading } from "../maps/scale";
import { difference, headName, secondOf, secondOptions, spelled } from "../maps/second";
import { loopsOf, strongest } from "../maps/strongest";
import { top } from "../maps/table";
import { asWhich, headNumber, headOptions, startChoice } from "./tokens";
import type { ViewProps } from "./index";

interface Meta {
  layers: ImageAbout[];
  notes: string[];
  image: boolean;
  rollout: boolean;
  opening?: Opening;
  /** Whether these are differences of maps: they are small, so each has its own scale. */
  difference?: boolean;
}

/** Grids of one row or column are drawn as high or wide as this, since patches without an image need not be square. */
const MOST_UNEQUAL = 16;

export function ImageView({ payload, host }: ViewProps): VNode {
  const meta = payload.meta as Meta;
  const layers = useMemo(() => layersOf<ImageAbout>(payload), [payload]);
  const rollout = useMemo(() => (meta.rollout ? new Rollout(layers) : null), [layers]);
  const names = useMemo(() => shortNames(meta.layers.map((layer) => layer.name)), [payload]);
  const merged = useMemo(() => isMerged(meta.layers), [payload]);
  const original = useMemo(() => (meta.image ? imageOf(payload, false) : null), [payload]);
  const gray = useMemo(() => (meta.image ? imageOf(payload, true) : null), [payload]);

  const [chosen, setLocked] = useState<Choice>(() => startChoice(recalled(host, "image"), { layer: meta.opening?.layer ?? layers.length - 1, which: meta.opening?.head ?? "mean" }));
  const [order, setOrder] = useState<Order>("place");
  const [structured, setStructured] = useState(false);
  const [hovered, setHovered] = useState<Choice | null>(null);
  const [query, setQuery] = useState<Query>(() => startQuery(layers[meta.opening?.layer ?? layers.length - 1].about));
  const [pinned, setPinned] = useState(false);
  const [over, setOver] = useState<Query | null>(null);
  const [style, setStyle] = useState<Style>(original ? "color" : "map");
  const [opacity, setOpacity] = useState(0.7);
  const [smooth, setSmooth] = useState(false);
  const [block, setBlock] = useState(layers.length === 1);
  const [shared, setShared] = useState(true);
  useEffect(() => setShared(!meta.difference), [meta.difference]);
  const [mass, setMass] = useState(1);
  const [off, setOff] = useState<ReadonlySet<number>>(new Set());
  const [pattern, setPattern] = useState("any");
  const [beside, setBeside] = useState<string | null>(() => recalled(host, "image").beside ?? null);

  const locked = fitChoice(chosen, layers, meta.rollout);
  const shown = hovered ? fitChoice(hovered, layers, meta.rollout) : locked;
  const layer = layers[shown.layer];
  // Rollout is over the first layer's patches, which may be smaller than the query's.
  const about = shown.which === "rollout" && rollout ? { ...layer.about, grid: rollout.source.about.grid, prefix: rollout.source.about.prefix } : layer.about;
  // In gray, the image's own colors cannot be mistaken for colors of weights.
  const image = style === "color" ? gray : original;
  const aspect = image ? image.height / image.width : Math.min(MOST_UNEQUAL, Math.max(1 / MOST_UNEQUAL, about.grid[0] / about.grid[1]));
  const row = useMemo(() => rowOf(layer, shown, query, rollout), [layer, shown.which, shown.layer, query]);
  const other = shown.which === "rollout" ? null : secondOf(beside, layers, layer);
  const second = useMemo(() => other && rowOf(layers[other.layer], other, query, null), [layer, other?.layer, other?.which, query]);
  const less = useMemo(() => row && second && difference(second, row), [row, second]);
  useEffect(() => {
    const at = layers[locked.layer].about;
    host.select?.({ layer: at.name, head: headNumber(layers[locked.layer], locked.which), query: queryIn(at, query) });
  }, [locked.layer, locked.which, query, pinned]);

  useEffect(() => setOff(new Set()), [payload, locked.layer]);
  const changeStyle = (next: Style) => {
    setStyle(next);
    if (next !== "outlines") return;
    // Outlines around the whole mass would show nothing, and they are for comparing the heads of one layer.
    if (mass === 1) setMass(0.6);
    setBlock(true);
  };
  useRecalled(host, "image", (choices) => (setLocked(startChoice(choices, locked)), setBeside(choices.beside ?? null)));
  useEffect(() => remember(host, "image", { layer: locked.layer, head: String(locked.which), beside }), [locked.layer, locked.which, beside]);

  const choose = (layerAt: number, which: Which) => {
    const at = Math.min(layers.length - 1, Math.max(0, layerAt));
    setLocked({ layer: at, which: typeof which === "number" ? Math.min(layers[at].heads - 1, Math.max(0, which)) : which });
    setHovered(null);
  };
  const stepHead = (by: number) => {
    const heads = layers[locked.layer].heads;
    const now = typeof locked.which === "number" ? locked.which : by > 0 ? -1 : heads;
    choose(locked.layer, (now + by + heads) % heads);
  };
  const move = (dy: number, dx: number) => {
    const grid = about.query_grid ?? about.grid;
    const [r, c] = query.prefix === null ? cellOf(grid, query) : [Math.floor(grid[0] / 2), Math.floor(grid[1] / 2)];
    setQuery(query.prefix === null ? centerOf(grid, r + dy, c + dx) : centerOf(grid, r, c));
    setPinned(true);
  };
  const prefixes = Math.max(about.prefix, about.query_prefix);
  const keys: Key[] = [
    { keys: ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"], shown: "← ↑ → ↓", means: "another patch", run: (key) => move(key === "ArrowUp" ? -1 : key === "ArrowDown" ? 1 : 0, key === "ArrowLeft" ? -1 : key === "ArrowRight" ? 1 : 0) },
    ...(about.query_prefix ? [{ keys: ["c"], means: "class and prefix tokens", run: () => (setQuery({ prefix: query.prefix === null ? 0 : (query.prefix + 1) % about.query_prefix, y: 0.5, x: 0.5 }), setPinned(true)) }] : []),
    { keys: ["[", "]"], means: "another head", run: (key) => stepHead(key === "]" ? 1 : -1) },
    { keys: ["PageUp", "PageDown"], shown: "PgUp PgDn", means: "another layer", run: (key) => choose(locked.layer + (key === "PageDown" ? 1 : -1), locked.which) },
    { keys: ["m"], means: "mean over heads", run: () => choose(locked.layer, "mean") },
    ...(rollout ? [{ keys: ["r"], means: "rollout", run: () => choose(locked.layer, "rollout") }] : []),
    { keys: ["s"], means: "smooth or by patch", run: () => setSmooth(!smooth) },
    { keys: [], shown: "Shift + click", means: "compare with this head", run: () => undefined },
    { keys: ["Escape"], shown: "Esc", means: "clear the selection", run: () => (setBeside(null), setPinned(false), setHovered(null)) },
  ];

  const shading: Shading = { scale: shared ? "uniform" : "map", top: useMemo(() => mostVisible(layers), [layers]), signed: meta.layers.some((one) => one.signed) };
  const opened = meta.opening && locked.layer === meta.opening.layer && locked.which === meta.opening.head && !hovered && !pinned;
  const patterns = useMemo(() => patternOptions(meta.layers), [payload]);
  const controls = html`
    <${Select} label="layer" value=${String(locked.layer)} options=${layers.map(({ about }, i) => [String(i), merged ? `${about.name} · ${sizeText(about.grid)}` : about.name])} onChange=${(value: string) => choose(Number(value), locked.which)} />
    <${Select} label="head" value=${String(locked.which)} options=${headOptions(layers[locked.layer], meta.rollout)} onChange=${(value: string) => choose(locked.layer, asWhich(value))} />
    <${Select} label="compare with" value=${other ? spelled(other) : ""} options=${secondOptions(layers, locked)} onChange=${(value: string) => setBeside(value || null)} />
    ${image ? html`<${Choices} label="overlay" value=${style} options=${[["color", "Color"], ["spotlight", "Spotlight"], ["outlines", "Outlines"], ["map", "Map"]]} onChange=${changeStyle} />` : null}
    <${Slider} label="mass shown" value=${mass} min=${0.05} max=${1} step=${0.05} text=${`${Math.round(100 * mass)} %`} onInput=${setMass} />
    ${style === "map" || style === "outlines" ? null : html`<${Slider} label="strength" value=${opacity} min=${0} max=${1} step=${0.05} text=${`${Math.round(100 * opacity)} %`} onInput=${setOpacity} />`}
    ${style === "outlines" ? null : html`<${Toggle} label="smooth" checked=${smooth} onChange=${setSmooth} /><${Toggle} label="one scale for all heads" checked=${shared} onChange=${setShared} />`}
    ${layers.length > 1 ? html`<${Choices} label="heads of" value=${block ? "layer" : "all"} options=${[["all", "All layers"], ["layer", "This layer"]]} onChange=${(value: string) => setBlock(value === "layer")} />` : null}
    ${block ? null : html`<${Select} label="thumbnails" value=${order} options=${ORDERS} onChange=${setOrder} /><${Toggle} label="hide uniform heads" checked=${structured} onChange=${setStructured} />${patterns.length > 2 ? html`<${Select} label="pattern" value=${pattern} options=${patterns} onChange=${setPattern} />` : null}`}
  `;
  const parts = { layers, names: merged ? names.map((name, i) => `${name} · ${layers[i].about.grid.join("×")}`) : names, rollout, image, query, shown, locked, style, opacity, smooth, block, shading, aspect, order, structured, mass, off, pattern };
  const hover = (at: Query | null) => {
    setOver(at);
    if (at && !pinned && (at.prefix === null || at.prefix < about.query_prefix)) setQuery(at);
  };
  const pick = (at: Query | null) => {
    if (!at || (at.prefix !== null && at.prefix >= about.query_prefix)) return setPinned(false);
    const same = pinned && queryIn(about, at) === queryIn(about, query);
    setPinned(!same);
    setQuery(at);
  };
  const chipNames = Array.from({ length: prefixes }, (_, i) => prefixName(i, about.query_prefix, about.query_grid !== null));
  const main = (more: Partial<MainProps>) => html`<${Main} ...${parts} about=${about} row=${row} pinned=${pinned} over=${over} chipNames=${chipNames} onHover=${hover} onPick=${pick} ...${more} />`;
  const compared = other && second && less ? [{}, { shown: other, row: second }, { row: less, shading: { ...shading, signed: true }, style: style === "outlines" || style === "spotlight" ? "color" : style }] : null;
  return html`<${Frame}
    name="image"
    title="Image attention"
    subtitle=${(compared ? describeBoth(layers, shown, other!, query, merged, less!) : describe(about, shown, query, row, pinned ? over : null, merged, mass)) + (opened ? ` · ${meta.opening!.why}` : "")}
    host=${host}
    keys=${keys}
    controls=${controls}
    hint="Point at a patch to see where it looks, or at a small map to see it large; a click keeps it."
    footer=${html`<${Residuals} layers=${meta.layers} current=${shown.layer} notes=${meta.notes} />`}
  >
    ${style === "outlines" ? html`<${Legend} names=${layers[locked.layer].about.heads.map(String)} off=${off} onChange=${setOff} />` : null}
    <div class=${compared ? "" : "rg-beside rg-image"}>
      ${compared ? html`<div class="rg-three">${compared.map((more, side) => html`<figure><figcaption>${[headName(layers, shown), headName(layers, other!), "second − first"][side]}</figcaption>${main(more as Partial<MainProps>)}</figure>`)}</div>` : main({})}
      <${Heads} ...${parts} second=${other && typeof other.which === "number" ? { layer: other.layer, head: other.which } : null} onHover=${(at: { layer: number; head: number } | null) => setHovered(at && { layer: at.layer, which: at.head })} onPick=${(at: { layer: number; head: number | null }, to: boolean) => (to && at.head !== null ? setBeside(spelled({ layer: at.layer, which: at.head })) : choose(at.layer, at.head ?? "mean"))} />
    </div>
  <//>` as VNode;
}

interface Parts {
  layers: Layer<ImageAbout>[];
  names: string[];
  rollout: Rollout | null;
  image: HTMLCanvasElement | null;
  query: Query;
  shown: Choice;
  locked: Choice;
  style: Style;
  opacity: number;
  smooth: boolean;
  block: boolean;
  shading: Shading;
  aspect: number;
  order: Order;
  structured: boolean;
  /** The share of the mass to show: the strongest patches that hold it. */
  mass: number;
  /** Heads whose outlines are not drawn. */
  off: ReadonlySet<number>;
  pattern: string;
}

interface MainProps extends Parts {
  about: ImageAbout;
  row: Float32Array | null;
  pinned: boolean;
  over: Query | null;
  chipNames: string[];
  onHover: (at: Query | null) => void;
  onPick: (at: Query | null) => void;
}

function Main(props: MainProps) {
  const { about, row, image, style, opacity, smooth, query, pinned, over, aspect } = props;
  const theme = useTheme();
  const { shading } = props;
  const layer = props.layers[props.shown.layer];
  const visible = props.shown.which === "rollout" && row ? row.length : visibleTo(layer, query);
  const max = row ? largest(row, about.prefix) : 0;
  const heat = useMemo(() => {
    const color = overlayColors(style, opacity, theme, shading.signed);
    return row ? patchPixels(row, about, placeOf(shading, visible, max), color, props.mass, style === "spotlight" ? color(0) : 0) : null;
  }, [row, max, visible, shading.scale, shading.signed, style, opacity, theme, props.mass]);
  const outlines = useMemo(() => {
    if (style !== "outlines" || !row) return [];
    // The head under the pointer is shown alone, in its own color.
    const one = props.shown !== props.locked && typeof props.shown.which === "number" ? [props.shown.which] : null;
    if (typeof props.shown.which !== "number") return [outlineOf(row, about, props.mass, 0, theme)];
    const at = layer.rowOf(queryIn(about, query));
    return (one ?? layer.about.heads.map((_, head) => head).filter((head) => !props.off.has(head))).map((head) => outlineOf(layer.row(head, at), about, props.mass, head, theme));
  }, [row, style, props.mass, props.off, props.shown, props.locked, theme]);
  const place = over && over.prefix === null ? over : null;
  const draw = drawOverlay({ about, row, max, shading, visible, image, heat, style, smooth, query, pinned, over: place, aspect, outlines }, props.chipNames);
  const find = (x: number, y: number, size: Size) => whoIsAt(about, aspect, x, y, size);
  return html`<${Picture}
    class="rg-main"
    draw=${draw}
    height=${overlayHeight(about, aspect)}
    label="the image, and where the chosen head looks from the chosen patch"
    cursor="crosshair"
    focusable
    tip=${tipOf(about, row, over, query)}
    onPoint=${(x: number, y: number, _: unknown, size: Size) => {
      const at = find(x, y, size);
      if (isElsewhere(props.layers.map((layer) => layer.about), at, over)) props.onHover(at);
    }}
    onLeave=${() => props.onHover(null)}
    onPress=${(x: number, y: number, _: unknown, size: Size) => props.onPick(find(x, y, size))}
  />`;
}

interface HeadsProps extends Parts {
  second: { layer: number; head: number } | null;
  onHover: (at: { layer: number; head: number } | null) => void;
  onPick: (at: { layer: number; head: number | null }, beside: boolean) => void;
}

function Heads(props: HeadsProps) {
  const { layers, names, query, locked, style, opacity, smooth, block, shading, image, aspect } = props;
  const theme = useTheme();
  const strips = useMemo(() => new Map<string, Strip>(), [layers, query, style, opacity, theme, block, shading.scale, shading.signed, props.mass]);
  const overImage = block && image && style !== "map";
  const onTop = overImage && style === "outlines" ? (pen: Pen, at: number, head: number, box: { x: number; y: number; width: number; height: number }) => {
    const { about } = layers[at];
    const line = layers[at].rowOf(queryIn(about, query));
    if (line >= 0) drawOutlines(pen, [outlineOf(layers[at].row(head, line), about, props.mass, head, theme)], about.grid, box, 1.6);
  } : undefined;
  const color = useMemo(() => overlayColors(overImage ? style : "map", opacity, theme, shading.signed), [overImage, style, opacity, theme, shading.signed]);
  const strip = (index: number, tall: number, wide: number): Strip => {
    const { grid } = layers[index].about;
    const room: [number, number] = [thumbnailSide(grid[0], tall), thumbnailSide(grid[1], wide)];
    const key = `${index} ${room}`;
    let made = strips.get(key);
    if (!made) strips.set(key, (made = thumbnails(layers[index], query, color, shading, props.mass, overImage && style === "spotlight" ? color(0) : 0, room)));
    return made;
  };
  const rows: AtlasRow[] = block
    ? blockRows(locked.layer, layers[locked.layer].heads, Math.max(2, Math.ceil(Math.sqrt(layers[locked.layer].heads))))
    : layers.map((one, i) => ({ label: layers.length > 1 ? names[i] : "", layer: i, heads: sortedHeads(one.about, props.order, props.structured, props.pattern), warn: !one.about.agrees }));
  return html`<${Atlas}
    rows=${rows}
    strip=${strip}
    headName=${(layer: number, head: number) => String(layers[layer].about.heads[head])}
    aspect=${aspect}
    largest=${block ? 190 : 90}
    smooth=${smooth}
    backdrop=${overImage ? image : null}
    onTop=${onTop}
    picked=${{ layer: locked.layer, head: typeof locked.which === "number" ? locked.which : null }}
    second=${props.second}
    about=${(layer: number, head: number) => headNumbers(layers[layer].about, head)}
    label="where every head looks from the chosen patch"
    onHover=${props.onHover}
    onPick=${props.onPick}
  />`;
}

function thumbnails(layer: Layer<ImageAbout>, query: Query, color: (t: number) => number, shading: Shading, mass: number, rest: number, room: [number, number]): Strip {
  const { grid, prefix } = layer.about;
  const at = layer.rowOf(queryIn(layer.about, query));
  const rows = Array.from({ length: layer.heads }, (_, head) => (at < 0 ? new Float32Array(layer.keys) : layer.row(head, at)));
  const places = rows.map((row) => placeOf(shading, visibleTo(layer, query), largest(row, prefix)));
  const parts = rows.map((row) => {
    const patches = row.subarray(prefix);
    const inside = mass < 1 ? strongest(patches, mass) : null;
    return largestParts(inside ? patches.map((weight, i) => (inside[i] ? weight : NaN)) : patches, grid, room);
  });
  return makeStrip(layer.heads, ...room, (head, row, column) => {
    const weight = parts[head][row * room[1] + column];
    return Number.isNaN(weight) ? rest : color(places[head](weight));
  });
}

function outlineOf(row: Float32Array, about: ImageAbout, mass: number, head: number, theme: Theme): Outline {
  return { name: String(about.heads[head] ?? ""), loops: loopsOf(strongest(row.subarray(about.prefix), mass), about.grid), ...lineOf(head, theme) };
}

/** The tooltip: the patch under the pointer, and its weight from the query. */
function tipOf(about: ImageAbout, row: Float32Array | null, over: Query | null, query: Query): string | null {
  if (!over || !row) return null;
  const at = over.prefix ?? about.prefix + cellNumber(about.grid, over);
  const name = over.prefix === null ? patchName(about.grid, cellNumber(about.grid, over), false) : prefixName(over.prefix, about.query_prefix, about.query_grid !== null);
  return at < row.length ? `${queryName(about, query)} → ${name}  ${percent(row[at])}` : name;
}

const cellNumber = (grid: [number, number], at: Query): number => {
  const [r, c] = cellOf(grid, at);
  return r * grid[1] + c;
};

/** How many keys a query may see in a layer. */
function visibleTo(layer: Layer<ImageAbout>, query: Query): number {
  const at = layer.rowOf(queryIn(layer.about, query));
  return at < 0 ? layer.keys : layer.visible[at];
}

function rowOf(layer: Layer<ImageAbout>, shown: Choice, query: Query, rollout: Rollout | null): Float32Array | null {
  const at = layer.rowOf(queryIn(layer.about, query));
  if (at < 0) return null;
  if (shown.which === "rollout" && rollout) return rollout.row(shown.layer, at);
  if (typeof shown.which === "number") return layer.row(shown.which, at);
  return layer.mean().subarray(at * layer.keys, (at + 1) * layer.keys);
}

export function startQuery(about: ImageAbout): Query {
  const usual = usualQuery(about);
  // Where rows were chosen, the view opens on one of them.
  if (!about.rows || about.rows.includes(queryIn(about, usual))) return usual;
  const first = about.rows[0];
  if (first < about.query_prefix) return { prefix: first, y: 0.5, x: 0.5 };
  const place = first - about.query_prefix;
  return centerOf(about.query_grid!, Math.floor(place / about.query_grid![1]), place % about.query_grid![1]);
}

function usualQuery(about: ImageAbout): Query {
  if (about.query_prefix > 0) return { prefix: 0, y: 0.5, x: 0.5 };
  return centerOf(about.query_grid!, Math.floor(about.query_grid![0] / 2), Math.floor(about.query_grid![1] / 2));
}

function imageOf(payload: Payload, gray: boolean): HTMLCanvasElement {
  const { data, shape } = payload.array("image");
  const [height, width] = shape;
  return pixels(width, height, (i) => {
    let [r, g, b] = [data[3 * i], data[3 * i + 1], data[3 * i + 2]];
    if (gray) r = g = b = Math.round(0.3 * r + 0.59 * g + 0.11 * b);
    return r | (g << 8) | (b << 16) | (255 << 24);
  });
}

function describeBoth(layers: Layer<ImageAbout>[], first: Choice, second: Choice, query: Query, merged: boolean, less: Float32Array): string {
  const elsewhere = less.reduce((sum, weight) => sum + Math.abs(weight), 0) / 2;
  return `${headName(layers, first)} and ${headName(layers, second)} · from ${queryName(layers[first.layer].about, query, merged)} · ${percent(elsewhere)} of the attention differs`;
}

function describe(about: ImageAbout, shown: Choice, query: Query, row: Float32Array | null, over: Query | null, merged: boolean, mass: number): string {
  const head = typeof shown.which === "number" ? `head ${about.heads[shown.which]}` : shown.which === "mean" ? "mean over heads" : "rollout";
  const start = `${about.name} · ${head} · from ${queryName(about, query, merged)}`;
  if (!row) return `${start} · not captured`;
  const where = (i: number) => patchName(about.grid, i, merged);
  if (over && over.prefix === null) {
    const [r, c] = cellOf(about.grid, over);
    const i = r * about.grid[1] + c;
    return `${start} · ${where(i)} gets ${percent(row[about.prefix + i])}`;
  }
  const patches = row.subarray(about.prefix);
  const best = top(patches, 1)[0];
  let special = 0;
  for (let i = 0; i < about.prefix; i++) special += row[i];
  const held = mass < 1 ? strongest(patches, mass).reduce((a, b) => a + b, 0) : 0;
  // The share is of the mass on patches, which may be little beside that of a class token.
  const whole = about.prefix ? ` of the ${percent(patches.reduce((sum, weight) => sum + Math.abs(weight), 0))} on patches` : "";
  const part = held ? ` · ${held} of ${patches.length} patches hold ${percent(mass)}${whole}` : "";
  const most = best === undefined ? "" : ` · most at ${where(best)}, ${percent(patches[best])}`;
  return `${start}${most}${part}${about.prefix ? ` · ${about.prefix === 1 ? "class token" : "prefix tokens"} ${percent(special)}` : ""}`;
}
