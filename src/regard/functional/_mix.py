"""Multiply the values along each axis of a grid by one small matrix per head and axis.

A head's attention over a grid is a Kronecker product of axis matrices; this file multiplies values by it without ever
forming it. Each axis is split into blocks of outputs; a block reads one window of inputs. A full axis matrix is one
block whose window is the whole axis; a banded one has many blocks with narrow windows, and away from the ends of the axis
many blocks have the same matrix.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.functional import kernels
from regard.support import huge_pages
from regard.support.checks import is_exporting, is_transformed, under_autocast
from regard.support.tensor_cache import constant

Span = tuple[int, int, int, int, int]


class AxisBlocks(NamedTuple):
    """How one axis is split, for every head of a group: block k of head h computes ``block`` outputs from ``k·block`` on
    and reads ``window`` inputs from ``starts[h][k]`` on, with the matrix of number ``numbers[k]``. Numbers rise from 0 on."""

    outputs: int
    inputs: int
    block: int
    window: int
    starts: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...] = (0,)

    @classmethod
    def whole(cls, outputs: int, inputs: int, heads: int) -> "AxisBlocks":
        return cls(outputs, inputs, outputs, inputs, ((0,),) * heads)

    @property
    def own_blocks(self) -> tuple[int, ...]:
        """For each matrix, the first block that it serves."""
        return tuple(k for k, number in enumerate(self.numbers) if not k or number != self.numbers[k - 1])

    @property
    def is_whole(self) -> bool:
        return self.block == self.outputs and self.window == self.inputs

    def spans(self, head: int) -> list[Span]:
        """(number of the matrix, first output, output stop, first input, input stop) of every block, as half-open ranges."""
        return [
            (number, k * self.block, min((k + 1) * self.block, self.outputs), start, start + self.window)
            for k, (number, start) in enumerate(zip(self.numbers, self.starts[head], strict=True))
        ]


class HeadGroup(NamedTuple):
    """Heads that are computed together, with the same block sizes. ``nodes``: the nodes per axis of wide heads whose axis
    matrices are interpolated (:mod:`regard.functional._wide_heads`); else None."""

    heads: tuple[int, ...]
    axes: tuple[AxisBlocks, ...]
    nodes: tuple[int, ...] | None = None


SMALL_ITEM_BYTES = 64 << 10  # above this size tiles are faster (measured on one core, forward and backward)

# (heads, matrices, block, window) for each axis
Matrices = Sequence[Float[Tensor, "_ _ _ _"]]


def mix(
    value: Float[Tensor, "batch value_heads tokens width"],
    groups: Sequence[HeadGroup],
    matrices: Sequence[Matrices],
) -> Float[Tensor, "batch heads outputs width"]:
    """Multiply every head's values by its matrix along every axis. ``value`` may have one head that all heads share.

    On the CPU, in eager mode, a hand-written forward and backward work head by head and tile by tile, so that
    intermediates stay in cache and no axis matrix is copied; small grids take one product per axis for the whole batch.
    On a GPU :mod:`regard.functional.kernels` computes planes of up to 128 × 128 tokens. Otherwise plain tensor
    operations compute the same product, because compilers, exporters and transforms understand them.
    """
    if _needs_float32(value, groups):
        return mix(value.float(), groups, matrices).to(value.dtype)
    matrices = [[matrix.to(value.dtype) for matrix in group] for group in matrices]
    if len(groups) == 1 and _is_plane(value, groups[0]):
        rows, columns = matrices[0]
        return kernels.mix_plane(value, rows[:, 0], columns[:, 0])
    if _can_tile(value, matrices) and not _is_one_product(value, groups) and not _is_small(value, groups):
        flat = [matrix for group in matrices for matrix in group]
        return _TiledMix.apply(value, tuple(groups), *flat)
    return _plain_mix(value, groups, matrices)


def _needs_float32(value: Tensor, groups: Sequence[HeadGroup]) -> bool:
    """Whether tiles in float32 are faster than plain products in half precision, for which windows of bands are copied. On a
    CPU, products in float16 are slow in any case."""
    if value.device.type != "cpu" or value.dtype not in (torch.float16, torch.bfloat16):
        return False
    if torch.compiler.is_compiling() or is_exporting() or is_transformed() or under_autocast(value):
        return False
    return value.dtype is torch.float16 or not all(axis.is_whole for group in groups for axis in group.axes)


def _is_plane(value: Tensor, group: HeadGroup) -> bool:
    return (
        len(group.axes) == 2
        and all(axis.is_whole for axis in group.axes)
        and kernels.usable(value, tuple(axis.outputs for axis in group.axes), tuple(axis.inputs for axis in group.axes))
    )


def _is_one_product(value: Tensor, groups: Sequence[HeadGroup]) -> bool:
    """Whether the result is a single product, which needs no tiles: one value for all heads and whole maps."""
    return value.shape[1] == 1 and len(groups) == 1 and len(groups[0].axes) == 1 and groups[0].axes[0].is_whole


def _is_small(value: Tensor, groups: Sequence[HeadGroup]) -> bool:
    """Whether one head's values of one item are so few that launching a product for each costs more than computing it."""
    item = value.shape[2] * value.shape[3] * value.element_size()
    return item <= SMALL_ITEM_BYTES and all(axis.is_whole for group in groups for axis in group.axes)


