"""Attention by position whose score is a sum over the axes of a grid, as an explicit matrix of queries by keys."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.reference._grid import all_pairs
from regard.reference._softargmax import softargmax

# From offsets key − query of one axis to scores (heads, *offsets); −∞ hides a key.
Score = Callable[[Float[Tensor, "..."]], Float[Tensor, "heads ..."]]


def separable_attention(
    value: Float[Tensor, "batch heads tokens width"], scores: Sequence[Score], grid: Sequence[int]
) -> tuple[Float[Tensor, "batch heads tokens width"], Float[Tensor, "heads tokens tokens"]]:
    r"""One function of the offset per axis; their sum is the score. Returns the output and the weights A.

    .. math:: \mathrm{out} = A V, \qquad A_{qk} = \mathrm{softmax}_k\Bigl(\sum_a f_a(k_a - q_a)\Bigr)

    >>> value = torch.tensor([8.0, 0.0, 0.0]).reshape(1, 1, 3, 1)
    >>> decay = lambda offset: -torch.log(torch.tensor(2.0)) * offset.abs()[None]
    >>> separable_attention(value, [decay], (3,))[1]
    tensor([[[0.5714, 0.2857, 0.1429],
             [0.2500, 0.5000, 0.2500],
             [0.1429, 0.2857, 0.5714]]])
    """
    places = all_pairs([torch.arange(size).to(value) for size in grid])  # (tokens, axes)
    offsets = places[None, :, :] - places[:, None, :]  # key − query, (queries, keys, axes)
    total = sum(score(offsets[..., axis]) for axis, score in enumerate(scores))
    weights = softargmax(torch.as_tensor(total))
    return weights @ value, weights
