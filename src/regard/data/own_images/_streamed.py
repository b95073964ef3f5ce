"""A set of images that stays on the disk; batches are read ahead while the device works."""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Int64, UInt8
from torch import Tensor

from regard.data.own_images._limits import memory_limit
from regard.data.own_images._pixels import Pixels, empty_batch

AHEAD = 8  # batches that are kept while they wait to be used
UNWANTED = 4  # batches taken since one was announced last, after which it is given up


@lru_cache(maxsize=1)
def _readers() -> ThreadPoolExecutor:
    """Each reads one batch at a time, with the help of the workers."""
    return ThreadPoolExecutor(2, thread_name_prefix="regard-read-ahead")


@dataclass(frozen=True, eq=False)
class StreamedSet:
    """Like :class:`ImageSet`, for images that are read when they are needed. Nothing depends on what was read ahead.

    Attributes:
        source: the pixels of the whole collection.
        rows: the numbers in it of this set's images.
    """

    source: Pixels
    rows: Int64[Tensor, "n"]
    labels: Int64[Tensor, "n"]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    _waiting: "OrderedDict[bytes, Waiting]" = field(default_factory=OrderedDict)
    _taken: list[int] = field(default_factory=lambda: [0])  # batches so far

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        return self.source.shape

    def select(self, which: Bool[Tensor, "n"] | Int[Tensor, "m"]) -> "StreamedSet":
        """The images at these indices, or where the mask is True."""
        return StreamedSet(self.source, self.rows[which], self.labels[which], self.classes, self.mean, self.std)

    def pixels(self, index: Int[Tensor, "m"]) -> UInt8[Tensor, "m channels height width"]:
        """The images at these indices, as bytes."""
        self._taken[0] += 1
        started = self._waiting.pop(_key(index), None)
        return self.source.read(self.rows[index]) if started is None else started.pixels.result()

    def read_ahead(self, index: Int[Tensor, "m"]) -> None:
        """Start to read images that will be wanted soon.

        At most 8 batches wait, and one where two would exceed ``REGARD_DATA_MEMORY``. One that nobody wants any more (its
        run was stopped) makes room.
        """
        key, now = _key(index), self._taken[0]
        if key in self._waiting:
            self._waiting[key] = self._waiting[key]._replace(announced=now)
            return
        for old, waiting in list(self._waiting.items()):
            if now - waiting.announced > UNWANTED:
                self._waiting.pop(old).pixels.cancel()
        if len(self._waiting) < self.most_waiting(len(index)):
            # Room is made in this thread, where it is given back: those of the readers would keep it for themselves.
            room = empty_batch(self.source, len(index))
            self._waiting[key] = Waiting(_readers().submit(self.source.read, self.rows[index], room), now)

    def most_waiting(self, batch: int) -> int:
        """How many batches of this size wait at most."""
        size = max(batch * torch.Size(self.shape).numel(), 1)
        return max(1, min(AHEAD, memory_limit() // size))


class Waiting(NamedTuple):
    """A batch that is read ahead, and when it was announced last."""

    pixels: Future[Tensor]
    announced: int


def _key(index: Tensor) -> bytes:
    return index.to(torch.int64).numpy().tobytes()
