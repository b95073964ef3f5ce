// A view inside the studio: the same component as in a notebook, or an error message.

import { createContext, html, type ComponentChildren, type VNode } from "../core/html";
import type { Payload } from "../core/payload";
import { views } from "../views";
import { UNREACHABLE } from "./api";
import { studioHost } from "./host";

/** Grows when the server answers again: failed requests are then repeated. */
export const Back = createContext(0);

export interface Loaded {
  payload: Payload | null;
  problem: string;
  busy: boolean;
}

export const EMPTY: Loaded = { payload: null, problem: "", busy: false };

/** The latest result, with its children above; dimmed and marked while it is not the result of the latest request. */
export function Shown({ payload, problem, busy, children }: Loaded & { children?: ComponentChildren }): VNode {
  const View = payload ? views[payload.view] : null;
  const stale = payload !== null && (busy || problem !== "");
  return html`<div class=${`${busy ? "st-busy" : ""} ${stale ? "st-stale" : ""}`} aria-busy=${busy}>
    ${problem ? html`<${Problem} text=${problem} />` : null}
    ${stale ? html`<p class="st-previous" role="status">Previous result${busy ? "; computing the new one …" : ""}</p>` : null}
    <div class="st-result">
      ${children}
      ${View && payload ? html`<${View} payload=${payload} host=${studioHost} />` : null}
    </div>
    ${!payload && !problem ? html`<div class="st-waiting">${busy ? "Computing …" : ""}</div>` : null}
  </div>` as VNode;
}

/** An unreachable server is reported once for the whole page (`top`). */
export function Problem({ text, top }: { text: string; top?: boolean }): VNode | null {
  if (text === UNREACHABLE && !top) return null;
  return html`<p class="st-problem" role="alert">${text}</p>` as VNode;
}
