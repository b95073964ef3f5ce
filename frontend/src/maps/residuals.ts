// Every map with its residual: the difference from the output that the model computed.

import { html } from "../core/html";
import { type LayerAbout, residualNumber, residualText } from "./layer";

export function Residuals({ layers, current, notes }: { layers: LayerAbout[]; current: number; notes: string[] }) {
  const about = layers[current];
  const wrong = layers.filter((layer) => !layer.agrees).length;
  return html`
    <span class=${about.agrees ? "" : "rg-warn"}><b class="rg-mono">${about.name}</b> ${residualText(about)}</span>
    ${about.kernel ? html`<span>kernel <span class="rg-mono">${about.kernel}</span></span>` : null}
    ${about.calls > 1 ? html`<span>${about.joined ? `rows of ${about.calls} calls, concatenated` : `the latest of ${about.calls} calls`}</span>` : null}
    <details class="rg-residuals">
      <summary>${layers.length === 1 ? "the map" : `all ${layers.length} maps`}${wrong ? html`, <span class="rg-warn">${wrong} not reproduced</span>` : null}</summary>
      <div class="rg-scroll">
        <table>
          <thead><tr><th>map</th><th>heads</th><th>queries × keys</th><th>residual</th><th>against</th><th>found by</th></tr></thead>
          <tbody>
            ${layers.map(
              (layer) => html`<tr class=${layer.agrees ? "" : "rg-warn"}>
                <td class="rg-mono">${layer.name}</td>
                <td>${layer.heads.length}</td>
                <td>${layer.queries} × ${layer.keys}</td>
                <td>${layer.residual === null ? "–" : residualNumber(layer.residual)}</td>
                <td>${layer.against}</td>
                <td>${layer.kernel ?? layer.kind}</td>
              </tr>`,
            )}
          </tbody>
        </table>
      </div>
    </details>
    ${notes.map((note) => html`<span>${note}</span>`)}
  `;
}
