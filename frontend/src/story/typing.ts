// Section 3: type a sentence and see what the network, which runs in the browser, writes and where it looks.

import { html, useMemo, useState, type VNode } from "../core/html";
import { Picture, type Size } from "../core/canvas";
import { Choice, useId } from "../core/controls";
import type { Payload } from "../core/payload";
import { useTheme } from "../core/theme";
import { percent } from "../maps/layer";
import { bestOf, changeCase, type Continued, continueText, type Guess, networkOf, readable } from "../networks/text";
import type { LayerMap, Transformer } from "../networks/transformer";
import { ALIGNMENT_HEIGHT, drawAlignment, drawLookBack, letter, letterAt, LOOK_BACK_HEIGHT } from "./letters";
import { headColor } from "./section";

export interface TextMeta {
  name: string;
  heads: number;
  longest: number;
  suggestion: string;
  parameters: number;
  accuracy: number | null;
  seconds: number | null;
  command: string | null;
}

interface FieldProps {
  label: string;
  text: string;
  longest: number;
  onText: (text: string) => void;
}

export function TextField({ label, text, longest, onText }: FieldProps): VNode {
  const id = useId();
  return html`<div class="rg-field">
    <label for=${id}>${label}</label>
    <input id=${id} type="text" value=${text} maxlength=${longest} spellcheck=${false} autocomplete="off" autocapitalize="off" onInput=${(event: InputEvent) => onText((event.target as HTMLInputElement).value)} />
  </div>` as VNode;
}

/** The best guesses as bars. */
export function Bars({ guesses, before }: { guesses: Guess[]; before?: Map<string, number> | undefined }): VNode {
  return html`<ol class="rg-bars">
    ${guesses.map(({ token, chance }, i) => {
      const was = before?.get(token);
      return html`<li key=${i} class=${i ? "" : "rg-first"}><b>${letter(token)}</b><i><u style=${{ width: `${100 * chance}%` }}></u>${was === undefined ? null : html`<s style=${{ left: `${100 * was}%` }}></s>`}</i><span>${percent(chance)}</span></li>`;
    })}
  </ol>` as VNode;
}

export function CaseScene({ payload, text, onText }: { payload: Payload<TextMeta>; text: string; onText: (text: string) => void }): VNode {
  const network = useMemo(() => networkOf(payload), [payload]);
  const [marker, setMarker] = useState<"<U>" | "<L>">("<U>");
  const [over, setOver] = useState<number | null>(null);
  const known = readable(network, text);
  const found = useMemo(() => (known ? changeCase(network, known, marker) : null), [network, known, marker]);
  const weights = useMemo(() => (found ? alignment(found.maps) : []), [found]);
  const said = found ? found.written.filter((token) => token !== "<end>").join("") : "";
  const wanted = marker === "<U>" ? known.toUpperCase() : known.toLowerCase();
  const at = over !== null && found && over < found.written.length ? over : null;
  const point = (x: number, _: number, __: unknown, size: Size) => found && setOver(inside(letterAt(Math.max(found.read.length, found.written.length), x, size), found.written.length));
  return html`<div class="rg-typing" data-network="case">
    <div class="rg-bar">
      <${TextField} label="your sentence" text=${text} longest=${payload.meta.longest} onText=${onText} />
      <${Choice} label="what it should do" value=${marker} options=${[["<U>", "IN CAPITALS"], ["<L>", "in small letters"]]} onChange=${setMarker} />
    </div>
    ${found
      ? html`<${Picture} draw=${drawAlignment({ read: found.read, written: found.written, weights, over: at })} height=${ALIGNMENT_HEIGHT} label=${`the network read ${known} and wrote ${said}`} cursor="pointer" focusable onPoint=${point} onPress=${point} onLeave=${() => setOver(null)} onKey=${(key: string) => step(key, over, found.written.length, setOver)} />
          <div class="rg-answer">
            <p>It writes <output>${said || "nothing"}</output> ${said === wanted ? html`<em class="rg-good">✓</em>` : html`<em class="rg-bad">✗</em> <small>expected ${wanted}</small>`}</p>
            ${at === null ? html`<p class="rg-hint">Point at a written letter: the lines show which letters it was read from.</p>` : html`<${Bars} guesses=${found.guesses[at].slice(0, 3)} />`}
          </div>`
      : html`<p class="rg-hint">The network knows only letters and spaces.</p>`}
  </div>` as VNode;
}

