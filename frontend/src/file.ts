// A saved file: payloads stand in script blocks beside the places where they are to be shown.

import { fileHost } from "./core/host";
import { fail, mount } from "./core/mount";
import { decode, inflate } from "./core/payload";

/** Shows every payload of the page. On a page that is not a saved file there is none. */
export function startFile(): void {
  for (const place of document.querySelectorAll<HTMLElement>("[data-regard-payload]")) {
    const find = (kind: string) => document.getElementById(`${place.dataset.regardPayload}-${kind}`)?.textContent ?? "";
    inflate(find("buffer"))
      .then((buffer) => mount(place, decode(find("header"), buffer), fileHost))
      .catch((error) => fail(place, error as Error));
  }
}
