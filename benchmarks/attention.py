"""Multi-head self-attention compared with nn.MultiheadAttention and timm's Attention, with the same weights.

Each is called as its documentation recommends: torch's with ``batch_first=True`` (in evaluation mode without gradients it
then uses its own fast path) and ``need_weights=False``, or ``average_attn_weights=False`` when it returns weights. timm's
returns no weights. A ratio above 1 means that regard is faster. The bar is 0.97 of the fastest, from 128 tokens on. On a GPU
every row is measured in float32 and in bfloat16.

    python benchmarks/attention.py
    python benchmarks/attention.py --device cuda --rounds 8 --patience 0 --limit 90      # 56 rows; those of the table come first
"""

import functools
import itertools
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from _measure import Limit, arguments, import_timm, milliseconds, print_table, ratios, side_by_side, write
from regard import MultiHeadAttention

SHAPES = (  # batch, tokens, dim, heads
    (32, 64, 128, 4),
    (16, 128, 256, 4),
    (8, 197, 192, 3),
    (8, 197, 384, 6),
    (8, 256, 256, 8),
    (4, 512, 512, 8),
    (1, 1024, 768, 12),
)
BAR, BAR_TOKENS = 0.97, 128
COLUMNS = ("shape", "dtype", "pass", "weights", "regard ms", "torch ÷ regard", "timm ÷ regard", "against fastest")
Shape = tuple[int, int, int, int]
Call = Callable[[Tensor], Tensor]


def dtypes(device: str) -> tuple[torch.dtype, ...]:
    return (torch.float32,) if device == "cpu" else (torch.float32, torch.bfloat16)


def candidates(
    shape: Shape, dtype: torch.dtype, weights: bool, backward: bool, device: str
) -> dict[str, Callable[[], Any]]:
    batch, tokens, dim, heads = shape
    theirs = nn.MultiheadAttention(dim, heads, batch_first=True, device=device, dtype=dtype).train(backward)
    layers: dict[str, tuple[nn.Module, Call]] = {}
    ours = MultiHeadAttention.from_torch(theirs)
    layers["regard"] = ours, lambda x: ours(x, return_weights=True)[0] if weights else ours(x)
    layers["torch"] = theirs, lambda x: theirs(x, x, x, need_weights=weights, average_attn_weights=False)[0]
    timm = import_timm()
    if timm is not None and not weights:
        other = timm.layers.Attention(dim, heads, qkv_bias=True).to(device, dtype).train(backward)
        other.load_state_dict(ours.to_timm())
        layers["timm"] = other, other
    x = torch.randn(batch, tokens, dim, device=device, dtype=dtype, requires_grad=backward)
    check_equal(x, layers)
    run = forward_backward if backward else forward
    return {name: functools.partial(run, layer, call, x) for name, (layer, call) in layers.items()}


def check_equal(x: Tensor, layers: dict[str, tuple[nn.Module, Call]]) -> None:
    with torch.no_grad():
        outputs = [call(x) for _, call in layers.values()]
    rtol, atol = (1e-3, 1e-4) if x.dtype == torch.float32 else (5e-2, 5e-2)
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=rtol, atol=atol)


def forward(layer: nn.Module, call: Call, x: Tensor) -> Tensor:
    with torch.no_grad():
        return call(x)


def forward_backward(layer: nn.Module, call: Call, x: Tensor) -> tuple[Tensor, ...]:
    out = call(x)
    return torch.autograd.grad(out, [x, *layer.parameters()], torch.ones_like(out))


def measure(shape: Shape, dtype: torch.dtype, weights: bool, backward: bool, options: Namespace) -> dict[str, Any]:
    layers = candidates(shape, dtype, weights, backward, options.device)
    times = side_by_side(layers, rounds=options.rounds, device=options.device, patience=options.patience)
    ratio = {name: round(value, 3) for name, value in ratios(times, "regard").items()}
    return {
        "shape": "×".join(map(str, shape[:3])) + f", {shape[3]} heads",
        "dtype": str(dtype).removeprefix("torch."),
        "pass": "forward+backward" if backward else "forward",
        "weights": "returned" if weights else "none",
        "milliseconds": milliseconds(times),
        "ratio": ratio,
        "against_fastest": min(ratio.values()),
        "under_the_bar": shape[1] >= BAR_TOKENS and min(ratio.values()) < BAR,
    }


def flat(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "regard ms": row["milliseconds"]["regard"],
        "torch ÷ regard": row["ratio"]["torch"],
        "timm ÷ regard": row["ratio"].get("timm"),
        "against fastest": row["against_fastest"],
    }


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    limit = Limit(options.limit)
    # What the documentation shows comes first: both passes, no weights.
    for weights, backward, dtype in itertools.product((False, True), (True, False), dtypes(options.device)):
        new = []
        for shape in SHAPES:
            if limit.allows(f"{shape}, {dtype}, {'both passes' if backward else 'forward'}, weights {weights}"):
                new.append(measure(shape, dtype, weights, backward, options))
        if new:
            print_table([flat(row) for row in new], COLUMNS)
        rows += new
    path = write("attention", options, rows, bar=BAR, bar_tokens=BAR_TOKENS, left_out=limit.left_out)
    print(f"{sum(row['under_the_bar'] for row in rows)} rows below the bar of {BAR}; written to {path.name}")


if __name__ == "__main__":
    main()
