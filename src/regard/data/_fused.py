"""Batches of augmented images by one kernel, on a GPU that holds the images.

torch's operators need 400 launches for a batch with TrivialAugment and cutmix, and compute every operation for every image.
Here an epoch's draws become two tables with a row for each sample, and one launch computes a batch from them.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from regard.data._augment import Augmentation
from regard.data._mix import MixDraws, blend_weight, own_weight
from regard.data._trivial_augment import blend_factor, moves, posterize_bits, signed_strength, solarize_threshold
from regard.functional import kernels

MOST_PIXELS = 1 << 12  # of an image, which a program holds in registers
MOST_CLASSES = 1 << 12


class Drawn(NamedTuple):
    """The draws of an epoch, a row for each sample, in the columns that regard.data._image_kernel names.

    ``whole``: shift (rows, columns), mirror, operation, the bits of posterize, the threshold of solarize, the corner of
    cutout, the first and the last + 1 (row, column) of cutmix, the partner. ``parts``: cosine, x of y, y of x, start of x
    and of y, the factor of blends, the weight of the own class, the weight in mixup.
    """

    whole: Int[Tensor, "n 13"]
    parts: Float[Tensor, "n 8"]


def is_usable(images: Tensor | None, augmentation: Augmentation, classes: int) -> bool:
    """Whether the kernel can augment these images, which must be on the device."""
    if images is None or augmentation == Augmentation() or classes > MOST_CLASSES:
        return False
    return images.shape[2:].numel() <= MOST_PIXELS and kernels.usable_for_images(images)


def table(
    shift: Int[Tensor, "n 2"],
    mirror: Tensor,
    corner: Int[Tensor, "n 2"],
    partner: Tensor,
    mixing: MixDraws,
    operations: tuple[Tensor, Tensor, Tensor],
    augmentation: Augmentation,
    size: tuple[int, int],
) -> Drawn:
    """The draws as tables. Columns that the augmentation does not use hold 0."""
    nothing = torch.zeros_like(mirror, dtype=torch.float32)
    bits, threshold, operation, numbers = nothing, nothing, nothing, [nothing] * 6
    if augmentation.trivial_augment:
        operation, level, backward = operations
        signed = signed_strength(level, backward)
        bits, threshold = posterize_bits(level), solarize_threshold(level)
        numbers = [*moves(operation, signed, *size), blend_factor(signed)]
    low = high = torch.stack((nothing, nothing), -1)
    weight = blend = nothing
    if augmentation.mixes:
        low, high = (side * mixing.use_cutmix[:, None] for side in (mixing.low, mixing.high))
        weight, blend = own_weight(mixing, augmentation, *size), blend_weight(mixing)
    else:
        partner = nothing
    columns = (*shift.unbind(1), mirror, operation, bits, threshold, *corner.unbind(1), *low.unbind(1), *high.unbind(1))
    whole = torch.stack([column.int() for column in (*columns, partner)], -1)
    return Drawn(whole, torch.stack([*numbers, weight, blend], -1))


def fused_batch(
    images: UInt8[Tensor, "n channels height width"],
    labels: Int[Tensor, "n"],
    index: Int[Tensor, "m"],
    drawn: Drawn,
    augmentation: Augmentation,
    affine: tuple[Tensor, Tensor],
    classes: int,
    out: Tensor,
) -> Tensor:
    """Augment the images at ``index`` into ``out``, and return their labels, which are weights if images are mixed.

    ``affine`` is the scale and the offset of each channel that normalize it.
    """
    from regard.data._image_kernel import image_batch

    count, channels, height, width = out.shape
    mixes = augmentation.mixes
    found = labels.new_empty((count, classes), dtype=torch.float32) if mixes else labels.new_empty(count)
    if not count:
        return found
    pixels = height * width
    block = kernels.power_of_two(pixels)
    with kernels.on_device_of(images):
        image_batch[(count, channels)](
            images, labels, index, drawn.whole, drawn.parts, *affine, out, found,
            classes, out.stride(1), out.stride(3),
            channels, height, width, block, kernels.power_of_two(classes), drawn.whole.shape[1], drawn.parts.shape[1],
            augmentation.border == "zeros", augmentation.trivial_augment, augmentation.cutout,
            augmentation.cutmix > 0, augmentation.mixup > 0,
            num_warps=max(1, min(8, block // 256)),
            enable_fp_fusion=False,  # the coordinates of a rotation would round differently
        )  # fmt: skip
    return found
