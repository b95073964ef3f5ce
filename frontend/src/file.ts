// A saved file: payloads stand in script blocks beside the places where they are to be shown.

import { download, fileHost, type Host } from "./core/host";
import { fail, mount } from "./core/mount";
import { decode, inflate } from "./core/payload";

/** Shows every payload of the page. On a page that is not a saved file there is none. */
export function startFile(): void {
  for (const place of document.querySelectorAll<HTMLElement>("[data-regard-payload]")) {
    const find = (kind: string) => document.getElementById(`${place.dataset.regardPayload}-${kind}`)?.textContent ?? "";
    // On a page of others (the documentation) the styles of both stay apart, and the address is theirs.
    const apart = "regardApart" in place.dataset;
    const host: Host = apart ? { kind: "notebook", save: download } : fileHost;
    inflate(find("buffer"))
      .then((buffer) => mount(apart ? inside(place) : place, decode(find("header"), buffer), host))
      .catch((error) => fail(place, error as Error));
  }
}

function inside(place: HTMLElement): HTMLElement {
  const root = document.createElement("div");
  place.textContent = "";
  place.attachShadow({ mode: "open" }).append(root);
  return root;
}
