// Claims about attention: the verdict on each statement, its derivation and the evidence.

import { html, useEffect, useMemo, useRef, useState, type VNode } from "../core/html";
import { type Draw, Picture, type Size } from "../core/canvas";
import { Button, Select, Toggle } from "../core/controls";
import { Frame } from "../core/frame";
import type { Host } from "../core/host";
import type { Key } from "../core/keys";
import { recalled, remember, useRecalled } from "../core/memory";
import type { Mode } from "../core/theme";
import type { ViewProps } from "./index";
import { brief } from "./maths/words";
import style from "./claims.css";
import { useSheet } from "./sheet";

type Verdict = "holds" | "holds under" | "fails";

interface Part {
  name: string;
  accepted: boolean;
  line: string;
  counterexample: string;
  numbers: [string, string][];
}

interface Found {
  agrees: boolean;
  line: string;
  seconds: number;
  parts: Part[];
  picture: { address: string; words: string } | null;
}

/** A theorem of proofs/ that a proof assistant has checked. */
interface Theorem {
  name: string;
  file: string;
  says: string;
  does: "proves" | "refutes";
}

/** Texts with formulas are HTML made by Python: escaped text and MathML. */
interface Claim {
  id: string;
  topic: string;
  source: string;
  place: string;
  verdict: Verdict;
  slow: boolean;
  statement: string;
  plain: string;
  condition: string | null;
  instead: string | null;
  mutant: string;
  derivation: string;
  proved: Theorem[];
  found?: Found;
}

const VERDICTS: Verdict[] = ["holds", "holds under", "fails"];
const SIGNS: Record<Verdict, string> = { holds: "✓", "holds under": "◐", fails: "✗" };
const WORDS: Record<Verdict, string> = { holds: "holds", "holds under": "holds under a condition", fails: "fails" };
const KINDS: Record<Verdict, string> = { holds: "rg-holds", "holds under": "rg-under", fails: "rg-fails" };
const COLORS: Record<Mode, Record<Verdict, string>> = {
  light: { holds: "#0072b2", "holds under": "#e69f00", fails: "#d55e00" },
  dark: { holds: "#56b4e9", "holds under": "#f2b632", fails: "#ff8a4c" },
};

export function ClaimsView({ payload, host }: ViewProps): VNode {
  const { claims, topics, sources } = payload.meta as { claims: Claim[]; topics: string[]; sources: Record<string, string> };
  const [verdicts, setVerdicts] = useState<Verdict[]>([]);
  const [wrong, setWrong] = useState(false);
  const [source, setSource] = useState("all");
  const [words, setWords] = useState("");
  const listed = (choices: Record<string, string>) => new Set((choices.open ?? "").split(",").filter((id) => claims.some((claim) => claim.id === id)));
  const [open, setShown] = useState<Set<string>>(() => listed(recalled(host, "claims")));
  useRecalled(host, "claims", (choices) => setShown(listed(choices)));
  // The open statements are kept in the address, unless there are too many to read.
  const setOpen = (next: Set<string>) => {
    setShown(next);
    remember(host, "claims", { open: next.size && next.size <= 12 ? [...next].join(",") : null }, true);
  };
  const place = useRef<HTMLDivElement>(null);
  useSheet(place, style);

  const shown = useMemo(() => {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    return claims.filter((claim) => {
      const text = `${claim.id} ${claim.topic} ${claim.plain} ${claim.place}`.toLowerCase();
      return (
        (!verdicts.length || verdicts.includes(claim.verdict)) &&
        (!wrong || claim.verdict !== "holds") &&
        (source === "all" || claim.source === source) &&
        wanted.every((word) => text.includes(word))
      );
    });
  }, [claims, verdicts, wrong, source, words]);
  const count = (verdict: Verdict) => claims.filter((claim) => claim.verdict === verdict).length;
  const toggle = (id: string) => {
    const next = new Set(open);
    if (!next.delete(id)) next.add(id);
    setOpen(next);
  };
  const visit = (id: string) => {
    setOpen(new Set([...open, id]));
    requestAnimationFrame(() => place.current?.querySelector(`[data-claim="${id}"]`)?.scrollIntoView({ block: "center", behavior: "smooth" }));
  };
  useEffect(() => {
    const first = [...open][0];
    if (first) requestAnimationFrame(() => place.current?.querySelector(`[data-claim="${first}"]`)?.scrollIntoView({ block: "center" }));
  }, []);
  const filter = (verdict: Verdict) => setVerdicts(verdicts.includes(verdict) ? verdicts.filter((v) => v !== verdict) : [...verdicts, verdict]);
  const search = useRef<HTMLInputElement>(null);
  const keys: Key[] = [
    { keys: ["/"], means: "search", run: () => search.current?.focus() },
    { keys: ["m"], means: "show misconceptions only, or all", run: () => setWrong(!wrong) },
    { keys: ["e"], means: "open or close all statements shown", run: () => setOpen(open.size ? new Set() : new Set(shown.map(({ id }) => id))) },
  ];
  const subtitle = `${claims.length} statements from course material: ${VERDICTS.map((v) => `${count(v)} ${v === "holds" ? "hold" : v === "fails" ? "fail" : "hold under a condition"}`).join(", ")}`;

  return html`<${Frame} name="claims" title="Claims about attention" subtitle=${subtitle} host=${host} keys=${keys}
    footer=${html`<span>A computation decides each statement, and the same computation rejects a wrong variant of it.</span><span>regard verify --id NAME</span>`}>
    <div ref=${place} class="rg-claims">
      <${Ledger} claims=${claims} topics=${topics} shown=${shown} visit=${visit} />
      <div class="rg-filters">
        <input ref=${search} type="search" placeholder="search the statements" aria-label="search the statements" value=${words} onInput=${(event: InputEvent) => setWords((event.target as HTMLInputElement).value)} />
        ${VERDICTS.map(
          (verdict) => html`<${Button} key=${verdict} pressed=${verdicts.includes(verdict)} label=${`${SIGNS[verdict]} ${WORDS[verdict]}: those that ${verdict === "holds" ? "hold" : verdict === "fails" ? "fail" : "hold under a condition"}`} onClick=${() => filter(verdict)}>
            <span>${SIGNS[verdict]} ${WORDS[verdict]}</span>
          <//>`,
        )}
        <${Toggle} label="misconceptions only" checked=${wrong} onChange=${setWrong} />
        <${Select} label="source" value=${source} options=${[["all", "all sources"], ...Object.entries(sources)]} onChange=${setSource} />
      </div>
      ${shown.length ? null : html`<p class="rg-hint">No statement matches these filters.</p>`}
      ${topics.map((topic) => {
        const here = shown.filter((claim) => claim.topic === topic);
        return here.length
          ? html`<section key=${topic}>
              <h3 class="rg-topic">${topic} <span class="rg-hint">${here.length}</span></h3>
              ${here.map((claim) => html`<${Entry} key=${claim.id} claim=${claim} source=${sources[claim.source]} open=${open.has(claim.id)} toggle=${() => toggle(claim.id)} host=${host} />`)}
            </section>`
          : null;
      })}
    </div>
  <//>` as VNode;
}

