"""Launches of one axis of a converted convolution."""

import functools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.functional.kernels._tensors import is_aligned, on_device_of, power_of_two, raw_stream

if TYPE_CHECKING:
    from regard.functional.kernels._start import Launch

LONGEST = 128  # longest axis whose matrix of one tap fits on the chip
LINES = 128  # per program


def axis_taps(x: Tensor, matrix: Tensor, y: Tensor, *, back: bool = False, bias: Tensor | None = None) -> None:
    """Multiply ``x`` along its last axis into ``y``, both ``(outer, taps, middle, inner, axis)`` with any strides.

    ``matrix`` is (taps, outputs, inputs), transposed with ``back``. If ``x`` has one tap, every tap of ``y`` is computed from
    it; if ``y`` has one tap, it is the sum over all taps of ``x``, plus ``bias`` (one number per index of the middle axis).
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
    """The launch for tensors of given shapes, strides and dtypes, cached. It takes x, matrix, bias (matrix if None) and y."""
    from regard.functional.kernels._start import Launch
    from regard.functional.kernels._tap_pass import axis_taps as kernel

    outer, read, middle, inner, inputs = x
    lines, outputs = outer * middle * inner, y[4]
    m_tap, m_output, m_input = (matrix[0], matrix[2], matrix[1]) if back else matrix
    grid = (math.ceil(lines / LINES), 1, 1)
    sizes = (lines, middle, inner, inputs, outputs)
    blocks = (max(16, power_of_two(axis)) for axis in (inputs, outputs))
    # If both sides have one tap, the kernel sums over that one tap, which also adds the bias.
    constants = (max(read, y[1]), int(y[1] > 1), int(biased is not None), LINES, *blocks)
    return Launch(
        kernel, grid, (*sizes, *x_strides, *y_strides, m_tap, m_output, m_input, *constants), {"num_warps": 4}, grid[0]
    )
