"""Queries, keys and heads that a caller chooses by their numbers, and which of them exist."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from regard.maps import Rows, checked_selection
from regard.support.checks import describe

# Tokens or heads: a number, a slice or several numbers. Negative ones count from the end; None stands for all.
Chosen = Rows


def checked_chosen(name: str, chosen: Any) -> Chosen:
    """``chosen`` as plain numbers; an error unless it is a number, a slice, several different numbers or None."""
    found = checked_selection(name, chosen)
    numbers = listed(found)
    if not numbers and found is not None and not isinstance(found, slice):
        raise TypeError(f"{name} must be a whole number, a slice or several whole numbers, got {describe(chosen)}")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{name} must be different numbers, got {describe(chosen)}")
    return found


def listed(chosen: Chosen) -> list[int]:
    """The numbers that are chosen one by one; none for a slice or None."""
    if chosen is None or isinstance(chosen, slice):
        return []
    return [chosen] if isinstance(chosen, int) else list(chosen)


def numbers_of(chosen: Chosen, count: int) -> list[int]:
    """The chosen numbers below ``count``, each once; others are left out.

    >>> numbers_of(-1, 5), numbers_of(slice(1, None), 4), numbers_of([0, 9], 3)
    ([4], [1, 2, 3], [0])
    """
    if chosen is None:
        return list(range(count))
    if isinstance(chosen, slice):
        return list(range(count))[chosen]
    return list(dict.fromkeys(n % count for n in listed(chosen) if -count <= n < count))


def count_of(places: Tensor) -> int:
    """The number of tokens of a sequence, of which the places of some are given."""
    return int(places.max()) + 1 if places.numel() else 0


@dataclass
class Named:
    """Which of the numbers that were chosen one by one name something, of all that was seen.

    >>> named = Named([0, 3, -1])
    >>> named.see(torch.arange(3))
    >>> named.absent, named.most
    ([3], 3)
    """

    absent: list[int]
    most: int = field(default=0, init=False)

    def see(self, places: Tensor) -> None:
        """Take the numbers off the list that these places have."""
        count = count_of(places)
        self.most = max(self.most, count)
        if self.absent:
            there = set(places.unique().tolist())
            self.absent = [n for n in self.absent if not -count <= n < count or n % count not in there]
