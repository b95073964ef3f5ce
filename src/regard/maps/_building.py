"""Whole maps, some rows at a time, and each compared with what the model computed as it is built."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.maps._attention_scores import ALL, AttentionScores, Selection, is_all
from regard.maps._logsumexp_weights import weights_at_once
from regard.maps._record import AttentionRecord
from regard.maps._selection import chosen_count, numbers_of, on_device
from regard.maps._tiles import fits_tiles, in_tiles
from regard.maps._triton_maps import weights_by_kernel

AT_ONCE = 2**14  # up to so many weights a loop takes longer than its work


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
    if fits_tiles(record, rows, heads):
        return in_tiles(record, room)
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
