"""From tensors to launches: shapes, strides, block sizes, and how many programs share the work."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.functional.kernels._axis_pass import pass_backward, pass_forward
from regard.functional.kernels._map_gradient import map_gradient
from regard.functional.kernels._matrices import matrices_backward, matrices_forward
from regard.functional.kernels._plane import plane_backward, plane_forward

SMALLEST_BLOCK = 16  # of the matrix units
SMALL_PLANE = 256  # tokens, both sides rounded up to blocks: what a program keeps on the chip between two passes


class Blocks(NamedTuple):
    """How a kernel is cut: elements of a tile across the axis (of the whole plane, for planes), what the compiler is
    told, and how many programs there are for each multiprocessor."""

    elements: int
    warps: int
    stages: int
    programs: int


# By the longer side of the matrix. 64 and 128, and the planes below, were chosen by sweeps on an H200 in bfloat16; 16 and
# 32 follow them and were not swept.
FORWARD = {16: Blocks(256, 4, 4, 2), 32: Blocks(256, 4, 4, 1), 64: Blocks(128, 4, 4, 1), 128: Blocks(128, 8, 3, 1)}
BACKWARD = {16: Blocks(256, 4, 3, 2), 32: Blocks(256, 4, 3, 1), 64: Blocks(128, 4, 3, 1), 128: Blocks(64, 8, 3, 1)}
PLANE_FORWARD = Blocks(8192, 4, 3, 2)
PLANE_BACKWARD = Blocks(4096, 4, 3, 8)
SHARED_FORWARD = Blocks(8192, 4, 3, 0)
SHARED_BACKWARD = Blocks(8192, 4, 4, 0)
MAP_GRADIENT = Blocks(64, 8, 4, 1)  # elements: channels at a time


def fitted(blocks: Blocks, dtype: torch.dtype) -> Blocks:
    """Float32 takes twice the room, and its products keep parts of their operands besides."""
    if dtype.itemsize <= 2:
        return blocks
    return blocks._replace(elements=blocks.elements // 2, stages=max(1, blocks.stages - 2))


@functools.cache
def block(size: int) -> int:
    return max(SMALLEST_BLOCK, 1 << (size - 1).bit_length())


def parts_of(whole: int, part: int) -> int:
    return -(-whole // part)


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

    @property
    def tokens(self) -> int:
        """The larger of inputs and outputs, in blocks."""
        rows_out, rows_in, columns_out, columns_in = self.blocks
        return max(rows_out, rows_in) * max(columns_out, columns_in)

    @property
    def is_small(self) -> bool:
        return self.tokens <= SMALL_PLANE

    def sizes(self, width: int, elements: int) -> dict[str, Any]:
        """What the plane kernels are compiled for; a program takes as many channels as make ``elements``."""
        names = ("R_OUT", "R_IN", "C_OUT", "C_IN")
        sizes = dict(zip(names, self, strict=True))
        sizes |= {f"B{name}": size for name, size in zip(names, self.blocks, strict=True)}
        return sizes | {"BE": max(SMALLEST_BLOCK, min(block(width), elements // self.tokens))}


def matrices(center: Tensor, sharpness: Tensor, plane: Plane, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(heads, rows, rows) and (heads, columns, columns)."""
    heads, rows, columns = center.shape[0], plane.row_inputs, plane.column_inputs
    made = center.new_empty(heads, rows, rows, dtype=dtype), center.new_empty(heads, columns, columns, dtype=dtype)
    outputs = 16
    matrices_forward[heads, parts_of(max(rows, columns), outputs), 2](
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
    blocks = parts_of(max(rows, columns), outputs)
    sums = center.new_empty(2, blocks, heads, 2, dtype=torch.float32)
    matrices_backward[heads, blocks, 2](
        center, sharpness, by_rows, by_columns, sums[0], sums[1], by_rows.shape[0], by_columns.shape[0],
        *center.stride(), *sharpness.stride(),
        ROWS=rows, COLUMNS=columns, BLOCK_OUTPUTS=outputs, BLOCK_ROWS=block(rows), BLOCK_COLUMNS=block(columns),
        num_warps=4,
    )  # fmt: skip
    total = sums.sum(1)
    return total[0].to(center.dtype), total[1].to(sharpness.dtype)


def empty_output(value: Tensor, heads: int, tokens: int) -> Tensor:
    """(batch, heads, tokens, width), laid out so that joining the heads for the output layer is a view."""
    return value.new_empty(value.shape[0], tokens, heads, value.shape[3]).transpose(1, 2)


def mix_forward(value: Tensor, rows: Tensor, columns: Tensor, plane: Plane) -> tuple[Tensor, Tensor]:
    """(mixed, what stood between the two passes; empty where the plane never left the chip)."""
    value = readable(value)
    heads, width = rows.shape[0], value.shape[3]
    out = empty_output(value, heads, plane.row_outputs * plane.column_outputs)
    if plane.is_small:
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
    shared = value.shape[1] != heads
    if plane.is_small:
        if shared:
            by_value = _shared_gradient(grad, value, rows, columns, plane) if needs_value else None
            made = _map_gradient(grad, value, rows, columns, plane) if needs_matrices else (None, None)
            return by_value, *made
        return _plane_backward(grad, value, rows, columns, plane, needs_value, needs_matrices)
    grad_half = torch.empty_like(half)
    along_columns = Sides(1, plane.column_inputs, 1, plane.column_outputs)
    by_columns = _pass_gradient(half, columns, grad, grad_half, along_columns, plane.row_outputs, True, needs_matrices)
    along_rows = Sides(plane.column_inputs, 1, plane.column_inputs, 1)
    by_value = empty_output(value, heads, value.shape[2])
    by_rows = _pass_gradient(
        value, rows, grad_half, by_value, along_rows, plane.column_inputs, needs_value, needs_matrices
    )
    if not needs_value:
        return None, by_rows, by_columns
    return by_value.sum(1, keepdim=True) if shared else by_value, by_rows, by_columns


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


@functools.lru_cache(1024)
def _cut(
    shape: torch.Size, dtype: torch.dtype, device: torch.device, width: int, others: int, items: int, backward: bool
) -> tuple[tuple[int, ...], dict[str, Any], int]:
    """The counts of tiles, what the kernel is compiled for, and how many programs each head gets."""
    heads, outputs, inputs = shape
    chosen = fitted((BACKWARD if backward else FORWARD)[max(block(outputs), block(inputs))], dtype)
    width_block = min(block(width), 64)
    other_block = min(max(1, chosen.elements // width_block), 1 << (others - 1).bit_length())
    other_tiles, width_tiles = parts_of(others, other_block), parts_of(width, width_block)
    tiles = items * other_tiles * width_tiles
    workers = max(1, min(tiles, multiprocessors(device) * chosen.programs // heads))
    sizes: dict[str, Any] = {
        "OUTPUTS": outputs, "INPUTS": inputs, "BLOCK_OUTPUTS": block(outputs), "BLOCK_INPUTS": block(inputs),
        "BLOCK_OTHER": other_block, "BLOCK_WIDTH": width_block, "PRECISION": precision(dtype),
        "num_warps": chosen.warps, "num_stages": chosen.stages,
    }  # fmt: skip
    return (tiles, other_tiles, width_tiles, others, width), sizes, workers


def _pass(x: Tensor, matrix: Tensor, y: Tensor, sides: Sides, others: int) -> None:
    heads = matrix.shape[0]
    counts, sizes, workers = _cut(matrix.shape, x.dtype, x.device, x.shape[3], others, x.shape[0], False)
    pass_forward[heads, workers](
        x, matrix, y, *counts,
        *_strides(x, heads, sides.from_axis, sides.from_other), *_strides(y, heads, sides.to_axis, sides.to_other),
        **sizes,
    )  # fmt: skip


def _pass_gradient(
    x: Tensor, matrix: Tensor, grad_y: Tensor, grad_x: Tensor, sides: Sides, others: int, needs_x: bool, needs_a: bool
) -> Tensor | None:
    heads = matrix.shape[0]
    counts, sizes, workers = _cut(matrix.shape, x.dtype, x.device, x.shape[3], others, x.shape[0], True)
    grad_a = matrix.new_empty((workers, *matrix.shape) if needs_a else (0,), dtype=torch.float32)
    pass_backward[heads, workers](
        x, matrix, grad_y, grad_x, grad_a, *counts,
        *_strides(x, heads, sides.from_axis, sides.from_other),
        *_strides(grad_y, heads, sides.to_axis, sides.to_other),
        *_strides(grad_x, heads, sides.from_axis, sides.from_other),
        NEEDS_X=needs_x, NEEDS_A=needs_a, **sizes,
    )  # fmt: skip
    return grad_a if needs_a else None


def _plane_forward(value: Tensor, rows: Tensor, columns: Tensor, out: Tensor, plane: Plane) -> None:
    (items, value_heads, _, width), heads = value.shape, rows.shape[0]
    shared = value_heads != heads
    chosen = fitted(SHARED_FORWARD if shared else PLANE_FORWARD, value.dtype)
    sizes = plane.sizes(width, chosen.elements)
    width_tiles = parts_of(width, sizes["BE"])
    tiles = items * width_tiles
    per_head = max(1, min(tiles, multiprocessors(value.device) * chosen.programs // heads))
    plane_forward[(tiles,) if shared else (heads, per_head)](
        value, rows, columns, out, tiles, width_tiles, width, heads, *value.stride()[:3], *out.stride()[:3],
        SHARED=shared, **sizes, PRECISION=precision(value.dtype), num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip


def _plane_backward(
    grad: Tensor, value: Tensor, rows: Tensor, columns: Tensor, plane: Plane, needs_value: bool, needs_matrices: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    (items, heads, tokens, width), chosen = value.shape, fitted(PLANE_BACKWARD, value.dtype)
    sizes = plane.sizes(width, chosen.elements)
    width_tiles = parts_of(width, sizes["BE"])
    tiles = items * width_tiles
    workers = max(1, min(tiles, multiprocessors(value.device) * chosen.programs // heads))
    by_value = empty_output(value, heads, tokens)
    parts = workers if needs_matrices else 0
    by_rows, by_columns = (rows.new_empty((parts, *x.shape), dtype=torch.float32) for x in (rows, columns))
    plane_backward[heads, workers](
        value, rows, columns, grad, by_value, by_rows, by_columns, tiles, width_tiles, width, heads,
        *value.stride()[:3], *grad.stride()[:3], *by_value.stride()[:3],
        SHARED=False, NEEDS_X=needs_value, NEEDS_A=needs_matrices, **sizes, PRECISION=precision(value.dtype),
        num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    return by_value if needs_value else None, by_rows if parts else None, by_columns if parts else None


def _shared_gradient(grad: Tensor, value: Tensor, rows: Tensor, columns: Tensor, plane: Plane) -> Tensor:
    """Of one value that all heads read: summed over the heads on the chip."""
    (items, _, tokens, width), heads = value.shape, rows.shape[0]
    chosen = fitted(SHARED_BACKWARD, value.dtype)
    sizes = plane.sizes(width, chosen.elements)
    width_tiles = parts_of(width, sizes["BE"])
    by_value = empty_output(value, 1, tokens)
    plane_backward[(items * width_tiles,)](
        value, rows, columns, grad, by_value, rows, columns, items * width_tiles, width_tiles, width, heads,
        *value.stride()[:3], *grad.stride()[:3], *by_value.stride()[:3],
        SHARED=True, NEEDS_X=True, NEEDS_A=False, **sizes, PRECISION=precision(value.dtype),
        num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    return by_value


def _map_gradient(grad: Tensor, value: Tensor, rows: Tensor, columns: Tensor, plane: Plane) -> tuple[Tensor, Tensor]:
    """Of both axes' matrices, by way of the whole map's."""
    (items, _, inputs, width), (heads, outputs) = value.shape, grad.shape[1:3]
    chosen = fitted(MAP_GRADIENT, value.dtype)
    channels = min(block(width), chosen.elements)
    width_tiles = parts_of(width, channels)
    tiles = items * width_tiles
    rows_at_once = min(128, block(outputs))
    blocks = parts_of(outputs, rows_at_once)
    workers = max(1, min(tiles, multiprocessors(value.device) * chosen.programs // (heads * blocks)))
    parts = value.new_empty(workers, heads, outputs, inputs, dtype=torch.float32)
    map_gradient[heads, blocks, workers](
        value, grad, parts, tiles, width_tiles, width, heads,
        value.stride(0), value.stride(2), *grad.stride()[:3],
        OUTPUTS=outputs, INPUTS=inputs, BLOCK_OUTPUTS=rows_at_once, BLOCK_INPUTS=block(inputs), BLOCK_WIDTH=channels,
        PRECISION=precision(value.dtype), num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    whole = parts.sum(0).view(heads, plane.row_outputs, plane.column_outputs, plane.row_inputs, plane.column_inputs)
    by_rows = (whole * columns[:, None, :, None, :]).sum((2, 4))
    by_columns = (whole * rows[:, :, None, :, None]).sum((1, 3))
    return by_rows.unsqueeze(0), by_columns.unsqueeze(0)
