"""Content with place: the columns that carry a position, and the gradients of center and sharpness.

A grid has three axes here: ``(1, 1, n)``, ``(m, 1, n)`` or ``(depth, m, n)``, and a matrix S of 3 × 3 with zeros where an axis is
missing. A line is what the last axis runs through: along it only one coordinate changes.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
FORGOTTEN = tl.constexpr(40.0)  # weights below 2⁻⁴⁰ of their row's largest possible one need not be looked at


@triton.jit
def symmetric(matrix, head):
    """The six numbers of a head's S, in float64."""
    own = matrix + head * 9
    return (
        tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 4), tl.load(own + 5), tl.load(own + 8)
    )  # fmt: skip


@triton.jit
def with_pieces(tile, e, first, x, COUNT: tl.constexpr):
    """Columns ``first`` and following hold numbers of the tile's dtype that add up to x."""
    rest = x
    for piece in tl.static_range(COUNT):
        found = rest.to(tl.float32).to(tile.dtype)
        tile = tl.where(e[None, :] == first + piece, found[:, None], tile)
        rest -= found.to(tl.float32).to(tl.float64)
    return tile


@triton.jit
def with_copies(tile, e, first, x, COUNT: tl.constexpr):
    return tl.where(
        (e >= first)[None, :] & (e < first + COUNT)[None, :], x[:, None].to(tl.float32).to(tile.dtype), tile
    )


