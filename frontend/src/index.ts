// The only module: a notebook calls `render`, the studio calls `mount`, a saved file starts by itself.

import { download, type Host } from "./core/host";
import { fail, mount as put } from "./core/mount";
import { decode, decodeBody, inflate, Payload } from "./core/payload";
import { startFile } from "./file";

export { decode, decodeBody, inflate, Payload };

/** The part of anywidget's model that we use. */
export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(event: string, callback: () => void): void;
  off(event: string, callback: () => void): void;
}

export function mount(el: HTMLElement, payload: Payload, host: Partial<Host> = {}): () => void {
  return put(el, payload, { kind: "file", save: download, ...host });
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  let clean = () => {};
  const host: Host = {
    kind: "notebook",
    save: download,
    select(selection) {
      model.set("selection", selection);
      model.save_changes();
    },
  };
  // Draw over the old view, so that the selection stays when new data arrive.
  const draw = () => {
    try {
      clean = put(el, decode(model.get("payload") as string, model.get("buffer") as DataView), host);
    } catch (error) {
      fail(el, error as Error);
    }
  };
  draw();
  model.on("change:payload", draw);
  return () => {
    model.off("change:payload", draw);
    clean();
  };
}

export default { render };

startFile();
