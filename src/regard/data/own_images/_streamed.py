"""A set of images that stays on the disk; batches are read ahead while the device works."""

from dataclasses import dataclass

from jaxtyping import Bool, Int, Int64, UInt8
from torch import Tensor

from regard.data.own_images._read_ahead import ReadAhead


@dataclass(frozen=True, eq=False)
class StreamedSet:
    """Like :class:`ImageSet`, but images are read when they are needed. Reading ahead never changes a result.

    Attributes:
        reader: reads the images of the whole collection.
        rows: the indices of this set's images in the collection.
    """

    reader: ReadAhead
    rows: Int64[Tensor, "n"]
    labels: Int64[Tensor, "n"]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        return self.reader.source.shape

    def select(self, which: Bool[Tensor, "n"] | Int[Tensor, "m"]) -> "StreamedSet":
        """The images at these indices, or where the mask is True."""
        return StreamedSet(self.reader, self.rows[which], self.labels[which], self.classes, self.mean, self.std)

    def pixels(self, index: Int[Tensor, "m"]) -> UInt8[Tensor, "m channels height width"]:
        """The images at these indices, as bytes."""
        return self.reader.take(self.rows[index])

    def read_ahead(self, index: Int[Tensor, "m"]) -> None:
        """Start to read images that will be needed soon, if memory allows it."""
        self.reader.announce(self.rows[index])
