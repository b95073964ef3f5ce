"""Attention maps from queries, keys and the logsumexp of their rows: an overview in cells, or the weights themselves.

A program takes some rows of one head. With the logsumexp a weight is exp(score − logsumexp) as soon as its score is
there, so that nothing is computed twice. Most tiles are seen as a whole; only those at the edge of the mask, of a cell or
of the keys pay for a mask. Numbers of elements are int64: maps of 131,072 tokens have 2³⁴.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
MINUS_LOG_2 = tl.constexpr(-0.6931471805599453)


@triton.jit
def rows_of(
    q, lse, present, shift, sequence, head, head_of_all, first_row, stop_row, queries, width,
    q_item, q_head, q_token, PADDED: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """A block of queries: rows, which of them are there, vectors, log₂-sum-exp, and positions among the keys.

    Rows without a query have 1e30 as logsumexp, by which all their weights are zero."""
    rows, d = first_row + tl.arange(0, BM), tl.arange(0, BD)
    live = rows < stop_row
    start = q + sequence.to(tl.int64) * q_item + head * q_head
    block = tl.load(
        start + rows[:, None].to(tl.int64) * q_token + d[None, :], live[:, None] & (d < width)[None, :], 0.0
    )
    total = tl.load(lse + head_of_all.to(tl.int64) * queries + rows, live, 0.0)
    total = tl.where((total > -1e29) & (total < 1e29), total * LOG2_E, 0.0)
    exists = live
    if PADDED:
        exists = live & (tl.load(present + sequence.to(tl.int64) * queries + rows, live, 0) != 0)
    return rows, live, block, tl.where(exists, total, 1e30), rows + tl.load(shift + sequence)


@triton.jit
def log_weights(
    q, k, total, place, columns, seen, slope, scale, softcap, left, right, at_edge,
    PADDED: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """log₂ of the weights, ``(rows, columns)``; −1e30 for keys that are not seen."""
    s = tl.dot(q, k, input_precision=PRECISION)
    if CAPPED:
        s = softcap * (2.0 / (1.0 + tl.exp(-2.0 * s * scale / softcap)) - 1.0)
        x = s * LOG2_E - total[:, None]
    else:
        x = s * (scale * LOG2_E) - total[:, None]
    if SLOPED:
        x -= slope * tl.abs(columns[None, :] - place[:, None]).to(tl.float32)
    if PADDED:
        x = tl.where(seen[None, :], x, -1e30)
    if at_edge:
        away = columns[None, :] - place[:, None]
        x = tl.where(seen[None, :] & (away >= -left) & (away <= right), x, -1e30)
    return x


@triton.jit
def by_row(x, BM: tl.constexpr, BN: tl.constexpr):
    """``(BM, 4, BN / 4)``: last, what one thread holds of a row after a product on tensor cores. To add it up takes no
    exchange between threads. Column n of part m is 8 · (n // 2) + n % 2 + 2 m."""
    return tl.reshape(tl.permute(tl.reshape(x, [BM, BN // 8, 4, 2]), (0, 2, 1, 3)), [BM, 4, BN // 4])


@triton.jit
def by_column(x, BM: tl.constexpr, BN: tl.constexpr, BANDS: tl.constexpr):
    """``(8 · BANDS, BN, BM / (8 · BANDS))``: the same for columns. Row n of part 8 b + m is
    16 · BANDS · (n // 2) + 16 b + 8 · (n % 2) + m."""
    x = tl.reshape(x, [BM // (16 * BANDS), BANDS, 2, 8, BN])
    return tl.reshape(tl.permute(x, (1, 3, 4, 0, 2)), [8 * BANDS, BN, BM // (8 * BANDS)])


@triton.jit
def add_and_max(a, b, c, d):
    return a + c, tl.maximum(b, d)


@triton.jit
def map_overview(
    q, k, lse, shift, present_q, present_k, slopes,
    mass, largest, sums, entropy, first, distance, top, where, received, best,
    queries, keys, heads, group, height, cell, cells, blocks, width, first_keys, scale, softcap, left, right,
    q_item, q_head, q_token, k_item, k_head, k_token, row_bits, column_bits,
    PADDED: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr,
    BACKWARD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BANDS: tl.constexpr,
):  # fmt: skip
    """Programs are ``blocks`` for each row of cells. Cells of a program are added up afterwards; keys by atomics, in an
    order that differs between runs, and with it the last digits of ``received``.

    A largest weight and its place are one integer: weights are not negative, so that their bits are ordered as they are,
    and the lowest bits make room for the place. Places count down: of equal weights the first is found. The last 4 to 8
    bits of a weight are lost to it, less than float16 leaves; of float32 the exact weights are found beside.

    Args:
        row_bits, column_bits: the bits of a weight that are kept beside a place, −BN / 4 and −BM. The compiler must not
            know them: with two constants, to pack them takes two instructions.
        BACKWARD: no key after its query is seen, which saves telling both sides apart.
    """
    part = tl.num_programs(0) - 1 - tl.program_id(0)  # with a causal mask the last rows take longest: they begin
    whole = tl.program_id(1)
    item, head = whole // heads, whole % heads
    first_row = (part // blocks) * height + (part % blocks) * BM
    stop_row = tl.minimum((part // blocks + 1) * height, queries)
    rows, live, block, total, place = rows_of(
        q, lse, present_q, shift, item, head, whole, first_row, stop_row, queries, width,
        q_item, q_head, q_token, PADDED, BM, BD,
    )  # fmt: skip
    slope = 0.0
    if SLOPED:
        slope = tl.load(slopes + whole) * LOG2_E
    moved = tl.load(shift + item)
    low, high = first_row + moved, tl.minimum(first_row + BM, stop_row) - 1 + moved
    begin, end = tl.maximum(low - left, 0), tl.minimum(high + right + 1, keys)
    # Tiles do not cross cells. The first and the last one that these rows see:
    per = (cell + BN - 1) // BN
    c = begin // cell
    skipped = (begin - c * cell) // BN
    first_tile = c * per + skipped
    last_tile = ((end - 1) // cell) * per + ((end - 1) % cell) // BN + 1
    if (end <= begin) | (first_row >= stop_row):
        last_tile = first_tile
    start, stop = c * cell + skipped * BN, tl.minimum((c + 1) * cell, keys)
    inside, d = tl.arange(0, BN), tl.arange(0, BD)
    keys_of = k + item.to(tl.int64) * k_item + (head // group) * k_head
    near = inside[None, :] * k_token + d[:, None]
    at, whole_row = whole.to(tl.int64) * keys, (whole.to(tl.int64) * tl.num_programs(0) + part) * cells
    # What a thread holds of a row, and of a column:
    WIDE: tl.constexpr = BN // 4
    HIGH: tl.constexpr = BM // (8 * BANDS)
    step, quarter = tl.arange(0, WIDE), 2 * tl.arange(0, 4)[None, :]
    steps = (step // 2 * 8 + step % 2).to(tl.float32)
    ahead = (place[:, None] - quarter).to(tl.float32)
    in_row, in_column = WIDE - 1 - step, HIGH - 1 - tl.arange(0, HIGH)
    holder = (8 * BANDS - 1 - tl.arange(0, 8 * BANDS)) * HIGH
    zero, none = tl.zeros([BM, 4], tl.float32), tl.zeros([BM, 4], tl.int32)
    all_sum, all_entropy, all_distance, all_top, all_best, all_start = zero, zero, zero, zero, none, none
    cell_mass, cell_top = tl.zeros([8 * BANDS, 4], tl.float32), tl.zeros([8 * BANDS, 4], tl.int32)
    for t in range(first_tile, last_tile):
        columns = start + inside
        seen = columns < stop
        tile = tl.load((keys_of + start.to(tl.int64) * k_token) + near, seen[None, :] & (d < width)[:, None], 0.0)
        if PADDED:
            seen = seen & (tl.load(present_k + item.to(tl.int64) * keys + columns, seen, 0) != 0)
        at_edge = (start + BN > stop) | (start < high - left) | (start + BN - 1 > low + right)
        x = log_weights(
            block, tile, total, place, columns, seen, slope, scale, softcap, left, right, at_edge,
            PADDED, CAPPED, SLOPED, PRECISION,
        )  # fmt: skip
        p = tl.exp2(x)
        held = by_row(p, BM, BN)
        row_mass = tl.sum(held, 2)
        all_sum += row_mass
        cell_mass += tl.sum(by_column(row_mass, BM, 4, BANDS), 2)
        all_entropy += tl.sum(held * by_row(x, BM, BN), 2)
        # On one side of the query, Σ weight · |distance| = |mass · (query − start) − moment|.
        away = row_mass * (ahead - start.to(tl.float32)) - tl.sum(held * steps[None, None, :], 2)
        if not BACKWARD:
            away = tl.where(start > high, -away, away)
            if (start <= high) & (start + BN - 1 > low):
                beyond = tl.maximum(columns[None, :] - place[:, None], 0).to(tl.float32)
                away += 2.0 * tl.sum(by_row(p * beyond, BM, BN), 2)
        all_distance += away
        if start < first_keys:
            some = tl.sum(tl.where((columns < first_keys)[None, :], p, 0.0), 1)
            tl.atomic_add(first + whole.to(tl.int64) * queries + rows, some, live, sem="relaxed")
        row_best = tl.max((held.to(tl.int32, bitcast=True) & row_bits) | in_row[None, None, :], 2)
        better = row_best > (all_best | (WIDE - 1))
        all_start = tl.where(better, start, all_start)
        all_best = tl.where(better, row_best, all_best)
        if PRECISION == "ieee":
            row_best = tl.max(held, 2).to(tl.int32, bitcast=True)
            all_top = tl.maximum(all_top, row_best.to(tl.float32, bitcast=True))
        cell_top = tl.maximum(cell_top, tl.max(by_column(row_best, BM, 4, BANDS), 2))
        held = by_column(p, BM, BN, BANDS)
        key_best = tl.max((held.to(tl.int32, bitcast=True) & column_bits) | in_column[None, None, :], 2)
        key_mass, key_best = tl.reduce((tl.sum(held, 2), key_best | holder[:, None]), 0, add_and_max)
        tl.atomic_add(received + at + columns, key_mass, columns < stop, sem="relaxed")
        key_best = tl.gather(key_best, inside, 0)  # all threads have it: one of them goes on with each key
        n = BM - 1 - (key_best & (BM - 1))
        row = (n % HIGH // 2) * (16 * BANDS) + n // (8 * HIGH) * 16 + (n % 2) * 8 + n // HIGH % 8
        weight = key_best & -BM
        if PRECISION == "ieee":
            weight = tl.gather(tl.max(p, 0), inside, 0).to(tl.int32, bitcast=True)
        packed = (weight.to(tl.int64) << 32) | (2147483647 - first_row - row)
        so_far = tl.load(best + at + columns, columns < stop, 0)
        # Few rows are better than all before them, and a number that only grows can be read without an atomic.
        tl.atomic_max(best + at + columns, packed, (columns < stop) & (weight > 0) & (packed > so_far), sem="relaxed")
        start += BN
        if (t == last_tile - 1) | (start >= stop):
            tl.store(mass + whole_row + c, tl.sum(tl.sum(cell_mass, 1), 0))
            most = tl.max(tl.max(cell_top, 1), 0)
            if PRECISION != "ieee":
                most = most & -WIDE
            tl.store(largest + whole_row + c, most.to(tl.float32, bitcast=True))
            cell_mass, cell_top = tl.zeros([8 * BANDS, 4], tl.float32), tl.zeros([8 * BANDS, 4], tl.int32)
            c += 1
            start, stop = c * cell, tl.minimum((c + 1) * cell, keys)
    to = whole.to(tl.int64) * queries + rows
    tl.store(sums + to, tl.sum(all_sum, 1), live)
    tl.store(entropy + to, tl.sum(all_entropy, 1) * MINUS_LOG_2, live)
    tl.store(distance + to, tl.sum(all_distance, 1), live)
    n = WIDE - 1 - (all_best & (WIDE - 1))
    key = all_start + n // 2 * 8 + n % 2 + quarter
    found = tl.max(((all_best & -WIDE).to(tl.int64) << 32) | (2147483647 - key), 1)
    weight = (found >> 32).to(tl.int32)
    tl.store(where + to, tl.where(weight > 0, 2147483647 - (found & 2147483647).to(tl.int32), -1), live)
    if PRECISION == "ieee":
        tl.store(top + to, tl.max(all_top, 1), live)
    else:
        tl.store(top + to, weight.to(tl.float32, bitcast=True), live)


@triton.jit
def map_weights(
    q, k, v, lse, out, shift, present_q, present_k, slopes, weights, errors, log_errors,
    queries, keys, heads, group, value_group, width, value_width, scale, softcap, left, right,
    q_item, q_head, q_token, k_item, k_head, k_token, v_item, v_head, v_token, o_item, o_head, o_token,
    PADDED: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Every weight once, in the dtype in which it is kept, and max |weights @ v − out| and |log Σ weights| of the rows."""
    part, whole = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    item, head = whole // heads, whole % heads
    rows, live, block, total, place = rows_of(
        q, lse, present_q, shift, item, head, whole, part * BM, queries, queries, width,
        q_item, q_head, q_token, PADDED, BM, BD,
    )  # fmt: skip
    slope = 0.0
    if SLOPED:
        slope = tl.load(slopes + whole) * LOG2_E
    inside, d, e = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BV)
    moved = tl.load(shift + item)
    low, high = part * BM + moved, tl.minimum(part * BM + BM, queries) - 1 + moved
    begin = tl.minimum(tl.maximum(low - left, 0), keys) // BN * BN
    end = tl.maximum(tl.minimum(high + right + 1, keys), begin)
    keys_of = k + item.to(tl.int64) * k_item + (head // group) * k_head + begin.to(tl.int64) * k_token
    values_of = v + item.to(tl.int64) * v_item + (head // value_group) * v_head + begin.to(tl.int64) * v_token
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
        at_edge = (start + BN > keys) | (start < high - left) | (start + BN - 1 > low + right)
        p = tl.exp2(
            log_weights(
                block, tile, total, place, columns, seen, slope, scale, softcap, left, right, at_edge,
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
        out + item.to(tl.int64) * o_item + head * o_head + rows[:, None].to(tl.int64) * o_token + e[None, :],
        live[:, None] & (e < value_width)[None, :],
        0.0,
    )
    error = tl.where(live[:, None], tl.abs(product - expected.to(tl.float32)), 0.0)
    error = tl.where(error == error, error, float("inf"))  # not a number: a maximum would not show it
    log_error = tl.where(live & (sums > 0.0), tl.abs(tl.log(tl.where(sums > 0.0, sums, 1.0))), 0.0)
    tl.store(errors + whole * tl.num_programs(0) + part, tl.max(tl.max(error, 1), 0))
    tl.store(log_errors + whole * tl.num_programs(0) + part, tl.max(log_error, 0))
