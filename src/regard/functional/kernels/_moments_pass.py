"""Gradients of center and sharpness in attention by content and position: moments of the scores' gradient, by products.

The moments are sums over pairs of query and key of the score's gradient, times the distance or a product of distances.

A grid has three axes here, ``(depth, m, n)``; missing axes have size 1, and S is zero there. Queries and keys are processed in
patches of a plane, so that few of the keys that are read are too far away. A distance is the sum of the key's coordinate in
its patch (c along the last axis, l along the one before), a number of whole patches (s and g) from the queries' target, and an
offset of the query (u and b). c and l are the same for all patches, so one product with columns of their powers sums a patch.
"""

import triton
import triton.language as tl

from regard.functional.kernels._placed_pass import LOG2_E, symmetric
from regard.functional.kernels._placed_reach import lines_of_strip, within

SPAN = tl.constexpr(8)  # strips of patches whose range of lines is computed at once
NO_ROOM = tl.constexpr(-1e37)
ROOM = tl.constexpr(4096.0)  # gradients are scaled to this; float16 holds their differences, at most twice as large


@triton.jit
def product(a, b):
    """a @ b; float32 as three TF32 products, which together have float32's accuracy."""
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def added_up(scores, most, mass):
    """One step of an online softmax: each row's largest score so far, and its sum of exponentials relative to it."""
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
    """(mask of the keys of a patch that lie on the grid, their token indices)."""
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
    """(δ − Δ)ᵀ S (δ − Δ) + a term per query, (queries, keys). Distances are c + u, line + b and a, with c and line local to
    the patch; ``own`` holds the term per query, including that of a² alone."""
    last = (l22 * c + l21 * line)[None, :] + (l22 * u + l21 * b + l20 * a)[:, None]
    if PL == 1:
        middle = l11 * b + l10 * a
        cost = last * last + (middle * middle + own)[:, None]
    else:
        middle = (l11 * line)[None, :] + (l11 * b + l10 * a)[:, None]
        cost = last * last + (middle * middle + own[:, None])
    return cost


