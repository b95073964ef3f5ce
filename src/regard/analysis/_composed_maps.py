"""Maps that consist of several attentions: parts of a map (``attn``, ``attn#2``, …), and differences of heads.

A module may compute one map of ``regard.capture`` in several calls: heads or chunks of queries in a loop, the values in two
halves, parts of the keys that it merges, or the two terms of a difference. Changes of the model act on these calls. So
whoever changes one by the name of the map must know of the others.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard.maps import AttentionRecord, Joint, RecordListener, Selection, shares_of_softmax

_ROWS = 256  # rows of two maps that are compared at a time

# What is joined: samples, heads, one axis of both, queries, keys, the width of the values, or the terms of a difference.
Way = Literal["batch", "heads", "batch and heads", "queries", "keys", "same keys", "values", "difference"]


@dataclass(frozen=True)
class Composition:
    """One map that consists of several attentions, or of pairs of heads of one.

    Attributes:
        names: the names of the attentions; the first is that of the map.
        way: how they are put together.
        pairs: the two heads whose difference is a head of the map, head by head; empty unless heads are subtracted.
    """

    names: tuple[str, ...]
    way: Way
    pairs: tuple[tuple[int, int], ...] = ()

    def split_pairs(self, heads: Iterable[int]) -> list[tuple[int, int]]:
        """The pairs of which only one head is among these."""
        chosen = set(heads)
        return [pair for pair in self.pairs if len(chosen.intersection(pair)) == 1]


@dataclass(eq=False)
class _Part:
    """One attention of the running call of a module; ``factor``, ``(batch, heads, queries)``, is what scales its rows."""

    record: AttentionRecord
    weights: Callable[[Selection, Selection], tuple[Tensor, Any]]
    factor: Tensor | None = None

    def rows(self, rows: slice) -> Tensor:
        found = self.weights(rows, slice(None))[0]
        found = found.expand(self.record.shape[0], -1, -1, -1)
        return found if self.factor is None else found * self.factor[:, :, rows, None].to(found)


class CompositionListener(RecordListener):
    """A listener that is told which attentions are one map, see :meth:`composed`.

    Attributes:
        lost_by_name: attention of the model that was not seen: its name, and a text with the reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lost_by_name: list[tuple[str, str]] = []
        self._running: dict[str, _Part] = {}

    def composed(self, found: Composition) -> None:
        """The latest outputs of some names were put together: ``capture`` has one map for them."""
        raise NotImplementedError

    def missed(self, name: str, reason: str, shape: tuple[int, ...] | None = None) -> None:
        super().missed(name, reason, shape)
        if not name.startswith("("):  # attention outside of the model is not changed
            self.lost_by_name.append((name, f"{name}: {reason}"))

    def remember(self, record: AttentionRecord) -> None:
        """Keep how to compute the weights of this attention until the next module attends."""
        base = record.name.partition("#")[0]
        if record.name == base or base not in self._running:
            self._running.clear()
        self._running[record.name] = _Part(record, record.running.weights)

    def forget(self) -> None:
        """The block is over: let go of the model's tensors."""
        self._running.clear()

    def _parts(self, names: Sequence[str]) -> list[_Part]:
        """The latest attentions of these names; none unless all are known, with the same queries."""
        parts = [self._running[name] for name in names if name in self._running]
        fit = len(parts) == len(names) and len({part.record.shape[:3] for part in parts}) == 1
        return parts if fit else []

    def joined(self, names: Sequence[str], joint: Joint) -> bool:
        self.composed(Composition(tuple(names), joint.axis))
        return True

    def repeated(self, names: Sequence[str]) -> bool:
        parts = self._parts(names)
        if len({part.record.shape for part in parts}) != 1:
            return False
        for start in range(0, parts[0].record.shape[2], _ROWS):
            rows = slice(start, min(start + _ROWS, parts[0].record.shape[2]))
            first = parts[0].rows(rows)
            if not all(torch.equal(part.rows(rows), first) for part in parts[1:]):
                return False
        self.composed(Composition(tuple(names), "values"))
        return True

    def rescaled(self, name: str, factor: Tensor) -> None:
        part = self._running.get(name)
        if part is not None:
            part.factor = factor if part.factor is None else part.factor * factor

    def subtracted(self, first: str, second: str, factor: Any) -> None:
        self.composed(Composition((first, second), "difference"))

    def heads_subtracted(self, name: str, first: Sequence[int], second: Sequence[int], factor: Any) -> None:
        self.composed(Composition((name,), "difference", tuple(zip(first, second, strict=True))))

    def added(self, names: Sequence[str], factors: Sequence[Any], same_keys: bool) -> bool:
        parts = self._parts(names)
        if not parts or shares_of_softmax([part.rows(slice(None)) for part in parts], factors) is None:
            return False  # a sum of complete attentions: each has its own map
        self.composed(Composition(tuple(names), "same keys" if same_keys else "keys"))
        return True


# The heads of each map, each as the heads of attentions of which it consists.
HeadUnits = dict[str, list[list[tuple[str, int]]]]


def head_units(counts: dict[str, int], compositions: Iterable[Composition]) -> HeadUnits:
    """The heads of each map, each as the heads of attentions of which it consists.

    Args:
        counts: the number of heads of each attention, by name.

    >>> halves = Composition(("attn", "attn#2"), "values")
    >>> head_units({"attn": 2, "attn#2": 2}, [halves])
    {'attn': [[('attn', 0), ('attn#2', 0)], [('attn', 1), ('attn#2', 1)]]}
    >>> head_units({"attn": 2}, [Composition(("attn",), "difference", ((0, 1),))])
    {'attn': [[('attn', 0), ('attn', 1)]]}
    """
    units = {name: [[(name, head)] for head in range(count)] for name, count in counts.items()}
    for found in compositions:
        parts = [units.get(name, []) for name in found.names]
        if found.pairs:
            whole = [parts[0][first] + parts[0][second] for first, second in found.pairs]
        elif found.way == "heads":
            whole = [unit for part in parts for unit in part]
        elif len({len(part) for part in parts}) == 1:
            whole = [[pair for unit in same for pair in unit] for same in zip(*parts, strict=True)]
        else:
            continue
        for name in found.names[1:]:
            units.pop(name, None)
        units[found.names[0]] = whole
    return units


def by_name(units: Iterable[list[tuple[str, int]]]) -> dict[str, list[int]]:
    """These heads of maps as numbers of heads by attention."""
    found: dict[str, list[int]] = {}
    for name, head in (pair for unit in units for pair in unit):
        found.setdefault(name, []).append(head)
    return found


def of_maps(calls: dict[str, list[Tensor]], compositions: Iterable[Composition]) -> dict[str, list[Tensor]]:
    """Derivatives by a factor of each head, ``(batch, heads)`` for each call, as derivatives by the heads of the maps."""
    found = dict(calls)
    for each in compositions:
        parts = [found.get(name, []) for name in each.names]
        if each.pairs:
            first, second = map(list, zip(*each.pairs, strict=True))
            whole = [x[:, first] + x[:, second] for x in parts[0]]
        elif len({len(part) for part in parts}) > 1:
            continue
        elif each.way in ("heads", "batch"):
            whole = [torch.cat(same, 1 if each.way == "heads" else 0) for same in zip(*parts, strict=True)]
        else:
            whole = [torch.stack(same).sum(0) for same in zip(*parts, strict=True)]
        for name in each.names[1:]:
            found.pop(name, None)
        found[each.names[0]] = whole
    return found
