"""Wide heads on a GPU: products along the first axis of a grid with matrices that have one long and one short side.

``node_weights`` builds what each output takes from each node of one axis, and the derivatives. ``mix_rows`` multiplies by such a
matrix, with values read and outputs written in their own layout. ``gather_rows`` is its transpose in the backward pass, which
adds up the gradients of center and sharpness on the way.
"""

import triton
import triton.language as tl


@triton.jit
def node_weights(
    coordinates, center, sharpness, places, weights, outputs, heads, low, high, nodes, c_head, c_axis, s_head, s_axis,
    BM: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """``weights`` is (3, heads, outputs, nodes): the weights of nodes, and their derivatives by center and by sharpness.
    ``places`` is (3, nodes): the nodes' coordinates as integers and fractions, and the sums of their polynomials. Keys lie from
    ``low`` to ``high``; ``c_axis`` and ``s_axis`` are where the axis begins in centers and sharpness. Targets are kept as
    integer and fraction and scores are relative to the nearest key, as in ``regard.functional._axis``."""
    head = tl.program_id(1)
    o, m = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BR)
    query = tl.load(coordinates + o, o < outputs, 0.0)
    delta = tl.load(center + head * c_head + c_axis).to(tl.float32)
    alpha = tl.load(sharpness + head * s_head + s_axis).to(tl.float32)
    known = m < nodes
    node, rest = tl.load(places + m, known, 0.0), tl.load(places + nodes + m, known, 0.0)
    total = tl.load(places + 2 * nodes + m, known, 0.0)
    whole_query, whole = tl.floor(query + 0.5), tl.floor(delta + 0.5)
    fraction = (query - whole_query) + (delta - whole)
    target = whole_query + whole
    nearest = tl.minimum(tl.maximum(target + tl.floor(fraction + 0.5), low * 1.0), high * 1.0)
    shift = (nearest - target) - fraction
    step = (node[None, :] - nearest[:, None]) + rest[None, :]
    square = step * (step + 2.0 * shift[:, None])
    weight = tl.where(known[None, :], tl.exp(-alpha * square), 0.0)
    weight = weight / tl.sum(weight * total[None, :], 1)[:, None]
    by_center = 2.0 * alpha * step
    by_center = weight * (by_center - tl.sum(weight * by_center * total[None, :], 1)[:, None])
    by_sharpness = weight * (tl.sum(weight * square * total[None, :], 1)[:, None] - square)
    each = tl.cast(heads, tl.int64) * outputs * nodes
    place = weights + (head.to(tl.int64) * outputs + o[:, None]) * nodes + m[None, :]
    inside = (o < outputs)[:, None] & known[None, :]
    tl.store(place, weight.to(weights.dtype.element_ty), inside)
    tl.store(place + each, by_center.to(weights.dtype.element_ty), inside)
    tl.store(place + 2 * each, by_sharpness.to(weights.dtype.element_ty), inside)


@triton.jit
def columns_of(tile, others, width, width_tiles, BO: tl.constexpr, BW: tl.constexpr):
    """(index on the other axes, channel, mask) of the columns of a tile: some tokens with some of their channels."""
    column = tl.arange(0, BO * BW)
    other = tile // width_tiles * BO + column // BW
    channel = tile % width_tiles * BW + column % BW
    return other, channel, (other < others) & (channel < width)


