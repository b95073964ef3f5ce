"""A trial: the full tiles of an overview in Gluon, Triton's language for layouts and copies by hand, on Hopper GPUs.

The same as ``regard.functional.kernels._map_scores`` computes for causal maps, but for three things. Weights are rounded to half
precision (after a product with 2¹²) for the sums and the largest weights of queries. The largest weight of a query is known up
to a group of eight keys, and that of a key up to two queries: ``_overview_finish.py`` finds which of them it is.

A program takes a block of keys and all queries that see them, 64 at a time. The copy of the queries after the next ones, and the
product of the next ones, run while statistics are added up. Tensor cores add up the rows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

# Triton 3.6 has other names for these than 3.9.
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
ROWS, COLUMNS = 64, 128  # queries and keys of a tile
BM, BN = gl.constexpr(ROWS), gl.constexpr(COLUMNS)
WIDE = gl.constexpr(COLUMNS // 4)  # elements of a row that one thread holds, of two rows
SHIFT = gl.constexpr(12.0)  # weights are multiplied by 2¹² before they are rounded: else small ones would vanish


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
def packed_halves(p):
    """``(BM, 4, BN / 4)`` in half precision, two neighbors in one register."""
    a, b = gl.split(p.reshape([BM, 4, WIDE // 2, 2]))
    return two_halves(a, b)


@gluon.jit
def two_halves(a, b):
    return gl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [a, b], dtype=gl.int32, is_pure=True, pack=1
    )


def _sums_text() -> str:
    """Eight products: of blocks 0 … 7 and of blocks 8 … 15, each with the same constants, which differ by a step."""
    lines = ["{ .reg .b32 b0, b1; .reg .f32 a<4>, c<4>;", "mov.b32 b0, $36; add.rn.f16x2 b1, b0, $37;"]
    for name in "ac":
        lines.append("".join(f"mov.b32 {name}{i}, 0f00000000;" for i in range(4)))
    for j in range(4):
        for name, start in (("a", 0), ("c", 8)):
            to = ", ".join(f"{name}{i}" for i in range(4))
            # The registers of block i: 4 + 2 i for the upper row, 5 + 2 i for the lower one.
            of = ", ".join(f"${4 + 2 * (start + 2 * j) + i}" for i in range(4))
            lines.append(f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{to}}}, {{{of}}}, {{b0, b1}}, {{{to}}};")
        if j < 3:
            lines.append("add.rn.f16x2 b0, b1, $37; add.rn.f16x2 b1, b0, $37;")
    lines.append("add.f32 $0, a0, c0; add.f32 $1, a1, c1; add.f32 $2, a2, c2; add.f32 $3, a3, c3;")
    lines.append("fma.rn.f32 $0, c1, $38, $0; fma.rn.f32 $2, c3, $38, $2; }")
    return "\n".join(lines)


SUMS_TEXT = gl.constexpr(_sums_text())
SUMS_REGISTERS = gl.constexpr(",".join(["=f"] * 4 + ["r"] * 34 + ["f"]))


@gluon.jit
def in_two(x, n: gl.constexpr, LAYOUT: gl.constexpr):
    """All registers of packed halves as tensors of one element for each thread."""
    if n == 1:
        return both_rows(x.reshape([BM, 4]), LAYOUT)
    else:
        a, b = gl.split(x.reshape([BM, 4, 2, n // 2]).permute((0, 1, 3, 2)))
        return in_two(a, n // 2, LAYOUT) + in_two(b, n // 2, LAYOUT)


@gluon.jit
def row_sums(halves, constant, step, over, LAYOUT: gl.constexpr):
    """Two sums over each row by tensor cores."""
    registers, more = in_two(halves, WIDE // 2, LAYOUT), (constant, step, over)
    return gl.inline_asm_elementwise(
        SUMS_TEXT, SUMS_REGISTERS, registers + more,
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32), is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def larger_halves(a, b):
    return gl.inline_asm_elementwise("max.f16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def largest_of_four(a, b, tags):
    """The largest of four halves, above a byte of tags, twice: that of the lower and upper half of a, then of b."""
    return gl.inline_asm_elementwise(
        """{
            .reg .b32 s, t, u, v;
            prmt.b32 s, $1, $3, 0x1044;
            prmt.b32 t, $1, $3, 0x3255;
            prmt.b32 u, $2, $3, 0x1066;
            prmt.b32 v, $2, $3, 0x3277;
            max.s32 s, s, t;
            max.s32 s, s, u;
            max.s32 $0, s, v;
        }""",
        "=r,r,r,r", [a, b, tags], dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def both_rows(x, LAYOUT: gl.constexpr):
    """``(BM, 4)`` to two ``(32, 4)``: rows r and r + 8 of one thread."""
    a, b = gl.split(two_rows(x))
    return gl.convert_layout(a, LAYOUT, assert_trivial=True), gl.convert_layout(b, LAYOUT, assert_trivial=True)


@gluon.jit
def add_rows(at, stride, s0, p0, s1, p1, information, ones, weigh, LAYOUT: gl.constexpr):
    """Add up the information of a row's four threads by a product on tensor cores, in two parts of eleven bits. Then each of
    the threads adds one sum to those in memory. Returns the mass of the rows."""
    i0, i1 = both_rows(information, LAYOUT)
    h0 = (i0.to(gl.int32, bitcast=True) & -8192).to(gl.float32, bitcast=True)
    h1 = (i1.to(gl.int32, bitcast=True) & -8192).to(gl.float32, bitcast=True)
    s0, p0, s1, p1 = gl.inline_asm_elementwise(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $8}, {$9, $10, $11, $12};",
        "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r", [h0, h1, i0 - h0, i1 - h1, ones, s0, p0, s1, p1],
        dtype=(gl.float32, gl.float32, gl.float32, gl.float32), is_pure=True, pack=1,
    )  # fmt: skip
    gl.inline_asm_elementwise(
        "red.relaxed.gpu.global.add.f32 [$1], $2; red.relaxed.gpu.global.add.f32 [$1 + 128], $3; mov.b32 $0, 0;",
        "=r,l,r,r", [at.to(gl.int64), s0 + p0 * weigh, s1 + p1 * (weigh + stride)],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    return p0 + p1


@gluon.jit
def keep_best(at, found, so_far, low):
    """Atomic maximum of those that may be larger than what is stored; few are."""
    gl.inline_asm_elementwise(
        """{
            .reg .pred p;
            .reg .b64 both;
            setp.ge.s32 p, $2, $3;
            mov.b64 both, {$4, $2};
            @p red.relaxed.gpu.global.max.s64 [$1], both;
            mov.b32 $0, 0;
        }""",
        "=r,l,r,r,r", [at.to(gl.int64), found, so_far, low], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def store_keys(
    mass, best, start, at, last_tile, per, height, column_bits, received, top, source, FACTOR: gl.constexpr
):  # fmt: skip
    holder = gl.arange(0, 32, gl.SliceLayout(1, best.type.layout))
    columns = start + gl.arange(0, BN, gl.SliceLayout(0, best.type.layout))
    tiles = last_tile - (best & ~column_bits) // 2
    rows = tiles // per * height + tiles % per * BM + (holder // 8 * 16 + holder % 8)[:, None]
    chosen = gl.max(((best & column_bits).to(gl.int64) << 32) | (2147483647 - rows).to(gl.int64), 0)
    weight = (chosen >> 32).to(gl.int32).to(gl.float32, bitcast=True)
    gl.store(received + at + columns, gl.sum(mass, 0) * FACTOR)
    gl.store(top + at + columns, weight * FACTOR)
    gl.store(source + at + columns, gl.where(weight > 0, 2147483647 - (chosen & 2147483647).to(gl.int32), -1))


@gluon.jit(
    do_not_specialize=[
        "queries", "keys", "heads", "group", "height", "cell", "cells", "blocks", "left", "right", "column_bits",
    ]
)  # fmt: skip
def full_tiles(
    q, k, lse, shift, mass, largest, sums, best, received, top, source,
    queries, keys, heads, group, height, cell, cells, blocks, scale, left, right, column_bits,
    BD: gl.constexpr,
):  # fmt: skip
    """Arguments as those of ``map_overview``, but ``scale`` includes log₂ e, and q and k are descriptors of tiles."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    FACTOR: gl.constexpr = 0.000244140625  # 2⁻¹²
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
        thread_barrier()
        mbarrier.expect(arrived.index(2), BN * BD * 2)
        async_load(k, [item, head // group, start, 0], arrived.index(2), keys_of)
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
        nothing = gl.sum(shaped, 2)
        upper_rows, _ = gl.split(two_rows(nothing))
        ONE: gl.constexpr = upper_rows.type.layout
        holder = gl.arange(0, 32, gl.SliceLayout(1, ONE))
        lane = gl.arange(0, 4, gl.SliceLayout(0, ONE))[None, :]
        # The constant of the product that adds up information: its only column that is not zero is that of quarter 2.
        ones = gl.where((holder % 8)[:, None] + 0 * lane == 4, FACTOR, 0.0)
        # Column 2 m of the constants is for quarter m of the threads of a row, column 2 m + 1 is one (times the factor).
        # Quarter 0: the mass; 1: the mass times the distance from the block's first key minus the moment; 2: information.
        column, spot = (holder % 8)[:, None] + 0 * lane, 2 * lane + 0 * holder[:, None]
        low_half = gl.where(column % 2 == 1, 1.0, gl.where(column == 2, -spot.to(gl.float32), 0.0)) * FACTOR
        high_half = gl.where(column % 2 == 1, 1.0, gl.where(column == 2, -1.0 - spot.to(gl.float32), 0.0)) * FACTOR
        constants = two_halves(low_half, high_half)
        step = gl.where(column == 2, -8.0 * FACTOR, 0.0)
        step = two_halves(step, step)
        over_eight = gl.where(lane == 1, -64.0, 0.0) + 0.0 * low_half
        # What multiplies the mass, in each of the four threads of a row:
        slope = gl.where(lane == 1, 1.0, 0.0)
        constant = gl.where(lane == 0, 1.0, gl.where(lane == 2, -SHIFT, 0.0))
        ahead = slope * (holder // 8 * 16 + holder % 8)[:, None].to(gl.float32) + constant
        fourth = ((holder // 8 * 16 + holder % 8) * 4)[:, None] + lane
        key_mass, _ = gl.split(by_column(from_rows(shaped)))
        key_best = key_mass.to(gl.int32, bitcast=True)
        eighth = below[:, None] + 0 * quarter
        slot, phase, low = 0, 0, 2147483647 - start
        tag = 0x0C0D0E0F - 0x04040404 * quarter + 0 * below[:, None]
        t = first
        while t < until:  # a row of cells
            r = t // per
            row = r * height + t % per * BM
            left_over = gl.minimum((r + 1) * height, queries) - row
            count = gl.minimum(per - t % per, until - t)
            for i in gl.static_range(2):
                place = slot ^ i
                mbarrier.expect(arrived.index(place), BM * BD * 2, pred=i < count)
                async_load(
                    q, [item, head, row + i * BM, 0], arrived.index(place), queries_of.index(place), pred=i < count
                )
            weigh = ahead + slope * (row - BM + moved - start).to(gl.float32)
            information, s0 = nothing, gl.zeros_like(ahead)
            p0, s1, p1 = s0, s0, s0
            cell_mass = gl.zeros_like(ahead)
            cell_top = cell_mass.to(gl.int32, bitcast=True)
            number = (last_tile - t) * 2
            for n in range(count):
                mbarrier.wait(arrived.index(slot), phase)
                tile = queries_of.index(slot).reshape([BM, BD])
                product = warpgroup_mma(tile, keys_tile, zeros, use_acc=False, is_async=True)
                total = gl.load((lse + row) + below, below < left_over, 1e30) - SHIFT
                so_far = gl.maximum(gl.load((upper + 2 * row) + 2 * below), 65536)
                # While it is computed, add up the rows of the tile before. Waiting for the keys, which are here, keeps the
                # compiler from moving that before the product.
                mbarrier.wait(arrived.index(2), 0)
                before = gl.maximum(row - BM, 0)
                cell_mass += add_rows(
                    (sums + before * 4) + fourth, 8.0 * slope, s0, p0, s1, p1, information, ones, weigh, ONE
                )
                left_over -= BM
                s = warpgroup_mma_wait(0, deps=(product,))
                thread_barrier()
                mbarrier.expect(arrived.index(slot), BM * BD * 2, pred=n + 2 < count)
                async_load(
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
                information = gl.sum(p * x, 2)
                halves = packed_halves(p)
                a, b = gl.split(halves.reshape([BM, 4, WIDE // 4, 2]))
                a = gl.convert_layout(gl.reduce(a, 2, larger_halves), OF_PARTS, assert_trivial=True)
                b = gl.convert_layout(gl.reduce(b, 2, larger_halves), OF_PARTS, assert_trivial=True)
                found = largest_of_four(a, b, tag)
                keep_best((best + row) + eighth, found, so_far[:, None] + 0 * found, low + 0 * found)
                highest = gl.convert_layout(gl.max(two_rows(found), 2), ONE, assert_trivial=True)
                cell_top = gl.maximum(cell_top, highest)
                s0, p0, s1, p1 = row_sums(halves, constants, step, over_eight, ONE)
                weigh += BM * slope
                number -= 2
                row += BM
            before = row - BM
            cell_mass += add_rows(
                (sums + before * 4) + fourth, 8.0 * slope, s0, p0, s1, p1, information, ones, weigh, ONE
            )
            gl.store(mass + program + r, gl.sum(gl.sum(cell_mass, 1), 0) * 0.25)
            highest = gl.max(gl.max(cell_top, 1), 0)
            highest = (highest >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32) * FACTOR
            gl.store(largest + program + r, highest)
            t += count
        for i in gl.static_range(3):
            mbarrier.invalidate(arrived.index(i))
        store_keys(key_mass, key_best, start, at, last_tile, per, height, column_bits, received, top, source, FACTOR)
