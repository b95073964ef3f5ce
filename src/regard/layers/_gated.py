"""Heads with a gate between content and position."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.functional import attention, gaussian_attention, gaussian_weights
from regard.layers._gaussian_heads import Covariance, GaussianHeads, Init
from regard.layers._grids import flat_tokens, like_input
from regard.observation import observe, unobserved
from regard.support.checks import check_dtype, check_flag, check_positive, check_probability, describe


class GatedPositionalAttention(nn.Module):
    r"""Each head learns how much to attend by content and how much by position.

    .. math:: A_h = (1 - g_h)\,\mathrm{softmax}(\beta\, Q_h K_h^\top) + g_h\, G_h, \qquad g_h = \sigma(\lambda_h)

    with :math:`G_h` the map of a Gaussian head. The layer adds the two outputs, not the maps: content runs through
    the fused kernel and position through :func:`regard.gaussian_attention`, and neither map is formed.

    Args:
        dim: width of input and output.
        heads: the number of heads.
        axes, covariance, init, sharpness: see :class:`GaussianHeads`.
        gate: the initial λ; 1 starts closer to position (g = 0.73).
        dropout: probability of dropping content weights in training.
        bias: whether the linear layers have a bias.

    >>> layer = GatedPositionalAttention(18, heads=9, init="grid")
    >>> out, weights = layer(torch.randn(2, 4, 5, 18), return_weights=True)
    >>> out.shape, weights.shape
    (torch.Size([2, 4, 5, 18]), torch.Size([2, 9, 20, 20]))
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        axes: int = 2,
        covariance: Covariance = "isotropic",
        init: Init = "grid",
        sharpness: float | None = None,
        gate: float = 1.0,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        check_flag("bias", bias)
        super().__init__()
        check_positive("dim", dim)
        check_positive("heads", heads)
        check_probability("dropout", dropout)
        if dim % heads:
            raise ValueError(f"dim {dim} is not divisible by heads {heads}")
        if isinstance(gate, bool) or not isinstance(gate, int | float) or not math.isfinite(gate):
            raise TypeError(f"gate must be a finite number, got {describe(gate)}")
        self.dim, self.heads, self.axes, self.head_dim, self.dropout = dim, heads, axes, dim // heads, dropout
        self.positions = GaussianHeads(heads, axes=axes, covariance=covariance, init=init, sharpness=sharpness)
        self.gate = nn.Parameter(torch.full((heads,), float(gate)))
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)

    @property
    def center(self) -> Float[Tensor, "heads axes"]:
        return self.positions.center

    @property
    def sharpness(self) -> Tensor:
        return self.positions.sharpness

    def forward(
        self, x: Float[Tensor, "batch *tokens dim"], grid: Sequence[int] | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """``(batch, *grid, dim)``, or ``(batch, tokens, dim)`` with ``grid``; optionally also the gated map."""
        check_flag("return_weights", return_weights)
        tokens, grid = flat_tokens(x, grid, self.axes, self.dim)
        check_dtype("x", x, self.output.weight)
        query, key, value = self.qkv(tokens).unflatten(-1, (3, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        gate = self.gate.sigmoid().to(value.dtype)[:, None, None]
        dropout = self.dropout if self.training else 0.0

        def mix(dropout: float = dropout) -> Tensor:
            content = attention(query, key, value, dropout=dropout)
            position = gaussian_attention(value, self.center, self.sharpness, grid)
            return (1 - gate) * content + gate * position

        def weights() -> Tensor:
            by_content = attention(query, key, value, return_weights=True)[1]
            return (1 - gate) * by_content + gate * gaussian_weights(self.center, self.sharpness, grid).to(gate.dtype)

        found = unobserved(weights) if return_weights else None
        clean = (lambda: mix(0.0)) if dropout else None
        known = weights if found is None else lambda: found
        mixed = observe(self, mix, known, value=value, kind="gated", grid=grid, clean=clean)
        out = like_input(self.output(mixed.transpose(1, 2).flatten(2)), x, grid)
        return out if found is None else (out, found)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.heads}, dropout={self.dropout}"
