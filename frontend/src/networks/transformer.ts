// The transformer of regard.models (pre-norm, ReLU, sinusoidal positions), in the browser: small networks, one text.

import { add, attend, layerNorm, linear, relu, sinusoidal } from "./algebra";

export interface NetworkSettings {
  dim: number;
  heads: number;
  /** Blocks of the encoder (0: a language model) and of the decoder. */
  encoder: number;
  decoder: number;
  /** Every token of the vocabulary, by its number. */
  tokens: string[];
}

/** The map of one layer for one text. In the decoder a query sees the keys up to itself. */
export interface LayerMap {
  name: string;
  heads: number;
  /** For each query its weights, (heads, keys). */
  rows: Float32Array[];
}

/** A head by the name of its layer and its number, as in "decoder.1.attention 3". */
export const headName = (layer: string, head: number) => `${layer} ${head}`;

export type Weights = (name: string) => Float32Array;

export class Transformer {
  constructor(
    readonly settings: NetworkSettings,
    readonly weights: Weights,
  ) {}

  /** Attention layers, in the order in which they run. */
  get layers(): string[] {
    const { encoder, decoder } = this.settings;
    const own = (part: string, count: number, kinds: string[]) => Array.from({ length: count }, (_, i) => kinds.map((kind) => `${part}.${i}.${kind}`)).flat();
    return [...own("encoder", encoder, ["attention"]), ...own("decoder", decoder, encoder ? ["attention", "cross_attention"] : ["attention"])];
  }

  /** Encodes a source; heads in `off` are switched off. */
  encode(tokens: number[], off: ReadonlySet<string> = new Set()): { memory: Float32Array; maps: LayerMap[] } {
    const maps: LayerMap[] = [];
    const { dim, heads } = this.settings;
    let x: Float32Array = new Float32Array(tokens.length * dim);
    tokens.forEach((token, at) => x.set(this.embed(token, at), at * dim));
    for (let b = 0; b < this.settings.encoder; b++) {
      const name = `encoder.${b}.attention`;
      const read = this.norm(x, `${name}_norm`);
      const found = this.attention(name, this.project(name, read, 0), this.project(name, read, 1), this.project(name, read, 2), off);
      const rows = tokens.map((_, q) => Float32Array.from({ length: heads * tokens.length }, (_, i) => found.weights[(Math.floor(i / tokens.length) * tokens.length + q) * tokens.length + (i % tokens.length)]));
      maps.push({ name, heads, rows });
      x = this.feedForward(`encoder.${b}`, add(x, found.change));
    }
    return { memory: this.norm(x, "encoder_norm"), maps };
  }

  /** A decoder that takes one token at a time. */
  decoder(memory: Float32Array | null = null, off: ReadonlySet<string> = new Set()): Decoder {
    return new Decoder(this, memory, off);
  }

  embed(token: number, at: number): Float32Array {
    const { dim } = this.settings;
    const scale = Math.sqrt(dim);
    const vector = this.weights("embedding.weight").subarray(token * dim, (token + 1) * dim);
    const place = sinusoidal(at, dim);
    return place.map((value, i) => value + scale * vector[i]);
  }

  norm(x: Float32Array, name: string): Float32Array {
    return layerNorm(x, this.weights(`${name}.weight`), this.weights(`${name}.bias`));
  }

  /** Queries (0), keys (1) or values (2). */
  project(layer: string, x: Float32Array, which: 0 | 1 | 2): Float32Array {
    const { dim } = this.settings;
    return linear(x, this.weights(`${layer}.qkv.weight`), this.weights(`${layer}.qkv.bias`), dim, which * dim, (which + 1) * dim);
  }

  attention(layer: string, query: Float32Array, key: Float32Array, value: Float32Array, off: ReadonlySet<string>): { change: Float32Array; weights: Float32Array } {
    const { dim, heads } = this.settings;
    const { out, weights } = attend(query, key, value, heads, dim);
    const width = dim / heads;
    for (let h = 0; h < heads; h++) {
      if (!off.has(headName(layer, h))) continue;
      for (let row = 0; row < out.length; row += dim) out.fill(0, row + h * width, row + (h + 1) * width);
    }
    return { change: linear(out, this.weights(`${layer}.output.weight`), this.weights(`${layer}.output.bias`), dim), weights };
  }

  feedForward(block: string, x: Float32Array): Float32Array {
    const { dim } = this.settings;
    const read = this.norm(x, `${block}.feed_forward_norm`);
    const hidden = relu(linear(read, this.weights(`${block}.feed_forward.expand.weight`), this.weights(`${block}.feed_forward.expand.bias`), dim));
    const contract = this.weights(`${block}.feed_forward.contract.weight`);
    return add(x, linear(hidden, contract, this.weights(`${block}.feed_forward.contract.bias`), contract.length / dim));
  }

  scores(x: Float32Array): Float32Array {
    return linear(this.norm(x, "decoder_norm"), this.weights("embedding.weight"), this.weights("output_bias"), this.settings.dim);
  }
}

/** Keys and values of the tokens so far: a token sees itself and those before it. */
export class Decoder {
  readonly maps: LayerMap[];
  private readonly past = new Map<string, { key: number[]; value: number[] }>();
  private readonly memory = new Map<string, { key: Float32Array; value: Float32Array }>();
  private count = 0;

  constructor(
    private readonly network: Transformer,
    memory: Float32Array | null,
    private readonly off: ReadonlySet<string>,
  ) {
    const names = network.layers.filter((name) => name.startsWith("decoder."));
    this.maps = names.map((name) => ({ name, heads: network.settings.heads, rows: [] }));
    for (const name of names) {
      if (!name.endsWith("cross_attention")) this.past.set(name, { key: [], value: [] });
      else if (memory) this.memory.set(name, { key: network.project(name, memory, 1), value: network.project(name, memory, 2) });
      else throw new Error("this network has an encoder: pass the encoder's output");
    }
  }

  /** Takes the next token; returns the scores of the token after it. */
  step(token: number): Float32Array {
    const { network } = this;
    let x: Float32Array = network.embed(token, this.count++);
    for (const map of this.maps) {
      const { name } = map;
      const read = network.norm(x, `${name}_norm`);
      const { key, value } = this.memory.get(name) ?? this.extended(name, read);
      const { change, weights } = network.attention(name, network.project(name, read, 0), key, value, this.off);
      map.rows.push(weights);
      x = add(x, change);
      const block = name.slice(0, name.lastIndexOf("."));
      const last = network.settings.encoder ? "cross_attention" : "attention";
      if (name === `${block}.${last}`) x = network.feedForward(block, x);
    }
    return network.scores(x);
  }

  private extended(name: string, read: Float32Array): { key: Float32Array; value: Float32Array } {
    const past = this.past.get(name)!;
    past.key.push(...this.network.project(name, read, 1));
    past.value.push(...this.network.project(name, read, 2));
    return { key: Float32Array.from(past.key), value: Float32Array.from(past.value) };
  }
}
