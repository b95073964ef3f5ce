"""Launch configurations ("cuts") of the plane kernels: block sizes, compile-time constants and numbers of programs.

Each has smaller alternatives for GPUs with less shared memory or fewer registers than the one on which it was chosen.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from triton.runtime.errors import OutOfResources

from regard.functional.kernels._limits import SMALL_SIDE

SMALLEST_BLOCK = 16  # smallest block of the tensor cores
SMALL_PLANE = SMALL_SIDE**2  # tokens, with both sides rounded up to blocks

Tile = TypeVar("Tile")
Result = TypeVar("Result")


class Blocks(NamedTuple):
    """Elements of a tile across the axis (for plane kernels: of the whole plane), the compiler's options, and programs per
    multiprocessor."""

    elements: int
    warps: int
    stages: int
    programs: int


# The key is the longer side of the matrix. 64 and 128, and the planes below, were chosen by sweeps on an H200 in bfloat16;
# 16 and 32 were derived from them without a sweep.
FORWARD = {16: Blocks(256, 4, 4, 2), 32: Blocks(256, 4, 4, 1), 64: Blocks(128, 4, 4, 1), 128: Blocks(128, 8, 3, 1)}
BACKWARD = {16: Blocks(256, 4, 3, 2), 32: Blocks(256, 4, 3, 1), 64: Blocks(128, 4, 3, 1), 128: Blocks(64, 8, 3, 1)}
PLANE_FORWARD = Blocks(8192, 4, 3, 2)
PLANE_BACKWARD = Blocks(4096, 4, 3, 8)
SHARED_FORWARD = Blocks(8192, 4, 3, 0)
SHARED_BACKWARD = Blocks(8192, 4, 4, 0)
MAP_GRADIENT = Blocks(64, 8, 4, 1)  # elements: channels per step


class Setup(NamedTuple):
    """One launch configuration: run-time arguments, compile-time constants, and programs per head."""

    counts: tuple[int, ...]
    constants: dict[str, Any]
    programs: int


class Setups:
    """Launch configurations of one kernel for given shapes and strides, the fastest first. One that does not fit the GPU is
    not tried again, so that equal launches use equal configurations, which decide the order of summation."""

    def __init__(self, setups: Iterable[Setup]):
        self.setups = tuple(setups)
        self.first = 0

    def launch(self, start: Callable[[Setup], Result]) -> Result | None:
        """The result of ``start`` with the first configuration that fits, or None. Triton raises before anything runs."""
        for at in range(self.first, len(self.setups)):
            try:
                return start(self.setups[at])
            except OutOfResources:
                self.first = at + 1
        return None


def fitted(blocks: Blocks, dtype: torch.dtype) -> Blocks:
    """Blocks reduced for float32, which takes twice the memory and more registers for its three TF32 products."""
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
    """The input precision of products. Three TF32 products give float32's accuracy on tensor cores."""
    return "tf32x3" if dtype == torch.float32 else "tf32"


class Plane(NamedTuple):
    """Numbers of outputs and inputs of both axes."""

    row_outputs: int
    row_inputs: int
    column_outputs: int
    column_inputs: int

    @property
    def blocks(self) -> tuple[int, int, int, int]:
        return block(self.row_outputs), block(self.row_inputs), block(self.column_outputs), block(self.column_inputs)

    @property
    def is_small(self) -> bool:
        return tokens_in_blocks(self) <= SMALL_PLANE


@functools.cache
def tokens_in_blocks(plane: Plane) -> int:
    """Tokens of the plane with sides rounded up to blocks; each side is the larger of its inputs and outputs."""
    rows_out, rows_in, columns_out, columns_in = plane.blocks
    return max(rows_out, rows_in) * max(columns_out, columns_in)


def tries(tiles: Iterable[Tile], stages: int) -> Iterator[tuple[Tile, int]]:
    """The first tile with the chosen number of stages, then with fewer; then the other tiles with one stage."""
    rest = iter(tiles)
    first = next(rest)
    yield from ((first, fewer) for fewer in range(stages, 0, -1))
    yield from ((tile, 1) for tile in rest)


