"""The part of a capture that changes maps which it already kept.

What the model does with an output may show that its map must be rescaled, subtracted from another one or joined with
others, or that its heads come in another order. The methods are those of :class:`regard.maps.RecordListener`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.maps._keeping import Keeping
from regard.maps._record import AttentionRecord
from regard.maps._selection import Rows
from regard.maps.outputs._combinations import per_row, shares_of_softmax
from regard.maps.outputs._joining import Joint, join


class Revisions(Keeping):
    """The part of a capture that changes kept maps. Its attributes are those of :class:`regard.maps.Capture`."""

    _waiting: dict[str, Tensor]
    heads: Rows

    def _latest(self, name: str) -> AttentionRecord | None:
        found = self.maps.get(name)
        return None if found is None or not found.calls else found.latest

    def retract(self, name: str) -> None:
        self._waiting.pop(name, None)
        removed = self.maps.remove_latest(name)
        if removed is not None and removed.stored is not None:
            self.storage.release(removed.stored)
        if removed is not None and removed.overview is not None:
            self.storage.used -= removed.overview.nbytes
            if removed.scores is not None and self.stream is None:
                self.storage.used -= removed.scores.nbytes
            elif removed.scores is not None:
                self.storage.release(removed.scores.query)
                self.storage.release(removed.scores.key)

    def rescaled(self, name: str, factor: Tensor) -> None:
        record = self._latest(name)
        if record is None:
            return
        if record.overview is not None:
            self.missed(name, "its output was rescaled after its overview was computed", record.shape)
            self.retract(name)
            return
        if record.stored is None:
            self.missed(name, "its output was rescaled after its map was folded by reduce=", record.shape)
            return
        record.stored.mul_(_of_kept(record, factor, record.shape[1]).unsqueeze(-1).to(record.stored))

    def subtracted(self, first: str, second: str, factor: Any) -> None:
        one, two = self._latest(first), self._latest(second)
        if one is None or two is None:
            return
        if one.overview is not None:
            self.missed(first, f"{second} is subtracted from it: both have an overview of their own", one.shape)
        elif one.stored is None or two.stored is None:
            self.missed(first, f"{second} is subtracted from it: both were folded by reduce= on their own", one.shape)
        if one.stored is None or two.stored is None:
            return
        rows = per_row(factor, one.stored)
        if rows is None or one.stored.shape != two.stored.shape:
            return
        one.stored.sub_(_of_kept(one, rows, one.shape[1]).unsqueeze(-1) * two.stored)
        one.kind = "difference"
        one.check.add(two.check.error, two.check.logsumexp_error)
        self.retract(second)

    def heads_subtracted(self, name: str, first: Sequence[int], second: Sequence[int], factor: Any) -> None:
        record = self._latest(name)
        if record is None:
            return
        reason = None
        if record.heads is not None:
            reason = "heads= chooses from both: capture it without heads="
        elif record.overview is not None:
            reason = "its overview is that of both"
        elif record.stored is None:
            reason = "both were folded by reduce="
        if reason is not None:
            self.missed(name, f"some of its heads are subtracted from others: {reason}", record.shape)
        if record.stored is None or record.heads is not None:
            return
        before = record.stored
        rows = per_row(factor, before)
        if rows is None:
            return
        rows = _of_kept(record, rows, len(first))
        difference = before[:, list(first)] - rows.unsqueeze(-1) * before[:, list(second)]
        record.stored = self.storage.replace(before, difference)
        record.kind, record.norms = "difference", None
        record.shape = (record.shape[0], len(first), *record.shape[2:])

    def repeated(self, names: Sequence[str]) -> bool | None:
        records = [self._latest(name) for name in names]
        if None not in records and (self.reduce is not None or self.long.overview is not None):
            return None
        stored = [None if record is None else record.stored for record in records]
        if stored[0] is None:
            return False
        if not all(weights is not None and torch.equal(weights, stored[0]) for weights in stored[1:]):
            return False
        for name in names[1:]:
            self.retract(name)
        return True

    def added(self, names: Sequence[str], factors: Sequence[Any], same_keys: bool) -> bool:
        """Join the maps if they are parts of one softmax: then their rows, scaled by the factors, sum to one over all keys.

        A sum of several complete attentions remains several maps.
        """
        records = [record for name in names if (record := self._latest(name)) is not None]
        if len(records) != len(names) or not _joinable(records) or self.stream is not None:
            return False
        parts = shares_of_softmax([record.stored for record in records if record.stored is not None], factors)
        if parts is None:
            return False
        before = [record.stored for record in records]
        for record, part in zip(records, parts, strict=True):
            record.stored = part
        if self.joined(names, Joint("same keys" if same_keys else "keys")):
            return True
        for record, weights in zip(records, before, strict=True):
            record.stored = weights
        return False

    def joined(self, names: Sequence[str], joint: Joint) -> bool:
        records = [record for name in names if (record := self._latest(name)) is not None]
        given = (self.rows, self.heads, self.reduce, self.long.overview, self.stream)
        named = zip(("rows=", "heads=", "reduce=", "overview=", "stream="), given, strict=True)
        options = " and ".join(name for name, value in named if value is not None)
        if options and len(names) > 1:
            self.noted(
                names[0], f"it is computed in parts (#2, #3, …), which are joined to one map only without {options}"
            )
        if options or len(records) != len(names) or not _joinable(records, folded=joint.axis == "batch and heads"):
            return False
        sizes = [record.stored.nbytes for record in records if record.stored is not None]
        whole = join(records, joint)
        if whole is None or whole.stored is None:
            return False
        size = whole.stored.nbytes
        if not self.storage.has_room(size - sum(sizes)):
            return False  # the parts remain
        for name in names[1:]:
            self.retract(name)
        self.storage.used += size - sizes[0]
        self.maps[names[0]].calls[-1] = whole
        return True

    def regrouped(self, name: str, known: bool) -> None:
        record = self._latest(name)
        if record is None:
            return
        if record.overview is not None or record.heads is not None:
            self.missed(
                name,
                "its heads and samples are one axis, in which heads come first or nothing shows which: capture it without "
                "overview= and heads=",
                record.shape,
            )
            self.retract(name)
            return
        kept = record.stored if record.stored is not None else self._waiting.get(name)
        if kept is None or self.stream is not None:
            self.missed(
                name, "its heads and samples are one axis, and nothing showed in time which comes first", record.shape
            )
            return
        batch, heads = record.shape[:2]
        flat = kept.flatten(0, 1)
        new = flat.unflatten(0, (heads, batch)).transpose(0, 1).contiguous() if known else flat.unsqueeze(1)
        if record.stored is not None:
            record.stored = new
        else:
            self._waiting[name] = new
        record.norms = None
        if not known:
            record.shape = (batch * heads, 1, *record.shape[2:])
            record.axes = replace(record.axes, certainty="ambiguous")


def _joinable(records: Sequence[AttentionRecord], folded: bool = False) -> bool:
    """Whether these are whole maps over tokens, without windows, whose axes are certain, or are known to be ``folded``."""
    return all(
        record.stored is not None
        and record.rows is None
        and record.heads is None
        and record.windows is None
        and (folded or record.axes.certainty != "ambiguous")
        and record.axes.over == "tokens"
        for record in records
    )


def _of_kept(record: AttentionRecord, factor: Tensor, heads: int) -> Tensor:
    """Factors of all rows of a map, which broadcast with ``(batch, heads, queries)``, for those rows and heads that are kept."""
    if factor.ndim == 0 or (record.heads is None and record.rows is None):
        return factor
    factor = factor.expand(record.shape[0], heads, record.shape[2])
    for axis, chosen in ((1, record.heads), (2, record.rows)):
        if chosen is not None:
            factor = factor.index_select(axis, torch.tensor(chosen, device=factor.device))
    return factor
