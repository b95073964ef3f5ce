// Type a sentence; see what the network writes or guesses, and where it looks.

import { recalled, remember } from "../core/memory";
import { studioHost } from "./host";
import { html, useContext, useEffect, useRef, useState, type VNode } from "../core/html";
import { percent } from "../views/maths/words";
import { api, type RunDetail, type RunSummary, type Told } from "./api";
import { Compare, difference, otherOf } from "./compare";
import { useChoice } from "./route";
import { Back, EMPTY, type Loaded, Shown } from "./views";

const PAUSE = 250; // milliseconds without a key before the network is asked

export function SentenceTab({ run, step, runs }: { run: RunDetail; step: number | null; runs: RunSummary[] }): VNode {
  const [text, setText] = useState(() => recalled(studioHost, "").text ?? run.suggestion ?? "");
  const [chosenTask, setTask] = useChoice("task");
  const task = chosenTask === "lower" ? "lower" : "upper";
  const [versus, setVersus] = useChoice("minus");
  const other = otherOf(versus, run);
  useEffect(() => remember(studioHost, "", { text: text === run.suggestion ? null : text }), [text]);
  const [loaded, setLoaded] = useState<Loaded>(EMPTY);
  const latest = useRef(0);
  const back = useContext(Back);
  useEffect(() => {
    const number = ++latest.current;
    if (!text.trim()) return setLoaded((now) => ({ ...now, problem: "Type a sentence.", busy: false }));
    setLoaded((now) => ({ ...now, busy: true }));
    const timer = setTimeout(
      () => {
        Promise.all([api.sentence(run.id, text, task, step), other && api.sentence(other.run, text, task, other.step)])
          .then(([one, two]) => (two ? difference(one, two, versus!) : one))
          .then((payload) => number === latest.current && setLoaded({ payload, problem: "", busy: false }))
          .catch((error: Error) => number === latest.current && setLoaded((now) => ({ ...now, problem: error.message, busy: false })));
      },
      loaded.payload ? PAUSE : 0,
    );
    return () => clearTimeout(timer);
  }, [text, task, run.id, step, versus, back]);

  const told = (loaded.payload?.meta as { studio?: Told } | undefined)?.studio;
  return html`<section>
    <div class="st-sentence">
      <input type="text" aria-label="sentence" maxlength="160" value=${text} spellcheck=${false} onInput=${(event: InputEvent) => setText((event.target as HTMLInputElement).value)} />
      ${run.kind === "case"
        ? [["upper", "IN CAPITALS"], ["lower", "in small letters"]].map(
            ([name, label]) => html`<button type="button" key=${name} aria-pressed=${name === task} onClick=${() => setTask(name)}>${label}</button>`,
          )
        : !run.suggestion?.includes("<mask>")
        ? null
        : html`<button type="button" onClick=${() => setText(`${text.trimEnd()} <mask>`)}>+ masked word</button>`}
      <${Compare} run=${run} step=${step} runs=${runs} value=${versus} onChange=${setVersus} />
    </div>
    ${other ? html`<p class="st-quiet st-minus">The maps show this network minus ${versus}: purple is more weight, orange is less.</p>` : null}
    <${Shown} ...${loaded}>
    ${told?.said !== undefined
      ? html`<p class="st-said">It writes <output class=${told.right ? "st-good" : "st-bad"}>${told.said || "nothing"}</output>
          ${told.right ? html`<span class="st-good">✓ right</span>` : html`<span class="st-bad">✗ expected</span> <span>${told.answer}</span>`}</p>`
      : null}
    ${told?.masked?.length
      ? html`<p class="st-said">${told.masked.map((guesses, i) => html`<span key=${i}>${told.masked!.length > 1 ? `word ${i + 1}: ` : "It guesses "}${guesses.slice(0, 3).map(({ label, chance }) => html`<output>${label}</output> <span class="st-quiet">${percent(chance)}</span> `)}</span>`)}</p>`
      : null}
    <//>
  </section>` as VNode;
}