def halves(size: int, least: int) -> list[int]:
    """``size`` and its successive halves that are not below ``least``."""
    found = [size]
    while found[-1] // 2 >= least:
        found.append(found[-1] // 2)
    return found


@functools.lru_cache(1024)
def matrices_setup(plane: Plane, outputs: int) -> Setup:
    """The configuration of the two axis-matrix kernels. They need so little shared memory that they fit every GPU."""
    rows, columns = plane.row_inputs, plane.column_inputs
    constants: dict[str, Any] = {
        "ROWS": rows, "COLUMNS": columns,
        "BLOCK_OUTPUTS": outputs, "BLOCK_ROWS": block(rows), "BLOCK_COLUMNS": block(columns),
        "num_warps": 4,
    }  # fmt: skip
    return Setup((), constants, parts_of(max(rows, columns), outputs))


@functools.lru_cache(1024)
def pass_setups(
    shape: torch.Size, dtype: torch.dtype, device: torch.device, width: int, others: int, items: int,
    strides: tuple[int, ...], backward: bool, needs_x: bool = True, needs_a: bool = True,
) -> Setups:  # fmt: skip
    """Configurations of a pass along one axis, for matrices of this (heads, outputs, inputs) shape. Counts: tiles in all,
    tiles of the other axis, tiles of the width, others, width."""
    heads, outputs, inputs = shape
    chosen = fitted((BACKWARD if backward else FORWARD)[max(block(outputs), block(inputs))], dtype)
    widest = min(block(width), 64)
    most = min(max(1, chosen.elements // widest), 1 << (others - 1).bit_length())
    tiles = [(other, widest) for other in halves(most, 1)] + [(1, size) for size in halves(widest, SMALLEST_BLOCK)[1:]]
    constants: dict[str, Any] = {
        "OUTPUTS": outputs, "INPUTS": inputs, "BLOCK_OUTPUTS": block(outputs), "BLOCK_INPUTS": block(inputs),
        "PRECISION": precision(dtype), "num_warps": chosen.warps,
    }  # fmt: skip
    if backward:
        constants |= {"NEEDS_X": needs_x, "NEEDS_A": needs_a}

    def setup(other_block: int, width_block: int, stages: int) -> Setup:
        other_tiles, width_tiles = parts_of(others, other_block), parts_of(width, width_block)
        count = items * other_tiles * width_tiles
        sizes = {"BLOCK_OTHER": other_block, "BLOCK_WIDTH": width_block, "num_stages": stages}
        programs = max(1, min(count, multiprocessors(device) * chosen.programs // heads))
        return Setup((count, other_tiles, width_tiles, others, width), constants | sizes, programs)

    return Setups(setup(*tile, stages) for tile, stages in tries(tiles, chosen.stages))


@functools.lru_cache(1024)
def plane_setups(
    plane: Plane, dtype: torch.dtype, device: torch.device, heads: int, width: int, items: int,
    strides: tuple[int, ...], shared: bool, backward: bool, needs_x: bool = True, needs_a: bool = True,
) -> Setups:  # fmt: skip
    """Configurations of a plane kernel. Each program takes as many channels as fit the chosen number of elements. Counts:
    tiles in all, tiles of the width, width, heads."""
    table = (SHARED_BACKWARD if shared else PLANE_BACKWARD) if backward else SHARED_FORWARD if shared else PLANE_FORWARD
    chosen = fitted(table, dtype)
    names = ("R_OUT", "R_IN", "C_OUT", "C_IN")
    constants: dict[str, Any] = dict(zip(names, plane, strict=True))
    constants |= {f"B{name}": size for name, size in zip(names, plane.blocks, strict=True)}
    constants |= {"SHARED": shared, "PRECISION": precision(dtype), "num_warps": chosen.warps}
    if backward:
        constants |= {"NEEDS_X": needs_x, "NEEDS_A": needs_a}

    def setup(channels: int, stages: int) -> Setup:
        width_tiles = parts_of(width, channels)
        count = items * width_tiles
        programs = count if shared else max(1, min(count, multiprocessors(device) * chosen.programs // heads))
        return Setup((count, width_tiles, width, heads), constants | {"BE": channels, "num_stages": stages}, programs)

    channels = max(SMALLEST_BLOCK, min(block(width), chosen.elements // tokens_in_blocks(plane)))
    return Setups(setup(*tile) for tile in tries(halves(channels, SMALLEST_BLOCK), chosen.stages))


@functools.lru_cache(1024)
def map_setups(
    outputs: int, inputs: int, dtype: torch.dtype, device: torch.device, heads: int, width: int, items: int,
    strides: tuple[int, ...],
) -> Setups:  # fmt: skip
    """Configurations of the gradient of a whole map. Counts: tiles in all, tiles of the width, width, heads."""
    chosen = fitted(MAP_GRADIENT, dtype)
    widest, most = min(block(width), chosen.elements), min(128, block(outputs))
    tiles = [(most, size) for size in halves(widest, SMALLEST_BLOCK)]
    tiles += [(rows, tiles[-1][1]) for rows in halves(most, SMALLEST_BLOCK)[1:]]
    constants: dict[str, Any] = {
        "OUTPUTS": outputs, "INPUTS": inputs, "BLOCK_INPUTS": block(inputs), "PRECISION": precision(dtype),
        "num_warps": chosen.warps,
    }  # fmt: skip

    def setup(rows: int, channels: int, stages: int) -> Setup:
        width_tiles = parts_of(width, channels)
        count = items * width_tiles
        sizes = {"BLOCK_OUTPUTS": rows, "BLOCK_WIDTH": channels, "num_stages": stages}
        programs = max(1, min(count, multiprocessors(device) * chosen.programs // (heads * parts_of(outputs, rows))))
        return Setup((count, width_tiles, width, heads), constants | sizes, programs)

    return Setups(setup(*tile, stages) for tile, stages in tries(tiles, chosen.stages))
