"""Batched augmentation on the device: the settings, the random draws and the operations.

Every draw is a hash of (seed, epoch, sample, purpose): see :mod:`regard.data._random`.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from regard.data._random import random_below, random_bits, random_coin
from regard.support.checks import (
    check_choice,
    check_count,
    check_flag,
    check_ndim,
    check_tensor,
    describe,
    values_are_readable,
)

Border = Literal["reflect", "zeros"]
Flip = Literal["none", "random", "alternate"]


@dataclass(frozen=True)
class Augmentation:
    """How training images are augmented; by default not at all.

    Args:
        crop: shifts each image by −crop … crop pixels along each axis, as if padded and cropped back to its size.
        border: fills the edges with the image's own reflection, or with black (``"zeros"``).
        flip: ``"random"`` mirrors each image left to right with probability ½ in every epoch; ``"alternate"`` mirrors it
            in every second epoch, so that two epochs show both sides.
        cutout: the side of a square inside the image that is set to the data set's mean.
        mixup: α of the Beta(α, α) from which the weights of an average of two images are drawn (0: no mixup).
        cutmix: α of the Beta(α, α) from which the area of a rectangle of another image is drawn (0: no cutmix). With
            both, each image gets one of the two at random.
        trivial_augment: whether each image gets one random operation of random strength (:func:`trivial_augment`).

    >>> regard.data.Augmentation(crop=4, flip="alternate", cutmix=1.0).mixes
    True
    """

    crop: int = 0
    border: Border = "reflect"
    flip: Flip = "none"
    cutout: int = 0
    mixup: float = 0.0
    cutmix: float = 0.0
    trivial_augment: bool = False

    def __post_init__(self) -> None:
        for name in ("crop", "cutout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a whole number of pixels, 0 or more, got {describe(value)}")
        for name in ("mixup", "cutmix"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be the α of a Beta(α, α), 0 or more, got {describe(value)}")
        check_flag("trivial_augment", self.trivial_augment)
        check_choice("border", self.border, ("reflect", "zeros"))
        check_choice("flip", self.flip, ("none", "random", "alternate"))

    @property
    def mixes(self) -> bool:
        """Whether labels become weights over the classes."""
        return self.mixup > 0 or self.cutmix > 0

    def check_fits(self, channels: int, height: int, width: int) -> None:
        if self.trivial_augment and channels not in (1, 3):
            raise ValueError(f"trivial_augment takes images of one channel or three, but these have {channels}")
        smallest = min(height, width)
        if self.crop >= smallest:
            raise ValueError(
                f"crop is {self.crop} pixels, but images are {height} × {width}: crop must be smaller than both"
            )
        if self.cutout > smallest:
            raise ValueError(f"cutout is {self.cutout} pixels wide but images are {height} × {width}")

    def draw_shift(self, index: Int[Tensor, "n"], seed: int, epoch: int) -> Int[Tensor, "n 2"]:
        """The shift (rows, columns) of each image, uniform in −crop … crop."""
        rows, columns = (
            random_below(index, 2 * self.crop + 1, seed, epoch, f"crop {axis}") - self.crop
            for axis in ("rows", "columns")
        )
        return torch.stack((rows, columns), -1)

    def draw_mirror(self, index: Int[Tensor, "n"], seed: int, epoch: int) -> Bool[Tensor, "n"]:
        if self.flip == "alternate":
            return ((random_bits(index, seed, "alternate flip") + epoch) & 1).bool()
        if self.flip == "random":
            return random_coin(index, seed, epoch, "flip")
        return torch.zeros_like(index, dtype=torch.bool)

    def draw_corner(
        self, index: Int[Tensor, "n"], seed: int, epoch: int, height: int, width: int
    ) -> Int[Tensor, "n 2"]:
        """The upper left corner of the cut-out square, uniform over all positions inside the image."""
        rows = random_below(index, height - self.cutout + 1, seed, epoch, "cutout rows")
        columns = random_below(index, width - self.cutout + 1, seed, epoch, "cutout columns")
        return torch.stack((rows, columns), -1)


def move(
    images: Shaped[Tensor, "n channels height width"],
    shift: Int[Tensor, "n 2"],
    mirror: Bool[Tensor, "n"] | None = None,
    *,
    border: Border = "reflect",
) -> Shaped[Tensor, "n channels height width"]:
    """Crop and flip in one gather: ``out[i, :, r, c] = images[i, :, r + shift[i, 0], c + shift[i, 1]]``.

    A mirrored image is mirrored first, then moved. Pixels outside are the reflection without the edge
    (``c b | a b c | b a``, torch's ``"reflect"``), for shifts smaller than the image, or 0.

    >>> from regard.data import move
    >>> image = torch.arange(4.0).reshape(1, 1, 1, 4)
    >>> move(image, torch.tensor([[0, 1]]))
    tensor([[[[1., 2., 3., 2.]]]])
    >>> move(image, torch.tensor([[0, 1]]), torch.tensor([True]), border="zeros")
    tensor([[[[2., 1., 0., 0.]]]])
    """
    check_tensor("images", images)
    if images.ndim != 4:
        raise ValueError(f"images must be (n, channels, height, width), got {describe(images)}")
    check_choice("border", border, ("reflect", "zeros"))
    channels, height, width = images.shape[1:]
    _check_shift(shift, len(images), (height, width), border)
    if mirror is not None:
        check_tensor("mirror", mirror)
        if mirror.dtype != torch.bool or mirror.shape != (len(images),):
            raise ValueError(f"mirror must be a boolean tensor (n,) for {len(images)} images, got {describe(mirror)}")
    rows = torch.arange(height, device=images.device) + shift[:, :1]  # (n, height)
    columns = torch.arange(width, device=images.device) + shift[:, 1:]  # (n, width)
    inside = None
    if border == "zeros":
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
        rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    else:
        rows, columns = _reflect(rows, height), _reflect(columns, width)
    if mirror is not None:
        columns = torch.where(mirror[:, None], width - 1 - columns, columns)
    pixels = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)  # (n, height·width)
    moved = images.flatten(2).gather(2, pixels[:, None].expand(-1, channels, -1)).view_as(images)
    return moved if inside is None else moved * inside[:, None]


def _check_shift(shift: Tensor, count: int, size: tuple[int, int], border: Border) -> None:
    check_tensor("shift", shift)
    if shift.is_floating_point() or shift.dtype == torch.bool:
        raise TypeError(f"shift must hold whole numbers of pixels, got {describe(shift)}")
    if shift.shape != (count, 2):
        raise ValueError(f"shift must be (n, 2) for {count} images, got {describe(shift)}")
    if border == "reflect" and count and values_are_readable(shift):
        farthest = shift.abs().amax(0).tolist()
        if farthest[0] >= size[0] or farthest[1] >= size[1]:
            raise ValueError(
                f"shift is as large as {tuple(farthest)} (rows, columns), but border='reflect' allows at most "
                f"{(size[0] - 1, size[1] - 1)} for images of {size[0]} × {size[1]}; border='zeros' allows any shift"
            )


def _reflect(at: Tensor, size: int) -> Tensor:
    return (size - 1) - ((size - 1) - at.abs()).abs()


def cutout(
    images: Float[Tensor, "n channels height width"], corner: Int[Tensor, "n 2"], side: int, *, fill: float = 0.0
) -> Float[Tensor, "n channels height width"]:
    """Set a square of ``side`` × ``side`` pixels to ``fill``; ``corner`` is its upper left pixel.

    >>> from regard.data import cutout
    >>> cutout(torch.ones(1, 1, 3, 3), torch.tensor([[0, 1]]), 2)
    tensor([[[[1., 0., 0.],
              [1., 0., 0.],
              [1., 1., 1.]]]])
    """
    check_ndim("images", images, "n channels height width")
    check_tensor("corner", corner)
    check_count("side", side)
    if isinstance(fill, bool) or not isinstance(fill, int | float) or not abs(fill) < 1e38:
        raise TypeError(f"fill must be a number, got {describe(fill)}")
    fill = float(fill)
    if corner.shape != (len(images), 2) or corner.is_floating_point() or corner.is_complex():
        raise ValueError(
            f"corner must be (n, 2), whole numbers, for {len(images)} images, got {describe(corner)}: images has shape "
            f"{tuple(images.shape)}"
        )
    return images.masked_fill(box(corner, corner + side, *images.shape[2:])[:, None], fill)


def box(low: Int[Tensor, "n 2"], high: Int[Tensor, "n 2"], height: int, width: int) -> Bool[Tensor, "n height width"]:
    """True where ``low ≤ (row, column) < high``.

    >>> from regard.data._augment import box
    >>> box(torch.tensor([[0, 1]]), torch.tensor([[1, 3]]), 2, 3).long()
    tensor([[[0, 1, 1],
             [0, 0, 0]]])
    """
    rows = torch.arange(height, device=low.device)
    columns = torch.arange(width, device=low.device)
    in_rows = (rows >= low[:, :1]) & (rows < high[:, :1])
    in_columns = (columns >= low[:, 1:]) & (columns < high[:, 1:])
    return in_rows[:, :, None] & in_columns[:, None, :]


def normalize(
    images: Shaped[Tensor, "n channels height width"], mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Tensor, "n channels height width"]:
    """Bytes to float32: ``(images / 255 − mean) / std``, per channel.

    >>> from regard.data import normalize
    >>> normalize(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), (0.5,), (0.25,)).round(decimals=4)
    tensor([[[[-2.,  2.]]]])
    """
    check_tensor("images", images)
    if images.ndim != 4 or images.is_complex():
        raise ValueError(f"images must be (n, channels, height, width), got {describe(images)}")
    for name, numbers in (("mean", mean), ("std", std)):
        _check_numbers(name, numbers, images.shape[1])
    if not all(number > 0 for number in std):
        raise ValueError(f"std must be positive, got {describe(std)}")
    scale, offset = affine(tuple(mean), tuple(std), images.device)
    return torch.addcmul(offset, images.float(), scale)


def _check_numbers(name: str, numbers: object, channels: int) -> None:
    if not isinstance(numbers, tuple | list) or len(numbers) != channels:
        count = f", {len(numbers)} numbers" if isinstance(numbers, tuple | list) else ""
        raise ValueError(
            f"{name} is {describe(numbers)}{count}, but must be one number for each of the {channels} channels of images"
        )
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        raise TypeError(f"{name} must be numbers, got {describe(numbers)}")


@lru_cache(maxsize=64)
def affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(scale, offset), for one multiply-add per pixel; cached, so that no batch waits for a copy to the device."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=device).view(-1, 1, 1)
    offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device).view(-1, 1, 1)
    return scale, offset
