"""Attention maps from queries, keys and the logsumexp of each row: an overview in cells, or the weights themselves.

A program takes a block of keys or of rows of one head. Given the logsumexp, a weight is exp(score − logsumexp), so one pass
over the scores suffices. Most tiles are fully visible; only tiles at the edge of the mask, of a cell or of the keys apply a
mask. Element offsets are int64: a map of 131,072 tokens has 2³⁴ elements.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def log_weights(
    q, k, total, place, columns, stop, seen, slope, scale, softcap, left, right, at_edge,
    PADDED: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """log₂ of the weights, ``(rows, columns)``. If ``at_edge``, −1e30 for hidden keys: those from ``stop`` on, those outside
    of left … right, and those that do not exist (PADDED)."""
    s = tl.dot(q, k, input_precision=PRECISION)
    if CAPPED:
        # softcap · tanh(s / softcap) = 2 softcap / (1 + exp(−2 s / softcap)) − softcap
        x = 2.0 * softcap * LOG2_E / (1.0 + tl.exp2(s * (-2.0 * LOG2_E * scale / softcap)))
        x -= (total + softcap * LOG2_E)[:, None]
    else:
        x = s * (scale * LOG2_E) - total[:, None]
    if SLOPED:
        x -= slope * tl.abs(columns[None, :] - place[:, None]).to(tl.float32)
    if at_edge:
        # Comparing columns with each row's bounds takes two comparisons; comparing distances would take a subtraction more.
        shown = columns[None, :] <= tl.minimum(place + right, stop - 1)[:, None]
        shown = shown & (columns[None, :] >= (place - left)[:, None])
        if PADDED:
            shown = shown & seen[None, :]
        x = tl.where(shown, x, -1e30)
    return x


@triton.jit
def by_row(x, BM: tl.constexpr, BN: tl.constexpr):
    """Reshape to ``(BM, 4, BN / 4)``, where one thread holds the last axis after a product on tensor cores, so that reducing
    it needs no exchange between threads. Entry n of part m is column 8 · (n // 2) + n % 2 + 2 m."""
    return tl.reshape(tl.permute(tl.reshape(x, [BM, BN // 8, 4, 2]), (0, 2, 1, 3)), [BM, 4, BN // 4])


@triton.jit
def by_column(x, BM: tl.constexpr, BN: tl.constexpr, BANDS: tl.constexpr):
    """Reshape to ``(8 · BANDS, BN, BM / (8 · BANDS))``: the same for columns. Entry n of part 8 b + m is row
    16 · BANDS · (n // 2) + 16 b + 8 · (n % 2) + m."""
    x = tl.reshape(x, [BM // (16 * BANDS), BANDS, 2, 8, BN])
    return tl.reshape(tl.permute(x, (1, 3, 4, 0, 2)), [8 * BANDS, BN, BM // (8 * BANDS)])


@triton.jit
def tile_rows(row, bottom, queries, WHOLE: tl.constexpr, BM: tl.constexpr):
    """The queries of a tile, and a mask of those that count: from ``row`` to ``bottom``. A ``WHOLE`` tile never extends past
    the last query; it starts earlier instead."""
    origin = row
    if WHOLE:
        origin = tl.minimum(row, queries - BM)
    rows = origin + tl.arange(0, BM)
    return rows, (rows >= row) & (rows < bottom)


@triton.jit
def tile_from(row, height, BM: tl.constexpr):
    """The start of the first tile that starts at or after this row. Tiles do not cross cells."""
    top = row // height * height
    return tl.minimum(top + (row - top + BM - 1) // BM * BM, top + height)


@triton.jit
def add_tiles(
    q, near, tile, lse, sums, best, begin, until, bottom, tiles, queries, width, start, stop, moved, columns, seen,
    slope, scale, softcap, left, right, q_token, item, head, row_bits, column_bits, key_mass, key_best, key_top,
    MASKED: tl.constexpr, PADDED: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr,
    BACKWARD: tl.constexpr, WHOLE: tl.constexpr, COPIED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BANDS: tl.constexpr,
):  # fmt: skip
    """Add the tiles from ``begin`` to ``until``, in one row of cells that ends at ``bottom``; ``tiles`` counts them down.

    Returns the statistics per key (partial results of each thread), and total and largest weight of these tiles."""
    # Elements of a row, and of a column, that one thread holds:
    WIDE: tl.constexpr = BN // 4
    HIGH: tl.constexpr = BM // (8 * BANDS)
    below, d = tl.arange(0, BM), tl.arange(0, BD)
    step, quarter = tl.arange(0, WIDE), tl.arange(0, 4)[None, :]
    steps = (step // 2 * 8 + step % 2).to(tl.float32)
    fourth = 2 * tl.arange(0, 2)[None, :, None] + tl.arange(0, 2)[None, None, :]
    ahead = (below[:, None] - 2 * quarter).to(tl.float32)
    in_row, in_column = (WIDE - 1 - step) * 4, HIGH - 1 - tl.arange(0, HIGH)
    cell_mass, cell_top = tl.zeros([8 * BANDS, 4], tl.float32), tl.zeros([8 * BANDS, 4], tl.int32)
    rows, live = tile_rows(begin, bottom, queries, WHOLE, BM)
    total, so_far = tl.load(lse + rows, live, 1e30), tl.load(best + rows, live, 0)
    for row in range(begin, until, BM):
        rows, live = tile_rows(row, bottom, queries, WHOLE, BM)
        origin = row
        if COPIED:
            block = tl.reshape(q.load([item, head, row, 0]), [BM, BD])
        elif WHOLE:
            origin = tl.minimum(row, queries - BM)
            block = tl.load((q + tl.cast(origin, tl.int64) * q_token) + near)
        else:
            block = tl.load((q + tl.cast(origin, tl.int64) * q_token) + near, live[:, None] & (d < width)[None, :], 0.0)
        # Prefetch for the next tile: nothing else would hide the latency of these loads.
        next_rows, next_live = tile_rows(row + BM, bottom, queries, WHOLE, BM)
        next_total = tl.load(lse + next_rows, next_live, 1e30)
        next_so_far = tl.load(best + next_rows, next_live, 0)
        x = log_weights(
            block, tile, total, rows + moved, columns, stop, seen, slope, scale, softcap, left, right, MASKED,
            PADDED, CAPPED, SLOPED, PRECISION,
        )  # fmt: skip
        p = tl.exp2(x)
        # First the reductions within a thread: until they are done, it holds all weights and has few registers left.
        stacked = by_column(p, BM, BN, BANDS)
        key_mass += tl.sum(stacked, 2)
        # The tile's number is packed with the row, so that one instruction compares two weights with the best so far.
        number = (in_column + tiles * HIGH)[None, None, :]
        key_best = tl.maximum(key_best, tl.max((stacked.to(tl.int32, bitcast=True) & column_bits) | number, 2))
        held = by_row(p, BM, BN)
        row_mass = tl.sum(held, 2)
        information = tl.sum(held * by_row(x, BM, BN), 2)
        moment = tl.sum(held * steps[None, None, :], 2)
        row_best = tl.max((held.to(tl.int32, bitcast=True) & row_bits) | in_row[None, None, :], 2) | (3 - quarter)
        # On one side of the query, Σ weight · |distance| = |mass · (query − start) − moment|.
        away = row_mass * (ahead + (origin + moved - start).to(tl.float32)) - moment
        if not BACKWARD:
            away = tl.where(start > row + moved, -away, away)
            if MASKED:
                after = columns[None, :] - (rows + moved)[:, None]
                other = tl.where(start > row + moved, tl.maximum(-after, 0), tl.maximum(after, 0)).to(tl.float32)
                away += 2.0 * tl.sum(by_row(p * other, BM, BN), 2)
        some = tl.sum(tl.join(tl.join(row_mass, information), tl.join(away, tl.zeros_like(away))), 1)
        tl.atomic_add(sums + rows[:, None, None] * 4 + fourth, some, live[:, None, None], sem="relaxed")
        # All threads hold the best of a row; only one of them continues with it.
        found = tl.gather(tl.max(row_best, 1), below, 0)
        n = BN - 1 - (found & (BN - 1))
        weight = found & -BN
        if PRECISION == "ieee":
            row_best = tl.max(held, 2).to(tl.int32, bitcast=True)
            weight = tl.gather(tl.max(row_best, 1), below, 0)
            key_top = tl.maximum(key_top, tl.max(stacked, 2))
        packed = (weight.to(tl.int64) << 32) | (2147483647 - start - (n // 8 * 8 + n // 4 % 2 + n % 4 * 2))
        # Few keys exceed all earlier ones, and a value that only grows may be read without an atomic, so most rows skip it.
        tl.atomic_max(best + rows, packed, live & (weight > 0) & (packed > so_far), sem="relaxed")
        cell_mass += tl.sum(by_column(row_mass, BM, 4, BANDS), 2)
        cell_top = tl.maximum(cell_top, tl.max(by_column(row_best, BM, 4, BANDS), 2))
        total, so_far = next_total, next_so_far
        tiles -= 1
    most = tl.max(tl.max(cell_top, 1), 0)
    if PRECISION != "ieee":
        most = most & -BN
    return key_mass, key_best, key_top, tl.sum(tl.sum(cell_mass, 1), 0), most.to(tl.float32, bitcast=True)


@triton.jit
def map_overview(
    q, k, lse, shift, present, slopes,
    mass, largest, sums, best, received, top, source,
    queries, keys, heads, group, height, cell, cells, blocks, width, first_keys, scale, softcap, left, right,
    q_item, q_head, q_token, k_item, k_head, k_token, row_bits, column_bits,
    PADDED: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr, BACKWARD: tl.constexpr, WHOLE: tl.constexpr, COPIED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BANDS: tl.constexpr,
):  # fmt: skip
    """A program takes one block of keys (``blocks`` blocks per column of cells) and all queries that see any of them.

    So statistics per key stay in registers until the end, and statistics per query are added by atomics: their order, and
    with it the last digits, differ between runs. A largest weight and its position are packed into one integer: weights are
    not negative, so their bits are ordered like the weights, and the lowest bits are replaced by the position. The largest
    weight of a key keeps 11 fraction bits, as in float16, for 131,072 queries, and one less for twice as many; that of a
    query keeps 16. For float32 both are computed separately, without loss.

    There are two launches, for fully visible tiles and for tiles at an edge of the mask, so that neither loop has a branch.
    The first takes nearly all the time, and needs so few registers that three programs share a multiprocessor. The second
    adds to the first one's results.

    Args:
        lse: logsumexp to base 2; 1e30 for queries that do not exist, so that their weights are zero.
        mass, largest: ``(batch · heads, programs, rows of cells)``.
        sums: for each query, Σ weight, Σ weight · distance, Σ weight · log₂ weight, and Σ weight of the first keys.
        best: for each query, bits of the largest weight · 2³² + 2³¹ − 1 − its key.
        row_bits, column_bits: masks of the bits of a weight that are kept next to a position. They are run-time arguments,
            because with compile-time constants packing takes two instructions.
        MASKED: process tiles at an edge, and the weight of the first keys; else the fully visible tiles.
        BACKWARD: queries see no later keys, so the two sides of a query need not be distinguished.
        WHOLE: there are at least BM queries, with BD channels. Then the last tile starts earlier, and loads need no mask.
        COPIED: ``q`` is a tensor descriptor, by which the GPU copies tiles itself (TMA).
    """
    part, whole = tl.program_id(0), tl.program_id(1)  # with a causal mask the first keys take longest and start first
    item, head = whole // heads, whole % heads
    slope = 0.0
    if SLOPED:
        slope = tl.load(slopes + whole) * LOG2_E
    inside, below, d = tl.arange(0, BN), tl.arange(0, BM), tl.arange(0, BD)
    start = part // blocks * cell + part % blocks * BN
    stop = tl.minimum(tl.minimum((part // blocks + 1) * cell, start + BN), keys)
    columns = start + inside
    seen = columns < stop
    tile = tl.load(
        k + item.to(tl.int64) * k_item + (head // group).to(tl.int64) * k_head
        + (columns[None, :].to(tl.int64) * k_token + d[:, None]), seen[None, :] & (d < width)[:, None], 0.0,
    )  # fmt: skip
    if PADDED:
        seen = seen & (tl.load(present + item.to(tl.int64) * keys + columns, seen, 0) != 0)
    # The range of queries that see any of the keys, and the start of the tile with the first of them:
    moved = tl.load(shift + item)
    begin, end = tl.maximum(start - right - moved, 0), tl.minimum(stop + left - moved, queries)
    if start >= stop:
        end = begin
    per = (height + BM - 1) // BM
    row = begin // height * height + begin % height // BM * BM
    last_tile = (end - 1) // height * per + (end - 1) % height // BM
    # Tiles that start in ``opened … closed`` see all keys; those before ``sooner``, or from ``later`` on, have all keys on one
    # side.
    opened, closed = start + BN - 1 - right - moved, start + left - moved - BM + 2
    sooner, later = start - moved - BM + 1, start - moved + BN
    if tl.min(seen.to(tl.int32), 0) == 0:
        closed = 0
    to, at = whole.to(tl.int64) * queries, whole.to(tl.int64) * keys
    lse, best, sums = lse + to, best + to, sums + to * 4
    if not COPIED:
        q += item.to(tl.int64) * q_item + head.to(tl.int64) * q_head
    near = below[:, None] * q_token + d[None, :]
    program = (whole.to(tl.int64) * tl.num_programs(0) + part) * cells
    HIGH: tl.constexpr = BM // (8 * BANDS)
    key_mass, key_best = tl.zeros([8 * BANDS, BN], tl.float32), tl.zeros([8 * BANDS, BN], tl.int32)
    key_top = tl.zeros([8 * BANDS, BN], tl.float32)
    while row < end:
        r = row // height
        bottom = tl.minimum((r + 1) * height, queries)
        full = (row >= opened) & (row < closed)
        change = end
        if row < opened:
            change = tl.minimum(change, tile_from(opened, height, BM))
        elif row < closed:
            change = tl.minimum(change, tile_from(closed, height, BM))
        if not BACKWARD:
            full = full & ((row < sooner) | (row >= later))
            if row < sooner:
                change = tl.minimum(change, tile_from(sooner, height, BM))
            elif row < later:
                change = tl.minimum(change, tile_from(later, height, BM))
        if full != MASKED:
            change = tl.minimum(change, bottom)
            key_mass, key_best, key_top, tiles_mass, tiles_top = add_tiles(
                q, near, tile, lse, sums, best, row, change, bottom, last_tile - r * per - (row - r * height) // BM,
                queries, width, start, stop, moved, columns, seen, slope, scale, softcap, left, right, q_token, item, head,
                row_bits, column_bits, key_mass, key_best, key_top,
                MASKED, PADDED, CAPPED, SLOPED, PRECISION, BACKWARD, WHOLE, COPIED, BM, BN, BD, BANDS,
            )  # fmt: skip
            if MASKED or not BACKWARD:  # else these are the first tiles of this cell, and nothing is stored yet
                tiles_mass += tl.load(mass + program + r)
                tiles_top = tl.maximum(tiles_top, tl.load(largest + program + r))
            tl.store(mass + program + r, tiles_mass)
            tl.store(largest + program + r, tiles_top)
        row = change
    # Recover the query from the tile's number and the position in the tile:
    holder, place = tl.arange(0, 8 * BANDS), key_best & ~column_bits
    n, tiles = HIGH - 1 - place % HIGH, last_tile - place // HIGH
    inner = n // 2 * (16 * BANDS) + n % 2 * 8 + (holder // 8 * 16 + holder % 8)[:, None]
    origin = tiles // per * height + tiles % per * BM
    if WHOLE:
        origin = tl.minimum(origin, queries - BM)
    weight = key_best & column_bits
    if PRECISION == "ieee":
        weight = key_top.to(tl.int32, bitcast=True)
    found = tl.max((weight.to(tl.int64) << 32) | (2147483647 - origin - inner), 0)
    weight = (found >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    query = tl.where(weight > 0, 2147483647 - (found & 2147483647).to(tl.int32), -1)
    mine = columns < stop
    before, from_query = tl.load(top + at + columns, mine, 0.0), tl.load(source + at + columns, mine, 0)
    better = (weight > before) | (before == 0.0) | ((weight == before) & (query < from_query))
    tl.store(received + at + columns, tl.load(received + at + columns, mine, 0.0) + tl.sum(key_mass, 0), mine)
    tl.store(top + at + columns, tl.maximum(weight, before), mine)
    tl.store(source + at + columns, tl.where(better, query, from_query), mine)
    if MASKED:
        # The weight of the first keys: the queries are divided evenly among the programs.
        stop = tl.minimum(first_keys, keys)
        seen = inside < stop
        tile = tl.load(
            k + item.to(tl.int64) * k_item + (head // group).to(tl.int64) * k_head
            + (inside[None, :] * k_token + d[:, None]), seen[None, :] & (d < width)[:, None], 0.0,
        )  # fmt: skip
        if PADDED:
            seen = seen & (tl.load(present + item.to(tl.int64) * keys + inside, seen, 0) != 0)
        share = (queries + tl.num_programs(0) - 1) // tl.num_programs(0)
        until = tl.minimum((part + 1) * share, queries)
        for row in range(part * share, until, BM):
            rows = row + below
            live = rows < until
            block = tl.load(
                (q + tl.cast(row, tl.int64) * q_token) + near, live[:, None] & (d < width)[None, :], 0.0
            )  # fmt: skip
            total = tl.load(lse + rows, live, 1e30)
            x = log_weights(
                block, tile, total, rows + moved, inside, stop, seen, slope, scale, softcap, left, right, True,
                PADDED, CAPPED, SLOPED, PRECISION,
            )  # fmt: skip
            tl.atomic_add(sums + rows * 4 + 3, tl.sum(tl.exp2(x), 1), live, sem="relaxed")
