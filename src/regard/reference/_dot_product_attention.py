"""Attention: an average of values, weighted by how well query and key match."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.reference._softargmax import beta_like, largest_kept, softargmax
from regard.support.mask_checks import check_mask


def attention(
    query: Float[Tensor, "*batch queries d"],
    key: Float[Tensor, "*batch keys d"],
    value: Float[Tensor, "*batch keys dv"],
    *,
    beta: float | Tensor | None = None,
    keep: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
) -> tuple[Float[Tensor, "*batch queries dv"], Float[Tensor, "*batch queries keys"]]:
    r"""All queries at once, in matrix form. Returns the output and the weights A.

    .. math:: \mathrm{out} = A V, \qquad
        A_{ij} = \frac{e^{\beta\, q_i \cdot k_j + b_{ij}}}{\sum_{l \in \mathrm{keep}_i}
        e^{\beta\, q_i \cdot k_l + b_{il}}}

    Args:
        query, key, value: Q, K, V; any leading axes, the same for all three.
        beta: β in [0, ∞], default 1/√d. At ∞ only the keys with the best score remain, and ties are weighted by
            softmax(bias), or evenly without a bias. A tensor broadcasts against ``(*batch, queries, 1)``.
        keep: True = attend. ``(queries, keys)``, or with as many axes as the scores, each of the same size or 1.
        bias: b, same shapes as ``keep``; −∞ hides a key.
        causal: query i sees key j where ``j ≤ i + keys − queries``.

    A query with nothing to attend to gives zeros.

    >>> query, key = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 9.0], [math.log(3), 0.0]])
    >>> output, weights = attention(query, key, torch.tensor([[0.0], [1.0]]), beta=1.0)
    >>> output, weights
    (tensor([[0.7500]]), tensor([[0.2500, 0.7500]]))
    """
    scores = query @ key.mT
    beta = query.shape[-1] ** -0.5 if beta is None else beta
    beta = beta_like(scores, beta, dim=-1)
    bias = torch.zeros_like(scores) if bias is None else bias
    check_mask("bias", bias, scores.shape)
    kept = bias.expand(scores.shape) > -torch.inf
    if keep is not None:
        check_mask("keep", keep, scores.shape, dtype=torch.bool)
        kept = kept & keep
    if causal:
        kept = kept & causal_keep(*scores.shape[-2:]).to(kept.device)

    # β = ∞: only the best keys remain, and the bias decides between them.
    hard = torch.isinf(beta)
    kept = kept & (~hard | (scores.detach() == largest_kept(scores, kept, -1)))
    logits = torch.where(hard, 0.0, beta) * scores + torch.where(kept, bias, 0.0)
    weights = softargmax(logits, keep=kept)
    return weights @ value, weights


def attention_for_query(
    query_vector: Float[Tensor, "d"],
    key: Float[Tensor, "keys d"],
    value: Float[Tensor, "keys dv"],
    *,
    beta: float | None = None,
) -> Float[Tensor, "dv"]:
    r"""One query, one key at a time: a row of :func:`attention`.

    .. math:: h = \sum_j a_j v_j, \qquad a = \mathrm{softargmax}_\beta(q \cdot k_1, \dots, q \cdot k_m)

    >>> attention_for_query(torch.tensor([1.0]), torch.tensor([[2.0], [3.0]]), torch.eye(2), beta=math.inf)
    tensor([0., 1.])
    """
    beta = len(query_vector) ** -0.5 if beta is None else beta
    output = torch.zeros_like(value[:0].sum(0))
    if len(key):
        scores = torch.stack([torch.dot(query_vector, k) for k in key])
        for weight, v in zip(softargmax(scores, beta), value, strict=True):
            output = output + weight * v
    return output


def causal_keep(queries: int, keys: int) -> Bool[Tensor, "queries keys"]:
    """True where query i may see key j: ``j ≤ i + keys − queries``, so that the last query sees every key.

    >>> causal_keep(2, 3)
    tensor([[ True,  True, False],
            [ True,  True,  True]])
    """
    query, key = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    return key <= query + keys - queries
