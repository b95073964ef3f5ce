"""Local Gaussian heads along one axis of a grid, at the cost of reading and writing the values once.

A program belongs to one head and keeps weights on the chip: those of a tile of output rows and the window of input rows
within reach. It loops over tiles that share these weights, so that values stream through and weights are computed once: all
columns of a row tile near the border, or all interior row tiles, where weights depend on the distance alone.

``REVERSED`` begins with the last tile, because what the previous pass wrote last is still in the cache.

If the window holds the whole axis, every head is local. Otherwise heads with ``2 · reach + |Δ| ≤ ROOM`` are local, where
``ROOM`` is the window's length minus the tile's; the others are computed by :mod:`._gaussian_pass`.
"""

import triton
import triton.language as tl

from regard.functional.kernels._gaussian_pass import (
    column_offsets,
    first_and_last,
    head_of,
    is_local,
    nearest_of,
    outputs_of,
    reach_of,
)


@triton.jit
def share_of(program, first, borders, inner, each, rest):
    """(first row tile, number of row tiles, part, parts) of a program. Every row tile near a border gets ``each`` programs
    (``first`` of these tiles precede the interior), and the whole interior gets ``rest``."""
    near = program < borders * each
    tile = program // each
    row = tl.where(near, tl.where(tile < first, tile, tile + inner), first)
    part = tl.where(near, program % each, program - borders * each)
    return row, tl.where(near, 1, inner), part, tl.where(near, each, rest)


# Counts that differ between grids; the kernel is not specialized on them, so that one compiled kernel serves all.
COUNTS = ("first", "borders", "inner", "each", "rest", "column_tiles")


@triton.jit(do_not_specialize=COUNTS)
def stream_forward(
    x, center, sharpness, y,
    heads, first, borders, inner, each, rest, column_tiles, other_tiles, width_tiles, others, width, after,
    c_head, c_axis, s_head, s_axis, axis, x_item, x_head, x_token, y_item, y_head, y_token,
    SIZE: tl.constexpr, NEGLIGIBLE: tl.constexpr, PRECISION: tl.constexpr, WHOLE: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, BW: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    program, head = tl.program_id(0) // heads, (tl.program_id(0) % heads).to(tl.int64)
    row, many, part, parts = share_of(program, first, borders, inner, each, rest)
    whole, fraction, alpha = head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis)
    reach = reach_of(alpha, NEGLIGIBLE, SIZE)
    tiles, low = many * column_tiles, row * BM
    m = low + tl.arange(0, BM)
    begin, end = first_and_last(low, tl.minimum(low + BM, SIZE) - 1, whole, SIZE)
    begin, end = begin - reach, tl.minimum(end + reach + 1, SIZE)
    if WHOLE:
        begin, end = 0, SIZE
    else:
        tiles = tl.where(is_local(whole, reach, BK - BM), tiles, 0)
    k = begin + tl.arange(0, BK)
    near = (k >= 0) & (k < end)
    nearest, shift = nearest_of(m, whole, fraction, SIZE)
    step = tl.minimum(tl.maximum(k, 0), SIZE - 1).to(tl.float32)[None, :] - nearest[:, None]
    raw = tl.exp2(-alpha * 1.4426950408889634 * (step * (step + (2.0 * shift)[:, None])))
    raw = tl.where(near[None, :], raw, 0.0)
    inverse = (1.0 / tl.maximum(tl.sum(raw, 1), 0.5))[:, None]  # the nearest input of a local head has weight 1
    weight = raw.to(x.dtype.element_ty)
    x_rows, y_rows = (k.to(tl.int64) * after * x_token)[:, None], (m.to(tl.int64) * after * y_token)[:, None]
    outside = (m < SIZE)[:, None]
    for t in range(part, tiles, parts):
        at = tiles - 1 - t if REVERSED else t
        down = ((at % many) * BM).to(tl.int64) * after
        item, token, channel, inside = column_offsets(
            at // many, other_tiles, width_tiles, others, width, after, SIZE, BO, BW
        )
        source = x + item * x_item + head * x_head + down * x_token
        values = tl.load(
            source + (token * x_token + channel)[None, :] + x_rows, mask=inside[None, :] & near[:, None], other=0.0
        )
        mixed = tl.dot(weight, values, input_precision=PRECISION) * inverse
        target = y + item * y_item + head * y_head + down * y_token
        tl.store(
            target + (token * y_token + channel)[None, :] + y_rows,
            mixed.to(y.dtype.element_ty), mask=inside[None, :] & outside,
        )  # fmt: skip


