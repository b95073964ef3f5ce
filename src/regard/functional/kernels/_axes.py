"""Gaussian attention over a grid of any size, one pass per axis: how the passes are cut and launched.

Launch decisions depend on shapes, strides and dtypes alone. They are made once for each, and what Triton compiled for them
is kept, so that a call from Python costs little more than its launches.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from regard.functional.kernels._cuts import SMALLEST_BLOCK, block, halves, parts_of, precision
from regard.functional.kernels._gaussian_pass import add_up, axis_backward, axis_forward, row_moments

MOST_AXES = 3

# A weight below e^−L of the largest cannot change a sum in that dtype (as NEGLIGIBLE in _plan.py).
NEGLIGIBLE = {torch.float32: 18.0, torch.float16: 12.0, torch.bfloat16: 9.0}


class Tiles(NamedTuple):
    """Rows of the tile that is written, rows read at a time, columns, and what the compiler is told."""

    rows: int
    steps: int
    columns: int
    warps: int
    stages: int


# Strides of center and sharpness, and which axis: (center by head, by axis, sharpness by head, by axis, axis).
HeadsAt = tuple[int, int, int, int, int]

# Chosen by sweeps on an H200 in bfloat16; float32 takes half the columns.
FORWARD = Tiles(64, 16, 128, 4, 6)
BACKWARD_LOCAL = Tiles(16, 16, 256, 1, 3)
BACKWARD_WIDE = Tiles(64, 16, 256, 4, 4)

# Heads that reach this far are wide. Along an axis at least this long there is one launch for local heads and one for wide
# ones, and the device finds out which head is whose: the host never waits to know.
WIDE_REACH = 32
LONG_AXIS = 256
EVERYTHING = 1 << 30


class Share(NamedTuple):
    """The heads of one launch of a backward pass: those that reach from ``least`` up to below ``most``."""

    least: int
    most: int
    tiles: Tiles


@functools.lru_cache(256)
def shares(size: int, dtype: torch.dtype, shared: bool) -> tuple[Share, ...]:
    if dtype.itemsize > 2:
        return (Share(0, EVERYTHING, BACKWARD_WIDE),)
    if shared or size < LONG_AXIS:
        return (Share(0, EVERYTHING, BACKWARD_LOCAL),)
    return Share(0, WIDE_REACH, BACKWARD_LOCAL), Share(WIDE_REACH, EVERYTHING, BACKWARD_WIDE)


class Launch:
    """One kernel with its grid and everything but its tensors. After the first launch Triton's own is not asked again:
    what it compiled is called at once, as long as all tensors begin at multiples of 16 bytes, as they did then."""

    def __init__(
        self, kernel: Any, grid: tuple[int, int, int], numbers: tuple[Any, ...], options: dict[str, int]
    ) -> None:
        self.kernel, self.grid, self.numbers, self.options = kernel, grid, numbers, options
        self.start: Callable[..., None] | None = None
        self.head: tuple[Any, ...] = ()

    def __call__(self, *tensors: Tensor) -> None:
        aligned = True
        for tensor in tensors:
            if tensor.data_ptr() % 16:
                aligned = False
        if self.start is not None and aligned:
            # Device and stream as Triton finds them; no hooks of profilers, which would be called from Python.
            stream = torch._C._cuda_getCurrentRawStream(tensors[0].get_device())
            self.start(*self.grid, stream, *self.head, *tensors, *self.numbers)
            return
        made = self.kernel[self.grid](*tensors, *self.numbers, **self.options)
        if aligned and isinstance(self.kernel, JITFunction) and tensors[0].is_cuda:  # neither interpreter nor a test
            self.start, self.head = made.run, (made.function, made.packed_metadata, None, None, None)


class Ways:
    """The ways to launch one step, the best first; one for which the card has no room is not tried again, so that the
    same step is always cut alike: the cut decides the order of summation."""

    def __init__(self, ways: Sequence[Launch]) -> None:
        self.ways, self.first = ways, 0

    def start(self, *tensors: Tensor) -> Launch | None:
        for at in range(self.first, len(self.ways)):
            try:
                self.ways[at](*tensors)
            except OutOfResources:
                self.first = at + 1
            else:
                return self.ways[at]
        return None


class Axis(NamedTuple):
    """One axis of a grid: tokens are (before, size, after)."""

    size: int
    others: int
    after: int


@functools.lru_cache(256)
def axes_of(grid: tuple[int, ...]) -> tuple[Axis, ...]:
    tokens = math.prod(grid)
    return tuple(Axis(n, tokens // n, math.prod(grid[i + 1 :])) for i, n in enumerate(grid))


def tilings(chosen: Tiles, dtype: torch.dtype, size: int, width: int, others: int) -> list[tuple[Tiles, int, int]]:
    """Tiles to try, with how many others and channels make a tile's columns."""
    columns = chosen.columns if dtype.itemsize <= 2 else chosen.columns // 2
    rows, steps = min(chosen.rows, block(size)), min(chosen.steps, block(size))
    found = []
    for fewer in halves(columns, SMALLEST_BLOCK):
        channels = min(block(width), 64, fewer)
        beside = min(max(1, fewer // channels), 1 << (others - 1).bit_length())
        stages = range(chosen.stages, 0, -1) if fewer == columns else [1]
        found += [(Tiles(rows, steps, fewer, chosen.warps, s), beside, channels) for s in stages]
    return found


Strides = tuple[int, int, int]


@functools.lru_cache(1024)
def forward_ways(
    axis: Axis, dtype: torch.dtype, device: torch.device, items: int, heads: int, width: int, shared: bool,
    heads_at: HeadsAt, x: Strides, y: Strides, length: int, chosen: Tiles = FORWARD,
) -> Ways:  # fmt: skip
    ways = []
    for tiles, beside, channels in tilings(chosen, dtype, axis.size, width, axis.others):
        counts = parts_of(axis.size, tiles.rows), parts_of(axis.others, beside), parts_of(width, channels)
        numbers = (
            length, *counts, axis.others, width, axis.after, heads, *heads_at, *x, *y,
            shared, axis.size, NEGLIGIBLE[dtype], precision(dtype), tiles.rows, tiles.steps, beside, channels,
        )  # fmt: skip
        grid = (items * math.prod(counts), 1 if shared else heads, 1)
        ways.append(Launch(axis_forward, grid, numbers, {"num_warps": tiles.warps, "num_stages": tiles.stages}))
    return Ways(ways)


@functools.lru_cache(1024)
def backward_ways(
    axis: Axis, dtype: torch.dtype, device: torch.device, items: int, heads: int, width: int, shared: bool,
    heads_at: HeadsAt, x: Strides, y: Strides, gx: Strides, needs: tuple[bool, bool], length: int,
    programs: int, first_part: int, axes: int, share: Share,
) -> Ways:  # fmt: skip
    ways = []
    for tiles, beside, channels in tilings(share.tiles, dtype, axis.size, width, axis.others):
        counts = parts_of(axis.size, tiles.rows), parts_of(axis.others, beside), parts_of(width, channels)
        numbers = (
            length, programs, first_part, axes, share.least, share.most, *counts, axis.others, width, axis.after, heads,
            *heads_at, *x, *y, *gx,
            shared, *needs, axis.size, NEGLIGIBLE[dtype], precision(dtype), tiles.steps, tiles.rows, beside, channels,
        )  # fmt: skip
        grid = (items * math.prod(counts), 1 if shared else heads, 1)
        ways.append(Launch(axis_backward, grid, numbers, {"num_warps": tiles.warps, "num_stages": tiles.stages}))
    return Ways(ways)


@functools.lru_cache(1024)
def most_programs(grid: tuple[int, ...], dtype: torch.dtype, items: int, width: int, shared: bool) -> int:
    """Room for the parts that programs of the backward pass leave, whichever axis has the most, cut the smallest."""
    return max(
        sum(
            max(
                items * parts_of(axis.size, tiles.rows) * parts_of(axis.others, beside) * parts_of(width, channels)
                for tiles, beside, channels in tilings(share.tiles, dtype, axis.size, width, axis.others)
            )
            for share in shares(axis.size, dtype, shared)
        )
        for axis in axes_of(grid)
    )


@functools.lru_cache(1024)
def moments_launch(
    grid: tuple[int, ...], dtype: torch.dtype, device: torch.device, heads: int, strides: tuple[int, int, int, int]
) -> Launch:
    length = max(grid)
    rows, steps = min(32, block(length)), 16
    numbers = (length, *three(grid), *strides, NEGLIGIBLE[dtype], rows, steps)
    return Launch(row_moments, (parts_of(length, rows), heads, len(grid)), numbers, {"num_warps": 1})


@functools.lru_cache(1024)
def sum_launch(device: torch.device, heads: int, programs: int, counts: tuple[int, ...]) -> Launch:
    return Launch(add_up, (heads, len(counts), 1), (programs, *three(counts), 1024), {"num_warps": 4})


def three(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Filled up to as many axes as the kernels know."""
    return (*numbers, *[1] * (MOST_AXES - len(numbers)))
