// Rollout: one token traced back through all layers, R = Â_L ⋯ Â_1 with Â = ½ I + ½ mean over heads, row by row.

import type { Layer } from "./layer";

export class Rollout {
  private readonly rows = new Map<number, Map<number, Float32Array>>();

  constructor(private readonly layers: Layer[]) {}

  /** Row `query` of the product of the first layers up to `layer`, (tokens). */
  row(layer: number, query: number): Float32Array {
    let known = this.rows.get(layer);
    if (!known) this.rows.set(layer, (known = new Map()));
    let row = known.get(query);
    if (!row) known.set(query, (row = this.trace(layer, query)));
    return row;
  }

  private trace(layer: number, query: number): Float32Array {
    const tokens = this.layers[layer].queries;
    let row = new Float32Array(tokens);
    row[query] = 1;
    for (let l = layer; l >= 0; l--) {
      const mean = this.layers[l].mean();
      const next = new Float32Array(tokens);
      for (let q = 0; q < tokens; q++) {
        const weight = row[q];
        if (weight === 0) continue;
        const start = q * tokens;
        let total = 0;
        for (let k = 0; k < tokens; k++) total += mean[start + k];
        // A row with nothing to attend to is carried by the skip connection alone.
        const share = total > 0 ? 0.5 : 1;
        next[q] += share * weight;
        if (total > 0) {
          const factor = ((1 - share) * weight) / total;
          for (let k = 0; k < tokens; k++) next[k] += factor * mean[start + k];
        }
      }
      row = next;
    }
    return row;
  }

  /** Whether all rows up to `layer` are known. */
  done(layer: number): boolean {
    return (this.rows.get(layer)?.size ?? 0) === this.layers[layer].queries;
  }

  /** Work out more rows, for some milliseconds. */
  work(layer: number, milliseconds: number): void {
    const end = performance.now() + milliseconds;
    for (let q = 0; q < this.layers[layer].queries && performance.now() < end; q++) this.row(layer, q);
  }

  /** What is known of the whole product, (tokens · tokens); rows to come are 0. */
  matrix(layer: number): Float32Array {
    const tokens = this.layers[layer].queries;
    const out = new Float32Array(tokens * tokens);
    for (const [q, row] of this.rows.get(layer) ?? []) out.set(row, q * tokens);
    return out;
  }
}