def _can_tile(value: Tensor, matrices: Sequence[Matrices]) -> bool:
    return (
        value.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not is_transformed()
        and not under_autocast(value)  # its products would have another dtype than the output tiles
        and value.dtype in (torch.float32, torch.float64)
        and all(type(x) in (Tensor, torch.nn.Parameter) for x in (value, *(m for group in matrices for m in group)))
    )


def _plain_mix(value: Tensor, groups: Sequence[HeadGroup], matrices: Sequence[Matrices]) -> Tensor:
    if len(groups) == 1 and groups[0].heads == tuple(range(len(groups[0].heads))):
        return _plain_group(value, groups[0], matrices[0])
    parts = []
    for group, group_matrices in zip(groups, matrices, strict=True):
        index = constant(group.heads, value.device)
        shared = value.shape[1] == 1
        parts.append(_plain_group(value if shared else value.index_select(1, index), group, group_matrices))
    heads = [head for group in groups for head in group.heads]
    order = constant(tuple(sorted(range(len(heads)), key=heads.__getitem__)), value.device)
    return torch.cat(parts, 1).index_select(1, order)


def _plain_group(value: Tensor, group: HeadGroup, matrices: Matrices) -> Tensor:
    batch, heads = value.shape[0], len(group.heads)
    if value.shape[1] == 1 and len(group.axes) == 1 and group.axes[0].is_whole:
        # One product for all heads: (outputs·heads × inputs) @ (inputs × width). With this layout a later
        # "b h n d -> b n (h d)" is a view.
        value = kernels.as_autocast(value)
        folded = matrices[0][:, 0].transpose(0, 1).flatten(0, 1).to(value.dtype)
        plain = is_exporting() or is_transformed()
        mixed = folded @ value.squeeze(1) if plain else _SharedProduct.apply(folded, value.squeeze(1))
        return mixed.unflatten(1, (-1, heads)).transpose(1, 2)
    x = value.reshape(batch, value.shape[1], *[axis.inputs for axis in group.axes], value.shape[3])
    if value.shape[1] == 1:
        x = x.expand(-1, heads, *x.shape[2:])
    for i, (axis, matrix) in enumerate(zip(group.axes, matrices, strict=True)):
        # (heads, axis, everything else): one product per head, and the width stays the innermost dimension.
        x = x.movedim((1, 2 + i), (0, 1))
        rest = x.shape[2:]
        x = x.reshape(heads, axis.inputs, math.prod(rest))
        if axis.is_whole:
            x = torch.bmm(matrix[:, 0], x)
        else:
            starts = constant(axis.starts, x.device)  # (heads, blocks)
            columns = starts.unsqueeze(-1) + torch.arange(axis.window, device=x.device)
            index = columns.flatten(1).unsqueeze(-1).expand(-1, -1, x.shape[2])
            windows = x.gather(1, index).unflatten(1, (-1, axis.window))
            matrix = matrix if matrix.shape[1] == len(axis.numbers) else matrix[:, constant(axis.numbers, x.device)]
            x = torch.matmul(matrix, windows).flatten(1, 2)[:, : axis.outputs]
        x = x.reshape(heads, axis.outputs, *rest).movedim((0, 1), (1, 2 + i))
    return x.reshape(batch, heads, math.prod([axis.outputs for axis in group.axes]), value.shape[3])


