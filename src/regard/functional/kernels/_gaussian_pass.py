"""Gaussian heads along one axis of a grid of any size, computed from center and sharpness without storing a matrix.

Tokens are viewed as (before, axis, after): the pass sums over the axis, ``others = before · after`` stay. Weights are computed
where they are used, as ``e^{−α m (m + 2e)}`` with m the step from the input nearest to the target and e that input's offset
from the target. The largest weight is exactly 1, so no maximum is needed. Inputs with negligible weight in the values' dtype
are never read. The kernels derive this reach from the sharpness on the device, so local heads cost time linear in tokens,
without a synchronization.

Gradients of center and sharpness are sums over pairs: with ``G[m, k] = Σ grad_y[m] x[k]`` and ``q = step (step + 2 shift)``,
``∂/∂Δ = 2α Σ A (step − mean step) G`` and ``∂/∂α = −Σ A (q − mean q) G``; the means are weighted averages over a row.
Each program stores a partial sum, and a last kernel adds these in a fixed order.
"""

import triton
import triton.language as tl


@triton.jit
def head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis):
    """(integer part of Δ, its fraction, α) of a head; kept separately, because integer + fraction + coordinate would round."""
    delta = tl.load(center + head * c_head + axis * c_axis).to(tl.float32)
    alpha = tl.load(sharpness + head * s_head + axis * s_axis).to(tl.float32)
    # For a huge Δ float32 rounds target coordinates, but then the nearest input is a border, and only last digits change.
    whole = tl.floor(delta + 0.5)
    return whole, delta - whole, alpha


@triton.jit
def reach_of(alpha, NEGLIGIBLE: tl.constexpr, size):
    """The largest step m from the nearest input whose weight is not negligible: α m (m − 1) ≤ L."""
    far = 0.5 + 0.5 * tl.sqrt(1.0 + 4.0 * NEGLIGIBLE / tl.maximum(alpha, 1e-30))
    return tl.minimum(far, size * 1.0).to(tl.int32)


@triton.jit
def nearest_of(o, whole, fraction, size):
    """(the input nearest to the target of each output o, its offset from the target)."""
    target = o.to(tl.float32) + whole
    nearest = tl.minimum(tl.maximum(target, 0.0), size - 1.0)
    return nearest, nearest - target - fraction


@triton.jit
def first_and_last(low, high, whole, size):
    """The nearest inputs of outputs ``low`` and ``high``, as integers."""
    a = tl.minimum(tl.maximum(low.to(tl.float32) + whole, 0.0), size - 1.0).to(tl.int32)
    b = tl.minimum(tl.maximum(high.to(tl.float32) + whole, 0.0), size - 1.0).to(tl.int32)
    return a, b


@triton.jit
def is_local(whole, reach, room):
    """Whether a window that is ``room`` longer than a tile holds all inputs within reach of the tile, also at borders."""
    return 2.0 * reach + tl.abs(whole) <= room


@triton.jit
def wide_heads(center, sharpness, heads, c_head, c_axis, s_head, s_axis, axis, NEGLIGIBLE: tl.constexpr, size, room):
    """How many heads are not local along an axis."""
    found = 0
    for start in range(0, heads, 32):  # 32 heads per load, to wait for memory only once
        head = start + tl.arange(0, 32)
        delta = tl.load(center + head * c_head + axis * c_axis, mask=head < heads, other=0.0).to(tl.float32)
        alpha = tl.load(sharpness + head * s_head + axis * s_axis, mask=head < heads, other=1.0).to(tl.float32)
        local = is_local(tl.floor(delta + 0.5), reach_of(alpha, NEGLIGIBLE, size), room)
        found += tl.sum(tl.where(local | (head >= heads), 0, 1), 0)
    return found


@triton.jit
def inputs_of(low, high, reach, whole, size):
    """The half-open range of inputs within reach of the nearest inputs of outputs low … high."""
    begin, end = first_and_last(low, high, whole, size)
    return tl.maximum(begin - reach, 0), tl.minimum(end + reach + 1, size)


@triton.jit
def outputs_of(low, high, reach, whole, size):
    """The half-open range of outputs whose nearest input lies within reach of inputs low … high. If that range touches a
    border, it includes all outputs whose target lies beyond the border."""
    above, below = (low - reach).to(tl.float32), (high + reach).to(tl.float32)
    begin = tl.minimum(tl.maximum(tl.where(above <= 0.0, 0.0, above - whole), 0.0), size * 1.0).to(tl.int32)
    end = tl.where(below >= size - 1.0, size * 1.0, below - whole + 1.0)
    return begin, tl.minimum(tl.maximum(end, 0.0), size * 1.0).to(tl.int32)


