// Keys of a view. They work wherever the focus is inside it, but not while something is being typed.

import { type RefObject, useEffect, useRef } from "./html";

export interface Key {
  /** As in KeyboardEvent.key. Several keys may do one thing. */
  keys: string[];
  /** What it does, for the list of keys. */
  means: string;
  /** How the keys are shown in the list; default: themselves. */
  shown?: string;
  /** Only together with Shift. */
  shift?: boolean;
  run: (key: string, event: KeyboardEvent) => void;
}

/** Keys that a focused control needs for itself. */
function taken(target: EventTarget | null, key: string): boolean {
  const element = target as HTMLElement | null;
  if (!element?.matches) return false;
  if (element.matches("textarea, [contenteditable], input:not([type=range]):not([type=checkbox]):not([type=radio])")) return true;
  if (element.matches("input[type=range], input[type=radio], select")) return /^(Arrow|Home|End|Page)/.test(key) || (key === " " && element.matches("select"));
  return key === " " || key === "Enter" ? element.matches("button, input, summary, a[href]") : false;
}

export function useKeys(root: RefObject<HTMLElement>, list: Key[]): void {
  const latest = useRef(list);
  latest.current = list;
  useEffect(() => {
    const element = root.current;
    if (!element) return;
    const press = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || taken(event.target, event.key)) return;
      const found = latest.current.find(({ keys, shift }) => keys.includes(event.key) && (!shift || event.shiftKey));
      if (!found) return;
      event.preventDefault();
      event.stopPropagation();
      found.run(event.key, event);
    };
    element.addEventListener("keydown", press);
    return () => element.removeEventListener("keydown", press);
  }, []);
}