class _SharedProduct(torch.autograd.Function):
    """``matrix @ x[i]`` for every item i. Autograd would store one gradient of the matrix per item and then add them;
    here the gradient is one product over items and width."""

    @staticmethod
    def forward(ctx, matrix, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(matrix, x)
        return _times_each_item(matrix, x)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        matrix, x = ctx.saved_tensors
        rows, columns = matrix.shape
        if grad.device.type == "cuda" and columns <= x.shape[2]:
            # Here one gradient per item takes less memory than transposed copies of the values and their gradients.
            by_matrix = torch.bmm(grad, x.mT).sum(0, dtype=torch.float32).to(matrix.dtype)
            return by_matrix, _times_each_item(matrix.mT, grad)
        by_matrix = grad.transpose(0, 1).reshape(rows, -1) @ x.transpose(0, 1).reshape(columns, -1).mT
        return by_matrix, _times_each_item(matrix.mT, grad)


def _times_each_item(matrix: Tensor, x: Tensor) -> Tensor:
    """``matrix @ x[i]`` for every item i. Not written as ``matrix @ x``: if the matrix requires a gradient, torch would
    transpose all values and the result by copies that take longer than the product."""
    return torch.bmm(matrix.expand(x.shape[0], -1, -1), x)


class _TiledMix(torch.autograd.Function):
    """The tiled CPU method. Only the inputs are saved for the backward pass; it recomputes intermediates tile by tile."""

    @staticmethod
    def forward(ctx, value, groups, *flat):  # type: ignore[no-untyped-def]
        value = value.contiguous()
        ctx.groups = groups
        ctx.save_for_backward(value, *flat)
        return _tiled_forward(value, groups, _by_group(groups, flat))

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        value, *flat = ctx.saved_tensors
        if torch.is_grad_enabled():  # second-order gradients: use plain operations, which autograd records
            inputs = (value, *flat)
            wanted = [x for x, need in zip(inputs, _needs(ctx), strict=True) if need]
            out = _plain_mix(value, ctx.groups, _by_group(ctx.groups, flat))
            found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
            grads = [next(found) if need else None for need in _needs(ctx)]
            return grads[0], None, *grads[1:]
        needs = _needs(ctx)
        with torch.autocast("cpu", enabled=False):
            grads = _tiled_backward(
                grad.contiguous(), value, ctx.groups, _by_group(ctx.groups, flat), needs[0], any(needs[1:])
            )
        return grads[0], None, *grads[1:]


def _needs(ctx: torch.autograd.function.FunctionCtx) -> list[bool]:
    value, _, *flat = ctx.needs_input_grad  # type: ignore[attr-defined]
    return [value, *flat]


def _by_group(groups: Sequence[HeadGroup], flat: Sequence[Tensor]) -> list[list[Tensor]]:
    rest = iter(flat)
    return [[next(rest) for _ in group.axes] for group in groups]


TILE_BYTES = 2 << 20  # a tile of intermediates of this size stays in cache between the passes


def _row_tiles(spans: list[Span], row_bytes: int) -> list[tuple[int, int, int, int, int, int]]:
    """(number of the matrix, first row of the block, first row, row stop, window start, window stop): blocks of the first
    axis, split so that tiles fit in cache."""
    rows = max(8, TILE_BYTES // max(row_bytes, 1))
    tiles = []
    for number, first, last, start, stop in spans:
        for row in range(first, last, rows):
            tiles.append((number, first, row, min(row + rows, last), start, stop))
    return tiles


def _tiled_forward(value: Tensor, groups: Sequence[HeadGroup], matrices: Sequence[Sequence[Tensor]]) -> Tensor:
    batch, value_heads, _, width = value.shape
    heads = sum(len(group.heads) for group in groups)
    outputs = math.prod(axis.outputs for axis in groups[0].axes)  # as of every group
    out = huge_pages.empty(batch, heads, outputs, width, like=value)
    for group, group_matrices in zip(groups, matrices, strict=True):
        for i, head in enumerate(group.heads):
            spans = [axis.spans(i) for axis in group.axes]
            weights = [matrix[i] for matrix in group_matrices]
            for b in range(batch):
                x = value[b, head if value_heads > 1 else 0].view(group.axes[0].inputs, -1)
                y = out[b, head].view(group.axes[0].outputs, -1)
                for number, top, first, last, start, stop in _row_tiles(spans[0], x.shape[1] * x.element_size()):
                    rows = weights[0][number, first - top : last - top]
                    if len(group.axes) == 1:
                        torch.mm(rows, x[start:stop], out=y[first:last])
                    else:
                        _later_axes(rows @ x[start:stop], group.axes, weights, spans, y[first:last])
    return out


def _later_axes(
    tile: Tensor,
    axes: Sequence[AxisBlocks],
    weights: Sequence[Tensor],
    spans: Sequence[list[Span]],
    out: Tensor | None,
) -> list[Tensor]:
    """Apply the second and later axes. Returns the input of each pass; the last result is written to ``out``."""
    entered = []
    left = tile.shape[0]
    for a in range(1, len(axes)):
        x = tile.view(left, axes[a].inputs, -1)
        entered.append(x)
        last_axis = a == len(axes) - 1
        if last_axis and out is None:
            break
        shape = (left, axes[a].outputs, x.shape[2])
        y = out.view(shape) if last_axis and out is not None else x.new_empty(shape)
        for number, first, last, start, stop in spans[a]:
            _bmm_shared(weights[a][number, : last - first], x[:, start:stop], y[:, first:last])
        tile, left = y, left * axes[a].outputs
    return entered


def _bmm_shared(matrix: Tensor, x: Tensor, out: Tensor) -> None:
    """``out[i] = matrix @ x[i]``: the matrix is expanded, not copied."""
    expanded = matrix.expand(x.shape[0], *matrix.shape)
    if out.is_contiguous():
        torch.bmm(expanded, x, out=out)
    else:
        out.copy_(torch.bmm(expanded, x))


def _tiled_backward(
    grad: Tensor,
    value: Tensor,
    groups: Sequence[HeadGroup],
    matrices: Sequence[Sequence[Tensor]],
    needs_value: bool,
    needs_matrices: bool,
) -> list[Tensor | None]:
    batch, value_heads = value.shape[:2]
    grad_value = huge_pages.empty(*value.shape, like=value).zero_() if needs_value else None
    grad_matrices = [[torch.zeros_like(matrix) if needs_matrices else None for matrix in group] for group in matrices]
    for g, group in enumerate(groups):
        axes = group.axes
        for i, head in enumerate(group.heads):
            spans = [axis.spans(i) for axis in axes]
            weights = [matrix[i] for matrix in matrices[g]]
            sums = [None if m is None else m[i] for m in grad_matrices[g]]
            for b in range(batch):
                source = head if value_heads > 1 else 0
                x = value[b, source].view(axes[0].inputs, -1)
                gy = grad[b, head].view(axes[0].outputs, -1)
                gx = None if grad_value is None else grad_value[b, source].view(axes[0].inputs, -1)
                _head_backward(gy, x, axes, weights, spans, gx, sums)
    return [grad_value, *(m for group_grads in grad_matrices for m in group_grads)]


def _head_backward(
    grad: Tensor,
    x: Tensor,
    axes: Sequence[AxisBlocks],
    weights: Sequence[Tensor],
    spans: Sequence[list[Span]],
    grad_x: Tensor | None,
    sums: Sequence[Tensor | None],
) -> None:
    """Add the gradients of one head and one sample to ``grad_x`` and to ``sums``, those of the matrices."""
    for number, top, first, last, start, stop in _row_tiles(spans[0], x.shape[1] * x.element_size()):
        rows = weights[0][number, first - top : last - top]
        window = x[start:stop]
        tile_grad = grad[first:last]
        if len(axes) > 1:
            entered = [] if sums[0] is None else _later_axes(rows @ window, axes, weights, spans, None)
            tile_grad = _later_axes_backward(tile_grad, axes, weights, spans, entered, sums)
        if sums[0] is not None:
            sums[0][number, first - top : last - top].addmm_(tile_grad, window.mT)
        if grad_x is not None:
            grad_x[start:stop].addmm_(rows.mT, tile_grad)


def _later_axes_backward(
    grad: Tensor,
    axes: Sequence[AxisBlocks],
    weights: Sequence[Tensor],
    spans: Sequence[list[Span]],
    entered: Sequence[Tensor],
    sums: Sequence[Tensor | None],
) -> Tensor:
    rows = grad.shape[0]
    for a in range(len(axes) - 1, 0, -1):
        left = rows * math.prod(axis.outputs for axis in axes[1:a])
        g = grad.reshape(left, axes[a].outputs, -1)
        whole = axes[a].is_whole
        gx = g.new_empty(left, axes[a].inputs, g.shape[2]) if whole else g.new_zeros(left, axes[a].inputs, g.shape[2])
        for number, first, last, start, stop in spans[a]:
            matrix, part = weights[a][number, : last - first], g[:, first:last]
            if whole:
                _bmm_shared(matrix.mT, part, gx)
            else:
                gx[:, start:stop] += torch.bmm(matrix.mT.expand(left, -1, -1), part)
            total = sums[a]
            if total is not None:
                # One product over all rows and channels: one for each row, added up, would need rows · outputs · inputs numbers.
                read = entered[a - 1][:, start:stop]
                total[number, : last - first].addmm_(part.movedim(1, 0).flatten(1), read.movedim(1, 0).flatten(1).mT)
        grad = gx
    return grad.reshape(rows, -1)