@triton.jit
def mix_rows(
    matrix, x, y, rows, steps, others, width, width_tiles, heads, m_head, m_row, m_step,
    x_item, x_head, x_step, x_other, y_item, y_head, y_row, y_other,
    PRECISION: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """``y[b, h, row, other] = Σ_step matrix[h, row, step] x[b, h, step, other]``."""
    whole = tl.program_id(1)
    item, head = (whole // heads).to(tl.int64), (whole % heads).to(tl.int64)
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    other, channel, inside = columns_of(tl.program_id(0), others, width, width_tiles, BO, BW)
    source = x + item * x_item + head * x_head + (other.to(tl.int64) * x_other + channel)[None, :]
    own = matrix + head * m_head + m[:, None] * m_row
    mixed = tl.zeros((BM, BO * BW), tl.float32)
    for start in range(0, steps, BK):
        k = start + tl.arange(0, BK)
        weight = tl.load(own + k[None, :] * m_step, (m < rows)[:, None] & (k < steps)[None, :], 0.0)
        values = tl.load(source + (k.to(tl.int64) * x_step)[:, None], inside[None, :] & (k < steps)[:, None], 0.0)
        mixed = tl.dot(weight, values.to(weight.dtype), mixed, input_precision=PRECISION)
    target = y + item * y_item + head * y_head + (other.to(tl.int64) * y_other + channel)[None, :]
    target += (m.to(tl.int64) * y_row)[:, None]
    tl.store(target, mixed.to(y.dtype.element_ty), inside[None, :] & (m < rows)[:, None])


@triton.jit
def gather_rows(
    weights, grad, entered, places, x, partial, nodes, outputs, others, width, width_tiles, heads, axis, axes, most,
    g_item, g_head, g_step, g_other, e_item, e_head, e_node, e_other, x_item, x_head, x_node, x_other,
    PRECISION: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """``x[b, h, node, other] = Σ_o weights[0, h, o, node] grad[b, h, o, other]``, and for each program the same sums with the two
    derivatives in ``weights``, times ``entered[b, h, node, other]``, added up: ``partial`` is (2, heads, axes, most). ``places``
    are those of ``node_weights``."""
    whole = tl.program_id(1)
    item, head = (whole // heads).to(tl.int64), (whole % heads).to(tl.int64)
    m = tl.program_id(2) * BR + tl.arange(0, BR)
    other, channel, inside = columns_of(tl.program_id(0), others, width, width_tiles, BO, BW)
    source = grad + item * g_item + head * g_head + (other.to(tl.int64) * g_other + channel)[None, :]
    own, each = weights + head * outputs * nodes + m[:, None], tl.cast(heads, tl.int64) * outputs * nodes
    mixed = tl.zeros((BR, BO * BW), tl.float32)
    by_center, by_sharpness = mixed, mixed
    for start in range(0, outputs, BK):
        k = start + tl.arange(0, BK)
        there = (m < nodes)[:, None] & (k < outputs)[None, :]
        values = tl.load(source + (k.to(tl.int64) * g_step)[:, None], inside[None, :] & (k < outputs)[:, None], 0.0)
        values = values.to(weights.dtype.element_ty)
        place = own + k[None, :] * nodes
        mixed = tl.dot(tl.load(place, there, 0.0), values, mixed, input_precision=PRECISION)
        by_center = tl.dot(tl.load(place + each, there, 0.0), values, by_center, input_precision=PRECISION)
        by_sharpness = tl.dot(tl.load(place + 2 * each, there, 0.0), values, by_sharpness, input_precision=PRECISION)
    kept = inside[None, :] & (m < nodes)[:, None]
    start_of = entered + (item * e_item + head * e_head + (other.to(tl.int64) * e_other + channel)[None, :])
    known = tl.load(start_of + (m.to(tl.int64) * e_node)[:, None], kept, 0.0).to(tl.float32)
    # Weights sum to one, so a constant in the values changes nothing. Without it, rounded derivatives matter less. It is that of
    # the first nodes in every program, as the same constant must be left out of all nodes.
    first = tl.arange(0, BR)
    some = tl.load(start_of + (first.to(tl.int64) * e_node)[:, None], inside[None, :] & (first < nodes)[:, None], 0.0)
    constant = tl.sum(some.to(tl.float32), 0) / tl.sum(tl.load(places + 2 * nodes + first, first < nodes, 0.0), 0)
    known -= tl.load(places + 2 * nodes + m, m < nodes, 0.0)[:, None] * constant[None, :]
    place = item * x_item + head * x_head + (m.to(tl.int64) * x_node)[:, None]
    tl.store(x + (place + (other.to(tl.int64) * x_other + channel)[None, :]), mixed.to(x.dtype.element_ty), kept)
    programs = tl.num_programs(0) * tl.num_programs(2)
    number = item * programs + tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    place = partial + (head * axes + axis) * most + number
    tl.store(place, tl.sum(tl.sum(by_center * known, 1), 0))
    tl.store(place + heads * axes * most, tl.sum(tl.sum(by_sharpness * known, 1), 0))
