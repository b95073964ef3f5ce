"""A trained Gaussian layer as convolutions: sharp heads become taps, soft heads separable blurs."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.convert._bounds import FLOAT64, Arithmetic, arithmetic, lost_below
from regard.convert._calls import why_changed
from regard.convert._followed_layer import followed_errors
from regard.convert._kernels import (
    CONVOLVE,
    HeadKernel,
    axis_map,
    box,
    check_heads,
    dense_kernel,
    head_kernels,
    kernel_map,
    repeat_edge,
)
from regard.convert._running_bounds import follows
from regard.convert._trainable import TrainableConvolutionalAttention
from regard.functional import axis_matrix, gaussian_weights
from regard.layers import (
    GatedPositionalAttention,
    GaussianAttention,
    MultiHeadAttention,
    PlacedAttention,
    RelativeAttention,
    SeparableAttention,
    flat_tokens,
    like_input,
)
from regard.support.checks import check_grid, check_width, describe, is_functional, under_autocast
from regard.support.default_device import on_cpu


@on_cpu
def attention_to_conv(
    layer: nn.Module, *, tolerance: float = 1e-3, grid: Sequence[int] | None = None
) -> "GaussianConvolution":
    """Convert a trained :class:`regard.GaussianAttention` to convolutions, with a certified error.

    Inside the grid a Gaussian head has the same map for every query, so it is a convolution. Its kernel is cut to a window
    that holds all but ``tolerance`` of the attention. Sharp heads become taps of one dense kernel. A soft head
    becomes a chain (1×1, a blur along each axis, 1×1) or taps of the dense kernel, whichever costs fewer
    multiply-adds. Near the border the layer attends only to tokens that exist, while the convolution repeats the edge. So
    the bound holds on ``.interior(grid)``, and ``.border_leak(grid)`` measures the difference at the border.

    Args:
        layer: a :class:`regard.GaussianAttention`; it is not changed. A layer with hooks or a ``forward`` of its own raises
            an error.
        tolerance: the largest share of a head's attention, in L1, that may be cut.
        grid: raise an error if no query of this grid is in the interior.

    >>> layer = regard.GaussianAttention(8, 4, init="grid", sharpness=9.0)
    >>> conv, image = attention_to_conv(layer), torch.randn(1, 12, 12, 8)
    >>> error = (conv(image) - layer(image))[:, *conv.interior((12, 12))].abs().max().item()
    >>> error <= conv.error_bound(image)
    True
    """
    if not isinstance(tolerance, int | float) or not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be a number between 0 and 1, got {describe(tolerance)}")
    reason = why_not_gaussian(layer)
    if reason:
        raise TypeError(f"layer cannot be expressed as convolution: {reason}")
    if not isinstance(layer, GaussianAttention):
        raise TypeError(f"layer must be a GaussianAttention, got {describe(layer)}")
    if any(is_functional(parameter) for parameter in layer.parameters()):
        raise ValueError("layer must have values, which its kernels depend on, but its parameters are on meta or fake")
    check_heads(layer)
    converted = GaussianConvolution(layer, float(tolerance))
    if grid is not None and not all(s.stop > s.start for s in converted.interior(grid)):
        raise ValueError(
            f"layer has no interior on grid {tuple(grid)}: its softest head needs a window of "
            f"{' × '.join(str(high - low + 1) for low, high in converted.reach)} to hold all but {tolerance:g} of its "
            f"attention; a larger tolerance, a larger grid or sharper heads would fit"
        )
    return converted


def why_not_gaussian(layer: object) -> str | None:
    """Why the module cannot be converted to convolutions; None if nothing is known to prevent it."""
    if isinstance(layer, GaussianAttention):
        return why_changed(layer, GaussianAttention, "attend")
    name = type(layer).__name__
    if isinstance(layer, RelativeAttention) and not layer.content:
        return f"{name}'s learned weights need not fade with distance, so no window holds them and there is no interior"
    if isinstance(layer, SeparableAttention):
        return f"{name}'s profiles are not Gaussian; a GaussianAttention would fit"
    if isinstance(layer, TrainableConvolutionalAttention):
        return (
            f"the heads of {name} may have moved from the taps that they had; its weight and bias are the convolution's"
        )
    content = (
        MultiHeadAttention | GatedPositionalAttention | RelativeAttention | PlacedAttention | nn.MultiheadAttention
    )
    if isinstance(layer, content):
        return f"{name} attends by content, so its map changes with the input; a convolution's does not"
    if hasattr(layer, "to_conv"):
        return f"it is a {name}, which was made from a convolution: its to_conv() returns that convolution"
    return f"it is a {name}; a GaussianAttention would fit"


class GaussianConvolution(nn.Module):
    """What :func:`attention_to_conv` returns; called like the layer.

    ``dense_heads`` are taps of ``kernel``; ``chain_heads`` run as 1×1 → blur along each axis → 1×1. Weights are
    parameters, so the result can be trained on; ``leak`` and ``error_bound`` are of what was made.
    """

    kernel: nn.Parameter | None
    value: nn.Parameter | None
    mix: nn.Parameter | None
    blurs: nn.ParameterList | None
    start: tuple[int, ...] | None

    def __init__(self, layer: GaussianAttention, tolerance: float) -> None:
        super().__init__()
        self.dim, self.out_dim, self.axes, self.tolerance = layer.dim, layer.out_dim, layer.axes, tolerance
        self.head_dim = layer.head_dim
        self._center = layer.center.detach().clone()
        self._sharpness = layer.sharpness.detach().clone()
        self.kernels = head_kernels(layer.center, layer.sharpness, tolerance)
        values, value_bias = value_matrices(layer)  # (heads, head_dim, dim), (heads, head_dim)
        outputs = layer.output.weight.detach().unflatten(1, (layer.heads, layer.head_dim)).transpose(0, 1)
        joined = torch.einsum("hoj,hji->hoi", outputs.double(), values.double())  # (heads, out, dim)
        self.norms = Norms.of(joined, outputs, values, value_bias, layer.output.bias)
        bias = torch.zeros(layer.out_dim) if layer.output.bias is None else layer.output.bias.detach()
        self.projections = tuple(
            each.clone() for each in (values, value_bias, outputs, bias)
        )  # for error_bound, which computes with them in float64
        self.full_width = layer.full_width
        self.dense_heads, self.chain_heads = self._cheapest(layer.full_width)
        like = layer.output.weight
        self.start, self.kernel = None, None
        if self.dense_heads:
            self.start, kernel = dense_kernel([self.kernels[h] for h in self.dense_heads], joined[self.dense_heads])
            self.kernel = nn.Parameter(kernel.to(like))
        self.value, self.blurs, self.mix = None, None, None
        if self.chain_heads:
            self._add_chain(values[self.chain_heads], outputs[self.chain_heads], layer.full_width, like)
        # Every head's kernel sums to one, so the value's bias passes through it unchanged.
        bias = torch.einsum("hoj,hj->o", outputs.double(), value_bias.double())
        bias = bias if layer.output.bias is None else bias + layer.output.bias.detach().double()
        self.bias = nn.Parameter(bias.to(like))
        self._made = [parameter.detach().clone() for parameter in self.parameters()]  # what the bound is about
        self.train(layer.training)

    def _cheapest(self, full_width: bool) -> tuple[list[int], list[int]]:
        """(dense heads, chain heads). Sharp heads are taps; the narrowest soft heads join them as long as that costs less."""
        order = sorted(range(len(self.kernels)), key=lambda h: self.kernels[h].taps.numel())
        best: tuple[float, int] | None = None
        for count in range(len(order) + 1):
            rest = [self.kernels[h] for h in order[count:]]
            if any(kernel.factors is None for kernel in rest):
                continue  # a full covariance has no separable blur
            if any(kernel.taps.numel() == 1 for kernel in rest):
                continue  # a single tap belongs in the dense kernel
            cost = self._cost([self.kernels[h] for h in order[:count]], rest, full_width)
            if best is None or cost < best[0]:
                best = (cost, count)
        count = len(order) if best is None else best[1]
        return sorted(order[:count]), sorted(order[count:])

    def _cost(self, dense: list[HeadKernel], chain: list[HeadKernel], full_width: bool) -> int:
        """Multiply-adds per token."""
        cost = 0
        if dense:
            cost += self.dim * self.out_dim * math.prod(high - low for low, high in box(dense))
        if chain:
            width = len(chain) * self.head_dim
            cost += (0 if full_width else self.dim * width) + width * self.out_dim
            cost += width * sum(high - low for low, high in box(chain))
        return cost

    def _add_chain(self, values: Tensor, outputs: Tensor, full_width: bool, like: Tensor) -> None:
        if not full_width:
            self.value = nn.Parameter(values.flatten(0, 1).to(like).clone())
        self.mix = nn.Parameter(outputs.transpose(0, 1).flatten(1).to(like).clone())
        chain = [self.kernels[h] for h in self.chain_heads]
        self.chain_box = box(chain)
        blurs = []
        for axis, (low, high) in enumerate(self.chain_box):
            blur = torch.zeros(len(chain), high - low, dtype=torch.float64)
            for i, kernel in enumerate(chain):
                if kernel.factors is not None:
                    begin = kernel.start[axis] - low
                    blur[i, begin : begin + len(kernel.factors[axis])] = kernel.factors[axis]
            blurs.append(nn.Parameter(blur.to(like)))
        self.blurs = nn.ParameterList(blurs)

    @property
    def leak(self) -> float:
        """The largest L1 distance of a row of weights from its kernel, over all heads, in the interior."""
        return max(kernel.leak for kernel in self.kernels)

    @property
    def reach(self) -> tuple[tuple[int, int], ...]:
        """The first and last offset, per axis, that any head reads."""
        return tuple((low, high - 1) for low, high in box(self.kernels))

    def interior(self, grid: Sequence[int]) -> tuple[slice, ...]:
        """Slices of the grid where every window fits, so that the bound holds. Empty if the grid is too small."""
        grid = check_grid(grid)
        if len(grid) != self.axes:
            raise ValueError(f"grid {grid} has {len(grid)} axes but the layer has {self.axes}")
        slices = []
        for size, (low, high) in zip(grid, self.reach, strict=True):
            first, last = min(max(0, -low), size), min(size, size - high)
            slices.append(slice(first, max(last, first)))
        return tuple(slices)

    @on_cpu
    @torch.no_grad()
    def error_bound(self, x: Tensor) -> float:
        """An upper bound on the largest difference from the layer's output in the interior, for this input.

        Each head's leak times its weights' largest absolute row sum times max|x|, plus the rounding of both layers: the
        smaller of a bound by max|x| alone and a bound that follows the values of this input. It holds for calls on the CPU
        under the autocast that is active during this call; elsewhere it raises ``ValueError``, and also if the weights have
        changed since the conversion, their dtype included: it rounds the layer's own parameters to other numbers, or no
        longer computes its sharpness from them in float32. It is infinite if a number or an intermediate sum may overflow.
        """
        check_width("x", x, self.dim)
        rules = arithmetic(x, *self.parameters())
        if not all(
            made.dtype is now.dtype and torch.equal(made.to(now), now)
            for made, now in zip(self._made, self.parameters(), strict=True)
        ):
            raise ValueError(
                f"error_bound does not apply to other weights than the conversion made: these were trained, loaded, set or moved "
                f"to another dtype since. To have a bound in {x.dtype}, convert the layer in that dtype"
            )
        if not rules.holds(x, *self.projections, *self.parameters()):
            return math.inf
        largest = x.detach().abs().max().double().item() if x.numel() else 0.0
        leaked = largest * max(
            sum(kernel.leak * row for kernel, row in zip(self.kernels, rows, strict=True)) for rows in self.norms.joined
        )
        size = self.norms.path * largest + self.norms.bias
        ours, theirs = self._rounding(rules), self._layer_rounding(rules)
        # Each layer differs from its own exact result by rounding, and the exact results differ by the leak. Underflow adds
        # an error to a value, a weight or a result, which then passes through the later steps.
        terms = sum(row.scores.numel() for kernel in self.kernels for row in kernel.rows)
        terms += self.dim + len(self.kernels) * self.head_dim
        terms += 0 if self.kernel is None else self.kernel[0].numel()
        lost = 2 * lost_below(rules.dtype) * terms * (1 + self.norms.output) * (1 + self.norms.value * (1 + largest))
        bound = leaked + rules.bound(ours, size + leaked) + rules.bound(theirs, size)
        return min(bound, self._followed_bound(x, rules, bound)) + lost

    def _followed_bound(self, x: Tensor, rules: Arithmetic, otherwise: float) -> float:
        """A bound for this input by computing in float64 through the layer and this convolution: per token if the grid is
        known, else by the largest value of each channel."""
        if not follows(rules) or not x.numel() or not x.isfinite().all():
            return otherwise
        size = self.norms.path * x.detach().abs().max().double().item() + self.norms.bias
        if 4 * size > torch.finfo(rules.dtype).max:
            return math.inf
        exact = Arithmetic(torch.float64, FLOAT64, FLOAT64, lowered=False)
        made = max(sum(exact.weights(row) for row in kernel.rows) for kernel in self.kernels)
        built = math.expm1(made + exact.product(len(self.kernels) + 8)) * size
        with torch.autocast("cpu", enabled=False):
            found = followed_errors(self, x.detach().to(rules.dtype).double(), rules)
        return (found + built) * (1 + 1e-9) if found is not None else otherwise

    def _layer_rounding(self, rules: Arithmetic) -> float:
        """log(1 + relative error) of the layer: project, build the map's rows, average along each axis, project."""
        worst = max(sum(rules.mix(row) for row in kernel.rows) for kernel in self.kernels)
        values = 0.0 if self.full_width else rules.product(self.dim + 1) + rules.parameter
        return values + worst + rules.product(len(self.kernels) * self.head_dim + 1) + rules.parameter

    def _rounding(self, rules: Arithmetic) -> float:
        """log(1 + relative error) of this convolution, a sum of both parts and a bias. Its weights were computed in float64
        and rounded once."""
        taps = chains = 0.0
        if self.dense_heads:
            dense = [self.kernels[h] for h in self.dense_heads]
            window = min(
                math.prod(high - low for low, high in box(dense)), sum(kernel.taps.numel() for kernel in dense)
            )
            taps = rules.product(self.dim * window) + rules.cast
        if self.chain_heads:
            chains = 0.0 if self.value is None else rules.product(self.dim) + rules.parameter
            for low, high in self.chain_box:
                chains += rules.product(high - low) + rules.cast
            chains += rules.product(len(self.chain_heads) * self.head_dim) + rules.parameter
        exact = Arithmetic(torch.float64, FLOAT64, FLOAT64, lowered=False)
        made = max(sum(exact.weights(row) for row in kernel.rows) for kernel in self.kernels)
        return max(taps, chains) + 2 * rules.parameter + 3 * rules.cast + made + exact.product(len(self.kernels) + 8)

    @on_cpu
    def border_leak(self, grid: Sequence[int]) -> float:
        """Outside the interior: the largest L1 distance of a head's row of weights from the layer's."""
        grid = check_grid(grid)
        center, sharpness = self._center.double().cpu(), self._sharpness.double().cpu()
        worst = 0.0
        if sharpness.ndim == 3:
            theirs = gaussian_weights(center, sharpness, grid)
            for h, kernel in enumerate(self.kernels):
                worst = max(worst, (theirs[h] - kernel_map(kernel, grid)).abs().sum(-1).max().item())
            return worst
        sharpness = sharpness if sharpness.ndim == 2 else sharpness[:, None].expand(-1, self.axes)
        for h, kernel in enumerate(self.kernels):
            # ‖A⊗B − C⊗D‖ ≤ ‖A − C‖ + ‖B − D‖ row by row, since rows sum to one.
            total = 0.0
            for axis, size in enumerate(grid):
                targets = torch.arange(size, dtype=torch.float64) + center[h, axis]
                theirs = axis_matrix(targets[None], sharpness[h, axis, None], size)[0]
                if kernel.factors is not None:
                    ours = axis_map(kernel.start[axis], kernel.factors[axis], size)
                    total += (theirs - ours).abs().sum(-1).max().item()
            worst = max(worst, min(total, 2.0))
        return worst

    def multiply_adds(self, grid: Sequence[int]) -> int:
        dense = [self.kernels[h] for h in self.dense_heads]
        chain = [self.kernels[h] for h in self.chain_heads]
        return self._cost(dense, chain, self.value is None) * math.prod(grid)

    def forward(self, x: Float[Tensor, "batch *tokens dim"], grid: Sequence[int] | None = None) -> Tensor:
        """``(batch, *grid, dim)``, ``(batch, dim, *grid)``, or ``(batch, tokens, dim)`` with ``grid``, as the layer."""
        tokens, grid = flat_tokens(x, grid, self.axes, self.dim)
        image = tokens.transpose(1, 2).unflatten(2, grid)  # (batch, dim, *grid)
        parts = []
        if self.kernel is not None and self.start is not None:
            sizes = [(s, s + k) for s, k in zip(self.start, self.kernel.shape[2:], strict=True)]
            parts.append(CONVOLVE[self.axes](repeat_edge(image, sizes), self.kernel))
        if self.mix is not None and self.blurs is not None:
            parts.append(torch.einsum("oc,bc...->bo...", self.mix, self._blurred(image)))
        # In the layer's dtype. Autocast lowers products, but not sums, and no product over a single channel.
        dtype = torch.get_autocast_dtype(x.device.type) if under_autocast(x) else x.dtype
        out = (sum(parts[1:], parts[0]) + self.bias.reshape(-1, *[1] * self.axes)).to(dtype)
        return like_input(out.flatten(2).transpose(1, 2), x, grid)

    def _blurred(self, image: Tensor) -> Tensor:
        """Each soft head's values, blurred along one axis after the other: (batch, heads · head_dim, *grid)."""
        heads = len(self.chain_heads)
        if self.value is None:
            y = image.repeat(1, heads, *[1] * self.axes)
        else:
            y = torch.einsum("ci,bi...->bc...", self.value, image)
        if self.blurs is None:
            return y
        for axis, blur in enumerate(self.blurs):
            sides = [(0, 1)] * self.axes
            sides[axis] = self.chain_box[axis]
            shape = [1] * self.axes
            shape[axis] = blur.shape[1]
            weight = blur.repeat_interleave(self.head_dim, 0).reshape(-1, 1, *shape)
            y = CONVOLVE[self.axes](repeat_edge(y, sides), weight, groups=y.shape[1])
        return y

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, out_dim={self.out_dim}, taps={len(self.dense_heads)} heads, chains={len(self.chain_heads)} "
            f"heads, reach={self.reach}, leak={self.leak:.2g}"
        )


