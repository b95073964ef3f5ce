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
    """(mixed, what stood between the passes). Raises ``MemoryError`` where the card has no room for a pass."""
    x = readable(value)
    heads, (items, _, tokens, width) = center.shape[0], x.shape
    axes, between = _axes.axes_of(grid), []
    for i, axis in enumerate(axes):
        if i < len(axes) - 1:
            y = x.new_empty(items, heads, tokens, width)
            between.append(y)
        else:
            y = empty_output(x, heads, tokens)
        ways = _axes.forward_ways(
            axis, x.dtype, x.device, items, heads, width, x.shape[1] != heads,
            (*center.stride(), *sharpness.stride(), i), _strides(x, heads), _strides(y, heads),
        )  # fmt: skip
        if ways.start(x, center, sharpness, y) is None:
            raise MemoryError("the card has no room for a pass along one axis")
        x = y
    return x, between


def backward(
    grad: Tensor, value: Tensor, center: Tensor, sharpness: Tensor, between: Saved, grid: tuple[int, ...],
    needs_value: bool, needs_heads: bool, in_place: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of value, center and sharpness. ``in_place``: what stood between the passes may be overwritten."""
    grad, value = readable(grad), readable(value)
    heads, (items, _, tokens, width) = center.shape[0], value.shape
    axes, inputs = _axes.axes_of(grid), [value, *between]
    length = max(grid)
    moments = center.new_empty(3, heads, length, dtype=torch.float32)
    by_center = torch.empty_like(center, memory_format=torch.contiguous_format) if needs_heads else None
    by_sharpness = torch.empty_like(sharpness, memory_format=torch.contiguous_format) if needs_heads else None
    for i in range(len(axes) - 1, -1, -1):
        axis, x = axes[i], inputs[i]
        writes = i > 0 or needs_value
        if not writes and not needs_heads:
            break
        heads_at = (*center.stride(), *sharpness.stride(), i)
        _axes.moments_launch(axis, x.dtype, x.device, heads, heads_at, length)(center, sharpness, moments)
        if i:
            target = x if in_place else torch.empty_like(x)
        else:
            target = empty_output(value, value.shape[1], tokens) if needs_value else value
        ways = _axes.backward_ways(
            axis, x.dtype, x.device, items, heads, width, x.shape[1] != heads, heads_at,
            _strides(x, heads), _strides(grad, heads), _strides(target, heads), (writes, needs_heads), length,
        )  # fmt: skip
        parts = moments
        if needs_heads:  # room for the largest number of programs that any of the ways has
            parts = center.new_empty(heads * 2 * max(way.grid[0] for way in ways.ways), dtype=torch.float32)
        started = ways.start(x, grad, target, center, sharpness, moments, parts)
        if started is None:
            raise MemoryError("the card has no room for a pass along one axis")
        if by_center is not None and by_sharpness is not None:
            _axes.sum_launch(x.device, heads, started.grid[0], len(grid), i)(parts, by_center, by_sharpness)
        grad = target
    return grad if needs_value else None, by_center, by_sharpness


class GaussianGrid(torch.autograd.Function):
    """Gaussian attention of native heads on a grid, from center and sharpness (heads, axes).

    Beside value and output no more than one tensor of their size is kept for each axis but the first, and its gradient
    takes its place. A second backward pass through the same graph makes it again.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Tensor:
        out, ctx.between = forward(value, center, sharpness, grid)
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
        between, ctx.between = ctx.between, None
        if between is None:
            between = forward(value, center, sharpness, ctx.grid)[1]
        needs_heads = needs[1] or needs[2]
        return *backward(grad, value, center, sharpness, between, ctx.grid, needs[0], needs_heads, True), None


@torch.library.custom_op("regard::gaussian_grid", mutates_args=())
def gaussian_grid(value: Tensor, center: Tensor, sharpness: Tensor, grid: list[int]) -> list[Tensor]:
    """The same for ``torch.compile``: the output, then what stood between the passes."""
    out, between = forward(value, center, sharpness, tuple(grid))
    return [out, *between]


@gaussian_grid.register_fake
def _(value: Tensor, center: Tensor, sharpness: Tensor, grid: list[int]) -> list[Tensor]:
    heads, tokens = center.shape[0], math.prod(grid)
    between = [value.new_empty(value.shape[0], heads, tokens, value.shape[3]) for _ in grid[1:]]
    return [empty_output(value, heads, tokens), *between]


@torch.library.custom_op("regard::gaussian_grid_backward", mutates_args=())
def gaussian_grid_backward(
    grad: Tensor, value: Tensor, center: Tensor, sharpness: Tensor, between: list[Tensor], grid: list[int],
    needs_value: bool, needs_heads: bool,
) -> list[Tensor]:  # fmt: skip
    found = backward(grad, value, center, sharpness, between, tuple(grid), needs_value, needs_heads, False)
    return [value.new_empty(0) if x is None else x for x in found]


@gaussian_grid_backward.register_fake
def _(
    grad: Tensor, value: Tensor, center: Tensor, sharpness: Tensor, between: list[Tensor], grid: list[int],
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
    value, center, sharpness, *between = ctx.saved_tensors
    needs_value, needs_center, needs_sharpness = ctx.needs_input_grad[:3]
    by_value, by_center, by_sharpness = gaussian_grid_backward(
        grads[0], value, center, sharpness, between, ctx.grid, needs_value, needs_center or needs_sharpness
    )
    return (
        by_value if needs_value else None,
        by_center if needs_center else None,
        by_sharpness if needs_sharpness else None,
        None,
    )


gaussian_grid.register_autograd(_gradient, setup_context=_setup)
