"""Gradients of center and sharpness where content and place meet: moments of the scores' gradient, by products.

A grid has three axes here, ``(depth, m, n)``; those that are missing have size 1, and S has zeros there. Queries and keys are
taken by patches of a plane, so that few keys are read of which most are too far away; all patches of keys look the same, and
one product with 1, c, c², l, l², l c, their local coordinates, sums up a patch.
"""

import triton
import triton.language as tl

from regard.functional.kernels._placed_pass import LOG2_E, symmetric
from regard.functional.kernels._placed_reach import ellipse, least_cost, lines_of_strip, within

# Keys are left out whose weight would be below 2⁻²⁰ even if their content were that of the longest key, along the query.
FORGOTTEN = tl.constexpr(20.0)
ROOM = tl.constexpr(4096.0)  # float16 holds what is at most twice as large


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
def factors(r00, r01, r02, r11, r12, r22):
    """S = Lᵀ L, of which each row makes one square of a position's cost. In float64: S may be singular."""
    l22 = tl.sqrt(r22 + 1e-30)
    l21, l20 = r12 / l22, r02 / l22
    l11 = tl.sqrt(tl.maximum(r11 - l21 * l21, 1e-12 * r11 + 1e-30))
    l10 = (r01 - l21 * l20) / l11
    l00 = tl.maximum(r00 - l20 * l20 - l10 * l10, 0.0)
    return l22, l21, l20, l11, l10, l00


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
def beside(state, which, x):
    f = tl.arange(0, 16)
    return state + tl.where((f == which)[None, :], x[:, None], 0.0)


@triton.jit
def folded(one, u, uu, b, bu, bb, a, aa, au, ab, BM: tl.constexpr, DIMENSIONS: tl.constexpr):
    """A column each: sums over patches of 1, distances and their products, from sums over local coordinates with what
    patches add to them."""
    state = tl.zeros([BM, 16], tl.float32)
    state = beside(state, 0, column(one, 0))
    state = beside(state, 1, column(one, 1) + column(u, 0))
    state = beside(state, 2, column(one, 2) + 2.0 * column(u, 1) + column(uu, 0))
    if DIMENSIONS > 1:
        state = beside(state, 3, column(one, 3) + column(b, 0))
        state = beside(state, 4, column(one, 4) + 2.0 * column(b, 3) + column(bb, 0))
        state = beside(state, 5, column(one, 5) + column(u, 3) + column(b, 1) + column(bu, 0))
    if DIMENSIONS == 3:
        state = beside(state, 6, column(a, 0))
        state = beside(state, 7, column(aa, 0))
        state = beside(state, 8, column(a, 1) + column(au, 0))
        state = beside(state, 9, column(a, 3) + column(ab, 0))
    return state


