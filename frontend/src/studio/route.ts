// Where on the page one is. It stands in the address, so that it can be kept and shared.

import { useEffect, useState } from "../core/html";

export type PageName = "story" | "mechanism" | "convolution" | "claims";
export const PAGES: [PageName, string][] = [
  ["story", "Start"],
  ["mechanism", "How it works"],
  ["convolution", "As convolution"],
  ["claims", "Claims"],
];

export type Route = { page: PageName } | { run: string | null; tab: string | null };

export function parse(hash: string): Route {
  const [kind, id, tab] = hash.replace(/^#\/?/, "").split("/");
  if (!kind) return { page: "story" };
  const page = PAGES.find(([name]) => name === kind);
  if (page) return { page: page[0] };
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

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const look = () => setHash(location.hash);
    window.addEventListener("hashchange", look);
    return () => window.removeEventListener("hashchange", look);
  }, []);
  return parse(hash);
}
