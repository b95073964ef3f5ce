"""Selections of attention to keep: by patterns of names, and by indices of rows and heads."""

import fnmatch
import operator
from collections.abc import Collection, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from regard.maps.weights._attention_scores import Selection
from regard.support.checks import describe, is_iterable

# What a caller may pass: also whole numbers of numpy and torch, alone or in an array.
Numbers = SupportsIndex | slice | Collection[SupportsIndex] | Tensor | None
# The same as plain numbers, see checked_selection.
Rows = int | slice | Sequence[int] | None


def matches(name: str, only: str | Sequence[str] | None) -> bool:
    """Whether a name matches one of the patterns. Without patterns every name does.

    >>> matches("blocks.3.attn", "blocks.*"), matches("head", ["blocks.*", "neck"])
    (True, False)
    """
    patterns = [only] if isinstance(only, str) else only
    return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def may_match(name: str, only: str | Sequence[str] | None) -> bool:
    """Whether attention of this name may be a part of a map whose name matches: parts of a map are called ``x, x#2, …``.

    >>> may_match("blocks.3.attn#2", "*.attn"), may_match("blocks.3.attn#2", "neck")
    (True, False)
    """
    return matches(name, only) or matches(name.partition("#")[0], only)


def check_patterns(name: str, only: Any) -> None:
    """Raise an error unless ``only`` is a pattern, several, or None."""
    if only is None:
        return
    patterns = (only,) if isinstance(only, str) else only
    if not is_iterable(patterns, Collection) or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f'{name} must be a pattern such as "blocks.*", or several, got {describe(only)}')


def checked_selection(name: str, chosen: Any) -> Rows:
    """``chosen`` as a whole number, a slice, a list of whole numbers, or None. Raises an error if it is none of these.

    Whole numbers of numpy and torch count as well, also several in one array: statistics of maps are tensors.

    >>> checked_selection("rows", torch.tensor([4, 0])), checked_selection("rows", torch.tensor(3))
    ([4, 0], 3)
    """
    if chosen is None or type(chosen) is int:
        return chosen
    if isinstance(chosen, slice):
        parts = (chosen.start, chosen.stop, chosen.step)
        start, stop, step = (None if part is None else whole_number(part) for part in parts)
        wrong = [
            part for part, whole in zip(parts, (start, stop, step), strict=True) if part is not None and whole is None
        ]
        if wrong or (step is not None and step < 1):
            raise ValueError(f"{name} must be a slice of whole numbers with a step of 1 or more, got {chosen}")
        return slice(start, stop, step)
    if not is_iterable(chosen, Collection) or getattr(chosen, "ndim", 1) == 0:
        number = whole_number(chosen)
        if number is not None:
            return number
    elif getattr(chosen, "ndim", 1) == 1:
        numbers = [whole_number(each) for each in chosen]
        if None not in numbers:
            return numbers  # type: ignore[return-value]
    raise TypeError(f"{name} must be a whole number, a slice or several whole numbers, got {describe(chosen)}")


def whole_number(number: Any) -> int | None:
    """A whole number, also of numpy or torch; None for anything else. A boolean is none: a mask is no list of numbers."""
    if isinstance(number, bool) or getattr(number, "dtype", None) in (torch.bool, "bool"):
        return None
    try:
        return operator.index(number)
    except TypeError:
        return None


def chosen_count(chosen: Selection, count: int) -> int:
    """How many of ``count`` indices a selection selects.

    >>> chosen_count(slice(None, None, 2), 5), chosen_count(torch.tensor([0, 4]), 5)
    (3, 2)
    """
    return len(range(count)[chosen]) if isinstance(chosen, slice) else len(chosen)


def numbers_of(chosen: Selection, count: int) -> tuple[int, ...]:
    """The indices that a selection selects, of ``count``.

    >>> numbers_of(slice(-2, None), 5), numbers_of(torch.tensor([0, 4]), 5)
    ((3, 4), (0, 4))
    """
    return tuple(range(count)[chosen]) if isinstance(chosen, slice) else tuple(chosen.tolist())


def on_device(chosen: Selection, device: torch.device) -> Selection:
    """The selection for tensors on this device. The copy is asynchronous."""
    return chosen if isinstance(chosen, slice) else chosen.to(device, non_blocking=True)


def select(chosen: Rows, count: int) -> Selection | str:
    """A selection along an axis of size ``count``, or the reason why there is none. Slices get a start and a stop from 0 on.

    >>> select(slice(-2, None), 5), select(slice(1, 99, 2), 5), select([-1, 0], 5)
    (slice(3, 5, None), slice(1, 5, 2), tensor([4, 0]))
    """
    if chosen is None:
        return slice(None)
    if isinstance(chosen, slice):
        start, stop, step = chosen.indices(count)
        if (start, stop, step) == (0, count, 1):
            return slice(None)
        return slice(start, max(start, stop), None if step == 1 else step)
    numbers = [chosen] if isinstance(chosen, int) else list(chosen)
    if any(not -count <= n < count for n in numbers):
        return f"there are only {count}"
    numbers = [n % count for n in numbers]
    if numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))  # a slice gives a view, and need not be copied to a device
    return torch.tensor(numbers, dtype=torch.long)
