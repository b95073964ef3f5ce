// A saved file: payloads stand in script blocks beside the places where they are to be shown.

import { download, fileHost, type Host } from "./core/host";
import { fail, mount } from "./core/mount";
import { decode, inflate, joined } from "./core/payload";

/** Shows every payload of the page. On a page that is not a saved file there is none. */
export function startFile(): void {
  for (const place of document.querySelectorAll<HTMLElement>("[data-regard-payload]")) {
    const find = (kind: string) => document.getElementById(`${place.dataset.regardPayload}-${kind}`)?.textContent ?? "";
    // On a page of others (the documentation) the styles of both stay apart, and the address is theirs.
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

/** Until what was asked for can be seen, or would be if the page were. */
const painted = () => new Promise<void>((done) => (requestAnimationFrame(() => requestAnimationFrame(() => done())), setTimeout(done, 300)));

/** Until the whole file has been read. */
const read = () => new Promise<void>((done) => (document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", () => done(), { once: true }) : done()));

function inside(place: HTMLElement): HTMLElement {
  const root = document.createElement("div");
  place.textContent = "";
  place.attachShadow({ mode: "open" }).append(root);
  return root;
}
