"""All launches of Gaussian attention over a grid, forward and backward, as a plan.

A plan is made once for each combination of shapes, strides and dtypes, so that a later call only starts its launches.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from regard.functional.kernels import _axes
from regard.functional.kernels._axes import Axis, Strides, ValueLayout, axes_of
from regard.functional.kernels._start import Launch, Launches


class Key(NamedTuple):
    """The cache key of a plan. ``heads_at``: strides of center and sharpness, by head and by axis; ``heads_of``: their
    dtypes, which select the compiled kernel; ``joined``: one sharpness for all axes; ``value``: strides of the value."""

    grid: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    heads: int
    heads_at: tuple[int, int, int, int]
    heads_of: tuple[torch.dtype, torch.dtype]
    joined: bool
    value: tuple[int, ...]

    @property
    def layout(self) -> ValueLayout:
        return ValueLayout(self.dtype, self.device, self.shape[0], self.heads, self.shape[3], self.heads_at)

    @property
    def is_shared(self) -> bool:
        """Whether all heads share one value."""
        return self.shape[1] != self.heads


def key_of(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Key:
    joined = sharpness.ndim == 1
    by_head, by_axis = sharpness.stride() if not joined else (sharpness.stride(0), 0)
    heads_at = (center.stride(0), center.stride(1), by_head, by_axis)
    heads_of = center.dtype, sharpness.dtype
    return Key(
        grid, value.dtype, value.device, value.shape, center.shape[0], heads_at, heads_of, joined, value.stride()
    )


def token_major(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Strides of (batch, heads, tokens, width) in the order (batch, tokens, heads, width), where joining heads is a view."""
    _, heads, tokens, width = shape
    return tokens * heads * width, width, heads * width, 1


