"""Pooling: from the tokens of an encoder to one vector. Each layer takes any number of tokens."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.layers._feed_forward import FeedForward
from regard.layers._layer_norm import LayerNorm
from regard.layers._multi_head import MultiHeadAttention
from regard.support.checks import check_broadcastable, check_flag, check_ndim, check_positive, check_width

Keep = Bool[Tensor, "#batch #tokens"]


class ClassTokenPooling(nn.Module):
    r"""A learned token is put before the others and read at the end.

    .. math:: \mathrm{prepend}(x) = (c, x_1, \dots, x_n), \qquad \mathrm{pool}(z) = z_0

    Args:
        dim: width of the tokens; c is the parameter ``token``, small and random at first.

    >>> from regard.layers import ClassTokenPooling
    >>> pool = ClassTokenPooling(8)
    >>> tokens = pool.prepend(torch.randn(2, 5, 8))
    >>> tokens.shape, pool(tokens).shape
    (torch.Size([2, 6, 8]), torch.Size([2, 8]))
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        check_positive("dim", dim)
        self.dim = dim
        self.token = nn.Parameter(torch.empty(dim))
        nn.init.normal_(self.token, std=0.02)

    def prepend(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch one_more dim"]:
        _check_tokens(x, self.dim)
        return torch.cat([self.token.to(x.dtype).expand(x.shape[0], 1, -1), x], 1)

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch dim"]:
        _check_tokens(x, self.dim)
        return x[:, 0]

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class AveragePooling(nn.Module):
    r"""The mean of the tokens that are kept.

    .. math:: \mathrm{pool}(x) = \frac{1}{|\mathrm{keep}|} \sum_{j \in \mathrm{keep}} x_j

    >>> from regard.layers import AveragePooling
    >>> AveragePooling()(torch.tensor([[[1.0], [3.0], [9.0]]]), keep=torch.tensor([[True, True, False]]))
    tensor([[2.]])
    """

    def forward(self, x: Float[Tensor, "batch tokens dim"], *, keep: Keep | None = None) -> Float[Tensor, "batch dim"]:
        """``keep``: True = the token counts. An item without such tokens gives zeros."""
        _check_tokens(x, None, keep)
        if keep is None:
            return x.mean(1)
        kept = keep.expand(x.shape[:2]).unsqueeze(-1)
        # Not a product with the mask, because hidden tokens may be infinite or NaN. In float32 at least: the sum of many
        # tokens, and their number, may be more than half precision holds.
        precise = torch.promote_types(x.dtype, torch.float32)
        total = x.masked_fill(~kept, 0.0).sum(1, dtype=precise)
        return (total / kept.sum(1).clamp(min=1).to(precise)).to(x.dtype)


class AttentionPooling(nn.Module):
    r"""Multi-head attention pooling: a learned query, the probe, attends to the tokens.

    .. math:: y = \mathrm{attention}(p, X), \qquad \mathrm{pool}(X) = y + \mathrm{FeedForward}(\mathrm{norm}(y))

    Args:
        dim: width of the tokens; p is the parameter ``probe``.
        heads: number of heads.
        hidden: width inside the feed-forward network, default ``4 · dim``.
        activation: of the feed-forward network.
        dropout: probability of dropping attention weights and hidden features in training.
        epsilon: ε of the layer norm.

    >>> from regard.layers import AttentionPooling
    >>> AttentionPooling(8, 2)(torch.randn(3, 5, 8)).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden: int | None = None,
        *,
        activation: str = "gelu",
        dropout: float = 0.0,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim, heads, dropout=dropout)
        self.norm = LayerNorm(dim, epsilon=epsilon)
        self.feed_forward = FeedForward(dim, hidden, activation=activation, dropout=dropout)
        self.dim = dim
        self.probe = nn.Parameter(torch.empty(1, dim))
        nn.init.xavier_uniform_(self.probe)

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], *, keep: Keep | None = None, return_weights: bool = False
    ) -> Float[Tensor, "batch dim"] | tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch heads tokens"]]:
        """
        Args:
            x: ``(batch, tokens, dim)``.
            keep: True = may be attended. An item without such tokens gives an output that does not depend on its tokens.
            return_weights: also return where the probe looks, ``(batch, heads, tokens)``.
        """
        check_flag("return_weights", return_weights)
        _check_tokens(x, self.dim, keep)
        probe = self.probe.to(x.dtype).expand(x.shape[0], 1, -1)
        mask = None if keep is None else keep[:, None, None]
        weights = None
        if return_weights:
            pooled, weights = self.attention(probe, x, keep=mask, return_weights=True)
        else:
            pooled = self.attention(probe, x, keep=mask)
        pooled = pooled[:, 0]
        pooled = pooled + self.feed_forward(self.norm(pooled))
        return pooled if weights is None else (pooled, weights[:, :, 0])

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


def _check_tokens(x: Tensor, dim: int | None, keep: Tensor | None = None) -> None:
    check_ndim("x", x, "batch tokens dim")
    if dim is not None:
        check_width("x", x, dim)
    if not torch.compiler.is_compiling() and x.shape[1] == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}: there must be at least one token")
    if keep is not None:
        check_broadcastable("keep", keep, tuple(x.shape[:2]), "(batch, tokens)", dtype=torch.bool)
