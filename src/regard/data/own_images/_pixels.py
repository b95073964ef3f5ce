"""The pixels of a set: in memory, in a memory-mapped file, or in image files that are decoded at each read."""

from collections.abc import Callable
from concurrent.futures import Future
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from regard.data.own_images._decode import UnreadableImage, decode, refuse_unreadable
from regard.data.own_images._limits import workers
from regard.data.own_images._workers import UNDER_WAY, start

Unreadable = list[tuple[str, UnreadableImage]]  # names of files, and why they cannot be read


@runtime_checkable
class Pixels(Protocol):
    """Images of one shape, (channels, height, width), as bytes.

    Attributes:
        where: the folder or file, for errors.
    """

    where: str

    @property
    def shape(self) -> tuple[int, int, int]: ...

    def __len__(self) -> int: ...

    def pieces(self) -> int:
        """The number of pieces of work into which reading a batch is divided."""

    def fill(self, rows: Any, out: Any) -> Unreadable:
        """Write the images with these indices to ``out`` (both are NumPy arrays), in this thread."""


class BatchReading(NamedTuple):
    """A batch that workers are writing to ``room``."""

    room: UInt8[Tensor, "m channels height width"]
    pieces: list[Future[Unreadable]]
    where: str

    def wait(self) -> Unreadable:
        """Wait until all images were tried; returns the names of those that could not be read."""
        return [each for piece in self.pieces for each in piece.result()]

    def result(self) -> UInt8[Tensor, "m channels height width"]:
        refuse_unreadable(self.wait(), len(self.room), self.where)
        return self.room

    def cancel(self) -> None:
        for piece in self.pieces:
            piece.cancel()


def start_reading(pixels: Pixels, rows: Int[Tensor, "m"], room: Tensor | None = None) -> BatchReading:
    """Let workers read the images with these indices, into ``room`` if it is given.

    >>> start_reading(TensorPixels(torch.zeros(5, 1, 2, 2, dtype=torch.uint8)), torch.tensor([3, 0])).result().shape
    torch.Size([2, 1, 2, 2])
    """
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(pixels):
        raise IndexError(f"rows must be in 0 … {len(pixels) - 1}, got {int(rows.min())} … {int(rows.max())}")
    room = torch.empty(len(rows), *pixels.shape, dtype=torch.uint8, device="cpu") if room is None else room
    numbers, target = rows.numpy(), room.numpy()

    def fill(places: range) -> Unreadable:
        part = slice(places.start, places.stop)
        return pixels.fill(numbers[part], target[part])

    return BatchReading(room, start(fill, len(rows), pixels.pieces()), pixels.where)


class TensorPixels:
    """Images in a tensor, which may be a memory map of a file."""

    def __init__(
        self, images: UInt8[Tensor, "n channels height width"], where: str = "memory", *, mapped: bool = False
    ) -> None:
        self.images, self.where, self.mapped = images, where, mapped

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        return len(self.images)

    def pieces(self) -> int:
        """Only a few: a copy takes as long as handing it to a worker, and other workers read the next batch."""
        return max(1, workers() // 2)

    def fill(self, rows: Any, out: Any) -> Unreadable:
        import numpy as np

        # NumPy copies in this thread, torch would start others. Modes other than "clip" copy twice; rows are checked above.
        np.take(self.images.numpy(), rows, axis=0, out=out, mode="clip")
        return []


class DecodedPixels:
    """Images that are decoded from their files at each read.

    Args:
        open_file: opens the file of an image, by its index.
        name: returns the name of an image in errors.
        count: number of images.
        shape: (channels, height, width) of the decoded images.
        where: the folder, for errors.
        largest: pixels of the largest image before scaling.
    """

    def __init__(
        self,
        open_file: Callable[[int], Path | BytesIO],
        name: Callable[[int], str],
        count: int,
        shape: tuple[int, int, int],
        where: str,
        largest: int,
    ) -> None:
        self.open_file, self.name, self.count, self.shape, self.where = open_file, name, count, shape, where
        self.largest = largest

    def __len__(self) -> int:
        return self.count

    def pieces(self) -> int:
        return UNDER_WAY * workers()

    def fill(self, rows: Any, out: Any) -> Unreadable:
        """Returns the names of images that cannot be read; their pixels are not set."""
        unreadable = []
        for number, place in zip(rows.tolist(), out, strict=True):
            image = decode(self.open_file(number), self.shape)
            if isinstance(image, UnreadableImage):
                unreadable.append((self.name(number), image))
            else:
                place[:] = image.numpy()  # in this thread, as above
        return unreadable