interface EntryProps {
  claim: Claim;
  source: string;
  open: boolean;
  toggle: () => void;
  host: Host;
}

function Entry({ claim, source, open, toggle, host }: EntryProps) {
  const [found, setFound] = useState<Found | null>(claim.found ?? null);
  const [problem, setProblem] = useState("");
  const ask = open && !found && !claim.slow && !problem && host.more !== undefined;
  useEffect(() => {
    if (!ask) return;
    let gone = false;
    host.more!("evidence", { id: claim.id })
      .then((answer) => gone || setFound(answer.meta.found as Found))
      .catch((error: Error) => gone || setProblem(error.message));
    return () => {
      gone = true;
    };
  }, [ask]);
  return html`<article class=${`rg-claim ${KINDS[claim.verdict]}`} data-claim=${claim.id}>
    <button type="button" aria-expanded=${open} onClick=${toggle}>
      <span class="rg-verdict">${SIGNS[claim.verdict]} ${claim.verdict}</span>
      <span class="rg-statement" dangerouslySetInnerHTML=${{ __html: claim.statement }}></span>
      <span class="rg-id">${claim.id} · ${source}, ${claim.place}${claim.proved.length ? html` · <span class="rg-checked">∎ machine-checked</span>` : null}</span>
    </button>
    ${open
      ? html`<div class=${`rg-body ${found?.picture ? "rg-two" : ""}`}>
          <div>
            ${truth(claim)}
            <h4>Why</h4>
            <div dangerouslySetInnerHTML=${{ __html: claim.derivation }}></div>
            ${checked(claim)}
          </div>
          <div>
            <h4>Evidence</h4>
            ${evidence(claim, found, problem, ask)}
          </div>
        </div>`
      : null}
  </article>`;
}

function truth({ condition, instead }: Claim) {
  const text = condition ?? instead;
  if (text === null) return null;
  return html`<h4>${condition === null ? "What is true instead" : "It holds under this condition"}</h4>
    <p class="rg-true" dangerouslySetInnerHTML=${{ __html: text }}></p>`;
}

function checked({ proved }: Claim) {
  if (!proved.length) return null;
  return html`<h4>Machine-checked</h4>
    <ul class="rg-proofs">
      ${proved.map(
        (theorem) => html`<li>
          <b>${theorem.does === "refutes" ? "refuted:" : "proved:"}</b> <span dangerouslySetInnerHTML=${{ __html: theorem.says }}></span> <code>proofs/${theorem.file}: ${theorem.name}</code>
        </li>`,
      )}
    </ul>`;
}

