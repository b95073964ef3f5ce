// The operations of a transformer on typed arrays. Matrices are row-major; weights are (out, in) as in torch.

/** Rows of x times Wᵀ, plus b: outputs first … last − 1 of a layer. */
export function linear(x: Float32Array, weight: Float32Array, bias: Float32Array | null, inputs: number, first = 0, last = weight.length / inputs): Float32Array {
  const [rows, outputs] = [x.length / inputs, last - first];
  const out = new Float32Array(rows * outputs);
  for (let r = 0; r < rows; r++) {
    const row = r * inputs;
    for (let o = 0; o < outputs; o++) {
      const at = (first + o) * inputs;
      let total = bias ? bias[first + o] : 0;
      for (let i = 0; i < inputs; i++) total += x[row + i] * weight[at + i];
      out[r * outputs + o] = total;
    }
  }
  return out;
}

/** Layer norm of each row of `width` numbers. */
export function layerNorm(x: Float32Array, weight: Float32Array, bias: Float32Array, epsilon = 1e-5): Float32Array {
  const width = weight.length;
  const out = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += width) {
    let mean = 0;
    for (let i = 0; i < width; i++) mean += x[start + i];
    mean /= width;
    let variance = 0;
    for (let i = 0; i < width; i++) variance += (x[start + i] - mean) ** 2;
    const scale = 1 / Math.sqrt(variance / width + epsilon);
    for (let i = 0; i < width; i++) out[start + i] = (x[start + i] - mean) * scale * weight[i] + bias[i];
  }
  return out;
}

export function relu(x: Float32Array): Float32Array {
  for (let i = 0; i < x.length; i++) if (x[i] < 0) x[i] = 0;
  return x;
}

export function add(x: Float32Array, change: Float32Array): Float32Array {
  for (let i = 0; i < x.length; i++) x[i] += change[i];
  return x;
}

export function softmax(x: Float32Array): Float32Array {
  const max = x.reduce((most, value) => Math.max(most, value), -Infinity);
  let sum = 0;
  const out = x.map((value) => Math.exp(value - max));
  for (const value of out) sum += value;
  for (let i = 0; i < out.length; i++) out[i] /= sum;
  return out;
}

/** sin(ω t), cos(ω t) in turn, with ω = 10000^(−2k/width). */
export function sinusoidal(position: number, width: number): Float32Array {
  return Float32Array.from({ length: width }, (_, i) => {
    const angle = position * 10000 ** (-(i - (i % 2)) / width);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

/** Multi-head attention: queries, keys, values and output are (tokens, heads · width), weights (heads, queries, keys). */
export function attend(query: Float32Array, key: Float32Array, value: Float32Array, heads: number, dim: number): { out: Float32Array; weights: Float32Array } {
  const [queries, keys, width] = [query.length / dim, key.length / dim, dim / heads];
  const beta = 1 / Math.sqrt(width);
  const out = new Float32Array(query.length);
  const weights = new Float32Array(heads * queries * keys);
  const scores = new Float32Array(keys);
  for (let h = 0; h < heads; h++) {
    for (let q = 0; q < queries; q++) {
      const from = q * dim + h * width;
      for (let k = 0; k < keys; k++) {
        let total = 0;
        for (let i = 0; i < width; i++) total += query[from + i] * key[k * dim + h * width + i];
        scores[k] = beta * total;
      }
      const row = softmax(scores);
      weights.set(row, (h * queries + q) * keys);
      for (let k = 0; k < keys; k++) for (let i = 0; i < width; i++) out[from + i] += row[k] * value[k * dim + h * width + i];
    }
  }
  return { out, weights };
}
