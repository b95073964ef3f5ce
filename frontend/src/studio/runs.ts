// The list of runs, with search, sorting and grouping by recipe. Only a part of a long list is drawn at first.

import { html, useMemo, useState, type VNode } from "../core/html";
import { rememberedList, rememberList } from "../core/memory";
import { percent } from "../views/maths/words";
import type { RunSummary } from "./api";
import { toRun } from "./route";

export type Sorting = "latest" | "name" | "accuracy";
const SORTINGS: [Sorting, string][] = [["latest", "latest first"], ["name", "by name"], ["accuracy", "most accurate first"]];
/** How many runs are drawn at first. */
const FIRST = 100;
/** A list with fewer runs needs no search. */
const FEW = 8;

/** Runs that contain every word, in order. The server's order is the latest first, the example last. */
export function found(runs: RunSummary[], words: string, sorting: Sorting): RunSummary[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const left = runs.filter(({ title, recipe, state }) => {
    const text = `${title} ${recipe ?? ""} ${state}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
  if (sorting === "name") return left.sort((a, b) => a.title.localeCompare(b.title, "en", { numeric: true }));
  return sorting === "accuracy" ? left.sort((a, b) => (b.accuracy ?? -1) - (a.accuracy ?? -1)) : left;
}

/** Runs by recipe, in the order of each recipe's first run. */
export function grouped(runs: RunSummary[]): [recipe: string, runs: RunSummary[]][] {
  const groups = new Map<string, RunSummary[]>();
  for (const run of runs) {
    const name = run.recipe ?? "cannot be read";
    groups.get(name)?.push(run) ?? groups.set(name, [run]);
  }
  return [...groups];
}

export interface RunsProps {
  runs: RunSummary[] | null;
  current: string | null;
  folder: string;
}

export function Runs({ runs, current, folder }: RunsProps): VNode {
  const [words, setWords] = useState("");
  const [kept, keep] = useState(rememberedList);
  const [most, setMost] = useState(FIRST);
  const sorting = (SORTINGS.find(([name]) => name === kept.sorting)?.[0] ?? "latest") as Sorting;
  const choose = (change: Partial<typeof kept>) => {
    keep({ ...kept, ...change });
    rememberList({ ...kept, ...change });
  };
  const shown = useMemo(() => found(runs ?? [], words, sorting), [runs, words, sorting]);
  if (!runs) return html`<aside class="st-runs" aria-label="runs"></aside>` as VNode;
  const ahead = shown.slice(0, most);
  // The open run stays visible.
  const open = shown.find(({ id }) => id === current);
  const drawn = open && !ahead.includes(open) ? [open, ...ahead] : ahead;
  const item = (run: RunSummary) => html`<${Item} key=${run.id} run=${run} current=${run.id === current} />`;
  return html`<aside class="st-runs" aria-label="runs">
    <h2>Runs <span class="st-quiet">in ${folder}</span></h2>
    ${runs.length > FEW
      ? html`<div class="st-find">
          <input type="search" placeholder=${`search ${runs.length.toLocaleString("en")} runs`} aria-label="search the runs" value=${words} onInput=${(event: InputEvent) => (setWords((event.target as HTMLInputElement).value), setMost(FIRST))} />
          <select aria-label="order of the runs" value=${sorting} onChange=${(event: Event) => choose({ sorting: (event.target as HTMLSelectElement).value })}>
            ${SORTINGS.map(([name, text]) => html`<option key=${name} value=${name} selected=${name === sorting}>${text}</option>`)}
          </select>
          <label><input type="checkbox" checked=${kept.grouped} onChange=${(event: Event) => choose({ grouped: (event.target as HTMLInputElement).checked })} /> by recipe</label>
        </div>`
      : null}
    ${kept.grouped && runs.length > FEW
      ? grouped(drawn).map(([name, some]) => html`<section key=${name}><h3>${name} <span class="st-quiet">${shown.filter((run) => (run.recipe ?? "cannot be read") === name).length}</span></h3><ul>${some.map(item)}</ul></section>`)
      : html`<ul>${drawn.map(item)}</ul>`}
    ${shown.length > most ? html`<button type="button" class="st-more" onClick=${() => setMost(most + 5 * FIRST)}>${(shown.length - most).toLocaleString("en")} more</button>` : null}
    ${words && !shown.length ? html`<p class="st-quiet">No run contains “${words}”.</p>` : null}
    ${runs.length && runs.every((run) => run.example) ? html`<p class="st-quiet">Runs in the folder <b>${folder}</b> appear here. Start one: <code>regard train demo</code></p>` : null}
  </aside>` as VNode;
}

function Item({ run, current }: { run: RunSummary; current: boolean }): VNode {
  const said = run.problem ? "cannot be read" : run.state === "training" ? `step ${run.step ?? 0}` : run.accuracy === null ? "" : percent(run.accuracy);
  return html`<li>
    <a href=${toRun(run.id)} aria-current=${current ? "true" : undefined} title=${run.problem ?? run.title}>
      <i class=${`st-dot st-${run.problem ? "broken" : run.state}`}></i>
      <span class="st-title">${run.title}</span>
      <span class="st-quiet">${said}</span>
    </a>
  </li>` as VNode;
}
