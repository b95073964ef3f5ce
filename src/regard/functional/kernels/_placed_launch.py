"""Launches of the kernels that append position columns. They always use three axes, some of them of size 1."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.functional.kernels._carriers import PIECES, Carriers
from regard.functional.kernels._tensors import on_device_of, power_of_two, rows_of

ENTRIES = 16  # per head in the table of ``costs_of_heads``


class Heads(NamedTuple):
    """Centers and sharpness matrices of heads, in the form that the kernels read."""

    center: Tensor  # (heads, 3), float64
    matrix: Tensor  # (heads, 3, 3), float64, symmetric
    grid: tuple[int, int, int]
    dimensions: int  # how many of the three axes exist: the last ones
    table: Tensor  # (heads, ENTRIES), results of ``costs_of_heads``


def three_axes(center: Tensor, matrix: Tensor, grid: tuple[int, ...]) -> Heads:
    """Extend heads to three axes: the grid's axes are the last, and missing axes have size 1."""
    from regard.functional.kernels._placed_reach import costs_of_heads

    heads = len(center)
    wide, full = (
        torch.empty(shape, device=center.device, dtype=torch.float64) for shape in ((heads, 3), (heads, 3, 3))
    )
    table = torch.empty(heads, ENTRIES, device=center.device)
    with on_device_of(center):
        costs_of_heads[(heads,)](
            center, matrix, wide, full, table, *center.stride(), *matrix.stride(), DIMENSIONS=len(grid), ENTRIES=ENTRIES,
            num_warps=1,
        )  # fmt: skip
    depth, middle, last = (1,) * (3 - len(grid)) + tuple(grid)
    return Heads(wide, full, (depth, middle, last), len(grid), table)


BLOCK, ITEMS = 64, 8  # tokens and items of one program


class JoinColumns(torch.autograd.Function):
    """Queries and keys with position columns, ``(batch, heads, tokens, total)``; and the squared norm of the longest key for
    each item, head and block of tokens.

    Centers and matrices receive no gradient; the gradient of the content is a view.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, query: Tensor, key: Tensor, heads: Heads, seen: Tensor | None, keep: Tensor | None, far: Tensor | None,
        carriers: Carriers, prefix: int, beta: float, total: int,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        ctx.width = query.shape[3]
        ctx.set_materialize_grads(False)
        made = _with_columns(query, key, heads, seen, keep, far, carriers, prefix, beta, total)
        ctx.mark_non_differentiable(made[2])
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        by_query, by_key = (None if grad is None else grad[..., : ctx.width] for grad in grads[:2])
        return by_query, by_key, *(None,) * 8


class PadColumns(torch.autograd.Function):
    """Values padded with zero columns to ``(batch, heads, tokens, total)``. The gradient is a view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, total: int) -> Tensor:  # type: ignore[override]
        from regard.functional.kernels._placed_pass import padded_columns

        ctx.width = x.shape[3]
        x = rows_of(x)
        batch, many, tokens, width = x.shape
        out, unit = x.new_empty(batch, many, tokens, total), unit_of((*x.stride()[:3], total), x)
        with on_device_of(x):
            padded_columns[math.ceil(tokens / BLOCK), many * math.ceil(batch / ITEMS)](
                x, out, tokens, many, batch, width, total // unit, *[stride // unit for stride in x.stride()[:3]],
                UNIT=unit, BT=BLOCK, BD=power_of_two(max(width, 1)), BE=power_of_two(max(total - width, 1)), ITEMS=ITEMS,
                num_warps=4,
            )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return grad[..., : ctx.width], None


def _with_columns(
    query: Tensor, key: Tensor, heads: Heads, seen: Tensor | None, keep: Tensor | None, far: Tensor | None,
    carriers: Carriers, prefix: int, beta: float, total: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from regard.functional.kernels._placed_pass import placed_columns

    query, key = rows_of(query), rows_of(key)
    batch, many, tokens, width = query.shape
    wide_query, wide_key = (query.new_empty(batch, many, tokens, total) for _ in range(2))
    blocks = math.ceil(tokens / BLOCK)
    longest = torch.empty(batch * many, blocks, device=query.device)
    missing = 3 - heads.dimensions
    digits, scales = (0,) * missing + carriers.digits, (1.0,) * missing + carriers.axes
    strides = (*query.stride()[:3], *key.stride()[:3])
    unit = unit_of((*strides, total), query, key)
    masks = (heads.center if x is None else x.contiguous().view(torch.uint8) for x in (seen, keep))
    with on_device_of(query):
        placed_columns[blocks, many * math.ceil(batch / ITEMS), 2](
            query, key, wide_query, wide_key, longest, heads.center, heads.matrix, *masks,
            heads.center if far is None else far,
            tokens, prefix, many, batch, width, total // unit, *heads.grid[1:], *[size // 2 for size in heads.grid],
            1.0 / beta, carriers.one, *scales, *[stride // unit for stride in strides],
            COUNT=PIECES[query.dtype], STEP=int(carriers.step), BASE=carriers.base, D0=digits[0], D1=digits[1],
            D2=digits[2], PREFIX=int(prefix > 0), MASKED=int(keep is not None), UNIT=unit, BT=BLOCK,
            BD=power_of_two(max(width, 1)), BE=power_of_two(max(total - width, 1)), ITEMS=ITEMS, num_warps=4,
        )  # fmt: skip
    return wide_query, wide_key, longest


def longest_rows_of(x: Tensor) -> Tensor:
    """The squared norm of the longest row of (batch, heads, tokens, width), for each item, head and block of tokens."""
    from regard.functional.kernels._placed_pass import longest_rows

    batch, heads, tokens, width = x.shape
    unit, block = unit_of(x.stride()[:3], x), 256 if width <= 64 else 128
    found = torch.empty(batch * heads, math.ceil(tokens / block), device=x.device)
    with on_device_of(x):
        longest_rows[found.shape[1], batch * heads](
            x, found, tokens, heads, width, *[stride // unit for stride in x.stride()[:3]],
            UNIT=unit, BT=block, BD=power_of_two(max(width, 1)), num_warps=4,
        )  # fmt: skip
    return found


def unit_of(strides: Sequence[int], *tensors: Tensor) -> int:
    """The unit of the strides passed to kernels: 8 numbers if all strides and start addresses are multiples of 16 bytes, else
    1. Triton only detects multiples of 16 numbers, so without the unit it would miss that 16-byte loads are possible."""
    return 8 if all(stride % 8 == 0 for stride in strides) and all(x.data_ptr() % 16 == 0 for x in tensors) else 1
