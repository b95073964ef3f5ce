"""Full-width heads that are shifts, computed together as one convolution."""

import math
from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.support.tensor_cache import constant

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def fits_kernel(shifts: Sequence[tuple[int, ...]]) -> bool:
    """Whether the smallest kernel that contains all shifts has few unused taps."""
    return len(shifts[0]) in CONVOLVE and math.prod(high - low + 1 for low, high in box(shifts)) <= 2 * len(shifts)


def box(shifts: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """The first and last offset along each axis, with offset 0 included."""
    return [(min(0, *offsets), max(0, *offsets)) for offsets in zip(*shifts, strict=True)]


def composed_convolution(
    tokens: Float[Tensor, "batch tokens dim"],
    grid: tuple[int, ...],
    shifts: Sequence[tuple[int, ...]],
    weight: Float[Tensor, "out heads_dim"],
    bias: Tensor | None,
) -> Float[Tensor, "batch tokens out"]:
    r""":math:`\sum_h S_h X W_h + b` as one convolution; :math:`S_h` shifts by ``shifts[h]`` and repeats the border.

    >>> x, weight = torch.tensor([1.0, 2.0, 4.0]).reshape(1, 3, 1), torch.tensor([[1.0, 10.0]])
    >>> composed_convolution(x, (3,), [(0,), (1,)], weight, None).flatten()
    tensor([21., 42., 44.])
    """
    sides, heads, width = box(shifts), len(shifts), tokens.shape[2]
    sizes = [high - low + 1 for low, high in sides]
    places = []
    for shift in shifts:
        place = 0
        for step, (low, _), size in zip(shift, sides, sizes, strict=True):
            place = place * size + step - low
        places.append(place)
    taps = weight.view(len(weight), heads, width)
    if sorted(places) == list(range(math.prod(sizes))):  # the shifts are exactly the kernel's taps: only reorder
        kernel = taps if places == sorted(places) else taps[:, sorted(range(heads), key=places.__getitem__)]
    else:
        index = constant(tuple(places), weight.device)
        kernel = weight.new_zeros(len(weight), math.prod(sizes), width).index_add(1, index, taps)
    # Channels are the last axis in memory of both tokens and kernel, so neither is copied (channels-last layout).
    kernel = kernel.unflatten(1, sizes).movedim(-1, 1)
    image = tokens.unflatten(1, grid).movedim(-1, 1)
    padded = F.pad(image, [side for low, high in reversed(sides) for side in (-low, high)], mode="replicate")
    return CONVOLVE[len(grid)](padded, kernel, bias).flatten(2).transpose(1, 2)
