"""Launches of the plane kernels. If a plane kernel does not fit the GPU, two passes replace it; if a pass does not fit,
torch's products replace it."""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from regard.functional.kernels import _plain
from regard.functional.kernels._axis_pass import pass_backward, pass_forward
from regard.functional.kernels._map_gradient import map_gradient
from regard.functional.kernels._matrices import matrices_backward, matrices_forward
from regard.functional.kernels._plane import plane_backward, plane_forward
from regard.functional.kernels._setups import (
    Plane,
    Setup,
    map_setups,
    matrices_setup,
    parts_of,
    pass_setups,
    plane_setups,
)
from regard.functional.kernels._tensors import empty_output, on_own_device, readable_as_plane


@on_own_device
def matrices(center: Tensor, sharpness: Tensor, plane: Plane, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The axis matrices, (heads, rows, rows) and (heads, columns, columns)."""
    heads, rows, columns = center.shape[0], plane.row_inputs, plane.column_inputs
    made = center.new_empty(heads, rows, rows, dtype=dtype), center.new_empty(heads, columns, columns, dtype=dtype)
    setup = matrices_setup(plane, outputs=16)
    matrices_forward[heads, setup.programs, 2](
        center, sharpness, *made, *center.stride(), *sharpness.stride(), **setup.constants
    )
    return made


@on_own_device
def matrices_gradient(
    center: Tensor, sharpness: Tensor, plane: Plane, by_rows: Tensor, by_columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of center and sharpness, (heads, 2) each, from matrix gradients (parts, heads, outputs, inputs) per axis."""
    heads, setup = center.shape[0], matrices_setup(plane, outputs=8)
    sums = center.new_empty(2, setup.programs, heads, 2, dtype=torch.float32)
    matrices_backward[heads, setup.programs, 2](
        center, sharpness, by_rows, by_columns, sums[0], sums[1], by_rows.shape[0], by_columns.shape[0],
        *center.stride(), *sharpness.stride(), **setup.constants,
    )  # fmt: skip
    total = sums.sum(1)
    return total[0].to(center.dtype), total[1].to(sharpness.dtype)


@on_own_device
def mix_forward(value: Tensor, rows: Tensor, columns: Tensor, plane: Plane) -> tuple[Tensor, Tensor]:
    """(output, intermediate result between the two passes, which is empty for a small plane)."""
    value = readable_as_plane(value)
    out = empty_output(value, rows.shape[0], plane.row_outputs * plane.column_outputs)
    if plane.is_small and _plane_forward(value, rows, columns, out, plane) is not None:
        return out, value.new_empty(0)
    half = _half(value, rows, plane)
    _pass(half, columns, out, _along_columns(plane), plane.row_outputs)
    return out, value.new_empty(0) if plane.is_small else half


@on_own_device
def mix_backward(
    grad: Tensor, value: Tensor, rows: Tensor, columns: Tensor, half: Tensor, plane: Plane,
    needs_value: bool, needs_matrices: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of the value and of both axes' matrices; the latter as partial sums (parts, heads, outputs, inputs)."""
    grad, value = readable_as_plane(grad), readable_as_plane(value)
    if not plane.is_small:
        return _passes_backward(grad, value, rows, columns, half, plane, needs_value, needs_matrices)
    if value.shape[1] == rows.shape[0]:
        found = _plane_backward(grad, value, rows, columns, plane, needs_value, needs_matrices)
        return found or _passes_backward(grad, value, rows, columns, None, plane, needs_value, needs_matrices)
    by_value = by_rows = by_columns = None
    if needs_value:
        by_value = _shared_gradient(grad, value, rows, columns, plane)
        if by_value is None:
            by_value, _, _ = _passes_backward(grad, value, rows, columns, None, plane, True, False)
    if needs_matrices:
        made = _map_gradient(grad, value, rows, columns, plane)
        if made is None:
            _, by_rows, by_columns = _passes_backward(grad, value, rows, columns, None, plane, False, True)
        else:
            by_rows, by_columns = made
    return by_value, by_rows, by_columns


def _passes_backward(
    grad: Tensor, value: Tensor, rows: Tensor, columns: Tensor, half: Tensor | None, plane: Plane,
    needs_value: bool, needs_matrices: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The same, one axis after the other; the intermediate result is recomputed if it was not saved."""
    heads = rows.shape[0]
    if half is None:
        half = _half(value, rows, plane)
    grad_half = torch.empty_like(half)
    by_columns = _pass_gradient(
        half, columns, grad, grad_half, _along_columns(plane), plane.row_outputs, True, needs_matrices
    )
    by_value = empty_output(value, heads, value.shape[2])
    by_rows = _pass_gradient(
        value, rows, grad_half, by_value, _along_rows(plane), plane.column_inputs, needs_value, needs_matrices
    )
    if not needs_value:
        return None, by_rows, by_columns
    if value.shape[1] != heads:
        by_value = torch.sum(by_value, 1, keepdim=True, out=empty_output(value, 1, value.shape[2]))
    return by_value, by_rows, by_columns


class Sides(NamedTuple):
    """Strides, in tokens, of the contracted axis and of the other axis, for the input and for the output."""

    from_axis: int
    from_other: int
    to_axis: int
    to_other: int


@functools.cache
def _along_rows(plane: Plane) -> Sides:
    return Sides(plane.column_inputs, 1, plane.column_inputs, 1)


@functools.cache
def _along_columns(plane: Plane) -> Sides:
    return Sides(1, plane.column_inputs, 1, plane.column_outputs)


def _strides(tensor: Tensor, heads: int, axis: int, other: int) -> tuple[int, int, int, int]:
    item, head, token, _ = tensor.stride()
    return item, head if tensor.shape[1] == heads else 0, axis * token, other * token


def _half(value: Tensor, rows: Tensor, plane: Plane) -> Tensor:
    """Values multiplied by the row matrices along the first axis."""
    half = value.new_empty(value.shape[0], rows.shape[0], plane.row_outputs * plane.column_inputs, value.shape[3])
    _pass(value, rows, half, _along_rows(plane), plane.column_inputs)
    return half


def _pass(x: Tensor, matrix: Tensor, y: Tensor, sides: Sides, others: int) -> None:
    heads, outputs, inputs = matrix.shape
    from_x = _strides(x, heads, sides.from_axis, sides.from_other)
    to_y = _strides(y, heads, sides.to_axis, sides.to_other)
    strides = from_x + to_y
    setups = pass_setups(matrix.shape, x.dtype, x.device, x.shape[3], others, x.shape[0], strides, False)

    def start(setup: Setup) -> Tensor:
        pass_forward[heads, setup.programs](x, matrix, y, *setup.counts, *strides, **setup.constants)
        return y

    if setups.launch(start) is None:
        read = _plain.as_plane(x, inputs, others, heads, from_x)
        _plain.mix(read, matrix, _plain.as_plane(y, outputs, others, heads, to_y))


def _pass_gradient(
    x: Tensor, matrix: Tensor, grad_y: Tensor, grad_x: Tensor, sides: Sides, others: int, needs_x: bool, needs_a: bool
) -> Tensor | None:
    heads, outputs, inputs = matrix.shape
    of_x = _strides(x, heads, sides.from_axis, sides.from_other)
    of_y = _strides(grad_y, heads, sides.to_axis, sides.to_other)
    to_x = _strides(grad_x, heads, sides.from_axis, sides.from_other)
    strides = of_x + of_y + to_x
    setups = pass_setups(
        matrix.shape, x.dtype, x.device, x.shape[3], others, x.shape[0], strides, True, needs_x, needs_a
    )

    def start(setup: Setup) -> Tensor:
        grad_a = matrix.new_empty((setup.programs, *matrix.shape) if needs_a else (0,), dtype=torch.float32)
        pass_backward[heads, setup.programs](
            x, matrix, grad_y, grad_x, grad_a, *setup.counts, *strides, **setup.constants
        )
        return grad_a

    grad_a = setups.launch(start)
    if grad_a is None:
        upstream = _plain.as_plane(grad_y, outputs, others, heads, of_y)
        if needs_x:
            _plain.mix(upstream, matrix.mT, _plain.as_plane(grad_x, inputs, others, heads, to_x))
        if needs_a:
            grad_a = _plain.matrix_gradient(_plain.as_plane(x, inputs, others, heads, of_x), upstream)
    return grad_a if needs_a else None


def _plane_forward(value: Tensor, rows: Tensor, columns: Tensor, out: Tensor, plane: Plane) -> Tensor | None:
    """``out``, or None if the kernel does not fit the GPU; the functions below return None likewise."""
    (items, value_heads, _, width), heads = value.shape, rows.shape[0]
    shared = value_heads != heads
    strides = value.stride()[:3] + out.stride()[:3]
    setups = plane_setups(plane, value.dtype, value.device, heads, width, items, strides, shared, False)

    def start(setup: Setup) -> Tensor:
        grid = (setup.programs,) if shared else (heads, setup.programs)
        plane_forward[grid](value, rows, columns, out, *setup.counts, *strides, **setup.constants)
        return out

    return setups.launch(start)


def _plane_backward(
    grad: Tensor, value: Tensor, rows: Tensor, columns: Tensor, plane: Plane, needs_value: bool, needs_matrices: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None] | None:
    items, heads, tokens, width = value.shape
    by_value = empty_output(value, heads, tokens)
    strides = value.stride()[:3] + grad.stride()[:3] + by_value.stride()[:3]
    setups = plane_setups(
        plane, value.dtype, value.device, heads, width, items, strides, False, True, needs_value, needs_matrices
    )

    def start(setup: Setup) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        parts = setup.programs if needs_matrices else 0
        by_rows, by_columns = (rows.new_empty((parts, *x.shape), dtype=torch.float32) for x in (rows, columns))
        plane_backward[heads, setup.programs](
            value, rows, columns, grad, by_value, by_rows, by_columns, *setup.counts, *strides, **setup.constants
        )
        return by_value if needs_value else None, by_rows if parts else None, by_columns if parts else None

    return setups.launch(start)


def _shared_gradient(grad: Tensor, value: Tensor, rows: Tensor, columns: Tensor, plane: Plane) -> Tensor | None:
    """The gradient of a value that all heads share, summed over the heads inside the kernel."""
    (items, _, tokens, width), heads = value.shape, rows.shape[0]
    by_value = empty_output(value, 1, tokens)
    strides = value.stride()[:3] + grad.stride()[:3] + by_value.stride()[:3]
    setups = plane_setups(plane, value.dtype, value.device, heads, width, items, strides, True, True, True, False)

    def start(setup: Setup) -> Tensor:
        plane_backward[(setup.programs,)](
            value, rows, columns, grad, by_value, rows, columns, *setup.counts, *strides, **setup.constants
        )
        return by_value

    return setups.launch(start)


def _map_gradient(
    grad: Tensor, value: Tensor, rows: Tensor, columns: Tensor, plane: Plane
) -> tuple[Tensor, Tensor] | None:
    """Gradients of both axes' matrices, computed from the gradient of the whole map."""
    (items, _, inputs, width), (heads, outputs) = value.shape, grad.shape[1:3]
    strides = (value.stride(0), value.stride(2), *grad.stride()[:3])
    setups = map_setups(outputs, inputs, value.dtype, value.device, heads, width, items, strides)

    def start(setup: Setup) -> Tensor:
        blocks = parts_of(outputs, setup.constants["BLOCK_OUTPUTS"])
        parts = value.new_empty(setup.programs, heads, outputs, inputs, dtype=torch.float32)
        map_gradient[heads, blocks, setup.programs](value, grad, parts, *setup.counts, *strides, **setup.constants)
        return parts

    parts = setups.launch(start)
    if parts is None:
        return None
    whole = parts.sum(0).view(heads, plane.row_outputs, plane.column_outputs, plane.row_inputs, plane.column_inputs)
    by_rows = (whole * columns[:, None, :, None, :]).sum((2, 4))
    by_columns = (whole * rows[:, :, None, :, None]).sum((1, 3))
    return by_rows.unsqueeze(0), by_columns.unsqueeze(0)
