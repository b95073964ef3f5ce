"""From tensors to launches: shapes, strides, block sizes, and how many programs share the work."""

import functools
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from regard.functional.kernels._axis_pass import pass_backward, pass_forward
from regard.functional.kernels._matrices import matrices_backward, matrices_forward
from regard.functional.kernels._plane import plane_backward, plane_forward

LARGEST_AXIS = 128
# Elements of a tile that a program keeps on the chip between the passes over both axes.
PLANE_ELEMENTS = 16384
SMALLEST_BLOCK = 16  # of the matrix units


class Blocks(NamedTuple):
    """How a kernel is cut: tile elements along (other · width), and what the compiler is told."""

    columns: int
    warps: int
    stages: int
    programs: int  # per multiprocessor


# By the length of the contracted axis' block; chosen by benchmarks/kernels.py on an H200.
FORWARD = {16: Blocks(256, 4, 3, 4), 32: Blocks(256, 4, 3, 4), 64: Blocks(256, 8, 3, 2), 128: Blocks(128, 8, 3, 2)}
BACKWARD = {16: Blocks(256, 4, 2, 4), 32: Blocks(256, 4, 2, 4), 64: Blocks(128, 4, 3, 2), 128: Blocks(64, 8, 3, 2)}
PLANE_FORWARD = Blocks(0, 8, 1, 2)
PLANE_BACKWARD = Blocks(0, 8, 1, 2)


def block(size: int) -> int:
    return max(SMALLEST_BLOCK, 1 << (size - 1).bit_length())


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def precision(dtype: torch.dtype) -> str:
    """Float32 products in three TF32 parts keep float32's accuracy on the matrix units."""
    return "tf32x3" if dtype == torch.float32 else "tf32"


