"""Any convolution as attention: one Gaussian head per tap, in closed form."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast, get_args, overload

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.convert._bounds import Arithmetic, MapRow, arithmetic, lost_below, sharpness_for
from regard.convert._calls import why_changed
from regard.convert._kernels import CONVOLVE
from regard.convert._observed_taps import observed_taps
from regard.convert._output_size import output_size
from regard.convert._prepared_taps import AllTaps, cached_attention, kind_of, prepare, remember
from regard.convert._running_bounds import convolution_error, follows, shift_error
from regard.convert._tap_products import TapProduct, can_be_chunked, mixed_taps, multiply_adds, weighted_taps
from regard.convert._trainable import TrainableConvolutionalAttention
from regard.functional import Border, axis_matrix, kernels, shift_leak
from regard.observation import heads_are_read, is_observed
from regard.support.checks import (
    check_choice,
    check_flag,
    check_floating,
    check_values,
    describe,
    static_sizes,
    under_autocast,
)
from regard.support.default_device import on_cpu
from regard.support.tensor_cache import TensorCache, is_captured

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


TapsPlan = Literal["auto", "attention", "taps"]
TOLERANCE = 1e-6  # the default of :func:`conv_to_attention`


@overload
def conv_to_attention(
    conv: nn.Module, *, tolerance: float = TOLERANCE, plan: TapsPlan = "auto", trainable: Literal[False] = False
) -> "ConvolutionalAttention": ...


@overload
def conv_to_attention(conv: nn.Module, *, trainable: Literal[True]) -> TrainableConvolutionalAttention: ...


@on_cpu
def conv_to_attention(
    conv: nn.Module, *, tolerance: float = TOLERANCE, plan: TapsPlan = "auto", trainable: bool = False
) -> "ConvolutionalAttention | TrainableConvolutionalAttention":
    r"""Convert a convolution to a multi-head attention layer in closed form. The result is called like the convolution.

    Tap t becomes a head that looks at the tap's offset, :math:`\Delta = t\cdot\mathrm{dilation} -
    \mathrm{pad}`, from the query :math:`o\cdot\mathrm{stride}`. Its sharpness is chosen so that its rows of weights are
    at most ``tolerance`` from the exact shift in L1. Its value and output weights are those of the tap. The head also
    attends to padding; that weight is dropped (zeros) or added to the pixel that the padding copies (reflect, replicate,
    circular).

    The layer compiles to one graph. ``torch.export`` works with sizes of ``Dim.AUTO``, and with named sizes if
    ``strict=True`` and the stride is 1.

    Args:
        conv: an ``nn.Conv1d``, ``nn.Conv2d`` or ``nn.Conv3d`` with any kernel (even ones, too), stride, dilation, groups,
            padding (``"same"``, too) and padding mode. It is not changed; its weights are copied. A convolution with hooks,
            a ``forward`` of its own or a weight that is computed from others (weight norm, pruning) raises an error.
        tolerance: the largest L1 distance of a head's rows from a shift (twice the weight on other keys).
        plan: how the layer is computed. ``"attention"`` mixes values with every head's map. ``"taps"`` replaces each head
            by an exact shift, so that all heads together are one convolution with the layer's weights; ``error_bound``
            holds for it as well. ``"auto"`` chooses ``"taps"`` if the leak is below half a unit in the last place of the
            dtype, so that rounding hides the difference. Inside ``regard.capture`` the attention is always computed.
        trainable: whether centers and sharpness become parameters (:class:`TrainableConvolutionalAttention`). The layer then
            starts softer, at a sharpness whose gradient can move a center; ``tolerance`` and ``plan="taps"`` are
            then refused.

    >>> conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1, padding_mode="reflect")
    >>> attention, image = conv_to_attention(conv), torch.randn(2, 3, 9, 9)
    >>> error = (attention(image) - conv(image)).abs().max().item()
    >>> error <= attention.error_bound(image)
    True
    """
    check_flag("trainable", trainable)
    if not isinstance(tolerance, int | float) or not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be a number between 0 and 1, got {describe(tolerance)}")
    check_choice("plan", plan, get_args(TapsPlan))
    reason = why_not(conv)
    if reason:
        raise TypeError(f"conv cannot be expressed as attention: {reason}")
    if trainable and (tolerance != TOLERANCE or plan == "taps"):
        raise ValueError(
            f"trainable heads start at a sharpness of their own and are always computed as attention: leave out tolerance and "
            f"plan, got tolerance={tolerance!r}, plan={plan!r}"
        )
    exact = ConvolutionalAttention(copy.deepcopy(cast(Convolution, conv)), float(tolerance), plan)
    return TrainableConvolutionalAttention(exact) if trainable else exact


def why_not(conv: object) -> str | None:
    """Why the module cannot be converted to attention; None if it can."""
    fits = "nn.Conv1d, nn.Conv2d or nn.Conv3d would fit"
    if isinstance(conv, nn.modules.conv._ConvTransposeNd):
        return f"{type(conv).__name__} spreads inputs over outputs instead of gathering them; {fits}"
    if isinstance(conv, nn.modules.conv._LazyConvXdMixin):
        return f"{type(conv).__name__} has no weights before its first call; call it once, then convert"
    if not isinstance(conv, Convolution):
        return f"it is {describe(conv) if not isinstance(conv, nn.Module) else 'a ' + type(conv).__name__}; {fits}"
    if not conv.weight.is_floating_point():
        return f"its weight is {describe(conv.weight)}, but attention averages real numbers"
    base = CONVOLUTIONS[conv.weight.ndim - 2]
    if hasattr(conv, "parametrizations"):
        return "its weight or bias is parametrized; remove the parametrization first"
    for name in ("weight", "bias"):
        if name not in conv._parameters:
            return (
                f"its {name} is no parameter but computed from others before each call (torch.nn.utils.weight_norm, "
                f"spectral_norm and prune do this); remove that first"
            )
    return why_changed(conv, base, "_conv_forward")


class ConvolutionalAttention(nn.Module):
    """What :func:`conv_to_attention` returns. ``weight`` and ``bias`` are the given convolution's parameters, under the
    same names; ``plan`` may be set at any time. In a network of :func:`convert_network` it is ``"attention"``, so that the
    report measures attention."""

    bias: nn.Parameter | None

    def __init__(self, conv: Convolution, tolerance: float, plan: TapsPlan = "attention") -> None:
        super().__init__()
        self.weight, self.tolerance, self.plan = conv.weight, tolerance, plan
        self.register_parameter("bias", cast(nn.Parameter | None, conv.bias))
        self.axes = conv.weight.ndim - 2
        self.in_channels, self.out_channels, self.groups = conv.in_channels, conv.out_channels, conv.groups
        # nn.Conv also accepts lists, which are not hashable and cannot be part of a cache key.
        self.kernel_size, self.stride, self.dilation = tuple(conv.kernel_size), tuple(conv.stride), tuple(conv.dilation)
        self.padding, self.padding_mode = conv.padding, conv.padding_mode
        self.pads = conv_padding(conv)
        self.alpha = sharpness_for(tolerance, self.axes)
        self.train(conv.training)

    @property
    def heads(self) -> int:
        return math.prod(self.kernel_size)

    @property
    def border(self) -> Border:
        return cast(Border, self.padding_mode)

    @property
    def center(self) -> Float[Tensor, "heads axes"]:
        """Where each head (tap, row-major) looks from its query."""
        return torch.cartesian_prod(*self.offsets()).reshape(self.heads, self.axes)

    @property
    def sharpness(self) -> Float[Tensor, " heads"]:
        return torch.full((self.heads,), self.alpha)

    @property
    def leak(self) -> float:
        """The largest L1 distance of a row of weights from the exact shift; half of it is weight on other keys."""
        return shift_leak([self.alpha] * self.axes)

    def offsets(self) -> list[Tensor]:
        """The coordinate each tap reads relative to its query, per axis."""
        taps = zip(self.kernel_size, self.dilation, self.pads, strict=True)
        return [torch.arange(k, dtype=torch.float32) * d - before for k, d, (before, _) in taps]

    def axis_matrices(self, grid: Sequence[int], like: Tensor) -> list[Float[Tensor, "taps outputs inputs"]]:
        """For each axis, the attention of each tap: (taps, outputs, inputs)."""
        make = tap_matrices if torch.compiler.is_compiling() else kept_matrices
        return [
            make(size, outputs, stride, taps, dilation, pads, self.alpha, self.border, like.dtype, like.device)
            for size, outputs, stride, taps, dilation, pads in zip(
                grid, self.output_size(grid), self.stride, self.kernel_size, self.dilation, self.pads, strict=True
            )
        ]

    def output_size(self, grid: Sequence[int]) -> tuple[int, ...]:
        return output_size(self, grid)

    def forward(self, input: Float[Tensor, "..."]) -> Tensor:
        """``(batch, channels, *space)``, or without the batch, as the convolution takes it (and under the same name)."""
        if not torch.compiler.is_compiling() and not is_observed() and isinstance(input, Tensor):
            found = cached_attention(input, self.weight, self.bias, self._settings())
            if found is not None:
                return found
        check_floating("input", input)
        batched = input.ndim == self.axes + 2
        if not batched and input.ndim != self.axes + 1:
            raise ValueError(
                f"input has shape {tuple(input.shape)}, but must be (batch, channels, *space) with {self.axes} axes"
            )
        x = input if batched else input.unsqueeze(0)
        if x.shape[1] != self.in_channels:
            raise ValueError(f"input has {x.shape[1]} channels but the convolution has {self.in_channels}")
        self._check_parameters()
        grid = static_sizes(x)[2:]
        outputs = self.output_size(grid)
        if self.chosen_plan(x) == "taps" and not heads_are_read():
            out = self.convolve(x)
            return out if batched else out[0]
        matrices = self.axis_matrices(grid, x)
        # Launches of kernels would not be counted by regard.cost, which reads no heads.
        if heads_are_read() or (x.is_cuda and is_observed()) or not can_be_chunked(x, self.weight):
            heads = mixed_taps(x, matrices)  # (batch, channels, heads, *outputs)
            heads = observed_taps(self, heads, x, lambda: self.weights(grid, x), grid, outputs)
            out = weighted_taps(heads, self.weight, self.bias, self.groups)
        else:
            out = self.add_taps(x, matrices)
        return out if batched else out[0]

    def _check_parameters(self) -> None:
        """Check the shapes of the parameters: kernels read them by address and would not notice a wrong size."""
        expected = {"weight": (self.out_channels, self.in_channels // self.groups, *self.kernel_size)}
        if self.bias is not None:
            expected["bias"] = (self.out_channels,)
        for name, shape in expected.items():
            found = tuple(getattr(self, name).shape)
            if found != shape:
                raise ValueError(f"{name} has shape {found}, but the convolution has {shape}")

    def add_taps(self, x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """The sum over all heads of weight times attended values, and the bias."""
        prepared = prepare(x, self.weight, self.bias, self.groups, matrices)
        if prepared is None:
            return TapProduct.apply(x, self.weight, self.bias, self.groups, *matrices)
        with kernels.on_device_of(x):
            out = AllTaps.apply(x, self.weight, self.bias, prepared)
        if not is_captured(x.device):
            remember(kind_of(x, self.weight, self.bias, self._settings()), prepared)
        return out

    def _settings(self) -> tuple[object, ...]:
        """Everything that a call depends on besides its tensors, as part of a cache key."""
        return self.plan, self.stride, self.dilation, self.pads, self.padding_mode, self.alpha, self.groups

    def chosen_plan(self, x: Tensor) -> TapsPlan:
        """``"taps"`` or ``"attention"``, for this input."""
        check_choice("plan", self.plan, get_args(TapsPlan))
        if self.plan != "auto":
            return self.plan
        dtype = torch.get_autocast_dtype(x.device.type) if under_autocast(x) else x.dtype
        return "taps" if self.leak <= torch.finfo(dtype).eps / 2 else "attention"

    def convolve(self, x: Tensor) -> Tensor:
        """All heads as one convolution: each head as an exact shift, without its leak."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            x = F.pad(x, [side for pair in reversed(self.pads) for side in pair], mode=self.padding_mode)
            padding = 0
        weight, bias = self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype)
        return CONVOLVE[self.axes](x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def weights(self, grid: Sequence[int], like: Tensor | None = None) -> Float[Tensor, "1 heads outputs inputs"]:
        """The map, to inspect it; the forward pass never forms it."""
        whole, *rest = self.axis_matrices(grid, self.weight if like is None else like)
        for matrix in rest:
            whole = torch.einsum("son,tpm->stopnm", whole, matrix).flatten(4, 5).flatten(2, 3).flatten(0, 1)
        return whole.unsqueeze(0)

    @on_cpu
    @torch.no_grad()
    def error_bound(self, x: Tensor) -> float:
        """An upper bound on the largest difference from the convolution's output, for this input.

        A head's weights are ``leak`` from the shift in L1, which gives an error of at most leak · Σ|w| · max|x|, with the
        absolute weights of one output channel. To this the bound adds the rounding of both layers: of sums, relative
        to the convolution of |x| with the absolute weights; of stored values, relative to themselves. It holds for calls on
        the CPU under the autocast that is active during this call; elsewhere it raises ``ValueError``. It is infinite if a
        number or an intermediate sum may overflow.
        """
        dims = self.weight.ndim - 2
        check_values("x", x, self.in_channels, -dims - 1, (dims + 1, dims + 2))
        rules = arithmetic(x, *self.parameters())
        if not x.numel():
            return 0.0
        if not rules.holds(x, *self.parameters()):
            return math.inf
        largest = x.abs().max().double().item()
        norm = self.weight.double().abs().flatten(1).sum(1).max().item()
        leaked = self.leak * norm * largest
        conv = copy.copy(self.to_conv())
        conv._parameters = {"weight": nn.Parameter(self.weight.double().abs()), "bias": None}
        if self.bias is not None:
            conv._parameters["bias"] = nn.Parameter(self.bias.double().abs())
        with torch.autocast("cpu", enabled=False):
            absolute = conv(x.double().abs()).max().item()
        taps, row = self.weight[0].numel(), MapRow.along_axis(0.0, self.alpha)
        # In both layers: the sum over taps and channels, parameters and input rounded under autocast, the bias.
        theirs = rules.product(taps) + 3 * rules.parameter + rules.cast
        # The attention first builds a row for each axis and averages the inputs along it. A border that folds also adds
        # padded columns to inputs: either they are not the nearest key, or nothing else is added.
        axis = rules.mix(row) + math.log1p(rules.carried * row.off)
        ours = theirs + self.axes * axis
        # Underflow: of factors and products in both sums over taps, and in an average along each axis.
        terms = 2 * taps + self.axes * row.scores.numel()
        lost = 2 * lost_below(rules.dtype) * terms * (1 + norm) * (1 + largest)
        bound = leaked + rules.bound(ours, absolute + leaked) + rules.bound(theirs, absolute)
        return min(bound, self._followed_bound(x, rules, bound)) + lost

    def _followed_bound(self, x: Tensor, rules: Arithmetic, otherwise: float) -> float:
        """A bound for this input by computing in float64. Both layers round input and weights alike, also under autocast."""
        if not follows(rules) or not x.isfinite().all():
            return otherwise
        rounded = x.detach().to(rules.dtype).double()
        apart = shift_error(rules, self.alpha, self.axes, rounded.abs().max().item())
        conv = copy.copy(self.to_conv())
        conv._parameters = {
            "weight": nn.Parameter(self.weight.detach().to(rules.dtype).double()),
            "bias": None if self.bias is None else nn.Parameter(self.bias.detach().double()),
        }
        with torch.autocast("cpu", enabled=False):
            return convolution_error(rules, conv, rounded, apart)

    def multiply_adds(self, grid: Sequence[int]) -> int:
        """Multiply-adds for one item by attention: the passes over each axis, and the products with the weights."""
        sizes = list(zip(self.kernel_size, self.output_size(grid), grid, strict=True))
        return self.groups * multiply_adds(self.weight.shape[1], self.out_channels // self.groups, sizes)

    def to_conv(self) -> Convolution:
        """The convolution again, with the same parameters."""
        make = cast(Callable[..., Convolution], CONVOLUTIONS[self.axes])
        conv = make(
            self.in_channels, self.out_channels, self.kernel_size, self.stride, self.padding, self.dilation, self.groups,
            bias=False, padding_mode=self.padding_mode, device="meta",
        )  # fmt: skip
        conv.weight = self.weight
        conv.bias = self.bias
        return conv.train(self.training)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, heads={self.heads} ({'×'.join(map(str, self.kernel_size))}), "
            f"stride={self.stride}, dilation={self.dilation}, padding={self.padding}, border={self.padding_mode}, "
            f"groups={self.groups}, sharpness={self.alpha:.3g}, plan={self.plan}"
        )


def tap_matrices(
    size: int, outputs: int, stride: int, taps: int, dilation: int, pads: tuple[int, int], alpha: float, border: Border,
    dtype: torch.dtype, device: torch.device,
) -> Float[Tensor, "taps outputs inputs"]:  # fmt: skip
    """The attention of each tap along one axis. Targets are integers, which are exact in float32."""
    build = torch.promote_types(dtype, torch.float32)
    queries = torch.arange(outputs, device=device, dtype=build) * stride
    offsets = torch.arange(taps, device=device, dtype=build) * dilation - pads[0]
    targets = offsets[:, None] + queries
    sharpness = torch.full((taps,), alpha, device=device, dtype=build)
    return axis_matrix(targets, sharpness, size, border=border, padding=pads).to(dtype)


_MATRICES = TensorCache(64)


def kept_matrices(*arguments: Any) -> Tensor:
    """:func:`tap_matrices`, cached: the matrices depend on no parameter."""
    if any(isinstance(x, torch.SymInt) for x in arguments):
        return tap_matrices(*arguments)
    return _MATRICES.get(arguments, arguments[-1], lambda: tap_matrices(*arguments))


def conv_padding(conv: Convolution) -> tuple[tuple[int, int], ...]:
    """(before, after) per axis; ``"same"`` is asymmetric if dilation · (kernel size − 1) is odd."""
    if conv.padding == "same":
        reach = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        return tuple((r // 2, r - r // 2) for r in reach)
    if conv.padding == "valid":
        return ((0, 0),) * len(conv.kernel_size)
    return tuple((int(p), int(p)) for p in conv.padding)
