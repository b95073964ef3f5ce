"""Gaussian attention over a grid of any size, as an autograd function for eager mode and as a custom operator."""

import math
from typing import Any

import torch
from torch import Tensor

from regard.functional.kernels._call_cache import key_of, remember
from regard.functional.kernels._grid_plan import Backward, Forward, plan_of
from regard.functional.kernels._plain import aliases, plain_gradient, plain_grid
from regard.functional.kernels._tensors import (
    empty_output,
    is_aligned,
    on_device_of,
    on_own_device,
    raw_stream,
    readable,
)

Saved = list[Tensor]


@on_own_device
def forward(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, Saved]:
    """(output, intermediate results between the passes). Raises ``MemoryError`` if no kernel for a pass fits the GPU."""
    x = readable(value)
    return run_forward(plan_of(x, center, sharpness, grid), x, center, sharpness)


def run_forward(plan: Forward, x: Tensor, center: Tensor, sharpness: Tensor) -> tuple[Tensor, Saved]:
    aligned, stream, between = is_aligned(x, center, sharpness), raw_stream(x), []
    table = x
    if plan.tables:
        table = torch.empty(plan.table_count, dtype=x.dtype, device=x.device)
        moments = torch.empty(plan.moment_count, dtype=torch.float32, device=x.device)
        for launch in plan.tables:
            launch(aligned, stream, center, sharpness, moments, table)
    for local, wide, tabled, strides in plan.passes:
        y = torch.empty_strided(plan.shape, strides, dtype=x.dtype, device=x.device)
        local.start(aligned, stream, x, center, sharpness, y)
        if tabled and wide is not None:
            wide.start(aligned, stream, x, table, center, sharpness, y)
        elif wide is not None:
            wide.start(aligned, stream, x, center, sharpness, y)
        between.append(y)
        x = y
    return between.pop(), between


@on_own_device
def backward(
    grad: Tensor, value: Tensor, center: Tensor, sharpness: Tensor, saved: Saved, grid: tuple[int, ...],
    needs_value: bool, needs_heads: bool, in_place: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of value, center and sharpness. ``in_place``: the intermediate results ``saved`` may be overwritten."""
    grad, value = readable(grad), readable(value)
    plan = plan_of(value, center, sharpness, grid).backward(grad.stride(), needs_value, needs_heads)
    return run_backward(plan, grad, value, center, sharpness, saved, in_place)


def run_backward(
    plan: Backward, grad: Tensor, value: Tensor, center: Tensor, sharpness: Tensor, saved: Saved, in_place: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    needs_value, needs_heads = plan.needs
    aligned, stream = is_aligned(grad, value, center, sharpness), raw_stream(value)
    parts = torch.empty(plan.part_count, dtype=torch.float32, device=value.device)
    moments, table = parts, value
    if plan.moment_count:
        moments = torch.empty(plan.moment_count, dtype=torch.float32, device=value.device)
    if plan.moments is not None:
        plan.moments(aligned, stream, center, sharpness, moments)
    if plan.tables:
        table = torch.empty(plan.table_count, dtype=value.dtype, device=value.device)
        for launch in plan.tables:
            launch(aligned, stream, center, sharpness, moments, table)
    between = saved if in_place else list(saved)
    for place, local, pairs, wide, tabled in plan.steps:
        if place:
            x = between.pop()  # popped, so that its memory is freed once its gradient has been used
            target = x if in_place else torch.empty_like(x)
        else:
            x = target = value
            if needs_value:
                target = torch.empty_strided(value.shape, plan.value, dtype=value.dtype, device=value.device)
        if local is not None:
            local.start(aligned, stream, x, grad, target, center, sharpness, parts)
        if pairs is not None:  # before the gradient may overwrite x
            pairs.start(aligned, stream, x, grad, center, sharpness, moments, parts)
        if tabled and wide is not None:
            wide.start(aligned, stream, grad, table, center, sharpness, target)
        elif wide is not None:
            wide.start(aligned, stream, x, grad, target, center, sharpness, moments, parts)
        grad = target
    by_value = grad if needs_value else None
    if not needs_heads:
        return by_value, None, None
    by_center = torch.empty(center.shape, dtype=center.dtype, device=center.device)
    by_sharpness = torch.empty(sharpness.shape, dtype=sharpness.dtype, device=center.device)
    plan.sum_of_parts()(aligned, stream, parts, center, sharpness, by_center, by_sharpness)
    return by_value, by_center, by_sharpness


class GaussianGrid(torch.autograd.Function):
    """Gaussian attention with border "native" on a grid, from center (heads, axes) and sharpness (heads, axes) or (heads,).

    Besides the value, one intermediate result is saved for each axis but the first, and its gradient overwrites it. A second
    backward pass through the same graph recomputes it.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, center: Tensor, sharpness: Tensor, plan: Forward) -> Tensor:
        ctx.plan = plan
        out, ctx.kept = run_forward(plan, readable(value), center, sharpness)
        ctx.save_for_backward(value, center, sharpness)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        value, center, sharpness = ctx.saved_tensors
        needs_value, needs_center, needs_sharpness, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():
            value, center, sharpness = same = aliases(value, center, sharpness)
            out = plain_grid(value, center, sharpness, ctx.plan.key.grid)
            return *plain_gradient(out, same, (needs_value, needs_center, needs_sharpness), grad), None
        value, grad = readable(value), readable(grad)
        kept, ctx.kept = ctx.kept, None
        if kept is None:
            kept = run_forward(ctx.plan, value, center, sharpness)[1]
        plan = ctx.plan.backward(grad.stride(), needs_value, needs_center or needs_sharpness)
        try:
            return *run_backward(plan, grad, value, center, sharpness, kept, True), None
        except MemoryError:  # no kernel fits this GPU: use torch's products
            needs = (needs_value, needs_center, needs_sharpness)
            with torch.enable_grad():
                inputs = [x.detach().requires_grad_() for x in (value, center, sharpness)]
                out = plain_grid(inputs[0], inputs[1], inputs[2], ctx.plan.key.grid)
            found = iter(torch.autograd.grad(out, [x for x, need in zip(inputs, needs, strict=True) if need], grad))
            return *(next(found) if need else None for need in needs), None


