// Closed lines around the region of a grid that holds most of a head's weight.

export interface Field {
  rows: number;
  columns: number;
  data: Float32Array;
}

export type Loop = [x: number, y: number][];

const FINE = 4; // points per token
const SPREAD = 0.65; // of a token; with less smoothing, the lines around wide heads would follow the grid

/** The weights on a finer grid, smoothed, with an empty border of one token. */
export function smoothField(weights: ArrayLike<number>, rows: number, columns: number): Field {
  const kernel = (size: number): { count: number; at: (fine: number, token: number) => number } => ({
    count: (size + 2) * FINE,
    at: (fine, token) => Math.exp(-0.5 * (((fine + 0.5) / FINE - 1 - (token + 0.5)) / SPREAD) ** 2),
  });
  const [tall, wide] = [kernel(rows), kernel(columns)];
  const across = new Float32Array(rows * wide.count);
  const reach = Math.ceil(3.4 * SPREAD * FINE);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const weight = weights[r * columns + c];
      if (weight < 1e-5) continue;
      const middle = Math.round((c + 1.5) * FINE);
      for (let f = Math.max(0, middle - reach); f < Math.min(wide.count, middle + reach); f++) across[r * wide.count + f] += weight * wide.at(f, c);
    }
  }
  const data = new Float32Array(tall.count * wide.count);
  for (let r = 0; r < rows; r++) {
    const middle = Math.round((r + 1.5) * FINE);
    for (let f = Math.max(0, middle - reach); f < Math.min(tall.count, middle + reach); f++) {
      const share = tall.at(f, r);
      for (let c = 0; c < wide.count; c++) data[f * wide.count + c] += share * across[r * wide.count + c];
    }
  }
  return { rows: tall.count, columns: wide.count, data };
}

/** The threshold above which the values sum to the share `mass` of the total. */
export function levelOf({ data }: Field, mass: number): number {
  const sorted = data.filter((value) => value > 0).sort().reverse();
  const total = sorted.reduce((sum, value) => sum + value, 0);
  let sum = 0;
  for (const value of sorted) if ((sum += value) >= mass * total) return value;
  return 0;
}

/** Closed contour lines of the field at a value, by marching squares. Coordinates are in tokens from the grid's corner. */
export function contours({ rows, columns, data }: Field, level: number): Loop[] {
  const next = new Map<number, number>();
  const points = new Map<number, [number, number]>();
  const value = (r: number, c: number) => data[r * columns + c];
  // Edges between two points of the field have numbers: even to the right of a point, odd below it.
  const cross = (r: number, c: number, down: boolean): number => {
    const id = 2 * (r * columns + c) + (down ? 1 : 0);
    if (!points.has(id)) {
      const [a, b] = [value(r, c), down ? value(r + 1, c) : value(r, c + 1)];
      const share = (level - a) / (b - a);
      points.set(id, [((c + 0.5 + (down ? 0 : share)) / FINE) - 1, ((r + 0.5 + (down ? share : 0)) / FINE) - 1]);
    }
    return id;
  };
  for (let r = 0; r + 1 < rows; r++) {
    for (let c = 0; c + 1 < columns; c++) {
      const inside = [value(r, c), value(r, c + 1), value(r + 1, c + 1), value(r + 1, c)].map((x) => x >= level);
      if (inside.every((x) => x === inside[0])) continue;
      const edges = [() => cross(r, c, false), () => cross(r, c + 1, true), () => cross(r + 1, c, false), () => cross(r, c, true)];
      // Go around the square: a line enters where the inside begins and leaves where it ends, with the inside on its right.
      for (let i = 0; i < 4; i++) {
        if (inside[i] || !inside[(i + 1) % 4]) continue;
        let j = (i + 1) % 4;
        while (inside[(j + 1) % 4]) j = (j + 1) % 4;
        next.set(edges[i](), edges[j]());
      }
    }
  }
  const loops: Loop[] = [];
  while (next.size) {
    const [start] = next.keys();
    const loop: Loop = [];
    for (let at: number | undefined = start; at !== undefined && next.has(at); ) {
      loop.push(points.get(at)!);
      const to: number = next.get(at)!;
      next.delete(at);
      at = to;
    }
    loops.push(loop);
  }
  return loops;
}

/** The lines around a share of a head's weight from one query. */
export function headContours(weights: ArrayLike<number>, rows: number, columns: number, mass: number): Loop[] {
  const field = smoothField(weights, rows, columns);
  return contours(field, levelOf(field, mass));
}