class Plane(NamedTuple):
    """Outputs and inputs of both axes."""

    row_outputs: int
    row_inputs: int
    column_outputs: int
    column_inputs: int

    @property
    def blocks(self) -> tuple[int, int, int, int]:
        return block(self.row_outputs), block(self.row_inputs), block(self.column_outputs), block(self.column_inputs)

    def slice_width(self, width: int) -> int:
        """How many channels of the whole plane a program can hold; 0 where that is too few to read memory well."""
        rows_out, rows_in, columns_out, columns_in = self.blocks
        elements = max(rows_out, rows_in) * max(columns_out, columns_in)
        fits = min(block(width), PLANE_ELEMENTS // elements)
        return fits if fits >= SMALLEST_BLOCK else 0


def matrices(center: Tensor, sharpness: Tensor, plane: Plane, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(heads, rows, rows) and (heads, columns, columns)."""
    heads, rows, columns = center.shape[0], plane.row_inputs, plane.column_inputs
    made = center.new_empty(heads, rows, rows, dtype=dtype), center.new_empty(heads, columns, columns, dtype=dtype)
    outputs = 16
    matrices_forward[heads, triton.cdiv(max(rows, columns), outputs), 2](
        center, sharpness, *made, *center.stride(), *sharpness.stride(),
        ROWS=rows, COLUMNS=columns, BLOCK_OUTPUTS=outputs, BLOCK_ROWS=block(rows), BLOCK_COLUMNS=block(columns),
        num_warps=4,
    )  # fmt: skip
    return made


def matrices_gradient(
    center: Tensor, sharpness: Tensor, plane: Plane, by_rows: Tensor, by_columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of center and sharpness, (heads, 2) each, from (parts, heads, outputs, inputs) of each axis."""
    heads, rows, columns = center.shape[0], plane.row_inputs, plane.column_inputs
    outputs = 8
    blocks = triton.cdiv(max(rows, columns), outputs)
    sums = center.new_empty(2, blocks, heads, 2, dtype=torch.float32)
    matrices_backward[heads, blocks, 2](
        center, sharpness, by_rows, by_columns, sums[0], sums[1], by_rows.shape[0], by_columns.shape[0],
        *center.stride(), *sharpness.stride(),
        ROWS=rows, COLUMNS=columns, BLOCK_OUTPUTS=outputs, BLOCK_ROWS=block(rows), BLOCK_COLUMNS=block(columns),
        num_warps=4,
    )  # fmt: skip
    return sums[0].sum(0).to(center.dtype), sums[1].sum(0).to(sharpness.dtype)


def empty_output(value: Tensor, heads: int, tokens: int) -> Tensor:
    """(batch, heads, tokens, width), laid out so that joining the heads for the output layer is a view."""
    return value.new_empty(value.shape[0], tokens, heads, value.shape[3]).transpose(1, 2)


def mix_forward(value: Tensor, rows: Tensor, columns: Tensor, plane: Plane) -> tuple[Tensor, Tensor]:
    """(mixed, what stood between the two passes; empty where the plane never left the chip)."""
    value = readable(value)
    heads, width = rows.shape[0], value.shape[3]
    out = empty_output(value, heads, plane.row_outputs * plane.column_outputs)
    if plane.slice_width(width):
        _plane_forward(value, rows, columns, out, plane)
        return out, value.new_empty(0)
    half = value.new_empty(value.shape[0], heads, plane.row_outputs * plane.column_inputs, width)
    _pass(value, rows, half, Sides(plane.column_inputs, 1, plane.column_inputs, 1), plane.column_inputs)
    _pass(half, columns, out, Sides(1, plane.column_inputs, 1, plane.column_outputs), plane.row_outputs)
    return out, half


def mix_backward(
    grad: Tensor, value: Tensor, rows: Tensor, columns: Tensor, half: Tensor, plane: Plane,
    needs_value: bool, needs_matrices: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of value and, as (parts, heads, outputs, inputs) to be added up, of both axes' matrices."""
    grad, value = readable(grad), readable(value)
    heads = rows.shape[0]
    if plane.slice_width(value.shape[3]):
        return _plane_backward(grad, value, rows, columns, plane, needs_value, needs_matrices)
    grad_half = torch.empty_like(half)
    by_columns = _pass_gradient(
        half, columns, grad, grad_half, Sides(1, plane.column_inputs, 1, plane.column_outputs), plane.row_outputs, True,
        needs_matrices,
    )  # fmt: skip
    shared = value.shape[1] != heads
    grad_value = value.new_empty(value.shape[0], plane.row_inputs * plane.column_inputs, heads, value.shape[3])
    grad_value = grad_value.transpose(1, 2)
    by_rows = _pass_gradient(
        value, rows, grad_half, grad_value, Sides(plane.column_inputs, 1, plane.column_inputs, 1), plane.column_inputs,
        needs_value, needs_matrices,
    )  # fmt: skip
    if not needs_value:
        return None, by_rows, by_columns
    return grad_value.sum(1, keepdim=True) if shared else grad_value, by_rows, by_columns


def readable(tensor: Tensor) -> Tensor:
    """Channels side by side, as the kernels read them; a copy only where they are not."""
    return tensor if tensor.stride(3) == 1 or tensor.shape[3] == 1 else tensor.contiguous()


class Sides(NamedTuple):
    """Strides, in tokens, of the contracted axis and of the other one: in what is read and in what is written."""

    from_axis: int
    from_other: int
    to_axis: int
    to_other: int


def _strides(tensor: Tensor, heads: int, axis: int, other: int) -> tuple[int, int, int, int]:
    item, head, token, _ = tensor.stride()
    return item, head if tensor.shape[1] == heads else 0, axis * token, other * token


def _cut(
    matrix: Tensor, width: int, others: int, items: int, table: dict[int, Blocks]
) -> tuple[Blocks, dict[str, int], list[int], int]:
    """Block sizes, the counts of tiles, and how many programs each head gets."""
    heads, outputs, inputs = matrix.shape
    chosen = table[max(block(outputs), block(inputs))]
    width_block = min(block(width), 64, chosen.columns)
    other_block = min(max(1, chosen.columns // width_block), 1 << (others - 1).bit_length())
    width_block = max(width_block, SMALLEST_BLOCK // other_block)
    other_tiles, width_tiles = triton.cdiv(others, other_block), triton.cdiv(width, width_block)
    tiles = items * other_tiles * width_tiles
    workers = max(1, min(tiles, multiprocessors(matrix.device) * chosen.programs // heads))
    sizes = {
        "OUTPUTS": outputs, "INPUTS": inputs, "BLOCK_OUTPUTS": block(outputs), "BLOCK_INPUTS": block(inputs),
        "BLOCK_OTHER": other_block, "BLOCK_WIDTH": width_block,
    }  # fmt: skip
    return chosen, sizes, [tiles, other_tiles, width_tiles, others, width], workers


def _pass(x: Tensor, matrix: Tensor, y: Tensor, sides: Sides, others: int) -> None:
    heads = matrix.shape[0]
    chosen, sizes, counts, workers = _cut(matrix, x.shape[3], others, x.shape[0], FORWARD)
    pass_forward[heads, workers](
        x, matrix, y, *counts,
        *_strides(x, heads, sides.from_axis, sides.from_other), *_strides(y, heads, sides.to_axis, sides.to_other),
        **sizes, PRECISION=precision(x.dtype), num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip


def _pass_gradient(
    x: Tensor, matrix: Tensor, grad_y: Tensor, grad_x: Tensor, sides: Sides, others: int, needs_x: bool, needs_a: bool
) -> Tensor | None:
    heads = matrix.shape[0]
    chosen, sizes, counts, workers = _cut(matrix, x.shape[3], others, x.shape[0], BACKWARD)
    grad_a = matrix.new_empty((workers, *matrix.shape) if needs_a else (0,), dtype=torch.float32)
    pass_backward[heads, workers](
        x, matrix, grad_y, grad_x, grad_a, *counts,
        *_strides(x, heads, sides.from_axis, sides.from_other),
        *_strides(grad_y, heads, sides.to_axis, sides.to_other),
        *_strides(grad_x, heads, sides.from_axis, sides.from_other),
        NEEDS_X=needs_x, NEEDS_A=needs_a,
        **sizes, PRECISION=precision(x.dtype), num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    return grad_a if needs_a else None


def _plane_sizes(plane: Plane, width: int) -> dict[str, Any]:
    names = ("R_OUT", "R_IN", "C_OUT", "C_IN")
    sizes: dict[str, Any] = dict(zip(names, plane, strict=True))
    sizes |= {f"B{name}": size for name, size in zip(names, plane.blocks, strict=True)}
    return sizes | {"BE": plane.slice_width(width)}


def _plane_forward(value: Tensor, rows: Tensor, columns: Tensor, out: Tensor, plane: Plane) -> None:
    (items, value_heads, _, width), heads = value.shape, rows.shape[0]
    sizes = _plane_sizes(plane, width)
    width_tiles = triton.cdiv(width, sizes["BE"])
    tiles = items * width_tiles
    shared = value_heads != heads
    per_head = max(1, min(tiles, multiprocessors(value.device) * PLANE_FORWARD.programs // heads))
    plane_forward[(tiles,) if shared else (heads, per_head)](
        value, rows, columns, out, tiles, width_tiles, width, heads, *value.stride()[:3], *out.stride()[:3],
        SHARED=shared, **sizes, PRECISION=precision(value.dtype),
        num_warps=PLANE_FORWARD.warps, num_stages=PLANE_FORWARD.stages,
    )  # fmt: skip


def _plane_backward(
    grad: Tensor, value: Tensor, rows: Tensor, columns: Tensor, plane: Plane, needs_value: bool, needs_matrices: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    (items, value_heads, _, width), heads = value.shape, rows.shape[0]
    sizes = _plane_sizes(plane, width)
    width_tiles = triton.cdiv(width, sizes["BE"])
    tiles = items * width_tiles
    shared = value_heads != heads
    programs = multiprocessors(value.device) * PLANE_BACKWARD.programs
    workers = max(1, min(tiles, programs if shared else programs // heads))
    grad_value = empty_output(value, value_heads, value.shape[2])
    new = torch.zeros if shared else torch.empty
    parts = workers if needs_matrices else 0
    by_rows = new((parts, *rows.shape), device=value.device, dtype=torch.float32)
    by_columns = new((parts, *columns.shape), device=value.device, dtype=torch.float32)
    plane_backward[(workers,) if shared else (heads, workers)](
        value, rows, columns, grad, grad_value, by_rows, by_columns, tiles, width_tiles, width, heads,
        *value.stride()[:3], *grad.stride()[:3], *grad_value.stride()[:3],
        SHARED=shared, NEEDS_X=needs_value, NEEDS_A=needs_matrices, **sizes, PRECISION=precision(value.dtype),
        num_warps=PLANE_BACKWARD.warps, num_stages=PLANE_BACKWARD.stages,
    )  # fmt: skip
    return grad_value if needs_value else None, by_rows if parts else None, by_columns if parts else None
