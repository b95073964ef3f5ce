"""How fast is exact Gaussian attention, compared with other implementations and with convolution?

Forward and backward pass (gradients of values, centers and sharpness); ratios are taken within one round.

    python benchmarks/gaussian.py                 # CPU: one image; a GPU: about 131 k tokens in bfloat16
    python benchmarks/gaussian.py --grids 32 64   # fewer grids
    python benchmarks/gaussian.py --conversion    # only convolutions and the attention that they convert to
    python benchmarks/gaussian.py --only local --device cpu --threads 1 --rounds 9      # growth from 64² to 128² on a CPU
    python benchmarks/gaussian.py --device cuda --rounds 5 --patience 0 --limit 200 --only placed rivals conversion

These compute the same: ``dense`` (softmax over an N×N score matrix per head, then a product), ``sdpa+bias`` (the same
matrix as a bias of the fused kernel), and ``flex`` (FlexAttention with the score as its score_mod; GPU only). These compute
less and are baselines: ``flash`` (the fused kernel without bias, so without position), ``depthwise`` and ``conv`` (3×3
convolutions of cuDNN or oneDNN with as many channels), and on a CPU ``depthwise 7×7``. ``banded`` is regard with a frozen plan.
A baseline that does not fit into memory is skipped, with a message.

On a GPU there are more tables: the device time compared with the time of the memory traffic alone, full-width heads
compared with cuDNN's convolution with as many weights, grids of every size; and in files of their own content with place,
rivals (``_rivals.py``) and conversions (``_conversion.py``). On a CPU there is one on local heads (``_local.py``), and on both
one on wide heads (``_wide.py``).
With ``--limit`` no further row is begun after so many seconds.
"""

import ctypes
import itertools
import json
import math
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from _conversion import conversion, conversion_steps
from _floor import copy_bandwidth, floor_row, full_width_row
from _local import local_rows
from _measure import Limit, arguments, milliseconds, positive, print_table, ratios, side_by_side, write
from _rivals import SIZES, placed_errors, placed_row, rival_rows, size_row
from _wide import wide_rows
from regard.functional import GaussianPlan, gaussian_attention, plan_for

HEADS, WIDTH, TOKENS = 9, 64, 131072
MEMORY = 20e9  # a CPU baseline that would need more is skipped
SHARPNESS = 0.5


