"""Softargmax: a soft choice of the largest score."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.support.checks import check_beta, check_broadcastable, check_floating


def softargmax(
    scores: Float[Tensor, "..."],
    beta: float | Tensor = 1.0,
    *,
    keep: Bool[Tensor, "..."] | None = None,
    dim: int = -1,
) -> Float[Tensor, "..."]:
    r"""Weights that grow with the scores and sum to one along ``dim``.

    .. math:: w_i = \frac{e^{\beta z_i}}{\sum_{j \in \mathrm{keep}} e^{\beta z_j}}

    For β = 0 all kept entries weigh the same; in the limit β → ∞ the largest score takes everything and ties share
    evenly. Where nothing is kept the weights are zero. A score of −∞ counts as not kept.

    Args:
        scores: z, any shape.
        beta: β in [0, ∞], a number or a tensor that broadcasts against ``scores``, with size 1 along ``dim``.
        keep: True where weight may go; as many axes as ``scores``, each of the same size or 1.
        dim: the axis that sums to one.

    >>> softargmax(torch.tensor([0.0, 1.0, 1.0]), math.log(2))
    tensor([0.2000, 0.4000, 0.4000])
    >>> softargmax(torch.tensor([0.0, 1.0, 1.0]), math.inf)
    tensor([0.0000, 0.5000, 0.5000])
    """
    check_floating("scores", scores)
    if scores.ndim == 0 or not -scores.ndim <= dim < scores.ndim:
        raise ValueError(f"dim is {dim} but scores has shape {tuple(scores.shape)}, {scores.ndim} axes")
    check_beta(beta)
    if isinstance(beta, Tensor):
        slices = list(scores.shape)
        slices[dim] = 1
        check_broadcastable("beta", beta, tuple(slices), "one temperature per slice,", same_ndim=False)
    kept = scores > -torch.inf
    if keep is not None:
        check_broadcastable("keep", keep, tuple(scores.shape), "scores", dtype=torch.bool)
        kept = kept & keep

    beta = torch.as_tensor(beta, dtype=scores.dtype, device=scores.device)
    hard = torch.isinf(beta)
    beta = torch.where(hard, 0.0, beta)
    # The weights do not change when a constant is taken from every score; the largest one keeps e^{βz} in range.
    largest = largest_kept(scores, kept, dim)
    distance = torch.where(kept, scores, largest) - largest
    growth = torch.exp(beta * distance)
    growth = torch.where(kept & (~hard | (distance == 0)), growth, 0.0)
    total = growth.sum(dim, keepdim=True)
    return growth / torch.where(total == 0, 1.0, total)


def largest_kept(scores: Float[Tensor, "..."], kept: Bool[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """The largest kept score along ``dim`` (kept as an axis of size 1), 0 where nothing is kept; a constant.

    >>> largest_kept(torch.tensor([1.0, 5.0]), torch.tensor([True, False]), -1)
    tensor([1.])
    """
    if scores.shape[dim] == 0:
        return scores.detach().sum(dim, keepdim=True)
    largest = scores.detach().masked_fill(~kept, -torch.inf).amax(dim, keepdim=True)
    return torch.where(torch.isinf(largest), 0.0, largest)
