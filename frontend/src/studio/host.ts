// The studio as a host of views.

import { download, type Host } from "../core/host";
import { Payload } from "../core/payload";
import { api } from "./api";

export const studioHost: Host = {
  kind: "studio",
  save: download,
  async more(what, options) {
    if (what !== "evidence") throw new Error(`there is no more ${what} here`);
    const answer = await api.evidence(String(options.id));
    return new Payload({ view: "evidence", version: 1, meta: { ...answer }, arrays: {} }, new ArrayBuffer(0));
  },
};
