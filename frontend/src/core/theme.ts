// Light or dark: the setting of the page, the notebook or the system, unless the user chooses.

import { createContext, useContext, useEffect, useState } from "./html";
import { usePrinting } from "./print";
import { rememberedTheme, rememberTheme } from "./memory";
import { between, diverging, divergingNight, plasma, night, paper, type Ramp } from "./color";

export type Mode = "light" | "dark";

export interface Theme {
  mode: Mode;
  background: string;
  surface: string;
  ink: string;
  muted: string;
  line: string;
  faint: string;
  /** The selected item. */
  accent: string;
  /** The item under the pointer. */
  hover: string;
  warn: string;
  font: string;
  mono: string;
  /** Weights of a map, 0 to 1. */
  heat: Ramp;
  /** Weights with a sign, −1 to 1 as 0 to 1. */
  signed: Ramp;
  /** An ordered quantity, as the color of lines. */
  order: Ramp;
}

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
const MONO = 'ui-monospace, "SF Mono", Menlo, Consolas, monospace';

export const themes: Record<Mode, Theme> = {
  light: {
    mode: "light",
    background: "#ffffff",
    surface: "#f6f7f9",
    ink: "#1b2026",
    muted: "#5c6670",
    line: "#c9d0d8",
    faint: "#e6e9ed",
    accent: "#d55e00",
    hover: "#0072b2",
    warn: "#b3261e",
    font: FONT,
    mono: MONO,
    heat: paper,
    signed: diverging,
    order: between(plasma, 0, 0.78),
  },
  dark: {
    mode: "dark",
    background: "#0e1116",
    surface: "#171b22",
    ink: "#e8ebef",
    muted: "#98a2ad",
    line: "#3a424c",
    faint: "#232931",
    accent: "#ff9d4d",
    hover: "#56b4e9",
    warn: "#ff8a80",
    font: FONT,
    mono: MONO,
    heat: night,
    signed: divergingNight,
    order: between(plasma, 0.32, 1),
  },
};

export const ThemeContext = createContext<Theme>(themes.light);
export const useTheme = () => useContext(ThemeContext);

/** The mode of the surroundings: a notebook's theme takes precedence over the system's. */
export function surroundings(): Mode {
  const body = document.body;
  if (body?.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false" ? "dark" : "light";
  if (body?.classList.contains("vscode-dark") || body?.classList.contains("vscode-high-contrast")) return "dark";
  if (body?.classList.contains("vscode-light")) return "light";
  if (body?.dataset.mdColorScheme) return body.dataset.mdColorScheme === "slate" ? "dark" : "light"; // the documentation
  const forced = document.documentElement.dataset.theme;
  if (forced === "light" || forced === "dark") return forced;
  return window.matchMedia?.("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** The current theme, and a function that switches it. */
export function useMode(): [Mode, () => void] {
  const [chosen, choose] = useState<Mode | null>(() => (document.documentElement.dataset.theme ? null : rememberedTheme()));
  const [around, setAround] = useState<Mode>(surroundings);
  useEffect(() => {
    const look = () => setAround(surroundings());
    const query = window.matchMedia?.("(prefers-color-scheme: dark)");
    query?.addEventListener("change", look);
    const observer = new MutationObserver(look);
    observer.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-light", "data-md-color-scheme"] });
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      query?.removeEventListener("change", look);
      observer.disconnect();
    };
  }, []);
  const mode = usePrinting() ? "light" : (chosen ?? around);
  const swap = () => {
    const next = mode === "light" ? "dark" : "light";
    choose(next);
    rememberTheme(next);
  };
  return [mode, swap];
}