const inside = (at: number | null, count: number) => (at !== null && at < count ? at : null);

function step(key: string, now: number | null, count: number, go: (to: number) => void): boolean {
  if (key !== "ArrowLeft" && key !== "ArrowRight") return false;
  go(Math.min(count - 1, Math.max(0, now === null ? (key === "ArrowRight" ? 0 : count - 1) : now + (key === "ArrowRight" ? 1 : -1))));
  return true;
}

/** The cross-attention of the last layer, averaged over heads. */
function alignment(maps: LayerMap[]): Float32Array[] {
  const { heads, rows } = maps.filter(({ name }) => name.endsWith("cross_attention")).slice(-1)[0];
  return rows.map((row) => {
    const keys = row.length / heads;
    return Float32Array.from({ length: keys }, (_, k) => Array.from({ length: heads }, (_, h) => row[h * keys + k]).reduce((a, b) => a + b) / heads);
  });
}

export interface LookBackProps {
  network: Transformer;
  found: Continued;
  /** The query letter; null for the last. */
  over: number | null;
  onOver: (at: number | null) => void;
  off: ReadonlySet<string>;
}

/** A text, the arcs of the last layer's heads that are on, and the predicted next letter. */
export function LookBackPicture({ network, found, over, onOver, off }: LookBackProps): VNode {
  const theme = useTheme();
  const from = Math.min(over ?? Infinity, found.read.length - 1);
  const last = found.maps[found.maps.length - 1];
  const heads = Array.from({ length: last.heads }, (_, head) => head)
    .filter((head) => !off.has(`${last.name} ${head}`))
    .map((head) => ({ color: headColor(head * 3, theme.mode === "light"), weights: last.rows[from].subarray(head * (from + 1), (head + 1) * (from + 1)) }));
  const next = bestOf(found.chances[from], network.settings.tokens, 1)[0].token;
  const point = (x: number, _: number, __: unknown, size: Size) => onOver(inside(letterAt(found.read.length + 1, x, size), found.read.length));
  return html`<${Picture} draw=${drawLookBack({ read: found.read, from, heads, next })} height=${LOOK_BACK_HEIGHT} label=${`after ${found.read.slice(0, from + 1).join("")} comes ${letter(next)}; lines show where the heads look`} cursor="pointer" focusable onPoint=${point} onPress=${point} onLeave=${() => onOver(null)} onKey=${(key: string) => step(key, over, found.read.length, onOver)} />` as VNode;
}

export function NextScene({ payload, text, onText }: { payload: Payload<TextMeta>; text: string; onText: (text: string) => void }): VNode {
  const network = useMemo(() => networkOf(payload), [payload]);
  const [over, setOver] = useState<number | null>(null);
  const known = readable(network, text);
  const found = useMemo(() => (known ? continueText(network, known) : null), [network, known]);
  const from = found ? Math.min(over ?? Infinity, found.read.length - 1) : 0;
  return html`<div class="rg-typing" data-network="next">
    <div class="rg-bar"><${TextField} label="your text" text=${text} longest=${payload.meta.longest} onText=${onText} /></div>
    ${found
      ? html`<${LookBackPicture} network=${network} found=${found} over=${over} onOver=${setOver} off=${NONE} />
          <div class="rg-answer">
            <p>After <output>${found.read.slice(0, from + 1).slice(-12).map(letter).join("")}</output> it expects</p>
            <${Bars} guesses=${bestOf(found.chances[from], network.settings.tokens, 4)} />
          </div>`
      : html`<p class="rg-hint">The network knows only lowercase letters and spaces.</p>`}
  </div>` as VNode;
}

export const NONE: ReadonlySet<string> = new Set();
