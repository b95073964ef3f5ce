"""Which way each Gaussian head is computed: dense, separable, banded or full. Every way gives the same result."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from regard._checks import describe
from regard.functional._axis import Border, check_border
from regard.functional._mix import AxisBlocks, HeadGroup

Way = Literal["dense", "separable", "banded", "full"]

# A key whose weight is below e^−L of the largest cannot change a sum in that dtype.
NEGLIGIBLE = {torch.float64: 42.0, torch.float32: 18.0, torch.float16: 12.0, torch.bfloat16: 9.0}

# Up to this many tokens one dense product per head beats thin passes (benchmarks/crossover.py measures both).
DENSE_TOKENS = {"cpu": 100, "cuda": 256}

# A band pays where its windows read at most this share of the axis; blocks of this many outputs share a window.
BAND_SHARE = 0.5
BAND_BLOCK = 32


@dataclass(frozen=True)
class HeadPlan:
    """How one head is computed. ``radius`` is the band's reach per axis (banded heads alone)."""

    way: Way
    radius: tuple[int, ...] | None = None


@dataclass(frozen=True)
class GaussianPlan:
    """A frozen choice per head, made by :func:`plan_for` from the heads' values.

    A banded head stays correct while its center moves by at most ``slack`` and its sharpness does not fall below what
    the plan was made for; on the CPU, in eager mode, a plan that no longer holds is refused.
    """

    heads: tuple[HeadPlan, ...]
    grid: tuple[int, ...]
    outputs: tuple[int, ...]
    border: Border
    slack: float
    groups: tuple[HeadGroup, ...]
    center: tuple[tuple[float, ...], ...]
    sharpness: tuple[tuple[float, ...], ...]

    def __str__(self) -> str:
        counts: dict[str, int] = defaultdict(int)
        for head in self.heads:
            counts[head.way if head.radius is None else f"banded, radius {'×'.join(map(str, head.radius))}"] += 1
        grid = "×".join(map(str, self.grid))
        return f"GaussianPlan({grid}: " + ", ".join(f"{n} {way}" for way, n in counts.items()) + ")"


def plan_for(
    center: Float[Tensor, "heads axes"],
    sharpness: Float[Tensor, "heads ..."],
    grid: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    queries: Sequence[Tensor] | None = None,
    border: Border = "native",
    padding: Sequence[tuple[int, int]] | None = None,
    slack: float = 0.0,
) -> GaussianPlan:
    """Look at the heads' values once and freeze the cheapest exact way for each.

    Pass the result as ``plan=`` to :func:`regard.gaussian_attention`: local heads then cost time linear in tokens, like
    a convolution. It runs eagerly and reads values (on a GPU it waits for them); the frozen plan is plain Python, so that
    ``torch.compile(fullgraph=True)`` and ``torch.export`` take it as a constant.

    Args:
        center, sharpness, grid, queries, border, padding: as for :func:`regard.gaussian_attention`.
        dtype: the dtype of the values: it decides which weights are too small to matter.
        slack: how far a center may move before the plan must be made again.

    >>> center, sharpness = torch.zeros(2, 2), torch.tensor([2.0, 0.001])
    >>> print(plan_for(center, sharpness, (256, 256)))
    GaussianPlan(256×256: 1 banded, radius 3×3, 1 separable)
    """
    from regard.functional._gaussian import resolve  # the boundary check lives beside the public function

    call = resolve(center, sharpness, grid, queries, border, padding)
    if dtype not in NEGLIGIBLE:
        raise TypeError(f"dtype must be one of {', '.join(map(str, NEGLIGIBLE))}, got {dtype}")
    if not isinstance(slack, int | float) or not slack >= 0:
        raise ValueError(f"slack must be a number of 0 or more, got {describe(slack)}")
    heads, device = center.shape[0], center.device.type
    full = sharpness.ndim == 3
    default = "full" if full else choose_way(call.grid, call.outputs, device)
    alphas = [] if full else call.axis_sharpness(sharpness).detach().double().cpu().tolist()
    reach = [
        None if full or default == "dense" or border not in ("native", "zeros") else
        tuple(band_radius(alpha, dtype, slack) for alpha in alphas[h])
        for h in range(heads)
    ]  # fmt: skip
    centers = center.detach().double().cpu()
    members: dict[tuple[object, ...], list[int]] = defaultdict(list)
    plans: list[HeadPlan] = []
    for h in range(heads):
        widths = band_widths(reach[h], call.grid, call.outputs, call.coordinates, centers[h], slack)
        if widths is None:
            plans.append(HeadPlan(default))
            members[default, None].append(h)
        else:
            plans.append(HeadPlan("banded", reach[h]))
            members["banded", widths].append(h)
    groups = []
    for (way, widths), which in members.items():
        if way == "banded":
            axes = tuple(
                band_blocks(call, a, [centers[h, a].item() for h in which], width)  # type: ignore[arg-type]
                for a, width in enumerate(widths)  # type: ignore[arg-type]
            )
        else:
            axes = whole_blocks(way, call.grid, call.outputs, len(which))  # type: ignore[arg-type]
        groups.append(HeadGroup(tuple(which), axes))
    return GaussianPlan(
        tuple(plans), call.grid, call.outputs, border, float(slack), tuple(groups),
        tuple(map(tuple, centers.tolist())), tuple(map(tuple, alphas)),
    )  # fmt: skip


