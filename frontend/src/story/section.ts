// A section of the page: a number, a heading, a caption, and a scene that is created when the user scrolls near it.

import { html, useEffect, useRef, useState, type ComponentChildren, type RefObject, type VNode } from "../core/html";
import { usePrinting } from "../core/print";

export interface SectionProps {
  number: number;
  title: string;
  caption: ComponentChildren;
  /** A note on whose network is shown, if it is not the user's. */
  note?: string | undefined;
  height: number;
  children: () => ComponentChildren;
}

export function Section({ number, title, caption, note, height, children }: SectionProps): VNode {
  const place = useRef<HTMLElement>(null);
  const [seen, printing] = [useSeen(place, "500px"), usePrinting()];
  const near = seen || printing || number === 1; // the first is visible at once
  const id = `rg-story-${number}`;
  return html`<section ref=${place} class="rg-part" data-section=${number} aria-labelledby=${id}>
    <div class="rg-told">
      <span class="rg-number" aria-hidden="true">${number}</span>
      <h2 id=${id}>${title}</h2>
      <p>${caption}</p>
    </div>
    <div class="rg-scene" style=${near ? undefined : { minHeight: `${height}px` }}>${near ? children() : null}</div>
    ${note ? html`<p class="rg-whose">${note}</p>` : null}
  </section>` as VNode;
}

/** Whether the given share of an element has been within `margin` of the window; once true, it stays true. */
export function useSeen(element: RefObject<HTMLElement>, margin: string, share = 0): boolean {
  const [seen, setSeen] = useState(typeof IntersectionObserver === "undefined");
  useEffect(() => {
    if (seen || !element.current) return;
    const observer = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && setSeen(true), { rootMargin: margin, threshold: share });
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [seen]);
  return seen;
}

/** Whether the user prefers reduced motion. */
export const isStill = (): boolean => window.matchMedia?.("(prefers-reduced-motion: reduce)").matches ?? false;

/** Nine colors for lines on a photo that differ in lightness as well as in hue. */
export const NINE = ["#ffd400", "#ff7a1a", "#ff4d6d", "#e879f9", "#8b7bff", "#38a3ff", "#16d5d1", "#4ade80", "#ffffff"];
/** The same on white, where white and yellow would be invisible. */
export const NINE_ON_PAPER = ["#b58900", "#d55e00", "#c2185b", "#a21caf", "#5b3fd6", "#0072b2", "#00838f", "#15803d", "#334155"];
export const headColor = (head: number, light: boolean): string => (light ? NINE_ON_PAPER : NINE)[head % 9];
