// Section 5: a slider for α. As α grows, each of nine wide heads looks at a single pixel: a convolution.

import { html, useMemo, useState, type VNode } from "../core/html";
import { Picture } from "../core/canvas";
import { Play, Select, Slider, useFrames } from "../core/controls";
import type { Payload } from "../core/payload";
import { drawHeads, drawPlane, grayPlane } from "../views/convolution-draw";
import { attend, convolve, errorBound, heads, largestDifference, type Plane, type Setting } from "../views/maths/convolution";
import { brief, power } from "../views/maths/words";

const HIGHEST = 40;
const FIRST_KERNEL = "edge";

interface ConvolutionMeta {
  images: string[];
  kernels: Record<string, number[][]>;
  size: number;
}

const alphaAt = (share: number) => HIGHEST * share ** 3;
const small = (x: number) => (x !== 0 && Math.abs(x) < 1e-3 ? power(x) : brief(x, 2));

export function SharpenScene({ payload }: { payload: Payload<ConvolutionMeta> }): VNode {
  const { images, kernels, size } = payload.meta;
  const [share, setShare] = useState(0.2);
  const [kernel, setKernel] = useState(FIRST_KERNEL in kernels ? FIRST_KERNEL : Object.keys(kernels)[0]);
  const [image, setImage] = useState(images[0]);
  const [playing, setPlaying] = useState(false);
  useFrames(playing, (seconds) => {
    const next = share + seconds / 6;
    setShare(Math.min(1, next));
    if (next >= 1) setPlaying(false);
  });
  const play = () => {
    if (!playing && share >= 1) setShare(0);
    setPlaying(!playing);
  };
  const alpha = alphaAt(share);
  const plane = useMemo((): Plane => {
    const at = images.indexOf(image) * size * size;
    return { rows: size, columns: size, data: Float64Array.from(payload.values("images").subarray(at, at + size * size), (x) => x / 255) };
  }, [image]);
  const setting: Setting = useMemo(() => ({ kernel: kernels[kernel], border: "replicate", pad: 1, dilation: 1, stride: 1 }), [kernel]);
  const exact = useMemo(() => convolve(plane, setting), [plane, setting]);
  const attended = useMemo(() => attend(plane, setting, alpha), [plane, setting, alpha]);
  const axes = useMemo(() => heads(plane, setting, alpha), [plane, setting, alpha]);
  const [low, high] = useMemo(() => exact.data.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]), [exact]);
  const apart = largestDifference(attended, exact);
  const middle: [number, number] = [Math.floor(size * 0.45), Math.floor(size * 0.55)];
  const show = (name: string, caption: string, canvas: HTMLCanvasElement) => html`<figure key=${name}>
    <${Picture} class=${`rg-${name}`} draw=${drawPlane(canvas, null)} height=${(width: number) => width} label=${caption} />
    <figcaption>${caption}</figcaption>
  </figure>`;
  return html`<div class="rg-sharpen">
    <div class="rg-run">
      <${Play} playing=${playing} onToggle=${play} />
      <${Slider} wide label="sharpness α" value=${share} min=${0} max=${1} step=${0.005} text=${brief(alpha, 3)} onInput=${(to: number) => (setPlaying(false), setShare(to))} />
      <${Select} label="kernel" value=${kernel} options=${Object.keys(kernels).map((name) => [name, name])} onChange=${setKernel} />
      <${Select} label="image" value=${image} options=${images.map((name) => [name, name === "yours" ? "the photo above" : name])} onChange=${setImage} />
    </div>
    <div class="rg-four">
      <figure>
        <${Picture} draw=${drawHeads(axes, { row: middle[0], column: middle[1], middle }, kernels[kernel])} height=${(width: number) => width} label="where nine heads look from one pixel" />
        <figcaption>nine heads, from one pixel</figcaption>
      </figure>
      ${show("input", "the image", grayPlane(plane, 0, 1))}
      ${show("attended", "output of the nine heads", grayPlane(attended, low, high > low ? high : low + 1))}
      ${show("convolved", "the 3 × 3 convolution", grayPlane(exact, low, high > low ? high : low + 1))}
    </div>
    <p class="rg-apart">Largest difference: <output>${small(apart)}</output>. Proven bound: ${small(errorBound(plane, setting, alpha))}.</p>
  </div>` as VNode;
}
