"""The axis matrices of Gaussian heads with border "native", forward and backward, both axes in one launch.

``A[o, i] = softmax_i(−α (i − o − Δ)²)``. Scores are relative to that of the nearest existing input, as in
:func:`regard.functional._axis.nearest_scores`, so that no large constant causes rounding errors.
"""

import triton
import triton.language as tl


@triton.jit
def row_weights(o, i, delta, alpha, SIZE: tl.constexpr):
    """(weights, steps from the nearest input, offset of the nearest input from the target) of some rows."""
    # Integer part and fraction are kept separate: their sum would be rounded, and sharpness multiplies the error.
    whole = tl.floor(delta + 0.5)
    target = o.to(tl.float32) + whole
    nearest = tl.minimum(tl.maximum(target, 0.0), SIZE - 1.0)
    step = i.to(tl.float32)[None, :] - nearest[:, None]
    shift = (nearest - target - (delta - whole))[:, None]
    score = -alpha * (step * (step + 2.0 * shift))
    score = tl.where((i < SIZE)[None, :], score, float("-inf"))
    score -= tl.max(score, 1)[:, None]
    weight = tl.exp(score)
    return weight / tl.sum(weight, 1)[:, None], step, shift


@triton.jit
def store_rows(matrix, head, o, delta, alpha, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Store some rows of a head's matrix. A function, because Triton needs equal shapes for a name used in both branches of
    the caller, and the axes may differ in size."""
    i = tl.arange(0, BLOCK)
    weight, _, _ = row_weights(o, i, delta, alpha, SIZE)
    place = matrix + head * (SIZE * SIZE) + o[:, None] * SIZE + i[None, :]
    tl.store(place, weight.to(matrix.dtype.element_ty), mask=(o < SIZE)[:, None] & (i < SIZE)[None, :])


@triton.jit
def matrices_forward(
    center, sharpness, rows, columns, c_head, c_axis, s_head, s_axis,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    head, block, axis = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    delta = tl.load(center + head * c_head + axis * c_axis).to(tl.float32)
    alpha = tl.load(sharpness + head * s_head + axis * s_axis).to(tl.float32)
    o = block * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    if axis == 0:
        store_rows(rows, head, o, delta, alpha, ROWS, BLOCK_ROWS)
    else:
        store_rows(columns, head, o, delta, alpha, COLUMNS, BLOCK_COLUMNS)


@triton.jit
def gradient_of_rows(grad, head, heads, partials, o, delta, alpha, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Gradients of Δ and α from some rows; the rows' own gradients are stored as ``partials`` partial sums."""
    i = tl.arange(0, BLOCK)
    weight, step, shift = row_weights(o, i, delta, alpha, SIZE)
    inside = (o < SIZE)[:, None] & (i < SIZE)[None, :]
    upstream = tl.zeros_like(weight)
    for part in range(partials):
        place = grad + (part * heads + head).to(tl.int64) * (SIZE * SIZE) + o[:, None] * SIZE + i[None, :]
        upstream += tl.load(place, mask=inside, other=0.0)
    weight = tl.where(inside, weight, 0.0)
    score = weight * (upstream - tl.sum(weight * upstream, 1)[:, None])
    # score = −α·step·(step + 2·shift), with ∂shift/∂Δ = −1.
    by_alpha = tl.sum(tl.sum(-score * (step * (step + 2.0 * shift)), 1), 0)
    by_delta = tl.sum(tl.sum(score * (2.0 * alpha * step), 1), 0)
    return by_delta, by_alpha


@triton.jit
def matrices_backward(
    center, sharpness, grad_rows, grad_columns, grad_center, grad_sharpness, row_partials, column_partials,
    c_head, c_axis, s_head, s_axis,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    head, block, axis = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(0)
    delta = tl.load(center + head * c_head + axis * c_axis).to(tl.float32)
    alpha = tl.load(sharpness + head * s_head + axis * s_axis).to(tl.float32)
    o = block * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    # (blocks, heads, 2): one partial sum per block of rows; the caller adds them
    place = (block * heads + head) * 2 + axis
    if axis == 0:
        by_delta, by_alpha = gradient_of_rows(grad_rows, head, heads, row_partials, o, delta, alpha, ROWS, BLOCK_ROWS)
        tl.store(grad_center + place, by_delta)
        tl.store(grad_sharpness + place, by_alpha)
    else:
        by_delta, by_alpha = gradient_of_rows(
            grad_columns, head, heads, column_partials, o, delta, alpha, COLUMNS, BLOCK_COLUMNS
        )
        tl.store(grad_center + place, by_delta)
        tl.store(grad_sharpness + place, by_alpha)
