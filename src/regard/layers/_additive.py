"""Additive attention: a small network computes the score, as in recurrent encoder–decoders."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.functional import softargmax
from regard.support.checks import check_dtype, check_flag, check_ndim, check_positive, check_width
from regard.support.long_rows import softmax
from regard.support.mask_checks import check_mask


class AdditiveAttention(nn.Module):
    r"""The states of a decoder attend to the states of an encoder.

    .. math:: \mathrm{out}_i = \sum_j a_{ij}\, v_j, \qquad a_{i\cdot} = \mathrm{softmax}_j(e_{ij}), \qquad
        e_{ij} = w^\top \tanh(W_q\, q_i + W_k\, k_j + b)

    Args:
        query_dim, key_dim: widths of the queries (decoder states) and of the keys (encoder states).
        hidden: width of the hidden layer, default ``key_dim``.
        bias: whether there is a bias b.

    Shapes: queries ``(batch, queries, query_dim)``, keys ``(batch, keys, key_dim)``, values ``(batch, keys, width)``.
    The hidden layer holds ``batch · queries · keys · hidden`` numbers at once.

    >>> from regard.layers import AdditiveAttention
    >>> layer = AdditiveAttention(4, 6)
    >>> out, weights = layer(torch.randn(2, 1, 4), torch.randn(2, 5, 6), return_weights=True)
    >>> out.shape, weights.shape
    (torch.Size([2, 1, 6]), torch.Size([2, 1, 5]))
    """

    def __init__(self, query_dim: int, key_dim: int, hidden: int | None = None, *, bias: bool = True) -> None:
        check_flag("bias", bias)
        super().__init__()
        hidden = key_dim if hidden is None else hidden
        for name, size in (("query_dim", query_dim), ("key_dim", key_dim), ("hidden", hidden)):
            check_positive(name, size)
        self.query_dim, self.key_dim, self.hidden = query_dim, key_dim, hidden
        self.query = nn.Linear(query_dim, hidden, bias=bias)
        self.key = nn.Linear(key_dim, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def project_keys(self, key: Float[Tensor, "batch keys key_dim"]) -> Float[Tensor, "batch keys hidden"]:
        """W_k k. A decoder computes it once and passes it at every step."""
        check_ndim("key", key, "batch keys key_dim")
        check_width("key", key, self.key_dim)
        return self.key(key)

    def forward(
        self,
        query: Float[Tensor, "batch queries query_dim"],
        key: Float[Tensor, "batch keys key_dim"],
        value: Float[Tensor, "batch keys width"] | None = None,
        *,
        keep: Bool[Tensor, "..."] | None = None,
        projected_key: Float[Tensor, "batch keys hidden"] | None = None,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "batch queries out"]
        | tuple[Float[Tensor, "batch queries out"], Float[Tensor, "batch queries keys"]]
    ):
        """
        Args:
            query, key: see above.
            value: what is averaged, default ``key``.
            keep: True = attend; ``(queries, keys)``, or ``(batch, queries, keys)`` with 1 where an axis is shared, as in
                ``keep[:, None, :]`` for padded items. Two axes are never (batch, keys), also if their sizes fit.
                A query with nothing to attend to gives zeros, and finite gradients.
            projected_key: ``project_keys(key)``, if it is already computed.
            return_weights: also return a, ``(batch, queries, keys)``.
        """
        check_flag("return_weights", return_weights)
        value = key if value is None else value
        self._check(query, key, value, keep, projected_key)
        if keep is not None:
            # Keys that no query sees have no effect, even if they are infinite or NaN, which times a weight of 0 is NaN.
            hidden = ~(keep if keep.ndim == 3 else keep[None]).any(1).unsqueeze(-1)
            key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
            projected_key = None if projected_key is None else projected_key.masked_fill(hidden, 0.0)
        keys = self.key(key) if projected_key is None else projected_key
        scores = self.score(torch.tanh(self.query(query)[:, :, None] + keys[:, None])).squeeze(-1)
        weights = softmax(scores) if keep is None else softargmax(scores, keep=keep.expand(scores.shape))
        weights = weights.to(value.dtype)
        out = weights @ value
        return (out, weights) if return_weights else out

    def _check(
        self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, projected_key: Tensor | None
    ) -> None:
        check_ndim("query", query, "batch queries query_dim")
        check_ndim("key", key, "batch keys key_dim")
        for name, given, width in (
            ("query", query, self.query_dim),
            ("key", key, self.key_dim),
            ("value", value, None),
            ("projected_key", projected_key, self.hidden),
        ):
            if given is None:
                continue
            check_ndim(name, given, "batch tokens width")
            check_dtype(name, given, self.score.weight)
            if width is not None:
                check_width(name, given, width)
            if given.shape[0] != query.shape[0]:
                raise ValueError(f"{name} has batch size {given.shape[0]} but query has {query.shape[0]}")
            if name != "query" and given.shape[1] != key.shape[1]:
                raise ValueError(f"{name} has {given.shape[1]} tokens but key has {key.shape[1]}")
        if keep is not None:
            check_mask("keep", keep, (*query.shape[:2], key.shape[1]), dtype=torch.bool)

    def extra_repr(self) -> str:
        return f"query_dim={self.query_dim}, key_dim={self.key_dim}, hidden={self.hidden}"
