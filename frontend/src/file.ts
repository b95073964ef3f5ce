// A saved file: payloads are in script blocks beside the elements that show them.

import { download, fileHost, type Host } from "./core/host";
import { fail, mount } from "./core/mount";
import { decode, inflate, joined } from "./core/payload";

/** Shows every payload of the page. A page that is not a saved file has none. */
export function startFile(): void {
  for (const place of document.querySelectorAll<HTMLElement>("[data-regard-payload]")) {
    const find = (kind: string) => document.getElementById(`${place.dataset.regardPayload}-${kind}`)?.textContent ?? "";
    // When embedded in another page (the documentation), styles are kept separate, and the address belongs to that page.
    const apart = "regardApart" in place.dataset;
    const host: Host = apart ? { kind: "notebook", save: download } : fileHost;
    const show = async () => {
      const first = await inflate(find("buffer"));
      const el = apart ? inside(place) : place;
      mount(el, decode(find("header"), first), host);
      if (!("regardLate" in place.dataset)) return;
      await painted();
      await read();
      mount(el, decode(find("header"), joined(first, await inflate(find("rest")))), host);
    };
    show().catch((error) => fail(place, error as Error));
  }
}

/** Resolves after the next paint, or after 300 ms if the page is hidden. */
const painted = () => new Promise<void>((done) => (requestAnimationFrame(() => requestAnimationFrame(() => done())), setTimeout(done, 300)));

/** Resolves when the whole file has been read. */
const read = () => new Promise<void>((done) => (document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", () => done(), { once: true }) : done()));

function inside(place: HTMLElement): HTMLElement {
  const root = document.createElement("div");
  place.textContent = "";
  place.attachShadow({ mode: "open" }).append(root);
  return root;
}
