// Text with images in it: patches lie on their pictures, words beside them. Pointing at either shows both.

import { html, useEffect, useMemo, useState, type VNode } from "../core/html";
import { Picture, pixels, type Size } from "../core/canvas";
import { Choice as Choices, Select, Slider } from "../core/controls";
import { Frame } from "../core/frame";
import type { Key } from "../core/keys";
import { recalled, remember } from "../core/memory";
import type { Payload } from "../core/payload";
import { useTheme } from "../core/theme";
import { fitChoice, type Layer, type LayerAbout, layersOf, mostVisible, type Opening, percent } from "../maps/layer";
import { overlayColors } from "../maps/overlay";
import { quoted } from "../maps/quote";
import { Residuals } from "../maps/residuals";
import { drawLegend, position, type Shading } from "../maps/scale";
import { top, visible } from "../maps/table";
import { drawFlow, flow, type Word, wordAt } from "../maps/textflow";
import { asWhich, headNumber, headOptions, startChoice } from "./tokens";
import type { ViewProps } from "./index";

export interface SegmentAbout {
  start: number;
  count: number;
  grid: [number, number] | null;
}

interface Meta {
  layers: LayerAbout[];
  segments: SegmentAbout[];
  tokens: string[];
  images: number;
  notes: string[];
  opening?: Opening;
  /** Whether these are heat maps of words: sums over all heads of how much each patch looks at a word, as shares of its sum. */
  word_maps: boolean;
}

type Direction = "from" | "to";

