"""Batches that workers read while the device works on earlier ones, in memory that is used again and again."""

from collections import OrderedDict, deque
from typing import Any, NamedTuple
from weakref import finalize

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from regard.data.own_images._limits import memory_limit
from regard.data.own_images._pixels import BatchReading, Pixels, start_reading

AHEAD = 8  # batches that wait at most
IN_USE = 2  # batches that their reader still holds: the last one, while the next is prepared
UNWANTED = 4  # batches taken since one was announced last, after which it may be given up


class Waiting(NamedTuple):
    """A batch that is read ahead, and when it was announced last."""

    reading: BatchReading
    announced: int


class ReadAhead:
    """Reads batches of ``source``; all sets of a collection share it, and so its memory.

    Batches that wait take at most ``REGARD_DATA_MEMORY``, or are one; there are at most 8. Nothing that is read depends
    on what was announced.
    """

    def __init__(self, source: Pixels) -> None:
        self.source = source
        self.waiting: OrderedDict[bytes, Waiting] = OrderedDict()
        self._taken = 0  # batches so far
        self._free: deque[Any] = deque()  # rooms that nobody uses

    def announce(self, rows: Int[Tensor, "m"]) -> None:
        """Start to read these images, which will be wanted soon. One that nobody wants any more makes room."""
        key = rows.numpy().tobytes()
        known = self.waiting.get(key)
        if known is not None:
            self.waiting[key] = known._replace(announced=self._taken)
        elif self._make_room(len(rows)):
            self.waiting[key] = Waiting(start_reading(self.source, rows, self._room(len(rows))), self._taken)

    def take(self, rows: Int[Tensor, "m"]) -> UInt8[Tensor, "m channels height width"]:
        """These images, as bytes."""
        self._taken += 1
        started = self.waiting.pop(rows.numpy().tobytes(), None)
        return (start_reading(self.source, rows) if started is None else started.reading).result()

    def most_waiting(self, batch: int) -> int:
        """How many batches of this size wait at most."""
        return max(1, min(AHEAD, memory_limit() // self._bytes(batch)))

    def _bytes(self, count: int) -> int:
        return max(1, count * torch.Size(self.source.shape).numel())

    def _make_room(self, count: int) -> bool:
        """Whether one more batch may wait. Those that nobody wants are given up for it, the oldest first."""
        for key, each in list(self.waiting.items()):
            if self._fits(count):
                break
            if self._taken - each.announced > UNWANTED:
                self.waiting.pop(key).reading.cancel()
        return self._fits(count)

    def _fits(self, count: int) -> bool:
        images = count + sum(len(each.reading.room) for each in self.waiting.values())
        return not self.waiting or (len(self.waiting) < AHEAD and self._bytes(images) <= memory_limit())

    def _room(self, count: int) -> UInt8[Tensor, "m channels height width"]:
        """Memory for so many images: that of a batch which nobody holds any more, for the system takes as long to provide
        new memory as a copy from the map takes."""
        import numpy as np

        room = None
        while self._free and (room is None or len(room) < count):
            room = self._free.pop()
        if room is None or len(room) < count:
            room = np.empty((count, *self.source.shape), np.uint8)
        lent = room[:count]
        finalize(lent, self._give_back, room).atexit = False  # when the last tensor that shares this memory is gone
        return torch.from_numpy(lent)

    def _give_back(self, room: Any) -> None:
        if len(self._free) < self.most_waiting(len(room)) + IN_USE:
            self._free.append(room)
