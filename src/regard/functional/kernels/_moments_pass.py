"""Gradients of center and sharpness where content and place meet: moments of the scores' gradient, by products.

A grid has three axes here, ``(depth, m, n)``; those that are missing have size 1, and S has zeros there. Queries and keys are
taken by patches of a plane, so that few keys are read of which most are too far away; all patches of keys look the same, and
one product with 1, c, c², l, l², l c, their local coordinates, sums up a patch.
"""

import triton
import triton.language as tl

from regard.functional.kernels._placed_pass import LOG2_E, symmetric
from regard.functional.kernels._placed_reach import lines_of_strip, within

ROOM = tl.constexpr(4096.0)  # float16 holds what is at most twice as large


@triton.jit
def product(a, b):
    """Of float32 as three of TF32, which together have its digits."""
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def added_up(scores, most, mass):
    """The rows' largest scores so far, and sums of exponentials relative to them."""
    now = tl.maximum(most, tl.max(scores, 1))
    return now, mass * tl.exp2(most - now) + tl.sum(tl.exp2(scores - now[:, None]), 1)


@triton.jit
def keys_at(of, columns, token, d, width, seen, EVEN: tl.constexpr, UNIT: tl.constexpr):
    """A tile of keys or values, (width, keys)."""
    to = of + columns[None, :].to(tl.int64) * (token * UNIT) + d[:, None]
    if EVEN:
        tile = tl.load(to, (d < width)[:, None], 0.0)
    else:
        tile = tl.load(to, seen[None, :] & (d < width)[:, None], 0.0)
    return tile


@triton.jit
def keys_of_patch(plane, group, start, inside, prefix, m, n, PC: tl.constexpr, PL: tl.constexpr):
    """Which keys of a patch lie on the grid, and their numbers."""
    at_line, at_column = group * PL + inside // PC, start + inside % PC
    return (at_line < m) & (at_column < n), prefix + (plane * m + at_line) * n + at_column


@triton.jit
def hide(scores, rows, columns, there, keep, prefix, EVEN: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr):
    if not EVEN:
        scores = tl.where(there[None, :], scores, float("-inf"))
    if MASKED:
        scores = tl.where((tl.load(keep + columns, there, 0) != 0)[None, :], scores, float("-inf"))
    if CAUSAL:
        scores = tl.where((columns - prefix)[None, :] <= rows[:, None], scores, float("-inf"))
    return scores


@triton.jit
def place_cost(c, line, u, b, a, own, l22, l21, l20, l11, l10, PL: tl.constexpr):
    """(δ − Δ)ᵀ S (δ − Δ) for local coordinates c and line of keys, and what patches add to them for each query: u, b, a, and
    ``own`` to the whole."""
    last = (l22 * c + l21 * line)[None, :] + (l22 * u + l21 * b + l20 * a)[:, None]
    if PL == 1:
        middle = l11 * b + l10 * a
        cost = last * last + (middle * middle + own)[:, None]
    else:
        middle = (l11 * line)[None, :] + (l11 * b + l10 * a)[:, None]
        cost = last * last + (middle * middle + own[:, None])
    return cost


@triton.jit
def column(sums, which):
    f = tl.arange(0, 8)
    return tl.sum(tl.where((f == which)[None, :], sums, 0.0), 1)


@triton.jit
def added(x, p, mean, over):
    return tl.sum((x - mean[:, None] * p) * over[:, None], 0)