class Problem:
    """One grid's inputs: local heads (sharpness 0.5, centers a few pixels away) on random values."""

    def __init__(self, side: int, device: str, dtype: torch.dtype, sharpness: float = SHARPNESS) -> None:
        torch.manual_seed(0)
        self.grid, self.tokens, self.device, self.dtype = (side, side), side * side, device, dtype
        self.batch = 1 if device == "cpu" else max(1, TOKENS // self.tokens)
        shape = (self.batch, HEADS, self.tokens, WIDTH)
        self.value = torch.randn(shape, device=device, dtype=dtype).requires_grad_()
        self.upstream = torch.randn(shape, device=device, dtype=dtype)
        self.center = (torch.randn(HEADS, 2, device=device) * 2).requires_grad_()
        self.sharpness = torch.full((HEADS,), sharpness, device=device).requires_grad_()
        self.query, self.key = (torch.randn(shape, device=device, dtype=dtype).requires_grad_() for _ in range(2))

    def step(self, forward: Callable[[], torch.Tensor], *inputs: torch.Tensor) -> Callable[[], None]:
        def call() -> None:
            out = forward()
            torch.autograd.grad(out, inputs, self.upstream.reshape(out.shape))

        return call

    def ours(self, plan: str | GaussianPlan) -> Callable[[], None]:
        inputs = (self.value, self.center, self.sharpness)
        return self.step(lambda: gaussian_attention(*inputs, self.grid, plan=plan), *inputs)

    def scores(self) -> torch.Tensor:
        """−α‖k − q − Δ‖² as an N×N matrix per head."""
        place = torch.arange(self.grid[0], device=self.device, dtype=torch.float32)
        rows, columns = (x.flatten() for x in torch.meshgrid(place, place, indexing="ij"))
        down = rows - rows[:, None] - self.center[:, 0, None, None]
        right = columns - columns[:, None] - self.center[:, 1, None, None]
        return -self.sharpness[:, None, None] * (down**2 + right**2)

    def candidates(self) -> dict[str, Callable[[], None] | None]:
        positions = (self.value, self.center, self.sharpness)
        plan = plan_for(self.center, self.sharpness, self.grid, self.dtype)
        matrix = 4.0 * HEADS * self.tokens**2  # bytes of one N×N matrix per head
        fits = 5 * matrix < MEMORY if self.device == "cpu" else 6 * matrix < 100e9
        fits_bias = fits if self.device == "cpu" else 8 * matrix < 100e9
        image = self.value.detach().reshape(self.batch, *self.grid, -1).permute(0, 3, 1, 2).requires_grad_()
        image = image.detach().to(memory_format=torch.channels_last).requires_grad_()
        channels = HEADS * WIDTH
        depthwise = torch.randn(channels, 1, 3, 3, device=self.device, dtype=self.dtype).requires_grad_()
        wide = torch.randn(channels, 1, 7, 7, device=self.device, dtype=self.dtype).requires_grad_()
        dense = torch.randn(channels, channels, 3, 3, device=self.device, dtype=self.dtype).requires_grad_()
        return {
            "ours": self.ours("auto"),
            "banded": self.ours(plan),
            "dense": self.step(lambda: self.scores().softmax(-1).to(self.dtype) @ self.value, *positions)
            if fits
            else None,
            "sdpa+bias": self.step(
                lambda: F.scaled_dot_product_attention(
                    self.query,
                    self.key,
                    self.value,
                    attn_mask=self.scores().to(self.dtype).expand(self.batch, -1, -1, -1),
                ),
                *positions,
            )
            if fits_bias
            else None,
            "flex": self.flex() if self.device != "cpu" else None,
            "flash": self.step(
                lambda: F.scaled_dot_product_attention(self.query, self.key, self.value),
                self.query,
                self.key,
                self.value,
            ),
            "depthwise": self.step(lambda: F.conv2d(image, depthwise, padding=1, groups=channels), image, depthwise),
            "conv": self.step(lambda: F.conv2d(image, dense, padding=1), image, dense),
            "depthwise 7×7": self.step(lambda: F.conv2d(image, wide, padding=3, groups=channels), image, wide)
            if self.device == "cpu"  # on a GPU it is among the rivals
            else None,
        }

    def flex(self) -> Callable[[], None] | None:
        """FlexAttention, compiled, with the center's columns as separate tensors (one captured tensor needs a gradient
        through atomics either way)."""
        if self.tokens > 1024:
            return None  # its gradient into nine centers takes seconds there
        from torch.nn.attention.flex_attention import flex_attention

        side = self.grid[1]
        down, right = (self.center[:, i].detach().clone().requires_grad_() for i in range(2))
        alpha = self.sharpness.detach().clone().requires_grad_()
        zeros = torch.zeros_like(self.value)

        @torch.compile
        def attend(value: torch.Tensor, down: torch.Tensor, right: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
            def score(
                content: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
            ) -> torch.Tensor:
                rows = k // side - q // side - down[h]
                columns = k % side - q % side - right[h]
                return content - alpha[h] * (rows * rows + columns * columns)

            return flex_attention(zeros, zeros, value, score_mod=score)

        inputs = (self.value, down, right, alpha)
        return self.step(lambda: attend(*inputs), *inputs)


def runs(name: str, call: Callable[[], None]) -> bool:
    """Whether a baseline runs at all here; one that does not is said to, and skipped."""
    try:
        call()
    except Exception as error:
        print(f"{name} does not run: {type(error).__name__}: {str(error).strip().splitlines()[0][:150]}", flush=True)
        return False
    return True


def peak_bytes(side: int, way: str, device: str) -> int | None:
    """Peak extra memory of forward + backward, in a process of its own on the CPU."""
    if device != "cpu":
        call = workload(side, way, device)
        return None if call is None else peak_on_gpu(call)
    command = [sys.executable, __file__, "--measure-memory", str(side), way]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def peak_on_gpu(call: Callable[[], None]) -> int:
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before


def workload(side: int, way: str, device: str) -> Callable[[], None] | None:
    """A way of computing Gaussian heads, or ``conv:CHANNELS:CASE:DTYPE``, ``attention:…`` and ``taps:…``, a layer and its
    conversions."""
    kind, *layer = way.split(":")
    if layer:
        channels, case, dtype = layer
        return conversion_steps(int(channels), side, device, case, getattr(torch, dtype))[kind]
    return Problem(side, device, torch.float32 if device == "cpu" else torch.bfloat16).candidates()[way]


def measure_memory(side: int, way: str) -> None:
    """Print the growth of this process's peak memory over one forward and backward pass."""
    torch.set_num_threads(1)
    small = workload(8, way, "cpu")
    if small is not None:
        small()  # libraries loaded, buffers of their own made
    call = workload(side, way, "cpu")
    if call is None:
        print("null")
        return
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = memory_status("VmRSS")
    call()
    print(memory_status("VmHWM") - before)


def memory_status(name: str) -> int:
    """Bytes of this process's memory, as Linux counts them."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def sizes_on_the_card(bandwidth: float, limit: Limit) -> list[dict[str, object]]:
    """Grids of every size."""
    wide = [((side, side), 1e-6) for side in (128, 256, 512)]
    rows = []
    for grid, alpha in [*itertools.product(SIZES, (0.5, 0.2)), *wide]:
        if limit.allows(f"size {grid}, sharpness {alpha:g}"):
            rows.append(size_row(grid, alpha, bandwidth))
            print("sizes", rows[-1], flush=True)
            torch.cuda.empty_cache()
    print("\nsizes")
    print_table(rows, list(rows[0]) if rows else [])
    return rows


def parts(options: Namespace, limit: Limit) -> None:
    """Rivals, content with place, conversions and local heads: each a table and a file of its own, the quickest first."""
    known = ("conversion", "local", "wide") if options.device == "cpu" else ("placed", "rivals", "conversion", "wide")
    for name in known:
        if options.only and name not in options.only:
            continue
        left, more, rows = Limit(limit.end - time.monotonic()), {}, []
        if name == "placed":
            rows = [placed_row(side) for side in (64, 128) if left.allows(f"placed {side}²")]
            more["errors"] = placed_errors() if left.allows("errors") else []
            print_table(more["errors"], list(more["errors"][0]) if more["errors"] else [])
        elif name == "rivals":
            rows, more["layout"] = rival_rows((64, 128, 256), left), "channels first or last, whichever is faster"
        elif name == "wide":
            rows = wide_rows(options, left, copy_bandwidth() if options.device != "cpu" else 0.0)
        elif name == "local":
            rows = local_rows(
                options, left, lambda side, alpha: Problem(side, "cpu", torch.float32, alpha).candidates()
            )
        else:
            rows = conversion(options, left, peak_bytes)
        print(f"\n{name}")
        print_table(rows, list(dict.fromkeys(key for row in rows for key in row)))
        path = options.output  # of several tables, each has a file of its own beside it
        if path is not None and len(options.only or ()) != 1:
            path = path.with_stem(f"{path.stem}-{name}")
        kept = Namespace(**{**vars(options), "output": path})
        print(write(name, kept, rows, left_out=left.left_out, **more), flush=True)
        if options.device != "cpu":
            torch.cuda.empty_cache()


def main() -> None:
    if sys.argv[1:2] == ["--measure-memory"]:
        measure_memory(int(sys.argv[2]), sys.argv[3])
        return
    parser = arguments(__doc__.splitlines()[0], rounds=10)
    parser.add_argument("--grids", type=positive, nargs="+", default=[16, 32, 64, 128, 256])
    parser.add_argument(
        "--linear", type=positive, nargs=2, default=[64, 512], help="the two grids of the linear-time check"
    )
    parser.add_argument(
        "--only", nargs="+", choices=["placed", "rivals", "conversion", "local", "wide"], help="only these tables"
    )
    parser.add_argument(
        "--conversion", action="append_const", dest="only", const="conversion", help="--only conversion"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    limit = Limit(options.limit)
    if options.only:
        parts(options, limit)
        return
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    rows, memory, floors = [], [], []
    bandwidth = copy_bandwidth() if options.device != "cpu" else 0.0
    for side in options.grids:
        if not limit.allows(f"grid {side}²"):
            continue
        problem = Problem(side, options.device, dtype)
        candidates = problem.candidates()
        runnable = {name: call for name, call in candidates.items() if call is not None and runs(name, call)}
        heavy = side >= 64 and options.device == "cpu"
        times = side_by_side(
            runnable, rounds=max(3, options.rounds // 3) if heavy else options.rounds, device=options.device
        )
        row = {"grid": f"{side}²", **dict.fromkeys(candidates, "skipped"), **milliseconds(times)}
        row["ratios"] = {name: round(value, 2) for name, value in ratios(times, "ours").items()}
        rows.append(row)
        if bandwidth:
            size = problem.value.numel() * problem.value.element_size()
            floors.append(floor_row(f"{side}²", size, candidates, bandwidth))
        print(f"{side}² done", flush=True)
        if side >= 64:
            value = problem.value.numel() * problem.value.element_size()
            for way in ("ours", "banded"):
                peak = peak_bytes(side, way, options.device)
                memory.append(
                    {"grid": f"{side}²", "way": way, "peak / value": None if peak is None else round(peak / value, 2)}
                )
        del problem, candidates, runnable
    print(f"\nmilliseconds, forward + backward, {HEADS} heads × {WIDTH}, {dtype}")
    names = list(rows[0])[:-1]
    print_table(rows, names)
    print("\ntime relative to regard")
    print_table([{"grid": row["grid"], **row["ratios"]} for row in rows], ["grid", *names[2:]])
    wide = full_width_row() if bandwidth else None
    if wide:
        print(f"\nmilliseconds on the device; the floor is five tensors at {bandwidth / 1e12:.2f} TB/s")
        print_table(floors, list(floors[0]))
        print("\nfull-width heads and a 3×3 convolution with as many weights, milliseconds on the device")
        print_table([wide], list(wide))
    print("\npeak extra memory of forward + backward, in value tensors")
    print_table(memory, ["grid", "way", "peak / value"])
    growth = []
    for small, large in itertools.pairwise(rows[1:]):
        tokens = math.log((int(large["grid"][:-1]) / int(small["grid"][:-1])) ** 2)
        exponents = {name: round(math.log(large[name] / small[name]) / tokens, 2) for name in ("ours", "banded")}
        growth.append({"from": small["grid"], "to": large["grid"], **exponents})
    print("\ntime grows as tokens to the power of")
    print_table(growth, ["from", "to", "ours", "banded"])
    low, high = options.linear
    linear = {}
    for side in (low, high):
        problem = Problem(side, options.device, dtype)
        plan = plan_for(problem.center, problem.sharpness, problem.grid, dtype)
        linear[side] = milliseconds(side_by_side({"banded": problem.ours(plan)}, rounds=3, device=options.device))[
            "banded"
        ]
        del problem
    print(
        f"\nbanded: time({high}²) / time({low}²) = {linear[high] / linear[low]:.1f} for {(high / low) ** 2:.0f} × the tokens"
    )
    extra = {"sizes": sizes_on_the_card(bandwidth, limit)} if bandwidth else {}
    path = write(
        "gaussian", options, rows, heads=HEADS, width=WIDTH, sharpness=SHARPNESS, dtype=str(dtype),
        tokens_in_all="one image" if options.device == "cpu" else TOKENS, memory=memory, growth=growth,
        bandwidth=bandwidth or None, floor=floors, full_width=wide,
        linear={f"{side}²": ms for side, ms in linear.items()}, left_out=limit.left_out, **extra,
    )  # fmt: skip
    print(f"\n{path}")
    parts(options, limit)


if __name__ == "__main__":
    main()
