"""Gaussian positional attention, exact, at O(tokens · (rows + columns)) instead of O(tokens²)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.functional import kernels
from regard.functional._axis import Border
from regard.functional._call import GaussianCall, resolve
from regard.functional._maps import matrices_for
from regard.functional._mix import HeadGroup, mix
from regard.functional._placed import full_attention, map_is_too_large
from regard.functional._plan import GaussianPlan, check_plan, check_plan_holds, groups_for
from regard.functional._taps import shifted
from regard.functional._wide_heads import wide_heads
from regard.observation import is_observed, observe, unobserved
from regard.support.checks import check_probability, is_transformed
from regard.support.tensor_cache import constant

# Up to this many tokens, one value shared by all heads is multiplied by whole maps on a GPU (the kernels' smallest block
# is 16 × 16).
# Measured on an H200, 9 heads: forward and backward of (8, 8) take 0.5 ms instead of 1.3, of (16, 16) 1.3 instead of 0.8.
WHOLE_MAPS = 64


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
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads outputs width"]:
    r"""Attention by position alone: head h looks at the offset ``center[h]`` from each query, sharply or softly.

    .. math:: \mathrm{out}_q = \sum_k A_{qk} v_k, \qquad
              A_{qk} = \mathrm{softmax}_k\bigl(-\alpha \lVert (k - q) - \Delta \rVert^2\bigr)

    Over a grid A is exactly the Kronecker product of one small matrix per axis (:func:`axis_matrix`), borders
    included, so the N×N map is never formed. The number of axes is free: text has one, images two, video three.

    Args:
        value: ``(batch, heads, tokens, width)``; tokens of the grid in row-major order. A single head is shared by all.
        center: Δ, key − query in (row, column, …) order: where the head looks, like the kernel offset of a convolution.
        sharpness: α ≥ 0: ``(heads,)``, ``(heads, axes)``, or ``(heads, axes, axes)``, a full symmetric positive
            semi-definite matrix S with the score :math:`-(\delta-\Delta)^\top S (\delta-\Delta)`. A full matrix does not
            factorize: on small grids its N×N map is formed, on large grids the fused kernel runs in memory linear in tokens
            (:func:`regard.functional.placed_attention`). Both take O(N²) time.
        grid: the size of each axis, such as ``(rows, columns)``.
        queries: one 1-D tensor of coordinates per axis, the grid's own by default; they may be fractional or outside.
        border: see :func:`axis_matrix`; every border but ``native`` needs ``padding``.
        padding: ``(before, after)`` per axis.
        plan: ``"auto"`` chooses by shapes, and finds local heads without a synchronization: on the CPU from their values,
            on a GPU inside the kernels. Local heads take time linear in tokens, like a convolution. So do wide heads on the
            CPU; on a GPU they need a plan from :func:`plan_for`, which is frozen. ``"dense"`` and ``"separable"`` force a
            method. Every method gives the same result.
        dropout: probability of dropping an entry of the axis matrices, for training.

    >>> image = torch.eye(3).reshape(1, 1, 9, 1)                    # a diagonal line, one head, width 1
    >>> right = gaussian_attention(image, torch.tensor([[0.0, 1.0]]), torch.tensor([60.0]), (3, 3))
    >>> right.reshape(3, 3).round()                                 # every query looks one pixel to its right
    tensor([[0., 0., 0.],
            [1., 0., 0.],
            [0., 1., 1.]])
    """
    if is_default(queries, border, padding, plan, dropout) and not is_observed():
        found = kernels.cached_gaussian_grid(value, center, sharpness, grid)
        if found is not None:
            return found
    check_probability("dropout", dropout)
    call = resolve(center, sharpness, grid, queries, border, padding)
    return observe(
        None,
        lambda: attend(value, call, plan, dropout),
        lambda: gaussian_weights(center, sharpness, grid, queries=queries, border=border, padding=padding)[None],
        value=value,
        kind="gaussian",
        grid=tuple(grid),
        prefix=0,
        query_grid=None if queries is None else tuple(len(coordinates) for coordinates in queries),
        clean=(lambda: attend(value, call, plan)) if dropout else None,
    )


def is_default(queries: object, border: object, padding: object, plan: object, dropout: object) -> bool:
    return (
        queries is None
        and padding is None
        and border == "native"
        and plan == "auto"
        and isinstance(dropout, int | float)
        and dropout == 0
    )


def attend(value: Tensor, call: GaussianCall, plan: str | GaussianPlan, dropout: float = 0.0) -> Tensor:
    """Compute a call by the method that the plan chooses. ``dropout`` drops entries of axis matrices."""
    call.check_value(value)
    check_plan(plan)
    if isinstance(plan, GaussianPlan):
        plan.check_value(value)
    if isinstance(plan, GaussianPlan) and plan.shifts is not None and value.device.type == "cpu" and not dropout:
        # On the CPU alone: on a GPU the kernels already read no more than shifts do.
        check_plan_holds(plan, call)
        # A shift has no derivative by center and sharpness, neither backward nor forward.
        differentiated = torch.is_grad_enabled() and (call.center.requires_grad or call.sharpness.requires_grad)
        if not differentiated and not is_transformed():
            return shifted(value, plan.shifts, call.grid)
    interpolates = isinstance(plan, GaussianPlan) and any(group.nodes for group in plan.groups) and not dropout
    if plan != "dense" and not dropout and not interpolates and suits_kernel(value, call):
        # The kernels detect local heads on the device, so a frozen plan has no effect on them.
        if isinstance(plan, GaussianPlan):
            check_plan_holds(plan, call)
        if kernels.is_small_plane(call.grid):
            return kernels.gaussian_plane(value, call.center, call.axis_sharpness, call.grid)
        return kernels.gaussian_grid(value, call.center, call.sharpness, call.grid)
    if plan == "auto" and takes_fused_kernel(value, call, dropout):
        return full_attention(value, call.center, call.sharpness, call.grid)
    if plan == "auto" and dropout and suits_kernel(value, call) and kernels.is_small_plane(call.grid):
        plan = "separable"  # then the plane kernel applies the axis matrices with their dropped entries
    groups = groups_for(call, plan, value.device.type, value.dtype)
    if not dropout and any(group.nodes for group in groups):
        return attend_in_groups(value, call, groups)
    return mix(value, groups, [matrices_for(call, group, value.dtype, dropout) for group in groups])


def attend_in_groups(value: Tensor, call: GaussianCall, groups: Sequence[HeadGroup]) -> Tensor:
    """Compute wide heads by interpolation, and all others together."""
    parts = [wide_heads(value, call, group) for group in groups if group.nodes]
    heads = [head for group in groups if group.nodes for head in group.heads]
    others = [group for group in groups if not group.nodes]
    if others:
        left = sorted(head for group in others for head in group.heads)
        index = constant(tuple(left), value.device)
        part = value if value.shape[1] == 1 else value.index_select(1, index)
        rest = call._replace(center=call.center.index_select(0, index), sharpness=call.sharpness.index_select(0, index))
        groups = [group._replace(heads=tuple(map(left.index, group.heads))) for group in others]
        parts.append(mix(part, groups, [matrices_for(rest, group, value.dtype) for group in groups]))
        heads += left
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    order = tuple(sorted(range(len(heads)), key=heads.__getitem__))
    return whole if order == tuple(range(len(heads))) else whole.index_select(1, constant(order, value.device))


def takes_fused_kernel(value: Tensor, call: GaussianCall, dropout: float) -> bool:
    """Whether heads with a full matrix are computed by torch's fused kernel, because their N×N maps would be too large."""
    return (
        call.is_full
        and call.queries is None
        and call.border == "native"
        and not dropout
        and map_is_too_large(value, call.heads, math.prod(call.grid))
    )