@triton.jit
def lines_of_strips(
    shape, first, begin_0, begin_2, count, t0, t1, more, t2, rooms, m, n,
    DIMENSIONS: tl.constexpr, PC: tl.constexpr, PL: tl.constexpr,
):  # fmt: skip
    """For each of ``SPAN`` strips, the half-open range of groups of lines whose keys have non-negligible weight. The queries'
    targets are lines t1 … t1 + more and columns from t2 on; ``rooms`` holds the largest allowed cost of each column."""
    strip = first + tl.arange(0, SPAN)
    if DIMENSIONS == 1:
        begins, stops = tl.zeros([SPAN], tl.int32), tl.full([SPAN], 1, tl.int32)
    else:
        start, a = ((begin_2 + strip % count) * PC)[None, :], ((begin_0 + strip // count) * 1.0 - t0)[None, :]
        t2 += tl.arange(0, PC)[:, None]
        begins, stops = lines_of_strip(
            shape, start, a, t1, more, t2, rooms[:, None], rooms[:, None] > NO_ROOM, m, n, PC, PL
        )
    return begins, stops


@triton.jit
def one_of(numbers, at):
    return tl.sum(tl.where(tl.arange(0, SPAN) == at, numbers, 0), 0)


@triton.jit
def powers_of_place(c, line, COLUMNS: tl.constexpr):
    """The key's factor in each column of sums: 1, c, c², 1, 1, c; l, l², l c, 1, 1, l, c, l, 1; and 1, 1, c, 1, l, 1 for the
    third axis. ``patch_powers`` holds the patch's factor."""
    j = tl.arange(0, COLUMNS)
    by_c, by_l = (
        (j == 1) | (j == 5) | (j == 8) | (j == 12) | (j == 18),
        (j == 6) | (j == 8) | (j == 11) | (j == 13) | (j == 20),
    )
    c, line = c[:, None], line[:, None]
    found = tl.where(by_c[None, :], c, tl.where((j == 2)[None, :], c * c, 1.0))
    return found * tl.where(by_l[None, :], line, tl.where((j == 7)[None, :], line * line, 1.0))


@triton.jit
def patch_powers(s, a, COLUMNS: tl.constexpr):
    """The patch's factor in each column of sums: 1, 1, 1, s, s², s; 1, 1, 1, g, g², g, g, s, s g; a, a², a, a s, a, a g. Since
    g varies along a strip, the results are the coefficients of 1, g and g²."""
    j = tl.arange(0, COLUMNS)
    by_g, by_a = (
        (j == 9) | (j == 11) | (j == 12) | (j == 14) | (j == 21),
        (j == 16) | (j == 18) | (j == 19) | (j == 20) | (j == 21),
    )
    by_s = (j == 3) | (j == 5) | (j == 13) | (j == 14) | (j == 19)
    rest = tl.where(by_s, s, tl.where(j == 4, s * s, 1.0)) * tl.where(by_a, a, tl.where(j == 17, a * a, 1.0))
    squared = tl.where(j == 10, 1.0, 0.0)
    return tl.where(by_g | (j == 10), 0.0, rest), tl.where(by_g, rest, 0.0), squared


@triton.jit
def first_sum(sums, COLUMNS: tl.constexpr):
    return tl.sum(tl.where((tl.arange(0, COLUMNS) == 0)[None, :], sums, 0.0), 1)


@triton.jit
def place_moments(
    q, k, v, grad, out, lse, center, matrix, table, keep, longest, largest, partial,
    tokens, prefix, heads, width, value_width, depth, m, n, scale,
    q_item, q_head, q_token, k_item, k_head, k_token, v_item, v_head, v_token, g_item, g_head, g_token,
    o_item, o_head, o_token,
    DIMENSIONS: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, KNOWN: tl.constexpr, ROWS: tl.constexpr,
    EVEN: tl.constexpr, UNIT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PC: tl.constexpr, BD: tl.constexpr,
    BV: tl.constexpr, ENTRIES: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr, FORGOTTEN: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Σ ds (δ − Δ) and Σ ds (δ − Δ)(δ − Δ)ᵀ over a patch of queries of one head, with ds the gradient of the scores.

    With weights P, dP = grad · vᵀ and D = grad · out, ds = P (dP − D). Scores and ds are computed in float32. For the products
    that sum them, P and ds are converted to float16, scaled by known bounds; with ``WIDE`` (float32 inputs) they are not.
    D is inexact because ``out`` is rounded: each row's ds should sum to zero, so its actual sum is subtracted.

    Args:
        lse: the logsumexp of each query, if ``KNOWN``; with ``ROWS`` it includes the query's own term of the position score.
        scale: β / log 2.
        table: the results of ``costs_of_heads`` for each head.
        longest, largest: the squared norms of the longest key and of the longest value, for each item and head.
        partial: for each program, ``COLUMNS`` sums, times the first ``PARTS`` of 1, u, u², b, b u, b² of each query.
        UNIT: strides are in units of this many numbers; with 8 the compiler knows that rows allow 16-byte loads.
        BM, BN, PC: queries and keys of a patch, and its columns; BM / PC and BN / PC are its lines.
        FORGOTTEN: keys are skipped if their weight would be below 2^−FORGOTTEN even with the content of the longest key,
            parallel to the query.
    """
    summed: tl.constexpr = tl.float32 if WIDE else tl.float16
    PL: tl.constexpr = BN // PC
    lines: tl.constexpr = BM // PC
    whole, patch = tl.program_id(1), tl.program_id(0)
    item, head = (whole // heads).to(tl.int64), (whole % heads).to(tl.int64)
    inside, d, e = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BV)
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
    strips = count * (end_0 - begin_0)
    # For each column, the largest room of its queries, which serves for all of them.
    rooms = tl.max(tl.reshape(tl.where(live, room, NO_ROOM), [lines, PC]), 0)
    first_line, more = top + z1.to(tl.float32), tl.minimum(lines, m - top) - 1.0
    first_column = patch % across * PC + z2.to(tl.float32)
    bottom_line = (tl.minimum(top + lines, m) + PL - 1) // PL  # end of the queries' lines, in groups of lines of keys
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
        for chunk in range(0, strips, SPAN):
            begins, stops = lines_of_strips(
                own + 8, chunk, begin_0, begin_2, count, t0, first_line, more, first_column, rooms, m, n, DIMENSIONS, PC, PL
            )  # fmt: skip
            for outer in range(chunk, tl.minimum(chunk + SPAN, strips)):
                plane, start = begin_0 + outer // count, (begin_2 + outer % count) * PC
                a, u = plane * 1.0 - t0, (start + half_c) * 1.0 - t2
                begin, stop = one_of(begins, outer - chunk), one_of(stops, outer - chunk)
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

    powers = powers_of_place(c, line, COLUMNS).to(summed)
    # s and g count whole patches from the target of the first query.
    own_strip, own_group = tl.floor(first_column / PC), tl.floor(first_line / PL)
    P, X = tl.zeros([BM, COLUMNS], tl.float32), tl.zeros([BM, COLUMNS], tl.float32)
    for chunk in range(0, strips, SPAN):
        begins, stops = lines_of_strips(
            own + 8, chunk, begin_0, begin_2, count, t0, first_line, more, first_column, rooms, m, n, DIMENSIONS, PC, PL
        )
        for outer in range(chunk, tl.minimum(chunk + SPAN, strips)):
            plane, start = begin_0 + outer // count, (begin_2 + outer % count) * PC
            a, u = plane * 1.0 - t0, (start + half_c) * 1.0 - t2
            begin, stop = one_of(begins, outer - chunk), one_of(stops, outer - chunk)
            if CAUSAL and plane == i0:
                stop = tl.minimum(stop, bottom_line)
            one, linear, squared = patch_powers(begin_2 + outer % count - own_strip, a, COLUMNS)
            for group in range(begin, stop):
                there, columns = keys_of_patch(plane, group, start, inside, prefix, m, n, PC, PL)
                tile = keys_at(keys_of, columns, k_token, d, width, there, EVEN, UNIT)
                value = keys_at(values_of, columns, v_token, e, value_width, there, EVEN, UNIT)
                b = half_l - t1 + group * (PL * 1.0)
                cost = place_cost(c, line, u, b, a, l00 * a * a + bottom, l22, l21, l20, l11, l10, PL)
                scores = product(query, tile) * scale - cost
                p = tl.exp2(hide(scores, rows, columns, there, keep_of, prefix, EVEN, MASKED, CAUSAL))
                x = p * (product(above, value) * gain[:, None] - less[:, None])
                g = group - own_group
                times = (one + g * (linear + g * squared))[None, :]
                P += product(p.to(summed), powers) * times
                X += product(x.to(summed), powers) * times
    mass += first_sum(P, COLUMNS)
    rest += first_sum(X, COLUMNS)
    counts = live & (mass > 0.0)
    over = tl.where(counts, 1.0 / tl.where(counts, mass, 1.0), 0.0)
    mean = rest * over
    over = tl.where(gain > 0.0, over / tl.where(gain > 0.0, gain, 1.0), 0.0)
    # Each row of ds should sum to zero: subtract its actual sum, distributed by the weights; then add the rows.
    X = (X - mean[:, None] * P) * over[:, None]
    u, b = (own_strip * PC + half_c - t2)[:, None], (own_group * PL + half_l - t1)[:, None]
    to = partial + (whole.to(tl.int64) * tl.num_programs(0) + patch) * (COLUMNS * PARTS) + tl.arange(0, COLUMNS)
    tl.store(to, tl.sum(X, 0))
    tl.store(to + COLUMNS, tl.sum(X * u, 0))
    tl.store(to + 2 * COLUMNS, tl.sum(X * (u * u), 0))
    if DIMENSIONS > 1:
        tl.store(to + 3 * COLUMNS, tl.sum(X * b, 0))
        tl.store(to + 4 * COLUMNS, tl.sum(X * (b * u), 0))
        tl.store(to + 5 * COLUMNS, tl.sum(X * (b * b), 0))


@triton.jit
def moments_of_heads(
    sums, first, second, PARTS: tl.constexpr, COLUMNS: tl.constexpr, DIMENSIONS: tl.constexpr, PC: tl.constexpr,
    PL: tl.constexpr,
):  # fmt: skip
    """The moments of each head from its sums ``(heads, PARTS, COLUMNS)``; distances are c + PC s + u, l + PL g + b and a."""
    head = tl.program_id(0)
    one = sums + head * (PARTS * COLUMNS)
    by_u, by_uu = one + COLUMNS, one + 2 * COLUMNS
    # The indices of the axes of c and l; that of a is 0.
    at_u: tl.constexpr = DIMENSIONS - 1
    at_b: tl.constexpr = DIMENSIONS - 2
    to, both = first + head * DIMENSIONS, second + head * (DIMENSIONS * DIMENSIONS)
    tl.store(to + at_u, place(one, 1, 3, PC) + tl.load(by_u))
    squares = tl.load(one + 2) + 2 * PC * tl.load(one + 5) + PC * PC * tl.load(one + 4)
    tl.store(both + at_u * DIMENSIONS + at_u, squares + 2 * place(by_u, 1, 3, PC) + tl.load(by_uu))
    if DIMENSIONS > 1:
        by_b, by_bu, by_bb = one + 3 * COLUMNS, one + 4 * COLUMNS, one + 5 * COLUMNS
        tl.store(to + at_b, place(one, 6, 9, PL) + tl.load(by_b))
        squares = tl.load(one + 7) + 2 * PL * tl.load(one + 11) + PL * PL * tl.load(one + 10)
        tl.store(both + at_b * DIMENSIONS + at_b, squares + 2 * place(by_b, 6, 9, PL) + tl.load(by_bb))
        bu = place(one, 8, 12, PL) + PC * place(one, 13, 14, PL)
        bu += place(by_b, 1, 3, PC) + place(by_u, 6, 9, PL) + tl.load(by_bu)
        tl.store(both + at_b * DIMENSIONS + at_u, bu)
        tl.store(both + at_u * DIMENSIONS + at_b, bu)
    if DIMENSIONS == 3:
        au = place(one, 18, 19, PC) + tl.load(one + COLUMNS + 16)
        ab = place(one, 20, 21, PL) + tl.load(one + 3 * COLUMNS + 16)
        tl.store(to, tl.load(one + 16))
        tl.store(both, tl.load(one + 17))
        tl.store(both + at_b, ab)
        tl.store(both + at_b * DIMENSIONS, ab)
        tl.store(both + at_u, au)
        tl.store(both + at_u * DIMENSIONS, au)


@triton.jit
def place(sums, local, patches, SIZE: tl.constexpr):
    """The sum for a coordinate: its local part plus SIZE times its number of whole patches."""
    return tl.load(sums + local) + SIZE * tl.load(sums + patches)
