// Nine Gaussian heads that become a 3×3 convolution as they sharpen: the measured error and its proven bound.

import { html, useMemo, useRef, useState, type VNode } from "../core/html";
import { Picture, type Size } from "../core/canvas";
import { Choice, Play, Select, Slider, useFrames, useId } from "../core/controls";
import { Frame } from "../core/frame";
import type { Key } from "../core/keys";
import { useTheme } from "../core/theme";
import type { ViewProps } from "./index";
import { BORDERS, type Border, shiftLeak, tail } from "./maths/axis";
import { attend, convolve, errorBound, heads, largestDifference, type Plane, type Setting, tapTargets } from "./maths/convolution";
import { brief, power } from "./maths/words";
import { chartAlpha, type Curve, differencePlane, drawError, drawHeads, drawPlane, grayPlane, type Mark } from "./convolution-draw";
import style from "./convolution.css";
import { useSheet } from "./sheet";

const HIGHEST = 40;
const CURVE = 64;
const BORDER_NAMES: Record<Border, string> = {
  zeros: "zeros",
  reflect: "reflect",
  replicate: "replicate",
  circular: "circular",
  native: "none: attend to existing pixels",
};

/** The slider has a finer scale where the picture changes most. */
const alphaAt = (position: number) => HIGHEST * position ** 2;
const positionOf = (alpha: number) => Math.sqrt(alpha / HIGHEST);