def suits_kernel(value: Tensor, call: GaussianCall) -> bool:
    """Whether the Gaussian kernels can compute this call: border "native", and queries at the grid's own coordinates."""
    return (
        call.queries is None
        and call.border == "native"
        and not call.is_full
        and call.center.dtype != torch.float64
        and not (value.shape[1] == 1 and value.device.type == "cuda" and math.prod(call.grid) <= WHOLE_MAPS)
        and kernels.usable_on_grid(value, call.grid)
    )


def gaussian_weights(
    center: Float[Tensor, "heads axes"],
    sharpness: Float[Tensor, "heads ..."],
    grid: Sequence[int],
    *,
    queries: Sequence[Tensor] | None = None,
    border: Border = "native",
    padding: Sequence[tuple[int, int]] | None = None,
) -> Float[Tensor, "heads outputs inputs"]:
    """The map itself, to inspect it: (heads, queries, keys). :func:`gaussian_attention` never forms it.

    >>> gaussian_weights(torch.zeros(1, 2), torch.zeros(1), (2, 2))[0, 0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    call = resolve(center, sharpness, grid, queries, border, padding)
    (group,) = groups_for(call, "dense", center.device.type)
    return unobserved(matrices_for, call, group, center.dtype)[0][:, 0].to(center.dtype)
