// "Watch a network learn where to look": one scrolling page made of the package's views.

import { html, useEffect, useMemo, useRef, useState, type VNode } from "../core/html";
import { Pictures, type Shown } from "../core/canvas";
import { Choice } from "../core/controls";
import { type Mode, surroundings, ThemeContext, themes } from "../core/theme";
import { usePrinting } from "../core/print";
import { rememberedTheme, rememberTheme } from "../core/memory";
import type { Payload } from "../core/payload";
import { percent } from "../maps/layer";
import type { ViewProps } from "../views";
import { useSheet } from "../views/sheet";
import { HeadsScene, startsAsGrid } from "./heads";
import { partOf, type StoryMeta } from "./parts";
import { PhotoScene } from "./photo";
import { Section } from "./section";
import { SharpenScene } from "./sharpen";
import style from "./style.css";
import { SwitchScene } from "./switching";
import { CaseScene, NextScene, type TextMeta } from "./typing";
import { YoursScene } from "./yours";

const TITLES = ["Scattered, then settled", "Nine heads on one photo", "Type, and watch it read", "Switch a head off", "Drag α: attention becomes convolution", "Now your model"];

export function StoryView({ payload, host }: ViewProps): VNode {
  const meta = payload.meta as StoryMeta;
  const root = useRef<HTMLDivElement>(null);
  useSheet(root, style);
  const [mode, swap] = usePageMode();
  const pictures = useMemo(() => new Set<Shown>(), []);
  const parts = useMemo(() => Object.fromEntries(Object.keys(meta.parts).map((name) => [name, partOf(payload as Payload<StoryMeta>, name)])), [payload]);
  const [network, setNetwork] = useState<"case" | "next">("case");
  const [sentence, setSentence] = useState(() => parts.case.meta.suggestion as string);
  const [text, setText] = useState(() => parts.induction.meta.suggestion as string);
  const whose = (part: string): string | undefined => (meta.run !== null && !meta.parts[part].own ? `Not your run: ${meta.run} has no data for this section, so you see a network shipped with regard.` : undefined);
  const own = (part: string) => meta.run !== null && meta.parts[part].own;
  const heads = parts.heads.meta as { layers: { heads: number; axes: number }[]; curve: [number, number][]; name: string };
  // With its step: the last evaluation is not the final one where training goes on or was interrupted.
  const reached = heads.curve.length ? `at step ${heads.curve[heads.curve.length - 1][0].toLocaleString("en")} the validation accuracy is ${percent(heads.curve[heads.curve.length - 1][1])}` : null;
  const textMeta = parts[network === "case" ? "case" : "induction"].meta as TextMeta;
  const grid = useMemo(() => startsAsGrid(parts.heads), [parts]);
  const titles = grid ? ["From a grid to their own places", ...TITLES.slice(1)] : TITLES;
  const start = grid ? "Its heads start on the 3 × 3 grid of a convolution, and training moves them where they help" : "Its heads start anywhere, and training moves them where they help";
  const children = [
    html`<${Section} number=${1} title=${titles[0]} height=${620} note=${whose("heads")}
      caption=${`${own("heads") ? "Your" : "A"} network as it learns: every dot is where one head looks, seen from the token in the middle. ${start}${reached ? `; ${reached}` : ""}.`}>
      ${() => html`<${HeadsScene} payload=${parts.heads} />`}
    <//>`,
    html`<${Section} number=${2} title=${TITLES[1]} height=${560} note=${whose("images")} caption="Move over the photo. Each line encloses what one head looks at from the patch you point at.">
      ${() => html`<${PhotoScene} payload=${payload} host=${host} />`}
    <//>`,
    html`<${Section} number=${3} title=${TITLES[2]} height=${420} note=${whose(network === "case" ? "case" : "induction")} caption="A whole network runs in this page, letter by letter as you type: no server, nothing is sent. Change a letter, and both the lines and the answer change.">
      ${() => html`<${Choice} label="network" value=${network} options=${[["case", "change the case"], ["next", "guess the next letter"]]} onChange=${setNetwork} />
        ${network === "case" ? html`<${CaseScene} payload=${parts.case} text=${sentence} onText=${setSentence} />` : html`<${NextScene} payload=${parts.induction} text=${text} onText=${setText} />`}
        <p class="rg-hint">${about(textMeta)}</p>`}
    <//>`,
    html`<${Section} number=${4} title=${TITLES[3]} height=${560} note=${whose("induction")} caption="This network has never seen a word. Random letters taught it one thing: look back for what followed last time. Switch its heads off, and it cannot.">
      ${() => html`<${SwitchScene} payload=${parts.induction} text=${text} onText=${setText} />`}
    <//>`,
    html`<${Section} number=${5} title=${TITLES[4]} height=${460} caption="A soft head averages over its surroundings. Sharpen nine of them, and together they become a 3 × 3 convolution.">
      ${() => html`<${SharpenScene} payload=${parts.convolution} />`}
    <//>`,
    html`<${Section} number=${6} title=${TITLES[5]} height=${700} note=${whose("yours")} caption=${html`Three lines, for any model: your kernels run as they are, and every map is checked against what they computed. Below is the result${own("yours") ? " for your run" : ""}.`}>
      ${() => html`<${YoursScene} payload=${parts.yours} host=${host} />`}
    <//>`,
  ];
  const go = (number: number) => root.current?.querySelector<HTMLElement>(`[data-section="${number}"]`)?.scrollIntoView({ block: "start" });
  return html`<${ThemeContext.Provider} value=${themes[mode]}>
    <${Pictures.Provider} value=${pictures}>
      <div ref=${root} class="regard rg-story" data-theme=${mode} data-view="story" data-host=${host.kind}>
        <header class="rg-hero">
          ${host.kind === "file" ? html`<div class="rg-brand"><${Eye} /><span>regard</span><button type="button" class="rg-icon" aria-label=${mode === "light" ? "dark page" : "light page"} onClick=${swap}><svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true"><path d="M10 2a8 8 0 1 0 0 16 8 8 0 0 0 0-16zm0 2v12a6 6 0 0 1 0-12z" fill="currentColor" fill-rule="evenodd" /></svg></button></div>` : null}
          <h1>${meta.title}</h1>
          <p>Attention is how a network decides where to look. Here is one that learns it, and here is how to see it, question it and switch it off${meta.run ? html`: with your run <b>${meta.run}</b>` : ""}.</p>
        </header>
        <nav class="rg-dots" aria-label="sections">${titles.map((title, i) => html`<button type="button" key=${i} title=${title} aria-label=${`${i + 1}: ${title}`} onClick=${() => go(i + 1)}><i></i></button>`)}</nav>
        ${children}
      </div>
    <//>
  <//>` as VNode;
}

