// Labeled controls that work with the keyboard.

import { html, useEffect, useRef, type ComponentChildren } from "./html";

let numbers = 0;
/** An id that no other control on the page has. */
export function useId(): string {
  const id = useRef("");
  id.current ||= `rg-${++numbers}`;
  return id.current;
}

export interface SliderProps {
  label: string;
  value: number;
  min: number;
  max: number;
  step?: number;
  /** The value in words, beside the slider. */
  text?: string;
  wide?: boolean;
  onInput: (value: number) => void;
}

export function Slider({ label, value, min, max, step = 1, text, wide, onInput }: SliderProps) {
  const id = useId();
  return html`<div class=${wide ? "rg-control rg-wide" : "rg-control"}>
    <label for=${id}>${label}</label>
    <input
      id=${id}
      type="range"
      min=${min}
      max=${max}
      step=${step}
      value=${value}
      aria-valuetext=${text}
      onInput=${(event: InputEvent) => onInput(Number((event.target as HTMLInputElement).value))}
    />
    ${text === undefined ? null : html`<output for=${id}>${text}</output>`}
  </div>`;
}

export interface SelectProps {
  label: string;
  value: string;
  options: [value: string, text: string][];
  onChange: (value: string) => void;
}

export function Select({ label, value, options, onChange }: SelectProps) {
  const id = useId();
  return html`<div class="rg-control">
    <label for=${id}>${label}</label>
    <select id=${id} value=${value} onChange=${(event: Event) => onChange((event.target as HTMLSelectElement).value)}>
      ${options.map(([key, text]) => html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`)}
    </select>
  </div>`;
}

export interface ToggleProps {
  label: string;
  checked: boolean;
  onChange: (checked: boolean) => void;
}

export function Toggle({ label, checked, onChange }: ToggleProps) {
  return html`<label class="rg-control rg-toggle">
    <input type="checkbox" checked=${checked} onChange=${(event: Event) => onChange((event.target as HTMLInputElement).checked)} />
    <span>${label}</span>
  </label>`;
}

export interface ChoiceProps {
  label: string;
  value: string;
  options: [value: string, text: string][];
  onChange: (value: string) => void;
}

/** A few choices side by side. */
export function Choice({ label, value, options, onChange }: ChoiceProps) {
  const id = useId();
  return html`<div class="rg-control rg-choice" role="radiogroup" aria-label=${label}>
    ${options.map(
      ([key, text]) => html`<label key=${key} class=${key === value ? "rg-on" : ""}>
        <input type="radio" name=${id} value=${key} checked=${key === value} onChange=${() => onChange(key)} />
        <span>${text}</span>
      </label>`,
    )}
  </div>`;
}

export interface ButtonProps {
  onClick: () => void;
  label?: string;
  pressed?: boolean;
  class?: string;
  children?: ComponentChildren;
}

export function Button({ onClick, label, pressed, class: kind = "", children }: ButtonProps) {
  return html`<button type="button" class=${kind} aria-label=${label} title=${label} aria-pressed=${pressed} onClick=${onClick}>
    ${children ?? label}
  </button>`;
}

export interface PlayProps {
  playing: boolean;
  onToggle: () => void;
}

export function Play({ playing, onToggle }: PlayProps) {
  const shape = playing ? "M5 3h4v14H5zM11 3h4v14h-4z" : "M5 3l12 7-12 7z";
  return html`<button type="button" class="rg-play" aria-label=${playing ? "pause" : "play"} aria-pressed=${playing} onClick=${onToggle}>
    <svg viewBox="0 0 20 20" width="16" height="16" aria-hidden="true"><path d=${shape} fill="currentColor" /></svg>
  </button>`;
}

/** Calls `step` with the seconds since the last frame while `playing`. */
export function useFrames(playing: boolean, step: (seconds: number) => void): void {
  const latest = useRef(step);
  latest.current = step;
  useEffect(() => {
    if (!playing) return;
    let [last, frame] = [performance.now(), 0];
    const tick = (now: number) => {
      latest.current(Math.min(0.1, (now - last) / 1000));
      last = now;
      frame = requestAnimationFrame(tick);
    };
    frame = requestAnimationFrame(tick);
    return () => cancelAnimationFrame(frame);
  }, [playing]);
}
