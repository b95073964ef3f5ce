"""TrivialAugment: one random operation of random strength for each image, on the device and without waiting for it.

The operations are those of the paper's wide search space (Müller and Hutter, 2021, https://arxiv.org/abs/2103.10158),
computed as Pillow does. Every operation runs on the whole batch, and each image takes its own result.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor

from regard.data._random import random_below, random_coin
from regard.support.checks import check_tensor, describe

Bytes = UInt8[Tensor, "n channels height width"]

MOVES = ("shear columns", "shear rows", "translate columns", "translate rows", "rotate")
BLENDS = ("brightness", "color", "contrast", "sharpness")
TABLES = ("posterize", "solarize", "autocontrast", "equalize")
OPERATIONS = ("identity", *MOVES, *BLENDS, *TABLES)
LEVELS = 31  # strengths 0 (nothing) to 30, evenly spaced
_STRONGEST = {"shear": 0.99, "translate": 32.0, "rotate": math.radians(135), "blend": 0.99}
_MOST_BITS = 6  # bits that posterize drops
_GRAY = (19595, 38470, 7471)  # Pillow's weights of red, green and blue, of 65,536


def draw_operations(
    index: Int[Tensor, "n"], seed: int, epoch: int
) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"], Bool[Tensor, "n"]]:
    """Operation, level and direction of each sample, each uniform."""
    operation = random_below(index, len(OPERATIONS), seed, epoch, "operation")
    level = random_below(index, LEVELS, seed, epoch, "operation level")
    return operation, level, random_coin(index, seed, epoch, "operation direction")


def trivial_augment(
    images: Shaped[Tensor, "n channels height width"],
    operation: Shaped[Tensor, "n"],
    level: Shaped[Tensor, "n"],
    backward: Shaped[Tensor, "n"],
) -> Bytes:
    """Apply one operation to each image.

    Args:
        images: ``(n, channels, height, width)``, bytes, of one channel or three.
        operation: which one, an index into ``OPERATIONS``: identity; shear, translate (along columns or rows) and rotate;
            brightness, color, contrast and sharpness; posterize, solarize, autocontrast and equalize.
        level: its strength, 0 (nothing) to 30. Autocontrast and equalize have none.
        backward: whether moves go the other way and blends weaken instead of strengthen.

    Pixels that come from outside of the image are black.

    >>> from regard.data import trivial_augment
    >>> image = torch.tensor([[[[10, 200]]]], dtype=torch.uint8)
    >>> trivial_augment(image, torch.tensor([11]), torch.tensor([15]), torch.tensor([False]))  # solarize
    tensor([[[[10, 55]]]], dtype=torch.uint8)
    """
    _check(images, operation, level, backward)
    signed = signed_strength(level, backward)
    moved = _move(images, operation, signed)
    results = {**_blends(images, signed), **_tables(images, level)}
    chosen = moved  # the image itself if the operation is not a move
    for name, result in results.items():
        chosen = torch.where((operation == OPERATIONS.index(name))[:, None, None, None], result, chosen)
    return chosen


def _check(images: Tensor, operation: Tensor, level: Tensor, backward: Tensor) -> None:
    check_tensor("images", images)
    if images.ndim != 4 or images.dtype != torch.uint8 or images.shape[1] not in (1, 3):
        raise TypeError(
            "images must be bytes (torch.uint8), (n, channels, height, width), of one channel or three, got "
            f"{describe(images)}"
        )
    for name, value, dtype in (
        ("operation", operation, None),
        ("level", level, None),
        ("backward", backward, torch.bool),
    ):
        check_tensor(name, value)
        wrong = value.dtype != dtype if dtype else value.is_floating_point() or value.dtype == torch.bool
        if wrong or value.shape != (len(images),):
            kind = "a boolean" if dtype else "a whole number"
            raise TypeError(f"{name} must be (n,), {kind} for each of {len(images)} images, got {describe(value)}")


def signed_strength(level: Int[Tensor, "n"], backward: Bool[Tensor, "n"]) -> Float[Tensor, "n"]:
    """From −1 to 1."""
    strength = level.float() / (LEVELS - 1)
    return torch.where(backward, -strength, strength)


class Moves(NamedTuple):
    """Where each output pixel (x, y) of an image comes from: column ``cosine · x + x_of_y · y + x_start`` and row
    ``y_of_x · x + cosine · y + y_start``. The pixel itself for operations that are not moves."""

    cosine: Float[Tensor, "n"]
    x_of_y: Float[Tensor, "n"]
    y_of_x: Float[Tensor, "n"]
    x_start: Float[Tensor, "n"]
    y_start: Float[Tensor, "n"]


def moves(operation: Int[Tensor, "n"], signed: Float[Tensor, "n"], height: int, width: int) -> Moves:
    is_move = {name: operation == OPERATIONS.index(name) for name in MOVES}
    angle = signed * _STRONGEST["rotate"] * is_move["rotate"]  # 0, so no rotation, for the other moves
    shear, shift = signed * _STRONGEST["shear"], signed * _STRONGEST["translate"]
    cosine, sine = angle.cos(), angle.sin()
    # Rotation about the middle of the image; shears leave the upper left corner where it is.
    x_middle, y_middle = width / 2, height / 2
    return Moves(
        cosine,
        torch.where(is_move["shear columns"], shear, -sine),
        torch.where(is_move["shear rows"], shear, sine),
        torch.where(is_move["translate columns"], shift, (1 - cosine) * x_middle + sine * y_middle),
        torch.where(is_move["translate rows"], shift, (1 - cosine) * y_middle - sine * x_middle),
    )


def _move(images: Bytes, operation: Int[Tensor, "n"], signed: Float[Tensor, "n"]) -> Bytes:
    """Each output pixel takes the input pixel under its center: ``source = floor(M (x, y, 1))``."""
    _, channels, height, width = images.shape
    each = (value[:, None, None] for value in moves(operation, signed, height, width))
    cosine, x_of_y, y_of_x, x_start, y_start = each
    y = torch.arange(height, device=images.device)[:, None] + 0.5
    x = torch.arange(width, device=images.device) + 0.5
    columns = (cosine * x + x_of_y * y + x_start).floor().long()
    rows = (y_of_x * x + cosine * y + y_start).floor().long()
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    pixels = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).flatten(1)
    moved = images.flatten(2).gather(2, pixels[:, None].expand(-1, channels, -1)).view_as(images)
    return moved * inside[:, None]


def blend_factor(signed: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """The factor on an image's distance from the base of a blend."""
    return 1 + signed * _STRONGEST["blend"]


