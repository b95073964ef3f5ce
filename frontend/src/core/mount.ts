// Mounts a view on a page.

import { html, render } from "./html";
import type { Host } from "./host";
import type { Payload } from "./payload";
import style from "./style.css";
import { views } from "../views";

/** Shows the payload inside `el`; returns a function that removes it. */
export function mount(el: HTMLElement, payload: Payload, host: Host): () => void {
  styled(el);
  const View = views[payload.view];
  if (!View) {
    fail(el, new Error(`there is no view named ${payload.view}`));
    return () => fail(el, null);
  }
  render(html`<${View} payload=${payload} host=${host} />`, el);
  return () => render(null, el);
}

/** The style is added where the element is, which in some notebooks is a shadow tree. */
export function styled(el: HTMLElement): void {
  const root = el.getRootNode();
  const home = root instanceof ShadowRoot ? root : document.head;
  if (home.querySelector("style[data-regard]")) return;
  const element = document.createElement("style");
  element.dataset.regard = "";
  element.textContent = style;
  home.append(element);
}

/** Shows the error in place of the view. */
export function fail(el: HTMLElement, error: Error | null): void {
  render(error ? html`<div class="regard"><p class="rg-problem" role="alert">${error.message}</p></div>` : null, el);
}
