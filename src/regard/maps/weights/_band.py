"""``Band``: masks that keep keys by their distance from the query, as causal masks and sliding windows do."""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.maps.weights._masking import hide

_REMEMBERED = 2**18  # elements of the largest block of a mask that is cached


@dataclass(frozen=True)
class Band:
    """Key j is kept for query i where ``−left ≤ j − (i + shift) ≤ right``; None is no limit.

    Attributes:
        left, right: how many keys before and after its own position a query sees; causal attention has right = 0.
        shift: the position of query 0 among the keys: 0 if both are aligned at the start, keys − queries at the end; or
            ``(batch,)``, one for each sequence.
    """

    left: int | None = None
    right: int | None = None
    shift: int | Tensor = 0

    def keeps(self, rows: Tensor, columns: Tensor) -> Tensor:
        """``(rows, columns)``, or ``(batch, 1, rows, columns)`` if sequences differ: whether the key is kept."""
        shift = self.shift if isinstance(self.shift, int) else self.shift.to(rows.device)[:, None, None, None]
        away = columns - (rows[:, None] + shift)
        kept = torch.ones_like(away, dtype=torch.bool)
        if self.left is not None:
            kept &= away >= -self.left
        if self.right is not None:
            kept &= away <= self.right
        return kept

    @property
    def may_hide_all(self) -> bool:
        """Whether a query may see no key at all. Tensor values are not read here: that would synchronize a GPU."""
        ends_before = self.right is not None and self.right < 0  # a query does not see its own key
        return self.left is not None or ends_before or not isinstance(self.shift, int) or self.shift < 0

    @property
    def shifts(self) -> tuple[int, int]:
        """The smallest and the largest shift."""
        if isinstance(self.shift, int):
            return self.shift, self.shift
        return int(self.shift.min()), int(self.shift.max())

    def reach(self, start: int, stop: int, keys: int) -> tuple[int, int]:
        """The range of keys that some query from ``start`` to ``stop`` sees.

        >>> Band(left=2, right=0, shift=10).reach(3, 5, keys=100)
        (11, 15)
        """
        low, high = self.shifts
        first = 0 if self.left is None else max(0, start + low - self.left)
        last = keys if self.right is None else min(keys, stop + high + self.right)
        return min(first, keys), max(min(first, keys), last)

    def hide(self, scores: Tensor, rows: tuple[int, int], columns: tuple[int, int], value: float = -math.inf) -> Tensor:
        """Write ``value`` where a key is not kept, into the scores ``(…, rows, columns)`` of these ranges. Needs equal shifts."""
        for part in self.edges(rows, columns):
            first, last, _ = part.indices(columns[1] - columns[0])
            away = columns[0] + first - rows[0] - self.shifts[0]
            size = rows[1] - rows[0], last - first
            known = _kept if size[0] * size[1] <= _REMEMBERED else _kept.__wrapped__
            hide(scores[..., part], known(self.left, self.right, away, *size).to(scores.device), value)
        return scores

    def edges(self, rows: tuple[int, int] | None, columns: tuple[int, int] | None) -> list[slice]:
        """The parts of a range of keys that need masking for a range of queries: all other keys are seen by every query.

        Without ranges this is everything.

        >>> Band(right=0).edges((8, 16), (0, 9)), Band(right=0).edges((8, 16), (4, 16))
        ([], [slice(5, 12, None)])
        """
        if rows is None or columns is None:
            return [slice(None)]
        (low, high), (first, last) = self.shifts, columns
        seen_from = first if self.left is None else rows[1] - 1 + high - self.left
        seen_to = last if self.right is None else rows[0] + low + self.right + 1
        if seen_from > seen_to:
            return [slice(0, last - first)]
        parts = (slice(0, min(seen_from, last) - first), slice(max(seen_to, first) - first, last - first))
        return [part for part in parts if part.start < part.stop]


@functools.lru_cache(16)
def _kept(left: int | None, right: int | None, away: int, rows: int, columns: int) -> Tensor:
    """The mask of a block whose first key is ``away`` positions after its first query.

    It depends on that distance only, so it is cached: all blocks along a diagonal are the same.
    """
    with torch.inference_mode(False):
        return Band(left, right).keeps(torch.arange(rows), torch.arange(away, away + columns))


def alignment(band: Band | None, queries: int, keys: int) -> int | Tensor:
    """The position of query 0 among the keys: as the mask states it, else such that queries and keys end together."""
    if band is not None:
        return band.shift
    return max(0, keys - queries)
