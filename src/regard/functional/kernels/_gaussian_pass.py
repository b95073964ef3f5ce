"""Gaussian heads along one axis of a grid of any size, straight from center and sharpness: no matrix is ever stored.

Tokens are read as (before, axis, after): the axis is contracted, ``others = before · after`` stay. Weights are made where
they are used, ``e^{−α m (m + 2e)}`` for steps m from the input nearest to the target: the largest is exactly 1, so no
maximum has to be found first. Inputs whose weight cannot change a sum in the values' dtype are never read. How far that
is follows from the sharpness on the device, so local heads cost time linear in tokens and the host waits for nothing.

Gradients of center and sharpness are sums over pairs of (gradient of the weight) × (moment of the weight): with
``G[m, k] = Σ grad_y[m] x[k]`` and the row's mean moments taken off,
``∂/∂Δ = 2α Σ A (step − mean step) G`` and ``∂/∂α = −Σ A (q − mean q) G`` for ``q = step (step + 2 shift)``.
Each program adds up its part and a last kernel adds those, in a fixed order.
"""

import triton
import triton.language as tl


@triton.jit
def head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis):
    """(whole part of Δ, its fraction, α) of a head; apart, neither is rounded when a coordinate is added."""
    delta = tl.load(center + head * c_head + axis * c_axis).to(tl.float32)
    alpha = tl.load(sharpness + head * s_head + axis * s_axis).to(tl.float32)
    # Far outside the grid all targets are the border's: what is beyond changes nothing that float32 could tell.
    whole = tl.floor(delta + 0.5)
    return whole, delta - whole, alpha


@triton.jit
def reach_of(alpha, NEGLIGIBLE: tl.constexpr, size):
    """The largest step from the nearest input whose weight matters: α m (m − 1) ≤ L."""
    far = 0.5 + 0.5 * tl.sqrt(1.0 + 4.0 * NEGLIGIBLE / tl.maximum(alpha, 1e-30))
    return tl.minimum(far, size * 1.0).to(tl.int32)


@triton.jit
def nearest_of(o, whole, fraction, size):
    """(the input nearest to the target of outputs o, its distance from the target)."""
    target = o.to(tl.float32) + whole
    nearest = tl.minimum(tl.maximum(target, 0.0), size - 1.0)
    return nearest, nearest - target - fraction


@triton.jit
def first_and_last(low, high, whole, size):
    """Nearest inputs of outputs low … high, as whole numbers."""
    a = tl.minimum(tl.maximum(low.to(tl.float32) + whole, 0.0), size - 1.0).to(tl.int32)
    b = tl.minimum(tl.maximum(high.to(tl.float32) + whole, 0.0), size - 1.0).to(tl.int32)
    return a, b


@triton.jit
def is_local(whole, reach, room):
    """Whether a window that is ``room`` longer than a tile holds all that belongs to the tile, at borders, too."""
    return 2.0 * reach + tl.abs(whole) <= room


@triton.jit
def wide_heads(center, sharpness, heads, c_head, c_axis, s_head, s_axis, axis, NEGLIGIBLE: tl.constexpr, size, room):
    """How many heads are not local along an axis."""
    found = 0
    for start in range(0, heads, 32):  # all at once: one after the other, each would wait for its numbers
        head = start + tl.arange(0, 32)
        delta = tl.load(center + head * c_head + axis * c_axis, mask=head < heads, other=0.0).to(tl.float32)
        alpha = tl.load(sharpness + head * s_head + axis * s_axis, mask=head < heads, other=1.0).to(tl.float32)
        local = is_local(tl.floor(delta + 0.5), reach_of(alpha, NEGLIGIBLE, size), room)
        found += tl.sum(tl.where(local | (head >= heads), 0, 1), 0)
    return found


@triton.jit
def inputs_of(low, high, reach, whole, size):
    """Inputs within reach of what is nearest to outputs low … high. The last is excluded."""
    begin, end = first_and_last(low, high, whole, size)
    return tl.maximum(begin - reach, 0), tl.minimum(end + reach + 1, size)


@triton.jit
def outputs_of(low, high, reach, whole, size):
    """Outputs whose nearest input lies within reach of inputs low … high; at a border, all whose target is beyond it, too.
    The last is excluded."""
    above, below = (low - reach).to(tl.float32), (high + reach).to(tl.float32)
    begin = tl.minimum(tl.maximum(tl.where(above <= 0.0, 0.0, above - whole), 0.0), size * 1.0).to(tl.int32)
    end = tl.where(below >= size - 1.0, size * 1.0, below - whole + 1.0)
    return begin, tl.minimum(tl.maximum(end, 0.0), size * 1.0).to(tl.int32)


@triton.jit
def column_offsets(
    tile, other_tiles, width_tiles, others, width, after, SIZE: tl.constexpr, BO: tl.constexpr, BW: tl.constexpr
):
    """(item, token of each column at coordinate 0, channel, inside) of a tile of columns: others and channels as one."""
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
    """Heads that are local in a window with ``ROOM`` are left to another launch. Few programs walk over all tiles of all
    heads, so that nearly none are started where there is nothing to do."""
    some = wide_heads(center, sharpness, heads, c_head, c_axis, s_head, s_axis, axis, NEGLIGIBLE, SIZE, ROOM)
    for t in range(tl.program_id(0), tl.where(some > 0, tiles * heads, 0), tl.num_programs(0)):
        head, tile = t % heads, t // heads
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
    """Of every row of every axis: −log₂ of its normalizer, mean step, mean q. ``moments`` is (3, axes, heads, length).

    Heads that are local in a window with an axis' room are left out: who computes them needs no moments from here."""
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
    """Gradient of x, and each program's part of those of center and sharpness: ``partial`` is (heads, axes, 2, programs).

    A program reads no x but the tile that it writes the gradient of, so that the gradient may take x's place. Heads that
    are local in a window with ``ROOM`` are left to another launch.
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
                own = x + item * x_item + first_head * x_head + (token * x_token + channel)[None, :]
                values = tl.load(own + (k.to(tl.int64) * after * x_token)[:, None], mask=here, other=0.0)
            place_k = tl.minimum(k, SIZE - 1).to(tl.float32)[:, None]  # inputs that are not there have no value either
            back = tl.zeros((BK, BO * BW), tl.float32)
            for head in range(first_head, last_head):
                whole, fraction, alpha = head_of(center, sharpness, head, c_head, c_axis, s_head, s_axis, axis)
                reach = reach_of(alpha, NEGLIGIBLE, SIZE)
                begin, end = outputs_of(low, tl.minimum(low + BK, SIZE) - 1, reach, whole, SIZE)
                scale = -alpha * 1.4426950408889634
                source = grad_y + item * y_item + head * y_head + (token * y_token + channel)[None, :]
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
                target = grad_x + item * gx_item + first_head * gx_head + (token * gx_token + channel)[None, :]
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
    """A head's parts, in a fixed order, into its gradients, (heads, axes); ``JOINED``: sharpness has one for all axes.

    Of each axis there are ``count`` parts of local heads and, from ``begin`` on, ``more`` of wide ones."""
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
