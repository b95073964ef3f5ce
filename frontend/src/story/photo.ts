// Section 2: a photo, and where the heads of a layer look from the patch under the pointer.

import { html, useMemo, useState, type VNode } from "../core/html";
import { type Draw, Picture, type Size } from "../core/canvas";
import { Slider, useId } from "../core/controls";
import type { Host } from "../core/host";
import type { Payload } from "../core/payload";
import { type Layer, layersOf, percent, shortNames } from "../maps/layer";
import { cellOf, centerOf, type ImageAbout, type Query, queryIn } from "../maps/place";
import { headContours, type Loop } from "./contours";
import { enlarged, squareOf } from "./enlarge";
import { hasPart, partOf, type StoryMeta } from "./parts";
import { NINE } from "./section";

interface Sample {
  label: string | null;
  guesses: { label: string; chance: number }[];
}

interface ImagesMeta {
  name: string;
  samples: Sample[];
  /** Whether every image has the same maps, as with heads that ignore content. */
  same: boolean;
}

const [SIDE, THUMBNAIL] = [448, 104];
const MASS = 0.6;
const MOST_HEADS = 9;

interface Own {
  picture: HTMLCanvasElement;
  name: string;
  /** The network's answer from the studio; null in a saved file. */
  answer: Payload<any> | null;
}

