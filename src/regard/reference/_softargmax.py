"""Softargmax: a soft choice of the largest score."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.support.checks import check_beta, check_broadcastable


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
    beta = beta_like(scores, beta, dim)
    kept = scores > -torch.inf
    if keep is not None:
        check_broadcastable("keep", keep, tuple(scores.shape), "scores", dtype=torch.bool)
        kept = kept & keep

    # Subtracting a constant from every score changes no weight; the largest one keeps e^{βz} in range.
    largest = largest_kept(scores, kept, dim)
    distance = torch.where(kept, scores, largest) - largest
    hard = torch.isinf(beta)
    growth = torch.exp(torch.where(hard, 0.0, beta) * distance)
    growth = torch.where(kept & (~hard | (distance == 0)), growth, 0.0)
    total = growth.sum(dim, keepdim=True)
    return growth / torch.where(total == 0, 1.0, total)


def beta_like(scores: Float[Tensor, "..."], beta: float | Tensor, dim: int) -> Float[Tensor, "..."]:
    """β as a tensor of the scores' dtype. It has one value per slice along ``dim``, or one for all.

    >>> beta_like(torch.zeros(3), 2, -1)
    tensor(2.)
    """
    check_beta(beta)
    if isinstance(beta, Tensor):
        slices = scores.sum(dim, keepdim=True).shape
        check_broadcastable("beta", beta, tuple(slices), "one temperature per slice,", same_ndim=False)
    return torch.as_tensor(beta, dtype=scores.dtype, device=scores.device)


def largest_kept(scores: Float[Tensor, "..."], kept: Bool[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """The largest kept score along ``dim``, which stays as an axis of size 1; 0 where nothing is kept. No gradient.

    >>> largest_kept(torch.tensor([1.0, 5.0]), torch.tensor([True, False]), -1)
    tensor([1.])
    """
    if scores.shape[dim] == 0:
        return scores.detach().sum(dim, keepdim=True)
    largest = scores.detach().masked_fill(~kept, -torch.inf).amax(dim, keepdim=True)
    return torch.where(torch.isinf(largest), 0.0, largest)
