// The user's choices, kept in the address (of a saved file or of the studio); light or dark is kept in the browser.

import { useEffect } from "./html";
import type { Host } from "./host";

type Kind = Host["kind"];

/** The address in two parts: the route and the choices. In a notebook the address is not ours. */
function split(kind: Kind): { place: string; choices: URLSearchParams } | null {
  const hash = location.hash.slice(1);
  if (kind === "file") return { place: "", choices: new URLSearchParams(hash) };
  if (kind !== "studio") return null;
  const at = hash.indexOf("?");
  return at < 0 ? { place: hash, choices: new URLSearchParams() } : { place: hash.slice(0, at), choices: new URLSearchParams(hash.slice(at + 1)) };
}

/** The choices of a view in the address, by name. An empty view name means the page itself. */
export function recalled(host: Pick<Host, "kind">, view: string): Record<string, string> {
  const found: Record<string, string> = {};
  const start = view && `${view}.`;
  for (const [key, value] of split(host.kind)?.choices ?? []) if (key.startsWith(start) && (view || !key.includes("."))) found[key.slice(start.length)] = value;
  return found;
}

/** A number in the address, which anyone may have typed: 0, 1, 2, …; null for any other text. */
export const wholeNumber = (text: string | null | undefined): number | null => (text && /^\d{1,9}$/.test(text) ? Number(text) : null);

/** The event sent when choices changed without an event of the browser. */
export const CHANGED = "regard-choices";

/** Writes choices into the address and keeps those of other views. With `step`, the browser's Back undoes the change. */
export function remember(host: Pick<Host, "kind">, view: string, choices: Record<string, string | number | null>, step = false): void {
  const now = split(host.kind);
  if (!now) return;
  for (const [name, value] of Object.entries(choices)) {
    const key = view ? `${view}.${name}` : name;
    value === null ? now.choices.delete(key) : now.choices.set(key, String(value));
  }
  const said = now.choices.toString().replaceAll("%2F", "/").replaceAll("%2C", ",");
  const hash = now.place + (host.kind === "studio" && said ? `?${said}` : said);
  if (hash === location.hash.slice(1)) return;
  const address = hash ? `#${hash}` : location.pathname + location.search;
  step ? history.pushState(null, "", address) : history.replaceState(null, "", address);
  if (step) window.dispatchEvent(new Event(CHANGED));
}

/** Calls `follow` with the view's choices when the address changes, for example by the browser's Back. */
export function useRecalled(host: Pick<Host, "kind">, view: string, follow: (choices: Record<string, string>) => void): void {
  useEffect(() => {
    const place = split(host.kind)?.place;
    const look = () => split(host.kind)?.place === place && follow(recalled(host, view));
    window.addEventListener("hashchange", look);
    return () => window.removeEventListener("hashchange", look);
  });
}

/** Files on disk share one local storage, so each file has its own entry. */
const themeKey = () => `regard-theme${location.protocol === "file:" ? ` ${location.pathname}` : ""}`;

export function rememberedTheme(): "light" | "dark" | null {
  try {
    const kept = localStorage.getItem(themeKey());
    return kept === "light" || kept === "dark" ? kept : null;
  } catch {
    return null; // a page without local storage, as in some notebooks
  }
}

export function rememberTheme(mode: "light" | "dark"): void {
  try {
    localStorage.setItem(themeKey(), mode);
  } catch {
    // It holds until the page is closed.
  }
}

/** How a list of runs is ordered, in this browser. */
export function rememberedList(): { sorting: string; grouped: boolean } {
  try {
    const { sorting, grouped } = JSON.parse(localStorage.getItem("regard-runs") ?? "{}");
    return { sorting: String(sorting ?? "latest"), grouped: grouped === true };
  } catch {
    return { sorting: "latest", grouped: false };
  }
}

export function rememberList(choice: { sorting: string; grouped: boolean }): void {
  try {
    localStorage.setItem("regard-runs", JSON.stringify(choice));
  } catch {
    // It holds until the page is closed.
  }
}
