// Training curves of a run, with curves of other runs for comparison.

import { html, useEffect, useState, type VNode } from "../core/html";
import { Select } from "../core/controls";
import { useTheme } from "../core/theme";
import { lineOf } from "../maps/legend";
import type { Line, Overlaid } from "../views/chart";
import { Curves } from "../views/training";
import { api, type RunDetail, type RunSummary, type State } from "./api";
import { studioHost } from "./host";
import { useChoice } from "./route";

const WORDS: Record<State, string> = { training: "training now", finished: "finished", stopped: "not finished" };

const MOST = 5; // other runs in the chart

/** The metrics of other runs; each is requested once. */
function useOthers(ids: string[], runs: RunSummary[]): Overlaid[] {
  const [known, setKnown] = useState<Record<string, Line[]>>({});
  useEffect(() => {
    let gone = false;
    const read = async (id: string) => {
      let [lines, offset, more] = [[] as Line[], 0, true];
      while (more && !gone) {
        const piece = await api.metrics(id, offset);
        lines = lines.concat(piece.lines);
        [offset, more] = [piece.offset, piece.more];
      }
      if (!gone) setKnown((now) => ({ ...now, [id]: lines }));
    };
    for (const id of ids) if (!(id in known)) read(id).catch(() => gone || setKnown((now) => ({ ...now, [id]: [] })));
    return () => {
      gone = true;
    };
  }, [ids.join(" ")]);
  return ids.filter((id) => id in known).map((id) => ({ id, title: runs.find((one) => one.id === id)?.title ?? id, lines: known[id] }));
}

export interface CurvesViewProps {
  lines: Line[];
  state: State | null;
  run: RunDetail;
  runs: RunSummary[];
}

export function CurvesView({ lines, state, run, runs }: CurvesViewProps): VNode {
  const [beside, setBeside] = useChoice("beside");
  const ids = (beside ?? "").split(",").filter((id) => id && id !== run.id).slice(0, MOST);
  const others = useOthers(ids, runs);
  const choices = [...runs].sort((a, b) => Number(b.recipe === run.recipe) - Number(a.recipe === run.recipe)).filter((one) => one.id !== run.id && !ids.includes(one.id) && one.problem === null);
  const more = choices.length && ids.length < MOST ? html`<${Select} label="compare with" value="" options=${[["", "another run …"], ...choices.slice(0, 200).map((one) => [one.id, one.title])]} onChange=${(id: string) => id && setBeside([...ids, id].join(","))} />` : null;
  return html`<${Curves} lines=${lines} host=${studioHost} words=${state === null ? "" : WORDS[state]} others=${others} controls=${more}>
    ${ids.length ? html`<${Overlays} others=${others} onRemove=${(id: string) => setBeside(ids.filter((one) => one !== id).join(",") || null)} />` : null}
  <//>` as VNode;
}

/** The legend of the other runs; a click removes one. */
function Overlays({ others, onRemove }: { others: Overlaid[]; onRemove: (id: string) => void }): VNode {
  const theme = useTheme();
  return html`<div class="rg-legend" role="group" aria-label="other runs in the chart">
    ${others.map(({ id, title, lines }, i) => {
      const { color, dash } = lineOf(i + 2, theme);
      return html`<button type="button" key=${id} title="remove" onClick=${() => onRemove(id)}>
        <svg viewBox="0 0 18 6" width="18" height="6" aria-hidden="true"><path d="M0 3h18" stroke=${color} stroke-width="4" stroke-dasharray=${dash.join(" ")} /></svg>${title}${lines.length ? "" : " (no data)"} ×
      </button>`;
    })}
  </div>` as VNode;
}
