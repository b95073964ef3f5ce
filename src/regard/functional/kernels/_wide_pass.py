"""Wide Gaussian heads along one axis: plain products with their matrix, which is computed once and stays in the cache.

Computing a weight takes about as long as using it in eight rows of a tensor core's product. If the axis is short enough for a
table (outputs × inputs of each wide head), weights are read from it instead, and all time is spent in products. Local heads
are computed by :mod:`._stream_pass`, longer axes by :mod:`._gaussian_pass`.
"""

import triton
import triton.language as tl

from regard.functional.kernels._gaussian_pass import (
    column_offsets,
    head_of,
    inputs_of,
    is_local,
    nearest_of,
    outputs_of,
    reach_of,
    wide_heads,
)


@triton.jit
def weight_table(
    center, sharpness, moments, table,
    length, offset, axes, first_axis, heads, c_head, c_axis, s_head, s_axis,
    SIZE: tl.constexpr, NEGLIGIBLE: tl.constexpr, ROOM: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write the weights of wide heads along axes of one size to ``table``, from ``offset`` on as (axes, heads, outputs,
    inputs), and the moments of their rows."""
    head, low = tl.program_id(0) % heads, (tl.program_id(0) // heads) * BM
    axis = first_axis + tl.program_id(1)
    whole, fraction, alpha = head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis)
    if not is_local(whole, reach_of(alpha, NEGLIGIBLE, SIZE), ROOM):
        m = low + tl.arange(0, BM)
        nearest, shift = nearest_of(m, whole, fraction, SIZE)
        scale = -alpha * 1.4426950408889634
        total = tl.zeros((BM, BK), tl.float32)
        steps = tl.zeros((BM, BK), tl.float32)
        squares = tl.zeros((BM, BK), tl.float32)
        for start in range(0, SIZE, BK):
            k = start + tl.arange(0, BK)
            step = tl.minimum(k, SIZE - 1).to(tl.float32)[None, :] - nearest[:, None]
            square = step * (step + (2.0 * shift)[:, None])
            weight = tl.where((k < SIZE)[None, :], tl.exp2(scale * square), 0.0)
            total += weight
            steps += weight * step
            squares += weight * square
        sums = tl.sum(total, 1)
        inverse = -tl.log2(sums)
        place = moments + (axis * heads + head) * length + m
        tl.store(place, inverse, mask=m < SIZE)
        tl.store(place + axes * heads * length, tl.sum(steps, 1) / sums, mask=m < SIZE)
        tl.store(place + 2 * axes * heads * length, tl.sum(squares, 1) / sums, mask=m < SIZE)
        own = table + offset + (tl.program_id(1) * heads + head).to(tl.int64) * (SIZE * SIZE) + (m * SIZE)[:, None]
        for start in range(0, SIZE, BK):
            k = start + tl.arange(0, BK)
            step = tl.minimum(k, SIZE - 1).to(tl.float32)[None, :] - nearest[:, None]
            weight = tl.exp2(scale * step * (step + (2.0 * shift)[:, None]) + inverse[:, None])
            here = (m < SIZE)[:, None] & (k < SIZE)[None, :]
            tl.store(own + k[None, :], weight.to(table.dtype.element_ty), mask=here)


@triton.jit
def wide_mix(
    x, table, center, sharpness, y,
    offset, tiles, m_tiles, other_tiles, width_tiles, others, width, after, heads,
    c_head, c_axis, s_head, s_axis, axis, x_item, x_head, x_token, y_item, y_head, y_token,
    TRANSPOSED: tl.constexpr, SIZE: tl.constexpr, NEGLIGIBLE: tl.constexpr, PRECISION: tl.constexpr,
    ROOM: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """y = A x for wide heads, with A read from the table; ``TRANSPOSED``: y = Aᵀ x, for gradients.

    A small number of programs loops over all tiles of all heads, so that the launch costs little if no head is wide."""
    some = wide_heads(center, sharpness, heads, c_head, c_axis, s_head, s_axis, axis, NEGLIGIBLE, SIZE, ROOM)
    for t in range(tl.program_id(0), tl.where(some > 0, tiles * heads, 0), tl.num_programs(0)):
        head, tile = (t % heads).to(tl.int64), t // heads
        whole, _, alpha = head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis)
        reach = reach_of(alpha, NEGLIGIBLE, SIZE)
        if not is_local(whole, reach, ROOM):
            item, token, channel, inside = column_offsets(
                tile // m_tiles, other_tiles, width_tiles, others, width, after, SIZE, BO, BW
            )
            low = tile % m_tiles * BM
            m = low + tl.arange(0, BM)
            high = tl.minimum(low + BM, SIZE) - 1
            if TRANSPOSED:
                begin, end = outputs_of(low, high, reach, whole, SIZE)
            else:
                begin, end = inputs_of(low, high, reach, whole, SIZE)
            own = table + offset + head * (SIZE * SIZE)
            source = x + item * x_item + head * x_head + (token * x_token + channel)[None, :]
            mixed = tl.zeros((BM, BO * BW), tl.float32)
            for start in range(begin // BK * BK, end, BK):
                k = tl.multiple_of(start, BK) + tl.arange(0, BK)
                if TRANSPOSED:
                    there = (k < SIZE)[:, None] & (m < SIZE)[None, :]
                    weight = tl.trans(tl.load(own + k[:, None] * SIZE + m[None, :], mask=there, other=0.0))
                else:
                    there = (m < SIZE)[:, None] & (k < SIZE)[None, :]
                    weight = tl.load(own + m[:, None] * SIZE + k[None, :], mask=there, other=0.0)
                values = tl.load(
                    source + (k.to(tl.int64) * after * x_token)[:, None], mask=inside[None, :] & (k < SIZE)[:, None],
                    other=0.0,
                )  # fmt: skip
                mixed = tl.dot(weight, values, mixed, input_precision=PRECISION)
            target = y + item * y_item + head * y_head + (token * y_token + channel)[None, :]
            target += (m.to(tl.int64) * after * y_token)[:, None]
            tl.store(target, mixed.to(y.dtype.element_ty), mask=inside[None, :] & (m < SIZE)[:, None])


@triton.jit
def wide_pairs(
    x, grad_y, center, sharpness, moments, partial,
    length, programs, first_part, axes, parts, tiles, column_tiles, other_tiles, width_tiles, others, width, after, heads,
    c_head, c_axis, s_head, s_axis, axis, x_item, x_head, x_token, y_item, y_head, y_token,
    SIZE: tl.constexpr, NEGLIGIBLE: tl.constexpr, PRECISION: tl.constexpr,
    ROOM: tl.constexpr, BS: tl.constexpr, BO: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """Partial gradients of center and sharpness: each program takes one tile of pairs (inputs, outputs) and sums over its
    share of the columns. ``partial`` is (heads, axes, 2, programs)."""
    head, program = (tl.program_id(0) % heads).to(tl.int64), tl.program_id(0) // heads
    tile, part = program % (tiles * tiles), program // (tiles * tiles)
    whole, fraction, alpha = head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis)
    reach = reach_of(alpha, NEGLIGIBLE, SIZE)
    if not is_local(whole, reach, ROOM):
        low, from_m = (tile % tiles) * BS, (tile // tiles) * BS
        begin, end = outputs_of(low, tl.minimum(low + BS, SIZE) - 1, reach, whole, SIZE)
        near = (from_m < end) & (from_m + BS > begin)
        k, m = low + tl.arange(0, BS), from_m + tl.arange(0, BS)
        x_rows, y_rows = (k.to(tl.int64) * after * x_token)[:, None], (m.to(tl.int64) * after * y_token)[:, None]
        pairs = tl.zeros((BS, BS), tl.float32)
        for t in range(part, tl.where(near, column_tiles, 0), parts):
            item, token, channel, inside = column_offsets(
                t, other_tiles, width_tiles, others, width, after, SIZE, BO, BW
            )
            values = tl.load(
                x + item * x_item + head * x_head + (token * x_token + channel)[None, :] + x_rows,
                mask=inside[None, :] & (k < SIZE)[:, None], other=0.0,
            )  # fmt: skip
            upstream = tl.load(
                grad_y + item * y_item + head * y_head + (token * y_token + channel)[None, :] + y_rows,
                mask=inside[None, :] & (m < SIZE)[:, None], other=0.0,
            )  # fmt: skip
            pairs = tl.dot(values, tl.trans(upstream), pairs, input_precision=PRECISION)
        place = partial + ((head * axes + axis) * 2).to(tl.int64) * programs + first_part + program
        # A tile of pairs out of reach reads no moments, and its pairs are zero.
        nearest, shift = nearest_of(m, whole, fraction, SIZE)
        row, read = moments + (axis * heads + head) * length + m, m < tl.where(near, SIZE, 0)
        inverse = tl.load(row, mask=read, other=0.0)
        mean_step = tl.load(row + axes * heads * length, mask=read, other=0.0)
        mean_square = tl.load(row + 2 * axes * heads * length, mask=read, other=0.0)
        step = tl.minimum(k, SIZE - 1).to(tl.float32)[:, None] - nearest[None, :]
        square = step * (step + (2.0 * shift)[None, :])
        pairs = pairs * tl.exp2(-alpha * 1.4426950408889634 * square + inverse[None, :])
        tl.store(place, 2.0 * alpha * tl.sum(tl.sum(pairs * (step - mean_step[None, :]), 1), 0))
        tl.store(place + programs, -tl.sum(tl.sum(pairs * (square - mean_square[None, :]), 1), 0))
