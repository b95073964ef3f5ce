// What a view needs from the page it is on.

import type { Payload } from "./payload";

export interface Host {
  kind: "notebook" | "file" | "studio";
  /** Tell the host what is selected (a notebook makes it readable from Python). */
  select?(selection: Record<string, unknown>): void;
  /** Load more data, where there is a server. */
  more?(what: string, options: Record<string, unknown>): Promise<Payload>;
  /** Offer a file for download. */
  save(name: string, content: Blob): void;
}

/** A download, which needs no network. */
export function download(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export const fileHost: Host = { kind: "file", save: download };
