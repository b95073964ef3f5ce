"""Heads that are differences of two Gaussians: one positive map cannot detect an edge, two of opposite sign can."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.functional import gaussian_attention, gaussian_weights
from regard.layers import GaussianHeads, flat_tokens, like_input
from regard.observation import observe
from regard.support.checks import check_positive, check_probability


class SignedGaussians(nn.Module):
    r"""Each channel of a head is a signed sum of two Gaussian maps of the head's values.

    .. math:: \mathrm{out} = \mathrm{concat}_h\bigl(a_h \odot A_h V_h + b_h \odot B_h V_h\bigr)\, W_o + b_o

    A and B are maps as in :class:`regard.GaussianAttention`; the weights a and b, one for each channel, may be negative.
    A starts where ``init`` says and with weight 1, B at the query itself and with weight 0: at initialization this is
    Gaussian attention.

    Args:
        dim: width of the input and output.
        heads: number of heads.
        head_dim: width of each head, ``dim / heads`` by default.
        init: where the first map of each head starts, ``"normal"`` or ``"grid"``.
        dropout: drops attention weights in training, as in :class:`regard.GaussianAttention`.

    >>> from regard.models._signed import SignedGaussians
    >>> SignedGaussians(18, heads=9)(torch.randn(2, 8, 5, 18)).shape
    torch.Size([2, 8, 5, 18])
    """

    def __init__(
        self, dim: int, heads: int, *, head_dim: int | None = None, init: Any = "grid", dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_positive("dim", dim)
        check_positive("heads", heads)
        check_probability("dropout", dropout)
        if head_dim is None:
            if dim % heads:
                raise ValueError(f"dim {dim} is not divisible by heads {heads}; pass head_dim")
            head_dim = dim // heads
        check_positive("head_dim", head_dim)
        self.dim, self.heads, self.head_dim, self.dropout = dim, heads, head_dim, dropout
        self.first = GaussianHeads(heads, init=init)
        self.second = GaussianHeads(heads, sharpness=self.first.initial_sharpness)
        nn.init.zeros_(self.second.center)
        self.first_weight = nn.Parameter(torch.ones(heads * head_dim))
        self.second_weight = nn.Parameter(torch.zeros(heads * head_dim))
        self.value = nn.Linear(dim, heads * head_dim)
        self.output = nn.Linear(heads * head_dim, dim)

    def no_weight_decay(self) -> set[str]:
        """Parameters that weight decay should exclude (timm calls a method of this name)."""
        return {"first_weight", "second_weight"}

    def forward(self, x: Float[Tensor, "batch *tokens dim"], grid: Sequence[int] | None = None) -> Tensor:
        """``(batch, rows, columns, dim)``, or ``(batch, tokens, dim)`` with ``grid``, in and out."""
        tokens, grid = flat_tokens(x, grid, 2, self.dim)
        value = self.value(tokens).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        first, second = (self._attend(value, heads, grid) for heads in (self.first, self.second))
        out = self.output(self.first_weight * first + self.second_weight * second)
        return like_input(out, x, grid)

    def _attend(
        self, value: Tensor, heads: GaussianHeads, grid: tuple[int, ...]
    ) -> Float[Tensor, "batch tokens width"]:
        dropout = self.dropout if self.training else 0.0

        def mix(dropout: float = dropout) -> Tensor:
            return gaussian_attention(value, heads.center, heads.sharpness, grid, dropout=dropout)

        mixed = observe(
            heads,
            mix,
            lambda: gaussian_weights(heads.center, heads.sharpness, grid).unsqueeze(0),
            value=value,
            kind="gaussian",
            grid=grid,
            clean=(lambda: mix(0.0)) if dropout else None,
        )
        return mixed.transpose(1, 2).flatten(2)
