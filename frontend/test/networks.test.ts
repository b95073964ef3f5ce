// The shipped text networks as the browser runs them, against what torch computes with the same weights.

import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { halfToNumber } from "../src/core/payload";
import { changeCase, continueText, networkOf, numbersOf, readable } from "../src/networks/text";
import { headName, Transformer } from "../src/networks/transformer";

const here = dirname(fileURLToPath(import.meta.url));
const torch = JSON.parse(readFileSync(join(here, "networks.json"), "utf8"));
const LETTERS = "abcdefghijklmnopqrstuvwxyz";
const SPECIAL = ["<pad>", "<begin>", "<end>", "<class>", "<mask>", "<unknown>"];

/** A shipped run's network: its recipe, and its weights from the file itself. */
function shipped(name: string, tokens: string[]): Transformer {
  const folder = join(here, "../../src/regard/views/shipped", name);
  const { network } = JSON.parse(readFileSync(join(folder, "recipe.json"), "utf8"));
  const [checkpoint] = readdirSync(join(folder, "checkpoints"));
  const path = join(folder, "checkpoints", checkpoint, "state.safetensors");
  const bytes = new Uint8Array(readFileSync(path)).buffer;
  const length = Number(new DataView(bytes).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, length)));
  const weights = (key: string) => {
    const { dtype, data_offsets: [from, to] } = header[`network.${key}`];
    expect(dtype).toBe("F16");
    return Float32Array.from(new Uint16Array(bytes.slice(8 + length + from, 8 + length + to)), halfToNumber);
  };
  const settings = { dim: network.dim, heads: network.heads, encoder: network.encoder_depth, decoder: network.decoder_depth, tokens };
  const known = new Map<string, Float32Array>();
  return new Transformer(settings, (key) => known.get(key) ?? (known.set(key, weights(key)), known.get(key)!));
}

const close = (found: ArrayLike<number>, wanted: number[]) => {
  expect(found.length).toBe(wanted.length);
  expect(Math.max(...wanted.map((value, i) => Math.abs(value - found[i])))).toBeLessThan(1e-4);
};

describe("the case network", () => {
  const network = shipped("case-transformer", [...SPECIAL, "<U>", "<L>", " ", ...LETTERS, ...LETTERS.toUpperCase()]);

  it.each(torch.case as { marker: "<U>" | "<L>"; text: string; said: string; scores: number[][]; encoder: number[][]; cross: number[][] }[])("writes and looks as torch does: $text", ({ marker, text, said, scores, encoder, cross }) => {
    const found = changeCase(network, text, marker);
    expect(found.written.filter((token) => token !== "<end>").join("")).toBe(said);
    const map = (name: string) => found.maps.find((each) => each.name === name)!;
    const keys = found.read.length;
    encoder.forEach((row, head) => close(map(`encoder.${network.settings.encoder - 1}.attention`).rows[keys - 1].subarray(head * keys, (head + 1) * keys), row));
    const { rows } = map(`decoder.${network.settings.decoder - 1}.cross_attention`);
    cross.forEach((row, head) => close(rows[rows.length - 1].subarray(head * keys, (head + 1) * keys), row));
    const decoder = network.decoder(network.encode(numbersOf(network, found.read)).memory);
    const steps = ["<begin>", ...said].map((token) => decoder.step(network.settings.tokens.indexOf(token)));
    close(steps[0], scores[0]);
    close(steps[steps.length - 1], scores[1]);
  });

  it("reads what it knows", () => {
    expect(readable(network, "Héllo, you 2!")).toBe("Hllo you ");
  });
});

describe("the network that looks back", () => {
  const network = shipped("induction", [...SPECIAL, " ", ...LETTERS]);

  it.each(torch.induction as { text: string; scores: number[]; without: number[]; last: number[][] }[])("expects what torch expects, also without some heads: $text", ({ text, scores, without, last }) => {
    const tokens = numbersOf(network, [...text]);
    const run = (off: Set<string>) => {
      const decoder = network.decoder(null, off);
      return { scores: tokens.map((token) => decoder.step(token)).slice(-1)[0], maps: decoder.maps };
    };
    const whole = run(new Set());
    close(whole.scores, scores);
    last.forEach((row, head) => close(whole.maps.slice(-1)[0].rows.slice(-1)[0].subarray(head * text.length, (head + 1) * text.length), row));
    const off = new Set(network.layers.map((layer) => headName(layer, 0)));
    close(run(off).scores, without);
    expect(Math.max(...without.map((value, i) => Math.abs(value - scores[i])))).toBeGreaterThan(1e-2);
  });

  it("finds what followed last time", () => {
    const { chances, read } = continueText(network, "harry potter met harry p");
    expect(read.length).toBe(24);
    const best = chances[23].indexOf(Math.max(...chances[23]));
    expect(network.settings.tokens[best]).toBe("o");
  });

  it("refuses to decode without a source where there is an encoder", () => {
    const other = new Transformer({ ...network.settings, encoder: 1 }, network.weights);
    expect(() => other.decoder(null)).toThrow("encoder");
  });
});

it("a payload's arrays are a network's weights", () => {
  const payload = { meta: { dim: 2 }, values: (name: string) => Float32Array.from([name.length]) };
  expect(networkOf(payload as never).weights("abc")[0]).toBe(3);
});
