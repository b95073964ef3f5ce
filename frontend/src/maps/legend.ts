// The legend of heads, as buttons: a click turns a head on or off, a double-click shows it alone.

import { html, type VNode } from "../core/html";
import { categorical } from "../core/color";
import { type Theme, useTheme } from "../core/theme";

/** A color for each head; after the seventh head also a dash pattern. */
const DASHES = [[], [7, 4], [2, 4]];
export const lineOf = (head: number, theme: Theme) => ({ color: [...categorical.slice(0, 6), theme.muted][head % 7], dash: DASHES[Math.floor(head / 7) % 3] });

/** The hidden heads after a click on one: it is toggled, or shown alone; if it was already alone, all are shown. */
export function clicked(off: ReadonlySet<number>, count: number, head: number, alone: boolean): Set<number> {
  const all = Array.from({ length: count }, (_, i) => i);
  if (!alone) {
    const next = new Set(off);
    if (!next.delete(head)) next.add(head);
    return next.size === count ? new Set() : next;
  }
  const isAlone = !off.has(head) && off.size === count - 1;
  return new Set(isAlone ? [] : all.filter((i) => i !== head));
}

export interface LegendProps {
  names: string[];
  off: ReadonlySet<number>;
  onChange: (off: Set<number>) => void;
}

export function Legend({ names, off, onChange }: LegendProps): VNode {
  const theme = useTheme();
  return html`<div class="rg-legend" role="group" aria-label="heads">
    ${names.map((name, head) => {
      const { color, dash } = lineOf(head, theme);
      const press = (event: MouseEvent) => onChange(clicked(event.detail === 2 ? new Set() : off, names.length, head, event.shiftKey || event.detail === 2));
      return html`<button type="button" key=${head} aria-pressed=${!off.has(head)} aria-label=${`head ${name}`} title="click: on or off; double-click or Shift + click: this head alone" onClick=${press}>
        <svg viewBox="0 0 18 6" width="18" height="6" aria-hidden="true"><path d="M0 3h18" stroke=${color} stroke-width="4" stroke-dasharray=${dash.join(" ")} /></svg>${name}
      </button>`;
    })}
    ${off.size ? html`<button type="button" onClick=${() => onChange(new Set())}>all heads</button>` : null}
  </div>` as VNode;
}