@triton.jit(do_not_specialize=(*COUNTS, "programs", "first_part"))
def stream_backward(
    x, grad_y, grad_x, center, sharpness, partial,
    programs, first_part, axes,
    heads, first, borders, inner, each, rest, column_tiles, other_tiles, width_tiles, others, width, after,
    c_head, c_axis, s_head, s_axis, axis, x_item, x_head, x_token, y_item, y_head, y_token, gx_item, gx_head, gx_token,
    NEEDS_X: tl.constexpr, NEEDS_HEADS: tl.constexpr,
    SIZE: tl.constexpr, NEGLIGIBLE: tl.constexpr, PRECISION: tl.constexpr, WHOLE: tl.constexpr,
    BK: tl.constexpr, BM: tl.constexpr, BO: tl.constexpr, BW: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and partial gradients of center and sharpness: ``partial`` is (heads, axes, 2, programs).

    A program reads x only in tiles whose gradient it writes, so the gradient may overwrite x.
    """
    program, head = tl.program_id(0) // heads, (tl.program_id(0) % heads).to(tl.int64)
    row, many, part, parts = share_of(program, first, borders, inner, each, rest)
    whole, fraction, alpha = head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis)
    reach = reach_of(alpha, NEGLIGIBLE, SIZE)
    scale = -alpha * 1.4426950408889634
    tiles, low = many * column_tiles, row * BK
    k = low + tl.arange(0, BK)
    begin, end = outputs_of(low, tl.minimum(low + BK, SIZE) - 1, reach, whole, SIZE)
    if WHOLE:
        begin, end = 0, SIZE
    else:
        tiles = tl.where(is_local(whole, reach, BM - BK), tiles, 0)
        reach = tl.where(is_local(whole, reach, BM - BK), reach, 0)  # else another launch computes this head
    m = begin + tl.arange(0, BM)
    there, here = (m < end)[:, None], (k < SIZE)[:, None]
    nearest, shift = nearest_of(m, whole, fraction, SIZE)
    # Normalizers and mean moments of the window's rows, over all inputs within reach of each.
    total = tl.zeros((BM, 16), tl.float32)
    steps = tl.zeros((BM, 16), tl.float32)
    squares = tl.zeros((BM, 16), tl.float32)
    for start in range(-reach, reach + 1, 16):
        offset = (start + tl.arange(0, 16)).to(tl.float32)[None, :]
        inputs = nearest[:, None] + offset
        step = tl.minimum(tl.maximum(inputs, 0.0), SIZE - 1.0) - nearest[:, None]
        square = step * (step + (2.0 * shift)[:, None])
        raw = tl.where((inputs == nearest[:, None] + step) & (offset <= reach), tl.exp2(scale * square), 0.0)
        total += raw
        steps += raw * step
        squares += raw * square
    sums = tl.maximum(tl.sum(total, 1), 0.5)  # at least 1, the nearest input's weight
    mean_step, mean_square = tl.sum(steps, 1) / sums, tl.sum(squares, 1) / sums
    weight, _, _ = weights_back(k, m, end, nearest, shift, scale, sums, SIZE)
    weight = weight.to(x.dtype.element_ty)
    x_rows, y_rows = (k.to(tl.int64) * after * x_token)[:, None], (m.to(tl.int64) * after * y_token)[:, None]
    gx_rows = (k.to(tl.int64) * after * gx_token)[:, None]
    pairs = tl.zeros((BK, BM), tl.float32)
    nothing = 0
    for t in range(part, tiles, parts):
        nothing = tl.minimum(t, 0)
        at = tiles - 1 - t if REVERSED else t
        down = ((at % many) * BK).to(tl.int64) * after
        item, token, channel, inside = column_offsets(
            at // many, other_tiles, width_tiles, others, width, after, SIZE, BO, BW
        )
        source = grad_y + item * y_item + head * y_head + down * y_token
        upstream = tl.load(
            source + (token * y_token + channel)[None, :] + y_rows, mask=inside[None, :] & there, other=0.0
        )
        if NEEDS_HEADS:
            own = x + item * x_item + head * x_head + down * x_token
            values = tl.load(
                own + (token * x_token + channel)[None, :] + x_rows, mask=inside[None, :] & here, other=0.0
            )
            pairs = tl.dot(values, tl.trans(upstream), pairs, input_precision=PRECISION)
        if NEEDS_X:
            back = tl.dot(weight, upstream, input_precision=PRECISION)
            target = grad_x + item * gx_item + head * gx_head + down * gx_token
            tl.store(
                target + (token * gx_token + channel)[None, :] + gx_rows,
                back.to(grad_x.dtype.element_ty), mask=inside[None, :] & here,
            )  # fmt: skip
    if NEEDS_HEADS:
        # Weights are recomputed, so that only the operands of products occupy registers while values stream through.
        again, step, square = weights_back(k + nothing, m, end, nearest, shift, scale, sums, SIZE)
        pairs = pairs * again
        place = partial + ((head * axes + axis) * 2).to(tl.int64) * programs + first_part + program
        tl.store(place, 2.0 * alpha * tl.sum(tl.sum(pairs * (step - mean_step[None, :]), 1), 0))
        tl.store(place + programs, -tl.sum(tl.sum(pairs * (square - mean_square[None, :]), 1), 0))


@triton.jit
def weights_back(k, m, end, nearest, shift, scale, total, SIZE: tl.constexpr):
    """(weights, steps, squares) of outputs m at inputs k, as (inputs, outputs), with squares = step (step + 2 shift)."""
    step = tl.minimum(k, SIZE - 1).to(tl.float32)[:, None] - nearest[None, :]
    square = step * (step + (2.0 * shift)[None, :])
    looks = (m < end)[None, :] & (k < SIZE)[:, None]
    return tl.where(looks, tl.exp2(scale * square) / total[None, :], 0.0), step, square
