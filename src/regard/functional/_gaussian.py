"""Gaussian positional attention, exact, at O(tokens · (rows + columns)) instead of O(tokens²)."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard._checks import check_floating, check_ndim, describe, values_are_readable
from regard.functional._axis import Border, axis_matrix, build_dtype, check_border, check_sharpness, fold, nearest_scores
from regard.functional._mix import AxisBlocks, HeadGroup, mix
from regard.functional._plan import GaussianPlan, Way, check_plan, choose_way, whole_blocks


def gaussian_attention(
    value: Float[Tensor, "batch value_heads tokens width"],
    center: Float[Tensor, "heads axes"],
    sharpness: Float[Tensor, "heads ..."],
    grid: Sequence[int],
    *,
    queries: Sequence[Tensor] | None = None,
    border: Border = "native",
    padding: Sequence[tuple[int, int]] | None = None,
    plan: str | GaussianPlan = "auto",
) -> Float[Tensor, "batch heads outputs width"]:
    r"""Attention by position alone: head h looks at the offset ``center[h]`` from each query, sharply or softly.

    .. math:: \mathrm{out}_q = \sum_k A_{qk} v_k, \qquad
              A_{qk} = \mathrm{softmax}_k\bigl(-\alpha \lVert (k - q) - \Delta \rVert^2\bigr)

    Over a grid A is exactly the Kronecker product of one small matrix per axis (:func:`axis_matrix`), borders
    included, so the N×N map is never formed. In any number of axes: text has one, images two, video three.

    Args:
        value: ``(batch, heads, tokens, width)``; tokens of the grid in row-major order. One head is shared by all.
        center: Δ, key − query in (row, column, …) order: where the head looks, as a convolution's kernel offset.
        sharpness: α ≥ 0: ``(heads,)``, ``(heads, axes)``, or ``(heads, axes, axes)``, a full symmetric positive
            semi-definite matrix S with the score :math:`-(\delta-\Delta)^\top S (\delta-\Delta)`. A full matrix does not
            factorise: it costs N×N.
        grid: the size of each axis, such as ``(rows, columns)``.
        queries: one 1-D tensor of coordinates per axis, the grid's own by default; they may be fractional or outside.
        border: see :func:`axis_matrix`; every border but ``native`` needs ``padding``.
        padding: ``(before, after)`` per axis.
        plan: ``"auto"`` chooses by shapes alone; ``"dense"`` and ``"separable"`` force a way; a plan from
            :func:`plan_for` also makes local heads linear in tokens. Every way gives the same result.

    >>> image = torch.eye(3).reshape(1, 1, 9, 1)                    # a diagonal line, one head, width 1
    >>> right = gaussian_attention(image, torch.tensor([[0.0, 1.0]]), torch.tensor([60.0]), (3, 3))
    >>> right.reshape(3, 3).round()                                 # every query looks one pixel to its right
    tensor([[0., 0., 0.],
            [1., 0., 0.],
            [0., 1., 1.]])
    """
    call = resolve(center, sharpness, grid, queries, border, padding)
    call.check_value(value, center)
    check_plan(plan)
    groups = call.groups(plan, center, sharpness, value)
    return mix(value, groups, [call.matrices(group, center, sharpness, value.dtype) for group in groups])


def gaussian_weights(
    center: Float[Tensor, "heads axes"],
    sharpness: Float[Tensor, "heads ..."],
    grid: Sequence[int],
    *,
    queries: Sequence[Tensor] | None = None,
    border: Border = "native",
    padding: Sequence[tuple[int, int]] | None = None,
) -> Float[Tensor, "heads outputs inputs"]:
    """The map itself, for looking at: (heads, queries, keys). :func:`gaussian_attention` never forms it.

    >>> gaussian_weights(torch.zeros(1, 2), torch.zeros(1), (2, 2))[0, 0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    call = resolve(center, sharpness, grid, queries, border, padding)
    way: Way = "full" if sharpness.ndim == 3 else "dense"
    heads = center.shape[0]
    group = HeadGroup(tuple(range(heads)), whole_blocks(way, call.grid, call.outputs, heads))
    return call.matrices(group, center, sharpness, center.dtype)[0][:, 0]


@dataclass(frozen=True)
class GaussianCall:
    """The checked arguments of one call, with defaults filled in."""

    grid: tuple[int, ...]
    coordinates: tuple[Tensor, ...]
    border: Border
    padding: tuple[tuple[int, int], ...]

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(coordinate.shape[0] for coordinate in self.coordinates)

    def check_value(self, value: Tensor, center: Tensor) -> None:
        check_ndim("value", value, "batch heads tokens width")
        if value.shape[1] not in (1, center.shape[0]):
            raise ValueError(f"value has {value.shape[1]} heads but center has {center.shape[0]}; one head is shared by all")
        tokens = math.prod(self.grid)
        if value.shape[2] != tokens:
            raise ValueError(
                f"value has {value.shape[2]} tokens but grid {self.grid} has {' × '.join(map(str, self.grid))} = {tokens}"
            )
        if value.device != center.device:
            raise ValueError(f"value is on {value.device} but center is on {center.device}")

    def axis_sharpness(self, sharpness: Tensor) -> Tensor:
        """(heads, axes), from one sharpness per head or from one per head and axis."""
        return sharpness if sharpness.ndim == 2 else sharpness.unsqueeze(-1).expand(-1, len(self.grid))

    def groups(
        self, plan: str | GaussianPlan, center: Tensor, sharpness: Tensor, value: Tensor
    ) -> tuple[HeadGroup, ...]:
        if isinstance(plan, GaussianPlan):
            self.check_plan_holds(plan, center, sharpness)
            return plan.groups
        way: Way
        if sharpness.ndim == 3:
            way = "full"
        elif plan == "auto":
            # An exported program keeps one way for every size, and only separable suits them all.
            way = "separable" if torch.compiler.is_exporting() else choose_way(self.grid, self.outputs, value.device.type)
        else:
            way = "dense" if plan == "dense" else "separable"
        heads = center.shape[0]
        return (HeadGroup(tuple(range(heads)), whole_blocks(way, self.grid, self.outputs, heads)),)

    def check_plan_holds(self, plan: GaussianPlan, center: Tensor, sharpness: Tensor) -> None:
        if (plan.grid, plan.outputs, plan.border, len(plan.heads)) != (
            self.grid, self.outputs, self.border, center.shape[0],
        ):  # fmt: skip
            raise ValueError(
                f"plan was made for {len(plan.heads)} heads, grid {plan.grid}, outputs {plan.outputs}, border "
                f"{plan.border!r}, but this call has {center.shape[0]} heads, grid {self.grid}, outputs {self.outputs}, "
                f"border {self.border!r}: call plan_for again"
            )
        banded = [h for h, head in enumerate(plan.heads) if head.way == "banded"]
        if not banded or not values_are_readable(center):
            return
        moved = (center.detach().double() - torch.tensor(plan.center, dtype=torch.float64)).abs()[banded].max().item()
        frozen = torch.tensor(plan.sharpness, dtype=torch.float64)[banded]
        softened = bool((self.axis_sharpness(sharpness.detach()).double()[banded] < frozen * (1 - 1e-6)).any())
        if moved > plan.slack + 1e-6 or softened:
            raise ValueError(
                f"plan no longer holds: a banded head's center moved by {moved:.3g} (slack {plan.slack:g})"
                f"{' and a head became softer' if softened else ''}; call plan_for again, or with more slack"
            )

    def matrices(self, group: HeadGroup, center: Tensor, sharpness: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """One ``(heads, blocks, block, window)`` tensor per axis that the group mixes along."""
        build = build_dtype(center, sharpness, torch.empty((), dtype=dtype))
        if group.heads != tuple(range(center.shape[0])):
            index = torch.tensor(group.heads, device=center.device)
            center, sharpness = center.index_select(0, index), sharpness.index_select(0, index)
        center, sharpness = center.to(build), sharpness.to(build)
        targets = [
            coordinate.to(build) + center[:, axis, None] for axis, coordinate in enumerate(self.coordinates)
        ]
        if sharpness.ndim == 3:
            return [full_matrix(targets, sharpness, self.grid, self.border, self.padding).unsqueeze(1)]
        alphas = self.axis_sharpness(sharpness).unbind(-1)
        flat = len(group.axes) == 1 and len(self.grid) > 1
        axes = [AxisBlocks.whole(o, n, 1) for o, n in zip(self.outputs, self.grid, strict=True)] if flat else group.axes
        matrices = [
            axis_matrix(target, alpha, axis.inputs, border=self.border, padding=padding).unsqueeze(1)
            if axis.is_whole
            else band_matrix(target, alpha, axis, padding)
            for target, alpha, axis, padding in zip(targets, alphas, axes, self.padding, strict=True)
        ]
        if flat:
            whole = matrices[0][:, 0]
            for matrix in matrices[1:]:
                whole = torch.einsum("hon,hpm->hopnm", whole, matrix[:, 0]).flatten(3, 4).flatten(1, 2)
            return [whole.unsqueeze(1)]
        return matrices


def band_matrix(
    targets: Float[Tensor, "heads outputs"],
    sharpness: Float[Tensor, " heads"],
    axis: AxisBlocks,
    padding: tuple[int, int] = (0, 0),
) -> Float[Tensor, "heads blocks block window"]:
    """The blocks of an axis matrix that hold all its weight, without the rest of it."""
    blocks = len(axis.starts[0])
    missing = blocks * axis.block - axis.outputs
    if missing:  # the last block's unused rows: any target will do
        targets = torch.cat([targets, targets[:, -1:].expand(-1, missing)], 1)
    before, after = padding
    low, high = -before, axis.inputs - 1 + after
    starts = torch.tensor(axis.starts, device=targets.device, dtype=targets.dtype)
    columns = starts.unsqueeze(-1) + torch.arange(axis.window, device=targets.device, dtype=targets.dtype)
    blocked = targets.unflatten(1, (blocks, axis.block))
    scores = nearest_scores(blocked, sharpness, columns.unsqueeze(2), low, high)
    if not (before or after):
        return scores.softmax(-1)
    # Padding takes part in the sum although it carries no value: its share of the normaliser is added back.
    reach = torch.arange(-axis.window, axis.window + 1, device=targets.device, dtype=targets.dtype)
    nearest = blocked.detach().round().clamp(low, high)
    around = nearest.unsqueeze(-1) + reach
    everything = nearest_scores(blocked, sharpness, around, low, high)
    everything = everything.masked_fill((around < low) | (around > high), -math.inf)
    return scores.exp() / everything.exp().sum(-1, keepdim=True)


def full_matrix(
    targets: Sequence[Float[Tensor, "heads outputs"]],
    sharpness: Float[Tensor, "heads axes axes"],
    grid: tuple[int, ...],
    border: Border,
    padding: Sequence[tuple[int, int]],
) -> Float[Tensor, "heads outputs inputs"]:
    """The N×N map of heads with a full sharpness matrix, relative to the key nearest to each target."""
    axes = len(grid)
    steps, shifts = [], []
    for axis, (target, n, (before, after)) in enumerate(zip(targets, grid, padding, strict=True)):
        coordinate = torch.arange(-before, n + after, device=target.device, dtype=target.dtype)
        nearest = target.detach().round().clamp(-before, n - 1 + after)
        step = coordinate - nearest.unsqueeze(-1)  # (heads, outputs, inputs)
        steps.append(step.reshape(step.shape[0], *_spread(step.shape[1], axis, axes), *_spread(step.shape[2], axis, axes)))
        shift = nearest - target
        shifts.append(shift.reshape(shift.shape[0], *_spread(shift.shape[1], axis, axes), *[1] * axes))
    # (m + e)ᵀS(m + e) − eᵀSe = Σ_ab S_ab (m_a (m_b + e_b) + e_a m_b), for steps m from the nearest key, which lies
    # e from the target: no large constant is there to cancel.
    alpha = sharpness.reshape(*sharpness.shape, *[1] * (2 * axes))
    pairs = [(a, b) for a in range(axes) for b in range(axes)]
    terms = [alpha[:, a, b] * (steps[a] * (steps[b] + shifts[b]) + shifts[a] * steps[b]) for a, b in pairs]
    weights = (-functools.reduce(operator.add, terms)).flatten(1 + axes).softmax(-1)
    padded = [n + before + after for n, (before, after) in zip(grid, padding, strict=True)]
    weights = weights.unflatten(-1, padded)
    for axis, (n, (before, _)) in enumerate(zip(grid, padding, strict=True)):
        moved = weights.movedim(1 + axes + axis, -1)
        lead = moved.shape[:-1]
        folded = fold(moved.reshape(lead[0], -1, moved.shape[-1]), n, border, before)
        weights = folded.reshape(*lead, n).movedim(-1, 1 + axes + axis)
    return weights.flatten(1 + axes).flatten(1, axes)


def _spread(size: int, axis: int, axes: int) -> list[int]:
    return [1] * axis + [size] + [1] * (axes - 1 - axis)


def resolve(
    center: Tensor,
    sharpness: Tensor,
    grid: Sequence[int],
    queries: Sequence[Tensor] | None,
    border: Border,
    padding: Sequence[tuple[int, int]] | None,
) -> GaussianCall:
    """Check the arguments that describe the heads and the grid, and fill in the defaults."""
    grid = check_grid(grid)
    axes = len(grid)
    check_floating("center", center)
    check_floating("sharpness", sharpness)
    if center.ndim != 2:
        raise ValueError(f"center must be (heads, axes), got {describe(center)}")
    heads = center.shape[0]
    if center.shape[1] != axes:
        raise ValueError(f"center has shape {tuple(center.shape)} but grid {grid} has {axes} axes")
    fits = [(heads,), (heads, axes), (heads, axes, axes)]
    if tuple(sharpness.shape) not in fits:
        raise ValueError(
            f"sharpness has shape {tuple(sharpness.shape)}; for {heads} heads on a grid of {axes} axes it must be one of "
            f"{', '.join(map(str, fits))}"
        )
    if sharpness.device != center.device:
        raise ValueError(f"sharpness is on {sharpness.device} but center is on {center.device}")
    if sharpness.ndim == 3:
        check_full_sharpness(sharpness)
    else:
        check_sharpness(sharpness)
    if values_are_readable(center) and not bool(center.isfinite().all()):
        raise ValueError("center must be finite, but holds NaN or infinite values")
    if padding is None:
        if border != "native":
            raise ValueError(f"border {border!r} needs padding: ((before, after), …), one pair per axis of grid {grid}")
        padding = ((0, 0),) * axes
    if len(padding) != axes:
        raise ValueError(f"padding has {len(padding)} pairs but grid {grid} has {axes} axes")
    check_border(border, *padding)
    return GaussianCall(
        grid, query_coordinates(queries, grid, center), border, tuple((int(b), int(a)) for b, a in padding)
    )


def query_coordinates(queries: Sequence[Tensor] | None, grid: tuple[int, ...], center: Tensor) -> tuple[Tensor, ...]:
    if queries is None:
        dtype = build_dtype(center)
        return tuple(torch.arange(n, device=center.device, dtype=dtype) for n in grid)
    if len(queries) != len(grid) or any(not isinstance(q, Tensor) or q.ndim != 1 for q in queries):
        raise ValueError(
            f"queries must be one 1-D tensor of coordinates for each axis of grid {grid}, got "
            f"[{', '.join(describe(q) for q in queries)}]"
        )
    return tuple(queries)


def check_grid(grid: Sequence[int]) -> tuple[int, ...]:
    if isinstance(grid, int) or not isinstance(grid, Sequence):
        raise TypeError(f"grid must be a sequence of sizes such as (rows, columns), got {describe(grid)}")
    sizes = tuple(grid)
    if not sizes or any(isinstance(n, bool) or not isinstance(n, int | torch.SymInt) for n in sizes):
        raise TypeError(f"grid must be whole numbers such as (rows, columns), got {describe(grid)}")
    if not torch.compiler.is_compiling() and any(n < 1 for n in sizes):
        raise ValueError(f"grid must have sizes of 1 or more, got {sizes}")
    return sizes


def check_full_sharpness(sharpness: Tensor) -> None:
    if not values_are_readable(sharpness):
        return
    matrix = sharpness.detach().double()
    scale = matrix.abs().amax((-2, -1)).clamp_min(1e-30)
    if not bool(matrix.isfinite().all()):
        raise ValueError("sharpness must be finite, but holds NaN or infinite values")
    if bool(((matrix - matrix.mT).abs().amax((-2, -1)) > 1e-5 * scale).any()):
        raise ValueError("sharpness as (heads, axes, axes) must be symmetric matrices")
    lowest = torch.linalg.eigvalsh(matrix).amin(-1)
    if bool((lowest < -1e-5 * scale).any()):
        raise ValueError(
            f"sharpness as (heads, axes, axes) must be positive semi-definite, but its smallest eigenvalue is "
            f"{lowest.min().item():g}"
        )
