"""Axis matrices: the attention of Gaussian heads along one axis of a grid. Everything Gaussian is built from them."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.observation import unobserved
from regard.support.checks import (
    check_choice,
    check_floating,
    check_positive,
    describe,
    under_autocast,
    values_are_readable,
)
from regard.support.long_rows import softmax

Border = Literal["native", "zeros", "reflect", "replicate", "circular"]


def axis_matrix(
    targets: Float[Tensor, "heads outputs"],
    sharpness: Float[Tensor, " heads"],
    size: int,
    *,
    border: Border = "native",
    padding: tuple[int, int] = (0, 0),
) -> Float[Tensor, "heads outputs {size}"]:
    r"""The attention weights along one axis (outputs × inputs), for heads with Gaussian encoding.

    .. math:: A_{oj} = \frac{e^{-\alpha (j - t_o)^2}}{\sum_{j'} e^{-\alpha (j' - t_o)^2}}

    Args:
        targets: the coordinate :math:`t_o` that output ``o`` of each head looks at; it may lie outside the axis.
        sharpness: :math:`\alpha \ge 0` per head.
        size: the number of inputs of the axis.
        border: ``native`` attends to the inputs that exist. The others attend over the padded coordinates
            ``-before … size-1+after``, and then fold the weight on padding back: ``zeros`` drops it; ``reflect``,
            ``replicate`` and ``circular`` add it to the input that the padding copies.
        padding: ``(before, after)``, for every border but ``native``.

    The matrix is built in float32 or better, whatever the dtype of the arguments, and is never NaN: scores are
    computed relative to the key nearest to the target, so that nothing cancels and the largest score is exactly zero.

    >>> axis_matrix(torch.tensor([[0.0, 1.0, 2.0]]) + 1, torch.tensor([50.0]), 3).round()
    tensor([[[0., 1., 0.],
             [0., 0., 1.],
             [0., 0., 1.]]])
    >>> axis_matrix(torch.tensor([[0.0, 1.0, 2.0]]) + 1, torch.tensor([50.0]), 3, border="zeros", padding=(1, 1)).round()
    tensor([[[0., 1., 0.],
             [0., 0., 1.],
             [0., 0., 0.]]])
    """
    check_axis(targets, sharpness, size, border, padding)
    dtype = build_dtype(targets, sharpness)
    return matrix_of(Targets.split(targets.to(dtype)), sharpness.to(dtype), size, border, padding)


class Targets(NamedTuple):
    """Target coordinates, stored as an integer plus a fraction in [−½, ½], because their sum would be rounded.

    In float32 a coordinate near 4,096 has only 11 bits left for its fraction, and sharpness multiplies the rounding error:
    at α = 50 that would change weights by half a percent. Stored separately, both parts are exact: ``x − round(x)`` is
    exact in floating point (Sterbenz), and sums of integers below 2²⁴ are exact.
    """

    whole: Float[Tensor, "heads outputs"]
    fraction: Float[Tensor, "heads outputs"]

    @classmethod
    def split(cls, targets: Float[Tensor, "heads outputs"]) -> "Targets":
        whole = targets.detach().round()
        return cls(whole, targets - whole)

    @classmethod
    def of(cls, coordinates: Float[Tensor, " outputs"], center: Float[Tensor, " heads"]) -> "Targets":
        """``coordinates + center``, exact for queries at integer coordinates; integers and fractions are added separately."""
        query, look = cls.split(coordinates[None]), cls.split(center[:, None])
        rest = cls.split(query.fraction + look.fraction)
        return cls(query.whole + look.whole + rest.whole, rest.fraction)

    def blocked(self, blocks: int, block: int) -> "Targets":
        """Reshape to (heads, blocks, block). Unused rows of the last block repeat the last target; they are discarded."""
        missing = blocks * block - self.whole.shape[1]

        def cut(part: Tensor) -> Tensor:
            part = torch.cat([part, part[:, -1:].expand(-1, missing)], 1) if missing else part
            return part.unflatten(1, (blocks, block))

        return Targets(cut(self.whole), cut(self.fraction))


def matrix_of(
    targets: Targets, sharpness: Float[Tensor, " heads"], size: int, border: Border, padding: tuple[int, int]
) -> Float[Tensor, "heads outputs {size}"]:
    """:func:`axis_matrix` for targets that are already split into integer and fraction."""
    before, after = padding
    coordinates = torch.arange(-before, size + after, device=sharpness.device, dtype=sharpness.dtype)
    scores = nearest_scores(targets, sharpness, coordinates, -before, size - 1 + after)
    return unobserved(lambda: fold(softmax(scores), size, border, before))


def build_dtype(*tensors: Tensor) -> torch.dtype:
    """Float32 or better."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def nearest_scores(
    targets: Targets, sharpness: Float[Tensor, " heads"], coordinates: Float[Tensor, "..."], low: int, high: int
) -> Float[Tensor, "heads *outputs coordinates"]:
    """−α((j − t)² − (c − t)²), with c the coordinate in ``low … high`` nearest to the target t.

    The term (c − t)² is constant in j, so softmax ignores it. The score is computed as −α·m·(m + 2e), with the step
    m = j − c and the shift e = c − t. For a target inside the axis, e is minus its fraction, exactly. Then 2e is exact, and
    m + 2e is rounded once (|m| ≥ 1 and |2e| ≤ 1, and both are exact), as are both products: the relative error of a score
    is at most three roundings, for any sharpness and any position. For a target outside the axis, e is a rounded sum of an
    integer and a fraction, which adds one rounding, and m and e have the same sign.
    """
    steps, shift = nearest_steps(targets, coordinates, low, high)
    alpha = sharpness.reshape(-1, *[1] * (steps.ndim - 1))
    return -alpha * (steps * (steps + 2 * shift))


