"""Write every weight of a map from queries, keys and the logsumexp of each row, and compare weights @ values with the output.

The logsumexp is that of the model's kernel; or it is computed here, in a first pass over the keys (``ALONE``)."""

import triton
import triton.language as tl

from regard.functional.kernels._map_scores import LOG2_E, log_weights


@triton.jit
def rows_of(
    q, lse, present, sequence, head, first_row, queries, width, first, lse_item, lse_head, lse_token,
    q_item, q_head, q_token, PADDED: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """A block of queries: (rows, mask of rows inside, vectors, logsumexp to base 2).

    The logsumexp is 1e30 for rows without a query, so that their weights are zero."""
    rows, d = first_row + tl.arange(0, BM), tl.arange(0, BD)
    live = rows < queries
    start = q + sequence.to(tl.int64) * q_item + head.to(tl.int64) * q_head
    block = tl.load(
        start + (first + rows[:, None]).to(tl.int64) * q_token + d[None, :],
        live[:, None] & (d < width)[None, :],
        0.0,
    )
    lse += sequence.to(tl.int64) * lse_item + head.to(tl.int64) * lse_head
    total = tl.load(lse + (first + rows).to(tl.int64) * lse_token, live, 0.0).to(tl.float32)
    total = tl.where((total > -1e29) & (total < 1e29), total * LOG2_E, 0.0)
    exists = live
    if PADDED:
        exists = live & (tl.load(present + sequence.to(tl.int64) * queries + rows, live, 0) != 0)
    return rows, live, block, tl.where(exists, total, 1e30)


@triton.jit
def largest_value(values, part, keys, width, token, mine, BN: tl.constexpr, BV: tl.constexpr):
    """The largest |value| in this program's share of the keys, NaN if any is NaN; 0 unless ``mine`` (1 or 0)."""
    share = (keys + tl.num_programs(0) - 1) // tl.num_programs(0)
    inside, e = tl.arange(0, BN), tl.arange(0, BV)
    begin, stop = part * share, tl.minimum((part + 1) * share, keys) * mine
    # One maximum for each place of the tile; they are reduced after the loop, since that needs an exchange between threads.
    top, strange = tl.zeros([BN, BV], tl.float32), tl.zeros([BN, BV], tl.int32)
    for start in range(begin, stop, BN):
        n = start + inside
        x = tl.load(
            values + n[:, None].to(tl.int64) * token + e[None, :], (n < stop)[:, None] & (e < width)[None, :], 0.0
        ).to(tl.float32)
        strange = strange | (x != x).to(tl.int32)
        top = tl.maximum(top, tl.where(x == x, tl.abs(x), 0.0))
    return tl.where(tl.max(tl.max(strange, 1), 0) > 0, float("nan"), tl.max(tl.max(top, 1), 0))


@triton.jit
def logsumexp_of(
    block, keys_of, none, place, present, begin, end, low, high, keys, width, k_token, slope, scale, softcap, left, right,
    PADDED: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """log₂ Σ 2^score over the keys that each row of a block sees; 1e30 for rows that see none.

    Args:
        none: 1e30 for rows without a query, else 0.
        present: which keys exist, if PADDED.
    """
    inside, d = tl.arange(0, BN), tl.arange(0, BD)
    # A maximum and a sum for each place of the tile; they are reduced after the loop.
    top, sums = tl.full([BM, BN], -1e30, tl.float32), tl.zeros([BM, BN], tl.float32)
    for start in range(begin, end, BN):
        columns = start + inside
        seen = columns < keys
        tile = tl.load(keys_of + (inside[None, :] * k_token + d[:, None]), seen[None, :] & (d < width)[:, None], 0.0)
        if PADDED:
            seen = seen & (tl.load(present + columns, seen, 0) != 0)
        at_edge = (start + BN > keys) | (start < high - left) | (start + BN - 1 > low + right) | PADDED
        x = log_weights(
            block, tile, none, place, columns, keys, seen, slope, scale, softcap, left, right, at_edge,
            PADDED, CAPPED, SLOPED, PRECISION,
        )  # fmt: skip
        larger = tl.maximum(top, x)
        sums = sums * tl.exp2(top - larger) + tl.exp2(x - larger)
        top = larger
        keys_of += BN * k_token
    highest = tl.max(top, 1)
    total = highest + tl.log2(tl.sum(sums * tl.exp2(top - highest[:, None]), 1))
    return tl.where((none == 0.0) & (highest > -1e29), total, 1e30)


@triton.jit(do_not_specialize=["first", "moved"])
def map_weights(
    q, k, v, lse, out, shift, present_q, present_k, slopes, weights, numbers,
    queries, keys, heads, group, value_group, width, value_width, first, moved,
    lse_item, lse_head, lse_token, scale, softcap, left, right,
    q_item, q_head, q_token, k_item, k_head, k_token, v_item, v_head, v_token, o_item, o_head, o_token,
    PADDED: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr, ALONE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Write the weights of a block of rows. ``numbers`` of each program: max |weights @ v − out| and |log Σ weights| of its
    rows, and the largest |value| in its share of the keys, each ``(batch · heads, programs)``.

    Args:
        first: the index of the first row to compute; ``queries`` counts the rows to compute.
        moved: is added to the shifts.
        ALONE: compute the logsumexp here; ``lse`` then is one zero, with strides of 0.
    """
    part, whole = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    item, head = whole // heads, whole % heads
    rows, live, block, total = rows_of(
        q, lse, present_q, item, head, part * BM, queries, width, first, lse_item, lse_head, lse_token,
        q_item, q_head, q_token, PADDED, BM, BD,
    )  # fmt: skip
    slope = 0.0
    if SLOPED:
        slope = tl.load(slopes + whole) * LOG2_E
    inside, d, e = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BV)
    moved += tl.load(shift + item) + first
    place = rows + moved
    low, high = part * BM + moved, tl.minimum(part * BM + BM, queries) - 1 + moved
    begin = tl.minimum(tl.maximum(low - left, 0), keys) // BN * BN
    end = tl.maximum(tl.minimum(high + right + 1, keys), begin)
    keys_of = k + item.to(tl.int64) * k_item + (head // group).to(tl.int64) * k_head + begin.to(tl.int64) * k_token
    values_of = v + item.to(tl.int64) * v_item + (head // value_group).to(tl.int64) * v_head
    top = largest_value(values_of, part, keys, value_width, v_token, (head % value_group == 0).to(tl.int32), BN, BV)
    values_of += begin.to(tl.int64) * v_token
    if ALONE:
        total = logsumexp_of(
            block, keys_of, total, place, present_k + item.to(tl.int64) * keys, begin, end, low, high, keys, width, k_token,
            slope, scale, softcap, left, right, PADDED, CAPPED, SLOPED, PRECISION, BM, BN, BD,
        )  # fmt: skip
    product, sums = tl.zeros([BM, BV], tl.float32), tl.zeros([BM], tl.float32)
    to = weights + whole.to(tl.int64) * queries * keys + (rows[:, None].to(tl.int64) * keys + inside[None, :])
    nothing = tl.zeros([BM, BN], weights.dtype.element_ty)
    for start in range(0, begin, BN):
        tl.store(to + start, nothing, live[:, None])
    for start in range(begin, end, BN):
        columns = start + inside
        seen = columns < keys
        tile = tl.load(
            keys_of + (inside[None, :] * k_token + d[:, None]),
            seen[None, :] & (d < width)[:, None],
            0.0,
        )
        value = tl.load(
            values_of + (inside[:, None] * v_token + e[None, :]),
            seen[:, None] & (e < value_width)[None, :],
            0.0,
        )
        here = live[:, None] & seen[None, :]
        if PADDED:
            seen = seen & (tl.load(present_k + item.to(tl.int64) * keys + columns, seen, 0) != 0)
        at_edge = (start + BN > keys) | (start < high - left) | (start + BN - 1 > low + right) | PADDED
        p = tl.exp2(
            log_weights(
                block, tile, total, place, columns, keys, seen, slope, scale, softcap, left, right, at_edge,
                PADDED, CAPPED, SLOPED, PRECISION,
            )
        )  # fmt: skip
        tl.store(to + start, p.to(weights.dtype.element_ty), here)
        product += tl.dot(p.to(value.dtype), value, input_precision=PRECISION)
        sums += tl.sum(p, 1)
        keys_of += BN * k_token
        values_of += BN * v_token
    for start in range(begin + (end - begin + BN - 1) // BN * BN, keys, BN):
        tl.store(to + start, nothing, live[:, None] & (start + inside < keys)[None, :])
    expected = tl.load(
        out
        + item.to(tl.int64) * o_item
        + head.to(tl.int64) * o_head
        + (first + rows[:, None]).to(tl.int64) * o_token
        + e[None, :],
        live[:, None] & (e < value_width)[None, :],
        0.0,
    )
    error = tl.where(live[:, None], tl.abs(product - expected.to(tl.float32)), 0.0)
    error = tl.where(error == error, error, float("inf"))  # a maximum may ignore NaN
    log_error = tl.where(live & (sums > 0.0), tl.abs(tl.log(tl.where(sums > 0.0, sums, 1.0))), 0.0)
    to_numbers = numbers + whole * tl.num_programs(0) + part
    count = tl.num_programs(0) * tl.num_programs(1)
    tl.store(to_numbers, tl.max(tl.max(error, 1), 0))
    tl.store(to_numbers + count, tl.max(log_error, 0))
    tl.store(to_numbers + 2 * count, top)
