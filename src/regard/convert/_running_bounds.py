"""Bounds on rounding for one input, computed through a layer in float64. They are tighter than bounds by max|x|: storing a
result in half precision costs half a unit of that result's size, not of the size of the sum of absolute terms."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.convert._bounds import FLOAT64, Arithmetic, MapRow
from regard.functional import shift_leak


def follows(rules: Arithmetic) -> bool:
    """Whether these bounds apply: float64 must be more accurate than the layer's own arithmetic."""
    return rules.stored > FLOAT64


def stored(rules: Arithmetic, size: Tensor) -> Tensor:
    """The error of rounding numbers of this size to the stored dtype; zero if sums are accumulated in that dtype anyway."""
    return rules.stored * size if rules.stored != rules.carried else torch.zeros_like(size)


def summed(rules: Arithmetic, terms: int, absolute: Tensor) -> Tensor:
    """The accumulated error of a sum of ``terms`` products, where ``absolute`` is the sum of absolute terms."""
    steps = terms * (rules.carried + FLOAT64)  # including the error of this float64 computation
    if steps >= 0.5:
        return torch.full_like(absolute, math.inf)
    return steps / (1 - steps) * absolute


def shift_error(rules: Arithmetic, alpha: float, axes: int, largest: float) -> float:
    """A bound on the difference between a head with integer center and the exact shift, for inputs of at most ``largest``.

    Along one axis the row of weights is leak + error from the one-hot row in L1, so a weighted sum differs by at most
    d = (leak + error + roundings) · largest from the exact shift. The exact result is a number of the stored dtype, so
    rounding to the nearest such number adds at most d again, and at most half a unit.
    """
    row = MapRow.along_axis(0.0, alpha)
    leak, built = shift_leak([alpha]), math.expm1(rules.weights(row))
    total = 0.0
    for _ in range(axes):
        size = largest + total
        steps = (
            rules.matter(row) * rules.carried * (1 + built) + rules.carried * row.off
        )  # the last term is for folding the border
        apart = (leak + built + steps) * size
        if rules.stored != rules.carried:
            apart += min(apart, rules.stored * (size + apart))
        total += apart
    return total


def convolution_error(rules: Arithmetic, conv: nn.Module, x: Tensor, apart: float | Tensor) -> float:
    """A bound on the difference between a convolution and its converted attention, if every head's output is at most
    ``apart`` from its exact shift.

    Args:
        conv: the convolution in float64, with its weights as rounded for the products.
        x: its input as rounded, in float64.
        apart: one number, or one for each tap, in the kernel's shape.
    """
    weight, bias = conv.weight, conv.bias
    assert isinstance(weight, Tensor)
    terms = weight[0].numel()
    spread = (1, -1, *[1] * (weight.ndim - 2))
    added = torch.zeros(1) if bias is None else bias.detach().abs()  # type: ignore[operator, union-attr]
    added = added.double().reshape(spread)
    passed = (apart * weight.abs()).flatten(1).sum(1).reshape(spread)
    conv._parameters["bias"] = None
    batch = x if x.ndim == weight.ndim else x.unsqueeze(0)
    exact = conv(batch).abs()
    conv._parameters["weight"] = nn.Parameter(weight.abs())
    absolute = conv(batch.abs())
    total = passed
    # The rounding of the convolution, then of the attention. A convolution may start its sum with the bias, and then every
    # step rounds a number that includes it; the attention adds it at the end.
    for moved, begun in ((torch.zeros_like(passed), added), (passed, torch.zeros_like(added))):
        error = summed(rules, terms + 1, absolute + moved + begun)
        error = error + stored(rules, exact + moved + error)
        error = error + rules.stored * (exact + moved + error + added) + rules.parameter * added
        total = total + error
    if (absolute + added + passed).max() * 2 > torch.finfo(rules.dtype).max:
        return math.inf
    return float(total.max())


class HeadSizes(NamedTuple):
    """Absolute sizes of inputs and values at each token; or their maximum over all tokens, as for a single token."""

    inputs: Tensor  # |x|, (tokens, dim)
    values: Tensor  # |v| of each head, (tokens, heads, head_dim)
    absolute: Tensor  # |V| |x| + |b|: the sum of absolute terms of each value

    @classmethod
    def of(cls, tokens: Tensor, values: Tensor, bias: Tensor) -> "HeadSizes":
        """From tokens (tokens, dim) in float64, the value projection (heads, head_dim, dim) and its bias."""
        flat, shape = values.flatten(0, 1), (-1, *bias.shape)
        exact = torch.addmm(bias.flatten(), tokens, flat.mT).abs().reshape(shape)
        absolute = torch.addmm(bias.flatten().abs(), tokens.abs(), flat.abs().mT).reshape(shape)
        return cls(tokens.abs(), exact, absolute)

    def largest(self) -> "HeadSizes":
        return HeadSizes(*(each.amax(0, keepdim=True) for each in self))

    def heads(self, which: list[int]) -> "HeadSizes":
        return HeadSizes(self.inputs, self.values[:, which], self.absolute[:, which])


def values_error(rules: Arithmetic, sizes: HeadSizes, dim: int) -> Tensor:
    """The error of each head's values: one product, stored, with parameters that autocast rounds first."""
    error = summed(rules, dim + 1, sizes.absolute) + rules.parameter * sizes.absolute
    return error + stored(rules, sizes.values + error)


def mixed_error(error: Tensor, mixed: Tensor, logs: Tensor) -> Tensor:
    """The error after averaging with attention weights. ``error`` and ``mixed`` are errors and sizes of the values, averaged
    with exact weights; ``logs`` is log(1 + relative error) of the averaging, for each head."""
    grown = torch.expm1(logs)[:, None]
    return error * (1 + grown) + grown * mixed


def output_error(
    rules: Arithmetic, error: Tensor, mixed: Tensor, outputs: Tensor, bias: Tensor, reached: Tensor | None = None
) -> Tensor:
    """The error of the output projection (heads, out, head_dim) and its bias, (tokens, out). ``reached`` is the absolute value
    of its exact results, if known."""
    absolute = torch.einsum("hoj,thj->to", outputs.abs(), mixed + error) + bias.abs()
    total = torch.einsum("hoj,thj->to", outputs.abs(), error) + rules.parameter * absolute
    total = total + summed(rules, outputs.shape[0] * outputs.shape[2] + 1, absolute)
    return total + rules.stored * ((absolute if reached is None else reached) + total)
