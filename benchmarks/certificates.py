"""Do certified bounds hold, and are they tight? python benchmarks/certificates.py [--cases 10000] [--seed 0] [--first 0]

Searches for inputs, layers and convolutions whose error breaks a bound that the library states. Each case draws a layer
(sharp or soft heads, whole, half or any centers, short or long axes, every dtype, autocast), then attacks its input: random,
constant and extreme numbers, the sign of the gradient of one output's error, which is the exact maximum where the error is
linear in the input, and hill climbing from the best of them. Half of the cases change one of the worst found so far. Prints,
for each bound and dtype, the largest error relative to its bound: above 1 the bound is false, below 0.1 it is too loose.
"""

import argparse
import copy
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from _measure import RESULTS, hardware, positive, write_rows
from regard.convert import attention_to_conv, conv_to_attention
from regard.functional import gaussian_weights, plan_for
from regard.layers import GaussianAttention

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ARITHMETIC = (*DTYPES, "autocast")  # a float32 layer under bfloat16 autocast
BOUNDS = ("attention → convolution", "convolution → attention", "convolution → taps")
LEAKS = ("leak of a window", "leak of a tap", "leak at the border")  # statements about exact arithmetic
BAND = "left out by a band"
CLIMBS = 6
MOST_TOKENS, MOST_TOKENS_FULL = 3000, 300
# A row of weights computed in float64 is itself off by so much.
FLOAT64_ROW = 1e-13


@dataclass(frozen=True)
class Case:
    """One layer or convolution, and how its inputs are drawn."""

    seed: int
    axes: int
    heads: int
    covariance: str
    full_width: bool
    sharpest: float
    place: str
    tolerance: float
    extra: int
    width: int
    kernel: int
    stride: int
    dilation: int
    border: str

    @classmethod
    def draw(cls, draw: random.Random) -> "Case":
        return cls(
            draw.randrange(1 << 30), draw.choice((1, 1, 2, 3)), draw.choice((1, 1, 2, 4)),
            draw.choice(("isotropic", "isotropic", "diagonal", "full")), draw.random() < 0.5,
            10 ** draw.uniform(-0.3, 5), draw.choice(("whole", "half", "any", "edge")), 10 ** draw.uniform(-18, -1),
            draw.choice((0, 0, 3, 20, 200, 1500)), draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 3, 4)),
            draw.choice((1, 1, 2)), draw.choice((1, 1, 2)), draw.choice(("zeros", "reflect", "replicate", "circular")),
        )  # fmt: skip

    def changed(self, draw: random.Random) -> "Case":
        """A neighbor: one property, or only the numbers, differ."""
        other = Case.draw(draw)
        name = draw.choice(
            (
                "seed",
                "seed",
                "sharpest",
                "place",
                "tolerance",
                "extra",
                "width",
                "heads",
                "full_width",
                "axes",
                "kernel",
                "stride",
            )
        )
        near = replace(self, **{name: getattr(other, name)})
        return replace(near, sharpest=near.sharpest * 2 ** draw.uniform(-1, 1), seed=other.seed)


def gaussian_layer(case: Case, dtype: torch.dtype) -> GaussianAttention:
    generator = torch.Generator().manual_seed(case.seed)
    torch.manual_seed(case.seed)
    dim = case.width if case.full_width else case.width * case.heads
    layer = GaussianAttention(
        dim, case.heads, axes=case.axes, covariance=case.covariance, full_width=case.full_width, out_dim=3
    )
    center = 2 * torch.randn(case.heads, case.axes, generator=generator)
    center = {
        "whole": center.round(), "half": center.round() + 0.5, "any": center,
        "edge": center.round() + 0.5 * (1 - 2.0**-20),
    }[case.place]  # fmt: skip
    if case.covariance == "full":
        root = 0.3 * math.sqrt(case.sharpest) * torch.randn(case.heads, case.axes, case.axes, generator=generator)
        sharpness = root @ root.mT + 0.5 * torch.eye(case.axes)
    else:
        spread = torch.rand(layer.sharpness.shape, generator=generator)
        sharpness = 0.5 * (2 * max(case.sharpest, 0.5)) ** spread
    layer.positions.set(center, sharpness)
    return layer.to(dtype).eval()


