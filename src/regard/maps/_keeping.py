"""The part of a capture that computes what is kept: the weights, an overview of them, or what ``reduce=`` makes of them."""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.maps._container import Maps
from regard.maps._listener import RecordListener
from regard.maps._overview import overview_size, working_size
from regard.maps._record import AttentionRecord
from regard.maps._selection import Rows, chosen_count
from regard.maps._storage import Storage
from regard.maps.weights._attention_scores import AttentionScores, Selection
from regard.maps.weights._building import Room, build, chunks
from regard.maps.weights._map_memory import zeros
from regard.maps.weights._overview_pass import overview_of
from regard.support.text import format_size

LEAST_CHUNK = 8 * 2**20  # bytes of a chunk at least: smaller ones take much longer
SUGGESTED = 128  # cells a side of the overview that is suggested if a map does not fit into the budget


@dataclass(frozen=True)
class OverviewOptions:
    """Options for long maps: the cells a side of an overview (None for whole maps), and whether to keep queries and keys."""

    overview: int | None = None
    keep_keys: bool = False


class Keeping(RecordListener, ABC):
    """The part of a capture that computes what is kept. Its attributes are those of :class:`regard.maps.Capture`."""

    rows: Rows
    dtype: torch.dtype | None
    reduce: Callable[..., Any] | None
    stream: str | Path | None
    long: OverviewOptions
    storage: Storage
    maps: Maps
    by_rows: bool
    chunk_bytes: ClassVar[int]

    @abstractmethod
    def fold(self, name: str) -> None:
        """Pass the weights of this name that wait for it to ``reduce=``."""

    def keep(self, record: AttentionRecord, rows: Selection, heads: Selection) -> str | None:
        """Compute what is kept, and store it in the record. Returns the reason if that is not possible, else None."""
        if self.long.overview is not None:
            return self._keep_overview(record, rows, heads)
        if self.by_rows and not record.running.tentative and record.windows is None:
            self.fold(record.name)
            found = self.maps.get(record.name)
            total = None if found is None else found.reduced
            for start, weights in chunks(record, rows, heads, self._chunk_of_budget()):
                weights = weights if self.dtype is None else weights.to(self.dtype)
                weights = weights.expand(record.shape[0], -1, -1, -1)  # one map may serve the whole batch
                total = self.reduced(total, weights, slice(start, start + weights.shape[2]))
            self.maps.ensure(record.name).reduced = total
            return None
        return self._keep_weights(record, rows, heads)

    def _chunk_of_budget(self, beside: int = 0) -> int:
        """Bytes of a chunk of rows, such that scores, weights and a product of them fit into what is left of the budget.

        Args:
            beside: bytes that the map itself will take.
        """
        left = self.storage.left
        return self.chunk_bytes if left is None else min(self.chunk_bytes, max(LEAST_CHUNK, (left - beside) // 3))

    def reduced(self, total: Any, *given: Any) -> Any:
        """The new total of ``reduce=``, from the total so far and the weights (and their rows, if it takes three arguments)."""
        try:
            return self.reduce(total, *given)  # type: ignore[misc]
        except (TypeError, ValueError, RuntimeError) as error:  # NotImplementedError is one
            asked = "(total, weights, rows)" if len(given) > 1 else "(total, weights)"
            raise TypeError(
                f"reduce must be a function of {asked}, but {self.reduce!r:.100} raised: {error}"
            ) from error

    def _keep_weights(self, record: AttentionRecord, rows: Selection, heads: Selection) -> str | None:
        """Build the weights of these rows and heads: into the storage, or for ``reduce=``."""
        batch, heads_count, queries, keys = record.shape
        running = record.running
        shape = (batch, chosen_count(heads, heads_count), chosen_count(rows, queries), keys)
        dtype = self.dtype or running.dtype
        size = math.prod(shape) * dtype.itemsize
        if self.reduce is not None:
            # Up to one chunk counts as working memory, which is not part of the budget, as for maps that are kept.
            reason = self.storage.why_full(size, what="folding this map at once") if size > self.chunk_bytes else None
            if reason is not None:
                return f"{reason}; a reduce(total, weights, rows) folds some rows at a time" + self._offer(record)
            device = record.running.device
            whole = Room(lambda items: zeros((items, *shape[1:]), dtype, device), dtype)
            record.stored = build(record, rows, heads, whole, self.chunk_bytes)
            return None
        chunk = self._chunk_of_budget(size)
        room = self.storage.allot(shape, dtype, 0 if size <= self.chunk_bytes else 3 * chunk)
        if isinstance(room, str):
            return room + self._offer(record)
        file = room.tensor

        def make(items: int) -> Tensor:
            return zeros((items, *shape[1:]), dtype, running.device) if file is None else file

        made = build(record, rows, heads, Room(make, dtype, file is None), chunk)
        record.stored = made if file is not None else room.keep(made)
        return None

    def _offer(self, record: AttentionRecord) -> str:
        """A suggestion to capture an overview instead, for messages; empty if the map is not long."""
        if record.windows is not None or max(record.shape[2:]) <= SUGGESTED:
            return ""
        size = format_size(overview_size(record.shape, SUGGESTED), binary=True)
        return f"; overview={SUGGESTED} keeps its exact mass in cells, in {size}"

    def _keep_overview(self, record: AttentionRecord, rows: Selection, heads: Selection) -> str | None:
        """Compute the overview, the rows of ``rows=`` in full, and copy queries and keys for ``keep_keys=``."""
        if record.windows is not None or record.axes.over == "samples":
            which = "windows" if record.windows is not None else "queries with keys of their own"
            return f"there is no overview of {which}: capture it without overview="
        if 0 in record.shape:
            return "there is no overview of an empty map: capture it without overview="
        count = chosen_count(heads, record.shape[1])
        shape = (record.shape[0], count, *record.shape[2:])
        cells = self.long.overview or SUGGESTED
        size = overview_size(shape, cells)
        scores = self._scores_to_keep(record) if self.long.keep_keys else None
        size += 0 if scores is None or self.stream is not None else scores.nbytes
        # It is computed in float32, and copied then. Up to one chunk counts as working memory, as for whole maps.
        working = working_size(shape, cells)
        what = "this overview" if scores is None else "this overview and its keys"
        reason = self.storage.take(size, working if working > self.chunk_bytes else 0, what)
        if reason is not None:
            return reason
        if self.rows is not None:
            reason = self._keep_weights(record, rows, heads)
            if reason is not None:
                return reason
        record.overview = overview_of(record, heads, cells).kept()
        if scores is not None:
            record.scores = scores.on_host(self.storage.place)
        return None

    def _scores_to_keep(self, record: AttentionRecord) -> AttentionScores | None:
        """Queries and keys from which rows can be computed later. If they cannot be kept: None, and a note says why."""
        scores = record.running.weights
        if not isinstance(scores, AttentionScores):
            note = "its queries and keys are not known, so that keep_keys= keeps none: choose rows= before"
        elif scores.change is None and scores.mask is None:
            return scores
        elif scores.query.is_cuda:
            note = "functions that need the GPU change its scores, so that keep_keys= keeps no keys"
        else:
            return self._with_functions(record.name, scores)
        self.noted(record.name, note)
        return None

    def _with_functions(self, name: str, scores: AttentionScores) -> AttentionScores:
        """Scores whose functions no longer depend on tensors that the model may change."""
        if self.stream is not None:
            note = "functions change its scores, so that its keys are not in the folder: rows only of these maps"
            self.noted(name, note)
        some = slice(0, 1), slice(0, 1)
        # The functions belong to the user, and may use an object in a way that its copy does not know.
        with contextlib.suppress(Exception):
            own = scores.with_frozen_functions()
            if torch.equal(scores.scores(*some), own.scores(*some)):
                return own
        self.noted(name, "functions read objects that the model may change: rows are right as long as it does not")
        return scores
