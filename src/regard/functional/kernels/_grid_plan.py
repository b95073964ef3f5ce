"""All launches of Gaussian attention over a grid, forward and backward: decided once for shapes, strides and dtypes."""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.functional.kernels import _axes
from regard.functional.kernels._axes import Axis, Layout, Strides, axes_of
from regard.functional.kernels._start import Launch, Ways


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
    by_axis = (sharpness.stride(0), 0) if joined else sharpness.stride()
    return Key(
        grid, value.dtype, value.device, value.shape, center.shape[0], (*center.stride(), *by_axis), joined,
        value.stride(),
    )  # fmt: skip


def token_major(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Strides of (batch, heads, tokens, width) with which joining the heads for the output layer is a view."""
    _, heads, tokens, width = shape
    return tokens * heads * width, width, heads * width, 1


def head_major(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    _, heads, tokens, width = shape
    return heads * tokens * width, tokens * width, width, 1


class Forward:
    """Passes along all axes, the first axis first: the launches of each, and strides of what it writes."""

    def __init__(self, key: Key) -> None:
        self.shape = (key.shape[0], key.heads, key.shape[2], key.shape[3])
        self.passes: list[tuple[list[Ways], tuple[int, ...]]] = []
        x: Strides = (key.value[0], 0 if key.is_shared else key.value[1], key.value[2])
        for axis in axes_of(key.grid):
            last = axis.place == len(key.grid) - 1
            strides = token_major(self.shape) if last else head_major(self.shape)
            y = strides[:3]
            self.passes.append((_axes.forward_ways(axis, key.layout, x, y), strides))
            x = y


class Step(NamedTuple):
    """The launches of a backward pass along one axis: for local heads, and for those that are not."""

    place: int
    stream: Ways | None
    wide: Ways | None


class Backward:
    """Passes along all axes, the last axis first."""

    def __init__(self, key: Key, grad: tuple[int, ...], needs_value: bool, needs_heads: bool) -> None:
        self.key, self.needs_heads, self.value = key, needs_heads, token_major(key.shape)
        axes = axes_of(key.grid) if needs_value or needs_heads else ()
        rooms = [_axes.room_of(axis.size, _axes.STREAM_BACKWARD, key.is_shared and not axis.place) for axis in axes]
        self.slots, self.begins, self.steps = 0, [0] * len(axes), list[Step]()
        if needs_heads:  # how many programs leave parts of center's and sharpness' gradients depends on no stride
            made = [self._step(axis, rooms[axis.place], (0,) * 9, (True, True)) for axis in axes]
            self.begins = [0 if step.stream is None else step.stream.most_programs for step in made]
            wide = [0 if step.wide is None else step.wide.most_programs for step in made]
            self.slots = max(map(sum, zip(self.begins, wide, strict=True)))
        y: Strides = (grad[0], grad[1], grad[2])
        for axis in reversed(axes):
            x = gx = head_major((key.shape[0], key.heads, *key.shape[2:]))[:3]
            needs = (axis.place > 0 or needs_value, needs_heads)
            if axis.place == 0:
                own = int(not key.is_shared)
                x, gx = ((at[0], own * at[1], at[2]) for at in (key.value, self.value))
            if any(needs):
                self.steps.append(self._step(axis, rooms[axis.place], (*x, *y, *gx), needs))
            y = gx
        self.moments: Launch | None = None
        if any(room != _axes.ALL_LOCAL for room in rooms):
            self.moments = _axes.moments_launch(key.grid, key.layout, tuple(rooms))
        self.moment_count = 3 * len(key.grid) * key.heads * max(key.grid) if self.moments is not None else 0
        self.part_count = key.heads * len(key.grid) * 2 * self.slots
        self.sums: dict[tuple[int, ...], Launch] = {}

    def _step(self, axis: Axis, room: int, strides: tuple[int, ...], needs: tuple[bool, bool]) -> Step:
        key, stream, wide = self.key, None, None
        shared, axes = room == _axes.NONE_LOCAL, len(key.grid)
        if not shared:
            chosen = _axes.chosen_stream(axis.size, _axes.STREAM_BACKWARD)
            stream = _axes.stream_ways(axis, key.layout, chosen, strides, (self.slots, 0, axes, *needs))
        if room != _axes.ALL_LOCAL:
            given = (self.slots, self.begins[axis.place], axes, *needs)
            wide = _axes.wide_backward_ways(axis, key.layout, strides, shared, max(key.grid), given)
        return Step(axis.place, stream, wide)

    def sum_of_parts(self) -> Launch:
        """By how many programs were started, which the card's room decides at the first launch."""
        counts = tuple(
            number
            for place, stream, wide in reversed(self.steps)
            for number in (
                0 if stream is None else stream.now.programs,
                self.begins[place],
                0 if wide is None else wide.now.programs,
            )
        )
        found = self.sums.get(counts)
        if found is None:
            found = self.sums[counts] = _axes.sum_launch(self.key.layout, self.slots, counts, self.key.joined)
        return found


@functools.lru_cache(1024)
def forward_plan(key: Key) -> Forward:
    return Forward(key)


@functools.lru_cache(1024)
def backward_plan(key: Key, grad: tuple[int, ...], needs_value: bool, needs_heads: bool) -> Backward:
    return Backward(key, grad, needs_value, needs_heads)
