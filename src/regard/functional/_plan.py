"""By which method each Gaussian head is computed: dense, separable, banded, full or taps. All methods give the same result,
taps within an error bound that the plan states."""

import functools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from regard.functional._axis import Border
from regard.functional._call import GaussianCall, resolve
from regard.functional._mix import AxisBlocks, HeadGroup
from regard.functional._taps import shift_leak
from regard.functional._wide_heads import wide_nodes
from regard.support.checks import describe, is_exporting, is_functional, under_autocast, values_are_readable

Way = Literal["dense", "separable", "banded", "full", "taps"]

# L per dtype: a key whose weight is below e^−L of the largest cannot change a sum in that dtype.
NEGLIGIBLE = {torch.float64: 42.0, torch.float32: 18.0, torch.float16: 12.0, torch.bfloat16: 9.0}

# Up to this many tokens one dense product per head is faster than one pass per axis (measured by benchmarks/crossover.py).
DENSE_TOKENS = {"cpu": 64, "cuda": 1024}

# A band is used if its windows read at most this share of the axis; on a GPU a large product is often faster than a gather.
BAND_SHARE = {"cpu": 0.4, "cuda": 1 / 32}

# Up to this many blocks of a band use the same matrix. Gradients of blocks are added up one after the other, and of many
# float32 would keep too few digits.
MOST_SERVED = 256

# From this many tokens on, plan="auto" on the CPU reads the heads' values to find local heads.
BAND_TOKENS = 1024


