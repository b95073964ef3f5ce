// Paper is light, shows everything, and does not wait for the next frame.

import { options } from "preact";
import { useEffect, useState } from "./html";

let printing = false;
export const isPrinting = (): boolean => printing;

/** Whether the page is being printed. Everything that follows from it is drawn at once, before the browser takes its picture. */
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
