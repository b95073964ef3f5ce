"""A rounding bound for one input, computed in float64 through a Gaussian layer and through its converted convolution."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.convert._bounds import FLOAT32, Arithmetic
from regard.convert._kernels import CONVOLVE, repeat_edge
from regard.convert._running_bounds import HeadSizes, mixed_error, output_error, stored, summed, values_error
from regard.functional import gaussian_attention


def followed_errors(conv: Any, x: Tensor, rules: Arithmetic) -> float | None:
    """A bound on the error in the interior by rounding and leaks, for a :class:`GaussianConvolution` and x in float64; None if
    there is no interior.

    The bound is computed per token if x has the grid's axes. For flat tokens it uses the largest value of each channel.
    """
    values, value_bias, outputs, bias = (each.double().cpu() for each in conv.projections)
    grid = tuple(x.shape[1:-1]) if x.ndim == conv.axes + 2 else None
    inside = None if grid is None else conv.interior(grid)
    if inside is not None and not all(part.stop > part.start for part in inside):
        return None
    tokens = x.reshape(-1, conv.dim)
    sizes = HeadSizes.of(tokens, values, value_bias)
    plain = HeadSizes.of(tokens, values, torch.zeros_like(value_bias))  # the convolution's values have no bias
    leaks = torch.tensor([kernel.leak for kernel in conv.kernels]).double()[:, None]
    largest, reached = sizes.largest(), None
    mix: Callable[[Tensor], Tensor] = lambda field: field  # noqa: E731
    if grid is None:
        sizes, plain = largest, plain.largest()
    else:
        mix = partial(_mixed, conv, grid)
        signed = torch.addmm(value_bias.flatten(), tokens, values.flatten(0, 1).mT).reshape(sizes.values.shape)
        reached = (torch.einsum("hoj,thj->to", outputs, mix(signed)) + bias).abs()
    logs = torch.tensor([sum(rules.mix(row) for row in kernel.rows) for kernel in conv.kernels]).double()
    error = torch.zeros_like(sizes.values) if conv.full_width else values_error(rules, sizes, conv.dim)
    mixed = mix(sizes.values)
    total = output_error(rules, mixed_error(mix(error), mixed, logs), mixed, outputs, bias, reached)
    total = total + torch.einsum("hoj,thj->to", outputs.abs(), leaks * largest.values)
    blurred = mix(plain.values) + leaks * plain.largest().values
    total = total + _own_error(conv, rules, plain, blurred, outputs, x if grid else None)
    if grid is not None and inside is not None:
        total = total.unflatten(0, (len(x), *grid))[:, *inside]
    return float(total.max())


def _mixed(conv: Any, grid: tuple[int, ...], field: Tensor) -> Tensor:
    """The layer's own attention maps applied to (tokens, heads, head_dim)."""
    value = field.unflatten(0, (-1, math.prod(grid))).transpose(1, 2)
    center, sharpness = conv._center.double().cpu(), conv._sharpness.double().cpu()
    return gaussian_attention(value, center, sharpness, grid).transpose(1, 2).flatten(0, 1)


def _own_error(
    conv: Any, rules: Arithmetic, plain: HeadSizes, blurred: Tensor, outputs: Tensor, x: Tensor | None
) -> Tensor:
    """The rounding error of the convolution, (tokens, out): of its kernel and blurs, whose weights were rounded once, and of
    their sum."""
    bias = conv.bias.detach().double().cpu()
    total, reached = rules.stored * bias.abs()[None], bias.abs()[None]
    if conv.kernel is not None:
        absolute, dense = _kernel_sizes(conv, rules, plain, outputs, x)
        error = math.expm1(rules.cast + 2 * FLOAT32) * absolute  # rounded to the layer's and to the call's dtype
        error = error + summed(rules, conv.dim * conv.kernel[0, 0].numel(), absolute)
        total, reached = total + error + stored(rules, dense + error), reached + dense + error
    if conv.blurs is not None:
        chain, outputs, mixed = plain.heads(conv.chain_heads), outputs[conv.chain_heads], blurred[:, conv.chain_heads]
        error = torch.zeros_like(mixed)
        if conv.value is not None:
            error = error + values_error(rules, chain, conv.dim).amax(0)
        steps = sum(rules.product(high - low) + rules.cast + 2 * FLOAT32 for low, high in conv.chain_box)
        error = mixed_error(error, mixed, torch.full((len(conv.chain_heads),), steps).double())
        out = output_error(rules, error, mixed, outputs, torch.zeros_like(bias))
        total = total + out
        reached = reached + torch.einsum("hoj,thj->to", outputs.abs(), mixed) + out
    return total + 2 * rules.stored * (reached + total)


def _kernel_sizes(
    conv: Any, rules: Arithmetic, plain: HeadSizes, outputs: Tensor, x: Tensor | None
) -> tuple[Tensor, Tensor]:
    """For the dense kernel, the sum of absolute terms and the absolute value of the results, (tokens, out) each."""
    kernel = conv.kernel.detach().to(rules.dtype).double().cpu()
    if x is None:
        heads = conv.dense_heads
        dense = torch.einsum("hoj,thj->to", outputs[heads].abs(), plain.values[:, heads])
        return plain.inputs @ kernel.abs().flatten(2).sum(-1).mT, dense * (1 + math.expm1(rules.cast))
    spans = [(first, first + size) for first, size in zip(conv.start, kernel.shape[2:], strict=True)]
    image = repeat_edge(x.movedim(-1, 1), spans)
    absolute, dense = (
        CONVOLVE[conv.axes](part, weight).flatten(2).transpose(1, 2).flatten(0, 1).abs()
        for part, weight in ((image.abs(), kernel.abs()), (image, kernel))
    )
    return absolute, dense
