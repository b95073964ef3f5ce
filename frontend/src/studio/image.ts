// Pick an image and see where the network looks in it.

import { html, useCallback, useContext, useEffect, useRef, useState, type VNode } from "../core/html";
import { wholeNumber } from "../core/memory";
import { percent } from "../views/maths/words";
import { api, type RunDetail, type RunSummary, type Sample, type Source, type Told } from "./api";
import { Compare, difference, otherOf } from "./compare";
import { useChoice } from "./route";
import { prepare, type Upload } from "./upload";
import { Back, EMPTY, type Loaded, Shown } from "./views";

const SOURCES: Record<Source, string> = { shipped: "Examples", test: "Test set" };
const PAGE = 24;

type Chosen = { source: Source; index: number } | { mine: number };

/** An image in the address: "test/5", or "mine/0" for an uploaded one, which only this page has. */
export function chosenOf(text: string | null, sources: Source[], mine: number): Chosen | null {
  const [kind, number] = (text ?? "").split("/");
  const index = wholeNumber(number);
  if (kind === "mine" && index !== null && index < mine) return { mine: index };
  if (sources.includes(kind as Source) && index !== null) return { source: kind as Source, index };
  return sources.length ? { source: sources[0], index: 0 } : null;
}

export function ImageTab({ run, step, runs }: { run: RunDetail; step: number | null; runs: RunSummary[] }): VNode {
  const sources = (Object.keys(run.samples) as Source[]).filter((source) => run.samples[source]);
  const [sample, setSample] = useChoice("sample");
  const [versus, setVersus] = useChoice("minus");
  const other = otherOf(versus, run);
  const [mine, setMine] = useState<Upload[]>([]);
  const chosen = chosenOf(sample, sources, mine.length);
  const key = JSON.stringify(chosen);
  const [source, setSource] = useState<Source | null>(chosen && "source" in chosen ? chosen.source : (sources[0] ?? null));
  const [start, setStart] = useState(chosen && "source" in chosen ? Math.floor(chosen.index / PAGE) * PAGE : 0);
  const [samples, setSamples] = useState<Sample[]>([]);
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
    const ask = (id: string, at: number | null) => ("mine" in chosen ? api.imageAttention(id, mine[chosen.mine].content, at) : api.sampleAttention(id, chosen, at));
    Promise.all([ask(run.id, step), other && ask(other.run, other.step)])
      .then(([one, two]) => (two ? difference(one, two, versus!) : one))
      .then((payload) => number === latest.current && setLoaded({ payload, problem: "", busy: false }))
      .catch((error: Error) => number === latest.current && setLoaded((now) => ({ ...now, problem: error.message, busy: false })));
  }, [key, run.id, step, versus, back]);

  const take = useCallback(
    async (file: File | null | undefined) => {
      if (!file) return;
      const upload = await prepare(file, run.shape);
      setMine((before) => [...before, upload]);
      setSample(`mine/${mine.length}`);
    },
    [run.id, mine.length],
  );
  useEffect(() => {
    const paste = (event: ClipboardEvent) => void take([...(event.clipboardData?.files ?? [])].find((file) => file.type.startsWith("image/")));
    window.addEventListener("paste", paste);
    return () => window.removeEventListener("paste", paste);
  }, [take]);
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    void take(event.dataTransfer?.files[0]);
  };
  const note = chosen && "mine" in chosen ? mine[chosen.mine].note : "";

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
        <label class="st-file"><input type="file" accept="image/png,image/jpeg,image/webp,image/bmp,image/gif" onChange=${(event: Event) => void take((event.target as HTMLInputElement).files?.[0])} /><span>Your image …</span></label>
        <span class="st-quiet">or drop or paste one</span>
        <${Compare} run=${run} step=${step} runs=${runs} value=${versus} onChange=${setVersus} />
        ${total > PAGE
          ? html`<span class="st-pager">
              <button type="button" aria-label="earlier images" disabled=${start === 0} onClick=${() => setStart(Math.max(0, start - PAGE))}>‹</button>
              <span class="st-quiet">${start + 1}–${Math.min(total, start + PAGE)} of ${total.toLocaleString("en")}</span>
              <button type="button" aria-label="further images" disabled=${start + PAGE >= total} onClick=${() => setStart(start + PAGE)}>›</button>
            </span>`
          : null}
      </div>
      <div class="st-strip" role="listbox" aria-label="images">
        ${mine.map(
          (upload, i) => html`<button type="button" role="option" key=${`mine ${i}`} class="st-mine" aria-selected=${chosen !== null && "mine" in chosen && chosen.mine === i} title=${upload.name} onClick=${() => setSample(`mine/${i}`)}>
            ${upload.thumbnail ? html`<img src=${upload.thumbnail} alt=${`your image ${upload.name}`} width="56" height="56" />` : html`<span>${upload.name}</span>`}
          </button>`,
        )}
        ${samples.map(
          (one) => html`<button type="button" role="option" key=${one.address} aria-selected=${isSame(one, chosen)} title=${one.label ?? ""} onClick=${() => setSample(`${one.source}/${one.index}`)}>
            <img src=${one.address} alt=${one.label ?? `image ${one.index}`} width="56" height="56" loading="lazy" />
          </button>`,
        )}
      </div>
      ${note ? html`<p class="st-quiet st-crop">${note}</p>` : null}
      ${other ? html`<p class="st-quiet st-minus">The maps show this network minus ${versus}: purple is more weight, orange is less.</p>` : null}
    </div>
    ${chosen || loaded.problem ? html`<${Shown} ...${loaded}>${told?.guesses ? html`<${Guesses} told=${told} />` : null}<//>` : html`<p class="st-quiet">The data set of this run is not on this machine. Choose your own image.</p>`}
  </section>` as VNode;
}

const isSame = (sample: Sample, chosen: Chosen | null) => chosen !== null && "source" in chosen && chosen.source === sample.source && chosen.index === sample.index;

/** Probabilities as bars on a scale of 100 %. The prediction and the true label are named. */
export function Guesses({ told }: { told: Told }): VNode {
  const guesses = told.guesses ?? [];
  const role = (label: string, i: number) => [i === 0 ? "prediction" : "", label === told.label ? "truth" : ""].filter(Boolean);
  const missing = told.label && !guesses.some(({ label }) => label === told.label);
  return html`<div class="st-guesses" aria-label="predicted classes">
    ${guesses.map(({ label, chance }, i) => {
      const roles = role(label, i);
      return html`<div key=${label} class=${`${i === 0 ? "st-predicted" : ""} ${label === told.label ? "st-right" : ""}`}>
        <span>${label}</span><i><u style=${{ width: `${100 * chance}%` }}></u></i><b>${percent(chance)}</b><em>${roles.join(" and ")}</em>
      </div>`;
    })}
    ${missing ? html`<p class="st-quiet">truth: ${told.label}, less likely than these</p>` : null}
  </div>` as VNode;
}
