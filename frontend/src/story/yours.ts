// Section 6: three lines of code, and the view that they produced.

import { html, useMemo, type VNode } from "../core/html";
import type { Host } from "../core/host";
import type { Payload } from "../core/payload";
import { ImageView } from "../views/image";
import { TokensView } from "../views/tokens";

const NAMES = /\b(with|as|import)\b/g;

export function YoursScene({ payload, host }: { payload: Payload<any>; host: Host }): VNode {
  const View = payload.view === "tokens" ? TokensView : ImageView;
  const lines = useMemo(() => String(payload.meta.code).split("\n"), [payload]);
  return html`<div class="rg-yours">
    <pre class="rg-code" tabindex="0" aria-label="Python code"><code>${lines.map((line) => html`<span>${colored(line)}${"\n"}</span>`)}</code></pre>
    <${View} payload=${payload} host=${{ kind: "notebook", save: host.save }} />
  </div>` as VNode;
}

/** Keywords stand out. */
function colored(line: string): (string | VNode)[] {
  const parts = line.split(NAMES);
  return parts.map((part, i) => (i % 2 ? (html`<b>${part}</b>` as VNode) : part));
}
