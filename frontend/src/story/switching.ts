// Section 4: switch heads off and see how the prediction changes.

import { html, useMemo, useState, type VNode } from "../core/html";
import { type Draw, Picture, pixels } from "../core/canvas";
import { table as colorTable } from "../core/color";
import type { Payload } from "../core/payload";
import { percent } from "../maps/layer";
import { allHeads, bestOf, continueText, networkOf, readable } from "../networks/text";
import type { LayerMap } from "../networks/transformer";
import { letter } from "./letters";
import { Bars, LookBackPicture, NONE, TextField, type TextMeta } from "./typing";

export function SwitchScene({ payload, text, onText }: { payload: Payload<TextMeta>; text: string; onText: (text: string) => void }): VNode {
  const network = useMemo(() => networkOf(payload), [payload]);
  const { tokens } = network.settings;
  const [off, setOff] = useState<ReadonlySet<string>>(NONE);
  const known = readable(network, text) || " ";
  const whole = useMemo(() => continueText(network, known), [network, known]);
  const found = useMemo(() => (off.size ? continueText(network, known, off) : whole), [whole, off]);
  const last = whole.read.length - 1;
  const before = bestOf(whole.chances[last], tokens, 5);
  const best = before[0];
  const guesses = bestOf(found.chances[last], tokens, 5);
  const wanted = tokens.indexOf(best.token);
  // The probability of the best guess with one head switched off, for each head.
  const alone = useMemo(() => new Map(allHeads(network).map(({ name }) => [name, continueText(network, known, new Set([name])).chances[last][wanted]])), [network, known]);
  const swap = (name: string) => setOff(new Set(off.has(name) ? [...off].filter((each) => each !== name) : [...off, name]));
  const layer = (name: string) => setOff(new Set(allOff(name) ? [...off].filter((each) => !each.startsWith(`${name} `)) : [...off, ...allHeads(network).filter((head) => head.layer === name).map((head) => head.name)]));
  const allOff = (name: string) => allHeads(network).filter((head) => head.layer === name).every((head) => off.has(head.name));
  const now = found.chances[last][wanted];
  return html`<div class="rg-switching">
    <div class="rg-bar"><${TextField} label="text" text=${text} longest=${payload.meta.longest} onText=${onText} /></div>
    <${LookBackPicture} network=${network} found=${found} over=${null} onOver=${() => {}} off=${off} />
    <div class="rg-rack">
      <div class="rg-layers" style=${{ "--rg-heads": network.settings.heads }}>
        ${network.layers.map(
          (name, l) => html`<div class="rg-layer" key=${name}>
            <button type="button" class="rg-all" aria-pressed=${allOff(name)} onClick=${() => layer(name)}>layer ${l} <small>${allOff(name) ? "off" : "all"}</small></button>
            ${Array.from({ length: network.settings.heads }, (_, head) => {
              const id = `${name} ${head}`;
              return html`<button type="button" class="rg-head" key=${head} aria-pressed=${off.has(id)} aria-label=${`head ${head} without it ${letter(best.token)}: ${percent(alone.get(id)!)}, layer ${l}, ${off.has(id) ? "off" : "on"}`} onClick=${() => swap(id)}>
                <${Picture} draw=${drawMap(whole.maps[l], head, off.has(id))} height=${(width: number) => width} label="" />
                <span>head ${head}</span> <small>without it ${letter(best.token)}: ${percent(alone.get(id)!)}</small>
              </button>`;
            })}
          </div>`,
        )}
      </div>
      <div class="rg-outcome" aria-live="polite">
        <p>next letter <output class=${guesses[0].token === best.token ? "" : "rg-changed"}>${letter(guesses[0].token)}</output></p>
        <${Bars} guesses=${guesses} before=${off.size ? new Map(tokens.map((token, i) => [token, whole.chances[last][i]])) : undefined} />
        <p class="rg-hint">${off.size ? html`With ${off.size} ${off.size === 1 ? "head" : "heads"} off, ${letter(best.token)} falls from ${percent(best.chance)} to ${percent(now)}. <button type="button" onClick=${() => setOff(NONE)}>all on</button>` : `With all heads, ${letter(best.token)} has ${percent(best.chance)}. Switch some off.`}</p>
      </div>
    </div>
  </div>` as VNode;
}

/** A head's whole map, queries down, keys across. */
function drawMap(map: LayerMap, head: number, off: boolean): Draw {
  return (pen, { width, height }, theme) => {
    const count = map.rows.length;
    const colors = colorTable(theme.heat);
    const image = pixels(count, count, (i) => {
      const [q, k] = [Math.floor(i / count), i % count];
      return colors[k > q ? 0 : Math.round(255 * Math.sqrt(map.rows[q][head * (q + 1) + k]))];
    });
    pen.imageSmoothingEnabled = false;
    pen.globalAlpha = off ? 0.18 : 1;
    pen.drawImage(image, 0, 0, width, height);
    pen.globalAlpha = 1;
    pen.strokeStyle = theme.line;
    pen.strokeRect(0.5, 0.5, width - 1, height - 1);
    if (!off) return;
    pen.strokeStyle = theme.warn;
    pen.lineWidth = 3;
    pen.beginPath();
    pen.moveTo(4, height - 4);
    pen.lineTo(width - 4, 4);
    pen.stroke();
  };
}
