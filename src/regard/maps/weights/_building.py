"""Builds whole maps, in the fastest way that applies, and compares each with what the model computed.

In this order: a Triton kernel, one batched product for small maps on a CPU, tiles that fit into the CPU's cache, and
chunks of rows for everything else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.maps._record import AttentionRecord
from regard.maps._selection import chosen_count, numbers_of, on_device
from regard.maps.weights._attention_scores import ALL, AttentionScores, Selection, is_all
from regard.maps.weights._logsumexp_weights import weights_at_once
from regard.maps.weights._tiles import fits_tiles, in_tiles
from regard.maps.weights._triton_maps import weights_by_kernel

AT_ONCE = 2**14  # weights of a map up to which it is computed in one piece: calling operators takes longer than they do


@dataclass(frozen=True)
class Room:
    """Where a map is written: into new memory, or into a file.

    Attributes:
        make: allocates the tensor, given the size of its batch (1 if the map is the same for the whole batch).
        dtype: the dtype in which the map is kept.
        new: whether the map may also be a tensor that was allocated elsewhere; False for a file, which must be filled.
    """

    make: Callable[[int], Tensor]
    dtype: torch.dtype
    new: bool = True

    def __call__(self, batch: int) -> Tensor:
        return self.make(batch)


def build(record: AttentionRecord, rows: Selection, heads: Selection, room: Room, chunk_bytes: int) -> Tensor:
    """The selected weights, in the tensor that ``room`` gives, or in a new one if it allows that."""
    if (written := weights_by_kernel(record, heads, room.dtype, rows)) is not None:
        return written if room.new else room(record.shape[0]).copy_(written)
    small = 0 < record.shape[0] * record.shape[1] * chosen_count(rows, record.shape[2]) * record.shape[3] <= AT_ONCE
    if small and is_all(heads) and (found := weights_at_once(record, rows, room.dtype)) is not None:
        return found if room.new else room(len(found)).copy_(found)
    if small and is_all(rows) and isinstance(record.running.weights, AttentionScores):
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
    """The weights of the selected rows, as many at a time as fit into ``chunk_bytes``, each part with its first row."""
    batch, heads_count, queries, keys = record.shape
    device = record.running.device
    first, numbers = 0, numbers_of(rows, queries)
    if numbers and numbers[-1] - numbers[0] + 1 == len(numbers) and isinstance(rows, slice):
        first, rows = numbers[0], ALL
    bytes_of_row = record.running.dtype.itemsize * batch * chosen_count(heads, heads_count) * keys
    step = max(1, chunk_bytes // max(1, bytes_of_row))
    heads = on_device(heads, device)
    for start in range(0, len(numbers), step):
        stop = min(start + step, len(numbers))
        chosen: Selection = slice(first + start, first + stop)
        if not is_all(rows):
            chosen = on_device(torch.tensor(numbers[start:stop]), device)
        yield start, record.build(chosen, heads)
