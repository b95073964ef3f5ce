"""The steps of wide heads: along which axis each one works, and where its numbers lie. Plain Python, without Triton.

Values have the axes (batch, heads, *grid, width). In one step an axis of the grid is exchanged for another number of entries:
tokens for nodes, or nodes for queries. For the kernels everything else is either *others* or *width*: behind the first axis
lie others, so that values and outputs may have any strides; for later axes, what lies before them is others, and all behind
them is width.
"""

import math
from typing import NamedTuple

import torch

from regard.functional.kernels._limits import MOST_PROGRAMS

COLUMNS = 128  # of a tile: channels of some others
SHORTEST_TILE = 64  # rows of a product, on a long axis


class Strides(NamedTuple):
    """Of a tensor: from item to item, from head to head, along the axis of the step, and along the others."""

    item: int
    head: int
    step: int
    other: int


class NodeStep(NamedTuple):
    """``y[item, head, row, other, :] = Σ_step matrix[head, row, step] x[item, head, step, other, :]``.

    Attributes:
        items: of all heads.
        shape: of y, if it is contiguous.
    """

    rows: int
    steps: int
    others: int
    width: int
    heads: int
    items: int
    x: Strides
    y: Strides
    shape: tuple[int, ...]

    @property
    def transposed(self) -> "NodeStep":
        """The step back, for gradients. Its shape is not known."""
        return self._replace(rows=self.steps, steps=self.rows, x=self.y, y=self.x, shape=())

    @property
    def tiles(self) -> tuple[int, int, int, int]:
        """How many tiles the columns have, how many of them one other needs, and the others and channels of a tile."""
        across = min(COLUMNS, 1 << max(4, (self.width - 1).bit_length()))
        width_tiles, at_once = -(-self.width // across), COLUMNS // across
        return -(-self.others // at_once) * width_tiles, width_tiles, at_once, across


class AxisSizes(NamedTuple):
    """One axis of wide heads: its inputs, queries and nodes; and the ends of its keys, which may lie on padding."""

    inputs: int
    outputs: int
    nodes: int
    low: int
    high: int


class WideForm(NamedTuple):
    """What the steps of a call depend on. The strides are those of values, centers and sharpness."""

    batch: int
    value_heads: int
    heads: int
    width: int
    axes: tuple[AxisSizes, ...]
    value: tuple[int, ...]
    center: tuple[int, ...]
    sharpness: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def before(self, axis: int) -> int:
        """The number of nodes on the axes before this one."""
        return math.prod(each.nodes for each in self.axes[:axis])

    @property
    def is_launchable(self) -> bool:
        """Whether items and tiles are within CUDA's limits of a launch grid, and what lies within a head, within 32 bits."""
        items = self.batch * max(self.heads, self.value_heads * self.before(len(self.axes) - 1))
        longest = max(max(axis.inputs, axis.outputs) for axis in self.axes)
        matrices = max(max(axis.inputs, axis.outputs) * axis.nodes for axis in self.axes)
        return items <= MOST_PROGRAMS and longest <= MOST_PROGRAMS * SHORTEST_TILE and matrices < 2**31

    @property
    def inputs(self) -> int:
        return math.prod(axis.inputs for axis in self.axes)

    @property
    def outputs(self) -> int:
        return math.prod(axis.outputs for axis in self.axes)


def tokens_first(heads: int, tokens: int, width: int, others: int) -> Strides:
    """Of (batch, heads, tokens, width) in the order batch, tokens, heads, width, as the step along the first axis sees it."""
    return Strides(tokens * heads * width, width, others * heads * width, heads * width)


def reducing_steps(form: WideForm) -> list[NodeStep]:
    """From values to nodes, the first axis first."""
    steps = list[NodeStep]()
    sizes: tuple[int, int, int, int]
    shape: tuple[int, ...]
    for a, axis in enumerate(form.axes):
        behind = math.prod(each.inputs for each in form.axes[a + 1 :])
        rows, inputs, items = axis.nodes, axis.inputs, form.batch * form.value_heads
        if a == 0:
            item, head, token, _ = form.value
            size = rows * behind * form.width
            x = Strides(item, head, behind * token, token)
            y = Strides(form.value_heads * size, size, behind * form.width, form.width)
            sizes, shape = (behind, form.width, form.value_heads, items), (items, rows, behind, form.width)
        else:
            items, columns = items * form.before(a), behind * form.width
            x, y = Strides(inputs * columns, 0, columns, 0), Strides(rows * columns, 0, columns, 0)
            sizes, shape = (1, columns, 1, items), (items, rows, columns)
        steps.append(NodeStep(rows, inputs, *sizes, x, y, shape))
    return steps


def spreading_steps(form: WideForm) -> list[NodeStep]:
    """From nodes to outputs, in the order of the axes; the last one comes first."""
    steps = list[NodeStep]()
    for a, axis in enumerate(form.axes):
        behind = math.prod(each.outputs for each in form.axes[a + 1 :])
        x = nodes_of(form, a, form.value_heads if a == len(form.axes) - 1 else form.heads)
        items = form.batch * form.heads
        if a == 0:
            y = tokens_first(form.heads, form.outputs, form.width, behind)
            others, width = behind, form.width
        else:
            others, width = form.before(a), behind * form.width
            size = others * axis.outputs * width
            y = Strides(form.heads * size, size, width, axis.outputs * width)
        shape = (form.batch, form.heads, others, axis.outputs, width)
        steps.append(NodeStep(axis.outputs, axis.nodes, others, width, form.heads, items, x, y, shape))
    return steps


def nodes_of(form: WideForm, a: int, heads: int) -> Strides:
    """Of what enters the spreading step of an axis, with this many heads; a single one serves all."""
    axis, behind = form.axes[a], math.prod(each.outputs for each in form.axes[a + 1 :])
    size = form.before(a) * axis.nodes * behind * form.width
    head = 0 if heads == 1 and form.heads > 1 else size
    if a == 0:
        return Strides(heads * size, head, behind * form.width, form.width)
    return Strides(heads * size, head, behind * form.width, axis.nodes * behind * form.width)
