// The little that a view needs of the page it is on.

import type { Payload } from "./payload";

export interface Host {
  kind: "notebook" | "file" | "studio";
  /** Tell the host what is picked (a notebook makes it readable from Python). */
  select?(selection: Record<string, unknown>): void;
  /** More data, where there is somebody to ask. */
  more?(what: string, options: Record<string, unknown>): Promise<Payload>;
  /** Hand a file to the person. */
  save(name: string, content: Blob): void;
}

/** A download, which every browser does without any network. */
export function download(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export const fileHost: Host = { kind: "file", save: download };
