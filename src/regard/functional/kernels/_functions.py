"""The kernels as autograd functions, for eager mode: they have less overhead between launches than custom operators.

Second-order gradients are computed by plain operations, which autograd records.
"""

from typing import Any

import torch
from torch import Tensor

from regard.functional.kernels import _launch
from regard.functional.kernels._plain import aliases, axis_matrices, plain_gradient
from regard.functional.kernels._setups import Plane


class MixPlane(torch.autograd.Function):
    """Values multiplied along both axes by (heads, outputs, inputs) matrices."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, rows: Tensor, columns: Tensor, plane: Plane) -> Tensor:
        rows, columns = rows.contiguous(), columns.contiguous()
        out, half = _launch.mix_forward(value, rows, columns, plane)
        ctx.plane = plane
        ctx.save_for_backward(value, rows, columns, half)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        value, rows, columns, half = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            inputs = aliases(value, rows, columns)
            return *plain_gradient(plain_mix(*inputs), inputs, needs, grad), None
        by_value, by_rows, by_columns = _launch.mix_backward(
            grad, value, rows, columns, half, ctx.plane, needs[0], needs[1] or needs[2]
        )
        return (
            by_value,
            None if by_rows is None else by_rows.sum(0).to(rows.dtype),
            None if by_columns is None else by_columns.sum(0).to(columns.dtype),
            None,
        )


class GaussianPlane(torch.autograd.Function):
    """Gaussian attention on a plane with border "native", from center and sharpness (heads, 2)."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, int]) -> Tensor:
        plane = Plane(grid[0], grid[0], grid[1], grid[1])
        rows, columns = _launch.matrices(center, sharpness, plane, value.dtype)
        out, half = _launch.mix_forward(value, rows, columns, plane)
        ctx.plane = plane
        ctx.save_for_backward(value, center, sharpness, rows, columns, half)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        value, center, sharpness, rows, columns, half = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            value, center, sharpness = inputs = aliases(value, center, sharpness)
            made = axis_matrices(center, sharpness, (ctx.plane.row_inputs, ctx.plane.column_inputs), value.dtype)
            return *plain_gradient(plain_mix(value, *made), inputs, needs, grad), None
        by_value, by_rows, by_columns = _launch.mix_backward(
            grad, value, rows, columns, half, ctx.plane, needs[0], needs[1] or needs[2]
        )
        if by_rows is None or by_columns is None:
            return by_value, None, None, None
        by_center, by_sharpness = _launch.matrices_gradient(center, sharpness, ctx.plane, by_rows, by_columns)
        return by_value, by_center, by_sharpness, None


def plain_mix(value: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    planes = value.unflatten(2, (rows.shape[2], columns.shape[2])).expand(-1, rows.shape[0], -1, -1, -1)
    return torch.einsum("hmk,hnl,bhkle->bhmne", rows, columns, planes).flatten(2, 3)
