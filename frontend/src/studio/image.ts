// Pick an image and see where the network looks in it.

import { html, useCallback, useContext, useEffect, useRef, useState, type VNode } from "../core/html";
import { percent } from "../views/maths/words";
import { api, type RunDetail, type Sample, type Source, type Told } from "./api";
import { Back, EMPTY, type Loaded, Shown } from "./views";

const SOURCES: Record<Source, string> = { shipped: "Examples", test: "Test set" };
const PAGE = 24;

export function ImageTab({ run, step }: { run: RunDetail; step: number | null }): VNode {
  const sources = (["shipped", "test"] as Source[]).filter((source) => run.samples[source]);
  const [source, setSource] = useState<Source | null>(sources[0] ?? null);
  const [start, setStart] = useState(0);
  const [samples, setSamples] = useState<Sample[]>([]);
  // The first one is asked for at once, beside the list that it stands in.
  const [chosen, setChosen] = useState<Sample | Blob | null>(() => source && { source, index: 0, label: null, address: "" });
  const [loaded, setLoaded] = useState<Loaded>(EMPTY);
  const [over, setOver] = useState(false);
  const latest = useRef(0);
  const back = useContext(Back);
  const total = source ? (run.samples[source] ?? 0) : 0;

  useEffect(() => {
    if (!source) return;
    let gone = false;
    api
      .samples(run.id, source, start, PAGE)
      .then((answer) => {
        if (gone) return;
        setSamples(answer.samples);
      })
      .catch((error: Error) => gone || setLoaded({ ...EMPTY, problem: error.message }));
    return () => {
      gone = true;
    };
  }, [run.id, source, start, back]);

  useEffect(() => {
    if (!chosen) return;
    const number = ++latest.current;
    setLoaded((now) => ({ ...now, problem: "", busy: true }));
    const asked = chosen instanceof Blob ? api.imageAttention(run.id, chosen, step) : api.sampleAttention(run.id, chosen, step);
    asked
      .then((payload) => number === latest.current && setLoaded({ payload, problem: "", busy: false }))
      .catch((error: Error) => number === latest.current && setLoaded((now) => ({ ...now, problem: error.message, busy: false })));
  }, [chosen, run.id, step, back]);

  const take = useCallback((file: File | null | undefined) => file && setChosen(file), []);
  useEffect(() => {
    const paste = (event: ClipboardEvent) => take([...(event.clipboardData?.files ?? [])].find((file) => file.type.startsWith("image/")));
    window.addEventListener("paste", paste);
    return () => window.removeEventListener("paste", paste);
  }, []);
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    take(event.dataTransfer?.files[0]);
  };

  const told = (loaded.payload?.meta as { studio?: Told } | undefined)?.studio;
  return html`<section
    class=${over ? "st-drop st-over" : "st-drop"}
    onDragOver=${(event: DragEvent) => (event.preventDefault(), setOver(true))}
    onDragLeave=${() => setOver(false)}
    onDrop=${drop}
  >
    <div class="st-picker">
      <div class="st-bar">
        ${sources.length > 1
          ? sources.map((name) => html`<button type="button" key=${name} aria-pressed=${name === source} onClick=${() => (setSource(name), setStart(0))}>${SOURCES[name]}</button>`)
          : html`<strong>${source ? SOURCES[source] : "Your image"}</strong>`}
        <label class="st-file"><input type="file" accept="image/png,image/jpeg,image/webp,image/bmp,image/gif" onChange=${(event: Event) => take((event.target as HTMLInputElement).files?.[0])} /><span>Your image …</span></label>
        <span class="st-quiet">or drop or paste one</span>
        ${total > PAGE
          ? html`<span class="st-pager">
              <button type="button" aria-label="earlier images" disabled=${start === 0} onClick=${() => setStart(Math.max(0, start - PAGE))}>‹</button>
              <span class="st-quiet">${start + 1}–${Math.min(total, start + PAGE)} of ${total.toLocaleString("en")}</span>
              <button type="button" aria-label="further images" disabled=${start + PAGE >= total} onClick=${() => setStart(start + PAGE)}>›</button>
            </span>`
          : null}
      </div>
      <div class="st-strip" role="listbox" aria-label="images">
        ${samples.map(
          (sample) => html`<button type="button" role="option" key=${sample.address} aria-selected=${isSame(sample, chosen)} title=${sample.label ?? ""} onClick=${() => setChosen(sample)}>
            <img src=${sample.address} alt=${sample.label ?? `image ${sample.index}`} width="56" height="56" loading="lazy" />
          </button>`,
        )}
      </div>
    </div>
    ${chosen || loaded.problem ? html`<${Shown} ...${loaded}>${told?.guesses ? html`<${Guesses} told=${told} />` : null}<//>` : html`<p class="st-quiet">Its data set is not on this machine. Choose an image of yours.</p>`}
  </section>` as VNode;
}

const isSame = (sample: Sample, chosen: Sample | Blob | null) =>
  chosen !== null && !(chosen instanceof Blob) && chosen.source === sample.source && chosen.index === sample.index;

/** Chances as bars from one origin, all of 100 %. The network's answer and the truth carry their names. */
function Guesses({ told }: { told: Told }): VNode {
  const guesses = told.guesses ?? [];
  const role = (label: string, i: number) => [i === 0 ? "prediction" : "", label === told.label ? "truth" : ""].filter(Boolean);
  const missing = told.label && !guesses.some(({ label }) => label === told.label);
  return html`<div class="st-guesses" aria-label="what the network takes it for">
    ${guesses.map(({ label, chance }, i) => {
      const roles = role(label, i);
      return html`<div key=${label} class=${`${i === 0 ? "st-predicted" : ""} ${label === told.label ? "st-right" : ""}`}>
        <span>${label}</span><i><u style=${{ width: `${100 * chance}%` }}></u></i><b>${percent(chance)}</b><em>${roles.join(" and ")}</em>
      </div>`;
    })}
    ${missing ? html`<p class="st-quiet">truth: ${told.label}, less likely than these</p>` : null}
  </div>` as VNode;
}
