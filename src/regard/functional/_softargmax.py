"""Softargmax: the soft, differentiable arg-max, with its inverse temperature β."""

import math
import sys

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.support.checks import check_beta, check_broadcastable, check_floating, describe, values_are_readable
from regard.support.long_rows import softmax


def softargmax(
    scores: Float[Tensor, "..."],
    beta: float | Tensor = 1.0,
    *,
    keep: Bool[Tensor, "..."] | None = None,
    dim: int = -1,
) -> Float[Tensor, "..."]:
    r"""Weights that grow with the scores and sum to one along ``dim``.

    .. math:: \mathrm{softargmax}_\beta(z)_i = \frac{e^{\beta z_i}}{\sum_{j \in \mathrm{keep}} e^{\beta z_j}}

    Args:
        scores: any shape.
        beta: inverse temperature in [0, ∞], a number or a tensor that broadcasts against ``scores``, with size 1
            along ``dim``.
            ``0`` ignores the scores (uniform over the kept entries), ``math.inf`` is hard: all weight on the largest
            score, ties share evenly.
        keep: True where an entry may get weight; as many axes as ``scores``, each of the same size or 1.
        dim: the axis that sums to one.

    A score of −∞ counts as not kept, whatever β is. Scores of +∞ share all the weight, unless β is 0. A slice without any
    kept entry gives zeros, and finite gradients.

    >>> softargmax(torch.tensor([1.0, 2.0, 2.0]), beta=math.inf)
    tensor([0.0000, 0.5000, 0.5000])
    >>> softargmax(torch.tensor([1.0, 9.0, 2.0]), 0.0, keep=torch.tensor([True, False, True]))
    tensor([0.5000, 0.0000, 0.5000])
    """
    check_floating("scores", scores)
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim must be the number of an axis, got {describe(dim)}")
    if scores.ndim == 0 or not -scores.ndim <= dim < scores.ndim:
        raise ValueError(f"dim is {dim} but scores has shape {tuple(scores.shape)}, {scores.ndim} axes")
    check_beta(beta)
    beta = finite_number(beta)
    if isinstance(beta, Tensor):
        slices = list(scores.shape)
        slices[dim] = 1
        check_broadcastable("beta", beta, tuple(slices), "one temperature per slice,", same_ndim=False)
    if keep is not None:
        check_broadcastable("keep", keep, tuple(scores.shape), "scores", dtype=torch.bool)
    hidden = scores == -math.inf
    keep = ~hidden if keep is None else keep & ~hidden
    top = (scores == math.inf) & keep
    scores = scores.masked_fill(hidden | (scores == math.inf), 0.0)  # 0 · ∞ would be NaN
    logits = scale_scores(scores, beta, keep, dim)
    if not (values_are_readable(top) and not bool(top.any())):
        alone = top.any(dim, keepdim=True) & ((beta.to(scores.device) if isinstance(beta, Tensor) else beta) > 0)
        logits = torch.where(alone, torch.zeros_like(logits).masked_fill(~top, -math.inf), logits)
    return masked_softmax(logits, keep, dim)


def finite_number(beta: float | Tensor) -> float | Tensor:
    """β as a float; an integer beyond the range of floats becomes the largest float.

    >>> finite_number(10**400)
    1.7976931348623157e+308
    """
    if isinstance(beta, Tensor):
        return beta
    try:
        return float(beta)
    except OverflowError:
        return sys.float_info.max


def scale_scores(scores: Tensor, beta: float | Tensor, keep: Tensor, dim: int) -> Tensor:
    """Logits whose softmax gives the weights, for every β including ∞: β·scores up to a constant per slice."""
    if isinstance(beta, Tensor):
        hard, largest = torch.isinf(beta), _largest(scores)
        wide = beta.masked_fill(hard, 0.0).to(torch.promote_types(beta.dtype, scores.dtype))
        finite, beyond = wide.clamp(max=largest).to(scores.dtype), (wide / largest).clamp(1.0, largest).to(scores.dtype)
        # β ≤ 1 cannot overflow. A larger β multiplies differences to the best score, clamped because 0 · ∞ would be NaN.
        below = below_best(scores, None, keep, dim).clamp(min=-largest)
        soft = torch.where(finite <= 1, scores * finite.clamp(max=1.0), (below * finite).clamp(min=-largest) * beyond)
        return torch.where(hard, hard_logits(scores, None, keep, dim), soft)
    if beta == math.inf:
        return hard_logits(scores, None, keep, dim)
    if beta <= 1:
        return scores * beta
    logits, largest = below_best(scores, None, keep, dim), _largest(scores)
    while beta > largest:  # float16 ends at 65,504, where a small difference times β may still matter
        logits, beta = (logits * largest).clamp(min=-largest), beta / largest
    return logits * beta


def _largest(scores: Tensor) -> float:
    return torch.finfo(scores.dtype).max


def below_best(scores: Tensor, bias: Tensor | None, keep: Tensor | None, dim: int) -> Tensor:
    """Scores minus the best visible score: softmax ignores this constant, and the result (≤ 0) may be multiplied by any β."""
    if not scores.shape[dim]:
        return scores
    best = _open_scores(scores, bias, keep).amax(dim, keepdim=True)
    # Hidden scores may exceed the best visible one. They are masked later, and must not become +∞ before.
    return (scores - best.masked_fill(best == -math.inf, 0.0)).clamp(max=0.0)


def _open_scores(scores: Tensor, bias: Tensor | None, keep: Tensor | None) -> Tensor:
    """The scores without a gradient, −∞ for hidden keys."""
    scores = scores.detach()
    if keep is not None:
        scores = scores.masked_fill(~keep, -math.inf)
    return scores if bias is None else scores.masked_fill(bias == -math.inf, -math.inf)


def hard_logits(scores: Tensor, bias: Tensor | None, keep: Tensor | None, dim: int) -> Tensor:
    """Logits in the limit β → ∞: the bias (or 0) for the best visible scores, −∞ for all others."""
    if not scores.shape[dim]:
        return scores
    open_scores = _open_scores(scores, bias, keep)
    best = (open_scores == open_scores.amax(dim, keepdim=True)) & (open_scores > -math.inf)
    # Zeros that stay in the autograd graph: scores receive a (zero) gradient, as with every finite β.
    base = scores * 0.0
    if bias is None:
        return base.masked_fill(~best, -math.inf)
    # Among equal best scores, those with a bias of +∞ share the weight, as with every finite β.
    top = best & (bias == math.inf)
    best = torch.where(top.any(dim, keepdim=True), top, best)
    return (base + bias.masked_fill(bias == math.inf, 0.0)).masked_fill(~best, -math.inf)


def masked_softmax(logits: Tensor, keep: Tensor, dim: int = -1) -> Tensor:
    """Softmax over the kept entries; zeros, with zero gradients, for slices without any."""
    logits = logits.masked_fill(~keep, -math.inf)
    # The softmax of a row of −∞, and its gradient, would be NaN: use finite logits there and set the weights to zero.
    empty = (logits == -math.inf).all(dim, keepdim=True)
    return softmax(logits.masked_fill(empty, 0.0), dim).masked_fill(empty, 0.0)
