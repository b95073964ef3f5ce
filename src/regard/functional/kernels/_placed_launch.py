"""Launches of content with place: three axes whatever the grid has, and blocks by width."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Sums of so many numbers of the dtype hold a coefficient to 24 bits; more would be lost in the kernel's float32 sum.
PIECES = {torch.bfloat16: 3, torch.float16: 3}

# Float16 ends at 65504: coefficients are divided by this and coordinates multiplied, both exactly.
HALF_SCALE = 64.0

# Queries and keys at a time, and warps: keys are read from the cache for each block of queries, so that it is large.
BLOCKS = (128, 64, 8, 2)
NARROW = (64, 32, 4, 2)  # for heads wider than 128 channels


class Heads(NamedTuple):
    """Positions of heads as the kernels read them."""

    center: Tensor  # (heads, 3), float64
    matrix: Tensor  # (heads, 3, 3), float64, symmetric
    grid: tuple[int, int, int]
    axes: slice  # which of the three there are
    dimensions: int  # how many


def three_axes(center: Tensor, matrix: Tensor, grid: tuple[int, ...]) -> Heads:
    axes = (slice(2, 3), slice(0, 3, 2), slice(0, 3))[len(grid) - 1]
    wide = center.new_zeros(len(center), 3, dtype=torch.float64)
    full = center.new_zeros(len(center), 3, 3, dtype=torch.float64)
    wide[:, axes], full[:, axes, axes] = center, (matrix + matrix.mT) / 2
    first, *middle = grid[:-1] or (1,)
    return Heads(wide, full, (first, *(middle or (1,)), grid[-1]), axes, len(grid))


class JoinColumns(torch.autograd.Function):
    """Queries, keys and values, ``(batch, heads, tokens, total)`` each, with what stands beside their content.

    Centers and matrices receive no gradient; that of the content is a view.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, heads: Heads, keep: Tensor | None, far: Tensor | None,
        prefix: int, beta: float, total: int,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.widths = [x.shape[3] for x in (query, key, value)]
        ctx.set_materialize_grads(False)
        return tuple(
            _with_columns(role, x, heads, keep, far, prefix, beta, total) for role, x in enumerate((query, key, value))
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        own = (None if x is None else x[..., :width] for x, width in zip(grads, ctx.widths, strict=True))
        return *own, *(None,) * 6


def _with_columns(
    role: int, x: Tensor, heads: Heads, keep: Tensor | None, far: Tensor | None, prefix: int, beta: float, total: int
) -> Tensor:
    from regard.functional.kernels._placed_pass import placed_columns

    x = _rows(x)
    batch, many, tokens, width = x.shape
    out = x.new_empty(batch, many, tokens, total)
    scale = HALF_SCALE if x.dtype is torch.float16 else 1.0
    block = 64
    with _device_of(x):
        placed_columns[math.ceil(tokens / block), batch * many](
            x, out, heads.center, heads.matrix, heads.center if keep is None else keep.contiguous().view(torch.uint8),
            heads.center if far is None else far,
            tokens, prefix, many, width, total, *heads.grid[1:], *[(size - 1) / 2 for size in heads.grid],
            1.0 / (beta * scale), scale, *x.stride()[:3],
            ROLE=role, AXES=heads.dimensions, COUNT=PIECES[x.dtype], PREFIX=int(prefix > 0), MASKED=int(keep is not None),
            BT=block, BD=_power(max(width, 1)), BE=_power(max(total - width, 1)), num_warps=4,
        )  # fmt: skip
    return out


def place_moments(
    grad: Tensor, tensors: tuple[Tensor, Tensor, Tensor], heads: Heads, keep: Tensor | None, prefix: int, beta: float,
    causal: bool, blocks: tuple[int, int, int, int] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Σ ds (δ − Δ) ``(heads, axes)`` and Σ ds (δ − Δ)(δ − Δ)ᵀ ``(heads, axes, axes)``, in float64. ``MemoryError`` where the
    card has no room for it."""
    from triton.runtime.errors import OutOfResources

    from regard.functional.kernels import _placed_pass

    query, key, value = map(_rows, tensors)
    grad = _rows(grad)
    (batch, many, _, width), (depth, m, n) = query.shape, heads.grid
    tokens = depth * m * n
    wide = max(width, value.shape[3])
    block_rows, block_columns, warps, stages = blocks or (BLOCKS if wide <= 128 else NARROW)
    block_rows = min(block_rows, max(16, _power(tokens)))
    block_columns = min(block_columns, max(16, _power(n)))
    programs = math.ceil(tokens / block_rows)
    cut = keep is None and not causal
    # A bound on scores by content: no wait for the device, and a small share of what it saves.
    longest = torch.linalg.vector_norm(key, dim=-1, dtype=torch.float32).amax(-1) if cut else heads.center
    mask = heads.center if keep is None else keep.contiguous().view(torch.uint8)
    partial = torch.empty(batch, many, programs, 12, device=query.device)
    try:
        with _device_of(query):
            _placed_pass.place_moments[programs, batch * many](
                query, key, value, grad, heads.center, heads.matrix, mask,
                longest, partial, tokens, prefix, many, width, value.shape[3], depth, m, n, math.ceil(n / block_columns),
                beta * math.log2(math.e), *[stride for x in (query, key, value, grad) for stride in x.stride()[:3]],
                AXES=heads.dimensions, MASKED=int(keep is not None), CAUSAL=int(causal), CUT=int(cut),
                EVEN=int(n % block_columns == 0), BM=block_rows, BN=block_columns, BD=max(16, _power(width)),
                BV=max(16, _power(value.shape[3])), num_warps=warps, num_stages=stages,
            )  # fmt: skip
    except OutOfResources:
        raise MemoryError("the card has no room for moments of so wide heads") from None
    sums = partial.sum((0, 2), dtype=torch.float64)
    return sums[:, :3][:, heads.axes], sums[:, 3:].view(-1, 3, 3)[:, heads.axes, heads.axes]


def _device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Kernels are launched on the current device, which need not be that of the tensors."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