export function ConvolutionView({ payload, host }: ViewProps): VNode {
  const { images: names, kernels, size } = payload.meta as { images: string[]; kernels: Record<string, number[][]>; size: number };
  const [kernelName, setKernelName] = useState(Object.keys(kernels)[0]);
  const [kernel, setKernel] = useState(kernels[kernelName]);
  const [imageName, setImageName] = useState(names[0]);
  const [own, setOwn] = useState<Plane | null>(null);
  const [alpha, setAlpha] = useState(0.6);
  const [border, setBorder] = useState<Border>("zeros");
  const [padded, setPadded] = useState(true);
  const [dilation, setDilation] = useState(1);
  const [stride, setStride] = useState(1);
  const [problem, setProblem] = useState("");
  const [at, setAt] = useState<[number, number]>([0.42, 0.6]);
  const place = useRef<HTMLDivElement>(null);
  useSheet(place, style);

  const image = useMemo((): Plane => {
    if (imageName === "own" && own) return own;
    const number = Math.max(0, names.indexOf(imageName));
    const data = Float64Array.from(payload.values("images").subarray(number * size * size, (number + 1) * size * size), (x) => x / 255);
    return { rows: size, columns: size, data };
  }, [imageName, own]);
  const setting: Setting = useMemo(
    () => ({ kernel, border, pad: padded || border === "native" ? dilation : 0, dilation, stride }),
    [kernel, border, padded, dilation, stride],
  );
  const exact = useMemo(() => convolve(image, setting), [image, setting]);
  const attended = useMemo(() => attend(image, setting, alpha), [image, setting, alpha]);
  const axes = useMemo(() => heads(image, setting, alpha), [image, setting, alpha]);
  const measure = (a: number): Curve => ({ alpha: a, error: largestDifference(attend(image, setting, a), exact), bound: errorBound(image, setting, a) });
  const curve = useMemo(() => Array.from({ length: CURVE + 1 }, (_, i) => measure(alphaAt(i / CURVE))), [image, setting]);
  const now = useMemo(() => ({ alpha, error: largestDifference(attended, exact), bound: errorBound(image, setting, alpha) }), [attended, exact]);

  const row = Math.min(exact.rows - 1, Math.floor(at[0] * exact.rows));
  const column = Math.min(exact.columns - 1, Math.floor(at[1] * exact.columns));
  const center = (o: number) => o * stride + dilation - setting.pad;
  const middle: [number, number] = [center(row), center(column)];
  const look = (x: number, y: number, _: Event, { width, height }: Size) => setAt([inside(y / height), inside(x / width)]);
  const move = (dr: number, dc: number) => setAt([inside((row + dr + 0.5) / exact.rows), inside((column + dc + 0.5) / exact.columns)]);
  const ARROWS: Record<string, [number, number]> = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const sharper = (step: number) => setAlpha(alphaAt(inside(positionOf(alpha) + step)));
  const [playing, setPlaying] = useState(false);
  useFrames(playing, (seconds) => {
    const next = positionOf(alpha) + seconds / 8;
    setAlpha(alphaAt(inside(next)));
    if (next >= 1) setPlaying(false);
  });
  const play = () => {
    if (!playing && positionOf(alpha) > 0.98) setAlpha(0);
    setPlaying(!playing);
  };
  const keys: Key[] = [
    { keys: [" "], shown: "space", means: "sharpen step by step, or pause", run: play },
    { keys: Object.keys(ARROWS), shown: "← → ↑ ↓", means: "another query", run: (key) => move(...ARROWS[key]) },
    { keys: ["["], means: "softer heads", run: () => sharper(-0.02) },
    { keys: ["]"], means: "sharper heads", run: () => sharper(0.02) },
  ];

  const T = tail(alpha);
  const leak = shiftLeak(alpha, 2);
  const subtitle =
    `At α = ${brief(alpha, 3)} the attention's output is at most ${small(now.error)} from the convolution's; ` +
    `proven: no more than ${small(now.bound)}`;
  const edit = (a: number, b: number, value: number) => {
    setKernelName("edited");
    setKernel(kernel.map((line, i) => line.map((old, j) => (i === a && j === b ? value : old))));
  };
  const open = async (file: File | undefined) => {
    if (!file) return;
    try {
      setOwn(await grayOf(file, size));
      setImageName("own");
      setProblem("");
    } catch {
      setProblem(`${file.name} is not an image that this browser can read.`);
    }
  };

  const kernelOptions = [...Object.keys(kernels), ...(kernelName === "edited" ? ["edited"] : [])].map((name) => [name, name]);
  const imageOptions = [...names, ...(own ? ["own"] : [])].map((name) => [name, name === "own" ? "your image" : name]);
  const controls = html`
    <${Play} playing=${playing} onToggle=${play} />
    <${Slider} label="sharpness α" wide min=${0} max=${1} step=${0.002} value=${positionOf(alpha)} text=${brief(alpha, 3)} onInput=${(p: number) => setAlpha(alphaAt(p))} />
    <${Select} label="kernel" value=${kernelName} options=${kernelOptions} onChange=${(name: string) => {
      setKernelName(name);
      if (kernels[name]) setKernel(kernels[name]);
    }} />
    <${Select} label="image" value=${imageName} options=${imageOptions} onChange=${setImageName} />
    <${OpenFile} onFile=${open} />
    <${Select} label="border" value=${border} options=${BORDERS.map((name) => [name, BORDER_NAMES[name]])} onChange=${(name: string) => setBorder(name as Border)} />
    <${Select} label="padding" value=${padded || border === "native" ? "same" : "none"} options=${border === "native" ? [["same", "not needed"]] : [["same", "same size"], ["none", "none"]]} onChange=${(name: string) => setPadded(name === "same")} />
    <${Choice} label="dilation" value=${String(dilation)} options=${[["1", "dilation 1"], ["2", "2"], ["3", "3"]]} onChange=${(n: string) => setDilation(Number(n))} />
    <${Choice} label="stride" value=${String(stride)} options=${[["1", "stride 1"], ["2", "2"], ["3", "3"]]} onChange=${(n: string) => setStride(Number(n))} />
  `;
  return html`<${Frame} name="convolution" title="Attention is convolution" subtitle=${subtitle} host=${host} keys=${keys} controls=${controls}
    footer=${html`<span>T = 2 Σ e^(−αr²) = ${small(T)}</span>
      <span>leak of one axis ≤ 2T/(1+T) = ${small(shiftLeak(alpha, 1))}</span>
      <span>leak of both axes: 2(1 − 1/(1+T)²) = ${small(leak)}</span>
      <span>bound = leak · Σ|w| · max|x| + rounding</span>`}>
    <div ref=${place} class="rg-convolution">
      ${problem ? html`<p class="rg-problem" role="alert">${problem}</p>` : null}
      <section class="rg-planes">
        <${Planes} image=${image} exact=${exact} attended=${attended} now=${now} setting=${setting} row=${row} column=${column} middle=${middle} look=${look} />
      </section>
      <section class="rg-top">
        <div>
          <h3>The kernel</h3>
          <div class="rg-kernel">
            ${kernel.map((line, a) =>
              line.map(
                (weight, b) => html`<input key=${`${a}${b}`} type="number" step="any" value=${Math.round(weight * 1e4) / 1e4} aria-label=${`weight in row ${a + 1}, column ${b + 1}`}
                  onInput=${(event: InputEvent) => {
                    const typed = (event.target as HTMLInputElement).valueAsNumber;
                    if (Number.isFinite(typed) && Math.abs(typed) <= 1e4) edit(a, b, typed);
                  }} />`,
              ),
            )}
          </div>
          <p class="rg-hint">Each head has one weight,<br />at the offset where<br />it looks.</p>
        </div>
        <div class="rg-nine">
          <h3>Where each head looks from the marked pixel</h3>
          <${Picture} draw=${drawHeads(axes, { row, column, middle }, kernel)} height=${(width: number) => width} label=${`maps of nine heads from row ${row}, column ${column}`} />
        </div>
        <div class="rg-chart">
          <h3>Error against its proven bound</h3>
          <${Picture} draw=${drawError(curve, now, HIGHEST)} height=${(width: number) => Math.max(240, Math.min(420, width * 0.62))} cursor="ew-resize" label=${subtitle}
            onPress=${(x: number, _: number, __: MouseEvent, { width }: Size) => setAlpha(chartAlpha(x, width, HIGHEST))}
            onDrag=${(_: number, __: number, event: PointerEvent, { width }: Size) =>
              setAlpha(chartAlpha(event.clientX - (event.target as HTMLElement).getBoundingClientRect().left, width, HIGHEST))} />
        </div>
      </section>
    </div>
  <//>` as VNode;
}

