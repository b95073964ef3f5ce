"""A converted convolution on a plane, in half precision by kernels, with cached launches.

In a training step the GPU often waits for the host between launches. So sizes, strides and launches are determined in the
first call with given shapes, strides and dtypes, and later ones take one lookup instead of all checks.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.convert._tap_products import Passes, plain_taps
from regard.functional import kernels
from regard.support.checks import is_transformed, under_autocast
from regard.support.tensor_cache import is_captured, is_plain

MOST_CALLS = 256
_PLAIN = (Tensor, torch.nn.Parameter)
_known: dict[Hashable, "PreparedTaps"] = {}


class PreparedTaps:
    """The products of :class:`regard.convert._tap_products.Passes` for inputs of given shapes and strides, all items at once:
    attention along the first axis, one product with the weights of all taps, attention along the last axis summed over taps."""

    def __init__(self, way: Passes, x: Tensor, weight: Tensor, bias: Tensor | None, matrices: Sequence[Tensor]) -> None:
        self.lead, self.last = matrices
        taps, last_taps, rows = way.taps, way.last_taps, way.rows
        items, channels, size, inputs = x.shape
        columns = items * way.lead_outputs * inputs
        self.mixed, self.made = (channels * taps, columns), (last_taps * rows, columns)
        self.out = (items, rows, way.lead_outputs, way.outputs)
        # Shapes and strides to pack a weight (out, channels, taps, last taps) for the product, and to unpack its gradient.
        inner = channels * taps
        self.packing = (last_taps, rows, inner), (1, inner * last_taps, last_taps)
        self.unpacking = tuple(weight.shape), (inner, taps, 1, rows * inner)

        def laid_out(*shape: int) -> Tensor:
            return torch.empty(shape, device="meta")

        def launch(source: Tensor, matrix: Tensor, target: Tensor, back: bool, added: Tensor | None = None) -> Any:
            biased = None if added is None else added.dtype
            at = source.stride(), target.stride(), matrix.stride()
            return kernels.tap_launch(x.dtype, x.get_device(), source.shape, target.shape, *at, back, biased)

        image = laid_out(items, 1, channels, size, inputs).mT
        mixed = laid_out(channels, taps, items, way.lead_outputs, inputs).permute(2, 1, 0, 4, 3)
        made = laid_out(last_taps, rows, items, way.lead_outputs, inputs).permute(2, 0, 1, 3, 4)
        out = laid_out(items, 1, rows, way.lead_outputs, way.outputs)
        self.mix, self.unmix = launch(image, self.lead, mixed, False), launch(mixed, self.lead, image, True)
        self.add, self.spread = launch(made, self.last, out, False, bias), launch(out, self.last, made, True)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The output, and the packed weights."""
        added = self.last if bias is None else bias.contiguous()
        aligned, stream = kernels.is_aligned(x, added), kernels.raw_stream(x)
        packed = torch.as_strided_copy(weight, *self.packing).view(self.made[0], self.mixed[0])
        mixed = x.new_empty(self.mixed)
        self.mix(aligned, stream, x, self.lead, self.lead, mixed)
        made = torch.mm(packed, mixed)
        out = x.new_empty(self.out)
        self.add(aligned, stream, made, self.last, added, out)
        return out, packed

    def backward(
        self, grad: Tensor, x: Tensor, packed: Tensor, needs_x: bool, needs_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        by_x, by_weight = None, None
        aligned, stream = kernels.is_aligned(x, grad), kernels.raw_stream(x)
        made = x.new_empty(self.made)
        self.spread(aligned, stream, grad, self.last, self.last, made)
        if needs_weight:
            mixed = x.new_empty(self.mixed)
            self.mix(aligned, stream, x, self.lead, self.lead, mixed)
            by_weight = torch.as_strided_copy(torch.mm(made, mixed.t()), *self.unpacking)
            del mixed
        if needs_x:
            back = torch.mm(packed.t(), made)
            by_x = torch.empty_like(x)
            self.unmix(aligned, stream, back, self.lead, self.lead, by_x)
        return by_x, by_weight


class AllTaps(torch.autograd.Function):
    """``(batch, out, *outputs)`` from ``x`` ``(batch, channels, *space)``. Besides the inputs, only the packed weights are
    saved for the backward pass. Second-order gradients are computed by plain operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, prepared: PreparedTaps) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        ctx.prepared, ctx.has_bias = prepared, bias is not None
        out, ctx.packed = prepared.forward(x, weight, bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        prepared = ctx.prepared
        by_bias = grad.sum((0, 2, 3)) if ctx.has_bias and needs_bias else None
        if torch.is_grad_enabled():
            x, weight = x.view_as(x), weight.view_as(weight)  # new nodes: excludes the path to weight through x
            wanted = [tensor for tensor, need in ((x, needs_x), (weight, needs_weight)) if need]
            out = plain_taps(x, weight, None, 1, (prepared.lead, prepared.last))
            found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True) if wanted else ())
            return next(found) if needs_x else None, next(found) if needs_weight else None, by_bias, None
        if not needs_x and not needs_weight:
            return None, None, by_bias, None
        return *prepared.backward(grad.contiguous(), x, ctx.packed, needs_x, needs_weight), by_bias, None


# ``Function.apply`` without its overhead for functorch's transforms: none of them is active where this is called.
_apply = super(torch.autograd.Function, AllTaps).apply


def prepare(
    x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, matrices: Sequence[Tensor]
) -> PreparedTaps | None:
    """The prepared products, or None if :class:`PreparedTaps` does not apply: in float32, with one or three axes, with groups,
    if the weights are multiplied last, or if there are so many items that they must be split into chunks."""
    if len(matrices) != 2 or groups != 1 or not (x.is_contiguous() and weight.is_contiguous()):
        return None
    way = Passes(x, weight, groups, matrices)
    is_whole = way.one_matrix and way.weights_first and len(way.parts(len(x))) == 1
    return PreparedTaps(way, x, weight, bias, matrices) if is_whole else None


def kind_of(x: Tensor, weight: Tensor, bias: Tensor | None, settings: Hashable) -> Hashable:
    added = None if bias is None else (bias.shape, bias.dtype, bias.get_device())
    return (
        x.shape, x.stride(), x.dtype, x.get_device(), weight.shape, weight.stride(), weight.dtype, weight.get_device(),
        added, settings,
    )  # fmt: skip


def remember(kind: Hashable, prepared: PreparedTaps) -> None:
    """Remember how calls with this cache key are computed."""
    if len(_known) >= MOST_CALLS:
        _known.clear()
    _known[kind] = prepared


def cached_attention(x: Tensor, weight: Tensor, bias: Tensor | None, settings: Hashable) -> Tensor | None:
    """The output, or None if there was no such call before or a mode, a transform or a CUDA graph needs the general path."""
    if type(x) not in _PLAIN or type(weight) not in _PLAIN or not kernels.is_on_current_gpu(x):
        return None
    prepared = _known.get(kind_of(x, weight, bias, settings))
    # A CUDA graph reads the tap matrices whenever it is replayed; the general path keeps them alive.
    if prepared is None or not is_plain() or under_autocast(x) or is_transformed() or is_captured(x.device):
        return None
    return _apply(x, weight, bias, prepared) if kernels.usable_for_taps(x, (prepared.lead, prepared.last)) else None
