"""Gaussian attention over a grid of any size, one pass per axis: tile sizes and launches of the passes.

Heads are *local* if all keys that matter to a query fit into the window that a program keeps on the chip; the others are
*wide*. A long axis takes one launch for each kind. The kernels decide on the device which heads are local, because reading
the sharpness here would be a synchronization.

Launch decisions depend only on shapes, strides and dtypes. They are made once for each combination and cached with the
compiled kernel, so that a call from Python costs little more than its launches.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from regard.functional.kernels._gaussian_pass import add_up, axis_backward, axis_forward, row_moments
from regard.functional.kernels._setups import SMALLEST_BLOCK, block, halves, multiprocessors, parts_of, precision
from regard.functional.kernels._start import Launch, Launches
from regard.functional.kernels._stream_pass import stream_backward, stream_forward
from regard.functional.kernels._wide_pass import weight_table, wide_mix, wide_pairs

MOST_AXES = 3

# L per dtype: a weight below e^−L of the largest cannot change a sum in that dtype (as NEGLIGIBLE in _plan.py).
NEGLIGIBLE = {torch.float32: 18.0, torch.float16: 12.0, torch.bfloat16: 9.0}


class Tiles(NamedTuple):
    """Tile sizes: rows written, rows read per step, columns; and the compiler's options (warps, stages)."""

    rows: int
    steps: int
    columns: int
    warps: int
    stages: int


class Stream(NamedTuple):
    """Tile sizes of a streaming pass: rows written, rows read (the window), columns; the compiler's options; and programs
    per multiprocessor."""

    rows: int
    window: int
    columns: int
    warps: int
    stages: int
    programs: int


# Chosen by sweeps on an H200 in bfloat16; float32 takes half the columns. The key is the axis length, rounded up to a power
# of 2; ``LONG`` is for all longer axes, ``ALONE`` for longer axes of one-dimensional grids.
LONG, ALONE = 0, -1
STREAM_FORWARD = {
    16: Stream(16, 16, 512, 8, 3, 2), 32: Stream(32, 32, 512, 8, 3, 1), 64: Stream(64, 64, 256, 8, 3, 1),
    128: Stream(128, 128, 128, 8, 3, 1), LONG: Stream(32, 64, 128, 4, 3, 3), ALONE: Stream(32, 64, 64, 4, 4, 4),
}  # fmt: skip
# Up to 128 the window holds the whole axis, so that wide heads cost as much as local heads. At 128, a window of 64 would take
# 2 % less time for local heads, but 29 % more for wide heads, and eight launches instead of three.
STREAM_BACKWARD = {
    16: Stream(16, 16, 256, 4, 3, 2), 32: Stream(32, 32, 256, 8, 3, 2), 64: Stream(64, 64, 128, 4, 3, 1),
    128: Stream(64, 128, 128, 8, 3, 1), LONG: Stream(32, 64, 128, 4, 3, 2), ALONE: Stream(32, 64, 64, 4, 3, 4),
}  # fmt: skip
FORWARD = Tiles(64, 16, 128, 4, 6)
BACKWARD = Tiles(64, 16, 256, 4, 4)
SHARED_BACKWARD = Tiles(16, 16, 256, 1, 3)

# On axes up to this length, the matrices of wide heads are computed once and then read as a table.
LARGEST_TABLE = 1024
WIDE_MIX = Tiles(128, 64, 128, 8, 3)
WIDE_PAIRS = Tiles(128, 128, 128, 8, 3)
MIX_PROGRAMS, WIDE_PROGRAMS, FEW_PROGRAMS = 2, 2, 4  # per multiprocessor

ALL_LOCAL, NONE_LOCAL = 1 << 30, -1


class Axis(NamedTuple):
    """One axis of a grid, whose tokens are viewed as (before, size, after); ``others`` = before · after."""

    place: int
    size: int
    others: int
    after: int


