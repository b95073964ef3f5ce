"""Convolution as a sum over shifts of the image, in any number of axes."""

from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from regard.reference._grid import BORDERS, border_source
from regard.support.checks import check_choice


def convolution(
    x: Float[Tensor, "batch channels *space"],
    weight: Float[Tensor, "out channels_per_group *kernel"],
    bias: Float[Tensor, "out"] | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int | tuple[int, int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
) -> Float[Tensor, "batch out *space_out"]:
    r"""What ``F.conv1d``, ``conv2d`` and ``conv3d`` compute, one tap of the kernel after another.

    .. math:: y_o = b + \sum_{t \in \mathrm{kernel}} W_t\, x_{\,o \cdot \mathrm{stride} + t \cdot \mathrm{dilation}
        - \mathrm{before}}

    Every tap reads the image shifted by its own offset. Beyond the border it reads zero or, depending on
    ``padding_mode``, a copy of a pixel inside. There are ⌊(n + before + after − dilation·(k − 1) − 1)/stride⌋ + 1
    outputs along an axis.

    Args:
        x: ``(batch, channels, *space)``.
        weight: W, ``(out, channels / groups, *kernel)``.
        stride, dilation: a number, or one per axis.
        padding: a number, one per axis (or a pair (before, after) per axis), ``"valid"`` (0), or ``"same"``: as many
            outputs as inputs, at stride 1; with an even kernel the extra one is padded after the image.
        groups: output channels of one group read only the input channels of that group.
        padding_mode: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.

    >>> x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    >>> convolution(x, torch.tensor([[[1.0, 0.0, 10.0]]]), padding=1)
    tensor([[[20., 31., 42.,  3.]]])
    """
    check_choice("padding_mode", padding_mode, BORDERS)
    space, kernel = x.shape[2:], weight.shape[2:]
    if x.shape[1] != groups * weight.shape[1] or len(weight) % groups:
        raise ValueError(
            f"weight of shape {tuple(weight.shape)} with groups={groups} does not fit x of {tuple(x.shape)}"
        )
    strides, dilations = _per_axis(stride, len(space)), _per_axis(dilation, len(space))
    pads = _pads(padding, kernel, strides, dilations)
    counts = [
        (size + sum(pad) - step * (taps - 1) - 1) // jump + 1
        for size, pad, step, taps, jump in zip(space, pads, dilations, kernel, strides, strict=True)
    ]
    if min(counts) < 1 or min(map(min, pads)) < 0:
        raise ValueError(
            f"weight with kernel {tuple(kernel)} does not fit x of shape {tuple(x.shape)} padded by {pads}"
        )

    output = x.new_zeros(len(x), len(weight), *counts)
    for number, tap in enumerate(product(*map(range, kernel))):
        shifted = x
        for axis, at in enumerate(tap):
            target = torch.arange(counts[axis]) * strides[axis] + at * dilations[axis] - pads[axis][0]
            shifted = _read(shifted, axis + 2, target.to(x.device), padding_mode)
        # (batch, group, channel, *space) times (group, out, channel), for one tap of the kernel
        grouped = shifted.unflatten(1, (groups, -1)).flatten(3)
        matrix = weight.flatten(2)[:, :, number].unflatten(0, (groups, -1))
        output = output + torch.einsum("bgcn,goc->bgon", grouped, matrix).reshape(output.shape)
    return output if bias is None else output + bias.reshape(-1, *[1] * len(space))


def _read(x: Tensor, dim: int, target: Tensor, padding_mode: str) -> Tensor:
    """x at the coordinates ``target`` of one axis, which may lie outside."""
    source, exists = border_source(target, x.shape[dim], padding_mode)
    shape = [1] * x.ndim
    shape[dim] = -1
    # Not a product with the mask: beyond the border is zero, also where the pixel at the border is infinite or NaN.
    return torch.where(exists.reshape(shape), x.index_select(dim, source), 0.0)


def _per_axis(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    return (value,) * axes if isinstance(value, int) else tuple(value)


def _pads(
    padding: int | str | Sequence[int | tuple[int, int]],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:
    """(before, after) for each axis."""
    if isinstance(padding, str):
        check_choice("padding", padding, ("same", "valid"))
        if padding == "valid":
            return [(0, 0)] * len(kernel)
        if any(stride != 1 for stride in strides):
            raise ValueError(f"padding='same' needs stride 1, got stride {tuple(strides)}")
        totals = [step * (taps - 1) for step, taps in zip(dilations, kernel, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    entries = (padding,) * len(kernel) if isinstance(padding, int) else tuple(padding)
    return [(entry, entry) if isinstance(entry, int) else entry for entry in entries]
