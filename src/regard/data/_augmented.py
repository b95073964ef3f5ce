"""Image samples for a :class:`Loader`: kept as bytes on the device, augmented and normalised there."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.data._augment import Augmentation, cutout, move, normalise
from regard.data._images import ImageSet
from regard.data._mix import label_weights, mix, partners


class ImageBatch(NamedTuple):
    """``labels`` are class numbers ``(n,)``, or weights ``(n, classes)`` where images are mixed; cross-entropy takes
    both. ``indices`` is each sample's place in its image set."""

    images: Float[Tensor, "n channels height width"]
    labels: Shaped[Tensor, "n *classes"]
    indices: Int[Tensor, "n"]


class AugmentedImages:
    """The images of a set, augmented, as numbers of mean 0 and spread 1, on a device.

    Args:
        images: the set.
        augmentation: what happens to them; None (as for evaluation) is nothing.
        device: where batches are made.
        dtype: of the batches, ``torch.float32`` or ``torch.bfloat16``.
        channels_last: memory layout of the batches.
        keep_on_device: hold all bytes there; None decides by whether they take less than half of its free memory.
            Otherwise each batch's bytes travel from the host.

    >>> from regard.data import AugmentedImages, Augmentation, load
    >>> train = AugmentedImages(load("fashion-mini").train, Augmentation(crop=2, flip="random"))
    >>> batch = train.batch(torch.tensor([5, 0]), seed=0, epoch=0)
    >>> tuple(batch.images.shape), batch.labels
    ((2, 1, 28, 28), tensor([2, 9]))
    """

    def __init__(
        self,
        images: ImageSet,
        augmentation: Augmentation | None = None,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        keep_on_device: bool | None = None,
    ) -> None:
        if not dtype.is_floating_point:
            raise TypeError(f"dtype must be a floating-point one, got {dtype}")
        self.set = images
        self.augmentation = augmentation or Augmentation()
        self.augmentation.check_fits(*images.images.shape[2:])
        self.device = torch.device(device)
        self.dtype = dtype
        self.channels_last = channels_last
        if keep_on_device is None:
            keep_on_device = _fits(images.images, self.device)
        self._bytes, self._labels = images.images, images.labels
        if keep_on_device:
            self._bytes, self._labels = self._bytes.to(self.device), self._labels.to(self.device)
        elif self.device.type == "cuda":
            self._bytes, self._labels = self._bytes.pin_memory(), self._labels.pin_memory()
        self._partners: tuple[tuple[int, int], Tensor] | None = None

    @property
    def index_device(self) -> torch.device:
        return self._bytes.device

    def __len__(self) -> int:
        return len(self._bytes)

    def batch(self, index: Int[Tensor, "n"], *, seed: int, epoch: int) -> ImageBatch:
        images, labels = self._augmented(index, seed, epoch)
        here = index.to(self.device, non_blocking=True)
        if self.augmentation.mixes:
            other_index = self._epoch_partners(seed, epoch)[index]
            others, other_labels = self._augmented(other_index, seed, epoch)
            images, weight = mix(images, others, here, self.augmentation, seed=seed, epoch=epoch)
            labels = label_weights(labels, other_labels, weight, len(self.set.classes))
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return ImageBatch(images.to(self.dtype, memory_format=layout), labels, here)

    def _augmented(self, index: Tensor, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Moved, mirrored, normalised and cut out, in float32; one sample's image is the same in whatever batch."""
        augmentation = self.augmentation
        images = self._bytes.index_select(0, index).to(self.device, non_blocking=True)
        labels = self._labels[index].to(self.device, non_blocking=True)
        index = index.to(self.device, non_blocking=True)
        if augmentation.crop or augmentation.flip != "none":
            shift = augmentation.draw_shift(index, seed, epoch)
            mirror = augmentation.draw_mirror(index, seed, epoch)
            images = move(images, shift, mirror, border=augmentation.border)
        images = normalise(images, self.set.mean, self.set.std)
        if augmentation.cutout:
            corner = augmentation.draw_corner(index, seed, epoch, *images.shape[2:])
            images = cutout(images, corner, augmentation.cutout)
        return images, labels

    def _epoch_partners(self, seed: int, epoch: int) -> Tensor:
        if self._partners is None or self._partners[0] != (seed, epoch):
            self._partners = (seed, epoch), partners(len(self), seed, epoch, device=self.index_device)
        return self._partners[1]


def _fits(images: Tensor, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.numel() < free / 2