export function PhotoScene({ payload, host }: { payload: Payload<StoryMeta>; host: Host }): VNode {
  const groups = useMemo(() => (["", "example-"] as const).filter((start) => hasPart(payload, `${start}images`)).map((start) => ({ start, images: partOf(payload, `${start}images`) as Payload<ImagesMeta> })), [payload]);
  const [group, setGroup] = useState(0);
  const { start, images } = groups[group];
  const { samples, same } = images.meta;
  const [which, setWhich] = useState(0);
  const [own, setOwn] = useState<Own | null>(null);
  const [problem, setProblem] = useState("");
  const [over, setOver] = useState<number | null>(null);
  const [held, setHeld] = useState<number | null>(null);
  const only = over ?? held;
  const [busy, setBusy] = useState("");
  const maps = useMemo(() => own?.answer ?? partOf(payload, hasPart(payload, `${start}maps${which}`) ? `${start}maps${which}` : `${start}maps0`), [payload, start, which, own]);
  const layers = useMemo(() => layersOf<ImageAbout>(maps), [maps]);
  const names = useMemo(() => shortNames(layers.map((one) => one.about.name)), [layers]);
  // Open on a middle layer: heads of the first layers look near, those of the last far away.
  const [chosen, setChosen] = useState<number | null>(null);
  const at = Math.min(layers.length - 1, chosen ?? Math.floor(layers.length / 3));
  const layer = layers[at];
  const [query, setQuery] = useState<Query>(() => startAt(layer.about));
  const pictures = useMemo(() => groups.map(({ images: each }) => picturesOf(each)), [groups]);
  const picture = own?.picture ?? pictures[group](which, SIDE);
  const lines = useMemo(() => linesOf(layer, query), [layer, query]);
  const heads = Math.min(MOST_HEADS, layer.heads);
  const open = async (file: File | undefined) => {
    if (!file) return;
    setBusy(`Looking at ${file.name} …`);
    try {
      const answer = host.more ? await host.more("attention", { image: file }) : null;
      setOwn({ picture: await squareOf(file, SIDE), name: file.name, answer });
      setProblem("");
    } catch (error) {
      setProblem(`${file.name} cannot be shown: ${(error as Error).message}`);
    }
    setBusy("");
  };
  const look = (x: number, y: number, _: unknown, { width, height }: Size) => setQuery({ prefix: null, y: y / height, x: x / width });
  const move = (key: string): boolean => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key];
    const grid = layer.about.query_grid;
    if (!by || !grid) return false;
    const [r, c] = cellOf(grid, query);
    setQuery(centerOf(grid, r + by[0], c + by[1]));
    return true;
  };
  const told = own ? own.answer?.meta.studio?.guesses ?? null : samples[which].guesses;
  return html`<div class="rg-photo">
    <${Picture} class="rg-canvas" draw=${drawPhoto(picture, layer.about, query, lines, only)} height=${(width: number) => (width * picture.height) / picture.width} label=${`the photo, and where ${heads} heads look from the marked patch; arrow keys move the patch`} cursor="crosshair" focusable onPoint=${look} onPress=${look} onKey=${move} />
    <div class="rg-beside-photo">
      ${told?.length ? html`<p class="rg-verdict"><b>${told[0].label}</b> <span>${percent(told[0].chance)}</span>${told[1] ? html`<small>then ${told[1].label}, ${percent(told[1].chance)}</small>` : null}</p>` : own ? html`<p class="rg-verdict"><small>This file contains the heads' maps, but not the network. To classify your own photo, use <code>regard studio</code>.</small></p>` : null}
      <ul class="rg-chips" aria-label="heads">
        ${Array.from({ length: heads }, (_, head) => html`<li key=${head}><button type="button" aria-pressed=${held === head} style=${{ "--rg-chip": NINE[head] }} onClick=${() => setHeld(held === head ? null : head)} onPointerEnter=${() => setOver(head)} onPointerLeave=${() => setOver(null)} onFocus=${() => setOver(head)} onBlur=${() => setOver(null)}>head ${layer.about.heads[head]}</button></li>`)}
      </ul>
      ${layers.length > 1 ? html`<${Slider} label="layer" value=${at} min=${0} max=${layers.length - 1} text=${names[at]} onInput=${setChosen} />` : null}
      <div class="rg-strip" role="group" aria-label="photos">
        ${groups.map(({ images: each }, g) => html`${groups.length > 1 ? html`<span class="rg-group">${g ? "examples" : "your run"}</span>` : null}${each.meta.samples.map((sample, i) => html`<${Thumbnail} key=${`${g} ${i}`} picture=${pictures[g](i, THUMBNAIL)} label=${sample.label ?? `image ${i + 1}`} on=${!own && g === group && i === which} onPick=${() => (setGroup(g), setWhich(i), setOwn(null))} />`)}`)}
        ${own ? html`<${Thumbnail} picture=${own.picture} label=${own.name} on onPick=${() => {}} />` : null}
      </div>
      ${same || host.more ? html`<${OpenPhoto} onFile=${open} />` : null}
      ${busy ? html`<p class="rg-hint" role="status">${busy}</p>` : null}
      ${problem ? html`<p class="rg-problem" role="alert">${problem}</p>` : null}
      <p class="rg-hint">${own ? `The middle of ${own.name}.` : `${samples[which].label ?? "An image"} of ${images.array("images").shape.slice(1, 3).join(" × ")} pixels, enlarged smoothly; seen by ${images.meta.name}.`} Each line encloses ${percent(MASS)} of what one head looks at from the marked patch, smoothed by half a patch.${same ? " These heads attend only by position: they look at the same places on every photo." : ""}</p>
    </div>
  </div>` as VNode;
}

/** The pictures of a group, created on demand. */
function picturesOf(images: Payload<ImagesMeta>): (number: number, side: number) => HTMLCanvasElement {
  const made = new Map<string, HTMLCanvasElement>();
  const { data, shape } = images.array("images");
  const [, height, width] = shape;
  return (number, side) => {
    const key = `${number} ${side}`;
    let found = made.get(key);
    if (!found) made.set(key, (found = enlarged(data.subarray(number * height * width * 3, (number + 1) * height * width * 3), height, width, side)));
    return found;
  };
}

function startAt(about: ImageAbout): Query {
  const grid = about.query_grid ?? about.grid;
  return centerOf(grid, Math.floor(grid[0] * 0.45), Math.floor(grid[1] * 0.45));
}

function linesOf(layer: Layer<ImageAbout>, query: Query): Loop[][] {
  const { grid, prefix } = layer.about;
  const row = layer.rowOf(queryIn(layer.about, query));
  if (row < 0) return [];
  return Array.from({ length: Math.min(MOST_HEADS, layer.heads) }, (_, head) => headContours(layer.row(head, row).subarray(prefix), grid[0], grid[1], MASS));
}

function drawPhoto(picture: HTMLCanvasElement, about: ImageAbout, query: Query, lines: Loop[][], only: number | null): Draw {
  return (pen, { width, height }) => {
    pen.imageSmoothingEnabled = true;
    pen.drawImage(picture, 0, 0, width, height);
    const [h, w] = [height / about.grid[0], width / about.grid[1]];
    pen.fillStyle = "rgb(0 0 0 / 0.22)";
    pen.fillRect(0, 0, width, height);
    pen.lineJoin = "round";
    const trace = (loops: Loop[]) => {
      pen.beginPath();
      for (const loop of loops) {
        loop.forEach(([x, y], i) => (i ? pen.lineTo(x * w, y * h) : pen.moveTo(x * w, y * h)));
        pen.closePath();
      }
    };
    lines.forEach((loops, head) => {
      const on = only === null || only === head;
      trace(loops);
      pen.globalAlpha = on ? (only === head ? 0.45 : 0.16) : 0.03;
      pen.fillStyle = NINE[head];
      pen.fill();
      pen.globalAlpha = on ? 0.75 : 0.15;
      pen.strokeStyle = "#000";
      pen.lineWidth = 5;
      pen.stroke();
      pen.globalAlpha = on ? 1 : 0.3;
      pen.strokeStyle = NINE[head];
      pen.lineWidth = only === head ? 3.5 : 2.4;
      pen.stroke();
    });
    pen.globalAlpha = 1;
    const grid = about.query_grid ?? about.grid;
    const [r, c] = cellOf(grid, query);
    const [ch, cw] = [height / grid[0], width / grid[1]];
    pen.strokeStyle = "#000";
    pen.lineWidth = 5;
    pen.strokeRect(c * cw, r * ch, cw, ch);
    pen.strokeStyle = "#fff";
    pen.lineWidth = 2.2;
    pen.strokeRect(c * cw, r * ch, cw, ch);
  };
}

function Thumbnail({ picture, label, on, onPick }: { picture: HTMLCanvasElement; label: string; on: boolean; onPick: () => void }): VNode {
  const draw: Draw = (pen, { width, height }) => pen.drawImage(picture, 0, 0, width, height);
  return html`<button type="button" aria-pressed=${on} aria-label=${label} title=${label} onClick=${onPick}><${Picture} draw=${draw} height=${(width: number) => (width * picture.height) / picture.width} label=${label} /></button>` as VNode;
}

function OpenPhoto({ onFile }: { onFile: (file: File | undefined) => void }): VNode {
  const id = useId();
  return html`<label class="rg-own" for=${id}><input id=${id} type="file" accept="image/*" onChange=${(event: Event) => onFile((event.target as HTMLInputElement).files?.[0])} /><span>your own photo …</span></label>` as VNode;
}
