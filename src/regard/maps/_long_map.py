"""The part of a map for long texts: an overview, statistics of every token, and exact rows on demand."""

import contextlib
import operator
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from regard.maps._overview import KeyStatistics, Overview, QueryStatistics
from regard.maps._record import AttentionRecord
from regard.maps._selection import Numbers, checked_selection, select


class LongMap(ABC):
    """The part of :class:`regard.maps.Map` that long texts need."""

    name: str

    @property
    @abstractmethod
    def latest(self) -> AttentionRecord:
        """The record of the latest call."""

    @property
    def overview(self) -> Float[Tensor, "batch heads rows columns"]:
        """The exact mass of each cell of the map, ``(batch, heads, cells, cells)``, from ``capture(overview=…)``."""
        return self._overview.mass

    @property
    def overview_largest(self) -> Float[Tensor, "batch heads rows columns"]:
        """The largest weight in each cell of the map."""
        return self._overview.largest

    @property
    def cell(self) -> tuple[int, int]:
        """How many queries and how many keys a cell of the overview covers."""
        return self._overview.cell

    @property
    def per_query(self) -> QueryStatistics:
        """Statistics of every query: entropy, mass on the first keys, mean distance, largest weight and its key."""
        return self._overview.per_query

    @property
    def per_key(self) -> KeyStatistics:
        """Statistics of every key: the mass it receives, the largest weight, and the query that gives it."""
        return self._overview.per_key

    @property
    def _overview(self) -> Overview:
        if self.latest.overview is None:
            raise ValueError(f"{self.name!r} has no overview: capture it with regard.capture(model, overview=128)")
        return self.latest.overview

    def row(self, index: int) -> Float[Tensor, "batch heads keys"]:
        """The exact weights of one query: kept by ``rows=``, or computed from the queries and keys of ``keep_keys=True``."""
        count = self.latest.sides[0]
        with contextlib.suppress(TypeError):
            index = index if isinstance(index, bool) else operator.index(index)  # also of numpy and torch
        if type(index) is not int or not -count <= index < count:
            raise IndexError(f"row must be a whole number from {-count} to {count - 1}, got {index!r:.40}")
        return self.latest.block(torch.tensor([index % count]))[:, :, 0]

    def block(self, rows: Numbers = None, columns: Numbers = None) -> Float[Tensor, "batch heads rows columns"]:
        """The exact weights of some queries and keys, as in :meth:`row`; None selects all."""
        chosen = []
        sides = self.latest.sides
        for name, wanted, count in (("rows", rows, sides[0]), ("columns", columns, sides[1])):
            selection = select(checked_selection(name, wanted), count)
            if isinstance(selection, str):
                raise IndexError(f"{name}={wanted!r:.80}: {selection}")
            chosen.append(selection)
        return self.latest.block(*chosen)
