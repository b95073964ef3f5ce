"""Launches of content with place: three axes whatever the grid has."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.functional.kernels._carriers import PIECES, Carriers
from regard.functional.kernels._tensors import on_device_of, power_of_two, rows_of


class Heads(NamedTuple):
    """Positions of heads as the kernels read them."""

    center: Tensor  # (heads, 3), float64
    matrix: Tensor  # (heads, 3, 3), float64, symmetric
    grid: tuple[int, int, int]
    axes: slice  # which of the three there are
    dimensions: int  # how many


def three_axes(center: Tensor, matrix: Tensor, grid: tuple[int, ...]) -> Heads:
    """A grid's axes are the last of three; those before have size 1."""
    axes = slice(3 - len(grid), 3)
    wide = center.new_zeros(len(center), 3, dtype=torch.float64)
    full = center.new_zeros(len(center), 3, 3, dtype=torch.float64)
    wide[:, axes], full[:, axes, axes] = center, (matrix + matrix.mT) / 2
    depth, middle, last = (1,) * (3 - len(grid)) + tuple(grid)
    return Heads(wide, full, (depth, middle, last), axes, len(grid))


class JoinColumns(torch.autograd.Function):
    """Queries (``role`` 0), keys (1) or values (2), ``(batch, heads, tokens, total)``, with what stands beside their content.

    Centers and matrices receive no gradient; that of the content is a view.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, role: int, x: Tensor, heads: Heads, keep: Tensor | None, far: Tensor | None, carriers: Carriers,
        prefix: int, beta: float, total: int,
    ) -> Tensor:  # fmt: skip
        ctx.width = x.shape[3]
        return _with_columns(role, x, heads, keep, far, carriers, prefix, beta, total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return None, grad[..., : ctx.width], *(None,) * 7


def _with_columns(
    role: int, x: Tensor, heads: Heads, keep: Tensor | None, far: Tensor | None, carriers: Carriers, prefix: int,
    beta: float, total: int,
) -> Tensor:  # fmt: skip
    from regard.functional.kernels._placed_pass import placed_columns

    x = rows_of(x)
    batch, many, tokens, width = x.shape
    out = x.new_empty(batch, many, tokens, total)
    missing = 3 - heads.dimensions
    digits, scales = (0,) * missing + carriers.digits, (1.0,) * missing + carriers.axes
    unit, block = unit_of((*x.stride()[:3], total), x), 64
    with on_device_of(x):
        placed_columns[math.ceil(tokens / block), batch * many](
            x, out, heads.center, heads.matrix, heads.center if keep is None else keep.contiguous().view(torch.uint8),
            heads.center if far is None else far,
            tokens, prefix, many, width, total // unit, *heads.grid[1:], *[size // 2 for size in heads.grid],
            1.0 / beta, carriers.one, *scales, *[stride // unit for stride in x.stride()[:3]],
            ROLE=role, COUNT=PIECES[x.dtype], STEP=int(carriers.step), BASE=carriers.base, D0=digits[0], D1=digits[1],
            D2=digits[2], PREFIX=int(prefix > 0), MASKED=int(keep is not None),
            UNIT=unit, BT=block, BD=power_of_two(max(width, 1)), BE=power_of_two(max(total - width, 1)), num_warps=4,
        )  # fmt: skip
    return out


def longest(x: Tensor) -> Tensor:
    """The norm of the longest row of (batch, heads, tokens, width), of each item and head."""
    from regard.functional.kernels._placed_pass import longest_rows

    batch, heads, tokens, width = x.shape
    unit, block = unit_of(x.stride()[:3], x), 256 if width <= 64 else 128
    found = torch.empty(batch * heads, math.ceil(tokens / block), device=x.device)
    with on_device_of(x):
        longest_rows[found.shape[1], batch * heads](
            x, found, tokens, heads, width, *[stride // unit for stride in x.stride()[:3]],
            UNIT=unit, BT=block, BD=power_of_two(max(width, 1)), num_warps=4,
        )  # fmt: skip
    return found.amax(1).sqrt()


def unit_of(strides: Sequence[int], *tensors: Tensor) -> int:
    """Strides are given to kernels in units of so many numbers: 8 where all are, and begin at, multiples of 16 bytes, which
    a compiler that only asks for multiples of 16 numbers would not find out."""
    return 8 if all(stride % 8 == 0 for stride in strides) and all(x.data_ptr() % 16 == 0 for x in tensors) else 1
