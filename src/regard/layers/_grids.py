"""Tokens on a grid: (batch, rows, columns, width), (batch, width, rows, columns), or flat together with the grid."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.support.checks import check_floating, check_grid, check_width, static_sizes


def flat_tokens(x: Tensor, grid: Sequence[int] | None, axes: int, width: int) -> tuple[Tensor, tuple[int, ...]]:
    """``(batch, tokens, width)`` in row-major order, and the grid.

    Without ``grid``, x is (batch, *grid, width) or, as for convolutions, (batch, width, *grid); the axis of size ``width``
    tells which. If both axes have this size, the layout is ambiguous and raises an error (with a single grid axis it is
    (batch, tokens, width)). With ``grid``, x is (batch, tokens, width) or (batch, *grid, width).

    >>> [flat_tokens(torch.randn(shape), None, axes=2, width=12)[1] for shape in ((2, 8, 5, 12), (2, 12, 8, 5))]
    [(8, 5), (8, 5)]
    """
    check_floating("x", x)
    if grid is not None:
        return _with_grid(x, check_grid(grid), axes, width)
    if x.ndim != axes + 2:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; without grid it must be (batch, {', '.join(['size'] * axes)}, {width}), "
            f"{axes + 2} axes. For (batch, tokens, {width}) pass grid="
        )
    shape = static_sizes(x)
    if shape[-1] == width:
        # While compiling, sizes may be symbolic, and a comparison would fix them. With one axis the layout is always
        # (batch, tokens, width), and sequences of every length must pass.
        if axes > 1 and not torch.compiler.is_compiling() and shape[1] == width:
            raise ValueError(
                f"x has shape {shape}, whose second and last axes are both {width} wide, so it is ambiguous which one has "
                f"the channels: pass grid={shape[1:-1]} for (batch, {_sizes(axes)}, channels), or "
                f"permute channels-first input: x.movedim(1, -1) and grid={shape[2:]}"
            )
        return x.flatten(1, -2), shape[1:-1]
    if shape[1] == width:
        return x.flatten(2).transpose(1, 2), shape[2:]
    raise ValueError(
        f"x has shape {tuple(x.shape)}, but neither its last axis nor its second is {width} wide: permute it to "
        f"(batch, {_sizes(axes)}, {width}) or (batch, {width}, {_sizes(axes)}), or pass (batch, tokens, {width}) with grid="
    )


def _with_grid(x: Tensor, grid: tuple[int, ...], axes: int, width: int) -> tuple[Tensor, tuple[int, ...]]:
    if len(grid) != axes:
        raise ValueError(
            f"grid is {grid}, with {len(grid)} axes, but the layer has {axes}; x has shape {tuple(x.shape)}"
        )
    shape, is_flat = static_sizes(x), axes == 1 or x.ndim != axes + 2
    if (x.ndim != 3) if is_flat else (shape[1:-1] != grid):
        raise ValueError(
            f"x has shape {tuple(x.shape)} and grid is {grid}; with grid, x must be (batch, tokens, {width}) or "
            f"(batch, *grid, {width})"
        )
    if is_flat and shape[1] != math.prod(grid):
        hint = ": with channels first, pass x.movedim(1, -1)" if shape[2] == math.prod(grid) else ""
        raise ValueError(f"x has {shape[1]} tokens but grid {grid} has {math.prod(grid)}; its shape is {shape}{hint}")
    check_width("x", x, width)
    return x if is_flat else x.flatten(1, -2), grid


def like_input(out: Tensor, x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Flat tokens in the layout of the input ``x``."""
    if x.ndim != len(grid) + 2:
        return out
    if static_sizes(x)[1:-1] == grid:
        return out if len(grid) == 1 else out.unflatten(1, grid)
    turned = out.transpose(1, 2)
    return turned if len(grid) == 1 else turned.unflatten(2, grid)


def _sizes(axes: int) -> str:
    return {1: "tokens", 2: "rows, columns"}.get(axes, ", ".join(["size"] * axes))
