"""The output of a converted convolution without storing its heads: in chunks of items, forward and backward.

    y = Σ_t W_t (⊗_a A_a[t_a]) x

Taps with the same offset on an axis share its matrix A_a. All axes but the last are applied first; the weights W then come
before or after the last axis, whichever takes fewer multiply-adds:

    before: y = Σ_s A_last[s] (Σ_{c, t} W_{s, t} R_{c, t})        after: y = Σ_{s, c, t} W_{s, t} (A_last[s] R_{c, t})

with R the result of the leading axes. In half precision on a CPU the weights come after: attended values are almost equal to
inputs, so that storing them loses nothing, while storing sums of products would. On a GPU half precision is limited by memory
traffic, so the order that stores less is used. If it stores sums of products, a kernel adds those of all taps in float32.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as fwAD
from jaxtyping import Float
from torch import Tensor

from regard.functional import kernels
from regard.support.checks import is_exporting, is_tracing, under_autocast

# The most bytes for the intermediates of one chunk of items: what fits a CPU's cache; on a GPU, enough to amortize launches.
CHUNK_BYTES = {"cpu": 2 << 20, "cuda": 128 << 20}


def can_be_chunked(x: Tensor, weight: Tensor) -> bool:
    """Whether :class:`TapProduct` may compute this: eager, with plain tensors of one dtype, outside of transforms."""
    return (
        not torch.compiler.is_compiling()
        and not is_exporting()
        and not is_tracing()
        and type(x) in (Tensor, torch.nn.Parameter)
        and type(weight) in (Tensor, torch.nn.Parameter)
        and weight.dtype == x.dtype
        and x.numel() > 0
        and not x.is_meta
        and not under_autocast(x)
        and not torch._C._are_functorch_transforms_active()
        and fwAD._current_level < 0  # no forward-mode gradients
    )


class TapProduct(torch.autograd.Function):
    """``(batch, out, *outputs)`` from ``x`` ``(batch, channels, *space)``. Only the inputs are saved for the backward pass (on
    a GPU also the packed weights).

    Second-order gradients are computed by plain operations, which autograd records."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, *matrices: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight, *matrices)
        ctx.groups, ctx.has_bias = groups, bias is not None
        ctx.way = way = Passes(x, weight, groups, matrices)
        x = x.contiguous()
        out = x.new_empty(len(x), groups, len(weight) // groups, way.lead_outputs * way.outputs)
        packed = way.pack(weight)
        ctx.packed = None if x.is_cpu else packed  # comparatively small, and saves the host a step on a GPU
        added = bias if way.fused and way.weights_first and groups == 1 else None
        for part in way.parts(len(x)):
            way.forward(x[part], packed, out[part], added)
        out = out.view(len(x), len(weight), *[matrix.shape[1] for matrix in matrices])
        return out if bias is None or added is not None else out.add_(bias.reshape(-1, *[1] * len(matrices)))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, *matrices = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        nothing = (None,) * (1 + len(matrices))
        by_bias = grad.sum((0, *range(2, grad.ndim))) if ctx.has_bias and needs_bias else None
        if torch.is_grad_enabled():
            x, weight = x.view_as(x), weight.view_as(weight)  # new nodes: excludes the path to weight through x
            wanted = [tensor for tensor, need in ((x, needs_x), (weight, needs_weight)) if need]
            out = plain_taps(x, weight, None, ctx.groups, matrices)
            found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True) if wanted else ())
            return next(found) if needs_x else None, next(found) if needs_weight else None, by_bias, *nothing
        way = ctx.way
        x, grad = x.contiguous(), grad.reshape(len(x), ctx.groups, way.rows, -1)
        packed = way.pack(weight) if ctx.packed is None else ctx.packed
        wide = torch.promote_types(x.dtype, torch.float32)
        total = WeightSum(torch.empty(packed.shape, dtype=wide, device=x.device)) if needs_weight else None
        rounds = [(needs_x, total)]
        if needs_x and needs_weight and not way.weights_first:
            rounds = [(False, total), (True, None)]  # nothing is shared: in turn they take less memory
        by_x = None
        for wants_x, so_far in rounds:
            by_x = torch.empty_like(x) if wants_x else None
            for part in way.parts(len(x)):
                way.backward(x[part], grad[part], packed, None if by_x is None else by_x[part], so_far)
        by_weight = None if total is None else way.unpack(total.so_far, weight)
        return by_x, by_weight, by_bias, *nothing