@triton.jit
def column_offsets(
    tile, other_tiles, width_tiles, others, width, after, SIZE: tl.constexpr, BO: tl.constexpr, BW: tl.constexpr
):
    """(item, token at coordinate 0, channel, mask) of each column of a tile; a column is one pair (other, channel)."""
    n = tl.arange(0, BO * BW)
    channel = (tile % width_tiles) * BW + n % BW
    rest = tile // width_tiles
    other = (rest % other_tiles) * BO + n // BW
    token = (other // after) * (SIZE * after) + other % after
    return (rest // other_tiles).to(tl.int64), token.to(tl.int64), channel, (other < others) & (channel < width)


@triton.jit
def axis_forward(
    x, center, sharpness, y,
    tiles, m_tiles, other_tiles, width_tiles, others, width, after, heads,
    c_head, c_axis, s_head, s_axis, axis, x_item, x_head, x_token, y_item, y_head, y_token,
    SIZE: tl.constexpr, NEGLIGIBLE: tl.constexpr, PRECISION: tl.constexpr, ROOM: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """y = A x for wide heads; heads that are local in a window with ``ROOM`` are computed by another launch. A small number
    of programs loops over all tiles of all heads, so that the launch costs little if no head is wide."""
    some = wide_heads(center, sharpness, heads, c_head, c_axis, s_head, s_axis, axis, NEGLIGIBLE, SIZE, ROOM)
    for t in range(tl.program_id(0), tl.where(some > 0, tiles * heads, 0), tl.num_programs(0)):
        head, tile = (t % heads).to(tl.int64), t // heads
        whole, fraction, alpha = head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis)
        reach = reach_of(alpha, NEGLIGIBLE, SIZE)
        if not is_local(whole, reach, ROOM):
            item, token, channel, inside = column_offsets(
                tile // m_tiles, other_tiles, width_tiles, others, width, after, SIZE, BO, BW
            )
            low = tile % m_tiles * BM
            m = low + tl.arange(0, BM)
            nearest, shift = nearest_of(m, whole, fraction, SIZE)
            begin, end = inputs_of(low, tl.minimum(low + BM, SIZE) - 1, reach, whole, SIZE)
            scale, twice = -alpha * 1.4426950408889634, (2.0 * shift)[:, None]
            source = x + item * x_item + head * x_head + (token * x_token + channel)[None, :]
            mixed = tl.zeros((BM, BO * BW), tl.float32)
            total = tl.zeros((BM, BK), tl.float32)
            for start in range(begin, end, BK):
                k = start + tl.arange(0, BK)
                step = tl.minimum(k, SIZE - 1).to(tl.float32)[None, :] - nearest[:, None]
                weight = tl.where((k < end)[None, :], tl.exp2(scale * (step * (step + twice))), 0.0)
                total += weight
                values = tl.load(
                    source + (k.to(tl.int64) * after * x_token)[:, None], mask=inside[None, :] & (k < end)[:, None], other=0.0
                )  # fmt: skip
                mixed = tl.dot(weight.to(x.dtype.element_ty), values, mixed, input_precision=PRECISION)
            mixed = mixed * (1.0 / tl.sum(total, 1))[:, None]
            target = y + item * y_item + head * y_head + (token * y_token + channel)[None, :]
            target += (m.to(tl.int64) * after * y_token)[:, None]
            tl.store(target, mixed.to(y.dtype.element_ty), mask=inside[None, :] & (m < SIZE)[:, None])


@triton.jit
def row_moments(
    center, sharpness, moments,
    length, size0, size1, size2, room0, room1, room2, c_head, c_axis, s_head, s_axis,
    NEGLIGIBLE: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """For every row of every axis: −log₂ of its normalizer, mean step, mean q. ``moments`` is (3, axes, heads, length).

    Heads that are local in a window with an axis' room are skipped: their kernels compute the moments themselves."""
    head, heads, axis, axes = tl.program_id(1), tl.num_programs(1), tl.program_id(2), tl.num_programs(2)
    size = tl.where(axis == 0, size0, tl.where(axis == 1, size1, size2))
    room = tl.where(axis == 0, room0, tl.where(axis == 1, room1, room2))
    whole, fraction, alpha = head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis)
    reach = reach_of(alpha, NEGLIGIBLE, size)
    scale = -alpha * 1.4426950408889634
    rows = tl.where(is_local(whole, reach, room), 0, size)
    own = tl.program_id(0) * BM
    for further in range(0, rows - own, tl.num_programs(0) * BM):
        low = own + further
        m = low + tl.arange(0, BM)
        nearest, shift = nearest_of(m, whole, fraction, size)
        begin, end = inputs_of(low, tl.minimum(low + BM, size) - 1, reach, whole, size)
        total = tl.zeros((BM, BK), tl.float32)
        steps = tl.zeros((BM, BK), tl.float32)
        squares = tl.zeros((BM, BK), tl.float32)
        for start in range(begin, end, BK):
            k = start + tl.arange(0, BK)
            step = tl.minimum(k, size - 1).to(tl.float32)[None, :] - nearest[:, None]
            square = step * (step + 2.0 * shift[:, None])
            weight = tl.where((k < end)[None, :], tl.exp2(scale * square), 0.0)
            total += weight
            steps += weight * step
            squares += weight * square
        sums = tl.where(m < size, tl.sum(total, 1), 1.0)
        place = moments + (axis * heads + head) * length + m
        part = axes * heads * length
        tl.store(place, -tl.log2(sums), mask=m < size)
        tl.store(place + part, tl.sum(steps, 1) / sums, mask=m < size)
        tl.store(place + 2 * part, tl.sum(squares, 1) / sums, mask=m < size)


@triton.jit
def axis_backward(
    x, grad_y, grad_x, center, sharpness, moments, partial,
    length, programs, first_part, axes, tiles, k_tiles, other_tiles, width_tiles, others, width, after, heads,
    c_head, c_axis, s_head, s_axis, axis, x_item, x_head, x_token, y_item, y_head, y_token, gx_item, gx_head, gx_token,
    SHARED: tl.constexpr, NEEDS_X: tl.constexpr, NEEDS_HEADS: tl.constexpr,
    SIZE: tl.constexpr, NEGLIGIBLE: tl.constexpr, PRECISION: tl.constexpr, ROOM: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and partial gradients of center and sharpness: ``partial`` is (heads, axes, 2, programs).

    A program reads x only in the tile whose gradient it writes, so the gradient may overwrite x. Heads that are local in a
    window with ``ROOM`` are computed by another launch.
    """
    count = tiles
    if not SHARED:
        some = wide_heads(center, sharpness, heads, c_head, c_axis, s_head, s_axis, axis, NEGLIGIBLE, SIZE, ROOM)
        count = tl.where(some > 0, tiles * heads, 0)
    for t in range(tl.program_id(0), count, tl.num_programs(0)):
        tile = t if SHARED else t // heads
        first_head = 0 if SHARED else t % heads
        last_head = heads if SHARED else first_head + 1
        if not SHARED:
            whole, fraction, alpha = head_of(center, sharpness, first_head, c_head, c_axis, s_head, s_axis, axis)
            if is_local(whole, reach_of(alpha, NEGLIGIBLE, SIZE), ROOM):
                last_head = first_head
        if last_head > first_head:
            item, token, channel, inside = column_offsets(
                tile // k_tiles, other_tiles, width_tiles, others, width, after, SIZE, BO, BW
            )
            low = tile % k_tiles * BK
            k = low + tl.arange(0, BK)
            here = inside[None, :] & (k < SIZE)[:, None]
            values = tl.zeros((BK, BO * BW), x.dtype.element_ty)
            if NEEDS_HEADS:
                own = x + item * x_item + tl.cast(first_head, tl.int64) * x_head + (token * x_token + channel)[None, :]
                values = tl.load(own + (k.to(tl.int64) * after * x_token)[:, None], mask=here, other=0.0)
            place_k = tl.minimum(k, SIZE - 1).to(tl.float32)[:, None]  # inputs outside have value 0
            back = tl.zeros((BK, BO * BW), tl.float32)
            for head in range(first_head, last_head):
                whole, fraction, alpha = head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis)
                reach = reach_of(alpha, NEGLIGIBLE, SIZE)
                begin, end = outputs_of(low, tl.minimum(low + BK, SIZE) - 1, reach, whole, SIZE)
                scale = -alpha * 1.4426950408889634
                source = (
                    grad_y + item * y_item + tl.cast(head, tl.int64) * y_head + (token * y_token + channel)[None, :]
                )
                by_delta = tl.zeros((BK, BM), tl.float32)
                by_alpha = tl.zeros((BK, BM), tl.float32)
                for start in range(begin, end, BM):
                    m = start + tl.arange(0, BM)
                    nearest, shift = nearest_of(m, whole, fraction, SIZE)
                    row = moments + (axis * heads + head) * length + m
                    inverse = tl.load(row, mask=m < end, other=0.0)
                    step = place_k - nearest[None, :]
                    square = step * (step + 2.0 * shift[None, :])
                    weight = tl.exp2(scale * square + inverse[None, :])
                    upstream = tl.load(
                        source + (m.to(tl.int64) * after * y_token)[:, None], mask=inside[None, :] & (m < end)[:, None],
                        other=0.0,
                    )  # fmt: skip
                    if NEEDS_X:
                        back = tl.dot(weight.to(x.dtype.element_ty), upstream, back, input_precision=PRECISION)
                    if NEEDS_HEADS:
                        mean_step = tl.load(row + axes * heads * length, mask=m < end, other=0.0)
                        mean_square = tl.load(row + 2 * axes * heads * length, mask=m < end, other=0.0)
                        pairs = weight * tl.dot(values, tl.trans(upstream), input_precision=PRECISION)
                        by_delta += pairs * (step - mean_step[None, :])
                        by_alpha += pairs * (square - mean_square[None, :])
                if NEEDS_HEADS:
                    place = partial + ((head * axes + axis) * 2).to(tl.int64) * programs + first_part + tile
                    tl.store(place, 2.0 * alpha * tl.sum(tl.sum(by_delta, 1), 0))
                    tl.store(place + programs, -tl.sum(tl.sum(by_alpha, 1), 0))
            if NEEDS_X:
                target = (
                    grad_x
                    + item * gx_item
                    + tl.cast(first_head, tl.int64) * gx_head
                    + (token * gx_token + channel)[None, :]
                )
                tl.store(
                    target + (k.to(tl.int64) * after * gx_token)[:, None], back.to(grad_x.dtype.element_ty), mask=here
                )


@triton.jit
def add_up(
    partial, center, sharpness, grad_center, grad_sharpness,
    programs, axes, count0, count1, count2, begin0, begin1, begin2, more0, more1, more2,
    size0, size1, size2, room0, room1, room2, c_head, c_axis, s_head, s_axis,
    NEGLIGIBLE: tl.constexpr, JOINED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add a head's partial sums, in a fixed order, to its gradients, (heads, axes). ``JOINED``: one sharpness for all axes.

    On each axis, a local head has ``count`` partial sums from slot 0 on, a wide head ``more`` from slot ``begin`` on."""
    head, both = tl.program_id(0), tl.zeros((BLOCK,), tl.float32)
    for axis in range(axes):
        size = tl.where(axis == 0, size0, tl.where(axis == 1, size1, size2))
        room = tl.where(axis == 0, room0, tl.where(axis == 1, room1, room2))
        whole, _, alpha = head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis)
        local = is_local(whole, reach_of(alpha, NEGLIGIBLE, size), room)
        count = tl.where(axis == 0, count0, tl.where(axis == 1, count1, count2))
        begin = tl.where(axis == 0, begin0, tl.where(axis == 1, begin1, begin2))
        more = tl.where(axis == 0, more0, tl.where(axis == 1, more1, more2))
        begin, count = tl.where(local, 0, begin), tl.where(local, count, more)
        own = partial + ((head * axes + axis) * 2).to(tl.int64) * programs + begin
        first = tl.zeros((BLOCK,), tl.float32)
        second = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, count, BLOCK):
            i = start + tl.arange(0, BLOCK)
            first += tl.load(own + i, mask=i < count, other=0.0)
            second += tl.load(own + programs + i, mask=i < count, other=0.0)
        tl.store(grad_center + head * axes + axis, tl.sum(first, 0).to(grad_center.dtype.element_ty))
        if JOINED:
            both += second
        else:
            tl.store(grad_sharpness + head * axes + axis, tl.sum(second, 0).to(grad_sharpness.dtype.element_ty))
    if JOINED:
        tl.store(grad_sharpness + head, tl.sum(both, 0).to(grad_sharpness.dtype.element_ty))
