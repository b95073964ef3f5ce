"""Absolute position embeddings: the vectors, and their similarity."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.figures._checks import check_finite
from regard.figures.style import (
    DIVERGING,
    SEQUENTIAL,
    Figure,
    PathArgument,
    finish,
    new_figure,
    plain,
    tidy,
    whole_ticks,
)
from regard.support.checks import check_floating, check_grid, describe


def absolute_positions(
    table: Float[Tensor, "*grid width"] | nn.Module,
    *,
    grid: Sequence[int] | None = None,
    path: PathArgument = None,
) -> Figure:
    r"""A table of position embeddings as a heat map, and the cosine similarity of every two positions.

    .. math:: \mathrm{similarity}_{st} = \frac{p_s \cdot p_t}{\|p_s\|\,\|p_t\|}

    For a grid of rows and columns the similarities are shown as one small image per position: the image at (row,
    column) shows the similarity of that position to all others.

    Args:
        table: ``(positions, width)`` or ``(rows, columns, width)``; or a module with such a table:
            :class:`regard.layers.AbsolutePositionalEmbedding`, ``nn.Embedding``, or any with ``positions(grid)``.
        grid: ``(rows, columns)`` if the positions of a table ``(positions, width)`` form a grid; for a module, the grid
            that is passed to it.
        path: where to save the figure.

    >>> from regard.reference import sinusoidal_positions
    >>> figure = regard.figures.absolute_positions(sinusoidal_positions(32, 16))
    >>> [panel.get_title() for panel in figure.axes[:2]]
    ['32 positions, 16 numbers each', 'Cosine similarity of two positions']
    """
    vectors, grid = _vectors(table, grid)
    unit = vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(vectors.dtype).tiny)
    similarity = unit @ unit.mT

    figure, (left, right) = new_figure(1, 2, width=5.0, height=4.2)
    positions, width = vectors.shape
    largest = float(vectors.abs().max()) or 1.0
    image = left.imshow(
        vectors.numpy(), cmap=DIVERGING, vmin=-largest, vmax=largest, aspect="auto", interpolation="none"
    )
    tidy(left, title=f"{positions} positions, {width} numbers each", x="dimension", y="position")
    whole_ticks(left, "x", "y")
    figure.colorbar(image, ax=left, shrink=0.8, label="value")

    lowest = min(float(similarity.min()), 0.99)
    if grid is None or len(grid) != 2:
        image = right.imshow(similarity.numpy(), cmap=SEQUENTIAL, vmin=lowest, vmax=1, interpolation="none")
        tidy(right, title="Cosine similarity of two positions", x="position", y="position")
        whole_ticks(right, "x", "y")
    else:
        rows, columns = grid
        # (row, row in the small image, column, column in it), with an empty line between images
        tiles = torch.full((rows, rows + 1, columns, columns + 1), math.nan, dtype=similarity.dtype)
        tiles[:, :rows, :, :columns] = similarity.reshape(rows, columns, rows, columns).permute(0, 2, 1, 3)
        picture = tiles.reshape(rows * (rows + 1), columns * (columns + 1))[:-1, :-1]
        image = right.imshow(picture.numpy(), cmap=SEQUENTIAL, vmin=lowest, vmax=1, interpolation="none")
        tidy(right, title="Cosine similarity of each position to all others", x="column", y="row")
        step = max(1, math.ceil(max(rows, columns) / 8))
        right.set_xticks([c * (columns + 1) + (columns - 1) / 2 for c in range(0, columns, step)])
        right.set_xticklabels([str(c) for c in range(0, columns, step)])
        right.set_yticks([r * (rows + 1) + (rows - 1) / 2 for r in range(0, rows, step)])
        right.set_yticklabels([str(r) for r in range(0, rows, step)])
    figure.colorbar(image, ax=right, shrink=0.8, label="similarity")
    figure.suptitle("Absolute positions: the table, and the similarity of positions", fontsize=11)
    return finish(figure, path)


def _vectors(table: Any, grid: Sequence[int] | None) -> tuple[Tensor, Sequence[int] | None]:
    """The vectors, (positions, width), and their grid, if they have one."""
    if grid is not None:
        check_grid(grid)
    if isinstance(table, nn.Module):
        positions: Any = getattr(table, "positions", None)
        if callable(positions):
            grid = getattr(table, "grid", None) if grid is None else grid
            table = positions(grid)
        elif isinstance(table, nn.Embedding):
            table = table.weight
        else:
            raise TypeError(
                f"table must be a tensor, an nn.Embedding or a module with positions(grid), got {type(table).__name__}"
            )
    check_floating("table", table)
    check_finite("table", table)
    if table.ndim == 3:
        if grid is not None and tuple(grid) != tuple(table.shape[:2]):
            raise ValueError(f"grid is {tuple(grid)} but table has shape {tuple(table.shape)}")
        grid = tuple(table.shape[:2])
        table = table.flatten(0, 1)
    if table.ndim != 2 or not table.numel():
        raise ValueError(f"table must be (positions, width) or (rows, columns, width), got {describe(table)}")
    if grid is not None and math.prod(grid) != len(table):
        raise ValueError(f"grid {tuple(grid)} has {math.prod(grid)} cells but table has {len(table)} positions")
    return plain(table), grid
