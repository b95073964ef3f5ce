// Style sheets of single views, adopted where the view is. This is allowed on pages that forbid inline styles.

import { type RefObject, useLayoutEffect } from "../core/html";

const adopted = new WeakMap<Node, Set<string>>();

/** Adds the style sheet `text` to the document or shadow tree of the element, once. */
export function useSheet(element: RefObject<HTMLElement>, text: string): void {
  useLayoutEffect(() => {
    if (element.current) adopt(element.current.getRootNode(), text);
  }, []);
}

export function adopt(root: Node, text: string): void {
  if (!(root instanceof Document || root instanceof ShadowRoot)) return;
  const known = adopted.get(root) ?? new Set<string>();
  if (known.has(text)) return;
  adopted.set(root, known.add(text));
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(text);
  root.adoptedStyleSheets = [...root.adoptedStyleSheets, sheet];
}
