"""Launches of the kernels for wide heads (``_node_pass.py``): forward and backward passes of calls of one form.

Values, outputs and their gradients are read and written in their own dtype, along the first axis. Everything between is small,
and float32: what tells heads apart in values with a mean would not survive rounding to half precision.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.functional.kernels._node_pass import gather_rows, mix_rows, node_weights
from regard.functional.kernels._node_steps import (
    NodeStep,
    Strides,
    WideForm,
    nodes_of,
    reducing_steps,
    spreading_steps,
    tokens_first,
)
from regard.functional.kernels._setups import precision
from regard.functional.kernels._start import Launch
from regard.functional.kernels._tensors import empty_output, is_aligned, on_device_of, power_of_two, raw_stream

# The largest tiles: rows of a product, and nodes of a transposed one, and how many numbers are added up in one step. In float32 a
# half of each, so that tiles fit into the shared memory of every card.
MOST_ROWS, MOST_NODES, STEPS = 128, 64, 64
_MOST = 256  # forms whose launches are kept
_launches: dict[WideForm, "WideLaunches"] = {}


def launches_of(form: WideForm) -> "WideLaunches":
    found = _launches.get(form)
    if found is None:
        if len(_launches) >= _MOST:
            _launches.clear()
        found = _launches[form] = WideLaunches(form)
    return found


class WideLaunches:
    """The launches of one form; only the tensors are missing."""

    def __init__(self, form: WideForm) -> None:
        self.form = form
        self._weights = [self._weight_launch(a) for a in range(len(form.axes))]
        self._reducing, self._spreading = reducing_steps(form), spreading_steps(form)
        axes = list(zip(form.axes, self._reducing, self._spreading, strict=True))
        self.dtypes = [form.dtype, *[torch.float32] * (len(axes) - 1)]  # of the matrices of each axis
        self._reduce = [self._mix(a, step, (0, axis.inputs, 1)) for a, (axis, step, _) in enumerate(axes)]
        self._spread = [
            self._mix(a, step, (axis.outputs * axis.nodes, axis.nodes, 1)) for a, (axis, _, step) in enumerate(axes)
        ]
        back = [step.transposed for step in self._reducing]
        behind = self._reducing[0].others
        back[0] = back[0]._replace(y=tokens_first(form.value_heads, form.inputs, form.width, behind))
        self._expand = [
            self._mix(a, step, (0, 1, axis.inputs)) for a, (axis, step) in enumerate(zip(form.axes, back, strict=True))
        ]
        self._gathers: dict[tuple[int, ...], list[Launch]] = {}  # by the strides of the gradient

    def forward(
        self, value: Tensor, center: Tensor, sharpness: Tensor, coordinates: Sequence[Tensor], places: Sequence[Tensor],
        polynomials: Sequence[Tensor],
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:  # fmt: skip
        """The outputs; and for the backward pass the weights of each axis, ``(3, heads, outputs, nodes)`` with both derivatives,
        and what enters each spreading step.

        Args:
            coordinates: of the queries of each axis.
            places: ``(3, nodes)`` of each axis, as in :class:`regard.functional._interpolation.NodeBasis`.
            polynomials: ``(nodes, inputs)`` of each axis, in :attr:`dtypes`.
        """
        form = self.form
        with on_device_of(value):
            stream = raw_stream(value)
            weights = [
                value.new_empty(3, form.heads, axis.outputs, axis.nodes, dtype=dtype)
                for axis, dtype in zip(form.axes, self.dtypes, strict=True)
            ]
            for launch, query, place, made in zip(self._weights, coordinates, places, weights, strict=True):
                _start(launch, stream, query, center, sharpness, place, made)
            x = value
            for launch, step, matrix in zip(self._reduce, self._reducing, polynomials, strict=True):
                y = value.new_empty(step.shape, dtype=torch.float32)
                _start(launch, stream, matrix, x, y)
                x = y
            entered = [x]
            for a in range(len(form.axes) - 1, 0, -1):
                y = value.new_empty(self._spreading[a].shape, dtype=torch.float32)
                _start(self._spread[a], stream, weights[a], x, y)
                x = y
                entered.insert(0, x)
            out = empty_output(value, form.heads, form.outputs)
            _start(self._spread[0], stream, weights[0], x, out)
        return out, weights, entered

    def backward(
        self, grad: Tensor, value: Tensor, weights: Sequence[Tensor], entered: Sequence[Tensor],
        places: Sequence[Tensor], polynomials: Sequence[Tensor], needs_value: bool,
    ) -> tuple[Tensor | None, Tensor]:  # fmt: skip
        """The gradients of values (if needed), and of centers and sharpness, ``(2, heads, axes)`` in float32."""
        form = self.form
        gathers = self._gathers.get(grad.stride())
        if gathers is None:
            gathers = self._gathers[grad.stride()] = self._gather_launches(grad.stride())
        with on_device_of(grad):
            stream, x = raw_stream(grad), grad
            most = max(launch.programs for launch in gathers)
            partial = torch.zeros((2, form.heads, len(form.axes), most), device=grad.device)
            steps = zip(gathers, self._spreading, weights, entered, places, strict=True)
            for launch, step, weight, known, place in steps:
                batch, heads, others, _, width = step.shape
                y = grad.new_empty(batch, heads, others, step.steps, width, dtype=torch.float32)
                _start(launch, stream, weight, x, known, place, y, partial)
                x = y
            by_heads = partial.sum(3)
            if not needs_value:
                return None, by_heads
            if form.value_heads == 1 and form.heads > 1:
                x = x.view(form.batch, form.heads, -1).sum(1)
            for a in range(len(form.axes) - 1, 0, -1):
                step = self._reducing[a]
                y = grad.new_empty(step.items, step.steps, step.width, dtype=torch.float32)
                _start(self._expand[a], stream, polynomials[a], x, y)
                x = y
            by_value = empty_output(value, form.value_heads, form.inputs)
            _start(self._expand[0], stream, polynomials[0], x, by_value)
        return by_value, by_heads

    def _weight_launch(self, a: int) -> Launch:
        form, axis = self.form, self.form.axes[a]
        across = max(16, power_of_two(axis.nodes))
        height = max(1, min(16, 4096 // across))
        numbers = (
            axis.outputs, form.heads, axis.low, axis.high, axis.nodes,
            form.center[0], a * form.center[1], form.sharpness[0], a * form.sharpness[1], height, across,
        )  # fmt: skip
        return Launch(node_weights, (-(-axis.outputs // height), form.heads, 1), numbers, {"num_warps": 4}, 1)

    def _side(self, a: int, count: int, most: int) -> int:
        """The side of a tile: a power of two, at least the 16 of tensor cores."""
        return min(most * 2 // self.dtypes[a].itemsize, max(16, power_of_two(count)))

    def _mix(self, a: int, step: NodeStep, matrix: tuple[int, int, int]) -> Launch:
        tiles, width_tiles, at_once, across = step.tiles
        height = self._side(a, step.rows, MOST_ROWS)
        numbers = (
            step.rows, step.steps, step.others, step.width, width_tiles, step.heads, *matrix, *step.x, *step.y,
            precision(self.dtypes[a]), height, self._side(a, step.steps, STEPS), at_once, across,
        )  # fmt: skip
        grid = tiles, step.items, -(-step.rows // height)
        return Launch(mix_rows, grid, numbers, {"num_warps": 8 if height >= 64 else 4}, 1)

    def _gather_launches(self, strides: tuple[int, ...]) -> list[Launch]:
        item, head, token, _ = strides
        steps = [step.transposed for step in self._spreading]
        steps[0] = steps[0]._replace(x=Strides(item, head, steps[0].others * token, token))
        sides = [self._side(a, step.rows, MOST_NODES) for a, step in enumerate(steps)]
        grids = [(step.tiles[0], step.items, -(-step.rows // side)) for step, side in zip(steps, sides, strict=True)]
        programs = [math.prod(grid) // self.form.heads for grid in grids]
        return [
            self._gather(a, step, side, grid, count, max(programs))
            for a, (step, side, grid, count) in enumerate(zip(steps, sides, grids, programs, strict=True))
        ]

    def _gather(self, a: int, step: NodeStep, side: int, grid: tuple[int, int, int], count: int, most: int) -> Launch:
        _, width_tiles, at_once, across = step.tiles
        numbers = (
            step.rows, step.steps, step.others, step.width, width_tiles, step.heads, a, len(self.form.axes), most,
            *step.x, *step.y, *nodes_of(self.form, a, self.form.heads),
            precision(self.dtypes[a]), side, self._side(a, step.steps, STEPS), at_once, across,
        )  # fmt: skip
        return Launch(gather_rows, grid, numbers, {"num_warps": 8 if side >= 64 else 4}, count)


def _start(launch: Launch, stream: int, *tensors: Tensor) -> None:
    launch(is_aligned(*tensors), stream, *tensors)
