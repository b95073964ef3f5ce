"""Up to which grid is one dense product per head faster than one thin product per axis? Measured for each device type.

    python benchmarks/crossover.py

Forward and backward, for narrow heads (each its own values) and for full-width heads (all share the input). The answer
is DENSE_TOKENS in src/regard/functional/_plan.py: the largest grid where dense wins in both forms.
"""

from collections.abc import Callable

import torch

from _measure import arguments, milliseconds, print_table, ratios, side_by_side, write
from regard.functional import gaussian_attention


def step(side: int, shared: bool, plan: str, device: str, dtype: torch.dtype, batch: int) -> Callable[[], None]:
    torch.manual_seed(0)
    heads, width = 9, 384 if shared else 64
    value = torch.randn(batch, 1 if shared else heads, side * side, width, device=device, dtype=dtype).requires_grad_()
    center = torch.randn(heads, 2, device=device).requires_grad_()
    sharpness = torch.ones(heads, device=device).requires_grad_()
    upstream = torch.randn(batch, heads, side * side, width, device=device, dtype=dtype)

    def call() -> None:
        out = gaussian_attention(value, center, sharpness, (side, side), plan=plan)
        torch.autograd.grad(out, (value, center, sharpness), upstream)

    return call


def main() -> None:
    options = arguments(__doc__.splitlines()[0], rounds=15).parse_args()
    torch.set_num_threads(options.threads)
    cpu = options.device == "cpu"
    dtype = torch.float32 if cpu else torch.bfloat16
    rows = []
    for shared in (False, True):
        for side in (4, 6, 8, 10, 12, 16, 24) if cpu else (4, 8, 10, 16, 24, 32, 40, 48, 64):
            batch = 4 if cpu else max(1, 131072 // side**2 // (4 if shared else 1))
            ways = {plan: step(side, shared, plan, options.device, dtype, batch) for plan in ("dense", "separable")}
            times = side_by_side(ways, rounds=options.rounds, device=options.device)
            rows.append(
                {"heads": "full-width" if shared else "narrow", "grid": f"{side}²", **milliseconds(times),
                 "separable / dense": round(ratios(times, "dense")["separable"], 2)}
            )  # fmt: skip
    print_table(rows, list(rows[0]))
    print(write("crossover", options, rows))


if __name__ == "__main__":
    main()
