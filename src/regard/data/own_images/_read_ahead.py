"""Workers read batches while the device works on earlier ones, into memory that is reused."""

from collections import OrderedDict, deque
from typing import Any, NamedTuple
from weakref import finalize

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from regard.data.own_images._limits import memory_limit
from regard.data.own_images._pixels import BatchReading, Pixels, start_reading

AHEAD = 8  # largest number of waiting batches
IN_USE = 2  # batches that the caller still holds: the last one, while the next is prepared
UNWANTED = 4  # a batch may be dropped if this many were taken since its last announcement


class Waiting(NamedTuple):
    """A batch that is read in advance, and the time of its last announcement."""

    reading: BatchReading
    announced: int


class ReadAhead:
    """Reads batches of ``source`` in advance. All sets of a collection share one, and so its memory.

    Waiting batches take at most ``REGARD_DATA_MEMORY`` (but one is always allowed), and there are at most 8.
    Announcements do not change the data that is read.
    """

    def __init__(self, source: Pixels) -> None:
        self.source = source
        self.waiting: OrderedDict[bytes, Waiting] = OrderedDict()
        self._taken = 0  # batches so far
        self._free: deque[Any] = deque()  # memory that is not in use

    def announce(self, rows: Int[Tensor, "m"]) -> None:
        """Start to read these images, which will be needed soon. A batch that is no longer needed is dropped to make room."""
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
        """The largest number of waiting batches of this size."""
        return max(1, min(AHEAD, memory_limit() // self._bytes(batch)))

    def _bytes(self, count: int) -> int:
        return max(1, count * torch.Size(self.source.shape).numel())

    def _make_room(self, count: int) -> bool:
        """Whether one more batch may wait. Batches that are no longer needed are dropped for it, the oldest first."""
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
        """Memory for ``count`` images: that of a batch no longer in use, if any, since allocating new memory takes as long
        as copying from the memory map."""
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
