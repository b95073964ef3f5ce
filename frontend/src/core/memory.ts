// What a person chose, kept in the address of a saved file and, for light or dark, in the browser.

import type { Host } from "./host";

/** The choices of a view in the address, by name; nothing outside a saved file. */
export function recalled(host: Host, view: string): Record<string, string> {
  if (host.kind !== "file") return {};
  const found: Record<string, string> = {};
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) if (key.startsWith(`${view}.`)) found[key.slice(view.length + 1)] = value;
  return found;
}

/** Writes choices into the address, beside those of other views, without a new entry in the history. */
export function remember(host: Host, view: string, choices: Record<string, string | number | null>): void {
  if (host.kind !== "file") return;
  const all = new URLSearchParams(location.hash.slice(1));
  for (const [key, value] of Object.entries(choices)) value === null ? all.delete(`${view}.${key}`) : all.set(`${view}.${key}`, String(value));
  const hash = all.toString();
  if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}

/** Files on disk share one store, so each has an entry of its own. */
const themeKey = () => `regard-theme${location.protocol === "file:" ? ` ${location.pathname}` : ""}`;

export function rememberedTheme(): "light" | "dark" | null {
  try {
    const kept = localStorage.getItem(themeKey());
    return kept === "light" || kept === "dark" ? kept : null;
  } catch {
    return null; // a page without a store of its own, as in some notebooks
  }
}

export function rememberTheme(mode: "light" | "dark"): void {
  try {
    localStorage.setItem(themeKey(), mode);
  } catch {
    // It holds until the page is closed.
  }
}
