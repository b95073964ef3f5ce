"""Kernels before and after that of an overview: prepare its input, check it against full rows, and pack its results.

In torch this takes about a hundred small operators, whose launches take longer than the overview of a short text.
"""

import triton
import triton.language as tl

from regard.functional.kernels._map_scores import LOG2_E

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def worst(to, x):
    """Atomic maximum over all programs, for x ≥ 0 or NaN. The bits of non-negative floats are ordered like the floats, and
    NaN's bits come after infinity's."""
    tl.atomic_max(to.to(tl.pointer_type(tl.int32)), x.to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit
def map_prepare(
    lse, present, binary, count, queries, heads, lse_item, lse_head, lse_token, PADDED: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    """The logsumexp to base 2: 0 for rows without keys, and 1e30 for queries that do not exist."""
    n = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = n < count
    whole, row = n // queries, n % queries
    item, head = whole // heads, whole % heads
    total = tl.load(lse + item * lse_item + head * lse_head + row * lse_token, live, 0.0).to(tl.float32)
    total = tl.where(tl.abs(total) < 1e29, total * LOG2_E, 0.0)
    if PADDED:
        total = tl.where(tl.load(present + item * queries + row, live, 0) != 0, total, 1e30)
    tl.store(binary + n, total, live)


@triton.jit
def scores_of_row(
    q, keys_of, present, n, keys, place, k_token, scale, softcap, slope, left, right, width,
    PADDED: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Scores of one query, and which keys it sees. Computed without tensor cores, so that the check is independent of them."""
    d, live = tl.arange(0, BD), n < keys
    tile = tl.load(
        keys_of + n[:, None].to(tl.int64) * k_token + d[None, :], live[:, None] & (d < width)[None, :], 0.0
    ).to(tl.float32)
    s = tl.sum(tile * q[None, :], 1) * scale
    if CAPPED:
        s = 2.0 * softcap / (1.0 + tl.exp2(s * (-2.0 * LOG2_E / softcap))) - softcap
    if SLOPED:
        s -= slope * tl.abs(n - place).to(tl.float32)
    shown = live & (n <= place + right) & (n >= place - left)
    if PADDED:
        shown = shown & (tl.load(present + n, live, 0) != 0)
    return s, shown


@triton.jit
def map_check(
    q, k, v, lse, out, shift, present_q, present_k, slopes, rows, sums, best, numbers,
    queries, keys, heads, group, value_group, width, value_width, first_keys,
    lse_item, lse_head, lse_token, scale, softcap, left, right, over_entropy, over_distance,
    q_item, q_head, q_token, k_item, k_head, k_token, v_item, v_head, v_token, o_item, o_head, o_token,
    PADDED: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Check the overview against one full row of one head, computed by an independent softmax. ``numbers`` 0, 1, 2 and 4 are
    the largest |weights @ v − out|, error of the logsumexp, difference from the overview's statistics, and |value|.

    Args:
        over_entropy, over_distance: divisors of entropies and distances before they are compared.
    """
    part, whole = tl.program_id(0), tl.program_id(1)
    item, head = (whole // heads).to(tl.int64), whole % heads
    row = tl.load(rows + part)
    inside, d, e = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BV)
    query = tl.load(q + item * q_item + head.to(tl.int64) * q_head + row.to(tl.int64) * q_token + d, d < width, 0.0).to(
        tl.float32
    )
    keys_of = k + item * k_item + (head // group).to(tl.int64) * k_head
    values_of = v + item * v_item + (head // value_group).to(tl.int64) * v_head
    present = present_k + item * keys
    slope = 0.0
    if SLOPED:
        slope = tl.load(slopes + whole)
    exists = 1
    if PADDED:
        exists = (tl.load(present_q + item * queries + row) != 0).to(tl.int32)
    place = row + tl.load(shift + item)
    begin = tl.minimum(tl.maximum(place - left, 0), keys) // BN * BN
    end = tl.minimum(tl.maximum(place + right + 1, 0), keys) * exists
    top, total = -1e30, 0.0
    for start in range(begin, end, BN):
        n = start + inside
        s, shown = scores_of_row(
            query, keys_of, present, n, keys, place, k_token, scale, softcap, slope, left, right, width,
            PADDED, CAPPED, SLOPED, BD,
        )  # fmt: skip
        now = tl.maximum(top, tl.max(tl.where(shown, s, -1e30), 0))
        total = total * tl.exp2((top - now) * LOG2_E) + tl.sum(tl.where(shown, tl.exp2((s - now) * LOG2_E), 0.0), 0)
        top = now
    some = total > 0.0
    ours = top + tl.log(tl.where(some, total, 1.0))
    entropy, first, distance, largest = 0.0, 0.0, 0.0, 0.0
    product = tl.zeros([BV], tl.float32)
    for start in range(begin, end, BN):
        n = start + inside
        s, shown = scores_of_row(
            query, keys_of, present, n, keys, place, k_token, scale, softcap, slope, left, right, width,
            PADDED, CAPPED, SLOPED, BD,
        )  # fmt: skip
        x = tl.where(shown, s - ours, -1e30)
        p = tl.exp2(x * LOG2_E)
        entropy -= tl.sum(tl.where(p > 0.0, p * x, 0.0), 0)
        first += tl.sum(tl.where(n < first_keys, p, 0.0), 0)
        distance += tl.sum(p * tl.abs(n - place).to(tl.float32), 0)
        largest = tl.maximum(largest, tl.max(p, 0))
        value = tl.load(
            values_of + n[:, None].to(tl.int64) * v_token + e[None, :],
            (p > 0.0)[:, None] & (e < value_width)[None, :],  # keys that do not exist have weight 0
            0.0,
        ).to(tl.float32)
        product += tl.sum(p[:, None] * value, 0)
    expected = tl.load(
        out + item * o_item + head.to(tl.int64) * o_head + row.to(tl.int64) * o_token + e, e < value_width, 0.0
    ).to(tl.float32)
    error = tl.abs(product - expected)
    worst(numbers, tl.max(tl.where(error == error, error, float("inf")), 0))
    theirs = tl.load(lse + item * lse_item + head.to(tl.int64) * lse_head + row.to(tl.int64) * lse_token).to(tl.float32)
    worst(numbers + 1, tl.where(some, tl.abs(ours - theirs), 0.0))
    at = whole.to(tl.int64) * queries + row
    off = tl.abs(tl.load(sums + at * 4 + 2) * -LN_2 - entropy) / over_entropy
    off = tl.maximum(off, tl.abs(tl.load(sums + at * 4 + 1) - distance) / over_distance)
    off = tl.maximum(off, tl.abs(tl.load(sums + at * 4 + 3) - first))
    found = (tl.load(best + at) >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    off = tl.maximum(off, tl.abs(found - largest))
    worst(numbers + 2, tl.where(off == off, off, float("inf")))
    # The largest |value|. If heads share values, only the first of these heads reads them.
    share = (keys + tl.num_programs(0) - 1) // tl.num_programs(0)
    stop = tl.minimum((part + 1) * share, keys) * (head % value_group == 0).to(tl.int32)
    most, strange = 0.0, 0
    for start in range(part * share, stop, BN):
        n = start + inside
        value = tl.load(
            values_of + n[:, None].to(tl.int64) * v_token + e[None, :], (n < stop)[:, None] & (e < value_width)[None, :], 0.0
        ).to(tl.float32)  # fmt: skip
        strange = tl.maximum(strange, tl.max(tl.max((value != value).to(tl.int32), 1), 0))
        most = tl.maximum(most, tl.max(tl.max(tl.where(value == value, tl.abs(value), 0.0), 1), 0))
    worst(numbers + 4, tl.where(strange > 0, float("nan"), most))


@triton.jit
def map_pack(
    mass, largest, sums, best, received, top, source, numbers,
    to_mass, to_distance, to_received, to_where, to_source, to_largest, to_entropy, to_first, to_weight, to_top,
    all_cells, all_queries, all_keys, rows, columns, blocks, B: tl.constexpr,
):  # fmt: skip
    """Convert cells, statistics per query and statistics per key (program id 1 = 0, 1, 2) to the dtypes in which they are
    stored. Number 3 is the largest |Σ weights − 1| of a row, number 5 the largest |log Σ weights|."""
    n = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    which = tl.program_id(1)
    if which == 0:
        live = n < all_cells
        whole, row, column = n // (rows * columns), n % (rows * columns) // columns, n % columns
        at = (whole * columns + column) * blocks * rows + row
        total, most = tl.zeros([B], tl.float32), tl.zeros([B], tl.float32)
        for block in range(blocks):
            total += tl.load(mass + at + block * rows, live, 0.0)
            most = tl.maximum(most, tl.load(largest + at + block * rows, live, 0.0))
        tl.store(to_mass + n, total, live)
        tl.store(to_largest + n, most.to(tl.float16), live)
    elif which == 1:
        live = n < all_queries
        total = tl.load(sums + n * 4, live, 0.0)
        tl.store(to_distance + n, tl.load(sums + n * 4 + 1, live, 0.0), live)
        tl.store(to_entropy + n, (tl.load(sums + n * 4 + 2, live, 0.0) * -LN_2).to(tl.float16), live)
        tl.store(to_first + n, tl.load(sums + n * 4 + 3, live, 0.0).to(tl.float16), live)
        packed = tl.load(best + n, live, 0)
        tl.store(to_weight + n, (packed >> 32).to(tl.int32).to(tl.float32, bitcast=True).to(tl.float16), live)
        tl.store(to_where + n, tl.where(packed > 0, 2147483647 - (packed & 2147483647).to(tl.int32), -1), live)
        some = live & (total > 0.0)
        off = tl.where(some, tl.abs(total - 1.0), 0.0)
        off = tl.where(total == total, off, float("inf"))
        if tl.program_id(0) * B < all_queries:
            worst(numbers + 3, tl.max(off, 0))
            worst(numbers + 5, tl.max(tl.where(some, tl.abs(tl.log(tl.where(some, total, 1.0))), 0.0), 0))
    else:
        live = n < all_keys
        tl.store(to_received + n, tl.load(received + n, live, 0.0), live)
        tl.store(to_top + n, tl.load(top + n, live, 0.0).to(tl.float16), live)
        # The source is −1 for a key that no query sees.
        tl.store(to_source + n, tl.load(source + n, live, 0), live)


@triton.jit
def map_finish(numbers, to):
    """Reduce the six numbers to three: the error, the error of the logsumexp, and the largest |value|."""
    largest = tl.load(numbers + 4)
    off = tl.maximum(tl.load(numbers + 2), tl.load(numbers + 3))
    error = tl.load(numbers) + 0.0
    scaled = off * largest
    error = tl.where(scaled > error, scaled, error)
    error = tl.where((scaled == scaled) & (largest == largest), error, float("inf"))
    tl.store(to, error)
    tl.store(to + 1, tl.maximum(tl.load(numbers + 1), tl.load(numbers + 5)))
    tl.store(to + 2, largest)
