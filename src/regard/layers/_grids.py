"""Tokens on a grid: given as (batch, rows, columns, width), or flat together with the grid."""

import math
from collections.abc import Sequence

from torch import Tensor

from regard.support.checks import check_floating, check_grid, check_width, describe


def flat_tokens(x: Tensor, grid: Sequence[int] | None, axes: int, width: int) -> tuple[Tensor, tuple[int, ...]]:
    """``(batch, tokens, width)`` in row-major order, and the grid."""
    check_floating("x", x)
    if grid is None:
        if x.ndim != axes + 2:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; without grid it must be (batch, {', '.join(['size'] * axes)}, width), "
                f"{axes + 2} axes. For (batch, tokens, width) pass grid"
            )
        grid = tuple(x.shape[1:-1])
        tokens = x.flatten(1, -2)
    else:
        grid = check_grid(grid)
        if x.ndim != 3 or len(grid) != axes:
            raise ValueError(
                f"x has shape {tuple(x.shape)} and grid is {describe(grid)}; with grid, x must be (batch, tokens, width) "
                f"and grid must have {axes} axes"
            )
        if x.shape[1] != math.prod(grid):
            raise ValueError(f"x has {x.shape[1]} tokens but grid {grid} has {math.prod(grid)}")
        tokens = x
    check_width("x", tokens, width)
    return tokens, grid


def like_input(out: Tensor, x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Flat tokens in the layout of the input ``x``."""
    return out.unflatten(1, grid) if x.ndim > 3 else out
