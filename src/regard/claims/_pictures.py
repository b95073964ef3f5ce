"""Figures of claims, drawn only when they are shown."""

from collections.abc import Callable
from functools import partial
from typing import ParamSpec

from regard import figures
from regard.claims._row import Row
from regard.figures.style import Figure

Draw = Callable[[], Figure]
P = ParamSpec("P")


def lazily(draw: Callable[P, Figure]) -> Callable[P, Draw]:
    """The same function, but it returns a function without arguments that draws later."""
    return lambda *arguments, **options: partial(draw, *arguments, **options)


bars = lazily(figures.bars)
curves = lazily(figures.curves)
matrices = lazily(figures.matrices)
head_paths = lazily(figures.head_paths)


def picture(row: Row) -> Figure | None:
    """The claim's own figure, or one of how far each variant is from the measurement; None if nothing was measured.

    >>> from regard.claims import picture, verify
    >>> picture(verify("hw4-beta-zero")[0]).axes[0].get_ylabel()
    'largest difference'
    """
    # The statement beside the measurement says the most.
    for evidence in (row.says, row.true):
        if evidence is not None and evidence.draw is not None:
            return evidence.draw()
    variants = {"the statement": row.says, "what is true": row.true, "the mutant": row.mutant}
    found = {name: evidence.numbers for name, evidence in variants.items() if evidence is not None}
    errors = {name: float(numbers["error"]) for name, numbers in found.items() if "error" in numbers}
    if not errors:
        return None
    shown = {name: min(max(error, 1e-17), 1e3) for name, error in errors.items()}
    tolerance = max(float(numbers["tolerance"]) for numbers in found.values() if "tolerance" in numbers)
    return figures.bars(row.claim.id, "largest difference", shown, limit=tolerance, log_y=True)