def nearest_steps(
    targets: Targets, coordinates: Float[Tensor, "..."], low: int, high: int
) -> tuple[Float[Tensor, "heads *outputs coordinates"], Float[Tensor, "heads *outputs 1"]]:
    """The steps m from the coordinate nearest to each target, and the shifts e, of :func:`nearest_scores`."""
    nearest = targets.whole.clamp(low, high)
    # From farther away, a product with a step could be infinite, and 0 · ∞ is NaN.
    farthest = torch.finfo(targets.whole.dtype).max * 2.0**-24
    shift = (nearest - targets.whole - targets.fraction).clamp(-farthest, farthest).unsqueeze(-1)
    return coordinates - nearest.unsqueeze(-1), shift


def fold(padded: Float[Tensor, "heads outputs padded"], size: int, border: Border, before: int) -> Tensor:
    """Add each padding column to the column of the input that it copies."""
    inside = padded[..., before : before + size]
    if border in ("native", "zeros") or padded.shape[-1] == size:
        return inside
    outside = torch.cat([padded[..., :before], padded[..., before + size :]], -1)
    coordinates = torch.arange(-before, padded.shape[-1] - before, device=padded.device)
    away = torch.cat([coordinates[:before], coordinates[before + size :]])
    # A (padding, size) one-hot matrix. torch's one_hot would fix an exported program to this size.
    home = source_coordinate(away, size, border)[:, None] == torch.arange(size, device=padded.device)
    with torch.autocast(padded.device.type, enabled=False) if under_autocast(padded) else nullcontext():
        return inside + outside @ home.to(padded.dtype)


def source_coordinate(coordinates: Int[Tensor, " n"], size: int, border: Border) -> Int[Tensor, " n"]:
    """The input that a padded coordinate copies.

    >>> source_coordinate(torch.arange(-2, 5), 3, "reflect")
    tensor([2, 1, 0, 1, 2, 1, 0])
    """
    if border == "replicate" or size == 1:
        return coordinates.clamp(0, size - 1)
    if border == "circular":
        return coordinates % size
    period = 2 * (size - 1)
    wrapped = coordinates % period
    return torch.minimum(wrapped, period - wrapped)


def check_axis(targets: Tensor, sharpness: Tensor, size: int, border: str, padding: tuple[int, int]) -> None:
    check_floating("targets", targets)
    check_floating("sharpness", sharpness)
    if targets.ndim != 2 or sharpness.shape != targets.shape[:1]:
        raise ValueError(
            f"targets must be (heads, outputs) and sharpness (heads,), got {describe(targets)} and {describe(sharpness)}"
        )
    if sharpness.device != targets.device:
        raise ValueError(f"sharpness is on {sharpness.device} but targets is on {targets.device}")
    if values_are_readable(targets) and not bool(targets.isfinite().all()):
        raise ValueError("targets must be finite, but holds NaN or infinite values")
    check_positive("size", size)
    check_border(border, padding)
    check_sharpness(sharpness)


def check_border(border: str, *paddings: tuple[int, int]) -> None:
    check_choice("border", border, get_args(Border))
    for padding in paddings:
        if (
            not isinstance(padding, Sequence)
            or len(padding) != 2
            or any(isinstance(p, bool) or not isinstance(p, int) or p < 0 for p in padding)
        ):
            raise ValueError(
                f"padding must be (before, after) whole numbers of 0 or more for each axis, got {describe(padding)}"
            )
        if border == "native" and any(padding):
            raise ValueError(f"border 'native' attends to existing inputs only and takes no padding, got {padding!r}")


def check_sharpness(sharpness: Tensor, name: str = "sharpness") -> None:
    if values_are_readable(sharpness) and not bool(((sharpness >= 0) & sharpness.isfinite()).all()):
        raise ValueError(
            f"{name} must be finite and 0 or more, but its values go from {sharpness.min().item():g} "
            f"to {sharpness.max().item():g}"
        )