class Passes:
    """The products and their order for inputs of one shape."""

    def __init__(self, x: Tensor, weight: Tensor, groups: int, matrices: Sequence[Tensor]) -> None:
        *self.lead, self.last = matrices
        self.groups, self.shape = groups, weight.shape
        self.channels, self.rows = weight.shape[1], len(weight) // groups  # of one group
        self.taps = math.prod([len(matrix) for matrix in self.lead])
        self.lead_outputs = math.prod([matrix.shape[1] for matrix in self.lead])
        self.last_taps, self.outputs, self.inputs = self.last.shape
        mixed, made = self.channels * self.taps, self.rows
        before, after = last_products(mixed, made, self.outputs, self.inputs)
        self.fused = kernels.usable_for_taps(x, matrices)
        if self.fused:  # compare the sizes of stored intermediates instead of multiply-adds
            before, after = (
                (mixed + self.last_taps * made) * self.inputs,
                mixed * (self.inputs + self.last_taps * self.outputs),
            )
        self.weights_first = before < after and (self.fused or x.dtype in (torch.float32, torch.float64))
        between = max(mixed, self.last_taps * (made if self.weights_first else mixed))
        width = self.inputs if self.weights_first else self.outputs
        self.device = x.device.type
        # Kernels write the values of all items as columns of one matrix, so that a single product covers all items.
        self.one_matrix = self.fused and groups == 1 and len(self.lead) == 1
        self.item_bytes = 2 * groups * between * self.lead_outputs * width * x.element_size()
        if not self.one_matrix and self.device != "cpu":
            self.item_bytes += weight.numel() * x.element_size()  # each item's gradient of the weight

    def parts(self, items: int) -> list[slice]:
        """Chunks of items whose intermediates take at most ``CHUNK_BYTES``."""
        room = CHUNK_BYTES.get(self.device, CHUNK_BYTES["cuda"])
        count = math.ceil(items / max(1, room // max(self.item_bytes, 1)))
        size = math.ceil(items / count)
        return [slice(first, first + size) for first in range(0, items, size)]

    def pack(self, weight: Tensor) -> Tensor:
        """The weight as (groups, last taps · out, channels · taps) if it is multiplied before the last axis, else as (groups,
        out, last taps · channels · taps)."""
        split = weight.reshape(self.groups, self.rows, self.channels * self.taps, self.last_taps)
        if self.weights_first:
            return split.permute(0, 3, 1, 2).reshape(self.groups, self.last_taps * self.rows, -1)
        return split.permute(0, 1, 3, 2).reshape(self.groups, self.rows, -1)

    def unpack(self, packed: Tensor, like: Tensor) -> Tensor:
        """The inverse of :meth:`pack`, in the dtype of ``like``."""
        if self.weights_first:
            split = packed.view(self.groups, self.last_taps, self.rows, -1).permute(0, 2, 3, 1)
        else:
            split = packed.view(self.groups, self.rows, self.last_taps, -1).permute(0, 1, 3, 2)
        return torch.empty(split.shape, dtype=like.dtype, device=like.device).copy_(split).view(self.shape)

    def forward(self, x: Tensor, packed: Tensor, out: Tensor, bias: Tensor | None) -> None:
        if self.weights_first:
            self.add_last(packed @ self.mix_lead(x, self.one_matrix), out, bias=bias)
        else:
            torch.matmul(packed, self.mix_last(self.mix_lead(x)), out=out)

    def backward(self, x: Tensor, grad: Tensor, packed: Tensor, by_x: Tensor | None, total: "WeightSum | None") -> None:
        if self.weights_first:
            made = self.spread_last(grad)
            if total is not None:
                total.add(made, self.mix_lead(x, self.one_matrix))
            if by_x is not None:
                self.unmix_lead(packed.mT @ made, by_x)
            return
        if total is not None:
            above = grad.permute(1, 2, 0, 3).reshape(1, self.rows, -1) if self.one_matrix else grad
            total.add(above, self.mix_last(self.mix_lead(x), self.one_matrix))
        if by_x is not None:
            mixed = packed.mT @ grad
            shape = (len(x), self.groups, self.channels * self.taps, self.lead_outputs * self.inputs)
            back = mixed.new_empty(shape)
            self.add_last(mixed, back, back=True)
            self.unmix_lead(back, by_x)

    def mix_lead(self, x: Tensor, one_matrix: bool = False) -> Tensor:
        """Apply all axes but the last: (items, groups, channels · taps, leading outputs · inputs of the last axis); with
        ``one_matrix`` (1, channels · taps, items · leading outputs · inputs)."""
        shape: tuple[int, ...] = (len(x), self.groups, self.channels * self.taps, self.lead_outputs * self.inputs)
        if self.fused and len(self.lead) == 1:
            (taps, outputs, size), channels = self.lead[0].shape, x.shape[1]
            if one_matrix:
                found = x.new_empty(channels, taps, len(x), outputs, self.inputs)
                target, shape = found.permute(2, 1, 0, 4, 3), (1, channels * taps, -1)
            else:
                found = x.new_empty(len(x), channels, taps, outputs, self.inputs)
                target = found.permute(0, 2, 1, 4, 3)
            kernels.axis_taps(x.view(len(x), 1, channels, size, self.inputs).mT, self.lead[0], target)
            return found.view(shape)
        behind: list[int] = []
        y = x
        for matrix in reversed(self.lead):
            taps, outputs, size = matrix.shape
            y = y.reshape(-1, size, math.prod(behind) * self.inputs)
            y = torch.bmm(matrix.view(taps * outputs, size).expand(len(y), -1, -1), y)
            behind = [taps, outputs, *behind]
        if len(self.lead) > 1:  # all axes of taps before all axes of outputs
            y = y.view(-1, *behind, self.inputs)
            order = [1 + 2 * i for i in range(len(self.lead))] + [2 + 2 * i for i in range(len(self.lead))]
            y = y.permute(0, *order, y.ndim - 1)
        return y.reshape(shape)

    def unmix_lead(self, grad: Tensor, by_x: Tensor) -> None:
        """The transpose of :meth:`mix_lead`, written to ``by_x``."""
        if self.fused and len(self.lead) == 1:
            (taps, outputs, size), (items, channels) = self.lead[0].shape, by_x.shape[:2]
            if self.one_matrix and self.weights_first:
                made = grad.view(channels, taps, items, outputs, self.inputs).permute(2, 1, 0, 4, 3)
            else:
                made = grad.view(items, channels, taps, outputs, self.inputs).permute(0, 2, 1, 4, 3)
            target = by_x.view(items, 1, channels, size, self.inputs).mT
            kernels.axis_taps(made, self.lead[0], target, back=True)
            return
        y, count = grad, len(self.lead)
        if count > 1:
            sizes = [len(m) for m in self.lead] + [m.shape[1] for m in self.lead]
            y = y.reshape(-1, *sizes, self.inputs)
            y = y.permute(0, *[1 + i + count * j for i in range(count) for j in range(2)], y.ndim - 1)
        behind = math.prod([matrix.shape[0] * matrix.shape[1] for matrix in self.lead])
        for matrix in self.lead:
            taps, outputs, size = matrix.shape
            behind //= taps * outputs
            y = y.reshape(-1, taps * outputs, behind * self.inputs)
            y = torch.bmm(matrix.view(taps * outputs, size).mT.expand(len(y), -1, -1), y)
        by_x.copy_(y.view(by_x.shape))

    def mix_last(self, mixed: Tensor, one_matrix: bool = False) -> Tensor:
        """Apply the last axis: (items, groups, last taps · channels · taps, leading outputs · outputs); with ``one_matrix`` (1,
        last taps · channels · taps, items · leading outputs · outputs)."""
        items, rows = len(mixed), self.channels * self.taps
        if one_matrix:
            found = mixed.new_empty(self.last_taps, rows, items, self.lead_outputs, self.outputs)
            flat = mixed.view(items, 1, rows, self.lead_outputs, self.inputs)
            kernels.axis_taps(flat, self.last, found.permute(2, 0, 1, 3, 4))
            return found.view(1, self.last_taps * rows, -1)
        found = mixed.new_empty(items * self.groups, self.last_taps, rows, self.lead_outputs, self.outputs)
        self._along_last(mixed, found, self.inputs, False)
        return found.view(items, self.groups, self.last_taps * rows, -1)

    def spread_last(self, grad: Tensor) -> Tensor:
        """The transpose of :meth:`add_last`: (items, groups, last taps · out, leading outputs · inputs), or (1, last taps · out,
        items · leading outputs · inputs) if ``self.one_matrix``."""
        items = len(grad)
        if self.one_matrix:
            found = grad.new_empty(self.last_taps, self.rows, items, self.lead_outputs, self.inputs)
            flat = grad.view(items, 1, self.rows, self.lead_outputs, self.outputs)
            kernels.axis_taps(flat, self.last, found.permute(2, 0, 1, 3, 4), back=True)
            return found.view(1, self.last_taps * self.rows, -1)
        found = grad.new_empty(items * self.groups, self.last_taps, self.rows, self.lead_outputs, self.inputs)
        self._along_last(grad, found, self.outputs, True)
        return found.view(items, self.groups, self.last_taps * self.rows, -1)

    def _along_last(self, x: Tensor, found: Tensor, length: int, back: bool) -> None:
        """Multiply the last axis by each tap's matrix, transposed with ``back``."""
        count, _, rows, lead, _ = found.shape
        if self.fused:
            kernels.axis_taps(x.reshape(count, 1, rows, lead, length), self.last, found, back=back)
            return
        flat, found = x.reshape(count, rows * lead, length), found.flatten(2, 3)
        for tap, matrix in enumerate(self.last):
            multiply(flat, matrix if back else matrix.mT, found[:, tap])

    def add_last(self, made: Tensor, out: Tensor, back: bool = False, bias: Tensor | None = None) -> None:
        """Multiply the last axis by each tap's matrix and sum over taps; with ``back`` the transpose of :meth:`mix_last`. The
        bias is only added by the kernel."""
        count, length = len(out) * self.groups, self.outputs if back else self.inputs
        if self.fused:
            if self.one_matrix and self.weights_first:
                parts = made.view(self.last_taps, -1, count, self.lead_outputs, length).permute(2, 0, 1, 3, 4)
            else:
                parts = made.view(count, self.last_taps, -1, self.lead_outputs, length)
            target = out.view(count, 1, parts.shape[2], self.lead_outputs, -1)
            kernels.axis_taps(parts, self.last, target, back=back, bias=bias)
            return
        flat = made.view(count, self.last_taps, -1, length)
        target = out.view(count, flat.shape[2], -1)
        # Half precision sums over taps in one product, which accumulates in float32; wider dtypes accumulate in place.
        if back and made.dtype not in (torch.float32, torch.float64):
            joined = flat.transpose(1, 2).reshape(count, flat.shape[2], -1)
            multiply(joined, self.last.reshape(-1, self.inputs), target)
            return
        for tap, matrix in enumerate(self.last):
            side = matrix if back else matrix.mT
            if tap:
                torch.baddbmm(target, flat[:, tap], side.expand(count, -1, -1), out=target)  # FLOP counters see it
            else:
                multiply(flat[:, tap], side, target)


def last_products(mixed: int, made: int, outputs: int, inputs: int) -> tuple[int, int]:
    """(weights before the last axis, weights after it): multiply-adds of the weights and one tap, for one line of the axis."""
    return (mixed * made + made * outputs) * inputs, (mixed * inputs + mixed * made) * outputs


def multiply_adds(channels: int, rows: int, sizes: Sequence[tuple[int, int, int]]) -> int:
    """Multiply-adds of one group, for one item in float32; ``sizes`` are (taps, outputs, inputs) of each axis."""
    total, behind, mixed = 0, sizes[-1][2], channels
    for axis in reversed(range(len(sizes) - 1)):
        taps, outputs, _ = sizes[axis]
        total += channels * math.prod([inputs for _, _, inputs in sizes[: axis + 1]]) * taps * outputs * behind
        behind *= taps * outputs
        mixed *= taps
    taps, outputs, inputs = sizes[-1]
    lines = math.prod([outputs for _, outputs, _ in sizes[:-1]])
    return total + lines * taps * min(last_products(mixed, rows, outputs, inputs))


class WeightSum:
    """``Σ_i left[i] @ right[i].mT``, accumulated in place on a CPU if the dtype allows it, because a weight's gradient may be
    the largest tensor. On a GPU one batched product is faster than one product per item."""

    def __init__(self, memory: Tensor) -> None:
        self.so_far, self.is_empty = memory, True

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add tensors (items, groups, rows, columns), or (groups, rows, columns) with all items as columns."""
        if self.so_far.dtype == left.dtype and self.so_far.is_cpu:
            if self.is_empty:
                self.so_far.zero_()
            for one, other in zip(left, right, strict=True):
                torch.baddbmm(self.so_far, one, other.mT, out=self.so_far)
        elif left.ndim == 3:
            found = left @ right.mT
            self.so_far = self.so_far.copy_(found) if self.is_empty else self.so_far.add_(found)
        elif self.is_empty:
            torch.sum(left @ right.mT, 0, dtype=self.so_far.dtype, out=self.so_far)
        else:
            self.so_far += (left @ right.mT).sum(0, dtype=self.so_far.dtype)
        self.is_empty = False


def multiply(x: Float[Tensor, "items rows inner"], matrix: Float[Tensor, "inner columns"], out: Tensor) -> None:
    """``out[i] = x[i] @ matrix``."""
    if len(x) == 1:
        torch.mm(x[0], matrix, out=out[0])
    else:
        torch.bmm(x, matrix.expand(len(x), -1, -1), out=out)


def mixed_taps(x: Tensor, matrices: Sequence[Tensor]) -> Float[Tensor, "batch channels heads *outputs"]:
    """Every head's output, one axis at a time from the last to the first. Taps with the same offset on an axis share its pass,
    so K² heads cost 2 passes of K matrices instead of K² each."""
    batch, channels = x.shape[:2]
    done: list[tuple[int, int]] = []  # (taps, outputs) of the later axes
    y = x.reshape(batch * channels, *x.shape[2:])
    for matrix in reversed(matrices):
        taps, outputs, size = matrix.shape
        stacked = matrix.reshape(taps * outputs, size)
        if not done:  # the last axis: one product for everything
            y = torch.nn.functional.linear(y.reshape(-1, size), stacked)
        else:
            behind = math.prod([t * o for t, o in done])  # a list, because torch.compile accepts no generator here
            y = y.reshape(-1, size, behind)
            y = torch.bmm(stacked.expand(y.shape[0], *stacked.shape), y)
        done.insert(0, (taps, outputs))
    y = y.reshape(batch, channels, *[size for pair in done for size in pair])
    axes = len(done)
    taps_first = [2 + 2 * i for i in range(axes)] + [3 + 2 * i for i in range(axes)]
    heads = math.prod([t for t, _ in done])
    return y.permute(0, 1, *taps_first).reshape(batch, channels, heads, *[o for _, o in done])


def weighted_taps(
    heads: Tensor, weight: Tensor, bias: Tensor | None, groups: int
) -> Float[Tensor, "batch out *outputs"]:
    """Multiply each group's heads ``(batch, channels, heads, *outputs)`` by its weights, without a block-diagonal matrix."""
    outputs = heads.shape[3:]
    weight = weight.to(heads.dtype).reshape(groups, len(weight) // groups, -1)
    # All sizes are explicit, because reshape cannot infer a size from an empty batch.
    inputs = heads.reshape(heads.shape[0], groups, weight.shape[2], math.prod(outputs))
    out = torch.matmul(weight, inputs).reshape(heads.shape[0], groups * weight.shape[1], *outputs)
    return out if bias is None else out + bias.to(heads.dtype).reshape(-1, *[1] * len(outputs))


def plain_taps(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, matrices: Sequence[Tensor]) -> Tensor:
    """The same in plain operations, which store every head: for compilers, transforms and second-order gradients."""
    return weighted_taps(mixed_taps(x, matrices), weight, bias, groups)
