"""Write ``certificates.v`` and ``certificates.toml``: numbers for T, leak and error, for Coq to certify.

The numbers are computed here with 60 digits and rounded outwards; nothing rests on that, for Coq accepts a bound only
where the ``interval`` tactic proves it. ``python proofs/certificates.py`` writes both files; ``--check`` compares.
"""

import sys
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, getcontext
from fractions import Fraction
from pathlib import Path

HERE = Path(__file__).parent
ALPHAS = [Fraction(a) for a in ("1/8", "1/4", "1/2", "3/4", "1", "3/2", "2", "3", "5", "8", "12", "16", "20", "30")]
WEIGHT_NORM, INPUT_NORM = Fraction(7, 2), Fraction(9, 4)  # of the error: Σ|W| of a channel and max|x|, over two axes
DIGITS_OF_T, DIGITS = 20, 17

HEAD = """\
(** * Certified numbers: T, T/(1+T), leak over 1, 2 and 3 axes, and the output error, at some sharpnesses α

    Written by certificates.py; every bound is proved here. certificates.toml holds the same numbers, and the tests hold
    the library's [leak] and [error_bound] to them. The error is that of a convolution over two axes whose weights have
    the absolute sum {weight_norm}, for inputs of at most {input_norm}. *)

From Coq Require Import Reals Lra.
From Interval Require Import Tactic.
From regard Require Import enclosure.
Local Open Scope R_scope.

(** T from N terms of its series and the bound on the rest. *)
Ltac certify_T N :=
  match goal with |- _ <= T ?a <= _ =>
    let a_gt0 := fresh in let lo := fresh in let hi := fresh in
    assert (a_gt0 : 0 < a) by lra; destruct (T_enclosed N a_gt0) as [lo hi];
    split; [refine (Rle_trans _ _ _ _ lo) | refine (Rle_trans _ _ _ hi _)]; clear;
    cbv [bumps square Z.of_nat Z.mul Pos.of_succ_nat Pos.succ Pos.mul Pos.add]; interval with (i_prec 160)
  end.

(** What is computed from T, by the bounds on T. *)
Ltac certify_from T_bounds :=
  unfold error_of, elsewhere; try rewrite leak_ofE by lra;
  let t := fresh in let b := fresh in
  pose proof T_bounds as b; revert b; match goal with |- _ <= T ?a <= _ -> _ => generalize (T a) end; intros t b;
  cbv [pow]; interval with (i_prec 160).
"""


def decimal(fraction: Fraction) -> Decimal:
    return Decimal(fraction.numerator) / Decimal(fraction.denominator)


def tail(alpha: Fraction) -> tuple[Decimal, int]:
    """T to 60 digits, and how many terms leave less than 10⁻²⁶ of it."""
    total, r, a = Decimal(0), 0, decimal(alpha)
    while True:
        r += 1
        term = 2 * (-a * r * r).exp()
        total += term
        if term < total * Decimal("1e-60"):
            break
    needed = next(n for n in range(1, r) if 2 * (-a * (n + 1) ** 2).exp() / (1 - (-a).exp()) < total * Decimal("1e-26"))
    return total, needed


def enclose(value: Decimal, digits: int) -> tuple[str, str]:
    """A decimal number just below and just above."""
    return tuple(  # type: ignore[return-value]
        f"{Context(prec=digits, rounding=rounding).plus(value):.{digits - 1}e}"
        for rounding in (ROUND_FLOOR, ROUND_CEILING)
    )


def rows() -> list[dict[str, object]]:
    """For each α its name, the number of terms and the enclosures."""
    getcontext().prec = 70
    table: list[dict[str, object]] = []
    for alpha in ALPHAS:
        total, terms = tail(alpha)
        kept = 1 / (1 + total)
        leaks = [2 * (1 - kept**axes) for axes in (1, 2, 3)]
        entries = {"T": enclose(total, DIGITS_OF_T), "elsewhere": enclose(total * kept, DIGITS)}
        entries |= {f"leak{axes}": enclose(leak, DIGITS) for axes, leak in zip((1, 2, 3), leaks, strict=True)}
        entries["error"] = enclose(leaks[1] * decimal(WEIGHT_NORM * INPUT_NORM), DIGITS)
        table.append({"alpha": alpha, "terms": terms, **entries})
    return table


def real(fraction: Fraction) -> str:
    return f"({fraction})" if fraction.denominator > 1 else str(fraction)


def coq() -> str:
    parts = [HEAD.format(weight_norm=WEIGHT_NORM, input_norm=INPUT_NORM)]
    for row in rows():
        alpha, name = row["alpha"], str(row["alpha"]).replace("/", "_")
        assert isinstance(alpha, Fraction)
        a = real(alpha)
        terms = {
            "T": f"T {a}",
            "elsewhere": f"elsewhere {a}",
            **{f"leak{axes}": f"leak_of {axes} {a}" for axes in (1, 2, 3)},
            "error": f"error_of 2 {a} {real(WEIGHT_NORM)} {real(INPUT_NORM)}",
        }
        parts.append(f"(** α = {alpha} *)")
        for key, term in terms.items():
            low, high = row[key]  # type: ignore[misc]
            how = f"certify_T {row['terms']}%nat" if key == "T" else f"certify_from T_{name}"
            parts.append(f"Theorem {key}_{name} : {low} <= {term} <= {high}.\nProof. {how}. Qed.")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def toml() -> str:
    lines = [
        "# Certified by certificates.v: each number lies between the two. Written by certificates.py.",
        f'weight_norm = "{WEIGHT_NORM}"',
        f'input_norm = "{INPUT_NORM}"',
    ]
    for row in rows():
        lines += ["", "[[row]]", f'alpha = "{row["alpha"]}"']
        lines += [f'{key} = ["{pair[0]}", "{pair[1]}"]' for key, pair in row.items() if isinstance(pair, tuple)]
    return "\n".join(lines) + "\n"


def main() -> None:
    stale = []
    for name, text in (("certificates.v", coq()), ("certificates.toml", toml())):
        path = HERE / name
        if "--check" in sys.argv[1:]:
            stale += [name] if not path.exists() or path.read_text("utf-8") != text else []
        else:
            path.write_text(text, "utf-8")
    if stale:
        sys.exit(f"{', '.join(stale)} differ from what certificates.py writes: run python proofs/certificates.py")


if __name__ == "__main__":
    main()
