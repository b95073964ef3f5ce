// One payload that holds several: the array x of a part p is named p/x.

import { Payload } from "../core/payload";

export interface StoryMeta {
  title: string;
  /** The user's run; null if everything comes with the package. */
  run: string | null;
  /** The run that comes with the package. */
  example: string;
  parts: Record<string, { view: string; meta: Record<string, unknown>; own: boolean }>;
}

/** A part as a separate payload over the same bytes. */
export function partOf(payload: Payload<StoryMeta>, name: string): Payload<any> {
  const part = payload.meta.parts[name];
  if (!part) throw new Error(`the page has no part ${name}`);
  const start = `${name}/`;
  const arrays = Object.fromEntries(
    Object.entries(payload.header.arrays)
      .filter(([key]) => key.startsWith(start))
      .map(([key, info]) => [key.slice(start.length), info.scale === undefined ? info : { ...info, scale: info.scale.slice(start.length) }]),
  );
  return new Payload({ view: part.view, version: 1, meta: part.meta, arrays }, payload.buffer);
}

export const hasPart = (payload: Payload<StoryMeta>, name: string): boolean => name in payload.meta.parts;
