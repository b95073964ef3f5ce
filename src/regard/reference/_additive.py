"""Additive attention: a small network, instead of a dot product, scores how well query and key match."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.reference._linear import linear
from regard.reference._softargmax import softargmax
from regard.support.mask_checks import check_mask


def additive_attention(
    query: Float[Tensor, "*batch queries query_dim"],
    key: Float[Tensor, "*batch keys key_dim"],
    value: Float[Tensor, "*batch keys value_dim"],
    w_query: Float[Tensor, "width query_dim"],
    w_key: Float[Tensor, "width key_dim"],
    w_score: Float[Tensor, "width"],
    *,
    b_hidden: Float[Tensor, "width"] | None = None,
    beta: float = 1.0,
    keep: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "*batch queries value_dim"], Float[Tensor, "*batch queries keys"]]:
    r"""The attention of recurrent encoder–decoders. Returns the output and the weights A.

    .. math:: \mathrm{out} = A V, \qquad A = \mathrm{softargmax}_\beta(S), \qquad
        S_{ij} = w^\top \tanh(W_q q_i + W_k k_j + b)

    Args:
        query: decoder states. key, value: encoder states, most often the same; any leading axes.
        w_query, w_key: in the layout of ``nn.Linear``; queries and keys may differ in width.
        w_score, b_hidden: w and b.
        beta: β in [0, ∞].
        keep: True = attend. ``(queries, keys)``, or with as many axes as the scores, each of the same size or 1.

    >>> query, key = torch.zeros(1, 1), torch.tensor([[-9.0], [9.0]])
    >>> output, weights = additive_attention(query, key, key, torch.ones(1, 1), torch.ones(1, 1), torch.ones(1))
    >>> weights  # tanh saturates at ∓1, so the scores are 2 apart
    tensor([[0.1192, 0.8808]])
    """
    hidden = linear(query, w_query, b_hidden).unsqueeze(-2) + linear(key, w_key).unsqueeze(-3)
    scores = torch.tanh(hidden) @ w_score  # hidden is (*batch, queries, keys, width)
    if keep is not None:
        check_mask("keep", keep, scores.shape, dtype=torch.bool)
        keep = keep.expand(scores.shape)
    weights = softargmax(scores, beta, keep=keep)
    return weights @ value, weights