function evidence(claim: Claim, found: Found | null, problem: string, asking: boolean) {
  if (problem) return html`<p class="rg-problem" role="alert">${problem}</p>`;
  if (!found) {
    if (claim.slow) return html`<p>This check trains a model, which takes minutes. Run <code>regard verify --slow --id ${claim.id}</code></p>`;
    return html`<p>${asking ? "Checking it now …" : html`Not checked here. Run <code>regard verify --id ${claim.id}</code>`}</p>`;
  }
  return html`
    ${found.agrees ? null : html`<p class="rg-problem" role="alert">The evidence contradicts the recorded verdict.</p>`}
    ${found.picture ? html`<p><img src=${found.picture.address} alt=${found.picture.words} /></p>` : null}
    ${found.parts.map(
      (part) => html`<div class="rg-part">
        <strong class=${part.accepted ? "rg-holds" : "rg-fails"}><span class="rg-verdict">${part.accepted ? "✓" : "✗"}</span></strong>
        <p><b>${part.name}</b> ${part.accepted ? "accepted" : "rejected"}: ${part.line}</p>
        ${part.name === "the wrong variant" ? html`<p class="rg-numbers">It says: <span dangerouslySetInnerHTML=${{ __html: claim.mutant }}></span>.</p>` : null}
        ${part.counterexample ? html`<p class="rg-numbers">Smallest counterexample: ${part.counterexample}</p>` : null}
        <p class="rg-numbers">${part.numbers.map(([name, value]) => `${name} ${value}`).join(" · ")}</p>
      </div>`,
    )}
    <p class="rg-hint">Checked in ${brief(found.seconds, 2)} s.</p>
  `;
}

interface LedgerProps {
  claims: Claim[];
  topics: string[];
  shown: Claim[];
  visit: (id: string) => void;
}

const LABEL = 92;
const LINE = 26;

/** An overview of all statements: a square for each, by topic. */
function Ledger({ claims, topics, shown, visit }: LedgerProps) {
  const [over, setOver] = useState<Claim | null>(null);
  const rows = topics.map((topic) => claims.filter((claim) => claim.topic === topic).sort((a, b) => VERDICTS.indexOf(a.verdict) - VERDICTS.indexOf(b.verdict)));
  const most = Math.max(1, ...rows.map((row) => row.length));
  const side = (size: Size) => Math.min(LINE - 4, (size.width - LABEL) / most - 3);
  const at = (x: number, y: number, size: Size): Claim | null => rows[Math.floor(y / LINE)]?.[Math.floor((x - LABEL) / (side(size) + 3))] ?? null;
  const draw: Draw = (pen, size, theme) => {
    const square = side(size);
    rows.forEach((row, i) => {
      pen.font = `13px ${theme.font}`;
      pen.fillStyle = theme.muted;
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      pen.fillText(topics[i], 0, LINE * i + LINE / 2);
      row.forEach((claim, j) => {
        const x = LABEL + j * (square + 3);
        const y = LINE * i + (LINE - square) / 2;
        pen.globalAlpha = shown.includes(claim) ? 1 : 0.18;
        pen.fillStyle = COLORS[theme.mode][claim.verdict];
        pen.fillRect(x, y, square, square);
        pen.font = `600 ${Math.max(8, square * 0.6)}px ${theme.font}`;
        pen.textAlign = "center";
        pen.fillStyle = theme.mode === "light" && claim.verdict === "holds" ? "#fff" : "#111";
        pen.fillText(SIGNS[claim.verdict], x + square / 2, y + square / 2 + 1);
        pen.globalAlpha = 1;
        if (claim === over) {
          pen.strokeStyle = theme.ink;
          pen.lineWidth = 2;
          pen.strokeRect(x - 1, y - 1, square + 2, square + 2);
        }
      });
    });
  };
  const total: Draw = (pen, size, theme) => {
    draw(pen, size, theme);
    const right = LABEL + most * (side(size) + 3) + 40;
    if (size.width - right < 230 || topics.length < 4) return;
    VERDICTS.forEach((verdict, i) => {
      const y = (LINE * topics.length * (i + 0.5)) / 3;
      pen.font = `650 34px ${theme.font}`;
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillStyle = COLORS[theme.mode][verdict];
      pen.fillText(String(claims.filter((claim) => claim.verdict === verdict).length), right + 46, y);
      pen.font = `14px ${theme.font}`;
      pen.textAlign = "left";
      pen.fillStyle = theme.ink;
      pen.fillText(`${SIGNS[verdict]}  ${WORDS[verdict].replace("holds", "hold").replace("fails", "fail")}`, right + 60, y);
    });
  };
  return html`<div>
    <${Picture} draw=${total} height=${LINE * topics.length} cursor=${over ? "pointer" : "default"} label="a square for each statement, by topic and verdict"
      onPoint=${(x: number, y: number, _: Event, size: Size) => setOver(at(x, y, size))} onLeave=${() => setOver(null)}
      onPress=${(x: number, y: number, _: Event, size: Size) => {
        const claim = at(x, y, size);
        if (claim) visit(claim.id);
      }} />
    <p class="rg-hint">${over ? `${SIGNS[over.verdict]} ${over.id}: ${over.plain}` : "Point at a square to read it; click to open it."}</p>
  </div>`;
}
