"""Launches of the gradients of center and sharpness where content and place meet: blocks by width."""

import math

import torch
from torch import Tensor

from regard.functional.kernels._placed_launch import Heads, longest, unit_of
from regard.functional.kernels._tensors import on_device_of, power_of_two, rows_of

# Queries and keys of a patch, its columns, warps, stages and registers. More keys would not leave squares of their places
# exact in float16.
BLOCKS = (64, 64, 16, 4, 2, 168)
NARROW = (64, 32, 8, 4, 2, 255)  # for heads wider than 64 channels


def place_moments(
    grad: Tensor, out: Tensor, tensors: tuple[Tensor, Tensor, Tensor], lse: Tensor | None, heads: Heads,
    keep: Tensor | None, prefix: int, beta: float, causal: bool, blocks: tuple[int, int, int, int, int, int] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Σ ds (δ − Δ) ``(heads, axes)`` and Σ ds (δ − Δ)(δ − Δ)ᵀ ``(heads, axes, axes)``, in float64. ``MemoryError`` where the
    card has no room for it.

    Args:
        lse: of each query, the logarithm of its sum of exponentials as the fused kernel had it; made again if None.
    """
    from triton.runtime.errors import OutOfResources

    from regard.functional.kernels import _moments_pass

    query, key, value, grad, out = map(rows_of, (*tensors, grad, out))
    (batch, many, _, width), (depth, m, n) = query.shape, heads.grid
    tokens = depth * m * n
    wide = max(width, value.shape[3])
    block, keys, columns, warps, stages, registers = blocks or (BLOCKS if wide <= 64 else NARROW)
    columns = max(min(columns, power_of_two(n)), keys // min(keys, power_of_two(m)))  # more where there are few lines
    programs = depth * math.ceil(m * columns / block) * math.ceil(n / columns)
    even = n % columns == 0 and m % (keys // columns) == 0
    # Bounds on scores and on gradients of weights, without a wait for the device.
    longest_key, longest_value = longest(key), longest(value)
    mask = heads.center if keep is None else keep.contiguous().view(torch.uint8)
    strides = [stride for x in (query, key, value, grad, out) for stride in x.stride()[:3]]
    unit = unit_of(strides, query, key, value, grad, out)
    partial = torch.empty(batch, many, programs, 16, device=query.device)
    try:
        with on_device_of(query):
            _moments_pass.place_moments[programs, batch * many](
                query, key, value, grad, out, heads.center if lse is None else lse.contiguous(), heads.center,
                heads.matrix, mask, longest_key, longest_value, partial,
                tokens, prefix, many, width, value.shape[3], depth, m, n, beta * math.log2(math.e),
                *[stride // unit for stride in strides],
                DIMENSIONS=heads.dimensions, MASKED=int(keep is not None), CAUSAL=int(causal), KNOWN=int(lse is not None),
                ROWS=int(prefix > 0), EVEN=int(even), UNIT=unit, BM=block, BN=keys, PC=columns,
                BD=max(16, power_of_two(width)), BV=max(16, power_of_two(value.shape[3])), num_warps=warps,
                num_stages=stages, maxnreg=registers,
            )  # fmt: skip
    except OutOfResources:
        raise MemoryError("the card has no room for moments of so wide heads") from None
    # In the kernel's order: 1, then products of the last axis's distance u, the middle one's b and the first one's a.
    _, u, uu, b, bb, bu, a, aa, au, ab = partial.sum((0, 2), dtype=torch.float64)[:, :10].unbind(1)
    first, second = torch.stack([a, b, u], 1), torch.stack([aa, ab, au, ab, bb, bu, au, bu, uu], 1).view(-1, 3, 3)
    return first[:, heads.axes], second[:, heads.axes, heads.axes]
