// The start page: how a network learns where to look, with the latest run of this folder.

import { html, useContext, useEffect, useMemo, useState, type VNode } from "../core/html";
import type { Host } from "../core/host";
import { StoryView } from "../story";
import { api, type RunSummary } from "./api";
import { studioHost } from "./host";
import { toRun } from "./route";
import { Back, EMPTY, type Loaded, Problem } from "./views";

export function StoryPage({ runs }: { runs: RunSummary[] | null }): VNode {
  const [loaded, setLoaded] = useState<Loaded>(EMPTY);
  const back = useContext(Back);
  const own = runs?.find((run) => !run.example && run.problem === null && run.state === "finished" && run.views.length) ?? null;
  const photos = own?.views.includes("image") && !loaded.problem ? own : (runs?.find((run) => run.example) ?? null);
  useEffect(() => {
    if (!runs) return;
    let gone = false;
    setLoaded((now) => ({ ...now, busy: true }));
    const load = (id: string | null, problem: string) => api.story(id).then((payload) => gone || setLoaded({ payload, problem, busy: false }));
    load(own?.id ?? null, "")
      // A run whose checkpoints are lost or damaged must not take the page away.
      .catch((error: Error) => (own ? load(null, `${error.message} The networks that come with regard are shown instead.`) : Promise.reject(error)))
      .catch((error: Error) => gone || setLoaded((now) => ({ ...now, problem: error.message, busy: false })));
    return () => {
      gone = true;
    };
  }, [runs === null, own?.id, back]);
  // The user's own photo is classified by the network of the run on this page.
  const host: Host = useMemo(
    () => ({
      ...studioHost,
      ...(photos ? { more: (what: string, options: Record<string, unknown>) => (what === "attention" ? api.imageAttention(photos.id, options.image as Blob, null) : studioHost.more!(what, options)) } : { more: undefined }),
    }) as Host,
    [photos?.id],
  );
  if (!loaded.payload) {
    return html`<main class="st-opening">
      ${loaded.problem ? html`<${Problem} text=${loaded.problem} />` : null}
      <div>
        <h1>Watch a network learn where to look</h1>
        ${loaded.problem ? null : html`<p role="status">Running the networks of this page …</p>`}
      </div>
    </main>` as VNode;
  }
  const training = runs?.find((run) => run.state === "training" && run.problem === null);
  return html`<main class="st-story">${loaded.problem ? html`<${Problem} text=${loaded.problem} />` : null}${training ? html`<p class="st-now"><a href=${toRun(training.id)}><i class="st-dot st-training"></i>${training.title} is training now: step ${training.step ?? 0}</a></p>` : null}<${StoryView} payload=${loaded.payload} host=${host} /></main>` as VNode;
}
