"""Image data sets: reading the files, splitting off a validation set, and the test set."""

import struct
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int, Int64, UInt8
from torch import Tensor

from regard.data._cache import read_members
from regard.data._random import random_bits
from regard.data._sources import Source, Split, source_of
from regard.support.checks import describe


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images ``(n, channels, height, width)`` as bytes, with their labels.

    ``mean`` and ``std``, per channel in [0, 1], are those of the whole official training set for every split, so that a
    model is evaluated with the numbers it was trained with.

    >>> train = regard.data.load("fashion-mini").train
    >>> len(train), tuple(train.images.shape), train.classes[train.labels[0]]
    (5400, (5400, 1, 28, 28), 'Ankle boot')
    """

    images: UInt8[Tensor, "n channels height width"]
    labels: Int64[Tensor, "n"]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            raise ValueError(f"images must be uint8 (n, channels, height, width), got {describe(self.images)}")
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            raise ValueError(
                f"labels must be int64, one for each of the {len(self.images)} images, got {describe(self.labels)}"
            )
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) != self.images.shape[1]:
                raise ValueError(f"{name} has {len(numbers)} numbers but images have {self.images.shape[1]} channels")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def pixels(self, index: Int[Tensor, "m"]) -> UInt8[Tensor, "m channels height width"]:
        """The images at these indices, as bytes."""
        return self.images.index_select(0, index)

    def select(self, which: Bool[Tensor, "n"] | Int[Tensor, "m"]) -> "ImageSet":
        """The images at these indices, or where the mask is True."""
        return ImageSet(self.images[which], self.labels[which], self.classes, self.mean, self.std)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set: ``train`` and ``validation``, two parts of the official training set, and the official test set. The
    test set is a method, :meth:`test`, to prevent its use by accident.

    Files are read when they are first needed.
    """

    source: Source
    validation_count: int
    download: bool

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        return self.source.shape

    @property
    def mean(self) -> tuple[float, ...]:
        return self.source.mean

    @property
    def std(self) -> tuple[float, ...]:
        return self.source.std

    @property
    def notes(self) -> tuple[str, ...]:
        """Problems of the data; empty for published data sets."""
        return ()

    @cached_property
    def train(self) -> ImageSet:
        return self._official_train.select(~self._held_out)

    @cached_property
    def validation(self) -> ImageSet:
        return self._official_train.select(self._held_out)

    def test(self) -> ImageSet:
        """The official test set, for the final evaluation of a finished model (``regard evaluate``). Use ``validation``
        for every choice."""
        return self._read("test")

    @cached_property
    def _official_train(self) -> ImageSet:
        return self._read("train")

    @cached_property
    def _held_out(self) -> Tensor:
        return validation_mask(self._official_train.labels, self.validation_count, len(self.classes))

    def _read(self, split: Split) -> ImageSet:
        members = self.source.files[split]
        contents = read_members(self.source, members, allow_download=self.download)
        if members[0].endswith(".bin"):
            images, labels = _parse_cifar(b"".join(contents), self.shape)
        else:
            images, labels = parse_idx(contents[0])[:, None], parse_idx(contents[1]).long()
        return ImageSet(images, labels, self.classes, self.mean, self.std)


def load(name: str, *, validation: int | float = 0.1, download: bool = True) -> DataSet:
    """A data set by name: ``"cifar10"``, ``"fashion-mnist"`` or ``"fashion-mini"`` (inside the package).

    Args:
        validation: the size of the validation set, as a number of images or a share of the official training set in
            [0, 1). Classes are balanced, and the images are always the same. ``0`` trains on everything.
        download: whether to download missing files. Otherwise a missing file is an error that names the file and its
            folder.

    >>> data = regard.data.load("fashion-mini")
    >>> len(data.train), len(data.validation), len(data.test())
    (5400, 600, 1000)
    >>> data.validation.labels.bincount()
    tensor([60, 60, 60, 60, 60, 60, 60, 60, 60, 60])
    """
    source = source_of(name)
    check_validation(validation)
    if isinstance(validation, float):
        validation = round(validation * source.train_count)
    if validation >= source.train_count:
        raise ValueError(f"validation is {validation} images but {name} has only {source.train_count} for training")
    return DataSet(source, validation, download)


def check_validation(validation: object) -> None:
    if (
        isinstance(validation, bool) or not isinstance(validation, int | float) or not validation >= 0
    ):  # refuses NaN, too
        raise ValueError(f"validation must be a number of images or a share in [0, 1), got {describe(validation)}")
    if isinstance(validation, float) and validation >= 1:
        raise ValueError(f"validation as a share must be less than 1, got {validation}; a count is a whole number")


def validation_mask(labels: Int64[Tensor, "n"], count: int, classes: int) -> Bool[Tensor, "n"]:
    """True for the ``count`` images of the validation set: of each class the ``count // classes`` images (one more for the
    first classes if there is a remainder) whose index has the smallest hash. A larger count only adds images.
    """
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    ranks = random_bits(torch.arange(len(labels)), "validation")
    for label in range(classes):
        members = (labels == label).nonzero().flatten()
        share = count // classes + (label < count % classes)
        if share > len(members):
            raise ValueError(f"validation needs {share} images of class {label}, which has only {len(members)}")
        held_out[members[ranks[members].argsort()[:share]]] = True
    return held_out


def parse_idx(content: bytes) -> UInt8[Tensor, "..."]:
    """The tensor in an idx file of bytes: two zeros, 8 (bytes), the number of axes, their big-endian sizes, the values.

    >>> from regard.data._image_sets import parse_idx
    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    tensor([7, 9], dtype=torch.uint8)
    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or len(content) < 4 + 4 * content[3]:
        raise ValueError(f"not an idx file of bytes: it begins with {content[:4].hex(' ')}")
    axes = content[3]
    shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
    values = torch.frombuffer(bytearray(content), dtype=torch.uint8)[4 + 4 * axes :]
    if values.numel() != torch.Size(shape).numel():
        raise ValueError(f"an idx file of shape {shape} holds {values.numel()} values")
    return values.reshape(shape)


def _parse_cifar(content: bytes, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Records of one label byte and the image's bytes, channel by channel."""
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, 1 + torch.Size(shape).numel())
    return records[:, 1:].reshape(-1, *shape), records[:, 0].long()
