"""Images for a :class:`Loader`: stored as bytes on the device, augmented and normalized there."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from regard.data._augment import Augmentation, affine, cutout, move, normalize
from regard.data._fused import Drawn, fused_batch, is_usable, table
from regard.data._image_sets import ImageSet
from regard.data._mix import MixDraws, draw_mix, label_weights, mix, partners
from regard.data._trivial_augment import draw_operations, trivial_augment
from regard.data.own_images import StreamedSet

TOGETHER = 16 << 20  # bytes of images prepared in one go on a GPU


class ImageBatch(NamedTuple):
    """``labels`` are class numbers ``(n,)``, or weights ``(n, classes)`` if images are mixed; cross-entropy takes both.
    ``indices`` holds each sample's index in its image set."""

    images: Float[Tensor, "n channels height width"]
    labels: Shaped[Tensor, "n *classes"]
    indices: Int[Tensor, "n"]


class AugmentedImages:
    """An image set on a device, augmented and normalized to mean 0 and standard deviation 1.

    Args:
        images: the image set. A :class:`StreamedSet` stays on the disk; its batches are read ahead.
        augmentation: how images are augmented; None (for evaluation) leaves them unchanged.
        device: the device of the batches.
        dtype: the dtype of the batches, ``torch.float32`` or ``torch.bfloat16``.
        channels_last: whether batches have torch's channels-last memory layout.
        keep_on_device: whether all images stay on the device. None: if they take less than half of its free memory.
            Otherwise each batch is copied from the host.

    >>> from regard.data import AugmentedImages, Augmentation, load
    >>> train = AugmentedImages(load("fashion-mini").train, Augmentation(crop=2, flip="random"))
    >>> batch = train.batch(torch.tensor([5, 0]), seed=0, epoch=0)
    >>> tuple(batch.images.shape), batch.labels
    ((2, 1, 28, 28), tensor([2, 9]))
    """

    def __init__(
        self,
        images: ImageSet | StreamedSet,
        augmentation: Augmentation | None = None,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        keep_on_device: bool | None = None,
    ) -> None:
        if not dtype.is_floating_point:
            raise TypeError(f"dtype must be a floating-point dtype, got {dtype}")
        self.set = images
        self.augmentation = augmentation or Augmentation()
        self.augmentation.check_fits(*images.shape)
        self.device = torch.device(device)
        self.dtype = dtype
        self.channels_last = channels_last
        self._labels = images.labels
        self._bytes: Tensor | None = None
        if isinstance(images, ImageSet):
            self._keep(images.images, _fits(images.images, self.device) if keep_on_device is None else keep_on_device)
        self._drawn: tuple[tuple[int, int], EpochDraws] | None = None
        self._table: tuple[tuple[int, int], Drawn] | None = None

    def _keep(self, images: Tensor, on_device: bool) -> None:
        self._bytes = images
        if on_device:
            self._bytes, self._labels = self._bytes.to(self.device), self._labels.to(self.device)
        elif self.device.type == "cuda":
            self._bytes, self._labels = self._bytes.pin_memory(), self._labels.pin_memory()

    @property
    def index_device(self) -> torch.device:
        return self._labels.device

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def reads_ahead(self) -> bool:
        return isinstance(self.set, StreamedSet)

    @property
    def samples_together(self) -> int:
        size = math.prod(self.set.shape) * torch.float32.itemsize
        return TOGETHER // size if self.device.type == "cuda" and not self.reads_ahead else 1

    def announce(self, index: Int[Tensor, "n"], *, seed: int, epoch: int) -> None:
        """Start to read a batch that will be needed soon, if images are streamed. This does not change any batch."""
        if isinstance(self.set, StreamedSet):
            self.set.read_ahead(index)
            if self.augmentation.mixes:
                self.set.read_ahead(self._draws(seed, epoch).partner[index])

    def batch(self, index: Int[Tensor, "n"], *, seed: int, epoch: int) -> ImageBatch:
        if self._bytes is not None and self._bytes.device == self.device and self._is_fused:
            return self._fused(self._bytes, index, seed, epoch)
        images, labels = self._augmented(index, seed, epoch)
        here = index.to(self.device, non_blocking=True)
        if self.augmentation.mixes:
            draws = self._draws(seed, epoch)
            others, other_labels = self._augmented(draws.partner[index], seed, epoch)
            images, weight = mix(images, others, MixDraws(*(drawn[here] for drawn in draws.mixing)), self.augmentation)
            labels = label_weights(labels, other_labels, weight, len(self.set.classes))
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return ImageBatch(images.to(self.dtype, memory_format=layout), labels, here)

    @property
    def _is_fused(self) -> bool:
        return is_usable(self._bytes, self.augmentation, len(self.set.classes))

    def _fused(self, images: Tensor, index: Tensor, seed: int, epoch: int) -> ImageBatch:
        """The same batch in one launch."""
        if self._table is None or self._table[0] != (seed, epoch):
            drawn = table(*self._draws(seed, epoch), self.augmentation, self.set.shape[1:])
            self._table = (seed, epoch), drawn
        if index.device.type == "cpu":  # one out of range raises an error; on a GPU, a check would wait for the device
            index = torch.arange(len(self.set)).index_select(0, index)
        here = index.to(self.device, non_blocking=True).contiguous()
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        size = (len(here), *self.set.shape)
        out = torch.empty(size, dtype=self.dtype, device=self.device, memory_format=layout)
        scale = affine(tuple(self.set.mean), tuple(self.set.std), self.device)
        labels = fused_batch(
            images, self._labels, here, self._table[1], self.augmentation, scale, len(self.set.classes), out
        )
        return ImageBatch(out, labels, here)

    def _augmented(self, index: Tensor, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Moved, mirrored, changed by an operation, normalized and cut out, in float32.

        A sample does not depend on the rest of its batch."""
        augmentation = self.augmentation
        images = self.set.pixels(index) if self._bytes is None else self._bytes.index_select(0, index)
        images = images.to(self.device, non_blocking=True)
        labels = self._labels[index].to(self.device, non_blocking=True)
        index = index.to(self.device, non_blocking=True)
        if augmentation.crop or augmentation.flip != "none":
            draws = self._draws(seed, epoch)
            images = move(images, draws.shift[index], draws.mirror[index], border=augmentation.border)
        if augmentation.trivial_augment:
            images = trivial_augment(images, *(drawn[index] for drawn in self._draws(seed, epoch).operations))
        images = normalize(images, self.set.mean, self.set.std)
        if augmentation.cutout:
            images = cutout(images, self._draws(seed, epoch).corner[index], augmentation.cutout)
        return images, labels

    def _draws(self, seed: int, epoch: int) -> "EpochDraws":
        """The draws of all samples, computed once per epoch. A batch looks up its own, so no draw depends on the rest of
        the batch."""
        if self._drawn is None or self._drawn[0] != (seed, epoch):
            everyone = torch.arange(len(self), device=self.device)
            augmentation, (_, height, width) = self.augmentation, self.set.shape
            draws = EpochDraws(
                augmentation.draw_shift(everyone, seed, epoch),
                augmentation.draw_mirror(everyone, seed, epoch),
                augmentation.draw_corner(everyone, seed, epoch, height, width),
                partners(len(self) if augmentation.mixes else 0, seed, epoch, device=self.index_device),
                draw_mix(everyone[: len(self) if augmentation.mixes else 0], augmentation, seed, epoch, height, width),
                draw_operations(everyone[: len(self) if augmentation.trivial_augment else 0], seed, epoch),
            )
            self._drawn = (seed, epoch), draws
        return self._drawn[1]


class EpochDraws(NamedTuple):
    """The random draws of one epoch, one row for each sample of the set."""

    shift: Int[Tensor, "n 2"]
    mirror: Bool[Tensor, "n"]
    corner: Int[Tensor, "n 2"]
    partner: Int[Tensor, "_"]
    mixing: MixDraws
    operations: tuple[Int[Tensor, "_"], Int[Tensor, "_"], Bool[Tensor, "_"]]


def _fits(images: Tensor, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.numel() < free / 2
