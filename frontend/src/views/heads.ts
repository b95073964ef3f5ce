import { html, type VNode } from "../core/html";
import { Frame } from "../core/frame";
import { Picture, type Draw } from "../core/canvas";
import type { ViewProps } from "./index";

export function HeadsView({ payload, host }: ViewProps): VNode {
  const draw: Draw = (pen, { width, height }, theme) => {
    pen.fillStyle = theme.surface;
    pen.fillRect(0, 0, width, height);
  };
  return html`<${Frame} name="heads" title="Heads over training" subtitle=${payload.view} host=${host}>
    <${Picture} draw=${draw} height=${300} label="heads" />
  <//>` as VNode;
}
