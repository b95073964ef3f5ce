"""Kernels for attention by content and position: they append position columns, and compute the norms of rows.

The columns turn the score of a position into a part of the product of query and key, so that a fused kernel adds it.

A grid has three axes here, ``(depth, m, n)``; missing axes have size 1, and S is zero there.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def symmetric(matrix, head):
    """The six distinct entries of a head's S, in float64."""
    own = matrix + head * 9
    return (
        tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 4), tl.load(own + 5), tl.load(own + 8)
    )  # fmt: skip


@triton.jit
def longest_rows(
    x, found, tokens, heads, width, x_item, x_head, x_token, UNIT: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):
    """The squared norm of the longest row of each block of tokens; strides in units of ``UNIT`` numbers."""
    rows, whole, d = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1), tl.arange(0, BD)
    item, head = (whole // heads).to(tl.int64), (whole % heads).to(tl.int64)
    tile = tl.load(
        x + (item * x_item + head * x_head + rows[:, None].to(tl.int64) * x_token) * UNIT + d[None, :],
        (rows < tokens)[:, None] & (d < width)[None, :], 0.0,
    ).to(tl.float32)  # fmt: skip
    tl.store(found + whole * tl.num_programs(0) + tl.program_id(0), tl.max(tl.sum(tile * tile, 1), 0))


@triton.jit
def with_pieces(tile, e, first, x, COUNT: tl.constexpr, STEP: tl.constexpr, DIGITS: tl.constexpr):
    """Set the columns from ``first`` on to pieces p₀, p₁, … of the tile's dtype with x ≈ p₀ + p₁ / STEP + …, repeated for
    each digit of the coordinate that they multiply."""
    rest = x
    for piece in tl.static_range(COUNT):
        found = rest.to(tl.float32).to(tile.dtype)
        for digit in tl.static_range(DIGITS):
            tile = tl.where(e[None, :] == first + digit * COUNT + piece, found[:, None], tile)
        rest = (rest - found.to(tl.float32).to(tl.float64)) * STEP
    return tile


@triton.jit
def with_copies(tile, e, first, x, COUNT: tl.constexpr, STEP: tl.constexpr):
    """Set the columns that multiply the pieces: x, x / STEP, …"""
    if STEP == 1:
        mine = (e >= first)[None, :] & (e < first + COUNT)[None, :]
        tile = tl.where(mine, x[:, None].to(tl.float32).to(tile.dtype), tile)
    else:
        rest = x.to(tl.float32)
        for piece in tl.static_range(COUNT):
            tile = tl.where(e[None, :] == first + piece, rest[:, None].to(tile.dtype), tile)
            rest = rest / STEP
    return tile


@triton.jit
def with_digits(
    tile, e, first, place, scale, COUNT: tl.constexpr, STEP: tl.constexpr, DIGITS: tl.constexpr, BASE: tl.constexpr
):
    """Set the columns for the digits of an integer coordinate; each digit is exact in the tile's dtype."""
    rest = place
    for digit in tl.static_range(DIGITS - 1):
        low = ((rest + BASE // 2) & (BASE - 1)) - BASE // 2
        tile = with_copies(tile, e, first + digit * COUNT, (low * BASE**digit).to(tl.float32) * scale, COUNT, STEP)
        rest = (rest - low) // BASE
    last = (rest * BASE ** (DIGITS - 1)).to(tl.float32) * scale
    return with_copies(tile, e, first + (DIGITS - 1) * COUNT, last, COUNT, STEP)


@triton.jit
def joined_rows(
    x, out, longest, center, matrix, keep, far,
    tokens, prefix, heads, items, width, total, m, n, middle_0, middle_1, middle_2, over, one, scale_0, scale_1, scale_2,
    x_item, x_head, x_token,
    ROLE: tl.constexpr, COUNT: tl.constexpr, STEP: tl.constexpr, BASE: tl.constexpr,
    D0: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, PREFIX: tl.constexpr, MASKED: tl.constexpr,
    UNIT: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """Write a block of tokens of one head for several items, which share the same position columns."""
    rows, head = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1) % heads
    first = tl.program_id(1) // heads * ITEMS
    live, d, e = rows < tokens, tl.arange(0, BD), tl.arange(0, BE)
    tile = tl.zeros([BT, BE], out.dtype.element_ty)
    last: tl.constexpr = (D0 + D1 + D2 + 1 + PREFIX) * COUNT
    if ROLE != 2:
        place = rows - prefix
        is_placed = live & (place >= 0)
        i0, i1, i2 = place // (m * n) - middle_0, place // n % m - middle_1, place % n - middle_2
        p0, p1, p2 = i0.to(tl.float64), i1.to(tl.float64), i2.to(tl.float64)
        s00, s01, s02, s11, s12, s22 = symmetric(matrix, head)
        there = tl.where(is_placed, 1.0, 0.0)
        first_1: tl.constexpr = D0 * COUNT
        first_2: tl.constexpr = first_1 + D1 * COUNT
        end: tl.constexpr = first_2 + D2 * COUNT
        if ROLE == 0:
            p0 += tl.load(center + head * 3)
            p1 += tl.load(center + head * 3 + 1)
            p2 += tl.load(center + head * 3 + 2)
        q0, q1, q2 = s00 * p0 + s01 * p1 + s02 * p2, s01 * p0 + s11 * p1 + s12 * p2, s02 * p0 + s12 * p1 + s22 * p2
        own = tl.where(is_placed, (p0 * q0 + p1 * q1 + p2 * q2) * (over / one), 0.0)
        if ROLE == 0:
            twice = tl.where(is_placed, 2.0 * over, 0.0)
            if D0 > 0:
                tile = with_pieces(tile, e, 0, q0 * (twice / scale_0), COUNT, STEP, D0)
            if D1 > 0:
                tile = with_pieces(tile, e, first_1, q1 * (twice / scale_1), COUNT, STEP, D1)
            tile = with_pieces(tile, e, first_2, q2 * (twice / scale_2), COUNT, STEP, D2)
            tile = with_copies(tile, e, end, there * one, COUNT, STEP)
            if PREFIX:
                tile = with_pieces(tile, e, end + COUNT, own, COUNT, STEP, 1)
        else:
            if D0 > 0:
                tile = with_digits(tile, e, 0, i0, there * scale_0, COUNT, STEP, D0, BASE)
            if D1 > 0:
                tile = with_digits(tile, e, first_1, i1, there * scale_1, COUNT, STEP, D1, BASE)
            tile = with_digits(tile, e, first_2, i2, there * scale_2, COUNT, STEP, D2, BASE)
            tile = with_pieces(tile, e, end, -own, COUNT, STEP, 1)
            if PREFIX:
                tile = with_copies(tile, e, end + COUNT, -there * one, COUNT, STEP)
    at = x + (head.to(tl.int64) * x_head + rows[:, None].to(tl.int64) * x_token) * UNIT + d[None, :]
    for step in range(tl.minimum(ITEMS, items - first)):
        item = (first + step).to(tl.int64)
        whole = item * heads + head
        to = out + (whole * tokens + rows)[:, None] * (total * UNIT)
        content = tl.load(at + item * x_item * UNIT, live[:, None] & (d < width)[None, :], 0.0)
        tl.store(to + d[None, :], content, live[:, None] & (d < width)[None, :])
        extra = tile
        if MASKED and ROLE != 2:
            given = tl.load(keep + item * tokens + rows, live, 1) != 0
            if ROLE == 0:
                extra = with_copies(tile, e, last, tl.where(given, one, 0.0), 1, 1)
            else:
                extra = with_copies(tile, e, last, tl.where(given, 0.0, -tl.load(far + head)), 1, 1)
        tl.store(to + width + e[None, :], extra, live[:, None] & (width + e < total * UNIT)[None, :])
        if ROLE == 1:
            numbers = content.to(tl.float32)
            norm = tl.max(tl.sum(numbers * numbers, 1), 0)
            tl.store(longest + whole * tl.num_programs(0) + tl.program_id(0), norm)


@triton.jit
def placed_columns(
    q, k, wide_q, wide_k, longest, center, matrix, seen, keep, far,
    tokens, prefix, heads, items, width, total, m, n, middle_0, middle_1, middle_2, over, one, scale_0, scale_1, scale_2,
    q_item, q_head, q_token, k_item, k_head, k_token,
    COUNT: tl.constexpr, STEP: tl.constexpr, BASE: tl.constexpr,
    D0: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, PREFIX: tl.constexpr, MASKED: tl.constexpr,
    UNIT: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """Write queries and keys with their position columns.

    Args:
        longest: the squared norm of the longest key for each item, head and block of tokens.
        seen, keep: which queries see any key, and which keys exist.
        over: 1 / β, a factor of the coefficients.
        one, scale_0, scale_1, scale_2: scales of constants and of each axis's coordinates, powers of 2.
        far: for each head, by how much the score of a hidden key is lowered, divided by β and ``one``.
        total, and the strides of q and k: in units of ``UNIT`` numbers, so that the compiler knows their divisor.
        D0, D1, D2: the number of digits of each axis's coordinates; 0 for a missing axis.
        ITEMS: items per program.
    """
    if tl.program_id(2) == 0:
        joined_rows(
            q, wide_q, longest, center, matrix, seen, far,
            tokens, prefix, heads, items, width, total, m, n, middle_0, middle_1, middle_2, over, one, scale_0, scale_1,
            scale_2, q_item, q_head, q_token,
            0, COUNT, STEP, BASE, D0, D1, D2, PREFIX, MASKED, UNIT, BT, BD, BE, ITEMS,
        )  # fmt: skip
    else:
        joined_rows(
            k, wide_k, longest, center, matrix, keep, far,
            tokens, prefix, heads, items, width, total, m, n, middle_0, middle_1, middle_2, over, one, scale_0, scale_1,
            scale_2, k_item, k_head, k_token,
            1, COUNT, STEP, BASE, D0, D1, D2, PREFIX, MASKED, UNIT, BT, BD, BE, ITEMS,
        )  # fmt: skip


@triton.jit
def padded_columns(
    x, out, tokens, heads, items, width, total, x_item, x_head, x_token,
    UNIT: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """Write values padded with zero columns."""
    joined_rows(
        x, out, out, out, out, out, out,
        tokens, 0, heads, items, width, total, 1, 1, 0, 0, 0, 1.0, 1.0, 1.0, 1.0, 1.0, x_item, x_head, x_token,
        2, 1, 1, 1, 0, 0, 1, 0, 0, UNIT, BT, BD, BE, ITEMS,
    )  # fmt: skip