export function MixedView({ payload, host }: ViewProps): VNode {
  const meta = payload.meta as Meta;
  const layers = useMemo(() => layersOf(payload), [payload]);
  const [chosen, setChosen] = useState(() => startChoice(recalled(host, "mixed"), { layer: meta.opening?.layer ?? layers.length - 1, which: meta.opening?.head ?? 0 }));
  const [turned, setTurned] = useState<Direction>("from");
  const [query, setQuery] = useState(() => startToken(meta, layers[0]));
  const [pinned, setPinned] = useState(false);
  const [over, setOver] = useState<number | null>(null);
  const [opacity, setOpacity] = useState(0.75);
  const picked = fitChoice(chosen, layers, false);
  const layer = layers[picked.layer];
  const direction = !meta.word_maps ? turned : isWord(meta, query) ? "from" : "to";
  const row = useMemo(() => weightsOf(layer, picked.which, query, direction), [layer, picked.which, query, direction]);
  const shading: Shading = { scale: "uniform", top: useMemo(() => mostVisible(layers), [layers]), signed: meta.layers.some((about) => about.signed) };
  const at = layer.rowOf(query);
  const seen = direction === "from" && at >= 0 ? layer.visible[at] : mostVisible([layer]);
  // Each weight relative to the uniform attention of its query: of a column, the queries are the tokens.
  const keysOf = (token: number) => (direction === "from" ? seen : (layer.visible[layer.rowOf(token)] ?? 0));
  const place = (token: number) => (row && token < row.length ? position(row[token] * keysOf(token), shading.top) : 0);
  useEffect(() => host.select?.({ layer: layer.about.name, head: headNumber(layer, picked.which), query }), [picked.layer, picked.which, query]);
  useEffect(() => remember(host, "mixed", { layer: picked.layer, head: String(picked.which) }), [picked.layer, picked.which]);

  const choose = (to: number, which: typeof picked.which) => setChosen({ layer: Math.min(layers.length - 1, Math.max(0, to)), which });
  const hover = (token: number | null) => {
    setOver(token);
    if (token !== null && !pinned) setQuery(token);
  };
  const press = (token: number | null) => {
    setPinned(token !== null && !(pinned && token === query));
    if (token !== null) setQuery(token);
  };
  const step = (by: number) => {
    const heads = layer.heads;
    const now = typeof picked.which === "number" ? picked.which : by > 0 ? -1 : heads;
    choose(picked.layer, (now + by + heads) % heads);
  };
  const move = (by: number) => (setQuery(Math.min(meta.tokens.length - 1, Math.max(0, query + by))), setPinned(true));
  const headKeys: Key[] = [
    { keys: ["[", "]"], means: "another head", run: (key) => step(key === "]" ? 1 : -1) },
    { keys: ["PageUp", "PageDown"], shown: "PgUp PgDn", means: "another layer", run: (key) => choose(picked.layer + (key === "PageDown" ? 1 : -1), picked.which) },
    { keys: ["m"], means: "mean over heads", run: () => choose(picked.layer, "mean") },
    { keys: ["d"], means: "looks at, or is looked at by", run: () => setTurned(direction === "from" ? "to" : "from") },
  ];
  const keys: Key[] = [
    { keys: ["ArrowLeft", "ArrowRight"], shown: "← →", means: "another token or patch", run: (key) => move(key === "ArrowRight" ? 1 : -1) },
    ...(meta.word_maps ? [] : headKeys),
    { keys: ["Escape"], shown: "Esc", means: "clear the selection", run: () => setPinned(false) },
  ];
  const words = wordsOf(meta);
  const pictures = meta.segments.filter((segment) => segment.grid !== null);
  const controls = html`${meta.word_maps ? null : html`
    <${Select} label="layer" value=${String(picked.layer)} options=${layers.map((one, i) => [String(i), one.about.name])} onChange=${(value: string) => choose(Number(value), picked.which)} />
    <${Select} label="head" value=${String(picked.which)} options=${headOptions(layer, false)} onChange=${(value: string) => choose(picked.layer, asWhich(value))} />
    <${Choices} label="the token" value=${direction} options=${[["from", "Looks at"], ["to", "Is looked at by"]]} onChange=${setTurned} />`}
    ${meta.images ? html`<${Slider} label="strength" value=${opacity} min=${0} max=${1} step=${0.05} text=${`${Math.round(100 * opacity)} %`} onInput=${setOpacity} />` : null}
  `;
  const opened = !meta.word_maps && meta.opening && picked.layer === meta.opening.layer && picked.which === meta.opening.head && !pinned;
  return html`<${Frame}
    name="mixed"
    title="Text and image attention"
    subtitle=${describe(meta, layer, picked.which, query, row, direction, pinned ? over : null) + (opened ? ` · ${meta.opening!.why}` : "")}
    host=${host}
    keys=${keys}
    controls=${controls}
    hint=${meta.word_maps ? "Point at a word to see which patches look at it, or at a patch to see its words; a click keeps it." : "Point at a patch or a word to see where it looks; a click keeps it."}
    footer=${html`<${Residuals} layers=${meta.layers} current=${picked.layer} notes=${meta.notes} />`}
  >
    <div class="rg-beside rg-image">
      <div>${pictures.map((segment, i) => html`<${Patches} payload=${payload} segment=${segment} number=${i} place=${place} row=${row} shading=${shading} opacity=${opacity} query=${query} over=${over} pinned=${pinned} onHover=${hover} onPress=${press} onMove=${(token: number) => (setQuery(token), setPinned(true))} />`)}</div>
      <${Words} words=${words} place=${place} shading=${shading} seen=${seen} query=${query} over=${over} pinned=${pinned} onHover=${hover} onPress=${press} />
    </div>
  <//>` as VNode;
}

interface Pointed {
  query: number;
  over: number | null;
  pinned: boolean;
  onHover: (token: number | null) => void;
  onPress: (token: number | null) => void;
}

interface PatchesProps extends Pointed {
  payload: Payload<Meta>;
  segment: SegmentAbout;
  number: number;
  place: (token: number) => number;
  row: Float32Array | null;
  shading: Shading;
  opacity: number;
  /** Select a patch by a key. */
  onMove: (token: number) => void;
}

const TALLEST = 560;