@functools.lru_cache(256)
def axes_of(grid: tuple[int, ...]) -> tuple[Axis, ...]:
    tokens = math.prod(grid)
    return tuple(Axis(i, n, tokens // n, math.prod(grid[i + 1 :])) for i, n in enumerate(grid))


Strides = tuple[int, int, int]


class ValueLayout(NamedTuple):
    """What launch decisions need to know about the tensors: dtype, device, sizes, and strides of center and sharpness."""

    dtype: torch.dtype
    device: torch.device
    items: int
    heads: int
    width: int
    heads_at: tuple[int, int, int, int]  # strides of center and sharpness: by head, by axis, by head, by axis


def split_columns(columns: int, width: int, others: int) -> tuple[int, int]:
    """How many positions of the other axes, and how many channels, make up a tile's columns."""
    channels = min(block(width), 64, columns)
    return min(max(1, columns // channels), 1 << (others - 1).bit_length()), channels


def smaller(columns: int, stages: int, dtype: torch.dtype) -> Iterator[tuple[int, int]]:
    """(columns, stages) to try in turn: as chosen, then fewer stages, then fewer columns."""
    most = columns if dtype.itemsize <= 2 else columns // 2
    for fewer in halves(most, SMALLEST_BLOCK):
        yield from ((fewer, s) for s in (range(stages, 0, -1) if fewer == most else [1]))


def chosen_stream(axis: Axis, streams: dict[int, Stream]) -> Stream:
    return streams.get(block(axis.size)) or streams[LONG if axis.others > 1 else ALONE]


def room_of(axis: Axis, streams: dict[int, Stream], shared: bool = False) -> int:
    """By how much the window exceeds its tile, which decides which heads are local; ``ALL_LOCAL`` if the window holds the
    whole axis, ``NONE_LOCAL`` if ``shared``."""
    chosen = chosen_stream(axis, streams)
    return NONE_LOCAL if shared else ALL_LOCAL if chosen.window >= axis.size else chosen.window - chosen.rows


def row_shares(size: int, stream: Stream, column_tiles: int, most: int) -> tuple[int, int, int, int, int]:
    """Divide about ``most`` programs among row tiles. The windows of interior tiles do not touch a border.

    Returns the number of row tiles before the interior, near any border, and in the interior; then the number of programs
    for each tile near a border, and for the whole interior."""
    tiles, room = parts_of(size, stream.rows), stream.window - stream.rows
    first = min(tiles, parts_of(room, stream.rows)) if room else tiles
    inner = max(0, (size - room) // stream.rows - first)
    borders = tiles - inner

    def tiles_of_the_busiest(each: int) -> int:
        rest = max(1, most - borders * each)
        return max(parts_of(column_tiles, each), parts_of(inner * column_tiles, rest))

    each = min(range(1, max(1, min(column_tiles, most // borders)) + 1), key=tiles_of_the_busiest)
    rest = max(1, min(inner * column_tiles, most - borders * each)) if inner else 0
    return first, borders, inner, each, rest


def stream_launches(
    axis: Axis, layout: ValueLayout, chosen: Stream, strides: tuple[int, ...], reverse: bool,
    backward: tuple[int | bool, ...] | None = None,
) -> Launches:  # fmt: skip
    """Launches of a pass for local heads. ``reverse``: begin with the last tile. ``backward``: number of slots for partial
    sums, the first slot, number of axes; whether gradients of values and of heads are needed."""
    launches = []
    for columns, stages in smaller(chosen.columns, chosen.stages, layout.dtype):
        others, channels = split_columns(columns, layout.width, axis.others)
        counts = parts_of(axis.others, others), parts_of(layout.width, channels)
        column_tiles = layout.items * math.prod(counts)
        most = max(1, multiprocessors(layout.device) * chosen.programs // layout.heads)
        shares = row_shares(axis.size, chosen, column_tiles, most)
        programs = shares[1] * shares[3] + shares[4]
        numbers: tuple[Any, ...] = (
            layout.heads, *shares, column_tiles, *counts, axis.others, layout.width, axis.after,
            *layout.heads_at, axis.place, *strides,
        )  # fmt: skip
        constants = (
            axis.size, NEGLIGIBLE[layout.dtype], precision(layout.dtype), chosen.window >= axis.size,
            chosen.rows, chosen.window, others, channels, reverse,
        )  # fmt: skip
        options = {"num_warps": chosen.warps, "num_stages": stages}
        grid = (layout.heads * programs, 1, 1)
        if backward is None:
            launches.append(Launch(stream_forward, grid, (*numbers, *constants), options, programs))
        else:
            numbers = (*backward[:3], *numbers, *backward[3:], *constants)
            launches.append(Launch(stream_backward, grid, numbers, options, programs))
    return Launches(launches)


def has_table(axis: Axis, dtype: torch.dtype, room: int) -> bool:
    """Whether wide heads (which do not fit in a window with this room) read their weights along an axis from a table."""
    return room not in (ALL_LOCAL, NONE_LOCAL) and axis.size <= LARGEST_TABLE and dtype.itemsize <= 2


def table_launches(
    grid: tuple[int, ...], layout: ValueLayout, rooms: Sequence[int]
) -> tuple[list[Launch], dict[int, int], int]:
    """Launches that compute the tables of all axes that have one, the offset of each table, and their total size."""
    axes = [axis for axis in axes_of(grid) if has_table(axis, layout.dtype, rooms[axis.place])]
    launches, begins, count = list[Launch](), dict[int, int](), 0
    for axis in axes:
        before = axes_of(grid)[axis.place - 1]
        begins[axis.place], joins = count, before.place in begins and before.size == axis.size
        count += layout.heads * axis.size**2
        if joins and launches and launches[-1].grid[1] < MOST_AXES:
            last = launches.pop()
            launches.append(Launch(last.kernel, (*last.grid[:1], last.grid[1] + 1, 1), last.numbers, last.options, 1))
            continue
        numbers = (
            max(grid), begins[axis.place], len(grid), axis.place, layout.heads, *layout.heads_at,
            axis.size, NEGLIGIBLE[layout.dtype], rooms[axis.place], 16, 64,
        )  # fmt: skip
        rows = parts_of(axis.size, 16)
        launches.append(Launch(weight_table, (rows * layout.heads, 1, 1), numbers, {"num_warps": 4}, 1))
    return launches, begins, count


def mix_launches(
    axis: Axis, layout: ValueLayout, strides: tuple[int, ...], begin: int, room: int, backward: bool
) -> Launches:
    """Launches that multiply values by the tables of wide heads; the axis' table begins at ``begin``."""
    launches = []
    for columns, stages in smaller(WIDE_MIX.columns, WIDE_MIX.stages, layout.dtype):
        others, channels = split_columns(columns, layout.width, axis.others)
        counts = parts_of(axis.size, WIDE_MIX.rows), parts_of(axis.others, others), parts_of(layout.width, channels)
        tiles = layout.items * math.prod(counts)
        numbers = (
            begin, tiles, *counts, axis.others, layout.width, axis.after, layout.heads,
            *layout.heads_at, axis.place, *strides, backward, axis.size, NEGLIGIBLE[layout.dtype], precision(layout.dtype), room,
            WIDE_MIX.rows, WIDE_MIX.steps, others, channels,
        )  # fmt: skip
        programs = min(tiles * layout.heads, multiprocessors(layout.device) * MIX_PROGRAMS)
        options = {"num_warps": WIDE_MIX.warps, "num_stages": stages}
        launches.append(Launch(wide_mix, (programs, 1, 1), numbers, options, programs))
    return Launches(launches)


def pairs_launches(
    axis: Axis, layout: ValueLayout, strides: tuple[int, ...], room: int, length: int, backward: tuple[int | bool, ...]
) -> Launches:
    """Launches that compute partial gradients of center and sharpness for wide heads with a table."""
    launches, tiles = [], parts_of(axis.size, WIDE_PAIRS.rows)
    for columns, stages in smaller(WIDE_PAIRS.columns, WIDE_PAIRS.stages, layout.dtype):
        others, channels = split_columns(columns, layout.width, axis.others)
        counts = parts_of(axis.others, others), parts_of(layout.width, channels)
        column_tiles = layout.items * math.prod(counts)
        most = multiprocessors(layout.device) * WIDE_PROGRAMS // (layout.heads * tiles**2)
        parts = max(1, min(column_tiles, most))
        numbers = (
            length, *backward[:3], parts, tiles, column_tiles, *counts, axis.others, layout.width, axis.after,
            layout.heads, *layout.heads_at, axis.place, *strides,
            axis.size, NEGLIGIBLE[layout.dtype], precision(layout.dtype), room, WIDE_PAIRS.rows, others, channels,
        )  # fmt: skip
        programs = tiles**2 * parts
        options = {"num_warps": WIDE_PAIRS.warps, "num_stages": stages}
        launches.append(Launch(wide_pairs, (programs * layout.heads, 1, 1), numbers, options, programs))
    return Launches(launches)


def wide_forward_launches(axis: Axis, layout: ValueLayout, strides: tuple[int, ...], room: int) -> Launches:
    launches = []
    for columns, stages in smaller(FORWARD.columns, FORWARD.stages, layout.dtype):
        others, channels = split_columns(columns, layout.width, axis.others)
        counts = parts_of(axis.size, FORWARD.rows), parts_of(axis.others, others), parts_of(layout.width, channels)
        tiles = layout.items * math.prod(counts)
        numbers = (
            tiles, *counts, axis.others, layout.width, axis.after, layout.heads, *layout.heads_at, axis.place, *strides,
            axis.size, NEGLIGIBLE[layout.dtype], precision(layout.dtype), room,
            FORWARD.rows, FORWARD.steps, others, channels,
        )  # fmt: skip
        programs = min(tiles * layout.heads, multiprocessors(layout.device) * FEW_PROGRAMS)
        options = {"num_warps": FORWARD.warps, "num_stages": stages}
        launches.append(Launch(axis_forward, (programs, 1, 1), numbers, options, programs))
    return Launches(launches)


def wide_backward_launches(
    axis: Axis,
    layout: ValueLayout,
    strides: tuple[int, ...],
    shared: bool,
    length: int,
    backward: tuple[int | bool, ...],
) -> Launches:
    tiles, launches = SHARED_BACKWARD if shared else BACKWARD, []
    rows, steps = min(tiles.rows, block(axis.size)), min(tiles.steps, block(axis.size))
    room = room_of(axis, STREAM_BACKWARD, shared)
    for columns, stages in smaller(tiles.columns, tiles.stages, layout.dtype):
        others, channels = split_columns(columns, layout.width, axis.others)
        counts = parts_of(axis.size, rows), parts_of(axis.others, others), parts_of(layout.width, channels)
        programs = layout.items * math.prod(counts)
        numbers = (
            length, *backward[:3], programs, *counts, axis.others, layout.width, axis.after, layout.heads,
            *layout.heads_at, axis.place, *strides, shared, *backward[3:],
            axis.size, NEGLIGIBLE[layout.dtype], precision(layout.dtype), room, steps, rows, others, channels,
        )  # fmt: skip
        few = min(programs * layout.heads, multiprocessors(layout.device) * FEW_PROGRAMS)
        grid = (programs if shared else few, 1, 1)
        options = {"num_warps": tiles.warps, "num_stages": stages}
        launches.append(Launch(axis_backward, grid, numbers, options, programs))
    return Launches(launches)


def moments_launch(grid: tuple[int, ...], layout: ValueLayout, rooms: tuple[int, ...]) -> Launch:
    length = max(grid)
    rows, steps = min(32, block(length)), 16
    numbers = (length, *three(grid), *three(rooms), *layout.heads_at, NEGLIGIBLE[layout.dtype], rows, steps)
    programs = (min(parts_of(length, rows), 64), layout.heads, len(grid))
    return Launch(row_moments, programs, numbers, {"num_warps": 1}, 1)


def sum_launch(
    grid: tuple[int, ...], layout: ValueLayout, programs: int, counts: Sequence[tuple[int, int, int]], rooms: Sequence[int],
    joined: bool,
) -> Launch:  # fmt: skip
    """The launch that adds partial gradients. ``counts``, for each axis: number of partial sums of the local heads' launch;
    first slot and number of those of wide heads."""
    by_axis = [three(numbers) for numbers in (*zip(*counts, strict=True), grid, tuple(rooms))]
    numbers = (
        programs, len(grid), *[n for kind in by_axis for n in kind], *layout.heads_at,
        NEGLIGIBLE[layout.dtype], joined, 256,
    )  # fmt: skip
    return Launch(add_up, (layout.heads, 1, 1), numbers, {"num_warps": 4}, 1)


def three(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Padded to three entries, the number of axes in the kernels' signatures."""
    return (*numbers, *[1] * (MOST_AXES - len(numbers)))
