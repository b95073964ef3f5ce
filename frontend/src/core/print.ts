// Printing: light colors, everything visible, drawn at once without waiting for the next frame.

import { options } from "preact";
import { useEffect, useState } from "./html";

let printing = false;
export const isPrinting = (): boolean => printing;

/** Whether the page is being printed. The views are redrawn at once, before the browser prints them. */
export function usePrinting(): boolean {
  const [now, setNow] = useState(printing);
  useEffect(() => {
    const turn = (on: boolean) => () => {
      const before = options.debounceRendering;
      [printing, options.debounceRendering] = [on, (draw: () => void) => draw()];
      try {
        setNow(on);
      } finally {
        if (before) options.debounceRendering = before;
        else delete options.debounceRendering;
      }
    };
    const [begin, end] = [turn(true), turn(false)];
    window.addEventListener("beforeprint", begin);
    window.addEventListener("afterprint", end);
    return () => {
      window.removeEventListener("beforeprint", begin);
      window.removeEventListener("afterprint", end);
    };
  }, []);
  return now;
}
