// One run: its facts, its training curves, and its network's attention.

import { html, useContext, useEffect, useRef, useState, type VNode } from "../core/html";
import { wholeNumber } from "../core/memory";
import { percent } from "../views/maths/words";
import { api, type RunDetail, type RunSummary } from "./api";
import { CurvesView } from "./curves";
import { type Followed, useFollowed } from "./follow";
import { ImageTab } from "./image";
import { goKeeping, toRun, useChoice } from "./route";
import { SentenceTab } from "./sentence";
import { Back, EMPTY, type Loaded, Problem, Shown } from "./views";

const TABS = { heads: "Heads", image: "Image attention", tokens: "Alignment", training: "Training" } as const;
type Tab = keyof typeof TABS;

export function RunPage({ id, tab, runs }: { id: string; tab: string | null; runs: RunSummary[] }): VNode {
  const [run, setRun] = useState<RunDetail | null>(null);
  const [problem, setProblem] = useState("");
  const [chosenStep, setStep] = useChoice("step");
  const step = wholeNumber(chosenStep) || null;
  const back = useContext(Back);
  const followed = useFollowed(id, back);
  // Load the run again when it has a new checkpoint or has ended.
  const last = run?.checkpoints.at(-1)?.step ?? null;
  const news = run !== null && followed.state !== null && (followed.checkpoint !== last || followed.state !== run.state);
  useEffect(() => {
    if (run?.id === id && !news) return;
    let gone = false;
    api
      .run(id)
      .then((detail) => gone || (setRun(detail), setProblem("")))
      .catch((error: Error) => gone || setProblem(error.message));
    return () => {
      gone = true;
    };
  }, [id, news, back]);

  const tabs: Tab[] = [...(run?.views ?? []), "training"];
  const shown = tabs.find((name) => name === tab) ?? tabs[0];
  useEffect(() => {
    if (run) document.title = `${run.title}: ${nameOf(shown, run)} · regard studio`;
  }, [run?.title, shown]);

  if (problem && !run) return html`<main><${Problem} text=${problem} /></main>` as VNode;
  if (!run || run.id !== id) return html`<div class="st-waiting"></div>` as VNode;
  const state = followed.state ?? run.state;
  const steps = followed.lines.at(-1)?.step ?? run.step;
  const choosable = (shown === "image" || shown === "tokens") && run.checkpoints.length > 1;
  return html`<main>
    <header class="st-run">
      <div>
        <h1>${run.title}</h1>
        <p class="st-facts">
          <span class=${`st-state st-${state}`}>${{ training: "training now", finished: "finished", stopped: "not finished" }[state]}</span>
          ${run.recipe && run.recipe !== run.title ? html`<span>${run.recipe}</span>` : null}
          ${steps ? html`<span>${steps.toLocaleString("en")} steps</span>` : null}
          ${run.accuracy === null ? null : html`<span>validation accuracy ${percent(run.accuracy)}</span>`}
          ${parameters(run)}
        </p>
      </div>
      <nav class="st-tabs" aria-label="views of the run">
        ${tabs.map((name) => html`<a key=${name} href=${toRun(id, name)} onClick=${goKeeping} aria-current=${name === shown ? "page" : undefined}>${nameOf(name, run)}</a>`)}
      </nav>
      ${choosable
        ? html`<label class="st-step">network at step
            <select value=${String(step ?? "")} onChange=${(event: Event) => setStep(Number((event.target as HTMLSelectElement).value) || null)}>
              <option value="">last (${run.checkpoints.at(-1)?.step})</option>
              ${run.checkpoints.slice(0, -1).map((one) => html`<option key=${one.step} value=${String(one.step)}>${one.step}</option>`)}
            </select></label>`
        : null}
    </header>
    ${followed.problem ? html`<${Problem} text=${followed.problem} />` : null}
    ${shown === "heads" ? html`<${HeadsTab} key=${id} id=${id} followed=${followed} />` : null}
    ${shown === "image" ? html`<${ImageTab} key=${id} run=${run} step=${step} runs=${runs} />` : null}
    ${shown === "tokens" ? html`<${SentenceTab} key=${id} run=${run} step=${step} runs=${runs} />` : null}
    ${shown === "training" || shown === "heads" ? html`<${CurvesView} key=${id} lines=${followed.lines} state=${state} run=${run} runs=${runs} />` : null}
  </main>` as VNode;
}

const nameOf = (tab: Tab, run: RunDetail) => (tab === "tokens" && run.kind === "text" ? "Attention" : TABS[tab]);

function parameters(run: RunDetail) {
  const count = run.summary?.parameters;
  return typeof count === "number" ? html`<span>${count.toLocaleString("en")} parameters</span>` : null;
}

/** Where heads look, loaded again when there are new positions. */
function HeadsTab({ id, followed }: { id: string; followed: Followed }): VNode {
  const [loaded, setLoaded] = useState<Loaded>({ ...EMPTY, busy: true });
  const seen = useRef(-1);
  const busy = useRef(false);
  const back = useContext(Back);
  useEffect(() => {
    if (loaded.problem) seen.current = -1;
  }, [back]);
  useEffect(() => {
    if (busy.current || seen.current === followed.heads) return;
    const first = seen.current < 0;
    seen.current = followed.heads;
    // Show the available data at once; the metrics, which tell whether there is more, arrive later.
    if (!first && followed.heads === 0) return;
    busy.current = true;
    api
      .heads(id)
      .then((payload) => setLoaded({ payload, problem: "", busy: false }))
      .catch((error: Error) => setLoaded((now) => ({ ...now, problem: error.message, busy: false })))
      .finally(() => (busy.current = false));
  }, [id, followed.heads, back]);
  return html`<${Shown} ...${loaded} />` as VNode;
}
