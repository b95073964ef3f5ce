"""Attention maps from queries, keys and the logsumexp of their rows: an overview in cells, or the weights themselves.

A program takes some rows of one head. With the logsumexp a weight is exp(score − logsumexp) as soon as its score is
there, so that nothing is computed twice. Numbers of elements are int64: maps of 131,072 tokens have 2³⁴.
"""

import triton
import triton.language as tl


@triton.jit
def logits(
    q, k, lse, place, columns, seen, slope, scale, softcap, left, right,
    CAPPED: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores minus logsumexp, ``(rows, columns)``; −1e30 for keys that are not seen."""
    s = tl.dot(q, k, input_precision=PRECISION) * scale
    if CAPPED:
        s = softcap * (2.0 / (1.0 + tl.exp(-2.0 * s / softcap)) - 1.0)
    away = columns[None, :] - place[:, None]
    if SLOPED:
        s = s - slope * tl.abs(away).to(tl.float32)
    seen = seen & (away >= -left) & (away <= right)
    return tl.where(seen, s - lse[:, None], -1e30)


@triton.jit
def rows_of(
    q, lse, present, shift, sequence, head, head_of_all, first_row, stop_row, queries, width,
    q_item, q_head, q_token, PADDED: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """A block of queries: their vectors, logsumexp, positions among the keys, and which of them exist."""
    rows, d = first_row + tl.arange(0, BM), tl.arange(0, BD)
    live = (rows < stop_row) & (rows < queries)
    start = q + sequence.to(tl.int64) * q_item + head * q_head
    block = tl.load(
        start + rows[:, None].to(tl.int64) * q_token + d[None, :], live[:, None] & (d < width)[None, :], 0.0
    )
    total = tl.load(lse + head_of_all.to(tl.int64) * queries + rows, live, 0.0)
    total = tl.where((total > -1e29) & (total < 1e29), total, 0.0)
    exists = live
    if PADDED:
        exists = live & (tl.load(present + sequence.to(tl.int64) * queries + rows, live, 0) != 0)
    return rows, block, total, rows + tl.load(shift + sequence), live, exists


@triton.jit
def map_overview(
    q, k, lse, shift, present_q, present_k, slopes,
    mass, largest, sums, entropy, first, distance, top, where, received, best,
    queries, keys, heads, group, height, cell, cells, blocks, width, first_keys, scale, softcap, left, right,
    q_item, q_head, q_token, k_item, k_head, k_token,
    PADDED: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Programs are ``blocks`` for each row of cells. Cells of a program are added up afterwards; keys by atomics."""
    part = tl.num_programs(0) - 1 - tl.program_id(0)  # with a causal mask the last rows take longest: they begin
    whole = tl.program_id(1)
    item, head = whole // heads, whole % heads
    first_row = (part // blocks) * height + (part % blocks) * BM
    rows, block, total, place, live, exists = rows_of(
        q, lse, present_q, shift, item, head, whole, first_row, (part // blocks + 1) * height, queries, width,
        q_item, q_head, q_token, PADDED, BM, BD,
    )  # fmt: skip
    slope = 0.0
    if SLOPED:
        slope = tl.load(slopes + whole)
    d = tl.arange(0, BD)
    keys_of = k + item.to(tl.int64) * k_item + (head // group) * k_head
    moved = tl.load(shift + item)
    begin = tl.maximum(first_row + moved - left, 0) // cell
    end = (tl.minimum(first_row + BM + moved + right, keys) + cell - 1) // cell
    whole_row = (whole.to(tl.int64) * tl.num_programs(0) + part) * cells
    all_sum, all_entropy = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    all_first, all_distance = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    all_top, all_where = tl.zeros([BM], tl.float32), tl.full([BM], -1, tl.int32)
    for c in range(begin, end):
        cell_mass, cell_top = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
        for j in range(0, cell, BN):
            inside = j + tl.arange(0, BN)
            columns = c * cell + inside
            there = (inside < cell) & (columns < keys)
            tile = tl.load(
                keys_of + columns[None, :].to(tl.int64) * k_token + d[:, None],
                there[None, :] & (d < width)[:, None],
                0.0,
            )
            seen = exists[:, None] & there[None, :]
            if PADDED:
                seen = seen & (tl.load(present_k + item.to(tl.int64) * keys + columns, there, 0) != 0)[None, :]
            t = logits(
                block, tile, total, place, columns, seen, slope, scale, softcap, left, right, CAPPED, SLOPED, PRECISION
            )
            p = tl.exp(t)
            cell_mass += tl.sum(p, 1)
            all_entropy -= tl.sum(p * t, 1)
            all_distance += tl.sum(p * tl.abs(columns[None, :] - place[:, None]).to(tl.float32), 1)
            if c * cell + j < first_keys:
                all_first += tl.sum(tl.where((columns < first_keys)[None, :], p, 0.0), 1)
            row_top = tl.max(p, 1)
            better = row_top > all_top
            all_where = tl.where(better, c * cell + j + tl.argmax(p, 1).to(tl.int32), all_where)
            all_top = tl.maximum(all_top, row_top)
            cell_top = tl.maximum(cell_top, row_top)
            column_top = tl.max(p, 0)
            source = (first_row + tl.argmax(p, 0)).to(tl.int64)
            # Weights are not negative, so that their bits are ordered as they are: a maximum and its place in one number.
            packed = (column_top.to(tl.int32, bitcast=True).to(tl.int64) << 32) | source
            at = whole.to(tl.int64) * keys + columns
            some = there & (column_top > 0.0)
            tl.atomic_add(received + at, tl.sum(p, 0), some)
            tl.atomic_max(best + at, packed, some)
        all_sum += cell_mass
        tl.store(mass + whole_row + c, tl.sum(cell_mass, 0))
        tl.store(largest + whole_row + c, tl.max(cell_top, 0))
    to = whole.to(tl.int64) * queries + rows
    tl.store(sums + to, all_sum, live)
    tl.store(entropy + to, all_entropy, live)
    tl.store(first + to, all_first, live)
    tl.store(distance + to, all_distance, live)
    tl.store(top + to, all_top, live)
    tl.store(where + to, all_where, live)


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
    rows, block, total, place, live, exists = rows_of(
        q, lse, present_q, shift, item, head, whole, part * BM, queries, queries, width,
        q_item, q_head, q_token, PADDED, BM, BD,
    )  # fmt: skip
    slope = 0.0
    if SLOPED:
        slope = tl.load(slopes + whole)
    d, e = tl.arange(0, BD), tl.arange(0, BV)
    keys_of = k + item.to(tl.int64) * k_item + (head // group) * k_head
    values_of = v + item.to(tl.int64) * v_item + (head // value_group) * v_head
    moved = tl.load(shift + item)
    begin, end = part * BM + moved - left, part * BM + BM + moved + right
    product, sums = tl.zeros([BM, BV], tl.float32), tl.zeros([BM], tl.float32)
    to = weights + (whole.to(tl.int64) * queries + rows[:, None]) * keys
    for start in range(0, keys, BN):
        columns = start + tl.arange(0, BN)
        there = columns < keys
        here = live[:, None] & there[None, :]
        if (start + BN > begin) & (start < end):
            tile = tl.load(
                keys_of + columns[None, :].to(tl.int64) * k_token + d[:, None],
                there[None, :] & (d < width)[:, None],
                0.0,
            )
            seen = exists[:, None] & there[None, :]
            if PADDED:
                seen = seen & (tl.load(present_k + item.to(tl.int64) * keys + columns, there, 0) != 0)[None, :]
            t = logits(
                block, tile, total, place, columns, seen, slope, scale, softcap, left, right, CAPPED, SLOPED, PRECISION
            )
            p = tl.exp(t)
            tl.store(to + columns[None, :], p.to(weights.dtype.element_ty), here)
            value = tl.load(
                values_of + columns[:, None].to(tl.int64) * v_token + e[None, :],
                there[:, None] & (e < value_width)[None, :],
                0.0,
            )
            product += tl.dot(p.to(value.dtype), value, input_precision=PRECISION)
            sums += tl.sum(p, 1)
        else:
            tl.store(to + columns[None, :], tl.zeros([BM, BN], weights.dtype.element_ty), here)
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