def head_major(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    _, heads, tokens, width = shape
    return heads * tokens * width, tokens * width, width, 1


class Pass(NamedTuple):
    """Launches of a forward pass for local heads and for wide heads (``tabled``: by a table), and its output's strides."""

    local: Launches
    wide: Launches | None
    tabled: bool
    strides: tuple[int, ...]


class Forward:
    """The forward passes along all axes."""

    def __init__(self, key: Key) -> None:
        self.key, self.backwards = key, dict[tuple[tuple[int, ...], bool, bool], Backward]()
        self.shape, axes = (key.shape[0], key.heads, key.shape[2], key.shape[3]), axes_of(key.grid)
        rooms = [_axes.room_of(axis, _axes.STREAM_FORWARD) for axis in axes]
        self.tables, begins, self.table_count = _axes.table_launches(key.grid, key.layout, rooms)
        self.moment_count = 3 * len(key.grid) * key.heads * max(key.grid)
        self.passes: list[Pass] = []
        x: Strides = (key.value[0], 0 if key.is_shared else key.value[1], key.value[2])
        for axis in axes:
            strides = token_major(self.shape) if axis is axes[-1] else head_major(self.shape)
            self.passes.append(self._pass(axis, rooms[axis.place], begins, (*x, *strides[:3]), strides))
            x = strides[:3]

    def backward(self, grad: tuple[int, ...], needs_value: bool, needs_heads: bool) -> "Backward":
        """The backward passes for an output gradient with these strides."""
        found = self.backwards.get((grad, needs_value, needs_heads))
        if found is None:
            found = Backward(self.key, grad, needs_value, needs_heads)
            self.backwards[grad, needs_value, needs_heads] = found
        return found

    def _pass(
        self, axis: Axis, room: int, begins: dict[int, int], at: tuple[int, ...], strides: tuple[int, ...]
    ) -> Pass:
        layout, wide, tabled = self.key.layout, None, axis.place in begins
        if tabled:
            wide = _axes.mix_launches(axis, layout, at, begins[axis.place], room, False)
        elif room != _axes.ALL_LOCAL:
            wide = _axes.wide_forward_launches(axis, layout, at, room)
        # Every second pass runs backwards: it begins with what the previous pass wrote last, which is still in the cache.
        chosen, reverse = _axes.chosen_stream(axis, _axes.STREAM_FORWARD), axis.place % 2 == 1
        return Pass(_axes.stream_launches(axis, layout, chosen, at, reverse), wide, tabled, strides)


class Step(NamedTuple):
    """Launches of a backward pass along axis ``place``: ``local`` for local heads; ``pairs`` for the partial gradients of
    center and sharpness of wide heads with a table; ``wide`` for the rest of wide heads."""

    place: int
    local: Launches | None
    pairs: Launches | None
    wide: Launches | None
    tabled: bool

    def programs(self) -> tuple[int, int]:
        """How many programs store partial gradients: for local heads, and for wide heads."""
        second = self.pairs if self.tabled else self.wide
        return 0 if self.local is None else self.local.most_programs, 0 if second is None else second.most_programs


class Backward:
    """The backward passes along all axes, the last axis first."""

    def __init__(self, key: Key, grad: tuple[int, ...], needs_value: bool, needs_heads: bool) -> None:
        self.key, self.value, self.needs = key, token_major(key.shape), (needs_value, needs_heads)
        axes = axes_of(key.grid) if needs_value or needs_heads else ()
        # The gradient of a shared value is a sum over all heads, local or wide, in one kernel.
        self.rooms = [
            _axes.room_of(axis, _axes.STREAM_BACKWARD, key.is_shared and axis.place == 0) for axis in axes_of(key.grid)
        ]
        self.tables, self.table_begins, self.table_count = _axes.table_launches(key.grid, key.layout, self.rooms)
        self.slots, self.begins, self.steps = 0, [0] * len(key.grid), list[Step]()
        if needs_heads:  # the number of programs does not depend on strides
            for axis in axes:
                first, second = self._step(axis, (0,) * 9, (True, True)).programs()
                self.slots, self.begins[axis.place] = max(self.slots, first + second), first
        y: Strides = (grad[0], grad[1], grad[2])
        for axis in reversed(axes):
            x = gx = head_major((key.shape[0], key.heads, *key.shape[2:]))[:3]
            if axis.place == 0:
                own = int(not key.is_shared)
                x, gx = ((at[0], own * at[1], at[2]) for at in (key.value, self.value))
            needs = (axis.place > 0 or needs_value, needs_heads)
            if any(needs):
                self.steps.append(self._step(axis, (*x, *y, *gx), needs))
            y = gx
        alone = [_axes.ALL_LOCAL if i in self.table_begins else room for i, room in enumerate(self.rooms)]
        self.moments: Launch | None = None
        if any(room != _axes.ALL_LOCAL for room in alone):
            self.moments = _axes.moments_launch(key.grid, key.layout, tuple(alone))
        has_moments = self.moments is not None or self.table_count
        self.moment_count = 3 * len(key.grid) * key.heads * max(key.grid) if has_moments else 0
        self.part_count = key.heads * len(key.grid) * 2 * self.slots
        self.sum: Launch | None = None

    def _step(self, axis: Axis, at: tuple[int, ...], needs: tuple[bool, bool]) -> Step:
        layout, axes, length = self.key.layout, len(self.key.grid), max(self.key.grid)
        place, room, local, pairs, wide = axis.place, self.rooms[axis.place], None, None, None
        if room != _axes.NONE_LOCAL:
            chosen, reverse = _axes.chosen_stream(axis, _axes.STREAM_BACKWARD), (axes - 1 - place) % 2 == 1
            local = _axes.stream_launches(axis, layout, chosen, at, reverse, (self.slots, 0, axes, *needs))
        given = (self.slots, self.begins[place], axes, *needs)
        tabled = place in self.table_begins
        if tabled:
            pairs = _axes.pairs_launches(axis, layout, at[:6], room, length, given) if needs[1] else None
            wide = _axes.mix_launches(axis, layout, at[3:], self.table_begins[place], room, True) if needs[0] else None
        elif room != _axes.ALL_LOCAL:
            wide = _axes.wide_backward_launches(axis, layout, at, room == _axes.NONE_LOCAL, length, given)
        return Step(place, local, pairs, wide, tabled)

    def sum_of_parts(self) -> Launch:
        """The launch that adds partial gradients. Their number is known only after the first launches, which choose the
        configurations that fit the GPU."""
        if self.sum is None:
            counts = [(0, 0, 0)] * len(self.key.grid)
            for step in self.steps:
                second = step.pairs if step.tabled else step.wide
                first, more = (0 if launches is None else launches.now.programs for launches in (step.local, second))
                counts[step.place] = first, self.begins[step.place], more
            key = self.key
            self.sum = _axes.sum_launch(key.grid, key.layout, self.slots, counts, self.rooms, key.joined)
        return self.sum


@functools.lru_cache(1024)
def forward_plan(key: Key) -> Forward:
    return Forward(key)


def plan_of(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Forward:
    return forward_plan(key_of(value, center, sharpness, grid))
