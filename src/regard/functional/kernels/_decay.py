"""Exponentially decayed sums along one axis, in blocks: O(tokens), and each value is read twice and written once.

    S_q = Σ_k e^{−λ s |q − k|} x_k        over keys before, after, or on both sides of the query

Inside a block of tokens this is one small product. Each block passes on the sum at its edge; the edges form a shorter axis
with step s · block, summed by the same kernels. Only non-positive numbers are exponentiated.

The backward pass sums gradients with the sides exchanged. For the gradient of λ it also computes

    Z_k = Σ_q e^{−λ s |q − k|} (z_q − s |q − k| x_q)
"""

import triton
import triton.language as tl


@triton.jit
def load_tile(x, tokens, channels, token, n, width):
    inside = (tokens >= 0) & (tokens < n) & (channels < width)
    return tl.load(x + tokens.to(tl.int64) * token + channels, mask=inside, other=0.0)


@triton.jit
def load_scale(scale, head, tokens, n):
    """(tokens, 1): the factor of each token of a head."""
    return tl.load(scale + head * n + tokens, mask=tokens < n, other=0.0)[:, None]


@triton.jit
def block_edges(
    x, z, rate, scale, slope, left, left_z, right, right_z,
    heads, n, width, blocks, step,
    x_item, x_head, x_token,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, HAS_Z: tl.constexpr, SCALED: tl.constexpr, T: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """The sum that each block passes on to its right neighbor (``left``) and to its left neighbor (``right``), each
    (items · heads, blocks, width)."""
    block, row = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    item, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    place, e = tl.arange(0, T), tl.program_id(1) * E + tl.arange(0, E)
    tokens = block * T + place
    decay = tl.load(rate + head) * step
    values = load_tile(x + item * x_item + head * x_head, tokens[:, None], e[None, :], x_token, n, width).to(tl.float32)
    others = values
    if HAS_Z:
        if SCALED:
            others = values * load_scale(slope, head, tokens, n)
        else:
            others = load_tile(z + item * x_item + head * x_head, tokens[:, None], e[None, :], x_token, n, width)
    if SCALED:
        values = values * load_scale(scale, head, tokens, n)
    target = (row.to(tl.int64) * blocks + block) * width + e
    if LEFT:
        away = (T - 1 - place).to(tl.float32)[:, None]
        fading = tl.exp(-decay * away)
        tl.store(left + target, tl.sum(fading * values, 0), mask=e < width)
        if HAS_Z:
            tl.store(left_z + target, tl.sum(fading * (others - step * away * values), 0), mask=e < width)
    if RIGHT:
        away = place.to(tl.float32)[:, None]
        fading = tl.exp(-decay * away)
        tl.store(right + target, tl.sum(fading * values, 0), mask=e < width)
        if HAS_Z:
            tl.store(right_z + target, tl.sum(fading * (others - step * away * values), 0), mask=e < width)


@triton.jit
def block_sums(
    x, z, rate, scale, slope, left, left_z, right, right_z, y, y_z, factor, dots,
    heads, n, width, blocks, step,
    x_item, x_head, x_token, y_item, y_head, y_token, f_item, f_head, f_token,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, HAS_Z: tl.constexpr, SCALED: tl.constexpr, SCALE_OUT: tl.constexpr,
    DOTS: tl.constexpr, T: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The sums of each block, including those passed on by its neighbors. With ``DOTS`` Z is not stored but multiplied by
    ``factor`` and summed to one number per program."""
    block, row, part = tl.program_id(0) % blocks, tl.program_id(0) // blocks, tl.program_id(1)
    item, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    place, e = tl.arange(0, T), part * E + tl.arange(0, E)
    tokens = block * T + place
    inside = (tokens < n)[:, None] & (e < width)[None, :]
    decay = tl.load(rate + head) * step
    values = load_tile(x + item * x_item + head * x_head, tokens[:, None], e[None, :], x_token, n, width)
    others = values
    if HAS_Z:
        if SCALED:
            others = (values.to(tl.float32) * load_scale(slope, head, tokens, n)).to(values.dtype)
        else:
            others = load_tile(z + item * x_item + head * x_head, tokens[:, None], e[None, :], x_token, n, width)
    if SCALED:
        values = (values.to(tl.float32) * load_scale(scale, head, tokens, n)).to(values.dtype)
    offset = (place[:, None] - place[None, :]).to(tl.float32)  # query − key
    away = tl.abs(offset)
    seen = away >= 0
    if not RIGHT:
        seen = offset >= 0
    if not LEFT:
        seen = offset <= 0
    weights = tl.where(seen, tl.exp(-decay * tl.where(seen, away, 0.0)), 0.0)
    sums = tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
    more = sums
    if HAS_Z:
        more = tl.dot(weights.to(values.dtype), others, input_precision=PRECISION)
        more -= step * tl.dot((away * weights).to(values.dtype), values, input_precision=PRECISION)
    base = row.to(tl.int64) * blocks
    if LEFT:
        here = (e < width) & (block + 0 * e > 0)
        came = tl.load(left + (base + block - 1) * width + e, mask=here, other=0.0)[None, :]
        steps = (place + 1).to(tl.float32)[:, None]
        fading = tl.exp(-decay * steps)
        sums += fading * came
        if HAS_Z:
            with_z = tl.load(left_z + (base + block - 1) * width + e, mask=here, other=0.0)[None, :]
            more += fading * (with_z - step * steps * came)
    if RIGHT:
        here = (e < width) & (block + 1 + 0 * e < blocks)
        came = tl.load(right + (base + block + 1) * width + e, mask=here, other=0.0)[None, :]
        steps = (T - place).to(tl.float32)[:, None]
        fading = tl.exp(-decay * steps)
        sums += fading * came
        if HAS_Z:
            with_z = tl.load(right_z + (base + block + 1) * width + e, mask=here, other=0.0)[None, :]
            more += fading * (with_z - step * steps * came)
    if SCALE_OUT:
        sums *= load_scale(scale, head, tokens, n)
    target = tokens.to(tl.int64)[:, None] * y_token + e[None, :]
    tl.store(y + item * y_item + head * y_head + target, sums.to(y.dtype.element_ty), mask=inside)
    if DOTS:
        factors = load_tile(factor + item * f_item + head * f_head, tokens[:, None], e[None, :], f_token, n, width)
        total = tl.sum(tl.sum(tl.where(inside, factors.to(tl.float32) * more, 0.0), 1), 0)
        tl.store(dots + (base + block) * tl.num_programs(1) + part, total)
    elif HAS_Z:
        tl.store(y_z + item * y_item + head * y_head + target, more, mask=inside)