interface PlanesProps {
  image: Plane;
  exact: Plane;
  attended: Plane;
  now: Curve;
  setting: Setting;
  row: number;
  column: number;
  /** The image position that the output corresponds to. */
  middle: [number, number];
  look: (x: number, y: number, event: Event, size: Size) => void;
}

/** The image, the output of attention, the output of the convolution, and their difference. */
function Planes({ image, exact, attended, now, setting, row, column, middle, look }: PlanesProps) {
  const theme = useTheme();
  const [low, high] = range(exact);
  const mark: Mark = { row, column, targets: [] };
  const taps = setting.kernel.length;
  const targets: Mark["targets"] = setting.kernel.flatMap((line, a) =>
    line.map((weight, b) => ({
      row: tapTargets(image.rows, taps, a, setting)[row],
      column: tapTargets(image.columns, taps, b, setting)[column],
      weight: Math.abs(weight) / (Math.max(...setting.kernel.flat().map(Math.abs)) || 1),
    })),
  );
  const shown: [string, string, HTMLCanvasElement, Mark, Plane][] = [
    ["image", "The image. Point at a pixel to see what its heads read.", grayPlane(image, 0, 1), { row: middle[0], column: middle[1], targets }, image],
    ["attention", "Nine heads, weighted and summed.", grayPlane(attended, low, high), mark, attended],
    ["convolution", setting.border === "native" ? "The convolution (with repeated borders)." : "The convolution.", grayPlane(exact, low, high), mark, exact],
    ["difference", `Their difference, in powers of ten below ${small(now.bound)}.`, differencePlane(attended, exact, now.bound, theme.heat), mark, exact],
  ];
  return shown.map(
    ([name, caption, canvas, marked, plane]) => html`<figure key=${name}>
      <${Picture} class=${`rg-plane-${name}`} draw=${drawPlane(canvas, marked)} height=${(width: number) => (width * plane.rows) / plane.columns} cursor="crosshair" label=${caption} onPoint=${look} onPress=${look} />
      <figcaption>${caption}</figcaption>
    </figure>`,
  );
}

function OpenFile({ onFile }: { onFile: (file: File | undefined) => void }) {
  const id = useId();
  return html`<label class="rg-file" for=${id}>
    <input id=${id} type="file" accept="image/*" onChange=${(event: Event) => onFile((event.target as HTMLInputElement).files?.[0])} />
    <span>your image …</span>
  </label>`;
}

const inside = (x: number) => Math.min(1 - 1e-9, Math.max(0, x));
const small = (x: number) => (x !== 0 && Math.abs(x) < 1e-3 ? power(x) : brief(x, 3));

function range(plane: Plane): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const x of plane.data) [low, high] = [Math.min(low, x), Math.max(high, x)];
  return [low, high > low ? high : low + 1];
}

/** The central square of an image file in gray, decoded by the browser. */
async function grayOf(file: File, size: number): Promise<Plane> {
  const bitmap = await createImageBitmap(file);
  const side = Math.min(bitmap.width, bitmap.height);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const pen = canvas.getContext("2d")!;
  pen.imageSmoothingQuality = "high";
  pen.drawImage(bitmap, (bitmap.width - side) / 2, (bitmap.height - side) / 2, side, side, 0, 0, size, size);
  const { data } = pen.getImageData(0, 0, size, size);
  const gray = Float64Array.from({ length: size * size }, (_, i) => (0.299 * data[4 * i] + 0.587 * data[4 * i + 1] + 0.114 * data[4 * i + 2]) / 255);
  return { rows: size, columns: size, data: gray };
}
