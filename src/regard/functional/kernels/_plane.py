"""Multiply a whole plane of tokens along both axes in one kernel, forward and backward.

For planes small enough that rows × columns × a slice of the channels fits into a program's registers. Between the two
products the tile is transposed: (rows, columns · channels) becomes (columns, rows · channels).

With ``SHARED`` all heads share one value: it is read once for all heads, and its gradient is summed over the heads before
it is written.
"""

import triton
import triton.language as tl


@triton.jit
def turn(tile, FIRST: tl.constexpr, SECOND: tl.constexpr, WIDTH: tl.constexpr):
    """(first, second · width) -> (second, first · width)."""
    return tl.reshape(tl.permute(tl.reshape(tile, (FIRST, SECOND, WIDTH)), (1, 0, 2)), (SECOND, FIRST * WIDTH))


@triton.jit
def load_matrix(a, head, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr):
    o, i = tl.arange(0, BLOCK_O)[:, None], tl.arange(0, BLOCK_I)[None, :]
    return tl.load(a + head * (OUTPUTS * INPUTS) + o * INPUTS + i, mask=(o < OUTPUTS) & (i < INPUTS), other=0.0)


@triton.jit
def load_transposed(a, head, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr):
    o, i = tl.arange(0, BLOCK_O)[None, :], tl.arange(0, BLOCK_I)[:, None]
    return tl.load(a + head * (OUTPUTS * INPUTS) + o * INPUTS + i, mask=(o < OUTPUTS) & (i < INPUTS), other=0.0)


@triton.jit
def by_rows(
    token,
    channel0,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    BE: tl.constexpr,
):
    """Offsets and mask of a (rows, columns · channels) tile; ``token`` is the stride of a token."""
    r, n = tl.arange(0, BR)[:, None], tl.arange(0, BC * BE)[None, :]
    c, e = n // BE, channel0 + n % BE
    return (r * COLUMNS + c) * token + e, (r < ROWS) & (c < COLUMNS) & (e < width)


@triton.jit
def by_columns(
    token,
    channel0,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    BE: tl.constexpr,
):
    """Offsets and mask of a (columns, rows · channels) tile."""
    c, n = tl.arange(0, BC)[:, None], tl.arange(0, BR * BE)[None, :]
    r, e = n // BE, channel0 + n % BE
    return (r * COLUMNS + c) * token + e, (r < ROWS) & (c < COLUMNS) & (e < width)


