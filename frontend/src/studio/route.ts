// The current page and its choices, kept in the address so that they can be bookmarked and shared.

import { useEffect, useState } from "../core/html";
import { CHANGED, recalled, remember } from "../core/memory";
import { studioHost } from "./host";

export type PageName = "story" | "mechanism" | "convolution" | "claims";
export const PAGES: [PageName, string][] = [
  ["story", "Start"],
  ["mechanism", "How it works"],
  ["convolution", "As convolution"],
  ["claims", "Claims"],
];

export type Route = { page: PageName } | { model: true } | { run: string | null; tab: string | null };

// Whether the address names no page: the studio was just opened.
export const atStart = () => !location.hash.replace(/^#\/?/, "").split("?")[0];

export function parse(hash: string): Route {
  const [kind, id, tab] = hash.replace(/^#\/?/, "").split("?")[0].split("/");
  if (!kind) return { page: "story" };
  const page = PAGES.find(([name]) => name === kind);
  if (page) return { page: page[0] };
  if (kind === "model") return { model: true };
  return kind === "run" && id ? { run: decode(id), tab: tab || null } : { run: null, tab: null };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const toPage = (page: PageName) => (page === "story" ? "#/" : `#/${page}`);
export const RUNS = "#/runs";
export const toRun = (id: string, tab?: string) => `#/run/${encodeURIComponent(id)}${tab ? `/${tab}` : ""}`;
export const toModel = () => "#/model";

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const look = () => setHash(location.hash);
    window.addEventListener("hashchange", look);
    return () => window.removeEventListener("hashchange", look);
  }, []);
  return parse(hash);
}

/** A choice of the page itself, such as the image or the step. The browser's Back undoes a change. */
export function useChoice(name: string): [string | null, (value: string | number | null) => void] {
  const now = () => recalled(studioHost, "")[name] ?? null;
  const [value, setValue] = useState(now);
  useEffect(() => {
    const look = () => setValue(now());
    window.addEventListener("hashchange", look);
    window.addEventListener(CHANGED, look);
    return () => {
      window.removeEventListener("hashchange", look);
      window.removeEventListener(CHANGED, look);
    };
  }, [name]);
  return [value, (next) => remember(studioHost, "", { [name]: next }, true)];
}

/** A link to another view of the same run keeps the choices in the address. */
export function goKeeping(event: MouseEvent): void {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const at = location.hash.indexOf("?");
  location.hash = (event.currentTarget as HTMLAnchorElement).hash + (at < 0 ? "" : location.hash.slice(at));
}
