// A view inside the studio: the same component as in a notebook, or what went wrong.

import { createContext, html, type ComponentChildren, type VNode } from "../core/html";
import type { Payload } from "../core/payload";
import { views } from "../views";
import { UNREACHABLE } from "./api";
import { studioHost } from "./host";

/** Grows when the server has come back: what failed is asked for again. */
export const Back = createContext(0);

export interface Loaded {
  payload: Payload | null;
  problem: string;
  busy: boolean;
}

export const EMPTY: Loaded = { payload: null, problem: "", busy: false };

/** What is there, with what belongs to it above; dimmed and named while it is not what was asked for last. */
export function Shown({ payload, problem, busy, children }: Loaded & { children?: ComponentChildren }): VNode {
  const View = payload ? views[payload.view] : null;
  const stale = payload !== null && (busy || problem !== "");
  return html`<div class=${`${busy ? "st-busy" : ""} ${stale ? "st-stale" : ""}`} aria-busy=${busy}>
    ${problem ? html`<${Problem} text=${problem} />` : null}
    ${stale ? html`<p class="st-previous" role="status">Previous result${busy ? ", while the new one is worked out" : ""}</p>` : null}
    <div class="st-result">
      ${children}
      ${View && payload ? html`<${View} payload=${payload} host=${studioHost} />` : null}
    </div>
    ${!payload && !problem ? html`<div class="st-waiting">${busy ? "Looking …" : ""}</div>` : null}
  </div>` as VNode;
}

/** That the server is gone is said once for the whole page (`top`). */
export function Problem({ text, top }: { text: string; top?: boolean }): VNode | null {
  if (text === UNREACHABLE && !top) return null;
  return html`<p class="st-problem" role="alert">${text}</p>` as VNode;
}
