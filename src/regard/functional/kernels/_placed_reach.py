"""Which keys are within reach of a patch of queries: those whose position costs less than a bound, called room.

The cost of a position is (δ − Δ)ᵀ S (δ − Δ), with distances a, b, u along three axes; missing axes have size 1, and S is zero
there. Within one plane, the keys that cost one query less than its room lie in an ellipse.
"""

import triton
import triton.language as tl

from regard.functional.kernels._placed_pass import LOG2_E, symmetric


@triton.jit
def least_cost(s_aa, s_bb, s_cc, s_ab, s_ac, s_bc):
    """The minimum cost of one step along axis a over all steps along the others, reduced a little to allow for rounding."""
    area = tl.maximum(s_bb * s_cc - s_bc * s_bc, 1e-60)
    least = s_aa - (s_ab * s_ab * s_cc - 2.0 * s_ab * s_ac * s_bc + s_ac * s_ac * s_bb) / area
    return (least - 1e-9 * s_aa).to(tl.float32)


@triton.jit
def within(target, room, least, size, live):
    """The half-open range of coordinates of an axis at which a position can cost less than ``room`` for any target."""
    reach = tl.minimum(tl.sqrt(tl.maximum(room, 0.0) / tl.maximum(least, 1e-30)) + 1.0, 1e9)
    low = tl.min(tl.where(live, target - reach, 1e9), 0)
    high = tl.max(tl.where(live, target + reach, -1e9), 0)
    begin = tl.minimum(tl.maximum(low, 0.0), size - 1.0).to(tl.int32)
    return begin, tl.minimum(tl.maximum(high, 0.0), size - 1.0).to(tl.int32) + 1


@triton.jit
def ellipse(r00, r01, r02, r11, r12, r22):
    """The shape of a plane's ellipse: its middle (b, u) for a = 1; the minimum cost of one step of a, of b and of u, reduced a
    little to allow for rounding; the best b per step of u, the best u per step of b; and S's diagonal entry for b."""
    r11, r22 = tl.maximum(r11, 1e-18), tl.maximum(r22, 1e-18)
    area = r11 * r22 - r12 * r12
    is_thin = area < 1e-6 * r11 * r22  # too thin to locate: then a ≠ 0 gives unlimited room
    area = tl.maximum(area, 1e-14 * r11 * r22)
    at_b = tl.where(is_thin, 0.0, (r12 * r02 - r22 * r01) / area)
    at_u = tl.where(is_thin, 0.0, (r12 * r01 - r11 * r02) / area)
    least_a = tl.where(is_thin, -1e18, tl.maximum(r00 + r01 * at_b + r02 * at_u - 1e-9 * r00, 0.0))
    least_b, least_u = tl.maximum(area / r22 - 1e-9 * r11, 1e-18), tl.maximum(area / r11 - 1e-9 * r22, 1e-18)
    return (
        at_b.to(tl.float32), at_u.to(tl.float32), least_a.to(tl.float32), least_b.to(tl.float32), least_u.to(tl.float32),
        (-r12 / r11).to(tl.float32), (-r12 / r22).to(tl.float32), r11.to(tl.float32),
    )  # fmt: skip


@triton.jit
def end_of_ellipse(u, low, high, room, least_u, b_by_u, own_b):
    """For an ellipse whose extreme in b lies at u: at the u nearest to that in low … high, the middle of its range of b, half
    the extent of that range, and whether the range is non-empty."""
    nearest = tl.minimum(tl.maximum(u, low), high)
    rest = room - least_u * nearest * nearest
    middle = b_by_u * nearest
    return middle, tl.sqrt(tl.maximum(rest, 0.0) / own_b) + 1e-4 * tl.abs(middle) + 1.0, rest >= 0.0


@triton.jit
def lines_of_strip(shape, start, a, t1, more, t2, room, live, m, n, PC: tl.constexpr, PL: tl.constexpr):
    """The half-open range of groups of lines in which keys of a strip of columns can cost less than ``room`` for any query.
    Ellipses are convex, so within a strip the extreme in b lies at the ellipse's own extreme or as near to it as possible.

    Args:
        shape: the results of ``ellipse``.
        t1, more: the queries' targets are lines t1 … t1 + more.
    """
    at_b, at_u, least_a, least_b = tl.load(shape), tl.load(shape + 1), tl.load(shape + 2), tl.load(shape + 3)
    least_u, b_by_u, u_by_b, own_b = tl.load(shape + 4), tl.load(shape + 5), tl.load(shape + 6), tl.load(shape + 7)
    room = tl.minimum((room - least_a * a * a) * 1.0001 + 0.01, 1e18)
    low, high = start - t2 - at_u * a - 0.01, tl.minimum(start + PC, n) - 0.99 - t2 - at_u * a
    far = u_by_b * tl.minimum(tl.sqrt(tl.maximum(room, 0.0) / least_b), 1e9)
    below, reach_below, some = end_of_ellipse(-far, low, high, room, least_u, b_by_u, own_b)
    above, reach_above, others = end_of_ellipse(far, low, high, room, least_u, b_by_u, own_b)
    there = live & (some | others)
    first = tl.min(tl.where(there, tl.maximum(t1 + at_b * a + below - reach_below, 0.0), 1e9), 0)
    last = tl.max(tl.where(there, tl.minimum(t1 + more + at_b * a + above + reach_above, m - 1.0), -1e9), 0)
    begin = tl.minimum(first, m * 1.0).to(tl.int32) // PL
    return begin, (tl.maximum(tl.floor(last), -1.0).to(tl.int32) + PL) // PL  # end ≤ begin if empty


