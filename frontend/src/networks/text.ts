// The two shipped text networks: one changes the case of a sentence, the other predicts the next letter.

import type { Payload } from "../core/payload";
import { softmax } from "./algebra";
import { headName, type LayerMap, type NetworkSettings, Transformer } from "./transformer";

export interface Guess {
  token: string;
  chance: number;
}

export interface Written {
  /** The tokens that were read, and those that were written (with "<end>" last, if it was reached). */
  read: string[];
  written: string[];
  /** The best guesses at each step. */
  guesses: Guess[][];
  maps: LayerMap[];
}

export interface Continued {
  read: string[];
  /** Probabilities of the next token, after each token that was read. */
  chances: Float32Array[];
  maps: LayerMap[];
}

const [BEGIN, END] = ["<begin>", "<end>"];
const MOST_EXTRA = 8;

/** The network of a payload, whose arrays are its weights. */
export function networkOf(payload: Payload<any>): Transformer {
  const known = new Map<string, Float32Array>();
  return new Transformer(payload.meta as NetworkSettings, (name) => {
    let found = known.get(name);
    if (!found) known.set(name, (found = payload.values(name)));
    return found;
  });
}

/** The characters of a text that the network knows; others are dropped. */
export function readable(network: Transformer, text: string): string {
  const known = new Set(network.settings.tokens);
  const small = known.has("A") ? text : text.toLowerCase();
  return [...small].filter((letter) => known.has(letter)).join("");
}

export const numbersOf = (network: Transformer, tokens: string[]): number[] => tokens.map((token) => network.settings.tokens.indexOf(token));

/** Greedy: the best token at each step, until the end. */
export function changeCase(network: Transformer, text: string, marker: "<U>" | "<L>", off: ReadonlySet<string> = new Set()): Written {
  const read = [marker, " ", ...readable(network, text)];
  const { memory, maps } = network.encode(numbersOf(network, read), off);
  const decoder = network.decoder(memory, off);
  const { tokens } = network.settings;
  const [written, guesses]: [string[], Guess[][]] = [[], []];
  let next = BEGIN;
  while (written.length < read.length - 1 + MOST_EXTRA) {
    const best = bestOf(softmax(decoder.step(tokens.indexOf(next))), tokens);
    guesses.push(best);
    written.push((next = best[0].token));
    if (next === END) break;
  }
  return { read, written, guesses, maps: [...maps, ...decoder.maps] };
}

/** Predictions of the next letter after each letter of a text. */
export function continueText(network: Transformer, text: string, off: ReadonlySet<string> = new Set()): Continued {
  const read = [...readable(network, text)];
  const decoder = network.decoder(null, off);
  return { read, chances: numbersOf(network, read).map((token) => softmax(decoder.step(token))), maps: decoder.maps };
}

export function bestOf(chances: Float32Array, tokens: string[], most = 5): Guess[] {
  const order = Array.from(chances.keys()).sort((a, b) => chances[b] - chances[a]);
  return order.slice(0, most).map((i) => ({ token: tokens[i], chance: chances[i] }));
}

/** Every head of the network, in order. */
export function allHeads(network: Transformer): { layer: string; head: number; name: string }[] {
  return network.layers.flatMap((layer) => Array.from({ length: network.settings.heads }, (_, head) => ({ layer, head, name: headName(layer, head) })));
}
