"""The kernels as differentiable custom operators, which ``torch.compile`` treats as opaque."""

from typing import Any

import torch
from torch import Tensor

from regard.functional.kernels import _launch
from regard.functional.kernels._setups import Plane
from regard.functional.kernels._tensors import empty_output


@torch.library.custom_op("regard::mix_plane", mutates_args=())
def mix_plane(value: Tensor, rows: Tensor, columns: Tensor, plane: list[int]) -> tuple[Tensor, Tensor]:
    """Values multiplied along both axes by (heads, outputs, inputs) matrices, and the intermediate result for backward."""
    return _launch.mix_forward(value, rows.contiguous(), columns.contiguous(), Plane(*plane))


@mix_plane.register_fake
def _(value: Tensor, rows: Tensor, columns: Tensor, plane: list[int]) -> tuple[Tensor, Tensor]:
    return _shapes(value, rows.shape[0], Plane(*plane))


def _shapes(value: Tensor, heads: int, plane: Plane) -> tuple[Tensor, Tensor]:
    out = empty_output(value, heads, plane.row_outputs * plane.column_outputs)
    if plane.is_small:
        return out, value.new_empty(0)
    return out, value.new_empty(value.shape[0], heads, plane.row_outputs * plane.column_inputs, value.shape[3])


@torch.library.custom_op("regard::mix_plane_backward", mutates_args=())
def mix_plane_backward(
    grad: Tensor, value: Tensor, rows: Tensor, columns: Tensor, half: Tensor, plane: list[int],
    needs_value: bool, needs_matrices: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    grads = _launch.mix_backward(
        grad, value, rows.contiguous(), columns.contiguous(), half, Plane(*plane), needs_value, needs_matrices
    )
    by_value, by_rows, by_columns = grads
    empty = value.new_empty(0)
    return (
        empty if by_value is None else by_value,
        empty.float() if by_rows is None else by_rows.sum(0),
        empty.float() if by_columns is None else by_columns.sum(0),
    )


@mix_plane_backward.register_fake
def _(
    grad: Tensor, value: Tensor, rows: Tensor, columns: Tensor, half: Tensor, plane: list[int],
    needs_value: bool, needs_matrices: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _gradient_shapes(value, rows, columns, needs_value, needs_matrices)


def _gradient_shapes(
    value: Tensor, rows: Tensor, columns: Tensor, needs_value: bool, needs_matrices: bool
) -> tuple[Tensor, Tensor, Tensor]:
    by_value = empty_output(value, value.shape[1], value.shape[2]) if needs_value else value.new_empty(0)
    shapes = (rows.shape, columns.shape) if needs_matrices else ((0,), (0,))
    return (by_value, *(value.new_empty(shape, dtype=torch.float32) for shape in shapes))  # type: ignore[return-value]


def _mix_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    value, rows, columns, ctx.plane = inputs
    ctx.save_for_backward(value, rows, columns, output[1])


def _mix_gradient(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    value, rows, columns, half = ctx.saved_tensors
    needs_value, *needs = ctx.needs_input_grad[:3]
    by_value, by_rows, by_columns = mix_plane_backward(
        grad, value, rows, columns, half, ctx.plane, needs_value, any(needs)
    )
    return (
        by_value if needs_value else None,
        by_rows.to(rows.dtype) if needs[0] else None,
        by_columns.to(columns.dtype) if needs[1] else None,
        None,
    )


mix_plane.register_autograd(_mix_gradient, setup_context=_mix_setup)


@torch.library.custom_op("regard::gaussian_plane", mutates_args=())
def gaussian_plane(
    value: Tensor, center: Tensor, sharpness: Tensor, rows: int, columns: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gaussian attention on a plane with border "native", from center and sharpness (heads, 2)."""
    plane = Plane(rows, rows, columns, columns)
    made = _launch.matrices(center, sharpness, plane, value.dtype)
    out, half = _launch.mix_forward(value, *made, plane)
    return out, half, *made


@gaussian_plane.register_fake
def _(
    value: Tensor, center: Tensor, sharpness: Tensor, rows: int, columns: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    heads = center.shape[0]
    out, half = _shapes(value, heads, Plane(rows, rows, columns, columns))
    return out, half, value.new_empty(heads, rows, rows), value.new_empty(heads, columns, columns)


@torch.library.custom_op("regard::gaussian_plane_backward", mutates_args=())
def gaussian_plane_backward(
    grad: Tensor, value: Tensor, center: Tensor, sharpness: Tensor, half: Tensor, rows: Tensor, columns: Tensor,
    needs_value: bool, needs_heads: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    plane = Plane(rows.shape[1], rows.shape[2], columns.shape[1], columns.shape[2])
    by_value, by_rows, by_columns = _launch.mix_backward(
        grad, value, rows, columns, half, plane, needs_value, needs_heads
    )
    empty = value.new_empty(0)
    if by_rows is None or by_columns is None:
        by_center, by_sharpness = empty.clone(), empty.clone()
    else:
        made = _launch.matrices_gradient(center, sharpness, plane, by_rows, by_columns)
        by_center, by_sharpness = made[0].clone(), made[1].clone()  # results of a custom operator must not share memory
    return empty if by_value is None else by_value, by_center, by_sharpness


@gaussian_plane_backward.register_fake
def _(
    grad: Tensor, value: Tensor, center: Tensor, sharpness: Tensor, half: Tensor, rows: Tensor, columns: Tensor,
    needs_value: bool, needs_heads: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    by_value, _, _ = _gradient_shapes(value, rows, columns, needs_value, False)
    if not needs_heads:
        return by_value, value.new_empty(0), value.new_empty(0)
    return by_value, center.new_empty(center.shape), sharpness.new_empty(sharpness.shape)


def _gaussian_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    value, center, sharpness, _, _ = inputs
    ctx.save_for_backward(value, center, sharpness, *output[1:])


def _gaussian_gradient(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Any, ...]:
    value, center, sharpness, half, rows, columns = ctx.saved_tensors
    needs_value, needs_center, needs_sharpness = ctx.needs_input_grad[:3]
    by_value, by_center, by_sharpness = gaussian_plane_backward(
        grad, value, center, sharpness, half, rows, columns, needs_value, needs_center or needs_sharpness
    )
    return (
        by_value if needs_value else None,
        by_center if needs_center else None,
        by_sharpness if needs_sharpness else None,
        None,
        None,
    )


gaussian_plane.register_autograd(_gaussian_gradient, setup_context=_gaussian_setup)