def convolution(case: Case, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(case.seed)
    make: Any = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[case.axes]
    pad = case.dilation * (case.kernel // 2)
    conv = make(
        case.width, 4, case.kernel, stride=case.stride, dilation=case.dilation, padding=pad, padding_mode=case.border
    )
    found: nn.Module = conv.to(dtype).eval()
    return found


@dataclass(frozen=True)
class Attacked:
    """Something with a bound: the inputs it takes, its error and its bound for one, and both linear in float64."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    autocast: bool
    error: Callable[[Tensor], float]
    bound: Callable[[Tensor], float]
    linear: Callable[[Tensor], tuple[Tensor, Tensor]]
    leaked: float  # how much of the bound is leak, for inputs up to 1

    def rounding_decides(self, x: Tensor) -> bool:
        """Whether leaks explain at most a hundredth of the bound."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            return self.leaked * float(x.abs().max()) <= 0.01 * self.bound(x.to(self.dtype))

    def ratio(self, x: Tensor) -> float:
        """The error relative to the bound; above 1 the bound is false."""
        x = x.to(self.dtype)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            bound, error = self.bound(x), self.error(x)
        if error == 0 or bound == math.inf:
            return 0.0
        return error / bound if bound > 0 else math.inf


def attacked_layer(case: Case, dtype: torch.dtype, autocast: bool) -> Attacked | None:
    layer = gaussian_layer(case, dtype)
    try:
        conv = attention_to_conv(layer, tolerance=case.tolerance)
    except ValueError:
        return None  # too soft for a convolution
    grid = [high - low + 2 for low, high in conv.reach]
    grid[0] += case.extra
    inside = (slice(None), *conv.interior(grid))
    most = MOST_TOKENS_FULL if case.covariance == "full" else MOST_TOKENS
    if math.prod(grid) > most or not torch.zeros(1, *grid)[inside].numel():
        return None
    exact_layer, exact_conv = copy.deepcopy(layer).double(), copy.deepcopy(conv).double()

    def error(x: Tensor) -> float:
        return float((conv(x, grid).double() - layer(x, grid).double())[inside].abs().max())

    def linear(x: Tensor) -> tuple[Tensor, Tensor]:
        exact = exact_layer(x, grid)[inside]
        return exact_conv(x, grid)[inside] - exact, exact

    leaked = max(
        sum(kernel.leak * row for kernel, row in zip(conv.kernels, rows, strict=True)) for rows in conv.norms.joined
    )
    return Attacked((1, *grid, layer.dim), dtype, autocast, error, conv.error_bound, linear, leaked)


def attacked_convolution(case: Case, dtype: torch.dtype, autocast: bool, plan: str) -> Attacked | None:
    conv = convolution(case, dtype)
    turned: Any = conv_to_attention(conv, tolerance=case.tolerance, plan=plan)
    side = case.dilation * (case.kernel - 1) + 3 + (case.extra % 7 if case.axes < 3 else 0)
    exact_conv, exact_turned = copy.deepcopy(conv).double(), copy.deepcopy(turned).double()

    def error(x: Tensor) -> float:
        return float((turned(x).double() - conv(x).double()).abs().max())

    def linear(x: Tensor) -> tuple[Tensor, Tensor]:
        exact = exact_conv(x)
        return exact_turned(x) - exact, exact

    shape = (1, case.width, *[side] * case.axes)
    leaked = turned.leak * float(turned.weight.detach().double().abs().flatten(1).sum(1).max())
    return Attacked(shape, dtype, autocast, error, turned.error_bound, linear, leaked)


def inputs(target: Attacked, draw: random.Random) -> Iterator[Tensor]:
    """Numbers that hurt: all bits set, one large among small ones, and those that maximize one output's error or size."""
    shape = target.shape
    scale = 10 ** draw.uniform(-2, 2)
    yield scale * torch.randn(shape)
    yield torch.full(shape, draw.choice((0.7, 1 - 2.0**-9, 1 / 3)))
    yield torch.randn(shape).sign() * (2 - 2.0**-12)
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    for result in target.linear(x):
        at = draw.randrange(result.numel())
        (gradient,) = torch.autograd.grad(result.flatten()[at], x, retain_graph=True)
        yield scale * (1 - 2.0**-10) * gradient.sign()


def climbed(target: Attacked, best: Tensor, ratio: float, draw: random.Random, climbs: int) -> tuple[float, bool]:
    """Small changes of the worst input, each kept if it is worse still."""
    for _ in range(climbs):
        some = torch.rand(best.shape) < draw.choice((0.02, 0.1, 0.5))
        change = draw.choice((lambda x: -x, lambda x: x * (1 + 0.01 * torch.randn(x.shape)), torch.randn_like))
        tried = torch.where(some, change(best), best)
        found = target.ratio(tried)
        if found > ratio:
            best, ratio = tried, found
    return ratio, target.rounding_decides(best)


def worst_ratio(target: Attacked, draw: random.Random, climbs: int = CLIMBS) -> tuple[float, bool]:
    """The largest error found relative to its bound, and whether the bound is one of rounding there."""
    torch.manual_seed(draw.randrange(1 << 30))
    best, ratio = torch.zeros(target.shape), 0.0
    for x in inputs(target, draw):
        found = target.ratio(x)
        if found >= ratio:
            best, ratio = x, found
    return climbed(target, best, ratio, draw, climbs)


def leak_ratio(kind: str, case: Case) -> float:
    """The largest L1 distance of a row of weights from its window or tap, relative to the leak that is stated."""
    if kind == "leak of a tap":
        conv: Any = conv_to_attention(convolution(case, torch.float64), tolerance=case.tolerance)  # type: ignore[arg-type]
        side = case.dilation * (case.kernel - 1) + 3
        grid = (side,) * case.axes
        weights = conv.weights(grid, torch.zeros(1, dtype=torch.float64))
        sharp = copy.copy(conv)
        sharp.alpha = 1e6
        return _relative(weights - sharp.weights(grid, torch.zeros(1, dtype=torch.float64)), conv.leak)
    layer = gaussian_layer(case, torch.float64)
    try:
        made = attention_to_conv(layer, tolerance=case.tolerance)
    except ValueError:
        return 0.0
    grid = tuple(high - low + 2 for low, high in made.reach)
    if math.prod(grid) > 600:
        return 0.0
    theirs = gaussian_weights(layer.center, layer.sharpness, grid).detach()
    windows = torch.stack([_window_map(kernel, grid) for kernel in made.kernels])
    apart = (theirs - windows).unflatten(1, grid)
    if kind == "leak at the border":
        return _relative(apart.flatten(1, case.axes), made.border_leak(grid))
    return _relative(apart[:, *made.interior(grid)].flatten(1, case.axes), made.leak)


def _relative(apart: Tensor, leak: float) -> float:
    if not apart.numel():
        return 0.0
    found = float(apart.abs().sum(-1).max())
    return max(found - FLOAT64_ROW, 0.0) / leak if leak > 0 else (math.inf if found > FLOAT64_ROW else 0.0)


def _window_map(kernel: Any, grid: tuple[int, ...]) -> Tensor:
    """The map of a window of taps whose edge repeats, (tokens, tokens): written out, one token at a time."""
    places = torch.cartesian_prod(*[torch.arange(n) for n in grid]).reshape(-1, len(grid))
    taps = torch.cartesian_prod(*[torch.arange(n) for n in kernel.taps.shape]).reshape(-1, len(grid))
    at = places[:, None] + taps + torch.tensor(kernel.start)
    at = torch.minimum(at.clamp_min(0), torch.tensor(grid) - 1)
    flat = torch.zeros(at.shape[:2], dtype=torch.int64)
    for axis, size in enumerate(grid):
        flat = flat * size + at[..., axis]
    found = torch.zeros(len(places), math.prod(grid), dtype=torch.float64)
    return found.scatter_add_(1, flat, kernel.taps.flatten().double().expand(len(places), -1))


def band_share(case: Case, name: str) -> float:
    """The attention that a banded plan leaves out, relative to half a unit of the dtype, which it says not to reach."""
    dtype, size, sharpness = DTYPES[name], 256, case.sharpest / 50
    center = torch.tensor([[4 * random.Random(case.seed).uniform(-1, 1)]]).double()
    plan = plan_for(center, torch.tensor([sharpness]).double(), (size,), dtype)
    radius = plan.heads[0].radius
    if radius is None:
        return 0.0
    offset = torch.arange(-4 * size, 4 * size + 1).double()
    nearest = center.round().item()
    weights = (-sharpness * (offset - center.item()).square()).softmax(0)
    cut = weights[(offset - nearest).abs() > radius[0]].sum().item()
    return cut / (torch.finfo(dtype).eps / 2)


@dataclass
class Found:
    """The worst of one bound in one dtype."""

    cases: int = 0
    ratio: float = 0.0
    rounding: float = 0.0  # the worst where rounding decides
    case: Case | None = None
    rounding_case: Case | None = None

    def add(self, ratio: float, by_rounding: bool, case: Case) -> None:
        self.cases += 1
        if ratio > self.ratio:
            self.ratio, self.case = ratio, case
        if by_rounding and ratio > self.rounding:
            self.rounding, self.rounding_case = ratio, case

    def next(self, draw: random.Random) -> Case:
        """A new case, or a neighbor of one of the worst two."""
        worst = draw.choice((None, None, self.case, self.rounding_case))
        return Case.draw(draw) if worst is None else worst.changed(draw)


def one_case(bound: str, name: str, case: Case, draw: random.Random, climbs: int = CLIMBS) -> tuple[float, bool] | None:
    """The worst ratio found for this case, and whether rounding decides it; None where there is nothing to attack."""
    if bound in LEAKS:
        return leak_ratio(bound, case), False
    if bound == BAND:
        return band_share(case, name), False
    dtype, autocast = DTYPES.get(name, torch.float32), name == "autocast"
    if bound == "attention → convolution":
        target = attacked_layer(case, dtype, autocast)
    else:
        target = attacked_convolution(case, dtype, autocast, "taps" if bound.endswith("taps") else "attention")
    return None if target is None else worst_ratio(target, draw, climbs)


def search(first: int, count: int, seed: int, climbs: int = CLIMBS) -> dict[tuple[str, str], Found]:
    """Cases ``first`` to ``first + count`` of a seed. A case that offers nothing to attack is drawn again."""
    kinds = [(bound, name) for bound in BOUNDS for name in ARITHMETIC] * 2
    kinds += [(bound, "float64") for bound in LEAKS] + [(BAND, name) for name in DTYPES]
    found = {kind: Found() for kind in kinds}
    for number in range(first, first + count):
        draw = random.Random(f"{seed} {number}")
        kind = kinds[number % len(kinds)]
        result = None
        while result is None:
            case = found[kind].next(draw)
            result = one_case(*kind, case, draw, climbs)
        found[kind].add(*result, case)
    return found


def table(found: dict[tuple[str, str], Found]) -> str:
    lines = [
        f"{'bound':26} {'arithmetic':10} {'cases':>6} {'largest error / bound':>22} {'where rounding decides':>23}"
    ]
    for (bound, name), each in found.items():
        by_rounding = f"{each.rounding:23.3f}" if bound in BOUNDS else ""
        lines.append(f"{bound:26} {name:10} {each.cases:6d} {each.ratio:22.3g} {by_rounding}".rstrip())
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=positive, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case, to search in pieces")
    parser.add_argument("--climbs", type=int, default=CLIMBS, help="steps of hill climbing for each case")
    parser.add_argument("--output", type=Path, help="result file; default results/certificates-cpu-<date>.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.process_time()
    found = search(options.first, options.cases, options.seed, options.climbs)
    print(table(found))
    false = {kind: each for kind, each in found.items() if each.ratio > 1}
    for kind, each in false.items():
        print(f"FALSE: {kind}: {each.ratio:.3g} times its bound for {each.case}")
    rows = [
        {
            "bound": bound,
            "arithmetic": name,
            "cases": each.cases,
            "largest_error_of_bound": each.ratio,
            "where_rounding_decides": each.rounding if bound in BOUNDS else None,
        }
        for (bound, name), each in found.items()
    ]
    print(f"{options.cases} cases, {len(false)} bounds broken, {time.process_time() - begin:.0f} s of processor time")
    path = options.output or RESULTS / f"certificates-cpu-{date.today().isoformat()}.json"
    write_rows("certificates", path, rows, hardware("cpu", 1), cases=options.cases, seed=options.seed)
    return 1 if false else 0


if __name__ == "__main__":
    sys.exit(main())
