"""One axis of a converted convolution in half precision: each tap has a matrix of its own, and taps are summed in float32."""

import triton
import triton.language as tl


@triton.jit
def axis_taps(
    x, matrix, bias, y,
    lines, middle, inner, inputs, outputs,
    x_outer, x_tap, x_middle, x_inner, x_axis, y_outer, y_tap, y_middle, y_inner, y_axis, m_tap, m_output, m_input,
    TAPS: tl.constexpr, SPREAD: tl.constexpr, BIASED: tl.constexpr,
    BL: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """``y[t, l, o] = Σ_i a[t, o, i] x[l, i]`` if ``SPREAD``, else ``y[l, o] = Σ_t Σ_i a[t, o, i] x[t, l, i]``.

    Lines l are enumerated as (outer, middle, inner). The bias has one number per index of the middle axis.
    """
    line = tl.program_id(0) * BL + tl.arange(0, BL)
    i, o = tl.arange(0, BI), tl.arange(0, BO)
    here = (line < lines)[:, None]
    outer = (line // (middle * inner)).to(tl.int64)[:, None]
    between, within = (line // inner % middle).to(tl.int64)[:, None], (line % inner).to(tl.int64)[:, None]
    source = x + outer * x_outer + between * x_middle + within * x_inner + i[None, :] * x_axis
    target = y + outer * y_outer + between * y_middle + within * y_inner + o[None, :] * y_axis
    table = matrix + i[:, None] * m_input + o[None, :] * m_output
    seen, kept = here & (i < inputs)[None, :], here & (o < outputs)[None, :]
    used = (i < inputs)[:, None] & (o < outputs)[None, :]
    if SPREAD:
        tile = tl.load(source, seen, 0.0)
        for tap in tl.static_range(TAPS):
            found = tl.dot(tile, tl.load(table + tap * m_tap, used, 0.0))
            tl.store(target + tl.cast(tap, tl.int64) * y_tap, found.to(y.dtype.element_ty), kept)
    else:
        total = tl.zeros([BL, BO], tl.float32)
        for tap in tl.static_range(TAPS):
            tile = tl.load(source + tl.cast(tap, tl.int64) * x_tap, seen, 0.0)
            total = tl.dot(tile, tl.load(table + tap * m_tap, used, 0.0), total)
        if BIASED:
            total += tl.load(bias + between, here, 0.0).to(tl.float32)
        tl.store(target, total.to(y.dtype.element_ty), kept)