@triton.jit
def factors(r00, r01, r02, r11, r12, r22):
    """S = Lᵀ L, so that a position's cost is a sum of three squares; l00 is returned squared. In float64: S may be singular."""
    l22 = tl.sqrt(r22 + 1e-30)
    l21, l20 = r12 / l22, r02 / l22
    l11 = tl.sqrt(tl.maximum(r11 - l21 * l21, 1e-12 * r11 + 1e-30))
    l10 = (r01 - l21 * l20) / l11
    l00 = tl.maximum(r00 - l20 * l20 - l10 * l10, 0.0)
    return l22, l21, l20, l11, l10, l00


@triton.jit
def three_axes(center, matrix, wide, full, head, c_head, c_axis, m_head, m_row, m_column, DIMENSIONS: tl.constexpr):
    """Write a head's center and symmetrized S in float64, extended to three axes, of which the last are the grid's."""
    row, column, missing = tl.arange(0, 4)[:, None], tl.arange(0, 4)[None, :], 3 - DIMENSIONS
    i, j = row - missing, column - missing
    there, inside = (i >= 0) & (row < 3) & (j >= 0) & (column < 3), (row < 3) & (column < 3)
    own = matrix + head * m_head
    found = tl.load(own + i * m_row + j * m_column, there, 0.0).to(tl.float64)
    found += tl.load(own + j * m_row + i * m_column, there, 0.0).to(tl.float64)
    tl.store(full + head * 9 + row * 3 + column, found / 2.0, inside)
    axis = tl.arange(0, 4)
    k = axis - missing
    place = tl.load(center + head * c_head + k * c_axis, (k >= 0) & (axis < 3), 0.0).to(tl.float64)
    tl.store(wide + head * 3 + axis, place, axis < 3)
    tl.debug_barrier()


@triton.jit
def costs_of_heads(
    center, matrix, wide, full, table, c_head, c_axis, m_head, m_row, m_column,
    DIMENSIONS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """Compute what depends on the head only: center and S for three axes, factors of S, minimum costs along axes, the shape
    of ellipses. A kernel of its own, once per head, because float64 divisions are slow."""
    head = tl.program_id(0)
    three_axes(center, matrix, wide, full, head, c_head, c_axis, m_head, m_row, m_column, DIMENSIONS)
    r00, r01, r02, r11, r12, r22 = symmetric(full, head)
    # Scores are exponents to base 2.
    r00, r01, r02, r11, r12, r22 = r00 * LOG2_E, r01 * LOG2_E, r02 * LOG2_E, r11 * LOG2_E, r12 * LOG2_E, r22 * LOG2_E
    l22, l21, l20, l11, l10, l00 = factors(r00, r01, r02, r11, r12, r22)
    own = table + head * ENTRIES
    tl.store(own, l22.to(tl.float32))
    tl.store(own + 1, l21.to(tl.float32))
    tl.store(own + 2, l20.to(tl.float32))
    tl.store(own + 3, l11.to(tl.float32))
    tl.store(own + 4, l10.to(tl.float32))
    tl.store(own + 5, l00.to(tl.float32))
    # A missing axis has zero cost in S, which would make the matrix singular.
    f00, f11 = r00, r11
    if DIMENSIONS < 3:
        f00 += 1.0
    if DIMENSIONS < 2:
        f11 += 1.0
    tl.store(own + 6, least_cost(f00, f11, r22, r01, r02, r12))
    tl.store(own + 7, least_cost(r22, f00, f11, r02, r12, r01))
    at_b, at_u, least_a, least_b, least_u, b_by_u, u_by_b, own_b = ellipse(r00, r01, r02, r11, r12, r22)
    tl.store(own + 8, at_b)
    tl.store(own + 9, at_u)
    tl.store(own + 10, least_a)
    tl.store(own + 11, least_b)
    tl.store(own + 12, least_u)
    tl.store(own + 13, b_by_u)
    tl.store(own + 14, u_by_b)
    tl.store(own + 15, own_b)
