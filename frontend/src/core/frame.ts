// The frame of every view: title, controls, light or dark mode, saving, the list of keys, and errors.

import { html, useLayoutEffect, useMemo, useRef, useState, type ComponentChildren, type RefObject } from "./html";
import { Pictures, type Shown } from "./canvas";
import type { Host } from "./host";
import { type Key, useKeys } from "./keys";
import { toPng, toSvg } from "./save";
import { ThemeContext, themes, useMode } from "./theme";

export interface FrameProps {
  /** Also the name of saved files. */
  name: string;
  title: string;
  /** One line about what is shown now; it is also read aloud and saved. */
  subtitle?: string;
  host: Host;
  keys?: Key[];
  controls?: ComponentChildren;
  /** What one can do with the picture, for those who see it for the first time. */
  hint?: string;
  footer?: ComponentChildren;
  children?: ComponentChildren;
}

const ICONS = {
  theme: "M10 2a8 8 0 1 0 0 16 8 8 0 0 0 0-16zm0 2v12a6 6 0 0 1 0-12z",
  keys: "M2 5h16v10H2zM4 7h2v2H4zm3 0h2v2H7zm3 0h2v2h-2zm3 0h3v2h-3zM6 11h8v2H6z",
};

export function Frame({ name, title, subtitle = "", host, keys = [], controls, hint, footer, children }: FrameProps) {
  const [mode, swap] = useMode();
  const theme = themes[mode];
  const root = useRef<HTMLDivElement>(null);
  const line = useRef<HTMLParagraphElement>(null);
  useKeptHeight(line, root, subtitle);
  const pictures = useMemo(() => new Set<Shown>(), []);
  const [help, setHelp] = useState(false);
  const [problem, setProblem] = useState("");

  const save = async (kind: "png" | "svg") => {
    try {
      const content = await { png: toPng, svg: toSvg }[kind](pictures, title, subtitle, theme);
      host.save(`${name}.${kind}`, content);
      setProblem("");
    } catch (error) {
      setProblem(`The picture could not be saved: ${(error as Error).message}`);
    }
  };
  const all: Key[] = [...keys, { keys: ["?"], means: "show or hide this list", run: () => setHelp(!help) }];
  useKeys(root, all);

  return html`<${ThemeContext.Provider} value=${theme}>
    <${Pictures.Provider} value=${pictures}>
      <section ref=${root} class="regard" aria-label=${title} data-theme=${mode} data-view=${name} data-lm-suppress-shortcuts="true" tabindex="-1">
        <header class="rg-header">
          <div class="rg-heading">
            <h2>${title}</h2>
            <p ref=${line} class="rg-subtitle" aria-live="polite">${subtitle || " "}</p>
          </div>
          <div class="rg-tools">
            <button type="button" onClick=${() => save("png")}>PNG</button>
            <button type="button" onClick=${() => save("svg")}>SVG</button>
            <button type="button" class="rg-icon" aria-label=${mode === "light" ? "dark page" : "light page"} onClick=${swap}>${icon("theme")}</button>
            <button type="button" class="rg-icon" aria-label="keys" aria-expanded=${help} onClick=${() => setHelp(!help)}>${icon("keys")}</button>
          </div>
        </header>
        ${help ? html`<dl class="rg-keys">${all.map((key) => html`<div><dt>${key.shown ?? key.keys.join(" ")}</dt><dd>${key.means}</dd></div>`)}</dl>` : null}
        ${problem ? html`<p class="rg-problem" role="alert">${problem}</p>` : null}
        ${controls ? html`<div class="rg-controls">${controls}${hint ? html`<span class="rg-hint">${hint}</span>` : null}</div>` : null}
        ${children}
        ${footer ? html`<footer class="rg-footer">${footer}</footer>` : null}
      </section>
    <//>
  <//>`;
}

/** The line above the pictures keeps the height of its longest text at this width: if it became lower and higher as one points at
 * one cell and another, the pictures would move away from under the pointer. */
function useKeptHeight(line: RefObject<HTMLElement>, root: RefObject<HTMLElement>, text: string): void {
  const kept = useRef({ width: 0, height: 0 });
  useLayoutEffect(() => {
    if (!line.current || !root.current) return;
    const width = root.current.clientWidth;
    if (width !== kept.current.width) {
      kept.current = { width, height: 0 };
      line.current.style.minHeight = "";
    }
    const { height } = line.current.getBoundingClientRect();
    if (height <= kept.current.height) return;
    kept.current.height = height;
    line.current.style.minHeight = `${height}px`;
  }, [text]);
}

const icon = (name: keyof typeof ICONS) =>
  html`<svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true"><path d=${ICONS[name]} fill="currentColor" fill-rule="evenodd" /></svg>`;