def _blends(images: Bytes, signed: Float[Tensor, "n"]) -> dict[str, Bytes]:
    """``base + (1 ± strength) (image − base)``: away from the base, or towards it."""
    values, gray = images.float(), _gray(images)
    factor = blend_factor(signed)[:, None, None, None]
    bases = {
        "brightness": torch.zeros_like(values),
        "color": gray.expand_as(values),
        "contrast": (gray.mean((1, 2, 3), keepdim=True) + 0.5).floor().expand_as(values),
        "sharpness": _smooth(values),
    }
    return {name: (base + factor * (values - base)).clamp(0, 255).byte() for name, base in bases.items()}


def _gray(images: Bytes) -> Float[Tensor, "n 1 height width"]:
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = images.int().unbind(1)
    weighted = _GRAY[0] * red + _GRAY[1] * green + _GRAY[2] * blue
    return ((weighted + 0x8000) >> 16).float()[:, None]


def _smooth(values: Float[Tensor, "n channels height width"]) -> Float[Tensor, "n channels height width"]:
    """The mean of the 3×3 neighborhood with five times the weight in the middle; pixels at the border stay."""
    if min(values.shape[2:]) < 3:
        return values
    sums = F.avg_pool2d(values, 3, stride=1, divisor_override=1)  # whole numbers: exact
    middle = values[:, :, 1:-1, 1:-1]
    smoothed = values.clone()
    smoothed[:, :, 1:-1, 1:-1] = ((sums + 4 * middle) / 13 + 0.5).floor()
    return smoothed


def posterize_bits(level: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """The bits of a byte that posterize keeps."""
    dropped = (level * (_MOST_BITS / (LEVELS - 1))).round().int()
    return torch.bitwise_left_shift(torch.full_like(dropped, 255), dropped) & 255


def solarize_threshold(level: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """The smallest value that solarize inverts: ``255 (1 − strength)``, rounded up."""
    strongest = LEVELS - 1
    return (255 * (strongest - level) + strongest - 1) // strongest


def _tables(images: Bytes, level: Int[Tensor, "n"]) -> dict[str, Bytes]:
    """Operations that replace each value by another one."""
    each = lambda value: value[:, None, None, None]  # noqa: E731
    bits, threshold = each(posterize_bits(level)).byte(), each(solarize_threshold(level))
    low, high = images.amin((2, 3), keepdim=True).float(), images.amax((2, 3), keepdim=True).float()
    scale = 255 / (high - low).clamp(min=1)
    # One part in a million more: 255 / 3 · 3 must not become 254.99998 and lose a level.
    stretched = ((images - low) * scale * (1 + 1e-6)).clamp(0, 255).byte()
    return {
        "posterize": images & bits,
        "solarize": torch.where(images < threshold, images, 255 - images),
        "autocontrast": torch.where(high > low, stretched, images),
        "equalize": _equalize(images),
    }


def _equalize(images: Bytes) -> Bytes:
    """Map a value to the share of the channel's pixels below it. Like Pillow, the count leaves out the brightest ones."""
    flat = images.flatten(2).int()
    ranked = flat.sort(-1).values
    below = torch.searchsorted(ranked, flat)
    brightest = flat.shape[-1] - torch.searchsorted(ranked, ranked[..., -1:].contiguous())
    step = (flat.shape[-1] - brightest) // 255
    equalized = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, equalized, flat).byte().view_as(images)
