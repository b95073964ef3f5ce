"""The effect of an edit on a map: the edges that it changes, and their new weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.maps import AttentionRecord, Map, Maps
from regard.support.checks import describe

# New weights: a number, a table, a map or maps of another run, or a function; None blocks the edges.
NewWeights = float | Tensor | Map | Maps | Callable[[Tensor], Tensor] | None


def has_keys(new: NewWeights) -> bool:
    """Whether new weights have an entry for each key."""
    return isinstance(new, Map | Maps) or (isinstance(new, Tensor) and new.ndim > 0 and new.shape[-1] > 1)


def check_weights(weights: Any) -> None:
    """Raise an error unless these may be new weights."""
    if weights is None or isinstance(weights, Map | Maps):
        return
    if isinstance(weights, Tensor):
        if not weights.is_floating_point() or weights.ndim > 4:
            raise ValueError(
                f"weights must be floating-point numbers (batch, heads, queries, keys), got {describe(weights)}"
            )
        wrong = weights.detach().isfinite().logical_not_()
        if bool(wrong.any()):
            raise ValueError(f"weights must be finite, but {int(wrong.sum())} of {wrong.numel()} are NaN or infinite")
        return
    if isinstance(weights, bool) or not (isinstance(weights, int | float) or callable(weights)):
        raise TypeError(f"weights must be a number, a tensor, maps, a function or None, got {describe(weights)}")
    if isinstance(weights, int | float) and not abs(weights) < float("inf"):
        raise ValueError(f"weights must be finite, got {weights}")


def least_of(weights: NewWeights) -> float:
    """The least of the numbers that are given as new weights; 0 if they come from a run or a function."""
    if isinstance(weights, Tensor):
        return float(weights.detach().min()) if weights.numel() else 0.0
    return float(weights) if isinstance(weights, int | float) else 0.0


def called(function: Any, part: Tensor, name: str) -> Tensor:
    """What a function makes of these weights, checked."""
    try:
        found = function(part)
    except Exception as error:
        raise ValueError(
            f"weights must be a function of {describe(part)} ({name!r}), but {function!r:.100} raised an error: {error}"
        ) from error
    if not isinstance(found, Tensor) or found.shape != part.shape:
        raise ValueError(
            f"weights ({function!r:.100}) was called with {describe(part)} of {name!r} and must return such a tensor, got "
            f"{describe(found)}"
        )
    return found


@dataclass(frozen=True)
class TokenPlaces:
    """The position of each query and each key in its sequence, ``(batch or 1, tokens)``; −1 for padding of windows."""

    query: Tensor
    key: Tensor

    @classmethod
    def of(cls, record: AttentionRecord) -> "TokenPlaces":
        batch, _, queries, keys = record.shape
        if record.windows is not None:
            index = record.windows.index
            whole = index.repeat(batch // index.shape[0], 1)
            return cls(whole, whole)
        if record.positions is not None:
            return cls(record.positions.query_positions[None], record.positions.key_positions[None])
        # Without a known cache, queries are numbered as in the map.
        return cls(torch.arange(queries)[None], torch.arange(keys)[None])


def indices(positions: Tensor, wanted: list[int]) -> Tensor:
    """The index of each position in ``wanted``; −1 for positions that are not in it."""
    largest = max([*wanted, int(positions.max()) if positions.numel() else 0, 0])
    table = torch.full((largest + 2,), -1)  # the last entry is for padding, since −1 indexes it
    table[torch.tensor(wanted, dtype=torch.long)] = torch.arange(len(wanted))
    return table[positions]


@dataclass(frozen=True)
class Edges:
    """The edges that one edit changes in one attention.

    Attributes:
        heads: numbers of the heads.
        query, key: the index of each query and key among the chosen ones, ``(batch or 1, tokens)``; −1 for the others.
        at: the positions of queries and keys.
    """

    heads: list[int]
    query: Tensor
    key: Tensor
    at: TokenPlaces

    @property
    def rows(self) -> Tensor:
        """The numbers of the queries that are changed in any sample."""
        return (self.query >= 0).any(0).nonzero()[:, 0]

    def mask(self, rows: Tensor) -> Tensor:
        """Whether an edge is changed, ``(batch or 1, 1, rows, keys)``."""
        return (self.query[:, rows] >= 0)[:, None, :, None] & (self.key >= 0)[:, None, None, :]

    @property
    def count(self) -> int:
        pairs = (self.query >= 0).sum(-1) * (self.key >= 0).sum(-1)
        return int(pairs.max()) * len(self.heads) if pairs.numel() else 0


@dataclass(frozen=True)
class WeightTable:
    """Weights by the positions of queries and keys.

    Attributes:
        values: ``(batch or 1, heads, queries, keys)``.
        heads, queries, keys: the numbers that the table covers; None if one entry is for all.
        name: its name in messages.
    """

    values: Tensor
    heads: list[int] | None
    queries: list[int] | None
    keys: list[int] | None
    name: str

    def look_up(self, record: AttentionRecord, edges: Edges, rows: Tensor) -> Tensor:
        """The weights of the edges' heads and these rows, ``(batch, heads, rows, keys)``; arbitrary where no edge is."""
        batch = record.shape[0]
        asked, read = edges.query[:, rows] >= 0, edges.key >= 0
        query = self._places("queries", self.queries, edges.at.query[:, rows], asked, record)
        key = self._places("keys", self.keys, edges.at.key, read, record)
        lacking = [] if self.heads is None else [head for head in edges.heads if head not in self.heads]
        if lacking:
            raise ValueError(f"{self.name} has no head {lacking[0]} of {record.name!r}, which is to be edited")
        head = [0] * len(edges.heads) if self.heads is None else [self.heads.index(head) for head in edges.heads]
        values = self.values
        windows = 1 if record.windows is None else record.windows.count
        if values.shape[0] not in (1, batch // windows):
            raise ValueError(
                f"{self.name} has a batch of {values.shape[0]}, but {record.name!r} runs with {batch // windows}: "
                "pass the weights of one sample, or of all"
            )
        sample = torch.arange(batch) // windows if values.shape[0] > 1 else torch.zeros(batch, dtype=torch.long)
        at = (sample[:, None, None, None], torch.tensor(head)[:, None, None], query[:, None, :, None])
        device = values.device
        return values[(*(x.to(device) for x in at), key[:, None, None, :].to(device))]

    def _places(
        self, axis: str, numbers: list[int] | None, at: Tensor, used: Tensor, record: AttentionRecord
    ) -> Tensor:
        if numbers is None:
            return torch.zeros_like(at)
        places = indices(at, numbers)
        if bool((used & (places < 0)).any()):
            which = at[used & (places < 0)].tolist()[0]
            raise ValueError(
                f"{self.name} has {len(numbers)} {axis}, not the one at position {which} of {record.name!r}, which is to "
                f"be edited: choose fewer {axis} with {axis}=, or pass weights that have it"
            )
        return places.clamp_min(0)


def table_of(new: Tensor, edges: Edges, wanted: tuple[list[int], list[int]], name: str) -> WeightTable:
    """A table from the user's tensor: each axis has size 1, or the number of the chosen heads, queries or keys."""
    values = new[(None,) * (4 - new.ndim)]
    _, heads, queries, keys = values.shape
    sides: list[list[int] | None] = []
    for axis, size, chosen in zip(
        ("heads", "queries", "keys"), (heads, queries, keys), (edges.heads, *wanted), strict=True
    ):
        if size not in (1, len(chosen)):
            raise ValueError(
                f"weights has shape {tuple(new.shape)}, {size} {axis}, but {len(chosen)} {axis} of {name!r} are edited: "
                f"each axis must have this size or 1"
            )
        sides.append(None if size == 1 else chosen)
    return WeightTable(values, sides[0], sides[1], sides[2], "weights")


def table_from_run(source: Map | Maps, record: AttentionRecord, call: int) -> WeightTable:
    """The map of the same name, and of the same call if there are several, from another run."""
    if isinstance(source, Maps) and record.name not in source:
        raise ValueError(f"weights has no map of {record.name!r}; it has {', '.join(source) or 'none'}")
    found: Map = source[record.name] if isinstance(source, Maps) else source
    calls = found.calls
    if len(calls) > 1 and call >= len(calls):
        raise ValueError(f"weights has {len(calls)} calls of {record.name!r}, but it ran {call + 1} times")
    given = calls[call if len(calls) > 1 else 0]
    weights = given.weights
    at = TokenPlaces.of(given) if given.windows is None else None
    queries = list(range(weights.shape[2])) if at is None else at.query[0].tolist()
    keys = list(range(weights.shape[3])) if at is None else at.key[0].tolist()
    rows = queries if given.rows is None else [queries[row] for row in given.rows]
    heads = list(range(weights.shape[1])) if given.heads is None else list(given.heads)
    return WeightTable(weights, heads, rows, keys, f"the map of {given.name!r} in weights")


def without_edges(weights: Tensor, mask: Tensor, kind: str) -> Tensor:
    """The weights if the scores of these edges were −∞: the other keys share the weight of the blocked ones.

    A row without any other key becomes zero. Rows of a softmax with a learned sink or an added one sum to less than
    one; the rest stays in their denominator. Weights of sigmoids, and of products with these, are independent: only the
    blocked ones become zero.
    """
    kept = weights.masked_fill(mask, 0.0)
    if kind in ("sigmoid", "composed"):
        return kept
    total, left = weights.sum(-1, keepdim=True), kept.sum(-1, keepdim=True)
    rest = 1 - total
    rounding = 64 * math.sqrt(weights.shape[-1]) * torch.finfo(weights.dtype).eps
    divisor = left + torch.where(rest > rounding, rest, torch.zeros_like(rest))
    shared = torch.where(left > 0, kept / divisor.masked_fill(left <= 0, 1.0), torch.zeros_like(kept))
    return torch.where(mask.any(-1, keepdim=True), shared, weights)


def with_weights(weights: Tensor, new: Tensor, mask: Tensor, renormalize: bool, name: str) -> Tensor:
    """The weights with new values on some edges. With ``renormalize`` the other weights of each changed row are scaled, so
    that the row keeps its sum."""
    changed = torch.where(mask, new.to(weights), weights)
    if not renormalize:
        return changed
    others = changed.masked_fill(mask, 0.0).sum(-1, keepdim=True)
    room = weights.sum(-1, keepdim=True) - changed.masked_fill(~mask, 0.0).sum(-1, keepdim=True)
    touched = mask.any(-1, keepdim=True).expand_as(room)
    if bool((room < -1e-4)[touched].any()):
        raise ValueError(
            f"weights puts more on the chosen keys of a row of {name!r} than the row has, by up to "
            f"{-float(room.detach()[touched].min()):.3g}: pass less, or renormalize=False"
        )
    factor = torch.where(touched & (others > 0), room.clamp_min(0) / others.clamp_min(1e-30), torch.ones_like(room))
    return torch.where(mask, changed, changed * factor)
