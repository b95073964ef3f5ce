"""Gaussian attention over a grid of any size as one function with one backward pass, in eager mode and as an operator."""

import math
from typing import Any

import torch
from torch import Tensor

from regard.functional.kernels import _axes
from regard.functional.kernels._plain import plain_gradient, plain_grid

Saved = list[Tensor]


def readable(tensor: Tensor) -> Tensor:
    """Channels side by side, as the kernels read them; a copy only where they are not."""
    return tensor if tensor.stride(3) == 1 or tensor.shape[3] == 1 else tensor.contiguous()


def empty_output(value: Tensor, heads: int, tokens: int) -> Tensor:
    """(batch, heads, tokens, width), laid out so that joining the heads for the output layer is a view."""
    return value.new_empty(value.shape[0], tokens, heads, value.shape[3]).transpose(1, 2)


def _strides(tensor: Tensor, heads: int) -> tuple[int, int, int]:
    item, head, token, _ = tensor.stride()
    return item, head if tensor.shape[1] == heads else 0, token


def forward(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, Saved]:
    """(mixed, rows' moments and what stood between the passes). ``MemoryError`` where the card has no room for a pass."""
    x = readable(value)
    heads, (items, _, tokens, width) = center.shape[0], x.shape
    strides, length = (*center.stride(), *sharpness.stride()), max(grid)
    moments = center.new_empty(3, len(grid), heads, length, dtype=torch.float32)
    _axes.moments_launch(grid, x.dtype, x.device, heads, strides)(center, sharpness, moments)
    saved = [moments]
    for i, axis in enumerate(_axes.axes_of(grid)):
        if i < len(grid) - 1:
            y = x.new_empty(items, heads, tokens, width)
            saved.append(y)
        else:
            y = empty_output(x, heads, tokens)
        ways = _axes.forward_ways(
            axis, x.dtype, x.device, items, heads, width, x.shape[1] != heads, (*strides, i),
            _strides(x, heads), _strides(y, heads), length,
        )  # fmt: skip
        if ways.start(x, center, sharpness, moments, y) is None:
            raise MemoryError("the card has no room for a pass along one axis")
        x = y
    return x, saved


def backward(
    grad: Tensor, value: Tensor, center: Tensor, sharpness: Tensor, saved: Saved, grid: tuple[int, ...],
    needs_value: bool, needs_heads: bool, in_place: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of value, center and sharpness. ``in_place``: what stood between the passes may be overwritten."""
    grad, value = readable(grad), readable(value)
    heads, (items, _, tokens, width) = center.shape[0], value.shape
    moments, axes, inputs = saved[0], _axes.axes_of(grid), [value, *saved[1:]]
    shared = value.shape[1] != heads
    programs = _axes.most_programs(grid, value.dtype, items, width, shared) if needs_heads else 0
    parts = center.new_empty(heads, len(grid), 2, programs, dtype=torch.float32)
    counts = [0] * len(grid)
    for i in range(len(axes) - 1, -1, -1):
        x = inputs[i]
        writes = i > 0 or needs_value
        if i:
            target = x if in_place else torch.empty_like(x)
        else:
            target = empty_output(value, value.shape[1], tokens) if needs_value else value
        if not writes and not needs_heads:
            break
        for share in _axes.shares(axes[i].size, x.dtype, shared and i == 0):
            ways = _axes.backward_ways(
                axes[i], x.dtype, x.device, items, heads, width, shared and i == 0,
                (*center.stride(), *sharpness.stride(), i), _strides(x, heads), _strides(grad, heads),
                _strides(target, heads), (writes, needs_heads), max(grid), programs, counts[i], len(grid), share,
            )  # fmt: skip
            started = ways.start(x, grad, target, center, sharpness, moments, parts)
            if started is None:
                raise MemoryError("the card has no room for a pass along one axis")
            counts[i] += started.grid[0]
        grad = target
    by_value = grad if needs_value else None
    if not needs_heads:
        return by_value, None, None
    by_center, by_sharpness = center.new_empty(center.shape), sharpness.new_empty(sharpness.shape)
    _axes.sum_launch(value.device, heads, programs, tuple(counts))(parts, by_center, by_sharpness)
    return by_value, by_center, by_sharpness


class GaussianGrid(torch.autograd.Function):
    """Gaussian attention of native heads on a grid, from center and sharpness (heads, axes).

    Beside value and output no more than one tensor of their size is kept for each axis but the first, and its gradient
    takes its place. A second backward pass through the same graph makes it again.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Tensor:
        out, ctx.kept = forward(value, center, sharpness, grid)
        ctx.grid = grid
        ctx.save_for_backward(value, center, sharpness)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        value, center, sharpness = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            out = plain_grid(value, center, sharpness, ctx.grid)
            return *plain_gradient(out, (value, center, sharpness), needs, grad), None
        kept, ctx.kept = ctx.kept, None
        if kept is None:
            kept = forward(value, center, sharpness, ctx.grid)[1]
        needs_heads = needs[1] or needs[2]
        return *backward(grad, value, center, sharpness, kept, ctx.grid, needs[0], needs_heads, True), None


@torch.library.custom_op("regard::gaussian_grid", mutates_args=())
def gaussian_grid(value: Tensor, center: Tensor, sharpness: Tensor, grid: list[int]) -> list[Tensor]:
    """The same for ``torch.compile``: the output, then what the backward pass reads again."""
    out, saved = forward(value, center, sharpness, tuple(grid))
    return [out, *saved]


@gaussian_grid.register_fake
def _(value: Tensor, center: Tensor, sharpness: Tensor, grid: list[int]) -> list[Tensor]:
    heads, tokens = center.shape[0], math.prod(grid)
    between = [value.new_empty(value.shape[0], heads, tokens, value.shape[3]) for _ in grid[1:]]
    moments = center.new_empty(3, len(grid), heads, max(grid), dtype=torch.float32)
    return [empty_output(value, heads, tokens), moments, *between]


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
