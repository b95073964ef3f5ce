"""The size of a convolution's output, and the inputs that are too small for it."""

from collections.abc import Sequence
from typing import Any

import torch


def output_size(layer: Any, grid: Sequence[int]) -> tuple[int, ...]:
    """The size of the output for an input of size ``grid``. An input that the convolution refuses raises an error.

    Args:
        layer: has ``pads``, ``dilation``, ``kernel_size`` and ``stride``, one entry per axis, and ``border``.
    """
    kernel, dilation, pads = layer.kernel_size, layer.dilation, layer.pads
    sizes = tuple(
        (n + before + after - d * (k - 1) - 1) // s + 1
        for n, (before, after), d, k, s in zip(grid, pads, dilation, kernel, layer.stride, strict=True)
    )
    if any(size < 1 for size in sizes):
        raise ValueError(
            f"input of size {tuple(grid)}, padded by {pads}, is smaller than the kernel {tuple(kernel)} with dilation "
            f"{tuple(dilation)}"
        )
    less = {"reflect": 1, "circular": 0}.get(layer.border)  # by how much padding must be less than the input
    checked = zip(grid, pads, strict=True) if less is not None and not torch.compiler.is_compiling() else ()
    if any(max(pair) > n - (less or 0) for n, pair in checked):
        raise ValueError(
            f"input of size {tuple(grid)} is too small to be padded by {pads} in mode {layer.border!r}, which copies each token "
            f"at most once to a side"
        )
    return sizes
