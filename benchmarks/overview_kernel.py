"""The kernel of overviews, and a trial in Gluon: the time of full tiles for one layer of Llama-3-8B's shape.

    python benchmarks/overview_kernel.py --device cuda                  # 131,072 tokens
    python benchmarks/overview_kernel.py --device cuda --tokens 16384

Both compute the same statistics, which are compared on 4,096 tokens first. The trial (``_gluon_overview.py``) leaves open
which of eight keys has a query's largest weight, and which of two queries a key's. Its finishing pass
(``_overview_finish.py``) decides.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from _gluon_overview import COLUMNS, ROWS, full_tiles
from _measure import arguments, positive, print_table, write
from _overview_finish import finish_keys, finish_queries
from regard.functional.kernels import ScoreTensors
from regard.functional.kernels import _overview_launch as launches

HEADS, SHARED, WIDTH, CELLS = 32, 8, 128, 128
FINISHED = 16  # queries or keys of a program of the finishing pass
LARGEST = 0x7FFFFFFF
# The trial rounds weights to half precision, each by at most 2⁻¹¹ of itself, so it may take either of two weights this close.
CLOSE = 2.0**-10
OFF = 2.0**-9  # of statistics; in the sum for entropy, the error of a row's mass counts twelve times


def inputs(tokens: int, heads: int, shared: int, sharp: float = 1.0) -> ScoreTensors:
    """Random queries, ``sharp`` times as long as usual, and keys, and the logsumexp that torch's flash kernel returns."""
    query, key, value = (
        torch.randn(1, tokens, count, WIDTH, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        for count in (heads, shared, shared)
    )
    query *= sharp
    repeated = (x.repeat_interleave(heads // shared, 1) for x in (key, value))
    _, logsumexp, *_ = torch.ops.aten._scaled_dot_product_flash_attention(query, *repeated, 0.0, True)
    shift = torch.zeros(1, dtype=torch.int32, device="cuda")
    return ScoreTensors(query, key, logsumexp, WIDTH**-0.5, shift, None, 0)


class Trial:
    """The full tiles of one overview: by the shipped kernel, by that in Gluon, and the finishing pass of the latter."""

    def __init__(self, given: ScoreTensors, cell: int) -> None:
        from triton.experimental.gluon import language as gl
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        self.given, self.cell = given, cell
        self.plan = launches.OverviewPlan(given, (cell, cell), 4)
        self.plan._overview = self.plan._overview[:1]
        layout = gl.NVMMASharedLayout(128, 16, 4)
        self.tiles = (
            TensorDescriptor.from_tensor(given.query, [1, 1, ROWS, WIDTH], layout),
            TensorDescriptor.from_tensor(given.key, [1, 1, COLUMNS, WIDTH], layout),
        )
        packed = torch.zeros(self.plan._sums.size, dtype=torch.uint8, device="cuda")
        self.parts = self.plan._sums.all_of(packed, (*launches._SUMS, "binary"))
        self.whole = {name: self.parts[name] for name in launches._SUMS}
        for name in ("sums", "best"):  # with room for the rows behind the last query, to which the kernel adds zeros
            like = self.parts[name]
            self.whole[name] = like.new_zeros(like.numel() + 4 * ROWS)
            self.parts[name] = self.whole[name][: like.numel()].view_as(like)
        prepared = launches._Parts(self.plan._sums, packed, ("binary",))
        self.plan._prepare.at(launches.raw_stream(given.query), given.logsumexp, given.shift, prepared)

    def shipped(self) -> dict[str, Tensor]:
        return self.plan._sums.all_of(
            self.plan.add_up(self.given, launches.raw_stream(self.given.query)), launches._SUMS
        )

    def gluon(self) -> dict[str, Tensor]:
        given, parts, cell = self.given, self.parts, self.cell
        for tensor in self.whole.values():
            tensor.zero_()
        _, heads, queries, keys = given.shape
        rows, columns, blocks = math.ceil(queries / cell), math.ceil(keys / cell), math.ceil(cell / COLUMNS)
        places = 2 * launches.power_of_two(rows * math.ceil(cell / ROWS))
        full_tiles[(columns * blocks, heads, 1)](
            *self.tiles, parts["binary"], given.shift, *(parts[name] for name in launches._SUMS),
            queries, keys, heads, heads // given.key.shape[1], cell, cell, rows, blocks,
            given.scale * math.log2(math.e), 1 << 30, 0, -places, WIDTH, num_warps=4, maxnreg=168,
        )  # fmt: skip
        return parts

    def finish(self) -> dict[str, Tensor]:
        """Exact places in the tensors that ``gluon`` returned; once, as it replaces the groups."""
        given, parts = self.given, self.parts
        _, heads, queries, keys = given.shape
        group, scale = heads // given.key.shape[1], given.scale * math.log2(math.e)
        strides = (*given.query.stride()[:3], *given.key.stride()[:3], FINISHED, WIDTH)
        finish_queries[(math.ceil(queries / FINISHED), heads, 1)](
            given.query, given.key, parts["binary"], parts["best"], queries, heads, group, scale, *strides, num_warps=4
        )
        finish_keys[(math.ceil(keys / FINISHED), heads, 1)](
            given.query, given.key, parts["binary"], parts["top"], parts["source"], queries, keys, heads, group, self.cell,
            scale, *strides, num_warps=4,
        )  # fmt: skip
        return parts

    def difference(self) -> dict[str, float]:
        """How far the trial's results, after finishing, are from those of the shipped kernel.

        ``off``: the largest difference of a statistic, relative to its largest value. ``other keys`` and ``other queries``: the
        share of largest weights that are found at another place; ``their weights``: the largest relative difference of those.
        """
        shipped = self.shipped()
        self.gluon()
        found = self.finish()
        pairs = [(shipped[name], found[name]) for name in ("mass", "largest", "received", "top")]
        pairs += [(shipped["sums"][..., i], found["sums"][..., i]) for i in range(3)]
        off = max(float((a.double() - b.double()).abs().max() / a.double().abs().max()) for a, b in pairs)
        some, seen = shipped["best"] > 0, shipped["top"] > 0
        a, b = ((part["best"] >> 32).to(torch.int32).view(torch.float32) for part in (shipped, found))
        closer = [((a - b).abs() / a)[some].max(), ((shipped["top"] - found["top"]).abs() / shipped["top"])[seen].max()]
        return {
            "off": off,
            "other keys": float((shipped["best"] & LARGEST != found["best"] & LARGEST)[some].double().mean()),
            "other queries": float((shipped["source"] != found["source"])[seen].double().mean()),
            "their weights": max(float(each) for each in closer),
        }


def milliseconds(run: Callable[[], Any], rounds: int, before: Callable[[], Any] = lambda: None) -> float:
    """The fastest of these rounds, after one that compiles. ``before`` is called in each and not timed."""
    times = []
    for _ in range(rounds + 1):
        before()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return min(times[1:])


def checked() -> dict[str, float]:
    """The larger differences of two small overviews, with even and with sharp weights; an error if they are too large."""
    both = [Trial(inputs(4096, 2, 1, sharp), cell).difference() for sharp, cell in ((1.0, 300), (4.0, 200))]
    worst = {name: max(each[name] for each in both) for name in both[0]}
    moved = max(worst["other keys"], worst["other queries"])
    if not (worst["off"] < OFF and worst["their weights"] < CLOSE and moved < 1e-3):
        raise SystemExit(f"the trial is wrong: {worst}")
    return worst


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], rounds=3)
    parser.add_argument("--tokens", type=positive, default=131072)
    options = parser.parse_args()
    if options.device != "cuda" or torch.cuda.get_device_capability()[0] != 9:
        raise SystemExit("this benchmark needs a Hopper GPU: the trial is written for it")
    torch.manual_seed(0)
    worst = checked()
    trial = Trial(inputs(options.tokens, HEADS, SHARED), math.ceil(options.tokens / CELLS))
    times: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "shipped": (trial.shipped, lambda: None),
        "Gluon": (trial.gluon, lambda: None),
        "Gluon, finishing pass": (trial.finish, trial.gluon),
    }
    rows = [
        {"kernel": name, "tokens": options.tokens, "ms": round(milliseconds(run, options.rounds, before), 2)}
        for name, (run, before) in times.items()
    ]
    rows[1] |= worst
    print_table(rows, ["kernel", "tokens", "ms", *worst])
    print(write("overview-kernel", options, rows))


if __name__ == "__main__":
    main()
