// The patches that hold most of a row's weight, and the line around them.

/** The fewest entries that together hold `share` of the absolute weight: 1 for these entries, else 0. */
export function strongest(row: Float32Array, share: number): Uint8Array {
  const inside = new Uint8Array(row.length);
  let total = 0;
  for (let i = 0; i < row.length; i++) total += Math.abs(row[i]);
  if (share >= 1 || total === 0) return inside.fill(total === 0 ? 0 : 1);
  const order = Array.from({ length: row.length }, (_, i) => i).sort((a, b) => Math.abs(row[b]) - Math.abs(row[a]) || a - b);
  let held = 0;
  for (const i of order) {
    if (held >= share * total * (1 - 1e-6)) break;
    inside[i] = 1;
    held += Math.abs(row[i]);
  }
  return inside;
}

/** A corner of an outline around patches, and the inward direction there: to the right of both edges. */
export interface Corner {
  y: number;
  x: number;
  dy: number;
  dx: number;
}

const STEPS = [[0, 1], [1, 0], [0, -1], [-1, 0]]; // right, down, left, up: the inside lies to the right of the way
const INWARDS = [[1, 0], [0, -1], [-1, 0], [0, 1]];

/** Closed outlines around the patches inside, each a list of corners. Patches that share only a corner are separate. */
export function loopsOf(inside: Uint8Array, [rows, columns]: [number, number]): Corner[][] {
  const at = (r: number, c: number) => r >= 0 && c >= 0 && r < rows && c < columns && inside[r * columns + c] === 1;
  const key = (y: number, x: number, way: number) => (y * (columns + 1) + x) * 4 + way;
  const open = new Set<number>();
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      if (!at(r, c)) continue;
      if (!at(r - 1, c)) open.add(key(r, c, 0));
      if (!at(r, c + 1)) open.add(key(r, c + 1, 1));
      if (!at(r + 1, c)) open.add(key(r + 1, c + 1, 2));
      if (!at(r, c - 1)) open.add(key(r + 1, c, 3));
    }
  }
  const loops: Corner[][] = [];
  for (const start of open) {
    const loop: Corner[] = [];
    let [y, x, way] = [Math.floor(start / 4 / (columns + 1)), Math.floor(start / 4) % (columns + 1), start % 4];
    while (open.delete(key(y, x, way))) {
      const before = way;
      [y, x] = [y + STEPS[way][0], x + STEPS[way][1]];
      // Prefer a right turn, which stays at the same patch.
      const next = [(before + 1) % 4, before, (before + 3) % 4].find((turn) => open.has(key(y, x, turn)) || key(y, x, turn) === start);
      way = next ?? before;
      if (way !== before) loop.push({ y, x, dy: INWARDS[before][0] + INWARDS[way][0], dx: INWARDS[before][1] + INWARDS[way][1] });
    }
    loops.push(loop);
  }
  return loops;
}
