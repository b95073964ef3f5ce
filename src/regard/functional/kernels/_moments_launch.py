"""Launches of the gradients of center and sharpness in attention by content and position, with blocks chosen by width."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.functional.kernels._placed_launch import ENTRIES, Heads, longest_rows_of, unit_of
from regard.functional.kernels._tensors import on_device_of, power_of_two, rows_of


class PatchBlocks(NamedTuple):
    """Queries and keys of a patch, its columns, warps, stages and registers. With more keys, squares of their coordinates
    would not be exact in float16."""

    queries: int
    keys: int
    columns: int
    warps: int
    stages: int
    registers: int


BLOCKS = PatchBlocks(64, 32, 8, 4, 3, 128)  # the fastest of eight configurations on an H200, at 64² and 128²
NARROW = PatchBlocks(64, 32, 8, 4, 2, 255)  # for heads wider than 64 channels
NARROWEST = PatchBlocks(32, 32, 8, 4, 1, 255)  # for heads wider than 64 channels in float32
# By number of axes: how many monomials of the query's offsets, and how many columns of sums.
PARTS, COLUMNS = {1: 3, 2: 6, 3: 6}, {1: 8, 2: 16, 3: 32}
# Keys with a weight below 2^−this are skipped: below the last digit of half precision, and of float32.
FORGOTTEN, FORGOTTEN_WIDE = 16.0, 24.0


def place_moments(
    grad: Tensor, out: Tensor, tensors: tuple[Tensor, Tensor, Tensor], lse: Tensor | None, heads: Heads,
    keep: Tensor | None, prefix: int, beta: float, causal: bool, longest: Tensor | None = None,
    blocks: PatchBlocks | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Σ ds (δ − Δ) ``(heads, axes)`` and Σ ds (δ − Δ)(δ − Δ)ᵀ ``(heads, axes, axes)``, in float64; ds is the gradient of the
    scores. Raises ``MemoryError`` if the kernel does not fit the GPU.

    Args:
        tensors: query, key and value, of the same dtype as ``grad`` and ``out``: half precision or float32.
        lse: the logsumexp of each query as computed by the fused kernel; recomputed if None.
        longest: the squared norm of the longest key for each item, head and block of tokens; recomputed if None.
    """
    from triton.runtime.errors import OutOfResources

    from regard.functional.kernels import _moments_pass

    query, key, value, grad, out = map(rows_of, (*tensors, grad, out))
    (batch, many, _, width), (depth, m, n) = query.shape, heads.grid
    tokens, wide, is_wide = depth * m * n, max(width, value.shape[3]), query.dtype is torch.float32
    block, keys, columns, warps, stages, registers = blocks or _blocks(wide, is_wide)
    columns = max(min(columns, power_of_two(n)), keys // min(keys, power_of_two(m)))  # more if there are few lines
    programs = depth * math.ceil(m * columns / block) * math.ceil(n / columns)
    even = n % columns == 0 and m % (keys // columns) == 0
    # For bounds on scores and on gradients of weights, computed without a synchronization.
    longest_key, longest_value = (
        (longest_rows_of(key) if longest is None else longest).amax(1),
        longest_rows_of(value).amax(1),
    )
    mask = heads.center if keep is None else keep.contiguous().view(torch.uint8)
    strides = [stride for x in (query, key, value, grad, out) for stride in x.stride()[:3]]
    unit, parts = unit_of(strides, query, key, value, grad, out), PARTS[heads.dimensions]
    summed = COLUMNS[heads.dimensions]
    partial = torch.empty(batch, many, programs, parts, summed, device=query.device)
    first = torch.empty(many, heads.dimensions, device=query.device, dtype=torch.float64)
    second = torch.empty(many, heads.dimensions, heads.dimensions, device=query.device, dtype=torch.float64)
    try:
        with on_device_of(query):
            _moments_pass.place_moments[programs, batch * many](
                query, key, value, grad, out, heads.center if lse is None else lse.contiguous(), heads.center,
                heads.matrix, heads.table, mask, longest_key, longest_value, partial,
                tokens, prefix, many, width, value.shape[3], depth, m, n, beta * math.log2(math.e),
                *[stride // unit for stride in strides],
                DIMENSIONS=heads.dimensions, MASKED=int(keep is not None), CAUSAL=int(causal), KNOWN=int(lse is not None),
                ROWS=int(prefix > 0), EVEN=int(even), UNIT=unit, BM=block, BN=keys, PC=columns,
                BD=max(16, power_of_two(width)), BV=max(16, power_of_two(value.shape[3])), ENTRIES=ENTRIES, PARTS=parts,
                COLUMNS=summed, FORGOTTEN=FORGOTTEN_WIDE if is_wide else FORGOTTEN, WIDE=int(is_wide), num_warps=warps,
                num_stages=stages, maxnreg=registers,
            )  # fmt: skip
            sums = partial.sum((0, 2), dtype=torch.float64)
            _moments_pass.moments_of_heads[(many,)](
                sums, first, second, PARTS=parts, COLUMNS=summed, DIMENSIONS=heads.dimensions, PC=columns,
                PL=keys // columns, num_warps=1,
            )  # fmt: skip
    except OutOfResources:
        raise MemoryError(f"the moments kernel for heads of width {wide} does not fit this GPU") from None
    return first, second


def _blocks(width: int, is_wide: bool) -> PatchBlocks:
    if is_wide:
        return NARROW if width <= 64 else NARROWEST
    return BLOCKS if width <= 64 else NARROW
