// The metrics of a run, updated while it trains.

import { useEffect, useState } from "../core/html";
import type { Line } from "../views/chart";
import { api, type State } from "./api";

export interface Followed {
  lines: Line[];
  state: State | null;
  /** Grows when there are new positions of the heads. */
  heads: number;
  checkpoint: number | null;
  problem: string;
}

const NOTHING: Followed = { lines: [], state: null, heads: 0, checkpoint: null, problem: "" };
const OFTEN = 1500;
const SELDOM = 15_000;

/** All lines so far, and new ones while the run trains. */
export function useFollowed(id: string, back = 0): Followed {
  const [followed, setFollowed] = useState<Followed>(NOTHING);
  useEffect(() => {
    let [gone, timer, offset, lines] = [false, 0, 0, [] as Line[]];
    if (!back) setFollowed(NOTHING);
    const look = async () => {
      let wait = OFTEN;
      try {
        for (let more = true; more && !gone; ) {
          const piece = await api.metrics(id, offset);
          if (gone) return;
          more = piece.more;
          offset = piece.offset;
          if (piece.anew) lines = [];
          if (piece.lines.length || piece.anew) lines = lines.concat(piece.lines);
          setFollowed({ lines, state: piece.state, heads: piece.heads, checkpoint: piece.checkpoint, problem: "" });
          wait = piece.state === "training" ? OFTEN : SELDOM;
        }
      } catch (error) {
        if (gone) return;
        setFollowed((now) => ({ ...now, problem: (error as Error).message }));
        wait = SELDOM / 3;
      }
      if (!gone) timer = window.setTimeout(look, document.hidden ? SELDOM : wait);
    };
    void look();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [id, back]);
  return followed;
}
