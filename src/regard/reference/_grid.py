"""Grids: coordinates of tokens, offsets between them, and what padding copies beyond the border."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.support.checks import check_choice, check_grid

BORDERS = ("zeros", "reflect", "replicate", "circular")


def grid_coordinates(grid: Sequence[int], *, dtype: torch.dtype | None = None) -> Float[Tensor, "tokens axes"]:
    """The coordinates of every token of a grid; tokens are row-major, the last axis runs fastest.

    >>> grid_coordinates((2, 2))
    tensor([[0., 0.],
            [0., 1.],
            [1., 0.],
            [1., 1.]])
    """
    return all_pairs([torch.arange(size, dtype=dtype or torch.get_default_dtype()) for size in check_grid(grid)])


def relative_offsets(grid: Sequence[int], *, dtype: torch.dtype | None = None) -> Float[Tensor, "tokens tokens axes"]:
    r"""δ = key − query, for every query (first axis) and key (second axis) of a grid.

    >>> relative_offsets((3,))[..., 0]
    tensor([[ 0.,  1.,  2.],
            [-1.,  0.,  1.],
            [-2., -1.,  0.]])
    """
    coordinates = grid_coordinates(grid, dtype=dtype)
    return coordinates[None, :, :] - coordinates[:, None, :]


def encoding_by_offset(table: Float[Tensor, "..."], grid: Sequence[int]) -> Float[Tensor, "tokens tokens position_dim"]:
    r"""r_δ for every query and key of a grid, from a table with one vector per offset δ = key − query.

    Args:
        table: ``(2·n₁ − 1, 2·n₂ − 1, …, position_dim)``; entry 0 of an axis is the offset 1 − n, the middle one 0.
        grid: ``(n₁, n₂, …)``.

    >>> encoding_by_offset(torch.tensor([[-1.0], [0.0], [1.0]]), (2,))[..., 0]
    tensor([[ 0.,  1.],
            [-1.,  0.]])
    """
    wanted = tuple(2 * size - 1 for size in check_grid(grid))
    if tuple(table.shape[:-1]) != wanted:
        raise ValueError(f"table has shape {tuple(table.shape)} but grid {tuple(grid)} needs (*{wanted}, position_dim)")
    offsets = relative_offsets(grid).long()
    return table[tuple(offsets[..., axis] + size - 1 for axis, size in enumerate(grid))]


def border_source(
    coordinates: Int[Tensor, "*any"], size: int, border: str
) -> tuple[Int[Tensor, "*any"], Bool[Tensor, "*any"]]:
    """Which of the coordinates 0 … size − 1 a padded coordinate copies, and whether it copies any.

    Outside, ``zeros`` copies nothing, ``replicate`` the nearest coordinate, ``circular`` the one a multiple of ``size``
    away, ``reflect`` the mirror image about the outermost coordinates, mirrored repeatedly if needed.

    >>> border_source(torch.tensor([-2, -1, 0, 1, 2, 3]), 3, "reflect")[0]
    tensor([2, 1, 0, 1, 2, 1])
    """
    check_choice("border", border, BORDERS)
    inside = (coordinates >= 0) & (coordinates < size)
    if border == "circular":
        return coordinates % size, torch.ones_like(inside)
    if border == "reflect" and size > 1:
        period = 2 * (size - 1)
        around = coordinates % period
        return torch.minimum(around, period - around), torch.ones_like(inside)
    nearest = coordinates.clamp(0, size - 1)
    return nearest, inside if border == "zeros" else torch.ones_like(inside)


def all_pairs(axes: Sequence[Tensor]) -> Float[Tensor, "tokens axes"]:
    """Every combination of one coordinate per axis, row-major."""
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