function Patches({ payload, segment, number, place, row, shading, opacity, query, over, pinned, onHover, onPress, onMove }: PatchesProps) {
  const theme = useTheme();
  const [rows, columns] = segment.grid!;
  const image = useMemo(() => (payload.meta.images ? grayImage(payload, number) : null), [payload, number]);
  const aspect = image ? image.height / image.width : rows / columns;
  const heat = useMemo(() => {
    const color = overlayColors(image ? "color" : "map", opacity, theme, shading.signed);
    return pixels(columns, rows, (i) => color(place(segment.start + i)));
  }, [row, opacity, theme, image]);
  const room = (width: number) => (width * aspect > TALLEST ? { width: TALLEST / aspect, height: TALLEST } : { width, height: width * aspect });
  const find = (x: number, y: number, size: Size): number | null => {
    const { width, height } = room(size.width);
    const [r, c] = [Math.floor((y / height) * rows), Math.floor((x / width) * columns)];
    return r >= 0 && r < rows && c >= 0 && c < columns ? segment.start + r * columns + c : null;
  };
  /** Arrow keys select the next patch, or the one in the middle if none is selected. */
  const step = (key: string): boolean => {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
    if (!by) return false;
    const at = query - segment.start;
    const isHere = at >= 0 && at < segment.count;
    const [r, c] = isHere ? [Math.floor(at / columns) + by[0], (at % columns) + by[1]] : [Math.floor(rows / 2), Math.floor(columns / 2)];
    onMove(segment.start + Math.min(rows - 1, Math.max(0, r)) * columns + Math.min(columns - 1, Math.max(0, c)));
    return true;
  };
  return html`<${Picture}
    class="rg-main"
    height=${(width: number) => room(width).height + 10}
    label=${`image ${number + 1}, ${rows} × ${columns} patches`}
    cursor="crosshair"
    focusable
    onKey=${step}
    description="The arrow keys select a patch."
    draw=${(pen: any, size: Size) => {
      const { width, height } = room(size.width);
      if (image) pen.drawImage(image, 0, 0, width, height);
      pen.imageSmoothingEnabled = false;
      pen.drawImage(heat, 0, 0, width, height);
      pen.strokeStyle = theme.line;
      pen.lineWidth = 1;
      pen.strokeRect(0.5, 0.5, width - 1, height - 1);
      for (const [token, color] of [[over, theme.hover], [query, pinned ? theme.accent : theme.hover]] as [number | null, string][]) {
        const i = token === null ? -1 : token - segment.start;
        if (i < 0 || i >= segment.count) continue;
        const box: [number, number, number, number] = [((i % columns) * width) / columns, (Math.floor(i / columns) * height) / rows, width / columns, height / rows];
        pen.strokeStyle = "#ffffff";
        pen.lineWidth = 4;
        pen.strokeRect(...box);
        pen.strokeStyle = color;
        pen.lineWidth = 2.2;
        pen.strokeRect(...box);
      }
    }}
    onPoint=${(x: number, y: number, _: unknown, size: Size) => onHover(find(x, y, size))}
    onLeave=${() => onHover(null)}
    onPress=${(x: number, y: number, _: unknown, size: Size) => onPress(find(x, y, size))}
  />`;
}

function Words({ words, place, shading, seen, query, over, pinned, onHover, onPress }: Pointed & { words: Word[]; place: (token: number) => number; shading: Shading; seen: number }) {
  const theme = useTheme();
  const draw = drawFlow({ words, place, signed: shading.signed, query, pinned, over });
  return html`<${Picture}
    class="rg-main"
    height=${(width: number) => flow(words, width).height + 44}
    label=${`${words.length} tokens of text`}
    cursor="pointer"
    focusable
    draw=${(pen: any, size: Size) => {
      draw(pen, size, theme);
      drawLegend(pen, theme, shading, seen, 1, { x: 0, y: flow(words, size.width).height + 12, width: Math.min(300, size.width - 8) });
    }}
    onPoint=${(x: number, y: number, _: unknown, size: Size) => onHover(wordAt(words, x, y, size))}
    onLeave=${() => onHover(null)}
    onPress=${(x: number, y: number, _: unknown, size: Size) => onPress(wordAt(words, x, y, size))}
  />`;
}

