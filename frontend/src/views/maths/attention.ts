// Attention of a few vectors, written out. Numbers are doubles; tests compare them with the Python library's.

export type Matrix = number[][];

/**
 * softmax(β·z), with β from 0 (uniform) to Infinity (only the largest; ties share evenly). A score of −Infinity hides
 * an entry; if all entries are hidden, all weights are 0.
 */
export function softargmax(scores: readonly number[], beta: number): number[] {
  if (!(beta >= 0)) throw new RangeError(`beta must lie in [0, ∞], got ${beta}`);
  const top = Math.max(...scores);
  if (!(top > -Infinity)) return scores.map(() => 0);
  const raw = scores.map((z) => {
    if (z === -Infinity) return 0;
    if (z === top) return 1;
    return beta === Infinity ? 0 : Math.exp(beta * (z - top));
  });
  const total = raw.reduce((a, b) => a + b, 0);
  return raw.map((w) => w / total);
}

export function dot(a: readonly number[], b: readonly number[]): number {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
}

export interface Attended {
  /** q·k, before β. */
  scores: Matrix;
  weights: Matrix;
  output: Matrix;
}

/** Scores, weights and output of every query. */
export function attention(query: Matrix, key: Matrix, value: Matrix, beta: number): Attended {
  const scores = query.map((q) => key.map((k) => dot(q, k)));
  const weights = scores.map((row) => softargmax(row, beta));
  const output = weights.map((row) => mix(row, value));
  return { scores, weights, output };
}

/** Σ wⱼ vⱼ. */
export function mix(weights: readonly number[], value: Matrix): number[] {
  const width = value[0]?.length ?? 0;
  return Array.from({ length: width }, (_, d) => dot(weights, value.map((v) => v[d])));
}

/** −Σ w log w, in nats. */
export function entropy(weights: readonly number[]): number {
  return weights.reduce((total, w) => (w > 0 ? total - w * Math.log(w) : total), 0);
}

/** The slider's scale: 0 at its left end, ∞ at its right one, decades in between. */
export const LOWEST = -5;
export const HIGHEST = 2;
const ENDS = 0.04; // the share of the slider for each end

export function betaAt(position: number): number {
  if (position <= ENDS / 2) return 0;
  if (position >= 1 - ENDS / 2) return Infinity;
  const inside = Math.min(1, Math.max(0, (position - ENDS) / (1 - 2 * ENDS)));
  return 10 ** (LOWEST + (HIGHEST - LOWEST) * inside);
}

export function positionOf(beta: number): number {
  if (beta <= 0) return 0;
  if (beta === Infinity) return 1;
  const inside = (Math.log10(beta) - LOWEST) / (HIGHEST - LOWEST);
  return ENDS + (1 - 2 * ENDS) * Math.min(1, Math.max(0, inside));
}