def choose_way(grid: Sequence[int], outputs: Sequence[int], device: str) -> Way:
    """By shapes alone: dense where the grid is small, separable elsewhere."""
    tokens = max(math.prod(grid), math.prod(outputs))
    if len(grid) == 1:
        return "separable"  # one axis: its matrix is the whole map, both ways are one
    return "dense" if tokens <= DENSE_TOKENS.get(device, DENSE_TOKENS["cuda"]) else "separable"


def whole_blocks(way: Way, grid: Sequence[int], outputs: Sequence[int], heads: int) -> tuple[AxisBlocks, ...]:
    if way == "separable":
        return tuple(AxisBlocks.whole(o, n, heads) for o, n in zip(outputs, grid, strict=True))
    return (AxisBlocks.whole(math.prod(outputs), math.prod(grid), heads),)


def band_radius(alpha: float, dtype: torch.dtype, slack: float = 0.0) -> int:
    """The largest step m from the nearest key with α·m(m − 1) ≤ L: no key farther away can matter.

    The nearest key lies at most ½ from a target inside the axis, and (m − ½)² − ¼ = m(m − 1); for a target outside
    the axis the weights fall faster still.
    """
    if alpha <= 0:
        return 1 << 30
    return int((1 + math.sqrt(1 + 4 * NEGLIGIBLE[dtype] / alpha)) / 2 + math.ceil(slack)) if alpha > 1e-12 else 1 << 30


def band_widths(
    radius: tuple[int, ...] | None,
    grid: Sequence[int],
    outputs: Sequence[int],
    coordinates: Sequence[Tensor],
    center: Tensor,
    slack: float,
) -> tuple[int | None, ...] | None:
    """The window per axis (None: the whole axis), or None where no axis gains from a band."""
    if radius is None:
        return None
    widths: list[int | None] = []
    for r, n, o, coordinate in zip(radius, grid, outputs, coordinates, strict=True):
        block = min(BAND_BLOCK, o)
        if r >= n:
            widths.append(None)
            continue
        nearest = coordinate.detach().double().cpu().round()
        spread = max(int((part.max() - part.min()).item()) for part in nearest.split(block))
        width = spread + 2 * r + 2
        widths.append(width if width <= BAND_SHARE * n else None)
    return None if all(width is None for width in widths) else tuple(widths)


def band_blocks(call: "object", axis: int, centers: list[float], width: int | None) -> AxisBlocks:
    """Cut one axis into blocks whose windows hold every key that matters to any of the block's outputs."""
    n, o = call.grid[axis], call.outputs[axis]  # type: ignore[attr-defined]
    if width is None:
        return AxisBlocks.whole(o, n, len(centers))
    block = min(BAND_BLOCK, o)
    coordinate = call.coordinates[axis].detach().double().cpu()  # type: ignore[attr-defined]
    before, after = call.padding[axis]  # type: ignore[attr-defined]
    starts = []
    for center in centers:
        nearest = (coordinate + center).round().clamp(-before, n - 1 + after)
        row = []
        for part in nearest.split(block):
            middle = (part.min() + part.max()) / 2
            row.append(int(min(max(math.floor(middle - (width - 1) / 2), 0), n - width)))
        starts.append(tuple(row))
    return AxisBlocks(o, n, block, width, tuple(starts))


def check_plan(plan: object) -> None:
    if isinstance(plan, GaussianPlan) or plan in ("auto", "dense", "separable"):
        return
    if plan in get_args(Way):
        raise ValueError(
            f"plan={plan!r} depends on the heads' values or shape: make a plan with "
            f"regard.functional.plan_for(center, sharpness, grid, dtype) and pass it"
        )
    raise ValueError(f"plan must be 'auto', 'dense', 'separable' or what plan_for returned, got {describe(plan)}")


__all__ = ["GaussianPlan", "HeadPlan", "check_border", "plan_for"]