@triton.jit
def plane_forward(
    x, rows, columns, y,
    tiles, width_tiles, width, heads,
    x_item, x_head, x_token, y_item, y_head, y_token,
    SHARED: tl.constexpr,
    R_OUT: tl.constexpr, R_IN: tl.constexpr, C_OUT: tl.constexpr, C_IN: tl.constexpr,
    BR_OUT: tl.constexpr, BR_IN: tl.constexpr, BC_OUT: tl.constexpr, BC_IN: tl.constexpr, BE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    if SHARED:
        tile = tl.program_id(0)
        item = (tile // width_tiles).to(tl.int64)
        channel = (tile % width_tiles) * BE
        source, inside = by_rows(x_token, channel, width, R_IN, C_IN, BR_IN, BC_IN, BE)
        values = tl.load(x + item * x_item + source, mask=inside, other=0.0)
        target, outside = by_columns(y_token, channel, width, R_OUT, C_OUT, BR_OUT, BC_OUT, BE)
        for head in range(heads):
            row = load_matrix(rows, head, R_OUT, R_IN, BR_OUT, BR_IN)
            column = load_matrix(columns, head, C_OUT, C_IN, BC_OUT, BC_IN)
            half = tl.dot(row, values, input_precision=PRECISION).to(x.dtype.element_ty)
            mixed = tl.dot(column, turn(half, BR_OUT, BC_IN, BE), input_precision=PRECISION)
            tl.store(
                y + item * y_item + tl.cast(head, tl.int64) * y_head + target,
                mixed.to(y.dtype.element_ty),
                mask=outside,
            )
    else:
        head = tl.program_id(0).to(tl.int64)
        row = load_matrix(rows, head, R_OUT, R_IN, BR_OUT, BR_IN)
        column = load_matrix(columns, head, C_OUT, C_IN, BC_OUT, BC_IN)
        for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
            item = (tile // width_tiles).to(tl.int64)
            channel = (tile % width_tiles) * BE
            source, inside = by_rows(x_token, channel, width, R_IN, C_IN, BR_IN, BC_IN, BE)
            values = tl.load(x + item * x_item + head * x_head + source, mask=inside, other=0.0)
            half = tl.dot(row, values, input_precision=PRECISION).to(x.dtype.element_ty)
            mixed = tl.dot(column, turn(half, BR_OUT, BC_IN, BE), input_precision=PRECISION)
            target, outside = by_columns(y_token, channel, width, R_OUT, C_OUT, BR_OUT, BC_OUT, BE)
            tl.store(y + item * y_item + head * y_head + target, mixed.to(y.dtype.element_ty), mask=outside)


@triton.jit
def plane_backward(
    x, rows, columns, grad_y, grad_x, grad_rows, grad_columns,
    tiles, width_tiles, width, heads,
    x_item, x_head, x_token, y_item, y_head, y_token, gx_item, gx_head, gx_token,
    SHARED: tl.constexpr, NEEDS_X: tl.constexpr, NEEDS_A: tl.constexpr,
    R_OUT: tl.constexpr, R_IN: tl.constexpr, C_OUT: tl.constexpr, C_IN: tl.constexpr,
    BR_OUT: tl.constexpr, BR_IN: tl.constexpr, BC_OUT: tl.constexpr, BC_IN: tl.constexpr, BE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    o, i = tl.arange(0, BR_OUT)[:, None], tl.arange(0, BR_IN)[None, :]
    row_place, row_inside = o * R_IN + i, (o < R_OUT) & (i < R_IN)
    o, i = tl.arange(0, BC_OUT)[:, None], tl.arange(0, BC_IN)[None, :]
    column_place, column_inside = o * C_IN + i, (o < C_OUT) & (i < C_IN)
    if SHARED:  # only the value's gradient, summed over heads; _map_gradient computes that of the map
        tile = tl.program_id(0)
        item = (tile // width_tiles).to(tl.int64)
        channel = (tile % width_tiles) * BE
        above, outside = by_columns(y_token, channel, width, R_OUT, C_OUT, BR_OUT, BC_OUT, BE)
        back = tl.zeros((BR_IN, BC_IN * BE), tl.float32)
        for head in range(heads):
            upstream = tl.load(
                grad_y + item * y_item + tl.cast(head, tl.int64) * y_head + above, mask=outside, other=0.0
            )
            column = load_transposed(columns, head, C_OUT, C_IN, BC_OUT, BC_IN)
            through = tl.dot(column, upstream, input_precision=PRECISION).to(x.dtype.element_ty)
            row = load_transposed(rows, head, R_OUT, R_IN, BR_OUT, BR_IN)
            back = tl.dot(row, turn(through, BC_IN, BR_OUT, BE), back, input_precision=PRECISION)
        target, inside = by_rows(gx_token, channel, width, R_IN, C_IN, BR_IN, BC_IN, BE)
        tl.store(grad_x + item * gx_item + target, back.to(grad_x.dtype.element_ty), mask=inside)
    else:
        head = tl.program_id(0).to(tl.int64)
        row = load_matrix(rows, head, R_OUT, R_IN, BR_OUT, BR_IN)
        row_back = load_transposed(rows, head, R_OUT, R_IN, BR_OUT, BR_IN)
        column_back = load_transposed(columns, head, C_OUT, C_IN, BC_OUT, BC_IN)
        row_sum = tl.zeros((BR_OUT, BR_IN), tl.float32)
        column_sum = tl.zeros((BC_OUT, BC_IN), tl.float32)
        for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
            item = (tile // width_tiles).to(tl.int64)
            channel = (tile % width_tiles) * BE
            source, inside = by_rows(x_token, channel, width, R_IN, C_IN, BR_IN, BC_IN, BE)
            above, outside = by_columns(y_token, channel, width, R_OUT, C_OUT, BR_OUT, BC_OUT, BE)
            upstream = tl.load(grad_y + item * y_item + head * y_head + above, mask=outside, other=0.0)
            through = tl.dot(column_back, upstream, input_precision=PRECISION).to(x.dtype.element_ty)
            through = turn(through, BC_IN, BR_OUT, BE)
            if NEEDS_A:
                values = tl.load(x + item * x_item + head * x_head + source, mask=inside, other=0.0)
                half = tl.dot(row, values, input_precision=PRECISION).to(x.dtype.element_ty)
                half = tl.trans(turn(half, BR_OUT, BC_IN, BE))
                column_sum = tl.dot(upstream, half, column_sum, input_precision=PRECISION)
                row_sum = tl.dot(through, tl.trans(values), row_sum, input_precision=PRECISION)
            if NEEDS_X:
                back = tl.dot(row_back, through, input_precision=PRECISION)
                target, inside = by_rows(gx_token, channel, width, R_IN, C_IN, BR_IN, BC_IN, BE)
                tl.store(
                    grad_x + item * gx_item + head * gx_head + target, back.to(grad_x.dtype.element_ty), mask=inside
                )
        if NEEDS_A:
            own = tl.program_id(1) * heads + head
            tl.store(grad_rows + own * (R_OUT * R_IN) + row_place, row_sum, mask=row_inside)
            tl.store(grad_columns + own * (C_OUT * C_IN) + column_place, column_sum, mask=column_inside)
