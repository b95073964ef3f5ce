"""A trial: which key of a group has a query's largest weight, and which of two queries a key's (``_gluon_overview.py``).

The kernel of full tiles finds the groups. Here eight scores for a query, and two for a key, decide between their members.
"""

import triton
import triton.language as tl


@triton.jit
def finish_queries(
    q, k, lse, best, queries, heads, group, scale,
    q_item, q_head, q_token, k_item, k_head, k_token, B: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """``best`` holds the bits of a weight in half precision · 2⁴⁸ + the number of a group · 2³² + 2³¹ − 1 − the first key of
    its block. Afterwards, as ``map_overview`` writes it: the bits of a weight · 2³² + 2³¹ − 1 − its key."""
    whole = tl.program_id(1)
    item, head = (whole // heads).to(tl.int64), whole % heads
    rows, d = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, BD)
    at = whole.to(tl.int64) * queries + rows
    packed = tl.load(best + at, rows < queries, 0)
    some = packed > 0
    start = 2147483647 - (packed & 2147483647).to(tl.int32)
    tag = 15 - ((packed >> 32).to(tl.int32) & 15)
    # A thread holds two neighbors of each eight keys. A group is one of the two, of every other eight.
    origin = start + tag // 4 * 2 + tag % 2 + tag // 2 % 2 * 8
    own = tl.load(
        q + item * q_item + head.to(tl.int64) * q_head + rows[:, None].to(tl.int64) * q_token + d[None, :],
        some[:, None], 0.0,
    ).to(tl.float32)  # fmt: skip
    base = k + item * k_item + (head // group).to(tl.int64) * k_head
    top, where = tl.full([B], -1e30, tl.float32), tl.zeros([B], tl.int32)
    for i in tl.static_range(8):
        key = origin + i * 16
        other = tl.load(base + key[:, None].to(tl.int64) * k_token + d[None, :], some[:, None], 0.0).to(tl.float32)
        score = tl.sum(own * other, 1)
        where = tl.where(score > top, key, where)
        top = tl.maximum(top, score)
    weight = tl.exp2(top * scale - tl.load(lse + at, some, 1e30))
    found = (weight.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (2147483647 - where).to(tl.int64)
    tl.store(best + at, found, some)


@triton.jit
def finish_keys(
    q, k, lse, top, source, queries, keys, heads, group, height, scale,
    q_item, q_head, q_token, k_item, k_head, k_token, B: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """``source`` is the first of two queries, the other one is eight later; afterwards it is the one with the larger weight."""
    whole = tl.program_id(1)
    item, head = (whole // heads).to(tl.int64), whole % heads
    columns, d = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, BD)
    at = whole.to(tl.int64) * keys + columns
    first = tl.load(source + at, columns < keys, -1)
    some = (columns < keys) & (first >= 0) & (tl.load(top + at, columns < keys, 0.0) > 0.0)
    bottom = tl.minimum((first // height + 1) * height, queries)
    own = tl.load(
        k + item * k_item + (head // group).to(tl.int64) * k_head + columns[:, None].to(tl.int64) * k_token + d[None, :],
        some[:, None], 0.0,
    ).to(tl.float32)  # fmt: skip
    base = q + item * q_item + head.to(tl.int64) * q_head
    best, where = tl.full([B], -1e30, tl.float32), first
    for i in tl.static_range(2):
        row = first + i * 8
        live = some & (row < bottom)
        other = tl.load(base + row[:, None].to(tl.int64) * q_token + d[None, :], live[:, None], 0.0).to(tl.float32)
        x = tl.sum(own * other, 1) * scale - tl.load(lse + whole.to(tl.int64) * queries + row, live, 1e30)
        where = tl.where(x > best, row, where)
        best = tl.maximum(best, x)
    tl.store(top + at, tl.exp2(best), some)
    tl.store(source + at, where, some)
