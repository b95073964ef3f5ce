"""Self-attention of three tokens, small enough to follow by hand."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.reference._dot_product_attention import attention


class WorkedExample(NamedTuple):
    """What goes in and what comes out of :func:`worked_example`, in float64."""

    hidden: Tensor  # (3, 2): h₁, h₂, h₃ as rows
    w_query: Tensor  # (2, 2), in the layout of nn.Linear, as all three
    w_key: Tensor
    w_value: Tensor
    scores: Tensor  # (3,): of query 2 with keys 1, 2, 3
    soft: Tensor  # (2,): the output at token 2 with β = 1
    hard: Tensor  # (2,): the output at token 2 with β = ∞


def worked_example() -> WorkedExample:
    r"""Token 2 of three attends to them all, softly and hard.

    .. math:: q_i = W_q h_i, \quad k_i = W_k h_i, \quad v_i = W_v h_i, \qquad
        h'_2 = \sum_j \mathrm{softargmax}_\beta(q_2 \cdot k_1, q_2 \cdot k_2, q_2 \cdot k_3)_j\, v_j

    The numbers are those of question 2 of discussion 8 of EECS 182 (spring 2023).

    >>> example = worked_example()
    >>> example.scores.tolist(), example.hard.tolist()
    ([1054.0, 852.0, -396.0], [23.0, 46.0])
    """
    hidden = torch.tensor([[5, 1], [4, 3], [-2, 6]], dtype=torch.float64)
    w_query = torch.tensor([[1, 0], [2, 9]], dtype=torch.float64)
    w_key = torch.tensor([[0, 1], [6, 0]], dtype=torch.float64)
    w_value = torch.tensor([[4, 3], [9, 1]], dtype=torch.float64)
    query, key, value = hidden @ w_query.mT, hidden @ w_key.mT, hidden @ w_value.mT
    soft, _ = attention(query, key, value, beta=1.0)
    hard, _ = attention(query, key, value, beta=torch.inf)
    return WorkedExample(hidden, w_query, w_key, w_value, (query @ key.mT)[1], soft[1], hard[1])
