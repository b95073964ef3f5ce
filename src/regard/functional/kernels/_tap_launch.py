"""Launches of one axis of a converted convolution."""

import functools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.functional.kernels._tensors import is_aligned, on_device_of, power_of_two, raw_stream

if TYPE_CHECKING:
    from regard.functional.kernels._start import Launch

LONGEST = 128  # axis whose matrix of one tap stays on the chip
LINES = 128  # at a time


def axis_taps(x: Tensor, matrix: Tensor, y: Tensor, *, back: bool = False, bias: Tensor | None = None) -> None:
    """Mix along the last axis of ``x`` into ``y``, both ``(outer, taps, middle, inner, axis)`` with any strides.

    The side that has one tap is read for all, or written with the sum of all, by ``matrix`` (taps, outputs, inputs);
    ``back`` takes its transposed. ``bias``, if given, is added to the sum: one number for each of the middle.
    """
    strides = x.stride(), y.stride(), matrix.stride()
    launch = tap_launch(x.dtype, x.get_device(), x.shape, y.shape, *strides, back, None if bias is None else bias.dtype)
    tensors = (x, matrix, matrix if bias is None else bias.contiguous(), y)
    with on_device_of(x):
        launch(is_aligned(*tensors), raw_stream(x), *tensors)


@functools.lru_cache(1024)
def tap_launch(
    _dtype: torch.dtype, _device: int, x: torch.Size, y: torch.Size, x_strides: tuple[int, ...],
    y_strides: tuple[int, ...], matrix: tuple[int, ...], back: bool, biased: torch.dtype | None,
) -> "Launch":  # fmt: skip
    """Decided once for tensors of one kind. It takes x, matrix, bias (the matrix again where there is none) and y."""
    from regard.functional.kernels._start import Launch
    from regard.functional.kernels._tap_pass import axis_taps as kernel

    outer, read, middle, inner, inputs = x
    lines, outputs = outer * middle * inner, y[4]
    m_tap, m_output, m_input = (matrix[0], matrix[2], matrix[1]) if back else matrix
    grid = (math.ceil(lines / LINES), 1, 1)
    sizes = (lines, middle, inner, inputs, outputs)
    blocks = (max(16, power_of_two(axis)) for axis in (inputs, outputs))
    # One tap on both sides is a sum, too: of one, and with the bias.
    constants = (max(read, y[1]), int(y[1] > 1), int(biased is not None), LINES, *blocks)
    return Launch(
        kernel, grid, (*sizes, *x_strides, *y_strides, m_tap, m_output, m_input, *constants), {"num_warps": 4}, grid[0]
    )
