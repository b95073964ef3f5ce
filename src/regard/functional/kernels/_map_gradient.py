"""The gradient of a small plane's whole map, for a value that all heads share: ``Σ_items grad_y[q] · x[k]``.

This is one large product per head, over all items and channels. The gradients of the axis matrices are sums over it. A map
of at most 256 tokens is small compared to the tensors that are read to compute it.
"""

import triton
import triton.language as tl


@triton.jit
def map_gradient(
    x, grad_y, partial,
    tiles, width_tiles, width, heads,
    x_item, x_token, y_item, y_head, y_token,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    head, worker, workers = tl.program_id(0).to(tl.int64), tl.program_id(2), tl.num_programs(2)
    q = tl.program_id(1) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    k, e = tl.arange(0, BLOCK_INPUTS), tl.arange(0, BLOCK_WIDTH)
    total = tl.zeros((BLOCK_OUTPUTS, BLOCK_INPUTS), tl.float32)
    for tile in range(worker, tiles, workers):
        item = (tile // width_tiles).to(tl.int64)
        channel = (tile % width_tiles) * BLOCK_WIDTH + e
        upstream = tl.load(
            grad_y + item * y_item + head * y_head + q[:, None] * y_token + channel[None, :],
            mask=(q < OUTPUTS)[:, None] & (channel < width)[None, :], other=0.0,
        )  # fmt: skip
        values = tl.load(
            x + item * x_item + k[:, None] * x_token + channel[None, :],
            mask=(k < INPUTS)[:, None] & (channel < width)[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(upstream, tl.trans(values), total, input_precision=PRECISION)
    own = partial + (worker * heads + head) * (OUTPUTS * INPUTS)
    tl.store(
        own + q[:, None] * INPUTS + k[None, :], total, mask=(q < OUTPUTS)[:, None] & (k < INPUTS)[None, :]
    )  # fmt: skip
