// The user's own model: takes a text or an image, shows its maps and its answer.

import { html, useContext, useEffect, useRef, useState, type VNode } from "../core/html";
import { recalled, remember } from "../core/memory";
import { api, type ModelAbout, type Told } from "./api";
import { studioHost } from "./host";
import { Guesses } from "./image";
import { prepare, type Upload } from "./upload";
import { Back, EMPTY, type Loaded, Shown } from "./views";

const PAUSE = 350; // milliseconds without a key before the model is asked

export function ModelPage({ model }: { model: ModelAbout }): VNode {
  const [text, setText] = useState(() => recalled(studioHost, "").text ?? model.suggestion ?? "");
  const [mine, setMine] = useState<Upload[]>([]);
  const [chosen, setChosen] = useState(-1);
  const [loaded, setLoaded] = useState<Loaded>(EMPTY);
  const latest = useRef(0);
  const back = useContext(Back);
  useEffect(() => {
    document.title = `${model.name} · regard studio`;
  }, [model.name]);
  useEffect(() => {
    const number = ++latest.current;
    if (model.takes === "text") remember(studioHost, "", { text: text === model.suggestion ? null : text });
    if (model.takes === "text" && !text.trim()) return setLoaded((now) => ({ ...now, problem: "Type a text.", busy: false }));
    if (model.takes === "image" && chosen < 0) return;
    const ask = { text: () => api.modelText(text), image: () => api.modelImage(mine[chosen].content), nothing: () => api.modelMaps() }[model.takes];
    setLoaded((now) => ({ ...now, problem: "", busy: true }));
    const timer = setTimeout(
      () =>
        ask()
          .then((payload) => number === latest.current && setLoaded({ payload, problem: "", busy: false }))
          .catch((error: Error) => number === latest.current && setLoaded((now) => ({ ...now, problem: error.message, busy: false }))),
      model.takes === "text" && loaded.payload ? PAUSE : 0,
    );
    return () => clearTimeout(timer);
  }, [text, chosen, back]);
  const take = async (file: File | null | undefined) => {
    if (!file) return;
    const upload = await prepare(file, null);
    setMine((before) => [...before, upload]);
    setChosen(mine.length);
  };
  const told = (loaded.payload?.meta as { studio?: Told } | undefined)?.studio;
  return html`<main class="st-page" onDragOver=${(event: DragEvent) => event.preventDefault()} onDrop=${(event: DragEvent) => (event.preventDefault(), void take(event.dataTransfer?.files[0]))}>
    <header class="st-run"><h1>${model.name}</h1></header>
    ${model.takes === "text" ? html`<div class="st-sentence"><input type="text" aria-label="text" value=${text} spellcheck=${false} onInput=${(event: InputEvent) => setText((event.target as HTMLInputElement).value)} /></div>` : null}
    ${model.takes === "image"
      ? html`<div class="st-picker"><div class="st-bar">
            <label class="st-file"><input type="file" accept="image/*" onChange=${(event: Event) => void take((event.target as HTMLInputElement).files?.[0])} /><span>Your image …</span></label>
            <span class="st-quiet">or drop one</span>
          </div>
          <div class="st-strip" role="listbox" aria-label="images">
            ${mine.map((upload, i) => html`<button type="button" role="option" key=${i} class="st-mine" aria-selected=${i === chosen} title=${upload.name} onClick=${() => setChosen(i)}>${upload.thumbnail ? html`<img src=${upload.thumbnail} alt=${`your image ${upload.name}`} width="56" height="56" />` : html`<span>${upload.name}</span>`}</button>`)}
          </div></div>`
      : null}
    ${loaded.payload || loaded.problem || loaded.busy ? html`<${Shown} ...${loaded}>${told?.guesses ? html`<${Guesses} told=${told} />` : null}<//>` : html`<p class="st-quiet">Choose an image to see where the model looks.</p>`}
  </main>` as VNode;
}
