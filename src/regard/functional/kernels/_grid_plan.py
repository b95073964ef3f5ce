"""All launches of Gaussian attention over a grid, forward and backward: decided once for shapes, strides and dtypes."""

import functools
import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from triton.runtime import driver

from regard.functional.kernels import _axes
from regard.functional.kernels._axes import Axis, Layout, Stream, Strides, axes_of
from regard.functional.kernels._cuts import block
from regard.functional.kernels._start import Launch, Ways

PAIR_BYTES = 190_000  # of shared memory: what two axes take in the backward pass


class Key(NamedTuple):
    """What a plan depends on. ``heads_at``: strides of center and sharpness, by head and by axis."""

    grid: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    heads: int
    heads_at: tuple[int, int, int, int]
    joined: bool
    value: tuple[int, ...]

    @property
    def layout(self) -> Layout:
        return Layout(self.dtype, self.device, self.shape[0], self.heads, self.shape[3], self.heads_at)

    @property
    def is_shared(self) -> bool:
        """One value for all heads."""
        return self.shape[1] != self.heads


def key_of(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Key:
    joined = sharpness.ndim == 1
    by_head, by_axis = sharpness.stride() if not joined else (sharpness.stride(0), 0)
    heads_at = (center.stride(0), center.stride(1), by_head, by_axis)
    return Key(grid, value.dtype, value.device, value.shape, center.shape[0], heads_at, joined, value.stride())


def token_major(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Strides of (batch, heads, tokens, width) with which joining the heads for the output layer is a view."""
    _, heads, tokens, width = shape
    return tokens * heads * width, width, heads * width, 1


def head_major(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    _, heads, tokens, width = shape
    return heads * tokens * width, tokens * width, width, 1


def passes_of(key: Key) -> list[tuple[Axis, ...]]:
    """The axes that go together, in the order of the forward pass: two short ones at once, and last, because what comes
    before them has made one value per head."""
    axes = axes_of(key.grid)
    if key.dtype.itemsize > 2 or len(axes) < 3 or not has_room_for_pairs(key.device):
        return [(axis,) for axis in axes]
    pairs = [pair for pair in itertools.combinations(axes, 2) if tokens_of(pair) <= _axes.LARGEST_PAIR]
    if not pairs:
        return [(axis,) for axis in axes]
    chosen = max(pairs, key=lambda pair: (tokens_of(pair), pair[1].place))
    return [*((axis,) for axis in axes if axis not in chosen), chosen]


def tokens_of(pair: tuple[Axis, ...]) -> int:
    return math.prod(block(axis.size) for axis in pair)


@functools.cache
def has_room_for_pairs(device: torch.device) -> bool:
    """Whether a program can have the memory that two axes at once need on the chip."""
    if device.type != "cuda":
        return True
    properties = driver.active.utils.get_device_properties(device.index)
    return bool(properties["max_shared_mem"] >= PAIR_BYTES)


class Pass(NamedTuple):
    """Launches of a forward pass: for local heads and for wide ones, by a table or not; strides of what it writes."""

    local: Ways
    wide: Ways | None
    tabled: bool
    strides: tuple[int, ...]


def rooms_of(key: Key, groups: list[tuple[Axis, ...]], streams: dict[int, Stream], backward: bool) -> list[int]:
    """Of every axis, the room of its windows. A backward pass sums one value's gradient over all heads, local or not."""
    rooms = [_axes.ALL_LOCAL] * len(key.grid)
    for place, group in enumerate(groups):
        if len(group) == 1:
            rooms[group[0].place] = _axes.room_of(group[0], streams, backward and key.is_shared and place == 0)
    return rooms


class Forward:
    """Passes along all axes."""

    def __init__(self, key: Key) -> None:
        self.key, self.backwards = key, dict[tuple[tuple[int, ...], bool, bool], Backward]()
        self.shape, groups = (key.shape[0], key.heads, key.shape[2], key.shape[3]), passes_of(key)
        rooms = rooms_of(key, groups, _axes.STREAM_FORWARD, False)
        self.tables, begins, self.table_count = _axes.table_launches(key.grid, key.layout, rooms)
        self.moment_count = 3 * len(key.grid) * key.heads * max(key.grid)
        self.passes: list[Pass] = []
        x: Strides = (key.value[0], 0 if key.is_shared else key.value[1], key.value[2])
        for group in groups:
            strides = token_major(self.shape) if group is groups[-1] else head_major(self.shape)
            at = (*x, *strides[:3])
            self.passes.append(self._pass(key, group, rooms[group[0].place], begins, at)._replace(strides=strides))
            x = strides[:3]

    def backward(self, grad: tuple[int, ...], needs_value: bool, needs_heads: bool) -> "Backward":
        """The backward passes for what comes from above with these strides."""
        found = self.backwards.get((grad, needs_value, needs_heads))
        if found is None:
            found = Backward(self.key, grad, needs_value, needs_heads)
            self.backwards[grad, needs_value, needs_heads] = found
        return found

    def _pass(self, key: Key, group: tuple[Axis, ...], room: int, begins: dict[int, int], at: tuple[int, ...]) -> Pass:
        axis, layout, wide = group[0], key.layout, None
        if len(group) > 1:
            return Pass(_axes.pair_ways(group, third(key, group), layout, at), None, False, ())
        if axis.place in begins:
            wide = _axes.mix_ways(axis, layout, at, begins[axis.place], room, False)
        elif room != _axes.ALL_LOCAL:
            wide = _axes.wide_forward_ways(axis, layout, at, room)
        chosen = _axes.chosen_stream(axis, _axes.STREAM_FORWARD)
        return Pass(
            _axes.stream_ways(axis, layout, chosen, at, len(self.passes) % 2 == 1), wide, axis.place in begins, ()
        )


def third(key: Key, pair: tuple[Axis, ...]) -> Axis | None:
    """The axis that is in no pair."""
    return next((axis for axis in axes_of(key.grid) if axis not in pair), None)


class Step(NamedTuple):
    """Launches of a backward pass, of which ``place`` was the forward one: for local heads; for wide ones with a table,
    what they leave of the gradients of center and sharpness; for wide ones."""

    place: int
    axes: tuple[Axis, ...]
    local: Ways | None
    pairs: Ways | None
    wide: Ways | None
    tabled: bool

    def programs(self) -> tuple[int, int]:
        """How many leave parts of gradients: for local heads, and for wide ones."""
        second = self.pairs if self.tabled else self.wide
        return 0 if self.local is None else self.local.most_programs, 0 if second is None else second.most_programs


class Backward:
    """Passes along all axes, the forward pass' last first."""

    def __init__(self, key: Key, grad: tuple[int, ...], needs_value: bool, needs_heads: bool) -> None:
        self.key, self.value, self.needs = key, token_major(key.shape), (needs_value, needs_heads)
        groups = passes_of(key) if needs_value or needs_heads else []
        self.rooms = rooms_of(key, groups, _axes.STREAM_BACKWARD, True)
        self.tables, self.table_begins, self.table_count = _axes.table_launches(key.grid, key.layout, self.rooms)
        self.slots, self.begins, self.steps = 0, [0] * len(key.grid), list[Step]()
        if needs_heads:  # how many programs leave parts of center's and sharpness' gradients depends on no stride
            for place, group in enumerate(groups):
                first, second = self._step(place, group, (0,) * 9, (True, True)).programs()
                self.slots, self.begins[group[0].place] = max(self.slots, first + second), first
        y: Strides = (grad[0], grad[1], grad[2])
        for place, group in reversed(list(enumerate(groups))):
            x = gx = head_major((key.shape[0], key.heads, *key.shape[2:]))[:3]
            if place == 0:
                own = int(not key.is_shared)
                x, gx = ((at[0], own * at[1], at[2]) for at in (key.value, self.value))
            needs = (place > 0 or needs_value, needs_heads)
            if any(needs):
                self.steps.append(self._step(place, group, (*x, *y, *gx), needs))
            y = gx
        alone = [_axes.ALL_LOCAL if i in self.table_begins else room for i, room in enumerate(self.rooms)]
        self.moments: Launch | None = None
        if any(room != _axes.ALL_LOCAL for room in alone):
            self.moments = _axes.moments_launch(key.grid, key.layout, tuple(alone))
        has_moments = self.moments is not None or self.table_count
        self.moment_count = 3 * len(key.grid) * key.heads * max(key.grid) if has_moments else 0
        self.part_count = key.heads * len(key.grid) * 2 * self.slots
        self.sums: dict[tuple[int, ...], Launch] = {}

    def _step(self, place: int, group: tuple[Axis, ...], at: tuple[int, ...], needs: tuple[bool, bool]) -> Step:
        layout, axes, length = self.key.layout, len(self.key.grid), max(self.key.grid)
        if len(group) > 1:
            inner, given = third(self.key, group), (self.slots, axes, *needs)
            return Step(place, group, _axes.pair_ways(group, inner, layout, at, given), None, None, False)
        axis, room = group[0], self.rooms[group[0].place]
        local = pairs = wide = None
        if room != _axes.NONE_LOCAL:
            chosen = _axes.chosen_stream(axis, _axes.STREAM_BACKWARD)
            local = _axes.stream_ways(axis, layout, chosen, at, self._is_reversed(place), (self.slots, 0, axes, *needs))
        parts_at = (self.slots, self.begins[axis.place], axes, *needs)
        tabled = axis.place in self.table_begins
        if tabled:
            pairs = _axes.pairs_ways(axis, layout, at[:6], room, length, parts_at) if needs[1] else None
            begin = self.table_begins[axis.place]
            wide = _axes.mix_ways(axis, layout, at[3:], begin, room, True) if needs[0] else None
        elif room != _axes.ALL_LOCAL:
            wide = _axes.wide_backward_ways(axis, layout, at, room == _axes.NONE_LOCAL, length, parts_at)
        return Step(place, group, local, pairs, wide, tabled)

    def _is_reversed(self, place: int) -> bool:
        """Every other pass begins with what the one before has written last, which is still in the cache."""
        return (len(passes_of(self.key)) - 1 - place) % 2 == 1

    def sum_of_parts(self) -> Launch:
        """By how many programs were started, which the card's room decides at the first launch."""
        counts = [0] * 3 * len(self.key.grid)
        for step in self.steps:
            second = step.pairs if step.tabled else step.wide
            started = (0 if ways is None else ways.now.programs for ways in (step.local, second))
            first, more = started
            for axis in step.axes:
                counts[3 * axis.place : 3 * axis.place + 3] = first, self.begins[axis.place], more
        found = self.sums.get(tuple(counts))
        if found is None:
            found = _axes.sum_launch(self.key.layout, self.slots, tuple(counts), self.key.joined)
            self.sums[tuple(counts)] = found
        return found


@functools.lru_cache(1024)
def forward_plan(key: Key) -> Forward:
    return Forward(key)


def plan_of(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Forward:
    return forward_plan(key_of(value, center, sharpness, grid))