# ``Function.apply`` without its overhead for functorch's transforms: none of them is active where this is called.
_apply = super(torch.autograd.Function, GaussianGrid).apply


def attend(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The output in eager mode. Raises ``MemoryError`` if no kernel for a pass fits the GPU."""
    x = readable(value)
    plan = plan_of(x, center, sharpness, grid)
    with on_device_of(value):
        out = GaussianGrid.apply(value, center, sharpness, plan)
    if x is value:
        remember(key_of(value, center, sharpness, grid), _apply, plan)
    return out


@torch.library.custom_op("regard::gaussian_grid", mutates_args=())
def gaussian_grid(value: Tensor, center: Tensor, sharpness: Tensor, grid: list[int]) -> list[Tensor]:
    """The same for ``torch.compile``: the output, then the intermediate results that the backward pass reads."""
    out, saved = forward(value, center, sharpness, tuple(grid))
    return [out, *saved]


@gaussian_grid.register_fake
def _(value: Tensor, center: Tensor, sharpness: Tensor, grid: list[int]) -> list[Tensor]:
    heads, tokens = center.shape[0], math.prod(grid)
    between = [value.new_empty(value.shape[0], heads, tokens, value.shape[3]) for _ in grid[1:]]
    return [empty_output(value, heads, tokens), *between]


@torch.library.custom_op("regard::gaussian_grid_backward", mutates_args=())
def gaussian_grid_backward(
    grad: Tensor, value: Tensor, center: Tensor, sharpness: Tensor, saved: list[Tensor], grid: list[int],
    needs_value: bool, needs_heads: bool,
) -> list[Tensor]:  # fmt: skip
    found = backward(grad, value, center, sharpness, saved, tuple(grid), needs_value, needs_heads, False)
    return [value.new_empty(0) if x is None else x for x in found]


@gaussian_grid_backward.register_fake
def _(
    grad: Tensor, value: Tensor, center: Tensor, sharpness: Tensor, saved: list[Tensor], grid: list[int],
    needs_value: bool, needs_heads: bool,
) -> list[Tensor]:  # fmt: skip
    return [
        empty_output(value, value.shape[1], value.shape[2]) if needs_value else value.new_empty(0),
        *(x.new_empty(x.shape) if needs_heads else value.new_empty(0) for x in (center, sharpness)),
    ]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    value, center, sharpness, ctx.grid = inputs
    ctx.save_for_backward(value, center, sharpness, *output[1:])


def _gradient(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    value, center, sharpness, *saved = ctx.saved_tensors
    needs_value, needs_center, needs_sharpness = ctx.needs_input_grad[:3]
    by_value, by_center, by_sharpness = gaussian_grid_backward(
        grads[0], value, center, sharpness, saved, ctx.grid, needs_value, needs_center or needs_sharpness
    )
    return (
        by_value if needs_value else None,
        by_center if needs_center else None,
        by_sharpness if needs_sharpness else None,
        None,
    )


gaussian_grid.register_autograd(_gradient, setup_context=_setup)
