"""Gaussian heads along two short axes of a grid at once: between the two products the tile does not leave the chip.

A program belongs to one head, holds the weights of both axes and walks over tiles (rows, columns · channels) of all items
and of all places along the third axis, if there is one. Between the products a tile is turned: (rows, columns · channels)
becomes (columns, rows · channels).
"""

import triton
import triton.language as tl

from regard.functional.kernels._gaussian_pass import head_of, nearest_of
from regard.functional.kernels._plane import turn


@triton.jit
def axis_weights(
    center, sharpness, head, c_head, c_axis, s_head, s_axis, axis, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """Weights (outputs, inputs) of a whole axis; α; by how far each step and each q is above its row's mean."""
    whole, fraction, alpha = head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis)
    m, k = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    nearest, shift = nearest_of(m, whole, fraction, SIZE)
    step = tl.minimum(k, SIZE - 1).to(tl.float32)[None, :] - nearest[:, None]
    square = step * (step + (2.0 * shift)[:, None])
    raw = tl.where((k < SIZE)[None, :], tl.exp2(-alpha * 1.4426950408889634 * square), 0.0)
    weight = raw / tl.sum(raw, 1)[:, None]
    step -= tl.sum(weight * step, 1)[:, None]
    square -= tl.sum(weight * square, 1)[:, None]
    return tl.where((m < SIZE)[:, None], weight, 0.0), alpha, step, square


@triton.jit
def tile_of(
    tile, width_tiles, width, inner, i_step, r_step, c_step,
    R: tl.constexpr, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """(item, tokens, channels, inside) of a tile as (rows, columns · channels)."""
    rest = tile // width_tiles
    r, n = tl.arange(0, BR)[:, None], tl.arange(0, BC * BE)[None, :]
    c, channel = n // BE, (tile % width_tiles) * BE + n % BE
    token = (rest % inner) * i_step + r * r_step + c * c_step
    return (rest // inner).to(tl.int64), token.to(tl.int64), channel, (r < R) & (c < C) & (channel < width)


@triton.jit(do_not_specialize=("tiles",))
def pair_forward(
    x, center, sharpness, y,
    heads, tiles, width_tiles, width, inner, i_step, r_step, c_step,
    c_head, c_axis, s_head, s_axis, r_place, c_place, x_item, x_head, x_token, y_item, y_head, y_token,
    PRECISION: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    head, part, parts = tl.program_id(0) % heads, tl.program_id(0) // heads, tl.num_programs(0) // heads
    row, _, _, _ = axis_weights(center, sharpness, head, c_head, c_axis, s_head, s_axis, r_place, R, BR)
    column, _, _, _ = axis_weights(center, sharpness, head, c_head, c_axis, s_head, s_axis, c_place, C, BC)
    row, column = row.to(x.dtype.element_ty), column.to(x.dtype.element_ty)
    for tile in range(part, tiles, parts):
        item, token, channel, inside = tile_of(
            tile, width_tiles, width, inner, i_step, r_step, c_step, R, C, BR, BC, BE
        )
        values = tl.load(x + item * x_item + head * x_head + token * x_token + channel, mask=inside, other=0.0)
        half = tl.dot(row, values, input_precision=PRECISION).to(x.dtype.element_ty)
        mixed = tl.dot(column, turn(half, BR, BC, BE), input_precision=PRECISION)
        item, token, channel, inside = tile_of(
            tile, width_tiles, width, inner, i_step, c_step, r_step, C, R, BC, BR, BE
        )
        target = y + item * y_item + head * y_head + token * y_token + channel
        tl.store(target, mixed.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=("tiles", "programs"))
def pair_backward(
    x, grad_y, grad_x, center, sharpness, partial,
    programs, axes, heads, tiles, width_tiles, width, inner, i_step, r_step, c_step,
    c_head, c_axis, s_head, s_axis, r_place, c_place,
    x_item, x_head, x_token, y_item, y_head, y_token, gx_item, gx_head, gx_token,
    NEEDS_X: tl.constexpr, NEEDS_HEADS: tl.constexpr, PRECISION: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Gradient of x, which may take x's place, and each program's part of those of center and sharpness along both axes:
    ``partial`` is (heads, axes, 2, programs)."""
    head, part, parts = tl.program_id(0) % heads, tl.program_id(0) // heads, tl.num_programs(0) // heads
    row, row_alpha, step, square = axis_weights(center, sharpness, head, c_head, c_axis, s_head, s_axis, r_place, R, BR)
    column, _, _, _ = axis_weights(center, sharpness, head, c_head, c_axis, s_head, s_axis, c_place, C, BC)
    # Along rows, the shorter axis, derivatives of the weights meet the values as the weights do: a sum of pairs would be a
    # product with so few rows and columns that most of the chip had nothing to do.
    by_center, by_sharpness = (row * step).to(x.dtype.element_ty), (row * square).to(x.dtype.element_ty)
    row, column = row.to(x.dtype.element_ty), column.to(x.dtype.element_ty)
    row_back, column_back = tl.trans(row), tl.trans(column)
    center_sum, sharpness_sum = tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.float32)
    by_columns = tl.zeros((BC, BC), tl.float32)
    nothing = 0
    for tile in range(part, tiles, parts):
        nothing = tl.minimum(tile, 0)
        item, token, channel, inside = tile_of(
            tile, width_tiles, width, inner, i_step, c_step, r_step, C, R, BC, BR, BE
        )
        upstream = tl.load(grad_y + item * y_item + head * y_head + token * y_token + channel, mask=inside, other=0.0)
        through = tl.dot(column_back, upstream, input_precision=PRECISION).to(x.dtype.element_ty)
        through = turn(through, BC, BR, BE)
        item, token, channel, inside = tile_of(
            tile, width_tiles, width, inner, i_step, r_step, c_step, R, C, BR, BC, BE
        )
        if NEEDS_HEADS:
            values = tl.load(x + item * x_item + head * x_head + token * x_token + channel, mask=inside, other=0.0)
            half = turn(tl.dot(row, values, input_precision=PRECISION).to(x.dtype.element_ty), BR, BC, BE)
            by_columns = tl.dot(upstream, tl.trans(half), by_columns, input_precision=PRECISION)
            above = through.to(tl.float32)
            center_sum += tl.sum(tl.dot(by_center, values, input_precision=PRECISION) * above, 1)
            sharpness_sum += tl.sum(tl.dot(by_sharpness, values, input_precision=PRECISION) * above, 1)
        if NEEDS_X:
            back = tl.dot(row_back, through, input_precision=PRECISION)
            target = grad_x + item * gx_item + head * gx_head + token * gx_token + channel
            tl.store(target, back.to(grad_x.dtype.element_ty), mask=inside)
    if NEEDS_HEADS:
        place = partial + ((head * axes + r_place) * 2).to(tl.int64) * programs + part
        tl.store(place, 2.0 * row_alpha * tl.sum(center_sum, 0))
        tl.store(place + programs, -tl.sum(sharpness_sum, 0))
        # Made once more, so that nothing but the products' operands has to be kept while values stream through.
        weight, alpha, step, square = axis_weights(
            center, sharpness, head + nothing, c_head, c_axis, s_head, s_axis, c_place, C, BC
        )
        place = partial + ((head * axes + c_place) * 2).to(tl.int64) * programs + part
        tl.store(place, 2.0 * alpha * tl.sum(tl.sum(by_columns * weight * step, 1), 0))
        tl.store(place + programs, -tl.sum(tl.sum(by_columns * weight * square, 1), 0))
