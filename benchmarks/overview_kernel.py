"""The kernel of overviews, and a trial in Gluon: the time of full tiles for one layer of Llama-3-8B's shape.

    python benchmarks/overview_kernel.py --device cuda                  # 131,072 tokens
    python benchmarks/overview_kernel.py --device cuda --tokens 16384

Both compute the same statistics, which are compared on 5,000 tokens first. The trial leaves open which of eight keys has a
query's largest weight, and which of two queries a key's (``_gluon_overview.py``).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from _gluon_overview import COLUMNS, GROUP_BITS, ROWS, full_tiles
from _measure import arguments, positive, print_table, write
from regard.functional.kernels import ScoreTensors
from regard.functional.kernels import _overview_launch as launches

HEADS, SHARED, WIDTH, CELLS = 32, 8, 128, 128
STATISTICS = ("mass", "largest", "sums", "best", "received", "top")


def inputs(tokens: int, heads: int, shared: int) -> ScoreTensors:
    """Random queries and keys, and the logsumexp that torch's flash kernel returns."""
    query, key, value = (
        torch.randn(1, tokens, count, WIDTH, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        for count in (heads, shared, shared)
    )
    repeated = (x.repeat_interleave(heads // shared, 1) for x in (key, value))
    _, logsumexp, *_ = torch.ops.aten._scaled_dot_product_flash_attention(query, *repeated, 0.0, True)
    shift = torch.zeros(1, dtype=torch.int32, device="cuda")
    return ScoreTensors(query, key, logsumexp, WIDTH**-0.5, shift, None, 0)


class Trial:
    """The full tiles of one overview, by either kernel, into the same tensors."""

    def __init__(self, given: ScoreTensors, cell: int) -> None:
        self.given, self.cell = given, cell
        self.plan = launches.OverviewPlan(given, (cell, cell), 4)
        self.plan._overview = self.plan._overview[:1]

    def shipped(self) -> dict[str, Tensor]:
        return self.plan._sums.all_of(
            self.plan.add_up(self.given, launches.raw_stream(self.given.query)), launches._SUMS
        )

    def gluon(self) -> dict[str, Tensor]:
        from triton.experimental.gluon import language as gl
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        given, plan, cell = self.given, self.plan, self.cell
        packed = torch.zeros(plan._sums.size, dtype=torch.uint8, device="cuda")
        parts = plan._sums.all_of(packed, (*launches._SUMS, "binary"))
        for name in ("sums", "best"):  # with room for the rows behind the last query, to which the kernel adds zeros
            like = parts[name]
            with_room = like.new_zeros(like.numel() + 4 * ROWS)
            parts[name] = with_room[: like.numel()].view_as(like)
        prepared = launches._Parts(plan._sums, packed, ("binary",))
        plan._prepare.at(launches.raw_stream(given.query), given.logsumexp, given.shift, prepared)
        layout = gl.NVMMASharedLayout(128, 16, 4)
        query = TensorDescriptor.from_tensor(given.query, [1, 1, ROWS, WIDTH], layout)
        key = TensorDescriptor.from_tensor(given.key, [1, 1, COLUMNS, WIDTH], layout)
        _, heads, queries, keys = given.shape
        rows, columns, blocks = math.ceil(queries / cell), math.ceil(keys / cell), math.ceil(cell / COLUMNS)
        places = 2 * launches.power_of_two(rows * math.ceil(cell / ROWS))
        full_tiles[(columns * blocks, heads, 1)](
            query, key, parts["binary"], given.shift, *(parts[name] for name in launches._SUMS),
            queries, keys, heads, heads // given.key.shape[1], cell, cell, rows, blocks,
            given.scale * math.log2(math.e), 1 << 30, 0, GROUP_BITS, -places, WIDTH, num_warps=4, maxnreg=168,
        )  # fmt: skip
        return parts

    def difference(self) -> float:
        """The largest relative difference of the statistics, where both kernels know them."""
        both = self.shipped(), self.gluon()
        worst = 0.0
        for name in STATISTICS:
            a, b = (part[name] >> 32 & -COLUMNS if name == "best" else part[name] for part in both)
            worst = max(worst, float((a.double() - b.double()).abs().max() / a.double().abs().max()))
        return worst


def milliseconds(run: Callable[[], Any], rounds: int) -> float:
    """The fastest of these rounds, after one that compiles."""
    times = []
    for _ in range(rounds + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times[1:])


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], rounds=3)
    parser.add_argument("--tokens", type=positive, default=131072)
    options = parser.parse_args()
    if options.device != "cuda" or torch.cuda.get_device_capability()[0] != 9:
        raise SystemExit("this benchmark needs a Hopper GPU: the trial is written for it")
    torch.manual_seed(0)
    off = Trial(inputs(5000, 2, 1), 200).difference()
    if not off < 1e-4:
        raise SystemExit(f"the trial is wrong: its statistics are off by {off:.1e}")
    trial = Trial(inputs(options.tokens, HEADS, SHARED), math.ceil(options.tokens / CELLS))
    rows = [
        {"kernel": "shipped", "tokens": options.tokens, "ms": round(milliseconds(trial.shipped, options.rounds), 1)},
        {
            "kernel": "Gluon",
            "tokens": options.tokens,
            "ms": round(milliseconds(trial.gluon, options.rounds), 1),
            "off": off,
        },
    ]
    print_table(rows, ["kernel", "tokens", "ms", "off"])
    print(write("overview-kernel", options, rows))


if __name__ == "__main__":
    main()
