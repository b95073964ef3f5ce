// Rollout: one token traced back through all layers, R = Â_L ⋯ Â_1 with Â = ½ I + ½ mean over heads, row by row. Where
// squares of tokens are merged between two layers, a merged token is an equal share of its parts, as in regard.rollout.

import type { Layer, LayerAbout } from "./layer";

export class Rollout<About extends LayerAbout = LayerAbout> {
  private readonly rows = new Map<number, Map<number, Float32Array>>();
  private readonly merged = new Map<number, Uint32Array>();

  constructor(private readonly layers: Layer<About>[]) {}

  /** The columns of the product are the tokens of the first layer, even if later layers merge them. */
  get source(): Layer<About> { return this.layers[0]; }

  /** Row `query` of the product of the first layers up to `layer`, (tokens of the first layer). */
  row(layer: number, query: number): Float32Array {
    let known = this.rows.get(layer);
    if (!known) this.rows.set(layer, (known = new Map()));
    let row = known.get(query);
    if (!row) known.set(query, (row = this.trace(layer, query)));
    return row;
  }

  private trace(layer: number, query: number): Float32Array {
    let row = new Float32Array(this.layers[layer].queries);
    row[query] = 1;
    for (let l = layer; l >= 0; l--) {
      const mean = this.layers[l].mean();
      const tokens = this.layers[l].queries;
      const next = new Float32Array(tokens);
      for (let q = 0; q < tokens; q++) {
        const weight = row[q];
        if (weight === 0) continue;
        const start = q * tokens;
        let total = 0;
        for (let k = 0; k < tokens; k++) total += mean[start + k];
        // For a row without any key to attend to, only the skip connection counts.
        const share = total > 0 ? 0.5 : 1;
        next[q] += share * weight;
        if (total > 0) {
          const factor = ((1 - share) * weight) / total;
          for (let k = 0; k < tokens; k++) next[k] += factor * mean[start + k];
        }
      }
      row = l > 0 ? this.apart(l, next) : next;
    }
    return row;
  }

  /** Expand a row over a layer's tokens to the tokens of the layer before. */
  private apart(layer: number, row: Float32Array<ArrayBuffer>): Float32Array<ArrayBuffer> {
    const [before, after] = [this.layers[layer - 1], this.layers[layer]];
    if (before.queries === after.queries) return row;
    let became = this.merged.get(layer);
    if (!became) this.merged.set(layer, (became = becameOf(before.about, after.about)));
    const counts = new Uint32Array(after.queries);
    for (const token of became) counts[token]++;
    return Float32Array.from(became, (token) => row[token] / counts[token]);
  }

  /** Whether all rows up to `layer` are known. */
  done(layer: number): boolean {
    return (this.rows.get(layer)?.size ?? 0) === this.layers[layer].queries;
  }

  /** Compute more rows, for some milliseconds. */
  work(layer: number, milliseconds: number): void {
    const end = performance.now() + milliseconds;
    for (let q = 0; q < this.layers[layer].queries && performance.now() < end; q++) this.row(layer, q);
  }

  /** The product as far as it is computed, (tokens · tokens of the first layer); missing rows are 0. */
  matrix(layer: number): Float32Array {
    const columns = this.source.keys;
    const out = new Float32Array(this.layers[layer].queries * columns);
    for (const [q, row] of this.rows.get(layer) ?? []) out.set(row, q * columns);
    return out;
  }
}

type Lie = Pick<LayerAbout, "grid" | "prefix">;

/** For each token, the token of the next layer that it is merged into: prefix tokens stay, squares are merged. */
export function becameOf(before: Lie, after: Lie): Uint32Array {
  const [fine, coarse] = [before.grid!, after.grid!];
  const out = new Uint32Array(before.prefix! + fine.reduce((a, b) => a * b));
  for (let i = 0; i < out.length; i++) {
    let [rest, at, stride] = [i - before.prefix!, 0, 1];
    for (let axis = fine.length - 1; axis >= 0; axis--) {
      at += Math.floor(((rest % fine[axis]) * coarse[axis]) / fine[axis]) * stride;
      rest = Math.floor(rest / fine[axis]);
      stride *= coarse[axis];
    }
    out[i] = i < before.prefix! ? i : after.prefix! + at;
  }
  return out;
}
