// The page: the list of runs on the left, one run (or a page that needs no run) on the right.

import { html, useContext, useEffect, useState, type VNode } from "../core/html";
import { rememberedTheme, rememberTheme } from "../core/memory";
import { surroundings } from "../core/theme";
import { api, LOST, UNREACHABLE, type About, type RunSummary } from "./api";
import { atStart, PAGES, type PageName, RUNS, toModel, toPage, useRoute } from "./route";
import { ModelPage } from "./model";
import { RunPage } from "./run";
import { Runs } from "./runs";
import { StoryPage } from "./story";
import { Back, EMPTY, type Loaded, Problem, Shown } from "./views";

const OFTEN = 5000;
const WHILE_LOST = 1500;

export function Studio(): VNode {
  const route = useRoute();
  const [about, setAbout] = useState<About | null>(null);
  const [runs, setRuns] = useState<RunSummary[] | null>(null);
  const [problem, setProblem] = useState("");
  const [back, setBack] = useState(0);
  useEffect(() => {
    let [gone, timer, lost, before] = [false, 0, false, ""];
    api.about().then((said) => gone || setAbout(said)).catch(() => {});
    const look = async () => {
      try {
        const found = await api.runs();
        if (gone) return;
        // A list that has not changed is not drawn again: it may have a thousand runs.
        const now = JSON.stringify(found);
        if (now !== before) setRuns(found);
        before = now;
        setProblem("");
        if (lost) setBack((times) => times + 1);
        lost = false;
      } catch (error) {
        if (!gone) setProblem((error as Error).message);
        lost = true;
      }
      if (!gone) timer = window.setTimeout(look, lost ? WHILE_LOST : document.hidden ? 6 * OFTEN : OFTEN);
    };
    const noticed = () => {
      if (lost || gone) return;
      lost = true;
      setProblem(UNREACHABLE);
      clearTimeout(timer);
      timer = window.setTimeout(look, WHILE_LOST);
    };
    window.addEventListener(LOST, noticed);
    void look();
    return () => {
      gone = true;
      window.removeEventListener(LOST, noticed);
      clearTimeout(timer);
    };
  }, []);

  // If the studio was opened with a model, show the model first.
  const own = about?.model && ("model" in route || atStart()) ? about.model : null;
  const page = "page" in route && !own ? route.page : null;
  const wanted = "run" in route ? route.run : null;
  // Prefer a run that is training now, then one with positional heads.
  const readable = runs?.filter((run) => run.problem === null) ?? [];
  const first = readable.find((run) => run.state === "training") ?? readable.find((run) => run.views.includes("heads")) ?? readable[0] ?? runs?.[0];
  const id = page || own || "model" in route ? null : (wanted ?? first?.id ?? null);
  useEffect(() => {
    if (page) document.title = `${PAGES.find(([name]) => name === page)![1]} · regard studio`;
    else if (!id) document.title = "regard studio";
  }, [page, id]);
  return html`<${Back.Provider} value=${back}><div class="studio">
    <header class="st-top">
      <a class="st-name" href="#/"><${Eye} /> regard <span>studio</span></a>
      <nav aria-label="pages">
        ${about?.model ? html`<a href=${toModel()} aria-current=${own ? "page" : undefined}>Model</a>` : null}
        ${PAGES.map(([name, title]) => html`<a key=${name} href=${name === "story" && about?.model ? "#/story" : toPage(name)} aria-current=${name === page ? "page" : undefined}>${title}</a>${name === "story" ? html`<a href=${RUNS} aria-current=${page || own ? undefined : "page"}>Runs</a>` : null}`)}
      </nav>
      <${Dark} />
    </header>
    ${problem ? html`<${Problem} text=${problem} top />` : null}
    ${own ? html`<${ModelPage} key=${own.name} model=${own} />` : page === "story"
      ? html`<${StoryPage} runs=${runs} />`
      : page
      ? html`<main class="st-page"><h1 class="st-hidden">${PAGES.find(([name]) => name === page)![1]}</h1><${Page} key=${page} name=${page} /></main>`
      : html`<div class="st-body">
          <${Runs} runs=${runs} current=${id} folder=${about?.folder ?? ""} />
          <div class="st-main">${id ? html`<${RunPage} key=${id} id=${id} tab=${"tab" in route ? route.tab : null} runs=${runs ?? []} />` : runs ? html`<${Welcome} folder=${about?.folder ?? "runs"} />` : null}</div>
        </div>`}
    <footer class="st-foot">${about ? `regard ${about.version}` : ""} · nothing leaves this machine</footer>
  </div><//>` as VNode;
}

function Welcome({ folder }: { folder: string }): VNode {
  return html`<main class="st-welcome">
    <h1>No runs yet</h1>
    <p>Runs in <b>${folder}</b> appear here, also while they train:</p>
    <pre>regard train demo</pre>
    <p>Or look at <a href=${toPage("mechanism")}>how attention works</a>, at <a href=${toPage("convolution")}>attention that becomes a convolution</a>, and at <a href=${toPage("claims")}>which claims about it hold</a>.</p>
  </main>` as VNode;
}

function Page({ name }: { name: Exclude<PageName, "story"> }): VNode {
  const [loaded, setLoaded] = useState<Loaded>({ ...EMPTY, busy: true });
  const back = useContext(Back);
  useEffect(() => {
    let gone = false;
    api
      .page(name)
      .then((payload) => gone || setLoaded({ payload, problem: "", busy: false }))
      .catch((error: Error) => gone || setLoaded({ ...EMPTY, problem: error.message }));
    return () => {
      gone = true;
    };
  }, [name, back]);
  return html`<${Shown} ...${loaded} />` as VNode;
}

function Eye(): VNode {
  return html`<svg viewBox="0 0 32 20" width="30" height="19" aria-hidden="true">
    <path d="M1 10C7 1 25 1 31 10 25 19 7 19 1 10z" fill="none" stroke="currentColor" stroke-width="2" />
    <circle cx="16" cy="10" r="5.5" fill="var(--st-blue)" /><circle cx="18" cy="8" r="1.8" fill="#fff" />
  </svg>` as VNode;
}

/** Light or dark, for the whole page. */
function Dark(): VNode {
  const [mode, setMode] = useState(() => {
    const kept = rememberedTheme();
    if (kept) document.documentElement.dataset.theme = kept;
    return surroundings();
  });
  useEffect(() => {
    const query = window.matchMedia("(prefers-color-scheme: dark)");
    const look = () => setMode(surroundings());
    query.addEventListener("change", look);
    return () => query.removeEventListener("change", look);
  }, []);
  const swap = () => {
    const next = mode === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    rememberTheme(next);
    setMode(next);
  };
  return html`<button type="button" class="st-dark" aria-label=${mode === "dark" ? "light page" : "dark page"} onClick=${swap}>
    <svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true"><path d="M10 2a8 8 0 1 0 0 16 8 8 0 0 0 0-16zm0 2v12a6 6 0 0 1 0-12z" fill="currentColor" fill-rule="evenodd" /></svg>
  </button>` as VNode;
}
