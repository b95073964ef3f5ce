// Putting a view onto a page.

import { html, render } from "./html";
import type { Host } from "./host";
import type { Payload } from "./payload";
import style from "./style.css";
import { views } from "../views";

/** Shows the payload inside `el`; call what comes back to take it away again. */
export function mount(el: HTMLElement, payload: Payload, host: Host): () => void {
  styled(el);
  const View = views[payload.view];
  if (!View) {
    fail(el, new Error(`no view is called ${payload.view}`));
    return () => fail(el, null);
  }
  render(html`<${View} payload=${payload} host=${host} />`, el);
  return () => render(null, el);
}

/** The style goes where the element lives, which in some notebooks is a shadow tree. */
export function styled(el: HTMLElement): void {
  const root = el.getRootNode();
  const home = root instanceof ShadowRoot ? root : document.head;
  if (home.querySelector("style[data-regard]")) return;
  const element = document.createElement("style");
  element.dataset.regard = "";
  element.textContent = style;
  home.append(element);
}

/** Says what went wrong, where the view would have been. */
export function fail(el: HTMLElement, error: Error | null): void {
  render(error ? html`<div class="regard"><p class="rg-problem" role="alert">${error.message}</p></div>` : null, el);
}
