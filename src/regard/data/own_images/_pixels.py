"""Where the pixels of a set are: in memory, in a memory-mapped file, or in files that are decoded whenever they are read."""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from regard.data.own_images._decode import UnreadableImage, decode, in_chunks, refuse_unreadable


@runtime_checkable
class Pixels(Protocol):
    """Images of one shape, (channels, height, width), as bytes."""

    @property
    def shape(self) -> tuple[int, int, int]: ...

    def __len__(self) -> int: ...

    def read(self, rows: Int[Tensor, "m"], out: Tensor | None = None) -> UInt8[Tensor, "m channels height width"]:
        """The images with these numbers, in ``out`` where that is given."""


def empty_batch(pixels: Pixels, count: int) -> UInt8[Tensor, "m channels height width"]:
    """Room for so many images."""
    return torch.empty(count, *pixels.shape, dtype=torch.uint8)


class TensorPixels:
    """Images in a tensor, which may be a memory map of a file.

    >>> TensorPixels(torch.zeros(5, 1, 2, 2, dtype=torch.uint8)).read(torch.tensor([3, 0])).shape
    torch.Size([2, 1, 2, 2])
    """

    def __init__(self, images: UInt8[Tensor, "n channels height width"], *, mapped: bool = False) -> None:
        self.images = images
        self.mapped = mapped

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        return len(self.images)

    def read(self, rows: Int[Tensor, "m"], out: Tensor | None = None) -> UInt8[Tensor, "m channels height width"]:
        if not self.mapped:
            return self.images.index_select(0, rows)
        import numpy as np

        found = empty_batch(self, len(rows)) if out is None else out
        source, target, numbers = self.images.numpy(), found.numpy(), rows.numpy()
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(source):
            raise IndexError(f"rows must be in 0 … {len(source) - 1}, got {numbers.min()} … {numbers.max()}")

        # Each worker waits for the disk on its own. NumPy copies in one thread; torch would start more in each worker.
        def copy(places: Sequence[int]) -> None:
            part = slice(places[0], places[-1] + 1)
            np.take(source, numbers[part], axis=0, out=target[part], mode="clip")  # other modes copy twice

        in_chunks(copy, range(len(rows)))
        return found


class DecodedPixels:
    """Images that are decoded from their files whenever they are read.

    Args:
        open_file: the file of an image, by its number.
        name: what an error calls it.
        count: number of images.
        shape: (channels, height, width) that all are brought to.
        where: the folder, for errors.
        largest: bytes of the largest image as it is in its file.
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

    def read(self, rows: Int[Tensor, "m"], out: Tensor | None = None) -> UInt8[Tensor, "m channels height width"]:
        found, unreadable = self.try_read(rows, out)
        refuse_unreadable(unreadable, len(rows), self.where)
        return found

    def try_read(
        self, rows: Int[Tensor, "m"], out: Tensor | None = None
    ) -> tuple[UInt8[Tensor, "m channels height width"], list[tuple[str, UnreadableImage]]]:
        """The images, and the names of those that could not be read (their pixels are not set)."""
        found, numbers = empty_batch(self, len(rows)) if out is None else out, rows.tolist()

        def fill(places: Sequence[int]) -> list[tuple[str, UnreadableImage]]:
            unreadable = []
            for place in places:
                image = decode(self.open_file(numbers[place]), self.shape)
                if isinstance(image, UnreadableImage):
                    unreadable.append((self.name(numbers[place]), image))
                else:
                    found[place] = image
            return unreadable

        return found, [each for part in in_chunks(fill, range(len(rows))) for each in part]
