"""A set of images that stays on the disk; batches are read ahead while the device works."""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from jaxtyping import Bool, Int, Int64, UInt8
from torch import Tensor

from regard.data.own_images._pixels import Pixels

AHEAD = 8  # batches that are kept while they wait to be used


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
    _waiting: "OrderedDict[bytes, Future[Tensor]]" = field(default_factory=OrderedDict)

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
        started = self._waiting.pop(_key(index), None)
        return self.source.read(self.rows[index]) if started is None else started.result()

    def read_ahead(self, index: Int[Tensor, "m"]) -> None:
        """Start to read images that will be wanted soon. At most 8 batches wait; the oldest are dropped."""
        key = _key(index)
        if key in self._waiting:
            return
        self._waiting[key] = _readers().submit(self.source.read, self.rows[index])
        while len(self._waiting) > AHEAD:
            self._waiting.popitem(last=False)[1].cancel()


def _key(index: Tensor) -> bytes:
    return index.to(torch.int64).numpy().tobytes()
