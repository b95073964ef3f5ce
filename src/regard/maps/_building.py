"""Whole maps, some rows at a time, and each compared with what the model computed as it is built."""

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.maps._attention_scores import ALL, AttentionScores, Selection, exact, is_all, product_error, weights_of
from regard.maps._by_kernel import weights_by_kernel
from regard.maps._by_logsumexp import weights_at_once
from regard.maps._record import AttentionRecord, Check, difference
from regard.maps._selection import chosen_count, numbers_of, on_device
from regard.maps._threads import each_in_a_thread

AT_ONCE = 2**14  # up to so many weights a loop takes longer than its work
TILE = 2**19  # scores at a time on a CPU: they fit into its cache
LONG, LOW = 1024, 64  # keys of a long row, and rows of a low tile


@dataclass(frozen=True)
class Room:
    """Where a map goes.

    Attributes:
        make: makes room for it, given the size of its batch: 1 if it is the same for the whole batch.
        dtype: the dtype in which it is kept.
        new: whether a tensor made elsewhere may take its place.
    """

    make: Callable[[int], Tensor]
    dtype: torch.dtype
    new: bool = True

    def __call__(self, batch: int) -> Tensor:
        return self.make(batch)


def build(record: AttentionRecord, rows: Selection, heads: Selection, room: Room, chunk_bytes: int) -> Tensor:
    """The selected weights, written into room for them."""
    every_row = isinstance(rows, slice) and rows == ALL
    if (written := weights_by_kernel(record, heads, room.dtype, rows)) is not None:
        return written if room.new else room(record.shape[0]).copy_(written)
    small = 0 < record.shape[0] * record.shape[1] * chosen_count(rows, record.shape[2]) * record.shape[3] <= AT_ONCE
    if small and is_all(heads) and (found := weights_at_once(record, rows, room.dtype)) is not None:
        return found if room.new else room(len(found)).copy_(found)
    if small and every_row and isinstance(record.running.weights, AttentionScores):
        heads = on_device(heads, record.running.device)
        weights = record.build(ALL, heads).to(room.dtype)
        return weights if room.new else room(len(weights)).copy_(weights)
    if _fits_tiles(record, rows, heads):
        return _in_tiles(record, room)
    made = None
    for start, weights in chunks(record, rows, heads, chunk_bytes):
        if made is None:
            made = room(weights.shape[0])
        made[:, :, start : start + weights.shape[2]] = weights
    return room(record.shape[0]) if made is None else made


def chunks(
    record: AttentionRecord, rows: Selection, heads: Selection, chunk_bytes: int
) -> Iterator[tuple[int, Tensor]]:
    """The selected rows, as many at a time as fit into ``chunk_bytes``, each part with the number of its first row."""
    batch, heads_count, queries, keys = record.shape
    device = record.running.device
    first, numbers = 0, numbers_of(rows, queries)
    if numbers and numbers[-1] - numbers[0] + 1 == len(numbers) and isinstance(rows, slice):
        first, rows = numbers[0], ALL
    step = max(1, chunk_bytes // max(1, 4 * batch * chosen_count(heads, heads_count) * keys))
    heads = on_device(heads, device)
    for start in range(0, len(numbers), step):
        stop = min(start + step, len(numbers))
        chosen: Selection = slice(first + start, first + stop)
        if not isinstance(rows, slice) or rows != ALL:
            chosen = on_device(torch.tensor(numbers[start:stop]), device)
        yield start, record.build(chosen, heads)


def _fits_tiles(record: AttentionRecord, rows: Selection, heads: Selection) -> bool:
    running = record.running
    plain = isinstance(running.weights, AttentionScores) and running.compare is None and running.value is not None
    everything = all(isinstance(chosen, slice) and chosen == ALL for chosen in (rows, heads))
    return plain and everything and running.device.type == "cpu" and 0 not in record.shape


def _tile_sizes(scores: AttentionScores, value_heads: int, threads: int) -> tuple[int, int, int]:
    """Rows, heads and samples of a tile. Long rows that end at their query take fewer rows of more heads: of the keys of a tile
    fewer are seen by none of its rows.

    >>> from regard.maps._band import Band
    >>> x = torch.zeros(1, 8, 2048, 4)
    >>> _tile_sizes(AttentionScores(x, x, 1.0), 8, 1), _tile_sizes(AttentionScores(x, x, 1.0, band=Band(right=0)), 8, 2)
    ((256, 1, 1), (64, 4, 1))
    """
    batch, count, queries, keys = scores.shape
    height = max(1, min(queries, TILE // keys))
    group = max(count // scores.key.shape[1], count // value_heads)
    if scores.band is not None and scores.band.right is not None and keys >= LONG and height > LOW:
        most = min(count // threads, TILE // (LOW * keys)) // group * group
        if most > 0:
            parts = math.ceil(count / most)
            return LOW, math.ceil(count / parts / group) * group, 1
    heads = max(1, min(count, TILE // (height * keys)))
    items = max(1, min(batch, TILE // (height * keys * heads))) if heads == count else 1
    return height, heads, items


def _in_tiles(record: AttentionRecord, room: Room) -> Tensor:
    """Scores, softmax and check of one tile are computed while it is in the cache, and keys that no row of it may see
    are left out. So the map passes through memory once, when it is written."""
    running, (batch, count, queries, keys) = record.running, record.shape
    scores, value = running.weights, running.value
    expected = running.output if running.expected is None else running.expected
    if not isinstance(scores, AttentionScores) or value is None or expected is None:
        raise TypeError(f"{record.name!r} is not computed from scores")
    made = room(batch)
    here = threading.local()
    height, heads, items = _tile_sizes(scores, value.shape[1], torch.get_num_threads())

    def one(where: tuple[slice, slice, Check]) -> None:
        part, chosen, check = where
        if not hasattr(here, "work"):  # one tile after the other uses the same memory, which stays in the cache
            here.work = torch.empty(items * heads * height * keys, dtype=exact(scores.query[:0]).dtype)
        with torch.no_grad():
            for start in range(0, queries, height):
                rows = slice(start, min(start + height, queries))
                first, last = scores.reach(rows.start, rows.stop)
                columns = slice(first, max(last, first + 1))
                found = scores.scores(rows, chosen, columns, part, here.work)
                weights, logsumexp = weights_of(found, scores.may_be_empty)
                made[part, chosen, rows, columns] = weights
                error = product_error(weights, value[part, :, columns], expected[part], rows, chosen)
                log_error = None
                if running.logsumexp is not None:
                    theirs = running.logsumexp[part, chosen, rows]
                    log_error = difference(logsumexp, theirs, scores.may_be_empty)
                check.add(error, log_error)

    parts = [
        (slice(item, item + items), slice(head, min(head + heads, count)), Check())
        for item in range(0, batch, items)
        for head in range(0, count, heads)
    ]
    each_in_a_thread(one, parts, threads=torch.get_num_threads() if made.numel() >= 16 * TILE else 1)
    for _, _, check in parts:
        record.check.add(check.error, check.logsumexp_error)
    return made