export function wordsOf(meta: Pick<Meta, "segments" | "tokens">): Word[] {
  return meta.segments.flatMap((segment) =>
    segment.grid ? [] : Array.from({ length: segment.count }, (_, i) => ({ at: segment.start + i, text: visible(meta.tokens[segment.start + i]), first: i === 0 })),
  );
}

/** The weights from a token, or to it, over the sequence; null if they were not captured. */
export function weightsOf(layer: Layer, which: ReturnType<typeof asWhich>, token: number, direction: Direction): Float32Array | null {
  const matrix = () => (typeof which === "number" ? layer.matrix(which) : layer.mean());
  if (direction === "from") {
    const at = layer.rowOf(token);
    return at < 0 ? null : matrix().slice(at * layer.keys, (at + 1) * layer.keys);
  }
  if (token >= layer.keys) return null;
  const [whole, rows] = [matrix(), layer.about.rows];
  const column = new Float32Array(Math.max(layer.keys, rows ? Math.max(...rows) + 1 : layer.queries));
  for (let q = 0; q < layer.queries; q++) column[rows ? rows[q] : q] = whole[q * layer.keys + token];
  return column;
}

/** The last captured word, which can attend to all tokens before it. */
function startToken(meta: Meta, layer: Layer): number {
  const rows = layer.about.rows ?? Array.from({ length: layer.queries }, (_, i) => i);
  const words = rows.filter((row) => isWord(meta, row));
  return words[words.length - 1] ?? rows[rows.length - 1];
}

function grayImage(payload: Payload<Meta>, number: number): HTMLCanvasElement {
  const { data, shape } = payload.array(`image${number}`);
  return pixels(shape[1], shape[0], (i) => {
    const gray = Math.round(0.3 * data[3 * i] + 0.59 * data[3 * i + 1] + 0.11 * data[3 * i + 2]);
    return gray | (gray << 8) | (gray << 16) | (255 << 24);
  });
}

const isWord = ({ segments }: Pick<Meta, "segments">, token: number): boolean => segments.some((one) => !one.grid && token >= one.start && token < one.start + one.count);

function describe(meta: Meta, layer: Layer, which: ReturnType<typeof asWhich>, query: number, row: Float32Array | null, direction: Direction, over: number | null): string {
  const head = meta.word_maps ? "" : typeof which === "number" ? ` · head ${layer.about.heads[which]}` : " · mean over heads";
  const name = (token: number) => {
    const pictures = meta.segments.filter((one) => one.grid);
    const number = pictures.findIndex((one) => token >= one.start && token < one.start + one.count);
    return number < 0 ? quoted(visible(meta.tokens[token])) : `patch ${meta.tokens[token]}${pictures.length > 1 ? ` of image ${number + 1}` : ""}`;
  };
  const start = `${layer.about.name}${head} · ${name(query)}`;
  if (!row) return `${start} · not captured`;
  // The rows of word maps are words, which patches look at.
  const verb = (direction === "from") !== meta.word_maps ? "looks at" : "is looked at by";
  const isPair = over !== null && over !== query && over < row.length && !(meta.word_maps && isWord(meta, over) === isWord(meta, query));
  if (isPair) return `${start} ${verb} ${name(over)} ${percent(row[over])}`;
  const onImages = meta.segments.filter((one) => one.grid).reduce((sum, one) => sum + row.subarray(one.start, one.start + one.count).reduce((a, b) => a + b, 0), 0);
  const best = top(row, 2).map((token) => `${name(token)} ${percent(row[token])}`);
  return `${start} ${verb} ${best.join(", ") || "nothing"}${direction === "from" && !meta.word_maps ? ` · ${percent(onImages)} on ${meta.images > 1 ? "images" : "the image"}` : ""}`;
}
