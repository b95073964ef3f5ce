// A view inside the studio: the same component as in a notebook, or what went wrong.

import { html, type VNode } from "../core/html";
import type { Payload } from "../core/payload";
import { views } from "../views";
import { studioHost } from "./host";

export interface Loaded {
  payload: Payload | null;
  problem: string;
  busy: boolean;
}

export const EMPTY: Loaded = { payload: null, problem: "", busy: false };

export function Shown({ payload, problem, busy }: Loaded): VNode {
  const View = payload ? views[payload.view] : null;
  return html`<div class=${busy ? "st-busy" : ""} aria-busy=${busy}>
    ${problem ? html`<${Problem} text=${problem} />` : null}
    ${View && payload ? html`<${View} payload=${payload} host=${studioHost} />` : null}
    ${!payload && !problem ? html`<div class="st-waiting">${busy ? "Looking …" : ""}</div>` : null}
  </div>` as VNode;
}

export function Problem({ text }: { text: string }): VNode {
  return html`<p class="st-problem" role="alert">${text}</p>` as VNode;
}
