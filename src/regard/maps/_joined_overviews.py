"""Joins the overviews of the calls of ``generate`` into the overview of the whole sequence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.maps._overview import FIRST, KeyStatistics, Overview, QueryStatistics
from regard.maps._record import AttentionRecord
from regard.maps.tokens._positions import Positions
from regard.maps.weights._attention_scores import AttentionScores, Selection

COARSEST = 4  # the joined cells may be so many times larger than those of the calls


@dataclass(frozen=True)
class CallPart:
    """One call: where its queries and keys lie, its overview, and the rows that were kept in full.

    Attributes:
        place: the positions of queries and keys.
        overview: of the call.
        rows: the numbers of the kept rows in the whole sequence.
        stored: their weights, ``(batch, heads, rows, keys)``; None without rows.
        count: how many of the keys exist in the whole sequence. A static cache has room for more.
        scores: queries and keys, if they were kept.
        chosen: the batch row of each final sequence, −1 where the sequence had ended; None for the same rows.
    """

    place: Positions
    overview: Overview
    rows: tuple[int, ...]
    stored: Tensor | None
    count: int
    scores: AttentionScores | None
    chosen: Tensor | None

    @property
    def is_single(self) -> bool:
        """Whether it has one query. Then what each key receives is the weight of that key, for cells of any size."""
        return self.place.queries == 1


def parts_of(
    name: str, calls: Sequence[AttentionRecord], places: Sequence[Positions], chosen: Sequence[Tensor] | None, end: int
) -> list[CallPart]:
    """The calls that remain in the whole sequence of ``end`` queries.

    Args:
        chosen: for each call, the batch row of each final sequence, −1 where the sequence had ended; None for the same rows.
    """
    found: list[CallPart] = []
    for number, (call, place) in enumerate(zip(calls, places, strict=True)):
        while found and found[-1].place.first >= place.first:
            found.pop()  # the call repeats these tokens
        cut = place.first < end < place.end or (found and found[-1].place.end > place.first)
        if cut or call.overview is None:
            raise ValueError(
                f"{name!r}: some tokens of a call were rejected, and its overview does not tell their rows apart: capture this "
                "generation without overview="
            )
        if place.first >= end:
            continue
        keys = place.keys if place.cross else max(0, min(place.keys, end - place.first_key))
        rows = tuple(place.first + row for row in call.rows or ()) if call.stored is not None else ()
        overview, stored = call.overview, call.stored
        row = None if chosen is None else chosen[number]
        if row is not None:
            tensors = {name: _of_sequences(x, row) for name, x in overview.tensors.items()}
            overview = Overview.of(tensors, overview.cell)
            stored = None if stored is None else _of_sequences(stored, row)
        found.append(CallPart(place, overview, rows, stored, keys, call.scores, row))
    return found


def _of_sequences(x: Tensor, row: Tensor) -> Tensor:
    """The batch rows of the final sequences; a sequence that had ended has zeros, and numbers of tokens are −1."""
    row = row.to(x.device)
    ended = (row < 0).view(-1, *[1] * (x.ndim - 1))
    return x[row.clamp_min(0)].masked_fill(ended, 0 if x.is_floating_point() else -1)


def joined(name: str, parts: Sequence[CallPart], end: int, keys: int) -> Overview:
    """The overview of the whole sequence, exact in cells and statistics."""
    cell = _cell(name, parts, end, keys)
    batch, heads = parts[0].overview.mass.shape[:2]
    if any(part.overview.mass.shape[:2] != (batch, heads) for part in parts):
        raise ValueError(f"{name!r}: calls of different numbers of sequences or heads do not belong together")
    whole = Overview.in_cells((batch, heads, end, keys), cell, torch.device("cpu"))
    for part in parts:
        _add_cells(whole, part)
        _add_queries(whole.per_query, part, name)
        _add_keys(whole.per_key, part)
    return whole.kept()


def joined_rows(parts: Sequence[CallPart], keys: int) -> tuple[tuple[int, ...] | None, Tensor | None]:
    """The numbers and the weights of all rows that were kept in full; None without such rows."""
    kept = [(part, part.stored) for part in parts if part.stored is not None and part.rows]
    if not kept:
        return None, None
    padded = []
    for part, stored in kept:
        first = part.place.first_key
        padded.append(torch.nn.functional.pad(stored[..., : part.count], (first, keys - first - part.count)))
    return tuple(row for part, _ in kept for row in part.rows), torch.cat(padded, 2)


class JoinedScores:
    """The kept queries and keys of all calls, from which the weights of the whole sequence are computed.

    Args:
        keys: the number of keys of the whole sequence.
    """

    def __init__(self, parts: Sequence[CallPart], keys: int) -> None:
        self._calls = [(part.scores, part.place, part.count, part.chosen) for part in parts]
        self._keys = keys

    def __call__(self, rows: Tensor, heads: Selection) -> Tensor:
        """The weights of these queries and heads, ``(sequences, heads, rows, keys)``."""
        order: list[Tensor] = []
        found: list[Tensor] = []
        for scores, place, count, chosen in self._calls:
            own = ((rows >= place.first) & (rows < place.end)).nonzero().flatten()
            if scores is not None and (len(own) or not found):  # without rows, the first call says the other sizes
                weights = scores(rows[own] - place.first, heads)[0][..., :count]
                weights = weights if chosen is None else _of_sequences(weights, chosen)
                found.append(torch.nn.functional.pad(weights, (place.first_key, self._keys - place.first_key - count)))
                order.append(own)
        return torch.cat(found, 2)[:, :, torch.cat(order).argsort()]


def _cell(name: str, parts: Sequence[CallPart], end: int, keys: int) -> tuple[int, int]:
    """Sizes of cells into which the cells of every call fit as a whole."""
    several = [part for part in parts if not part.is_single]
    most = max(max(part.overview.mass.shape[2:]) for part in parts)
    sizes = []
    for axis, tokens in enumerate((end, keys)):
        ranges = [_ranges(part, axis) for part in several]
        first, last = (torch.cat([pair[side] for pair in ranges] or [torch.zeros(1).long()]) for side in (0, 1))
        smallest = max((part.overview.cell[axis] for part in several), default=1)
        # Short prompts have small cells, of which a long answer would need many.
        smallest *= max(1, math.ceil(tokens / smallest) // most)
        size = next((n for n in range(smallest, COARSEST * smallest + 1) if torch.equal(first // n, last // n)), None)
        if size is None:
            found = ", ".join(map(str, sorted({part.overview.cell[axis] for part in several})))
            raise ValueError(
                f"{name!r}: its calls have cells of {found} tokens, which do not fit into each other: capture this generation "
                "without overview=, or the prompt in one call"
            )
        sizes.append(size)
    return sizes[0], sizes[1]


def _ranges(part: CallPart, axis: int) -> tuple[Tensor, Tensor]:
    """The first and the last token of each cell of a call, of the queries (axis 0) or of the keys (axis 1)."""
    start = (part.place.first, part.place.first_key)[axis]
    count, size = (part.place.queries, part.count)[axis], part.overview.cell[axis]
    first = torch.arange(start, start + count, size)
    return first, (first + size).clamp_max(start + count) - 1


def _add_cells(whole: Overview, part: CallPart) -> None:
    """Add the masses of a call to the cells in which they lie, and the largest weights."""
    (height, width), place = whole.cell, part.place
    if part.is_single:
        mass = largest = part.overview.per_key.received[:, :, None, : part.count]
        sizes = (1, 1)
    else:
        sizes = part.overview.cell
        columns = math.ceil(part.count / sizes[1])  # the rest are empty slots of a cache
        mass, largest = (x[..., :columns].float() for x in (part.overview.mass, part.overview.largest))
    down = (place.first + sizes[0] * torch.arange(mass.shape[2])) // height
    across = (place.first_key + sizes[1] * torch.arange(mass.shape[3])) // width
    rows = mass.new_zeros(*mass.shape[:3], whole.mass.shape[3])
    whole.mass.index_add_(2, down, rows.index_add(3, across, mass))
    most = rows.scatter_reduce(3, across.expand_as(largest), largest, "amax")
    whole.largest.scatter_reduce_(2, down[:, None].expand_as(most), most, "amax")


def _add_queries(whole: QueryStatistics, part: CallPart, name: str) -> None:
    """Write the statistics of the queries of a call."""
    own, place = part.overview.per_query, part.place
    at = slice(place.first, place.end)
    first, missing = own.first.float(), place.first_key
    if part.is_single:
        first = part.overview.per_key.received[..., : max(0, FIRST - missing)].sum(-1, keepdim=True)
    elif missing >= FIRST:
        first = torch.zeros_like(first)
    elif missing:
        raise ValueError(f"{name!r}: the cache no longer has some of the first keys: capture it without overview=")
    whole.first[..., at] = first
    for kept, x in ((whole.entropy, own.entropy), (whole.distance, own.distance), (whole.largest, own.largest)):
        kept[..., at] = x.float()
    whole.where[..., at] = torch.where(own.where >= 0, own.where + missing, -1)


def _add_keys(whole: KeyStatistics, part: CallPart) -> None:
    """Add what the keys of a call receive."""
    own, place = part.overview.per_key, part.place
    at, count = slice(place.first_key, place.first_key + part.count), part.count
    whole.received[..., at] += own.received[..., :count]
    largest, source = own.largest[..., :count].float(), own.source[..., :count]
    # The smallest weights are 0 in float16, but they have a source.
    better = (largest > whole.largest[..., at]) | ((whole.source[..., at] < 0) & (source >= 0))
    whole.source[..., at] = torch.where(better, source + place.first, whole.source[..., at])
    whole.largest[..., at] = torch.maximum(largest, whole.largest[..., at])
