"""Symbolic proofs, for all sizes and all numbers at once."""

from functools import cache
from typing import Any

from regard.claims._claim import Evidence


def symbols() -> Any:
    """sympy, imported when a proof is asked for."""
    try:
        import sympy
    except ImportError as missing:
        raise ImportError("symbolic proofs need sympy: pip install 'regard[train]'") from missing
    return sympy


def written(expression: Any) -> str:
    """An expression in mathematical notation."""
    text = str(expression).replace("**", "^").replace("*", " ")
    for name, letter in (
        ("mu2", "μᵀμ"),
        ("sigma", "σ"),
        ("mu", "μ"),
        ("alpha", "α"),
        ("beta", "β"),
        ("Delta", "Δ"),
        ("delta", "δ"),
        ("oo", "∞"),
    ):
        text = text.replace(name, letter)
    return text


def proof(differences: dict[str, Any]) -> Evidence:
    """Accepted if every named difference is identically zero; otherwise the first nonzero one is the counterexample."""
    sympy = symbols()
    left = {name: sympy.factor(sympy.simplify(difference)) for name, difference in differences.items()}
    wrong = {name: rest for name, rest in left.items() if rest != 0}
    numbers: dict[str, Any] = {"identities": len(left), "contradicting": len(wrong), "error": float(bool(wrong))}
    numbers["tolerance"] = 0.5
    if wrong:
        name, rest = next(iter(wrong.items()))
        line = f"{name}: off by {written(rest)}"
        return Evidence(False, line, numbers, line)
    return Evidence(True, f"proved symbolically ({len(left)} identit{'y' if len(left) == 1 else 'ies'})", numbers)


@cache
def normal_moments() -> tuple[Any, Any, tuple[Any, ...]]:
    """μ, σ and E[x⁰], E[x], E[x²] of a normal variable, from its density by integration."""
    sympy = symbols()
    mu, sigma, x = sympy.Symbol("mu", real=True), sympy.Symbol("sigma", positive=True), sympy.Symbol("x", real=True)
    density = sympy.exp(-((x - mu) ** 2) / (2 * sigma**2)) / (sigma * sympy.sqrt(2 * sympy.pi))
    moments = tuple(
        sympy.expand(sympy.simplify(sympy.integrate(x**n * density, (x, -sympy.oo, sympy.oo)))) for n in range(3)
    )
    return mu, sigma, moments
