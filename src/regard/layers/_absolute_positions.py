"""Absolute positions: a vector for the position of each token, in a sequence or on a grid."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.support.checks import (
    TEXT,
    check_choice,
    check_flag,
    check_ndim,
    check_positive,
    check_tensor,
    check_width,
    describe,
    static_sizes,
)

KINDS = ("sinusoidal", "learned", "one-hot")
COMBINATIONS = ("add", "concatenate")
BASE = 10000.0


class AbsolutePositionalEmbedding(nn.Module):
    r"""Adds a vector for its position to each token, or appends it.

    .. math:: \text{add:}\ \ y_t = x_t + p_t \qquad \text{concatenate:}\ \ y_t = (x_t, p_t)

    ============== ===================================================================================================
    sinusoidal     :math:`p_{t,2k} = \sin(\omega_k t),\ p_{t,2k+1} = \cos(\omega_k t)`, with
                   :math:`\omega_k = 10000^{-2k/\mathrm{width}}`
    learned        :math:`p_t` is row t of a table that is trained
    one-hot        :math:`p_t` is the t-th unit vector
    ============== ===================================================================================================

    On a grid, the sinusoidal and one-hot vectors of the axes are concatenated (row first); a learned table has an entry
    for each cell.

    Args:
        dim: width of the tokens.
        grid: number of tokens of a sequence, or ``(rows, columns)``. Sinusoidal positions of a sequence need none.
            ``forward`` also takes other sizes: any for sinusoidal, smaller ones for one-hot and for a learned sequence,
            any for a learned grid with ``interpolate``.
        kind: ``"sinusoidal"``, ``"learned"`` or ``"one-hot"``.
        combine: ``"add"`` or ``"concatenate"``.
        position_dim: width of a position when concatenated, default ``dim`` (one-hot: as wide as the grid's axes).
        interpolate: whether a learned table of a grid is interpolated (bicubic) to another grid in ``forward``.

    ``out_dim`` is the width of the output.

    >>> from regard.layers import AbsolutePositionalEmbedding
    >>> positions = AbsolutePositionalEmbedding(2, 3, kind="one-hot", combine="concatenate")
    >>> positions(torch.zeros(1, 3, 2))
    tensor([[[0., 0., 1., 0., 0.],
             [0., 0., 0., 1., 0.],
             [0., 0., 0., 0., 1.]]])
    """

    table: nn.Parameter | None

    def __init__(
        self,
        dim: int,
        grid: int | Sequence[int] | None = None,
        *,
        kind: str = "learned",
        combine: str = "add",
        position_dim: int | None = None,
        interpolate: bool = False,
    ) -> None:
        check_flag("interpolate", interpolate)
        super().__init__()
        check_positive("dim", dim)
        check_choice("kind", kind, KINDS)
        check_choice("combine", combine, COMBINATIONS)
        if position_dim is not None:
            check_positive("position_dim", position_dim)
        if grid is None and kind != "sinusoidal":
            raise ValueError(
                f"grid is None, but {kind} positions (kind) need one: the number of tokens, or (rows, columns)"
            )
        self.grid = None if grid is None else _as_grid(grid)
        if interpolate and (kind != "learned" or self.grid is None or len(self.grid) != 2):
            raise ValueError(
                f"interpolate is {interpolate}, but needs kind 'learned' and a grid (rows, columns), got kind {kind!r} and "
                f"grid {self.grid}"
            )
        if combine == "add" and position_dim not in (None, dim):
            raise ValueError(
                f"position_dim is {position_dim}, but positions that are added must be as wide as dim, {dim}"
            )
        self.dim, self.kind, self.combine, self.interpolate = dim, kind, combine, interpolate
        self.position_dim = self._width(position_dim)
        self.out_dim = dim if combine == "add" else dim + self.position_dim
        self.table = None
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(*(self.grid or ()), self.position_dim))
            nn.init.trunc_normal_(self.table, std=0.02)

    def _width(self, position_dim: int | None) -> int:
        width = self.dim if position_dim is None else position_dim
        if self.kind == "one-hot" and self.grid is not None:
            needed = sum(self.grid)
            if position_dim is None and self.combine == "concatenate":
                width = needed
            if width < needed:
                name = "dim" if self.combine == "add" else "position_dim"
                raise ValueError(f"{name} is {width}, but one-hot positions of grid {self.grid} are {needed} wide")
        if self.kind == "sinusoidal" and len(self.grid or (0,)) == 2 and width % 4:
            raise ValueError(
                f"{'dim' if self.combine == 'add' else 'position_dim'} is {width}, but sinusoidal positions on a grid "
                f"need a multiple of 4: a sine and a cosine for each axis"
            )
        check_positive("position_dim", width)
        return width

    def positions(
        self, grid: int | Sequence[int] | None = None, *, start: int = 0, like: Tensor | None = None
    ) -> Float[Tensor, "tokens position_dim"]:
        """The vectors p, row-major, with the dtype and device of ``like``."""
        wanted = self.grid if grid is None else _as_grid(grid)
        if wanted is None:
            raise ValueError("grid is needed: these positions were made without one")
        axes = len(self.grid or (0,))
        if len(wanted) != axes:
            raise ValueError(f"grid is {wanted}, of {len(wanted)} axes, but these positions have {axes}")
        if isinstance(start, bool) or not isinstance(start, int | torch.SymInt):
            raise TypeError(f"start must be a whole number of 0 or more, got {describe(start)}")
        if start and axes != 1:
            raise ValueError(f"start is {start}, but only a sequence has a start, not a grid")
        if start < 0:
            raise ValueError(f"start must be 0 or more, got {start}")
        if like is not None:
            check_tensor("like", like)
        if self.kind != "sinusoidal":
            self._check_size(wanted, start)
        if self.kind == "learned":
            return self._learned(wanted, start, like)
        like = torch.empty(()) if like is None else like
        if self.kind == "sinusoidal":
            width = self.position_dim // axes
            parts = [_sinusoidal(start, size, width, like) for size in wanted]
        else:
            parts = [
                torch.eye(own, dtype=like.dtype, device=like.device)[start : start + size]
                for own, size in zip(self.grid or (), wanted, strict=True)
            ]
        together = parts[0] if axes == 1 else _side_by_side(*parts)
        return F.pad(together, (0, self.position_dim - together.shape[-1]))

    def _check_size(self, wanted: tuple[int, ...], start: int) -> None:
        own = self.grid or ()
        if self.kind == "learned" and len(own) == 2:
            if wanted != own and not self.interpolate:
                raise ValueError(f"grid is {wanted} but the learned positions are of {own}: pass interpolate=True")
        elif any(start + size > limit for size, limit in zip(wanted, own, strict=True)):
            asked = f"{wanted[0]} tokens from {start}" if len(own) == 1 else f"grid {wanted}"
            raise ValueError(f"{asked} go beyond the {self.kind} positions of {own}")

    def _learned(self, wanted: tuple[int, ...], start: int, like: Tensor | None) -> Tensor:
        table = cast(Tensor, self.table)  # torch.func may have put a plain tensor there
        if len(wanted) == 1:
            table = table[start : start + wanted[0]]
        elif wanted != self.grid:
            # In float32 at least: bicubic weights in half precision shift the table.
            cells = table.to(torch.promote_types(table.dtype, torch.float32)).permute(2, 0, 1)[None]
            columns = _resized(cells, wanted[1])
            table = _resized(columns.mT, wanted[0])[0].permute(2, 1, 0)
        return table.flatten(0, -2).to(table.dtype if like is None else like.dtype)

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], *, grid: int | Sequence[int] | None = None, start: int = 0
    ) -> Float[Tensor, "batch tokens out_dim"]:
        """
        Args:
            x: ``(batch, tokens, dim)``, tokens of a grid row-major.
            grid: rows and columns, where they are not those the module was made with.
            start: the first token's position in its sequence, for decoding token by token.
        """
        check_ndim("x", x, "batch tokens dim")
        check_width("x", x, self.dim)
        wanted = self._grid_of(x, grid)
        positions = self.positions(wanted, start=start, like=x)
        if self.combine == "add":
            return x + positions
        return torch.cat([x, positions.expand(x.shape[0], -1, -1)], -1)

    def _grid_of(self, x: Tensor, grid: int | Sequence[int] | None) -> tuple[int, ...]:
        if grid is not None:
            wanted = _as_grid(grid)
        elif self.grid is not None and len(self.grid) == 2:
            wanted = self.grid
        else:
            return (static_sizes(x)[1],)
        if math.prod(wanted) != x.shape[1]:
            raise ValueError(
                f"x has {x.shape[1]} tokens but grid {wanted} has {math.prod(wanted)}; pass the right grid"
            )
        return wanted

    def extra_repr(self) -> str:
        shown = f"dim={self.dim}, grid={self.grid}, kind={self.kind!r}, combine={self.combine!r}"
        if self.combine == "concatenate":
            shown += f", position_dim={self.position_dim}"
        return shown + (", interpolate=True" if self.interpolate else "")


def _sinusoidal(start: int, size: int, width: int, like: Tensor) -> Tensor:
    # In double precision if the device has it: the angle of a late position needs all digits.
    dtype = torch.float32 if like.device.type == "mps" else torch.float64
    places = torch.arange(start, start + size, dtype=dtype, device=like.device)
    pairs = torch.arange(0, width, 2, dtype=dtype, device=like.device)
    angles = places[:, None] * torch.exp(pairs * (-math.log(BASE) / width))
    table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]
    return table.to(like.dtype)


def _resized(cells: Tensor, size: int) -> Tensor:
    """Interpolate the last axis. We do one axis at a time, because torch 2.13 mixes up the rows of a single column."""
    shape = (cells.shape[-2], size)
    return F.interpolate(cells.contiguous(), shape, mode="bicubic", align_corners=False, antialias=True)


def _side_by_side(rows: Tensor, columns: Tensor) -> Tensor:
    """The vector of a cell: the vector of its row, then that of its column. Cells are row-major."""
    each_row = rows[:, None].expand(-1, columns.shape[0], -1)
    each_column = columns[None].expand(rows.shape[0], -1, -1)
    return torch.cat([each_row, each_column], -1).flatten(0, 1)


def _as_grid(grid: Any) -> tuple[int, ...]:
    sizes = (grid,) if isinstance(grid, int | torch.SymInt) else grid
    if not isinstance(sizes, Sequence) or isinstance(sizes, TEXT) or len(sizes) not in (1, 2):
        raise TypeError(f"grid must be a number of tokens or (rows, columns), got {describe(grid)}")
    for size in sizes:
        check_positive("grid", size)
    return tuple(sizes)
