"""Gaussian heads as convolution kernels, cut to a window, with the weight that the window cuts off."""

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.convert._bounds import FLOAT64, MapRow
from regard.layers import GaussianAttention

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
LARGEST_RADIUS = 64  # a kernel with a larger radius would be impractical
FARTHEST = 2**24  # no grid has an axis as long


class HeadKernel(NamedTuple):
    """One head's taps: the first offset along each axis, the weights, and their L1 distance from the head's weights."""

    start: tuple[int, ...]
    taps: Tensor  # (*sizes), sums to one
    factors: tuple[Tensor, ...] | None  # one vector per axis if the head is separable
    leak: float
    rows: tuple[MapRow, ...]  # rows of its map: one per axis, or a single one if it is not separable

    @property
    def stop(self) -> tuple[int, ...]:
        return tuple(s + n for s, n in zip(self.start, self.taps.shape, strict=True))


def head_kernels(center: Tensor, sharpness: Tensor, tolerance: float) -> list[HeadKernel]:
    """The smallest windows that contain all but ``tolerance`` of each head's attention, on an infinite grid.

    The remaining weights are rescaled to sum to one, which changes them by as much as was cut: cutting a share m leaks 2m.
    """
    center, sharpness = center.detach().double().cpu(), sharpness.detach().double().cpu()
    axes = center.shape[1]
    if sharpness.ndim == 1:
        sharpness = sharpness[:, None].expand(-1, axes)
    kernels = []
    for head in range(center.shape[0]):
        if sharpness.ndim == 3:
            kernels.append(_full_kernel(head, center[head], sharpness[head], tolerance))
            continue
        # Each axis may cut m with 2(1 − (1 − m)^axes) ≤ tolerance.
        share = max(-math.expm1(math.log1p(-tolerance / 2) / axes), sys.float_info.min)
        starts, factors, kept = [], [], 0.0
        rows = []
        for axis in range(axes):
            place, alpha = center[head, axis].item(), sharpness[head, axis].item()
            start, taps, cut = _axis_taps(head, place, alpha, share)
            starts.append(start)
            factors.append(taps)
            kept += math.log1p(-cut)
            rows.append(MapRow.along_axis(place, alpha))
        taps = factors[0]
        for factor in factors[1:]:
            taps = taps.unsqueeze(-1) * factor
        kernels.append(HeadKernel(tuple(starts), taps, tuple(factors), -2 * math.expm1(kept), tuple(rows)))
    return kernels


def check_heads(layer: GaussianAttention) -> None:
    """Refuse heads without a kernel: diverged ones, and those that look so far away that float64 cannot tell the offsets that
    they read apart."""
    center, sharpness = layer.center.detach(), layer.sharpness.detach()
    for name, x in (("centers", center), ("sharpness", sharpness)):
        if not bool(x.isfinite().all()):
            raise ValueError(f"layer must have finite {name}, but they hold NaN or infinite values")
    if bool((center.abs() > FARTHEST).any()):
        raise ValueError(
            f"layer has no interior: a head looks {center.abs().max().item():.3g} tokens away; centers of up to {FARTHEST:,} "
            f"would fit"
        )


def _axis_taps(head: int, center: float, alpha: float, share: float) -> tuple[int, Tensor, float]:
    """(first offset, weights, cut share) of one axis, for the narrowest window around the center that cuts at most
    ``share``."""
    # Beyond this radius a key has less than share/1000 of the nearest key's weight; the sum is computed up to it.
    far = math.ceil(math.sqrt((math.log(1e3) - math.log(share)) / max(alpha, 1e-9)) + 2)
    if far > 20 * LARGEST_RADIUS:
        raise too_soft(head, alpha)
    middle = round(center)
    offsets = torch.arange(middle - far, middle + far + 1, dtype=torch.float64)
    steps = offsets - middle  # scores relative to the nearest key's, as in attention, so that no large terms cancel
    weights = (-alpha * (steps * (steps + 2 * (middle - center)))).softmax(0)
    # A key r > far steps from the middle has e^{−α((r − ½)² − ¼)} ≤ e^{−α(r − 1)²} of the nearest one's weight.
    beyond = 2 * math.exp(-alpha * far**2) / -math.expm1(-2 * alpha * far)
    for radius in range(LARGEST_RADIUS + 1):
        lean = 1 if center >= middle else -1
        for low, high in ((radius, radius), (radius + (lean < 0), radius + (lean > 0))):
            kept = weights[max(far - low, 0) : far + high + 1]
            # A direct sum, because 1 − kept would cancel digits. The factor covers the rounding of these sums.
            dropped = weights[: max(far - low, 0)].sum() + weights[far + high + 1 :].sum()
            cut = (1 + 1e-12) * (dropped.item() + beyond)
            if cut <= share:
                return int(offsets[max(far - low, 0)].item()), kept / kept.sum(), cut
    raise too_soft(head, alpha)


def too_soft(head: int, alpha: float) -> ValueError:
    return ValueError(
        f"layer has no interior: head {head} is so soft (sharpness {alpha:.3g}) that a window of radius {LARGEST_RADIUS} "
        f"does not hold its attention within tolerance; sharper heads, or a larger tolerance, would fit"
    )


