// The server's API (see /api/openapi.json). The page asks nothing else.

import { decodeBody, type Payload } from "../core/payload";
import type { Line } from "../views/chart";

export type State = "training" | "finished" | "stopped";
export type ViewName = "heads" | "image" | "tokens";

export interface RunSummary {
  id: string;
  title: string;
  recipe: string | null;
  kind: "image" | "case" | "text" | "other";
  state: State;
  views: ViewName[];
  example: boolean;
  step: number | null;
  accuracy: number | null;
  modified: number;
  problem: string | null;
}

export interface RunDetail extends RunSummary {
  settings: Record<string, unknown>;
  summary: Record<string, unknown> | null;
  checkpoints: { step: number; score: number | null }[];
  shape: [number, number, number] | null;
  classes: string[];
  samples: Partial<Record<Source, number>>;
  suggestion: string | null;
}

export interface Metrics {
  lines: Line[];
  offset: number;
  more: boolean;
  anew: boolean;
  state: State;
  heads: number;
  checkpoint: number | null;
}

export type Source = "test" | "shipped";

export interface Sample {
  source: Source;
  index: number;
  label: string | null;
  address: string;
}

export interface ModelAbout {
  name: string;
  takes: "text" | "image" | "nothing";
  suggestion: string | null;
}

export interface About {
  version: string;
  folder: string;
  model: ModelAbout | null;
}

/** Extra information for the views of the studio, beside their data. */
export interface Told {
  run: string;
  step: number;
  label?: string | null;
  guesses?: Guess[];
  masked?: Guess[][];
  said?: string;
  answer?: string;
  right?: boolean;
}

export interface Guess {
  label: string;
  chance: number;
}

/** Shown once, at the top of the page; the event is sent when a request gets no answer. */
export const UNREACHABLE = "The server does not answer. Is regard studio still running? This page reconnects by itself.";
export const LOST = "regard-server-lost";

async function ask(address: string, options: RequestInit = {}): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(address, options);
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    window.dispatchEvent(new Event(LOST));
    throw new Error(UNREACHABLE);
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  throw new Error(said?.error ? sentence(said.error) : `The server answered ${answer.status}.`);
}

/** The server's message as a sentence. A message that starts with the name of a run or file keeps its case. */
export const sentence = (text: string) =>
  (/^(the|there|an?|no|its?|this|that) /.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text) + (/[.!?]$/.test(text) ? "" : ".");
const json = async <T>(address: string, options?: RequestInit) => (await ask(address, options)).json() as Promise<T>;
const binary = async (address: string, options?: RequestInit) => decodeBody(await (await ask(address, options)).arrayBuffer());
const run = (id: string) => `/api/runs/${encodeURIComponent(id)}`;
const at = (step: number | null) => (step === null ? "" : `?step=${step}`);

export const api = {
  about: () => json<About>("/api/about"),
  runs: () => json<RunSummary[]>("/api/runs"),
  run: (id: string) => json<RunDetail>(run(id)),
  metrics: (id: string, offset: number) => json<Metrics>(`${run(id)}/metrics?offset=${offset}`),
  heads: (id: string): Promise<Payload> => binary(`${run(id)}/heads`),
  samples: (id: string, source: Source, start: number, count: number) =>
    json<{ samples: Sample[]; total: number }>(`${run(id)}/images?source=${source}&start=${start}&count=${count}`),
  sampleAttention: (id: string, { source, index }: Pick<Sample, "source" | "index">, step: number | null): Promise<Payload> =>
    binary(`${run(id)}/images/${source}/${index}/attention${at(step)}`),
  imageAttention(id: string, image: Blob, step: number | null): Promise<Payload> {
    const form = new FormData();
    form.append("image", image);
    return binary(`${run(id)}/attention${at(step)}`, { method: "POST", body: form });
  },
  sentence: (id: string, text: string, task: string, step: number | null): Promise<Payload> =>
    binary(`${run(id)}/sentence${at(step)}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ text, task }),
    }),
  modelMaps: (): Promise<Payload> => binary("/api/model/maps"),
  modelText: (text: string): Promise<Payload> =>
    binary("/api/model/text", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ text }) }),
  modelImage(image: Blob): Promise<Payload> {
    const form = new FormData();
    form.append("image", image);
    return binary("/api/model/image", { method: "POST", body: form });
  },
  page: (name: string): Promise<Payload> => binary(`/api/pages/${name}`),
  story: (id: string | null): Promise<Payload> => binary(`/api/pages/story${id === null ? "" : `?run=${encodeURIComponent(id)}`}`),
  evidence: (id: string) => json<{ found: unknown }>(`/api/claims/${encodeURIComponent(id)}/evidence`, { method: "POST" }),
};
