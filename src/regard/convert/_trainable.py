"""A convolution as attention whose heads can move: centers and sharpness are parameters."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.convert._bounds import Arithmetic, arithmetic, lost_below
from regard.convert._observed_taps import observed_taps
from regard.convert._output_size import output_size
from regard.convert._running_bounds import convolution_error
from regard.functional import axis_matrix, gaussian_weights, shift_leak
from regard.support.checks import check_floating, check_values, static_sizes
from regard.support.default_device import on_cpu

START = 3.0  # exp(−3) ≈ 0.05 reaches a neighbor: soft enough for a gradient, sharp enough to start near the convolution


class TrainableConvolutionalAttention(nn.Module):
    r"""What ``conv_to_attention(conv, trainable=True)`` returns: one Gaussian head per tap, with a ``center`` (heads, axes) and
    a sharpness (heads,) that are trained.

    .. math:: y_o = b + \sum_t W_t \sum_i A^t_{o i}\, x_i, \qquad
              A^t_{o i} = \prod_a \mathrm{softmax}_{i_a}\bigl(-\alpha_t (i_a - s_a o_a - \Delta_{t a})^2\bigr)

    It starts at α = 3, where ``leak`` is 0.35 in two axes: a sixth of the weight is on other keys. The heads of the exact
    conversion are much sharper, and the gradient of their centers vanishes. ``error_bound(x)`` says how far the layer is from
    the convolution, wherever its heads are. Padding, stride, dilation and groups are those of the convolution; ``weight`` and
    ``bias`` are copies of its parameters. Every head has its own matrices, so this layer costs more than the exact
    conversion, whose taps share matrices.

    >>> layer = regard.conv_to_attention(torch.nn.Conv2d(3, 8, 3, padding=1), trainable=True)
    >>> layer(torch.randn(2, 3, 8, 8)).shape, layer.center.shape, round(layer.leak, 2)
    (torch.Size([2, 8, 8, 8]), torch.Size([9, 2]), 0.35)
    """

    bias: nn.Parameter | None

    def __init__(self, exact: Any) -> None:
        super().__init__()
        self.weight = exact.weight
        self.register_parameter("bias", exact.bias)
        self.axes, self.pads, self.stride, self.groups = exact.axes, exact.pads, exact.stride, exact.groups
        self.border, self.out_channels, self.in_channels = exact.border, exact.out_channels, exact.in_channels
        self.kernel_size, self.dilation, self.padding = exact.kernel_size, exact.dilation, exact.padding
        self.taps = tuple(tuple(tap) for tap in exact.center.tolist())  # where the heads start
        center = exact.center.to(self.weight.device)
        self.center = nn.Parameter(center.to(torch.promote_types(self.weight.dtype, torch.float32)))
        self.log_sharpness = nn.Parameter(torch.full_like(self.center[:, 0], math.log(START)))
        self.train(exact.training)

    @property
    def heads(self) -> int:
        return len(self.center)

    @property
    def sharpness(self) -> Float[Tensor, " heads"]:
        return self.log_sharpness.exp()

    @property
    def leak(self) -> float:
        """The largest L1 distance of the softest head's rows from a shift, while its center is on a token; infinite if
        training has made a sharpness NaN."""
        softest = float(self.sharpness.detach().min())
        return math.inf if math.isnan(softest) else shift_leak([softest] * self.axes)

    @on_cpu
    @torch.no_grad()
    def error_bound(self, x: Tensor) -> float:
        """No output differs by more than this from that of the convolution with the present weight and bias, for this input.

        Centers and sharpness count as they are now: the bound is that of a layer near its convolution while they are where they
        started, and grows as they move. The matrices of this input are compared with shifts, and then rounding is added, both
        layers' own. It holds for calls on the CPU under the autocast that is on while it is asked for; elsewhere it raises
        ``ValueError``. It is infinite where a number or a sum on the way may overflow.
        """
        check_values("x", x, self.in_channels, -self.axes - 1, (self.axes + 1, self.axes + 2))
        rules = arithmetic(x, *self.parameters())
        if not x.numel():
            return 0.0
        if not rules.holds(x, *self.parameters()):
            return math.inf
        rounded, weight = (each.detach().to(rules.dtype).double() for each in (x, self.weight))
        largest, norm = rounded.abs().max().item(), weight.abs().flatten(1).sum(1).max().item()
        apart, terms = self._distances(static_sizes(x)[-self.axes :], x, rules, largest)
        make = getattr(nn, f"Conv{self.axes}d")
        conv = make(
            self.in_channels, self.out_channels, self.kernel_size, self.stride, self.padding, self.dilation, self.groups,
            bias=False, padding_mode=self.border, device="meta",
        )  # fmt: skip
        bias = None if self.bias is None else nn.Parameter(self.bias.detach().double())
        conv._parameters = {"weight": nn.Parameter(weight), "bias": bias}
        with torch.autocast("cpu", enabled=False):
            # One in 10⁹ for the rounding of these numbers themselves.
            found = (1 + 1e-9) * convolution_error(rules, conv, rounded, apart.reshape(self.kernel_size))
        terms = 2 * weight[0].numel() + self.axes * terms
        return found + 2 * lost_below(rules.dtype) * terms * (1 + norm) * (1 + largest)

    def _distances(
        self, grid: Sequence[int], like: Tensor, rules: Arithmetic, largest: float
    ) -> tuple[Float[Tensor, " heads"], int]:
        """How far each head is from the shift of its tap, for inputs of at most ``largest``; and how many weights of a row are
        not zero, at most, for others are multiplied and added without rounding."""
        apart, most = torch.zeros(self.heads, dtype=torch.float64), 0
        with torch.autocast("cpu", enabled=False):
            matrices = [each.to(rules.dtype).double() for each in self.axis_matrices(grid, like)]
        for axis, (ours, size, outputs) in enumerate(zip(matrices, grid, self.output_size(grid), strict=True)):
            taps = torch.tensor(self.taps, dtype=torch.float64)[:, axis, None]
            targets = taps + torch.arange(outputs, dtype=torch.float64) * self.stride[axis]
            alpha = torch.full((self.heads,), 1e4, dtype=torch.float64)  # whose other weights are zero
            shifts = axis_matrix(targets, alpha, size, border=self.border, padding=self.pads[axis])
            off, total = (each.abs().sum(-1).amax(-1) for each in (ours - shifts, ours))
            terms = int((ours != 0).sum(-1).max())
            sums = rules.carried * terms / (1 - rules.carried * terms) * total * (largest + apart)
            apart = off * largest + total * apart + sums
            if rules.stored != rules.carried:  # what is rounded lies near a number of that dtype, the one that is read
                apart = apart + torch.minimum(apart, rules.stored * (largest + apart))
            most = max(most, terms)
        return apart, most

    def no_weight_decay(self) -> set[str]:
        """Parameters that weight decay should exclude."""
        return {"center", "log_sharpness"}

    def axis_matrices(self, grid: Sequence[int], like: Tensor) -> list[Float[Tensor, "heads outputs inputs"]]:
        """For each axis, the attention of each head: (heads, outputs, inputs)."""
        matrices = []
        for axis, (size, outputs) in enumerate(zip(grid, self.output_size(grid), strict=True)):
            queries = torch.arange(outputs, device=like.device, dtype=self.center.dtype) * self.stride[axis]
            # By queries and centers, whose sum would have fewer digits left for the fraction of a center.
            center, padding = self.center[:, axis, None], (self.pads[axis],)
            found = gaussian_weights(
                center, self.sharpness, (size,), queries=[queries], border=self.border, padding=padding
            )
            matrices.append(found.to(like.dtype))
        return matrices

    def output_size(self, grid: Sequence[int]) -> tuple[int, ...]:
        return output_size(self, grid)

    def forward(self, input: Float[Tensor, "..."]) -> Tensor:
        """``(batch, channels, *space)``, or without the batch, as the convolution takes it."""
        check_floating("input", input)
        if input.ndim not in (self.axes + 1, self.axes + 2) or input.shape[-self.axes - 1] != self.in_channels:
            raise ValueError(
                f"input has shape {tuple(input.shape)}, but must be (batch, {self.in_channels} channels, *space) with "
                f"{self.axes} axes"
            )
        x = input if input.ndim == self.axes + 2 else input.unsqueeze(0)
        grid = static_sizes(x)[2:]
        y = x.unsqueeze(2)  # (batch, channels, heads or 1, *space)
        for axis, matrix in enumerate(self.axis_matrices(grid, x)):
            last = y.ndim - 1  # not −1, which the TorchScript ONNX exporter would write unchanged
            values = y.expand(-1, -1, self.heads, *y.shape[3:]).movedim(3 + axis, last)
            y = torch.einsum("hoi,bch...i->bch...o", matrix, values).movedim(last, 3 + axis)
        outputs = tuple(y.shape[3:])
        y = observed_taps(self, y, x, lambda: self.weights(grid, x), grid, outputs)
        weight = self.weight.to(x.dtype).reshape(self.groups, self.out_channels // self.groups, -1)
        inputs = y.reshape(x.shape[0], self.groups, weight.shape[2], math.prod(outputs))
        out = torch.matmul(weight, inputs).reshape(x.shape[0], self.out_channels, *outputs)
        if self.bias is not None:
            out = out + self.bias.to(out.dtype).reshape(-1, *[1] * self.axes)
        return out if input.ndim == self.axes + 2 else out[0]

    def weights(self, grid: Sequence[int], like: Tensor | None = None) -> Float[Tensor, "1 heads outputs inputs"]:
        """The map, to inspect it; the forward pass never forms it."""
        whole, *rest = self.axis_matrices(grid, self.weight if like is None else like)
        for matrix in rest:
            whole = torch.einsum("hoi,hpj->hopij", whole, matrix).flatten(3, 4).flatten(1, 2)
        return whole.unsqueeze(0)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, heads={self.heads}, stride={self.stride}, groups={self.groups}"
        )