def _full_kernel(head: int, center: Tensor, matrix: Tensor, tolerance: float) -> HeadKernel:
    """A head with a full sharpness matrix: the smallest box around its center that cuts at most tolerance/2."""
    axes, softest = center.shape[0], torch.linalg.eigvalsh(matrix).min().item()
    far = math.ceil(math.sqrt((math.log(1e4 * axes) - math.log(tolerance)) / max(softest, 1e-9)) + 2)
    if far > 2 * LARGEST_RADIUS:
        raise too_soft(head, softest)
    middle = center.round()
    sides = [torch.arange(-far, far + 1, dtype=torch.float64) + m for m in middle]
    # (m + e)ᵀS(m + e) − eᵀSe = mᵀS(m + 2e), with m = offset − nearest offset and e = nearest offset − center.
    steps = torch.stack(torch.meshgrid(*sides, indexing="ij"), -1) - middle
    nearest = middle - center
    scores = -torch.einsum("...a,ab,...b->...", steps, matrix, steps + 2 * nearest)
    total = scores.flatten().logsumexp(0).item() - (nearest @ matrix @ nearest).item()
    weights = scores.flatten().softmax(0).view_as(scores)
    # Keys outside that box are at least u = far + ½ from the center along some axis, and score at most −λ‖·‖², with λ the
    # smallest eigenvalue: the tail of one axis is a geometric series, the sum over each other axis at most 2 + √(π/λ).
    u = far + 0.5
    log_tail = math.log(2 * axes) - softest * u * u - math.log(-math.expm1(-2 * softest * u))
    beyond = math.exp(min(log_tail + (axes - 1) * math.log(2 + math.sqrt(math.pi / softest)) - total, 0.0))
    for radius in range(min(far, LARGEST_RADIUS) + 1):
        kept = weights[tuple([slice(far - radius, far + radius + 1)] * axes)]
        outside = weights.clone()
        outside[tuple([slice(far - radius, far + radius + 1)] * axes)] = 0.0
        cut = (1 + 1e-12) * (outside.sum().item() + beyond)
        if 2 * cut <= tolerance:
            # An upper bound on Σ |terms| of a score, because |m(m + 2e)| ≤ 2|m|² here.
            parts = 3 * torch.einsum("...a,ab,...b->...", steps.abs(), matrix.abs(), steps.abs())
            row = MapRow.of(-scores, parts, roundings=6 + axes**2, build=FLOAT64)
            start = tuple(int(m.item()) - radius for m in middle)
            return HeadKernel(start, kept / kept.sum(), None, 2 * cut, (row,))
    raise too_soft(head, softest)


def box(kernels: Sequence[HeadKernel]) -> list[tuple[int, int]]:
    """The offsets that the kernels read together: (first, last + 1) per axis."""
    axes = range(len(kernels[0].start))
    return [(min(k.start[a] for k in kernels), max(k.stop[a] for k in kernels)) for a in axes]


def dense_kernel(kernels: Sequence[HeadKernel], weights: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """(offset of the first tap, kernel (out, dim, *sizes)): all these heads as one kernel."""
    sides = box(kernels)
    kernel = weights.new_zeros(*weights.shape[1:], *[high - low for low, high in sides])
    for head, weight in zip(kernels, weights, strict=True):
        window = [
            slice(s - low, s - low + n) for s, (low, _), n in zip(head.start, sides, head.taps.shape, strict=True)
        ]
        part = weight.reshape(*weight.shape, *[1] * len(window)) * head.taps.to(weight.device)
        kernel[(slice(None), slice(None), *window)] += part
    return tuple(low for low, _ in sides), kernel


def axis_map(start: int, taps: Tensor, size: int) -> Tensor:
    """The (size × size) matrix of a kernel along one axis, with the edge repeated."""
    matrix = torch.zeros(size, size, dtype=taps.dtype)
    rows = torch.arange(size)
    for t, tap in enumerate(taps):
        columns = (rows + start + t).clamp(0, size - 1)
        matrix[rows, columns] += tap
    return matrix


def kernel_map(kernel: HeadKernel, grid: Sequence[int]) -> Tensor:
    """The (tokens × tokens) map of a kernel that does not factorize, with edges repeated."""
    tokens = math.prod(grid)
    queries = torch.cartesian_prod(*[torch.arange(n) for n in grid]).reshape(tokens, -1)
    matrix = torch.zeros(tokens, tokens, dtype=kernel.taps.dtype)
    for index in torch.cartesian_prod(*[torch.arange(n) for n in kernel.taps.shape]).reshape(-1, len(grid)):
        keys = queries + index + torch.tensor(kernel.start)
        keys = torch.minimum(keys.clamp_min(0), torch.tensor(grid) - 1)
        flat = torch.zeros(tokens, dtype=torch.long)
        for axis, n in enumerate(grid):
            flat = flat * n + keys[:, axis]
        matrix[torch.arange(tokens), flat] += kernel.taps[tuple(index.tolist())]
    return matrix


def repeat_edge(image: Tensor, sides: Sequence[tuple[int, int]]) -> Tensor:
    """Crop or extend each axis so that a kernel over offsets first … last − 1 gives one output per input."""
    for axis, (low, high) in enumerate(sides):
        size = image.shape[2 + axis]
        index = torch.arange(low, size + high - 1, device=image.device).clamp(0, size - 1)
        if low != 0 or high != 1:
            image = image.index_select(2 + axis, index)
    return image