class Norms(NamedTuple):
    """Absolute row sums of a layer's weights."""

    joined: list[list[float]]  # of output · value, for each output channel and head
    path: float  # of |output| · |value|, over all heads: the sum of absolute terms for an input of 1
    bias: float  # the contribution of biases to that sum
    value: float
    output: float

    @classmethod
    def of(cls, joined: Tensor, outputs: Tensor, values: Tensor, value_bias: Tensor, bias: Tensor | None) -> "Norms":
        outputs, values, value_bias = (x.detach().double().abs() for x in (outputs, values, value_bias))
        through = torch.einsum("hoj,hj->o", outputs, values.sum(-1))
        beside = torch.einsum("hoj,hj->o", outputs, value_bias)
        if bias is not None:
            beside = beside + bias.detach().double().abs()
        return cls(
            joined.abs().sum(-1).T.tolist(), through.max().item(), beside.max().item(),
            (values.sum(-1) + value_bias).max().item(), outputs.sum((0, 2)).max().item(),
        )  # fmt: skip


def value_matrices(layer: GaussianAttention) -> tuple[Tensor, Tensor]:
    """Each head's value projection (heads, head_dim, dim) and its bias; the identity with full width."""
    if layer.value is None:
        eye = torch.eye(layer.dim, dtype=layer.output.weight.dtype, device=layer.output.weight.device)
        return eye.expand(layer.heads, -1, -1), eye.new_zeros(layer.heads, layer.dim)
    weight = layer.value.weight.detach().unflatten(0, (layer.heads, layer.head_dim))
    bias = layer.value.bias
    return weight, weight.new_zeros(weight.shape[:2]) if bias is None else bias.detach().unflatten(0, weight.shape[:2])
