"""Multiply a plane along one axis by one matrix per head: ``y[m, o] = Σ_k a[m, k] x[k, o]``, forward and backward.

Two such passes, one per axis, compute Gaussian attention on a plane that is too large for one program. In each, the plane
is viewed as (axis, other, width): the pass sums over ``axis``, and ``other`` is the axis that stays.

Programs are persistent: each belongs to one head, keeps its matrix on the chip, and loops over tiles of all items. Each
program accumulates the matrix gradient and stores it once, so the order of summation is fixed.
"""

import triton
import triton.language as tl


@triton.jit
def tile_offsets(tile, other_tiles, width_tiles, BLOCK_OTHER: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """(item, other, channel) of a tile's columns; other and channel share one index, channel fastest."""
    n = tl.arange(0, BLOCK_OTHER * BLOCK_WIDTH)
    channel = (tile % width_tiles) * BLOCK_WIDTH + n % BLOCK_WIDTH
    rest = tile // width_tiles
    other = (rest % other_tiles) * BLOCK_OTHER + n // BLOCK_WIDTH
    return (rest // other_tiles).to(tl.int64), other, channel


@triton.jit
def pass_forward(
    x, a, y,
    tiles, other_tiles, width_tiles, others, width,
    x_item, x_head, x_axis, x_other,
    y_item, y_head, y_axis, y_other,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr, BLOCK_OTHER: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    m, k = tl.arange(0, BLOCK_OUTPUTS), tl.arange(0, BLOCK_INPUTS)
    matrix = tl.load(
        a + head * (OUTPUTS * INPUTS) + m[:, None] * INPUTS + k[None, :],
        mask=(m < OUTPUTS)[:, None] & (k < INPUTS)[None, :], other=0.0,
    )  # fmt: skip
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        item, other, channel = tile_offsets(tile, other_tiles, width_tiles, BLOCK_OTHER, BLOCK_WIDTH)
        inside = (other < others) & (channel < width)
        source = x + item * x_item + head * x_head + (other * x_other + channel)[None, :] + k[:, None] * x_axis
        values = tl.load(source, mask=inside[None, :] & (k < INPUTS)[:, None], other=0.0)
        mixed = tl.dot(matrix, values, input_precision=PRECISION)
        target = y + item * y_item + head * y_head + (other * y_other + channel)[None, :] + m[:, None] * y_axis
        tl.store(target, mixed.to(y.dtype.element_ty), mask=inside[None, :] & (m < OUTPUTS)[:, None])


@triton.jit
def pass_backward(
    x, a, grad_y, grad_x, grad_a,
    tiles, other_tiles, width_tiles, others, width,
    x_item, x_head, x_axis, x_other,
    y_item, y_head, y_axis, y_other,
    gx_item, gx_head, gx_axis, gx_other,
    NEEDS_X: tl.constexpr, NEEDS_A: tl.constexpr,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr, BLOCK_OTHER: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    head, heads = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    m, k = tl.arange(0, BLOCK_OUTPUTS), tl.arange(0, BLOCK_INPUTS)
    transposed = tl.load(
        a + head * (OUTPUTS * INPUTS) + m[None, :] * INPUTS + k[:, None],
        mask=(m < OUTPUTS)[None, :] & (k < INPUTS)[:, None], other=0.0,
    )  # fmt: skip
    total = tl.zeros((BLOCK_OUTPUTS, BLOCK_INPUTS), tl.float32)
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        item, other, channel = tile_offsets(tile, other_tiles, width_tiles, BLOCK_OTHER, BLOCK_WIDTH)
        inside = (other < others) & (channel < width)
        upstream = tl.load(
            grad_y + item * y_item + head * y_head + (other * y_other + channel)[None, :] + m[:, None] * y_axis,
            mask=inside[None, :] & (m < OUTPUTS)[:, None], other=0.0,
        )  # fmt: skip
        if NEEDS_A:
            values = tl.load(
                x + item * x_item + head * x_head + (other * x_other + channel)[None, :] + k[:, None] * x_axis,
                mask=inside[None, :] & (k < INPUTS)[:, None], other=0.0,
            )  # fmt: skip
            total = tl.dot(upstream, tl.trans(values), total, input_precision=PRECISION)
        if NEEDS_X:
            back = tl.dot(transposed, upstream, input_precision=PRECISION)
            tl.store(
                grad_x + item * gx_item + head * gx_head + (other * gx_other + channel)[None, :] + k[:, None] * gx_axis,
                back.to(grad_x.dtype.element_ty), mask=inside[None, :] & (k < INPUTS)[:, None],
            )  # fmt: skip
    if NEEDS_A:
        partial = grad_a + (tl.program_id(1) * heads + head) * (OUTPUTS * INPUTS)
        tl.store(
            partial + m[:, None] * INPUTS + k[None, :], total,
            mask=(m < OUTPUTS)[:, None] & (k < INPUTS)[None, :],
        )  # fmt: skip
