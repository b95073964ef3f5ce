"""A trial: the full tiles of an overview in Gluon, Triton's language for layouts and copies by hand, on Hopper GPUs.

The same as ``regard.functional.kernels._map_scores`` computes for causal maps, but for two things: the largest weight of a query
is known up to a group of eight keys, and that of a key up to two queries. A further pass would have to find which of them it is.

A program takes a block of keys and all queries that see them, 64 at a time. The copy of the queries after the next ones, and the
product of the next ones, run while statistics are added up.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

ROWS, COLUMNS = 64, 128  # queries and keys of a tile
BM, BN = gl.constexpr(ROWS), gl.constexpr(COLUMNS)
WIDE = gl.constexpr(COLUMNS // 4)  # elements of a row that one thread holds, of two rows
GROUP_BITS = (
    -32
)  # the bits of a weight that are kept beside the number of a group; see ``row_bits`` of ``map_overview``


@gluon.jit
def by_row(x):
    """Reshape to ``(BM, 4, BN / 4)``: the last axis is in one thread."""
    return x.reshape([BM, BN // 8, 4, 2]).permute((0, 2, 1, 3)).reshape([BM, 4, BN // 4])


@gluon.jit
def from_rows(x):
    return x.reshape([BM, 4, BN // 8, 2]).permute((0, 2, 1, 3)).reshape([BM, BN])


@gluon.jit
def by_column(x):
    """Reshape to ``(32, BN, 2)``: the last axis is in one thread."""
    return x.reshape([4, 2, 8, BN]).permute((0, 2, 3, 1)).reshape([32, BN, 2])


@gluon.jit
def two_rows(x):
    """``(BM, 4)`` to ``(32, 4, 2)``: the last axis is in one thread."""
    return x.reshape([4, 2, 8, 4]).permute((0, 2, 3, 1)).reshape([32, 4, 2])


@gluon.jit
def largest_of_three(a, b, c):
    return gl.inline_asm_elementwise(
        "{ .reg .s32 t; max.s32 t, $1, $2; max.s32 $0, t, $3; }",
        "=r,r,r,r",
        [a, b, c],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def largest_of_groups(p, group_bits):
    """The largest of each eight elements of a thread, with the number of the group in the lowest bits; then of all groups."""
    a, b = gl.split(p.to(gl.int32, bitcast=True).reshape([BM, 4, WIDE // 8, 2, 2, 2]))
    a0, a1 = gl.split(a)
    b0, b1 = gl.split(b)
    a00, a01 = gl.split(a0)
    a10, a11 = gl.split(a1)
    b00, b01 = gl.split(b0)
    b10, b11 = gl.split(b1)
    groups = largest_of_three(largest_of_three(largest_of_three(a00, a01, a10), a11, b00), b01, b10)
    groups = gl.maximum(groups, b11)
    number = gl.arange(0, WIDE // 8, gl.SliceLayout(0, gl.SliceLayout(0, groups.type.layout)))
    return gl.max((groups & group_bits) | (16 + (3 - number) * 4)[None, :][None, :, :], 2)


@gluon.jit
def combined(mass, away, information, best, more_mass, more_away, more_information, other):
    return mass + more_mass, away + more_away, information + more_information, gl.maximum(best, other)


@gluon.jit
def add_rows(mass, away, information, best, so_far, sums_at, best_at, low, quarter):
    """Add the statistics of a tile's rows to those in memory: each of the four threads of a row adds one of them."""
    mass, away, information, found = gl.reduce((mass, away, information, best), 1, combined)
    mine = gl.where(quarter == 1, away[:, None], mass[:, None])
    mine = gl.where(quarter == 2, information[:, None], mine)
    mine = gl.where(quarter == 3, 0.0, mine)
    # Inline assembly, since Triton's own atomics would branch.
    gl.inline_asm_elementwise(
        "red.relaxed.gpu.global.add.f32 [$1], $2; mov.b32 $0, 0;", "=r,l,r", [sums_at.to(gl.int64), mine],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    larger = ((found >= gl.maximum(so_far, 32))[:, None] & (quarter == 3)).to(gl.int32)
    found = found[:, None] + 0 * quarter
    gl.inline_asm_elementwise(
        """{
            .reg .pred p;
            .reg .b64 both;
            setp.ne.s32 p, $4, 0;
            mov.b64 both, {$3, $2};
            @p red.relaxed.gpu.global.max.s64 [$1], both;
            mov.b32 $0, 0;
        }""",
        "=r,l,r,r,r", [best_at.to(gl.int64), found, low + 0 * found, larger], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def store_keys(mass, best, start, at, last_tile, per, height, column_bits, received, top, source):
    holder = gl.arange(0, 32, gl.SliceLayout(1, mass.type.layout))
    columns = start + gl.arange(0, BN, gl.SliceLayout(0, mass.type.layout))
    tiles = last_tile - (best & ~column_bits) // 2
    rows = tiles // per * height + tiles % per * BM + (holder // 8 * 16 + holder % 8)[:, None]
    chosen = gl.max(((best & column_bits).to(gl.int64) << 32) | (2147483647 - rows).to(gl.int64), 0)
    weight = (chosen >> 32).to(gl.int32).to(gl.float32, bitcast=True)
    gl.store(received + at + columns, gl.sum(mass, 0))
    gl.store(top + at + columns, weight)
    gl.store(source + at + columns, gl.where(weight > 0, 2147483647 - (chosen & 2147483647).to(gl.int32), -1))


@gluon.jit
def full_tiles(
    q, k, lse, shift, mass, largest, sums, best, received, top, source,
    queries, keys, heads, group, height, cell, cells, blocks, scale, left, right, group_bits, column_bits,
    BD: gl.constexpr,
):  # fmt: skip
    """Arguments as those of ``map_overview``, but ``scale`` includes log₂ e, and q and k are descriptors of tiles."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    part, whole = gl.program_id(0), gl.program_id(1)
    item, head = whole // heads, whole % heads
    start = part // blocks * cell + part % blocks * BN
    stop = gl.minimum(gl.minimum((part // blocks + 1) * cell, start + BN), keys)
    moved = gl.load(shift + item)
    per = (height + BM - 1) // BM
    # The tiles that see all keys of the block, by number:
    opened = gl.maximum(start + BN - 1 - right - moved, 0)
    closed = gl.minimum(start + left - moved - BM + 2, queries)
    end = gl.minimum(stop + left - moved, queries)
    last_tile = (end - 1) // height * per + (end - 1) % height // BM
    first = opened // height * per + gl.minimum((opened % height + BM - 1) // BM, per)
    last = gl.maximum(closed - 1, 0)
    until = last // height * per + last % height // BM + 1
    if (start + BN > stop) | (closed <= opened):
        until = first
    if until > first:
        queries_of = gl.allocate_shared_memory(q.dtype, [2, 1, 1, BM, BD], q.layout)
        keys_of = gl.allocate_shared_memory(k.dtype, [1, 1, BN, BD], k.layout)
        arrived = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(3):
            mbarrier.init(arrived.index(i), count=1)
        gl.thread_barrier()
        mbarrier.expect(arrived.index(2), BN * BD * 2)
        tma.async_copy_global_to_shared(k, [item, head // group, start, 0], arrived.index(2), keys_of)
        to, at = whole.to(gl.int64) * queries, whole.to(gl.int64) * keys
        lse, best, sums = lse + to, best + to, sums + to * 4
        upper = best.to(gl.pointer_type(gl.int32)) + 1
        program = (whole.to(gl.int64) * gl.num_programs(0) + part) * cells
        mbarrier.wait(arrived.index(2), 0)
        keys_tile = keys_of.reshape([BN, BD]).permute((1, 0))

        zeros = gl.zeros([BM, BN], gl.float32, MMA)
        shaped = by_row(zeros)
        OF_ROWS: gl.constexpr = shaped.type.layout
        OF_PARTS: gl.constexpr = gl.SliceLayout(2, OF_ROWS)
        below = gl.arange(0, BM, gl.SliceLayout(1, OF_PARTS))
        quarter = gl.arange(0, 4, gl.SliceLayout(0, OF_PARTS))[None, :]
        step = gl.arange(0, WIDE, gl.SliceLayout(0, gl.SliceLayout(0, OF_ROWS)))
        steps = (step // 2 * 8 + step % 2).to(gl.float32)[None, :][None, :, :]
        ahead = (below[:, None] - 2 * quarter).to(gl.float32)
        key_mass, _ = gl.split(by_column(from_rows(shaped)))
        key_best = key_mass.to(gl.int32, bitcast=True)
        nothing = gl.sum(shaped, 2)
        none = nothing.to(gl.int32, bitcast=True)
        fourth, eighth = (below * 4)[:, None] + quarter, below[:, None] + 0 * quarter
        slot, phase, low = 0, 0, 2147483647 - start
        t = first
        while t < until:  # a row of cells
            r = t // per
            row = r * height + t % per * BM
            left_over = gl.minimum((r + 1) * height, queries) - row
            count = gl.minimum(per - t % per, until - t)
            for i in gl.static_range(2):
                place = slot ^ i
                mbarrier.expect(arrived.index(place), BM * BD * 2, pred=i < count)
                tma.async_copy_global_to_shared(
                    q, [item, head, row + i * BM, 0], arrived.index(place), queries_of.index(place), pred=i < count
                )
            total = gl.load((lse + row) + below, below < left_over, 1e30)
            row_mass, away, information, row_best, so_far = nothing, nothing, nothing, none, gl.zeros_like(below)
            cell_mass, cell_top = gl.sum(two_rows(nothing), 2), gl.max(two_rows(none), 2)
            number = (last_tile - t) * 2
            for n in range(count):
                mbarrier.wait(arrived.index(slot), phase)
                tile = queries_of.index(slot).reshape([BM, BD])
                product = warpgroup_mma(tile, keys_tile, zeros, use_acc=False, is_async=True)
                # While it is computed, add up the rows of the tile before. Waiting for the keys, which are here, keeps the
                # compiler from moving that before the product.
                mbarrier.wait(arrived.index(2), 0)
                before = gl.maximum(row - BM, 0)
                add_rows(
                    row_mass, away, information, row_best, so_far, (sums + before * 4) + fourth, (best + before) + eighth,
                    low, quarter,
                )  # fmt: skip
                left_over -= BM
                next_total = gl.load((lse + row + BM) + below, below < left_over, 1e30)
                so_far = gl.load((upper + 2 * row) + 2 * below)
                s = warpgroup_mma_wait(0, deps=(product,))
                gl.thread_barrier()
                mbarrier.expect(arrived.index(slot), BM * BD * 2, pred=n + 2 < count)
                tma.async_copy_global_to_shared(
                    q, [item, head, row + 2 * BM, 0], arrived.index(slot), queries_of.index(slot), pred=n + 2 < count
                )
                slot = 1 - slot
                phase = phase ^ (1 - slot)

                x = by_row(s) * scale - total[:, None][:, :, None]
                p = gl.exp2(x)
                over, under = gl.split(by_column(from_rows(p)))
                key_mass += over + under
                larger = gl.maximum(over.to(gl.int32, bitcast=True), under.to(gl.int32, bitcast=True))
                key_best = gl.maximum(key_best, (larger & column_bits) | number)
                row_mass, information = gl.sum(p, 2), gl.sum(p * x, 2)
                away = row_mass * (ahead + (row + moved - start).to(gl.float32)) - gl.sum(p * steps, 2)
                row_best = gl.convert_layout(largest_of_groups(p, group_bits), OF_PARTS, assert_trivial=True) | (
                    3 - quarter
                )
                cell_mass += gl.sum(two_rows(row_mass), 2)
                cell_top = gl.maximum(cell_top, gl.max(two_rows(row_best), 2))
                number -= 2
                total = next_total
                row += BM
            add_rows(
                row_mass, away, information, row_best, so_far, (sums + (row - BM) * 4) + fourth,
                (best + row - BM) + eighth, low, quarter,
            )  # fmt: skip
            gl.store(mass + program + r, gl.sum(gl.sum(cell_mass, 1), 0))
            highest = gl.max(gl.max(cell_top, 1), 0) & group_bits
            gl.store(largest + program + r, highest.to(gl.float32, bitcast=True))
            t += count
        for i in gl.static_range(3):
            mbarrier.invalidate(arrived.index(i))
        store_keys(key_mass, key_best, start, at, last_tile, per, height, column_bits, received, top, source)
