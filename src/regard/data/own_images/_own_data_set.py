"""Your own images as a data set with training, validation and test images."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from regard.data._image_sets import ImageSet
from regard.data.own_images._arrays import read_arrays
from regard.data.own_images._cifar_copies import find_copy, read_copy
from regard.data.own_images._collection import Collection, check, fingerprint, hold_out
from regard.data.own_images._errors import UnsuitableDataError
from regard.data.own_images._folder import last_written, read_folder
from regard.data.own_images._hugging_face import is_saved_dataset, read_saved_dataset
from regard.data.own_images._idx_copies import find_idx_files, read_idx_files
from regard.data.own_images._moments import measure_moments
from regard.data.own_images._pixels import TensorPixels, start_reading
from regard.data.own_images._read_ahead import ReadAhead
from regard.data.own_images._streamed import StreamedSet
from regard.support.default_device import on_cpu

MEASURED = 4096  # images from which the mean and standard deviation of a streamed set are measured
LARGEST_SHARE = 0.5  # largest share of the training images that may be held out for validation


@dataclass(frozen=True, eq=False)
class OwnDataSet:
    """Images from your own folder or file. Used like :class:`DataSet`; ``notes`` lists problems of the data.

    Mean and standard deviation are those of the training images, validation included.
    """

    collection: Collection
    wanted_validation: int | float

    @property
    def name(self) -> str:
        return self.collection.where

    @property
    def classes(self) -> tuple[str, ...]:
        return self.collection.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        return self.collection.pixels.shape

    @cached_property
    @on_cpu
    def notes(self) -> tuple[str, ...]:
        """Problems of the data, one sentence each. Unusable data raises an error."""
        notes = check(self.collection)
        if self._share != self._wanted_share and "validation" not in self.collection.parts:
            wanted, count = self.wanted_validation, len(self.collection.parts["train"])
            said = (
                f"a share of {wanted:g} for validation"
                if isinstance(wanted, float)
                else f"{wanted:,} validation images"
            )
            notes.append(
                f"{said} would be more than half of the {count:,} training images: {self.validation_count:,} are held out instead"
            )
        return tuple(notes)

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Number and checksum of the images, the same for the same images at another path."""
        return fingerprint(self.collection)

    @property
    def validation_count(self) -> int:
        return len(self._rows[1])

    @property
    def mean(self) -> tuple[float, ...]:
        return self._moments[0]

    @property
    def std(self) -> tuple[float, ...]:
        return self._moments[1]

    @cached_property
    @on_cpu
    def train(self) -> ImageSet | StreamedSet:
        return self._images(self._rows[0])

    @cached_property
    @on_cpu
    def validation(self) -> ImageSet | StreamedSet:
        return self._images(self._rows[1])

    @lru_cache(maxsize=1)  # noqa: B019  # few of these objects exist, and load() keeps them anyway
    @on_cpu
    def test(self) -> ImageSet | StreamedSet:
        """The test images, for the final evaluation."""
        return self._images(self.collection.parts["test"])

    @property
    def _wanted_share(self) -> float:
        wanted = self.wanted_validation
        return float(wanted) if isinstance(wanted, float) else wanted / len(self.collection.parts["train"])

    @property
    def _share(self) -> float:
        return self._wanted_share if self._wanted_share <= LARGEST_SHARE else 0.1

    @cached_property
    @on_cpu
    def _rows(self) -> tuple[Int64[Tensor, "_"], Int64[Tensor, "_"]]:
        """The indices of the training and of the validation images."""
        parts = self.collection.parts
        train = parts["train"]
        if not self.wanted_validation:
            return train, train[:0]
        if "validation" in parts:
            return train, parts["validation"]
        held = hold_out(self.collection.labels[train], self.collection.ranks[train], self._share)
        return train[~held], train[held]

    @cached_property
    @on_cpu
    def _moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation per channel in [0, 1]."""
        rows, pixels = self.collection.parts["train"], self.collection.pixels
        if not (isinstance(pixels, TensorPixels) and not pixels.mapped) and len(rows) > MEASURED:
            rows = rows[torch.arange(MEASURED) * len(rows) // MEASURED]
        return measure_moments(pixels, rows)

    @cached_property
    def _reader(self) -> ReadAhead:
        return ReadAhead(self.collection.pixels)

    def _images(self, rows: Tensor) -> ImageSet | StreamedSet:
        found = self.collection
        if isinstance(found.pixels, TensorPixels) and not found.pixels.mapped:
            return ImageSet(
                start_reading(found.pixels, rows).result(), found.labels[rows], self.classes, self.mean, self.std
            )
        return StreamedSet(self._reader, rows, found.labels[rows], self.classes, self.mean, self.std)


_WRITTEN: dict[str, int] = {}  # of each path that was opened


def forget_changed(path: str) -> None:
    """Let :func:`open_images` read this path again if a file in it was added, removed or written since it was opened."""
    if path in _WRITTEN and _WRITTEN[path] != last_written(Path(path)):
        open_images.cache_clear()


@lru_cache(maxsize=2)
@on_cpu
def open_images(path: str, validation: int | float, image_size: int | None) -> OwnDataSet:
    """Your images: a folder (``train/CLASS/*.png`` …, or ``CLASS/*.png``), an ``.npz`` or ``.safetensors`` file, a copy of
    CIFAR, MNIST or similar, or a folder written by ``datasets``. A set that was opened before is not read again, unless
    :func:`forget_changed` finds that it was written since."""
    place = Path(path)
    if not place.exists():
        raise UnsuitableDataError(f"there are no images at {path}: no such file or folder")
    _WRITTEN[path] = last_written(place)  # before it is read: what is written meanwhile is read next time
    try:
        if copy := find_copy(place):
            found = read_copy(*copy, image_size)
        elif place.is_dir() and (files := find_idx_files(place)):
            found = read_idx_files(files, image_size)
        elif place.is_dir() and is_saved_dataset(place):
            found = read_saved_dataset(place, image_size)
        elif place.is_dir():
            found = read_folder(place, image_size)
        elif place.suffix in (".npz", ".safetensors"):
            found = read_arrays(place, image_size)
        else:
            raise UnsuitableDataError(f"{path} is not a folder of images, .npz, .safetensors or a copy of CIFAR")
    except PermissionError as error:
        raise UnsuitableDataError(f"{error.filename or path} may not be read") from error
    return OwnDataSet(found, validation)