@triton.jit
def place_moments(
    q, k, v, grad, out, lse, center, matrix, table, keep, longest, largest, partial,
    tokens, prefix, heads, width, value_width, depth, m, n, scale,
    q_item, q_head, q_token, k_item, k_head, k_token, v_item, v_head, v_token, g_item, g_head, g_token,
    o_item, o_head, o_token,
    DIMENSIONS: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, KNOWN: tl.constexpr, ROWS: tl.constexpr,
    EVEN: tl.constexpr, UNIT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PC: tl.constexpr, BD: tl.constexpr,
    BV: tl.constexpr, ENTRIES: tl.constexpr, PARTS: tl.constexpr, FORGOTTEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Σ ds (δ − Δ) and Σ ds (δ − Δ)(δ − Δ)ᵀ over a patch of queries of one head, ds the gradient of the scores.

    With weights P, dP = grad · vᵀ and D = grad · out, ds = P (dP − D). Scores and ds are made in float32; float16 holds P
    and ds, whose sizes are known, on their way into sums, but for ``WIDE`` inputs, of float32. What D is off by, for ``out``
    is rounded, is found as a row's sum of ds, and taken out again.

    Args:
        lse: of each query, the logarithm of its sum of exponentials, if ``KNOWN``; with ``ROWS`` a query's own term is in it.
        scale: β / log 2.
        table: of each head, what ``costs_of_heads`` wrote.
        longest, largest: of each item and head, the squared norm of the longest key and value.
        partial: of each program, sums over local coordinates (8) times the first ``PARTS`` of 1, u, u², b, b u, b², a, a²,
            a u, a b, which patches add to them.
        UNIT: strides are in so many numbers; with 8 the compiler knows that rows can be read 16 bytes at a time.
        BM, BN, PC: queries and keys of a patch, and how many columns it has; the rest are lines.
        FORGOTTEN: keys are left out whose weight would be below 2 to the power of −FORGOTTEN even if their content were that
            of the longest key, along the query.
    """
    summed: tl.constexpr = tl.float32 if WIDE else tl.float16
    PL: tl.constexpr = BN // PC
    lines: tl.constexpr = BM // PC
    whole, patch = tl.program_id(1), tl.program_id(0)
    item, head = (whole // heads).to(tl.int64), (whole % heads).to(tl.int64)
    inside, d, e, f = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BV), tl.arange(0, 8)
    across, down = (n + PC - 1) // PC, (m + lines - 1) // lines
    i0, top = patch // (across * down), patch // across % down * lines
    i1, i2 = top + tl.arange(0, BM) // PC, patch % across * PC + tl.arange(0, BM) % PC
    live = (i1 < m) & (i2 < n)
    rows = (i0 * m + i1) * n + i2
    at = (prefix + rows)[:, None].to(tl.int64) * UNIT
    query = tl.load(
        q + (item * q_item + head * q_head) * UNIT + at * q_token + d[None, :],
        live[:, None] & (d < width)[None, :], 0.0,
    )  # fmt: skip
    values_seen = live[:, None] & (e < value_width)[None, :]
    above = tl.load(grad + (item * g_item + head * g_head) * UNIT + at * g_token + e[None, :], values_seen, 0.0)
    given = tl.load(out + (item * o_item + head * o_head) * UNIT + at * o_token + e[None, :], values_seen, 0.0)
    wide, given = above.to(tl.float32), given.to(tl.float32)
    long = tl.sqrt(tl.sum(wide * wide, 1) * tl.load(largest + whole))
    gain = tl.where(long > 0.0, ROOM / tl.where(long > 0.0, long, 1.0), 0.0)
    less = tl.sum(wide * given, 1) * gain
    own = table + head * ENTRIES
    l22, l21, l20, l11, l10, l00 = (
        tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3), tl.load(own + 4), tl.load(own + 5)
    )  # fmt: skip
    z0, z1, z2 = tl.load(center + head * 3), tl.load(center + head * 3 + 1), tl.load(center + head * 3 + 2)
    t0, t1, t2 = i0.to(tl.float32) + z0.to(tl.float32), i1.to(tl.float32) + z1.to(tl.float32), i2 + z2.to(tl.float32)
    keys_of, values_of = k + (item * k_item + head * k_head) * UNIT, v + (item * v_item + head * v_head) * UNIT
    keep_of = keep + item * (prefix + tokens)
    queries = query.to(tl.float32)
    content = tl.sqrt(tl.sum(queries * queries, 1) * tl.load(longest + whole)) * scale
    bottom = tl.zeros([BM], tl.float32)
    if KNOWN:
        bottom64 = (
            tl.load(lse + whole.to(tl.int64) * (prefix + tokens) + prefix + rows, live, 0.0).to(tl.float64) * LOG2_E
        )
        if not ROWS:
            r00, r01, r02, r11, r12, r22 = symmetric(matrix, head)
            x0 = (i0 - depth // 2).to(tl.float64) + z0
            x1 = (i1 - m // 2).to(tl.float64) + z1
            x2 = (i2 - n // 2).to(tl.float64) + z2
            bottom64 -= (r00 * x0 * x0 + r11 * x1 * x1 + r22 * x2 * x2) * LOG2_E
            bottom64 -= (r01 * x0 * x1 + r02 * x0 * x2 + r12 * x1 * x2) * (2.0 * LOG2_E)
        bottom = tl.where(live, bottom64.to(tl.float32), 1e30)
        room = content - bottom + FORGOTTEN
    elif MASKED or CAUSAL:
        room = tl.full([BM], 1e30, tl.float32)
    else:
        c0 = tl.minimum(tl.maximum(tl.floor(t0 + 0.5), 0.0), depth - 1.0) - t0
        c1 = tl.minimum(tl.maximum(tl.floor(t1 + 0.5), 0.0), m - 1.0) - t1
        c2 = tl.minimum(tl.maximum(tl.floor(t2 + 0.5), 0.0), n - 1.0) - t2
        x1, x2 = l11 * c1 + l10 * c0, l22 * c2 + l21 * c1 + l20 * c0
        room = 2.0 * content + (l00 * c0 * c0 + x1 * x1 + x2 * x2) + FORGOTTEN
    begin_0, end_0 = 0, 1
    if DIMENSIONS == 3:
        begin_0, end_0 = within(t0, room, tl.load(own + 6), depth * 1.0, live)
    begin_2, end_2 = within(t2, room, tl.load(own + 7), n * 1.0, live)
    if CAUSAL and DIMENSIONS == 3:
        end_0 = tl.minimum(end_0, i0 + 1)
    begin_2, count = begin_2 // PC, (end_2 + PC - 1) // PC - begin_2 // PC
    bottom_line = (tl.minimum(top + lines, m) + PL - 1) // PL  # of queries, in patches of keys
    half_c: tl.constexpr = PC // 2
    half_l: tl.constexpr = PL // 2
    c, line = (inside % PC - half_c).to(tl.float32), (inside // PC - half_l).to(tl.float32)

    if not KNOWN:
        most, mass = tl.full([BM], -1e30, tl.float32), tl.zeros([BM], tl.float32)
        for start in range(0, prefix, BN):
            columns = start + inside
            there = columns < prefix
            tile = keys_at(keys_of, columns, k_token, d, width, there, False, UNIT)
            scores = hide(product(query, tile) * scale, rows, columns, there, keep_of, prefix, False, MASKED, False)
            most, mass = added_up(scores, most, mass)
        for outer in range(count * (end_0 - begin_0)):
            plane, start = begin_0 + outer // count, (begin_2 + outer % count) * PC
            a, u = plane * 1.0 - t0, (start + half_c) * 1.0 - t2
            begin, stop = 0, 1
            if DIMENSIONS > 1:
                begin, stop = lines_of_strip(own + 8, start, a, t1, t2, room, live, m, n, PC, PL)
            if CAUSAL and plane == i0:
                stop = tl.minimum(stop, bottom_line)
            for group in range(begin, stop):
                there, columns = keys_of_patch(plane, group, start, inside, prefix, m, n, PC, PL)
                tile = keys_at(keys_of, columns, k_token, d, width, there, EVEN, UNIT)
                b = half_l - t1 + group * (PL * 1.0)
                cost = place_cost(c, line, u, b, a, l00 * a * a + bottom, l22, l21, l20, l11, l10, PL)
                scores = product(query, tile) * scale - cost
                scores = hide(scores, rows, columns, there, keep_of, prefix, EVEN, MASKED, CAUSAL)
                most, mass = added_up(scores, most, mass)
        bottom = most + tl.log2(tl.where(mass > 0.0, mass, 1.0))

    mass, rest = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    for start in range(0, prefix, BN):  # keys without a position
        columns = start + inside
        there = columns < prefix
        tile = keys_at(keys_of, columns, k_token, d, width, there, False, UNIT)
        value = keys_at(values_of, columns, v_token, e, value_width, there, False, UNIT)
        scores = product(query, tile) * scale - bottom[:, None]
        p = tl.exp2(hide(scores, rows, columns, there, keep_of, prefix, False, MASKED, False))
        mass += tl.sum(p, 1)
        rest += tl.sum(p * (product(above, value) * gain[:, None] - less[:, None]), 1)

    powers = tl.where((f == 1)[None, :], c[:, None], tl.where((f == 2)[None, :], (c * c)[:, None], 0.0))
    powers = tl.where((f == 3)[None, :], line[:, None], tl.where((f == 4)[None, :], (line * line)[:, None], powers))
    powers = tl.where((f == 5)[None, :], (line * c)[:, None], tl.where((f == 0)[None, :], 1.0, powers)).to(summed)
    # Of P and of ds, times what patches add to local coordinates.
    P_one, X_one = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
    P_u, X_u = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
    P_uu, X_uu = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
    P_b, X_b = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
    P_bu, X_bu = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
    P_bb, X_bb = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
    P_a, X_a = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
    P_aa, X_aa = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
    P_au, X_au = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
    P_ab, X_ab = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
    for outer in range(count * (end_0 - begin_0)):
        plane, start = begin_0 + outer // count, (begin_2 + outer % count) * PC
        a, u = plane * 1.0 - t0, (start + half_c) * 1.0 - t2
        begin, stop = 0, 1
        if DIMENSIONS > 1:
            begin, stop = lines_of_strip(own + 8, start, a, t1, t2, room, live, m, n, PC, PL)
        if CAUSAL and plane == i0:
            stop = tl.minimum(stop, bottom_line)
        p_1, x_1 = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
        p_b, x_b = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
        p_bb, x_bb = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
        for group in range(begin, stop):
            there, columns = keys_of_patch(plane, group, start, inside, prefix, m, n, PC, PL)
            tile = keys_at(keys_of, columns, k_token, d, width, there, EVEN, UNIT)
            value = keys_at(values_of, columns, v_token, e, value_width, there, EVEN, UNIT)
            b = half_l - t1 + group * (PL * 1.0)
            cost = place_cost(c, line, u, b, a, l00 * a * a + bottom, l22, l21, l20, l11, l10, PL)
            scores = product(query, tile) * scale - cost
            p = tl.exp2(hide(scores, rows, columns, there, keep_of, prefix, EVEN, MASKED, CAUSAL))
            x = p * (product(above, value) * gain[:, None] - less[:, None])
            sums, others = product(p.to(summed), powers), product(x.to(summed), powers)
            p_1, x_1 = p_1 + sums, x_1 + others
            if DIMENSIONS > 1:
                sums, others = sums * b[:, None], others * b[:, None]
                p_b, x_b = p_b + sums, x_b + others
                p_bb, x_bb = p_bb + sums * b[:, None], x_bb + others * b[:, None]
        p_u, x_u = u[:, None] * p_1, u[:, None] * x_1
        P_one, X_one, P_u, X_u = P_one + p_1, X_one + x_1, P_u + p_u, X_u + x_u
        P_uu, X_uu = P_uu + u[:, None] * p_u, X_uu + u[:, None] * x_u
        if DIMENSIONS > 1:
            P_b, X_b, P_bb, X_bb = P_b + p_b, X_b + x_b, P_bb + p_bb, X_bb + x_bb
            P_bu, X_bu = P_bu + u[:, None] * p_b, X_bu + u[:, None] * x_b
        if DIMENSIONS == 3:
            P_a, X_a, P_aa, X_aa = P_a + a * p_1, X_a + a * x_1, P_aa + a * a * p_1, X_aa + a * a * x_1
            P_au, X_au, P_ab, X_ab = P_au + a * p_u, X_au + a * x_u, P_ab + a * p_b, X_ab + a * x_b
    mass += column(P_one, 0)
    rest += column(X_one, 0)
    counts = live & (mass > 0.0)
    over = tl.where(counts, 1.0 / tl.where(counts, mass, 1.0), 0.0)
    mean = rest * over
    over = tl.where(gain > 0.0, over / tl.where(gain > 0.0, gain, 1.0), 0.0)
    # A row's sum of ds, which should be none, is taken out by its weights; then rows are added up.
    to = partial + (whole.to(tl.int64) * tl.num_programs(0) + patch) * (8 * PARTS) + f
    tl.store(to, added(X_one, P_one, mean, over))
    tl.store(to + 8, added(X_u, P_u, mean, over))
    tl.store(to + 16, added(X_uu, P_uu, mean, over))
    if DIMENSIONS > 1:
        tl.store(to + 24, added(X_b, P_b, mean, over))
        tl.store(to + 32, added(X_bu, P_bu, mean, over))
        tl.store(to + 40, added(X_bb, P_bb, mean, over))
    if DIMENSIONS == 3:
        tl.store(to + 48, added(X_a, P_a, mean, over))
        tl.store(to + 56, added(X_aa, P_aa, mean, over))
        tl.store(to + 64, added(X_au, P_au, mean, over))
        tl.store(to + 72, added(X_ab, P_ab, mean, over))


@triton.jit
def number(sums, part, local):
    return tl.load(sums + part * 8 + local)


@triton.jit
def moments_of_heads(sums, first, second, PARTS: tl.constexpr, DIMENSIONS: tl.constexpr):
    """From sums ``(heads, PARTS, 8)`` over local coordinates 1, c, c², l, l², l c, times 1, u, u², b, b u, b², a, a², a u, a b:
    distances are u + c, b + l and a."""
    head = tl.program_id(0)
    own = sums + head * (8 * PARTS)
    # Where u, b and a stand among the grid's axes.
    at_u: tl.constexpr = DIMENSIONS - 1
    at_b: tl.constexpr = DIMENSIONS - 2
    to, both = first + head * DIMENSIONS, second + head * (DIMENSIONS * DIMENSIONS)
    tl.store(to + at_u, number(own, 0, 1) + number(own, 1, 0))
    tl.store(both + at_u * DIMENSIONS + at_u, number(own, 0, 2) + 2 * number(own, 1, 1) + number(own, 2, 0))
    if DIMENSIONS > 1:
        bu = number(own, 0, 5) + number(own, 1, 3) + number(own, 3, 1) + number(own, 4, 0)
        tl.store(to + at_b, number(own, 0, 3) + number(own, 3, 0))
        tl.store(both + at_b * DIMENSIONS + at_b, number(own, 0, 4) + 2 * number(own, 3, 3) + number(own, 5, 0))
        tl.store(both + at_b * DIMENSIONS + at_u, bu)
        tl.store(both + at_u * DIMENSIONS + at_b, bu)
    if DIMENSIONS == 3:
        au, ab = number(own, 6, 1) + number(own, 8, 0), number(own, 6, 3) + number(own, 9, 0)
        tl.store(to, number(own, 6, 0))
        tl.store(both, number(own, 7, 0))
        tl.store(both + at_b, ab)
        tl.store(both + at_b * DIMENSIONS, ab)
        tl.store(both + at_u, au)
        tl.store(both + at_u * DIMENSIONS, au)
