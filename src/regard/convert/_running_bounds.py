"""Bounds on rounding that follow one input through a layer, in float64: a result that is stored in half precision is off by
half a unit of its own size, not of the size of everything that was added up to it."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.convert._bounds import FLOAT64, Arithmetic, MapRow
from regard.functional import shift_leak


def follows(rules: Arithmetic) -> bool:
    """Whether float64 can follow: it must be more exact than the layer."""
    return rules.stored > FLOAT64


def stored(rules: Arithmetic, size: Tensor) -> Tensor:
    """The error of rounding numbers of this size to the stored dtype; none where sums are carried in it anyway."""
    return rules.stored * size if rules.stored != rules.carried else torch.zeros_like(size)


def summed(rules: Arithmetic, terms: int, absolute: Tensor) -> Tensor:
    """The error of a sum of that many products as it is carried, whose absolute terms add up to ``absolute``."""
    steps = terms * (rules.carried + FLOAT64)  # and of following it in float64
    if steps >= 0.5:
        return torch.full_like(absolute, math.inf)
    return steps / (1 - steps) * absolute


def shift_error(rules: Arithmetic, alpha: float, axes: int, largest: float) -> float:
    """How far a head of whole center is from the shift of its input, which has numbers of at most ``largest``.

    Along one axis the row of weights is leak + error from the one-hot row in L1, so a sum with it is at most
    d = (leak + error + roundings) · largest from the number that it should be. That one is a number of the stored dtype,
    so rounding to the nearest such number adds at most d again, and at most half a unit.
    """
    row = MapRow.along_axis(0.0, alpha)
    leak, built = shift_leak([alpha]), math.expm1(rules.weights(row))
    total = 0.0
    for _ in range(axes):
        size = largest + total
        steps = (
            rules.matter(row) * rules.carried * (1 + built) + rules.carried * row.off
        )  # the last one folds the border
        apart = (leak + built + steps) * size
        if rules.stored != rules.carried:
            apart += min(apart, rules.stored * (size + apart))
        total += apart
    return total


def convolution_error(rules: Arithmetic, conv: nn.Module, x: Tensor, apart: float | Tensor) -> float:
    """How far a convolution and the attention that computes it are from each other, where no head is further than
    ``apart`` from its shift.

    Args:
        conv: the convolution in float64, with the weights that are multiplied.
        x: the numbers that it is called with, in float64.
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
    # The convolution's own rounding, and the attention's. A convolution may begin its sum with the bias, and then every step
    # rounds a number that holds it; the attention adds it at the end.
    for moved, begun in ((torch.zeros_like(passed), added), (passed, torch.zeros_like(added))):
        error = summed(rules, terms + 1, absolute + moved + begun)
        error = error + stored(rules, exact + moved + error)
        error = error + rules.stored * (exact + moved + error + added) + rules.parameter * added
        total = total + error
    if (absolute + added + passed).max() * 2 > torch.finfo(rules.dtype).max:
        return math.inf
    return float(total.max())


class HeadSizes(NamedTuple):
    """How large the numbers of one input become at each token; or at most over all tokens, as those of a single one."""

    inputs: Tensor  # |x|, (tokens, dim)
    values: Tensor  # |v| of each head, (tokens, heads, head_dim)
    absolute: Tensor  # |V| |x| + |b|: what is added up to them

    @classmethod
    def of(cls, tokens: Tensor, values: Tensor, bias: Tensor) -> "HeadSizes":
        """Of tokens (tokens, dim) in float64, from the value projection (heads, head_dim, dim) and its bias."""
        flat, shape = values.flatten(0, 1), (-1, *bias.shape)
        exact = torch.addmm(bias.flatten(), tokens, flat.mT).abs().reshape(shape)
        absolute = torch.addmm(bias.flatten().abs(), tokens.abs(), flat.abs().mT).reshape(shape)
        return cls(tokens.abs(), exact, absolute)

    def largest(self) -> "HeadSizes":
        return HeadSizes(*(each.amax(0, keepdim=True) for each in self))

    def heads(self, which: list[int]) -> "HeadSizes":
        return HeadSizes(self.inputs, self.values[:, which], self.absolute[:, which])


def values_error(rules: Arithmetic, sizes: HeadSizes, dim: int) -> Tensor:
    """Of each head's values: one product, stored; parameters that autocast rounds first."""
    error = summed(rules, dim + 1, sizes.absolute) + rules.parameter * sizes.absolute
    return error + stored(rules, sizes.values + error)


def mixed_error(error: Tensor, mixed: Tensor, logs: Tensor) -> Tensor:
    """After mixing with weights that add up to one: ``error`` and ``mixed`` are errors and sizes of values, mixed by exact
    weights; ``logs`` is log(1 + relative error) of mixing, for each head."""
    grown = torch.expm1(logs)[:, None]
    return error * (1 + grown) + grown * mixed


def output_error(
    rules: Arithmetic, error: Tensor, mixed: Tensor, outputs: Tensor, bias: Tensor, reached: Tensor | None = None
) -> Tensor:
    """Of the output projection (heads, out, head_dim), which adds a bias: (tokens, out). ``reached`` is the size of its exact
    results where that is known."""
    absolute = torch.einsum("hoj,thj->to", outputs.abs(), mixed + error) + bias.abs()
    total = torch.einsum("hoj,thj->to", outputs.abs(), error) + rules.parameter * absolute
    total = total + summed(rules, outputs.shape[0] * outputs.shape[2] + 1, absolute)
    return total + rules.stored * ((absolute if reached is None else reached) + total)