@triton.jit
def place_moments(
    q, k, v, grad, out, lse, center, matrix, keep, longest, largest, partial,
    tokens, prefix, heads, width, value_width, depth, m, n, scale,
    q_item, q_head, q_token, k_item, k_head, k_token, v_item, v_head, v_token, g_item, g_head, g_token,
    o_item, o_head, o_token,
    DIMENSIONS: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, KNOWN: tl.constexpr, ROWS: tl.constexpr,
    EVEN: tl.constexpr, UNIT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PC: tl.constexpr, BD: tl.constexpr,
    BV: tl.constexpr,
):  # fmt: skip
    """Σ ds (δ − Δ) and Σ ds (δ − Δ)(δ − Δ)ᵀ over a patch of queries of one head, ds the gradient of the scores.

    With weights P, dP = grad · vᵀ and D = grad · out, ds = P (dP − D). Scores and ds are made in float32; float16 holds P
    and ds, whose sizes are known, on their way into sums. What D is off by, for ``out`` is rounded, is found as a row's sum
    of ds, and taken out again.

    Args:
        lse: of each query, the logarithm of its sum of exponentials, if ``KNOWN``; with ``ROWS`` a query's own term is in it.
        scale: β / log 2.
        longest, largest: of each item and head, the norm of the longest key and value.
        UNIT: strides are in so many numbers; with 8 the compiler knows that rows can be read 16 bytes at a time.
        BM, BN, PC: queries and keys of a patch, and how many columns it has; the rest are lines.
    """
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
    long = tl.sqrt(tl.sum(wide * wide, 1)) * tl.load(largest + whole)
    gain = tl.where(long > 0.0, ROOM / tl.where(long > 0.0, long, 1.0), 0.0)
    less = tl.sum(wide * given, 1) * gain
    r00, r01, r02, r11, r12, r22 = symmetric(matrix, head)
    # A score is an exponent of 2.
    r00, r01, r02, r11, r12, r22 = r00 * LOG2_E, r01 * LOG2_E, r02 * LOG2_E, r11 * LOG2_E, r12 * LOG2_E, r22 * LOG2_E
    h22, h21, h20, h11, h10, h00 = factors(r00, r01, r02, r11, r12, r22)
    l22, l21, l20 = h22.to(tl.float32), h21.to(tl.float32), h20.to(tl.float32)
    l11, l10, l00 = h11.to(tl.float32), h10.to(tl.float32), h00.to(tl.float32)
    z0, z1, z2 = tl.load(center + head * 3), tl.load(center + head * 3 + 1), tl.load(center + head * 3 + 2)
    t0, t1, t2 = i0.to(tl.float32) + z0.to(tl.float32), i1.to(tl.float32) + z1.to(tl.float32), i2 + z2.to(tl.float32)
    keys_of, values_of = k + (item * k_item + head * k_head) * UNIT, v + (item * v_item + head * v_head) * UNIT
    keep_of = keep + item * (prefix + tokens)
    queries = query.to(tl.float32)
    content = tl.sqrt(tl.sum(queries * queries, 1)) * tl.load(longest + whole) * scale
    bottom = tl.zeros([BM], tl.float32)
    if KNOWN:
        bottom64 = (
            tl.load(lse + whole.to(tl.int64) * (prefix + tokens) + prefix + rows, live, 0.0).to(tl.float64) * LOG2_E
        )
        if not ROWS:
            x0 = (i0 - depth // 2).to(tl.float64) + z0
            x1 = (i1 - m // 2).to(tl.float64) + z1
            x2 = (i2 - n // 2).to(tl.float64) + z2
            bottom64 -= r00 * x0 * x0 + r11 * x1 * x1 + r22 * x2 * x2
            bottom64 -= 2.0 * (r01 * x0 * x1 + r02 * x0 * x2 + r12 * x1 * x2)
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
    # An axis that is missing must not look as if it cost nothing.
    f00, f11 = r00, r11
    if DIMENSIONS < 3:
        f00 += 1.0
    if DIMENSIONS < 2:
        f11 += 1.0
    begin_0, end_0 = within(t0, room, least_cost(f00, f11, r22, r01, r02, r12), depth * 1.0, live)
    begin_1, end_1 = within(t1, room, least_cost(f11, f00, r22, r01, r12, r02), m * 1.0, live)
    begin_2, end_2 = within(t2, room, least_cost(r22, f00, f11, r02, r12, r01), n * 1.0, live)
    at_b, at_u, least_a, least_b, least_u, b_by_u, u_by_b, own_b = ellipse(r00, r01, r02, r11, r12, r22)
    if CAUSAL:
        end_0 = tl.minimum(end_0, i0 + 1)
    begin_1, end_1 = begin_1 // PL, (end_1 + PL - 1) // PL
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
            scores = hide(tl.dot(query, tile) * scale, rows, columns, there, keep_of, prefix, False, MASKED, False)
            most, mass = added_up(scores, most, mass)
        for outer in range(count * (end_0 - begin_0)):
            plane, start = begin_0 + outer // count, (begin_2 + outer % count) * PC
            a, u = plane.to(tl.float32) - t0, (start + half_c).to(tl.float32) - t2
            begin, stop = begin_1, end_1
            if DIMENSIONS > 1:
                begin, stop = lines_of_strip(
                    start,
                    a,
                    t1,
                    t2,
                    room,
                    live,
                    at_b,
                    at_u,
                    least_a,
                    least_b,
                    least_u,
                    b_by_u,
                    u_by_b,
                    own_b,
                    m,
                    n,
                    PC,
                    PL,
                )
            if CAUSAL and plane == i0:
                stop = tl.minimum(stop, bottom_line)
            for group in range(begin, stop):
                there, columns = keys_of_patch(plane, group, start, inside, prefix, m, n, PC, PL)
                tile = keys_at(keys_of, columns, k_token, d, width, there, EVEN, UNIT)
                b = (begin_1 * PL + half_l).to(tl.float32) - t1 + (group - begin_1).to(tl.float32) * PL
                cost = place_cost(c, line, u, b, a, l00 * a * a + bottom, l22, l21, l20, l11, l10, PL)
                scores = tl.dot(query, tile) * scale - cost
                scores = hide(scores, rows, columns, there, keep_of, prefix, EVEN, MASKED, CAUSAL)
                most, mass = added_up(scores, most, mass)
        bottom = most + tl.log2(tl.where(mass > 0.0, mass, 1.0))

    mass, rest = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    for start in range(0, prefix, BN):  # keys without a position
        columns = start + inside
        there = columns < prefix
        tile = keys_at(keys_of, columns, k_token, d, width, there, False, UNIT)
        value = keys_at(values_of, columns, v_token, e, value_width, there, False, UNIT)
        scores = tl.dot(query, tile) * scale - bottom[:, None]
        p = tl.exp2(hide(scores, rows, columns, there, keep_of, prefix, False, MASKED, False))
        mass += tl.sum(p, 1)
        rest += tl.sum(p * (tl.dot(above, value) * gain[:, None] - less[:, None]), 1)

    powers = tl.where((f == 1)[None, :], c[:, None], tl.where((f == 2)[None, :], (c * c)[:, None], 0.0))
    powers = tl.where((f == 3)[None, :], line[:, None], tl.where((f == 4)[None, :], (line * line)[:, None], powers))
    powers = tl.where((f == 5)[None, :], (line * c)[:, None], tl.where((f == 0)[None, :], 1.0, powers)).to(tl.float16)
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
        a, u = plane.to(tl.float32) - t0, (start + half_c).to(tl.float32) - t2
        begin, stop = begin_1, end_1
        if DIMENSIONS > 1:
            begin, stop = lines_of_strip(
                start, a, t1, t2, room, live, at_b, at_u, least_a, least_b, least_u, b_by_u, u_by_b, own_b, m, n, PC, PL
            )
        if CAUSAL and plane == i0:
            stop = tl.minimum(stop, bottom_line)
        p_1, x_1 = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
        p_b, x_b = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
        p_bb, x_bb = tl.zeros([BM, 8], tl.float32), tl.zeros([BM, 8], tl.float32)
        for group in range(begin, stop):
            there, columns = keys_of_patch(plane, group, start, inside, prefix, m, n, PC, PL)
            tile = keys_at(keys_of, columns, k_token, d, width, there, EVEN, UNIT)
            value = keys_at(values_of, columns, v_token, e, value_width, there, EVEN, UNIT)
            b = (begin_1 * PL + half_l).to(tl.float32) - t1 + (group - begin_1).to(tl.float32) * PL
            cost = place_cost(c, line, u, b, a, l00 * a * a + bottom, l22, l21, l20, l11, l10, PL)
            scores = tl.dot(query, tile) * scale - cost
            p = tl.exp2(hide(scores, rows, columns, there, keep_of, prefix, EVEN, MASKED, CAUSAL))
            x = p * (tl.dot(above, value) * gain[:, None] - less[:, None])
            sums, others = tl.dot(p.to(tl.float16), powers), tl.dot(x.to(tl.float16), powers)
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
    g = tl.arange(0, 16)
    of_p = folded(P_one, P_u, P_uu, P_b, P_bu, P_bb, P_a, P_aa, P_au, P_ab, BM, DIMENSIONS)
    of_x = folded(X_one, X_u, X_uu, X_b, X_bu, X_bb, X_a, X_aa, X_au, X_ab, BM, DIMENSIONS)
    mass += tl.sum(tl.where((g == 0)[None, :], of_p, 0.0), 1)
    rest += tl.sum(tl.where((g == 0)[None, :], of_x, 0.0), 1)
    counts = live & (mass > 0.0)
    over = tl.where(counts, 1.0 / tl.where(counts, mass, 1.0), 0.0)
    mean = rest * over
    over = tl.where(gain > 0.0, over / tl.where(gain > 0.0, gain, 1.0), 0.0)
    found = tl.sum((of_x - mean[:, None] * of_p) * over[:, None], 0)
    tl.store(partial + (whole.to(tl.int64) * tl.num_programs(0) + patch) * 16 + g, found)
