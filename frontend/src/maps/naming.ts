// Names of queries and keys: the tokens of a text, of which a call with a cache has only some.

import { beginning } from "./atlas";
import { search } from "./cells";
import { isolated } from "./quote";
import { visible } from "./table";

export interface Named {
  queries: number;
  keys: number;
  /** The lists of tokens that name queries and keys; null for numbers. */
  asks: string | null;
  reads: string | null;
  /** The positions of the first query and of the first key in the whole text. */
  first: [number, number];
}

export type Lists = Record<string, string[]>;

export interface Side {
  count: number;
  first: number;
  tokens: string[] | null;
}

/** Queries (0) or keys (1) of a map. */
export function sideOf(about: Named, lists: Lists, axis: 0 | 1): Side {
  const list = axis === 0 ? about.asks : about.reads;
  return { count: axis === 0 ? about.queries : about.keys, first: about.first[axis], tokens: list === null ? null : (lists[list] ?? null) };
}

/** The position of a token in the whole text, with the token if it is named. */
export function nameAt({ first, tokens }: Side, at: number, most: number, marks: [string, string] = ["", ""]): string {
  const token = tokens?.[first + at];
  return token === undefined ? String(first + at) : `${first + at} ${marks[0]}${isolated(beginning(visible(token), most))}${marks[1]}`;
}

/** Where a found token is: the index of the query, of the key, or both. */
export interface Hit {
  q: number | null;
  k: number | null;
}

/** The queries and keys whose tokens contain a text. A token that is both a query and a key is found once. */
export function hits(about: Named, lists: Lists, text: string): Hit[] {
  const [asks, reads] = [sideOf(about, lists, 0), sideOf(about, lists, 1)];
  const index = (at: number, { first, count }: Side) => (at >= first && at < first + count ? at - first : null);
  const found = (side: Side) => (side.tokens ? search(side.tokens, text) : []);
  const some = ({ q, k }: Hit) => q !== null || k !== null;
  if (about.asks === about.reads) return found(reads).map((at) => ({ q: index(at, asks), k: index(at, reads) })).filter(some);
  return [...found(reads).map((at) => ({ q: null, k: index(at, reads) })), ...found(asks).map((at) => ({ q: index(at, asks), k: null }))].filter(some);
}