@triton.jit
def placed_columns(
    x, out, center, matrix, keep, far,
    tokens, prefix, heads, width, total, m, n, middle_0, middle_1, middle_2, over, scale, x_item, x_head, x_token,
    ROLE: tl.constexpr, AXES: tl.constexpr, COUNT: tl.constexpr, PREFIX: tl.constexpr, MASKED: tl.constexpr,
    BT: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Queries, keys or values (``ROLE``) with what stands beside their content, written once.

    Args:
        over: 1 / (β · scale), by which coefficients are multiplied.
        far: of each head, how far below all others a hidden key's score is.
    """
    rows, whole = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1)
    item, head = (whole // heads).to(tl.int64), whole % heads
    live, d, e = rows < tokens, tl.arange(0, BD), tl.arange(0, BE)
    to = out + (whole.to(tl.int64) * tokens + rows)[:, None] * total
    content = tl.load(
        x + item * x_item + head.to(tl.int64) * x_head + rows[:, None].to(tl.int64) * x_token + d[None, :],
        live[:, None] & (d < width)[None, :], 0.0,
    )  # fmt: skip
    tl.store(to + d[None, :], content, live[:, None] & (d < width)[None, :])
    tile = tl.zeros([BT, BE], out.dtype.element_ty)
    if ROLE != 2:
        place = rows - prefix
        is_placed = place >= 0
        p0 = (place // (m * n)).to(tl.float64) - middle_0
        p1 = (place // n % m).to(tl.float64) - middle_1
        p2 = (place % n).to(tl.float64) - middle_2
        s00, s01, s02, s11, s12, s22 = symmetric(matrix, head)
        ones = tl.where(is_placed, 1.0, 0.0) * scale
        end: tl.constexpr = AXES * COUNT
        if ROLE == 0:
            p0 += tl.load(center + head * 3)
            p1 += tl.load(center + head * 3 + 1)
            p2 += tl.load(center + head * 3 + 2)
        q0, q1, q2 = s00 * p0 + s01 * p1 + s02 * p2, s01 * p0 + s11 * p1 + s12 * p2, s02 * p0 + s12 * p1 + s22 * p2
        own = tl.where(is_placed, (p0 * q0 + p1 * q1 + p2 * q2) * over, 0.0)
        if ROLE == 0:
            twice = tl.where(is_placed, 2.0 * over, 0.0)
            if AXES > 1:
                tile = with_pieces(tile, e, 0, q0 * twice, COUNT)
            if AXES == 3:
                tile = with_pieces(tile, e, COUNT, q1 * twice, COUNT)
            tile = with_pieces(tile, e, end - COUNT, q2 * twice, COUNT)
            tile = with_copies(tile, e, end, ones, COUNT)
            if PREFIX:
                tile = with_pieces(tile, e, end + COUNT, own, COUNT)
        else:
            if AXES > 1:
                tile = with_copies(tile, e, 0, p0.to(tl.float32) * ones, COUNT)
            if AXES == 3:
                tile = with_copies(tile, e, COUNT, p1.to(tl.float32) * ones, COUNT)
            tile = with_copies(tile, e, end - COUNT, p2.to(tl.float32) * ones, COUNT)
            tile = with_pieces(tile, e, end, -own, COUNT)
            if PREFIX:
                tile = with_copies(tile, e, end + COUNT, -ones, COUNT)
        if MASKED:
            last: tl.constexpr = end + COUNT + COUNT * PREFIX
            if ROLE == 0:
                tile = with_copies(tile, e, last, tl.full([BT], 1.0, tl.float32), 1)
            else:
                hidden = tl.load(keep + item * tokens + rows, live, 1) == 0
                tile = with_copies(tile, e, last, tl.where(hidden, -tl.load(far + head), 0.0), 1)
    tl.store(to + width + e[None, :], tile, live[:, None] & (width + e < total)[None, :])


@triton.jit
def exponents(scores, most):
    """The rows' largest scores so far, weights relative to them, and what all before is multiplied by."""
    now = tl.maximum(most, tl.max(scores, 1))
    safe = tl.where(now == float("-inf"), 0.0, now)
    return now, tl.exp2(scores - safe[:, None]), tl.exp2(most - safe)


@triton.jit
def first_and_last(query, longest, target, nearest, least, size, live, scale):
    """Between which coordinates of the first axis, whose targets are given, weights count: elsewhere the position alone brings
    them below what content can make up for. A row's largest score is at least that at the nearest place, where the position
    costs ``nearest``; ``least`` is what one step away along the axis costs at least."""
    long = tl.sqrt(tl.sum(query.to(tl.float32) * query.to(tl.float32), 1)) * longest
    reach = tl.sqrt((2.0 * scale * long + nearest + FORGOTTEN) / tl.maximum(least, 1e-30)) + 1.0
    reach = tl.minimum(reach, 1e9)
    low = tl.min(tl.where(live, target - reach, 1e9), 0)
    high = tl.max(tl.where(live, target + reach, -1e9), 0)
    begin = tl.minimum(tl.maximum(low, 0.0), size - 1.0).to(tl.int32)
    return begin, tl.minimum(tl.maximum(high, 0.0), size - 1.0).to(tl.int32) + 1


@triton.jit
def place_moments(
    q, k, v, grad, center, matrix, keep, longest, partial,
    tokens, prefix, heads, width, value_width, depth, m, n, tiles, scale,
    q_item, q_head, q_token, k_item, k_head, k_token, v_item, v_head, v_token, g_item, g_head, g_token,
    AXES: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, CUT: tl.constexpr, EVEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Σ ds (δ − Δ) and Σ ds (δ − Δ)(δ − Δ)ᵀ over some queries of one head, ds the gradient of the scores.

    With weights P and dP = grad · vᵀ, ds = P (dP − Σ P dP): the moments of P dP less those of P. All are taken of distances
    between query and key, in float32; absolute coordinates would cancel, and a sum over keys that is known only to the
    dtype's precision would not be zero.

    Args:
        scale: β / log 2.
        longest: of each item and head, the norm of the longest key; read where ``CUT``, with neither mask nor causality.
        tiles: of BN keys, in one line; ``EVEN`` if they fill it.
    """
    first, whole = tl.program_id(0) * BM, tl.program_id(1)
    item, head = (whole // heads).to(tl.int64), (whole % heads).to(tl.int64)
    rows, inside, d, e = first + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BV)
    live = rows < tokens
    query = tl.load(
        q + item * q_item + head * q_head + (prefix + rows)[:, None].to(tl.int64) * q_token + d[None, :],
        live[:, None] & (d < width)[None, :], 0.0,
    )  # fmt: skip
    above = tl.load(
        grad + item * g_item + head * g_head + (prefix + rows)[:, None].to(tl.int64) * g_token + e[None, :],
        live[:, None] & (e < value_width)[None, :], 0.0,
    )  # fmt: skip
    r00, r01, r02, r11, r12, r22 = symmetric(matrix, head)
    # A score is an exponent of 2.
    s00, s01, s02 = (r00 * LOG2_E).to(tl.float32), (r01 * LOG2_E).to(tl.float32), (r02 * LOG2_E).to(tl.float32)
    s11, s12, s22 = (r11 * LOG2_E).to(tl.float32), (r12 * LOG2_E).to(tl.float32), (r22 * LOG2_E).to(tl.float32)
    t0 = (rows // (m * n)).to(tl.float32) + tl.load(center + head * 3).to(tl.float32)
    t1 = (rows // n % m).to(tl.float32) + tl.load(center + head * 3 + 1).to(tl.float32)
    t2 = (rows % n).to(tl.float32) + tl.load(center + head * 3 + 2).to(tl.float32)
    keys_of, values_of = k + item * k_item + head * k_head, v + item * v_item + head * v_head

    most = tl.full([BM], float("-inf"), tl.float32)
    mass, product = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    for start in range(0, prefix, BN):  # keys without a position
        columns = start + inside
        seen = columns < prefix
        if MASKED:
            seen = seen & (tl.load(keep + item * (prefix + tokens) + columns, seen, 0) != 0)
        tile = tl.load(
            keys_of + columns[None, :].to(tl.int64) * k_token + d[:, None], seen[None, :] & (d < width)[:, None], 0.0
        )
        value = tl.load(
            values_of + columns[None, :].to(tl.int64) * v_token + e[:, None],
            seen[None, :] & (e < value_width)[:, None], 0.0,
        )  # fmt: skip
        scores = tl.where(seen[None, :], tl.dot(query, tile) * scale, float("-inf"))
        most, p, less = exponents(scores, most)
        mass = mass * less + tl.sum(p, 1)
        product = product * less + tl.sum(p * tl.dot(above, value), 1)

    begin, end = 0, depth
    if AXES == 1:
        end = n
    if CUT:
        c0 = tl.minimum(tl.maximum(tl.floor(t0 + 0.5), 0.0), depth - 1.0) - t0
        c1 = tl.minimum(tl.maximum(tl.floor(t1 + 0.5), 0.0), m - 1.0) - t1
        c2 = tl.minimum(tl.maximum(tl.floor(t2 + 0.5), 0.0), n - 1.0) - t2
        nearest = s00 * c0 * c0 + s11 * c1 * c1 + s22 * c2 * c2 + 2.0 * (s01 * c0 * c1 + s02 * c0 * c2 + s12 * c1 * c2)
        # The least that a step along the first axis costs, whatever the others do; a little less for what is rounded.
        least = s22
        aim = t2
        if AXES == 2:
            least = s00 - s02 * s02 / tl.maximum(s22, 1e-30) - 1e-5 * s00
            aim = t0
        if AXES == 3:
            area = tl.maximum(s11 * s22 - s12 * s12, 1e-30)
            least = s00 - (s01 * s01 * s22 - 2.0 * s01 * s02 * s12 + s02 * s02 * s11) / area - 1e-5 * s00
            aim = t0
        begin, end = first_and_last(query, tl.load(longest + whole), aim, nearest, least, end * 1.0, live, scale)
    if AXES == 1:
        begin, end = begin // BN, (end + BN - 1) // BN
    else:
        begin, end = begin * m * tiles, end * m * tiles
    if CAUSAL:
        end = tl.minimum(end, (tl.minimum(first + BM, tokens) - 1) // n * tiles + tiles)
    # Of P and of P dP: sums of the first coordinate's distance, of the last one's, and of their products.
    w0, w2, w00 = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    w02, w22, w1 = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    w01, w11, w12 = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    g0, g2, g00 = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    g02, g22, g1 = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    g01, g11, g12 = tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
    for t in range(begin, end):
        line, column = t // tiles, t % tiles * BN
        columns = prefix + line * n + column + inside
        if EVEN:
            tile = tl.load(keys_of + columns[None, :].to(tl.int64) * k_token + d[:, None], (d < width)[:, None], 0.0)
            value = tl.load(
                values_of + columns[None, :].to(tl.int64) * v_token + e[:, None], (e < value_width)[:, None], 0.0
            )
        else:
            there = column + inside < n
            tile = tl.load(
                keys_of + columns[None, :].to(tl.int64) * k_token + d[:, None],
                there[None, :] & (d < width)[:, None], 0.0,
            )  # fmt: skip
            value = tl.load(
                values_of + columns[None, :].to(tl.int64) * v_token + e[:, None],
                there[None, :] & (e < value_width)[:, None], 0.0,
            )  # fmt: skip
        # Along a line the score is − u (S₂₂ u + 2 (S₀₂ a + S₁₂ b)) and something of the row.
        a, u = (line // m).to(tl.float32) - t0, (column + inside).to(tl.float32)[None, :] - t2[:, None]
        slope, offset = 2.0 * s02 * a, s00 * a * a
        if AXES == 3:
            b = (line % m).to(tl.float32) - t1
            slope += 2.0 * s12 * b
            offset += b * (2.0 * s01 * a + s11 * b)
        scores = tl.dot(query, tile) * scale - offset[:, None] - u * (s22 * u + slope[:, None])
        if not EVEN:
            scores = tl.where((column + inside < n)[None, :], scores, float("-inf"))
        if MASKED:
            seen = tl.load(keep + item * (prefix + tokens) + columns, column + inside < n, 0) != 0
            scores = tl.where(seen[None, :], scores, float("-inf"))
        if CAUSAL:
            scores = tl.where((columns - prefix)[None, :] <= rows[:, None], scores, float("-inf"))
        most, p, less = exponents(scores, most)
        x = p * tl.dot(above, value)
        p0, x0 = tl.sum(p, 1), tl.sum(x, 1)
        p, x = p * u, x * u
        p1, x1 = tl.sum(p, 1), tl.sum(x, 1)
        p2, x2 = tl.sum(p * u, 1), tl.sum(x * u, 1)
        mass, product = mass * less + p0, product * less + x0
        w2, g2 = w2 * less + p1, g2 * less + x1
        w22, g22 = w22 * less + p2, g22 * less + x2
        if AXES > 1:
            w0, g0 = w0 * less + a * p0, g0 * less + a * x0
            w00, g00 = w00 * less + a * a * p0, g00 * less + a * a * x0
            w02, g02 = w02 * less + a * p1, g02 * less + a * x1
        if AXES == 3:
            w1, g1 = w1 * less + b * p0, g1 * less + b * x0
            w01, g01 = w01 * less + a * b * p0, g01 * less + a * b * x0
            w11, g11 = w11 * less + b * b * p0, g11 * less + b * b * x0
            w12, g12 = w12 * less + b * p1, g12 * less + b * x1
    counts = live & (mass > 0.0)
    over = tl.where(counts, 1.0 / tl.where(counts, mass, 1.0), 0.0)
    mean = product * over
    own = partial + (whole.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * 12
    tl.store(own, tl.sum((g0 - mean * w0) * over, 0))
    tl.store(own + 1, tl.sum((g1 - mean * w1) * over, 0))
    tl.store(own + 2, tl.sum((g2 - mean * w2) * over, 0))
    m01, m02 = tl.sum((g01 - mean * w01) * over, 0), tl.sum((g02 - mean * w02) * over, 0)
    m12 = tl.sum((g12 - mean * w12) * over, 0)
    tl.store(own + 3, tl.sum((g00 - mean * w00) * over, 0))
    tl.store(own + 4, m01)
    tl.store(own + 5, m02)
    tl.store(own + 6, m01)
    tl.store(own + 7, tl.sum((g11 - mean * w11) * over, 0))
    tl.store(own + 8, m12)
    tl.store(own + 9, m02)
    tl.store(own + 10, m12)
    tl.store(own + 11, tl.sum((g22 - mean * w22) * over, 0))
