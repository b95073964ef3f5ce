// Tokens inside of sentences: in their own direction of writing, and not too long.

import { beginning } from "./atlas";

/** Hebrew, Arabic and the other scripts that are written from right to left. */
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\ud802\ud803\ud83a\ud83b]/;

/** Without this, a word from right to left would also turn what follows it: the sentence would name the key as the query. */
export const isolated = (text: string): string => (RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text);

/** A longer token would hide what the sentence says about it. */
const MOST = 60;

const shortened = (text: string, most: number): string => (text.length > most ? `${beginning(text, most - 1)}…` : text);

export const quoted = (text: string): string => `“${isolated(shortened(text, MOST))}”`;

/** The tooltip of a weight, in one line. */
export const weightTip = (query: string, key: string, weight: string): string => `${isolated(shortened(query, 24))} → ${isolated(shortened(key, 24))}  ${weight}`;