def band_block(outputs: int) -> int:
    """How many outputs share a window: smaller blocks read less, larger blocks make larger products."""
    return min(16, max(8, outputs // 4), outputs)


class HeadPlan(NamedTuple):
    """How one head is computed. ``radius`` is the reach of the band per axis (banded heads only), ``shift`` the offset of the
    key that the head reads (taps only), ``nodes`` the number of nodes per axis between which the weights of a wide head are
    interpolated (separable heads only, where this takes less time than whole axis matrices)."""

    way: Way
    radius: tuple[int, ...] | None = None
    shift: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.radius is not None:
            return f"{self.way}, radius {'×'.join(map(str, self.radius))}"
        return self.way if self.nodes is None else f"{self.way} over {'×'.join(map(str, self.nodes))} nodes"


class GaussianPlan(NamedTuple):
    """A frozen method per head, chosen by :func:`plan_for` from the heads' values.

    The result for a banded head stays correct while its center moves by at most ``slack`` and its sharpness does not fall
    below the value at planning; for a wide head with ``nodes``, while its sharpness does not rise above it. On the CPU, in
    eager mode, a plan that no longer holds raises an error. Heads that are
    *taps* are computed as exact shifts while centers and sharpness need no gradient: their rows of weights are at most
    ``leak`` from a shift, in L1. Values of a finer dtype than ``dtype`` are refused: in it, weights matter that the plan
    leaves out.
    """

    heads: tuple[HeadPlan, ...]
    grid: tuple[int, ...]
    outputs: tuple[int, ...]
    border: Border
    slack: float
    groups: tuple[HeadGroup, ...]
    center: tuple[tuple[float, ...], ...]
    sharpness: tuple[tuple[float, ...], ...]
    padding: tuple[tuple[int, int], ...]
    queries: tuple[tuple[float, ...], ...] | None  # None: those of the grid
    leak: float = 0.0
    dtype: torch.dtype = torch.float64  # the finest of values that it holds for

    @property
    def shifts(self) -> tuple[tuple[int, ...], ...] | None:
        """The offset of each head if all heads are taps, else None."""
        shifts = tuple(head.shift for head in self.heads if head.shift is not None)
        return shifts if len(shifts) == len(self.heads) else None

    def check_holds(self, center: Tensor, sharpness: Tensor) -> None:
        """Raise an error for heads (with queries on the grid) that this plan does not fit; values are read only on the CPU."""
        check_plan_holds(self, resolve(center, sharpness, self.grid, None, self.border, self.padding))

    def check_value(self, value: Tensor) -> None:
        """Refuse values in whose dtype weights matter that this plan leaves out."""
        dtype = torch.get_autocast_dtype(value.device.type) if under_autocast(value) else value.dtype
        if NEGLIGIBLE.get(dtype, 0.0) > NEGLIGIBLE[self.dtype]:
            raise TypeError(
                f"plan holds for values of {self.dtype} or coarser, but value is {dtype}, in which weights matter that the plan "
                f"leaves out: call plan_for again, with dtype={dtype}"
            )

    def __str__(self) -> str:
        counts: dict[str, int] = defaultdict(int)
        for head in self.heads:
            counts[str(head)] += 1
        grid = "×".join(map(str, self.grid))
        return f"GaussianPlan({grid}: " + ", ".join(f"{n} {way}" for way, n in counts.items()) + ")"


def plan_for(
    center: Float[Tensor, "heads axes"],
    sharpness: Float[Tensor, "heads ..."],
    grid: Sequence[int],
    dtype: torch.dtype | None = None,
    *,
    queries: Sequence[Tensor] | None = None,
    border: Border = "native",
    padding: Sequence[tuple[int, int]] | None = None,
    slack: float = 0.0,
    tolerance: float = 0.0,
) -> GaussianPlan:
    """Inspect the heads' values once and freeze the cheapest exact method for each head.

    Pass the result as ``plan=`` to :func:`regard.gaussian_attention`: local heads then cost time linear in tokens, like
    a convolution, and so do wide heads, whose weights are interpolated between a few nodes per axis (on a GPU only if all
    heads are wide and an axis is longer than 128). ``plan_for`` runs eagerly and reads values (on a GPU it synchronizes).
    The frozen plan is plain Python, so ``torch.compile(fullgraph=True)`` and ``torch.export`` treat it as a constant.

    Args:
        center, sharpness, grid, queries, border, padding: as for :func:`regard.gaussian_attention`.
        dtype: the dtype of the values, which decides which weights are too small to matter. By default float32, or float64
            if ``center`` is float64.
        slack: how far a center may move before the plan must be made again.
        tolerance: the largest L1 distance of a head's rows of weights from a shift at which the plan replaces heads by
            shifts. It does so if all heads have integer centers and leak no more than this, or than half a unit in the
            last place of ``dtype``, which rounding hides. Such heads are called ``taps``. A full-width
            :class:`regard.GaussianAttention` whose heads are all taps is computed as one convolution with the composed
            weights. ``plan.leak`` is the leak that the plan accepted.

    >>> center, sharpness = torch.zeros(2, 2), torch.tensor([2.0, 0.001])
    >>> print(plan_for(center, sharpness, (256, 256)))
    GaussianPlan(256×256: 1 banded, radius 3×3, 1 separable over 48×48 nodes)
    >>> print(plan_for(center, torch.tensor([30.0, 20.0]), (256, 256)))
    GaussianPlan(256×256: 2 taps)
    """
    call = resolve(center, sharpness, grid, queries, border, padding)
    if dtype is None:
        dtype = torch.float64 if center.dtype is torch.float64 else torch.float32
    if not isinstance(dtype, torch.dtype) or dtype not in NEGLIGIBLE:
        raise TypeError(f"dtype must be one of {', '.join(map(str, NEGLIGIBLE))}, got {describe(dtype)}")
    for name, x in (("center", center), ("sharpness", sharpness)):
        if is_functional(x):
            raise ValueError(f"{name} must have values, which a plan depends on, but it is on {x.device}")
    if isinstance(slack, bool) or not isinstance(slack, int | float) or not 0 <= slack < math.inf:
        raise ValueError(f"slack must be a finite number of 0 or more, got {describe(slack)}")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be a number of 0 or more, below 1, got {describe(tolerance)}")
    default: Way = "full" if call.is_full else choose_way(call.grid, call.outputs, center.device.type)
    centers: list[list[float]] = center.detach().double().tolist()
    alphas: list[list[float]] = [] if call.is_full else call.axis_sharpness.detach().double().tolist()
    heads, groups = cheapest(call, default, centers, alphas, dtype, slack)
    leak, finest = 0.0, dtype if any(head.way == "banded" or head.nodes for head in heads) else torch.float64
    if can_be_taps(call) and not slack and all(x == round(x) for center in centers for x in center):
        worst = max(shift_leak(alpha) for alpha in alphas)
        if worst <= max(tolerance, torch.finfo(dtype).eps / 2):
            heads, leak = [HeadPlan("taps", shift=tuple(map(round, center))) for center in centers], worst
            # A leak that the caller accepts is accepted for every dtype.
            holds = (each for each in NEGLIGIBLE if worst <= max(tolerance, torch.finfo(each).eps / 2))
            finest = max(holds, key=NEGLIGIBLE.__getitem__)
    return GaussianPlan(
        tuple(heads), call.grid, call.outputs, border, float(slack), tuple(groups),
        tuple(map(tuple, centers)), tuple(map(tuple, alphas)), call.padding, _coordinates(call), leak, finest,
    )  # fmt: skip


def can_be_taps(call: GaussianCall) -> bool:
    """Whether sharp heads with integer centers can be shifts, where each query reads the existing key nearest to its target."""
    return not call.is_full and call.queries is None and call.border == "native"


def cheapest(
    call: GaussianCall, default: Way, centers: Sequence[Sequence[float]], alphas: Sequence[Sequence[float]],
    dtype: torch.dtype, slack: float,
) -> tuple[list[HeadPlan], list[HeadGroup]]:  # fmt: skip
    """The method of each head (banded if it is local, else ``default``), and groups of heads that are computed together."""
    can_band = default == "separable" and call.border in ("native", "zeros")
    radii = [
        tuple(band_radius(alpha, dtype, slack) for alpha in alphas[h]) if can_band else None for h in range(call.heads)
    ]
    bands = [None if radius is None else band_windows(call, radius) for radius in radii]
    spread = wide_nodes(call, centers, alphas, bands, dtype, slack) if default == "separable" else [None] * call.heads
    heads: list[HeadPlan] = []
    # Windows and nodes per axis -> heads.
    members: dict[tuple[tuple[int | None, ...] | None, tuple[int, ...] | None], list[int]] = defaultdict(list)
    for h, (radius, windows, nodes) in enumerate(zip(radii, bands, spread, strict=True)):
        local = nodes is None and windows is not None
        heads.append(HeadPlan("banded", radius) if local else HeadPlan(default, nodes=nodes))
        members[windows if local else None, nodes].append(h)
    groups = [
        HeadGroup(
            tuple(which),
            whole_blocks(default, call, len(which))
            if windows is None
            else tuple(
                band_blocks(call, axis, [centers[h][axis] for h in which], window)
                for axis, window in enumerate(windows)
            ),
            nodes,
        )
        for (windows, nodes), which in members.items()
    ]
    return heads, groups


def local_groups(call: GaussianCall, dtype: torch.dtype) -> tuple[HeadGroup, ...] | None:
    """The groups of heads, with bands for local heads, that ``plan="auto"`` uses on the CPU, where reading values is cheap.

    None on other devices, while compiling, for queries off the grid, and on small grids.
    """
    if call.queries is not None or call.border not in ("native", "zeros") or math.prod(call.grid) < BAND_TOKENS:
        return None
    if dtype not in NEGLIGIBLE or not (values_are_readable(call.center) and values_are_readable(call.sharpness)):
        return None
    centers, alphas = call.center.detach().double().tolist(), call.axis_sharpness.detach().double().tolist()
    return _kept_groups(
        tuple(map(tuple, centers)), tuple(map(tuple, alphas)), call.grid, call.border, call.padding, dtype
    )


@functools.lru_cache(64)
def _kept_groups(
    centers: tuple[tuple[float, ...], ...], alphas: tuple[tuple[float, ...], ...], grid: tuple[int, ...], border: Border,
    padding: tuple[tuple[int, int], ...], dtype: torch.dtype,
) -> tuple[HeadGroup, ...]:  # fmt: skip
    center, sharpness = (torch.tensor(x, dtype=torch.float64, device="cpu") for x in (centers, alphas))
    call = GaussianCall(center, sharpness, grid, None, border, padding)
    return tuple(cheapest(call, "separable", centers, alphas, dtype, 0.0)[1])


def groups_for(
    call: GaussianCall, plan: str | GaussianPlan, device: str, dtype: torch.dtype | None = None
) -> tuple[HeadGroup, ...]:
    """The groups of heads of a call. The values' ``dtype`` decides which weights are negligible."""
    check_plan(plan)
    if isinstance(plan, GaussianPlan):
        check_plan_holds(plan, call)
        return plan.groups
    way: Way
    if call.is_full:
        way = "full"
    elif plan == "auto":
        # An exported program has one method for every grid size, and only "separable" suits them all.
        way = "separable" if is_exporting() else choose_way(call.grid, call.outputs, device)
        if way == "separable" and device == "cpu" and dtype is not None:
            local = local_groups(call, dtype)
            if local is not None:
                return local
    else:
        way = "dense" if plan == "dense" else "separable"
    return (HeadGroup(tuple(range(call.heads)), whole_blocks(way, call, call.heads)),)


def choose_way(grid: Sequence[int], outputs: Sequence[int], device: str) -> Way:
    """Choose by shapes alone: dense for small grids, otherwise separable."""
    tokens = max(math.prod(grid), math.prod(outputs))
    if len(grid) == 1:
        return "separable"  # with one axis the axis matrix is the whole map, so both methods are the same
    return "dense" if tokens <= DENSE_TOKENS.get(device, DENSE_TOKENS["cuda"]) else "separable"


def whole_blocks(way: Way, call: GaussianCall, heads: int) -> tuple[AxisBlocks, ...]:
    if way == "separable":
        return tuple(AxisBlocks.whole(o, n, heads) for o, n in zip(call.outputs, call.grid, strict=True))
    return (AxisBlocks.whole(math.prod(call.outputs), math.prod(call.grid), heads),)


def band_radius(alpha: float, dtype: torch.dtype, slack: float = 0.0) -> int:
    """The largest step m from the nearest key with α·m(m − 1) ≤ L: keys farther away have negligible weight.

    The nearest key lies at most ½ from a target inside the axis, and (m − ½)² − ¼ = m(m − 1); for a target outside
    the axis the weights fall even faster.
    """
    if alpha <= 0:
        return 1 << 30
    return int((1 + math.sqrt(1 + 4 * NEGLIGIBLE[dtype] / alpha)) / 2 + math.ceil(slack)) if alpha > 1e-12 else 1 << 30


def band_windows(call: GaussianCall, radius: tuple[int, ...]) -> tuple[int | None, ...] | None:
    """The window size per axis (None: the whole axis), or None if a band pays on no axis."""
    share = BAND_SHARE.get(call.center.device.type, BAND_SHARE["cuda"])
    windows: list[int | None] = []
    for axis, (reach, inputs) in enumerate(zip(radius, call.grid, strict=True)):
        spread = band_block(inputs) - 1
        if call.queries is not None:
            blocks = call.queries[axis].detach().double().cpu().split(band_block(call.outputs[axis]))
            spread = max(math.ceil((block.max() - block.min()).item()) for block in blocks)
        window = spread + 2 * reach + 2
        windows.append(window if window <= share * inputs else None)
    return None if all(window is None for window in windows) else tuple(windows)


def band_blocks(call: GaussianCall, axis: int, centers: list[float], window: int | None) -> AxisBlocks:
    """Split one axis into blocks whose windows contain every key with non-negligible weight for any output of the block."""
    inputs, outputs = call.grid[axis], call.outputs[axis]
    if window is None:
        return AxisBlocks.whole(outputs, inputs, len(centers))
    block = band_block(outputs)
    before, after = call.padding[axis]
    low, high = -before, inputs - 1 + after
    if call.queries is None:
        sides = [(float(first), float(min(first + block, outputs) - 1)) for first in range(0, outputs, block)]
    else:
        parts = call.queries[axis].detach().double().cpu().split(block)
        sides = [(part.min().item(), part.max().item()) for part in parts]
    starts = []
    for center in centers:
        middles = [sum(min(max(round(side + center), low), high) for side in pair) / 2 for pair in sides]
        starts.append(tuple(min(max(math.floor(middle - (window - 1) / 2), 0), inputs - window) for middle in middles))
    numbers = tuple(range(len(sides))) if call.queries is not None else _matrix_numbers(starts, block)
    return AxisBlocks(outputs, inputs, block, window, tuple(starts), numbers)


def _matrix_numbers(starts: Sequence[tuple[int, ...]], block: int) -> tuple[int, ...]:
    """The number of each block's matrix, for queries on the grid. Neighbors have the same matrix if the windows of all heads
    move as far as outputs do: then neither was moved back from beyond an end of the axis, so that all targets lie inside."""
    numbers, served = [0], 1
    for k in range(1, len(starts[0])):
        alike = served < MOST_SERVED and all(start[k] - start[k - 1] == block for start in starts)
        numbers.append(numbers[-1] + (not alike))
        served = served + 1 if alike else 1
    return tuple(numbers)


def check_plan(plan: object) -> None:
    if isinstance(plan, GaussianPlan) or (isinstance(plan, str) and plan in ("auto", "dense", "separable")):
        return
    if isinstance(plan, str) and plan in get_args(Way):
        raise ValueError(
            f"plan={plan!r} depends on the heads' values or shape: make a plan with "
            f"regard.functional.plan_for(center, sharpness, grid, dtype) and pass it"
        )
    raise ValueError(f"plan must be 'auto', 'dense', 'separable' or a result of plan_for, got {describe(plan)}")


def _coordinates(call: GaussianCall) -> tuple[tuple[float, ...], ...] | None:
    return None if call.queries is None else tuple(tuple(axis.detach().double().tolist()) for axis in call.queries)


def check_plan_holds(plan: GaussianPlan, call: GaussianCall) -> None:
    if call.is_full and any(head.way not in ("full", "dense") for head in plan.heads):
        raise ValueError(
            f"plan was made for heads whose maps factorize over the axes, but sharpness has shape "
            f"{tuple(call.sharpness.shape)}, full matrices, whose maps do not: call plan_for again"
        )
    made_for = (plan.grid, plan.outputs, plan.border, plan.padding, len(plan.heads))
    if made_for != (call.grid, call.outputs, call.border, call.padding, call.heads):
        raise ValueError(
            f"plan was made for {len(plan.heads)} heads, grid {plan.grid}, outputs {plan.outputs}, border "
            f"{plan.border!r}, padding {plan.padding}, but this call has {call.heads} heads, grid {call.grid}, outputs "
            f"{call.outputs}, border {call.border!r}, padding {call.padding}: call plan_for again"
        )
    chosen = [h for h, head in enumerate(plan.heads) if head.way in ("banded", "taps") or head.nodes]
    if chosen and (plan.queries is None) != (call.queries is None):
        raise ValueError("plan was made for other queries (on the grid, or explicit coordinates): call plan_for again")
    if not chosen or not values_are_readable(call.center):
        return
    if all(map(values_are_readable, call.queries or ())) and plan.queries != _coordinates(call):
        raise ValueError("plan was made for queries at other coordinates: call plan_for again")
    centers, frozen = (
        torch.tensor(x, dtype=torch.float64, device="cpu")[chosen] for x in (plan.center, plan.sharpness)
    )
    wide = torch.tensor([bool(plan.heads[h].nodes) for h in chosen], device="cpu")[:, None]
    now = call.axis_sharpness.detach().double()[chosen]
    moved = (call.center.detach().double()[chosen] - centers).abs().max().item()
    softer = bool((~wide & (now < frozen * (1 - 1e-6))).any())
    sharper = bool((wide & (now > frozen * (1 + 1e-6))).any())
    if moved > plan.slack + 1e-6 or softer or sharper:
        changes = "".join(f" and a head became {word}" for word, so in (("softer", softer), ("sharper", sharper)) if so)
        raise ValueError(
            f"plan no longer holds: a {plan.heads[chosen[0]].way} head's center moved by {moved:.3g} (slack {plan.slack:g})"
            f"{changes}; call plan_for again, or with more slack"
        )