function about({ name, parameters, accuracy, seconds, command }: TextMeta): string {
  const trained = seconds === null ? "" : `, trained in ${Math.round(seconds / 60)} minutes on one processor core`;
  const right = accuracy === null ? "" : `; validation accuracy ${percent(accuracy)}`;
  return `${name}: ${parameters.toLocaleString("en")} parameters${trained}${right}.${command ? ` Made by: ${command}` : ""}`;
}

/** Light or dark for the whole page: the views inside follow the document. */
function usePageMode(): [Mode, () => void] {
  const [mode, setMode] = useState<Mode>(() => rememberedTheme() ?? surroundings());
  useEffect(() => {
    const look = () => setMode(document.documentElement.dataset.theme ? surroundings() : (rememberedTheme() ?? surroundings()));
    const query = window.matchMedia?.("(prefers-color-scheme: dark)");
    query?.addEventListener("change", look);
    const observer = new MutationObserver(look);
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    observer.observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
    return () => {
      query?.removeEventListener("change", look);
      observer.disconnect();
    };
  }, []);
  const swap = () => {
    const next = mode === "light" ? "dark" : "light";
    rememberTheme(next);
    document.documentElement.dataset.theme = next;
  };
  return [usePrinting() ? "light" : mode, swap];
}

function Eye(): VNode {
  return html`<svg viewBox="0 0 32 20" width="34" height="21" aria-hidden="true">
    <path d="M1 10C7 1 25 1 31 10 25 19 7 19 1 10z" fill="none" stroke="currentColor" stroke-width="2" />
    <circle cx="16" cy="10" r="5.5" fill="var(--rg-hover)" /><circle cx="18" cy="8" r="1.8" fill="#fff" />
  </svg>` as VNode;
}
