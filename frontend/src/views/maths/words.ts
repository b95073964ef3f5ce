// Numbers as people read them.

const MINUS = "−";

/** About `digits` significant digits, no more than are needed. */
export function brief(x: number, digits = 4): string {
  if (Number.isNaN(x)) return "?";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : `${MINUS}∞`;
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size < 1e-4 || size >= 1e7) return power(x);
  const fixed = x.toFixed(Math.max(0, Math.min(6, digits - 1 - Math.floor(Math.log10(size)))));
  const plain = fixed.includes(".") ? fixed.replace(/\.?0+$/, "") : fixed;
  return plain.replace("-", MINUS);
}

/** As in 3.2·10⁻⁹. */
export function power(x: number, digits = 1): string {
  if (x === 0) return "0";
  const [mantissa, exponent] = x.toExponential(digits).split("e");
  const raised = String(Number(exponent)).replace(/[-\d]/g, (sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(sign)]));
  const shown = mantissa.replace("-", MINUS).replace(/\.0+$/, "");
  return shown === "1" ? `10${raised}` : `${shown}·10${raised}`;
}

export function percent(x: number): string {
  if (x > 0 && x < 5e-4) return "0 %";
  const digits = x > 0.995 && x < 1 ? 4 : x > 0.0995 ? 3 : 2;
  return `${brief(100 * x, digits)} %`;
}

export function subscript(number: number): string {
  return String(number).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[Number(digit)]);
}

export function vector(x: readonly number[], digits = 4): string {
  return `(${x.map((entry) => brief(entry, digits)).join(", ")})`;
}
