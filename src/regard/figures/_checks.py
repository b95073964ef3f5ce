"""Checks of arguments, so that an error names the argument and not a line of matplotlib."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from regard.support.checks import check_flag, check_text, describe, is_functional


def check_labels(**texts: Any) -> None:
    for name, text in texts.items():
        check_text(name, text)


def check_flags(**flags: Any) -> None:
    for name, flag in flags.items():
        check_flag(name, flag)


def check_named(name: str, value: Any, what: str, fits: Callable[[Any], bool]) -> None:
    """Check for a mapping from names to ``what`` with at least one entry."""
    if not isinstance(value, Mapping) or not value or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name} must map names to {what}, got {describe(value):.200}")
    for key, entry in value.items():
        if not fits(entry):
            raise TypeError(
                f"{name} must map names to {what}, got {describe(entry):.200} for {key!r} ({type(value).__name__})"
            )


def check_finite(name: str, *values: Tensor) -> None:
    """Check for numbers that have a color: NaN would be drawn as the page, like a weight of zero."""
    for value in values:
        if not bool(value.isfinite().all()):
            raise ValueError(f"{name} must be finite to be drawn, got {describe(value)} with NaN or infinity")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple | range) and all(map(is_number, value))


def is_drawable(value: Any) -> bool:
    """Whether this is a tensor of real numbers that has values."""
    return isinstance(value, Tensor) and not value.is_complex() and not is_functional(value) and not value.is_sparse


def is_matrix(value: Any) -> bool:
    return is_drawable(value) and value.ndim == 2 and value.numel() > 0


def has_single_point(values: Sequence[int | float]) -> bool:
    """Whether one of the values has none beside it, so that no line shows it."""
    known = [False, *map(math.isfinite, values), False]
    return any(here and not (before or after) for before, here, after in zip(known, known[1:], known[2:], strict=False))


def is_pair_of_numbers(value: Any) -> bool:
    return is_numbers(value) and len(value) == 2
