"""Multi-head attention by content and position together, on torch's fused kernel."""

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.functional import placed_attention
from regard.layers._gaussian_heads import Covariance, GaussianHeads, Init
from regard.layers._multi_head import MultiHeadAttention
from regard.support.checks import (
    check_dtype,
    check_flag,
    check_grid,
    check_ndim,
    check_positive,
    check_probability,
    check_width,
)


class PlacedAttention(nn.Module):
    r"""Self-attention that looks for content near a learned offset.

    .. math:: s_{qk} = \beta\, q^\top k - (\delta - \Delta)^\top S\, (\delta - \Delta), \qquad \delta = k_{pos} - q_{pos}

    Every head has a center Δ and a sharpness S besides its projections. The fused kernel of content attention computes the
    score (:func:`regard.functional.placed_attention`), in memory linear in tokens, with class tokens, key masks and
    causality.

    Args:
        dim: width of input and output.
        heads: the number of heads, which divides ``dim``.
        axes, covariance, init, sharpness: see :class:`GaussianHeads`; heads start soft, at a sharpness of 0.05.
        dropout: on the attention weights, in training.
        bias: whether the linear layers have a bias.

    >>> layer = PlacedAttention(16, heads=4)
    >>> layer(torch.randn(2, 1 + 20, 16), grid=(4, 5), prefix=1).shape          # a class token and a 4 × 5 grid
    torch.Size([2, 21, 16])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        axes: int = 2,
        covariance: Covariance = "full",
        init: Init = "normal",
        sharpness: float = 0.05,
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
        self.dim, self.heads, self.axes, self.head_dim, self.dropout = dim, heads, axes, dim // heads, dropout
        self.positions = GaussianHeads(heads, axes=axes, covariance=covariance, init=init, sharpness=sharpness)
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)

    @property
    def center(self) -> Float[Tensor, "heads axes"]:
        """Where each head looks from the query: key − query, in (row, column) order."""
        return self.positions.center

    @property
    def sharpness(self) -> Tensor:
        return self.positions.sharpness

    @classmethod
    def from_multi_head(
        cls, layer: MultiHeadAttention, *, axes: int = 2, covariance: Covariance = "full", sharpness: float = 1e-3
    ) -> "PlacedAttention":
        """The same content attention, with soft heads centered at the query itself: by default position lowers a score by
        0.001 ‖δ‖², which is 0.1 at a distance of 10 tokens and 1 at 32. Sharpness must be positive, so that it can be learned."""
        if not isinstance(layer, MultiHeadAttention):
            raise TypeError(
                "layer must be a regard.MultiHeadAttention (from_torch converts an nn.MultiheadAttention), got a "
                f"{type(layer).__name__}"
            )
        layer.check_known()
        plain = layer.packed and not layer.slice_heads and layer.key_value_heads == layer.heads
        if (
            not plain
            or layer.out_dim != layer.dim
            or layer.head_dim * layer.heads != layer.dim
            or layer.beta is not None
        ):
            raise ValueError(
                "layer must be self-attention with as many key/value heads as heads, heads · head_dim = dim, the default "
                "beta and no sliced heads"
            )
        made = cls(
            layer.dim, layer.heads, axes=axes, covariance=covariance, sharpness=sharpness, dropout=layer.dropout,
            bias=layer.qkv.bias is not None,
        ).to(layer.output.weight)  # fmt: skip
        if (layer.output.bias is None) != (made.output.bias is None):
            raise ValueError("layer must have a bias in both its linear layers, or in neither")
        nn.init.zeros_(made.positions.center)
        _copy_projections(layer, made)
        return made.train(layer.training)

    def to_multi_head(self) -> MultiHeadAttention:
        """The content attention alone, without position."""
        made = MultiHeadAttention(self.dim, self.heads, bias=self.qkv.bias is not None, dropout=self.dropout)
        _copy_projections(self, made.to(self.output.weight))
        return made.train(self.training)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        grid: Sequence[int],
        *,
        prefix: int = 0,
        keep: Bool[Tensor, "batch tokens"] | None = None,
        causal: bool = False,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """``(batch, prefix + tokens of the grid, dim)`` in and out; optionally also the map."""
        check_flag("causal", causal)
        check_flag("return_weights", return_weights)
        check_ndim("x", x, "batch tokens dim")
        check_width("x", x, self.dim)
        check_dtype("x", x, self.output.weight)
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        attended = placed_attention(
            query, key, value, self.center, self.sharpness, check_grid(grid), prefix=prefix, keep=keep, causal=causal,
            dropout=self.dropout if self.training else 0.0, return_weights=return_weights,
        )  # fmt: skip
        mixed, weights = attended if isinstance(attended, tuple) else (attended, None)
        out = self.output(mixed.transpose(1, 2).flatten(2))
        return out if weights is None else (out, weights)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.heads}, axes={self.axes}, dropout={self.dropout}"


def _copy_projections(
    source: MultiHeadAttention | PlacedAttention, target: MultiHeadAttention | PlacedAttention
) -> None:
    """Copy values, and whether they are trained. ``target`` already has the dtype: a copy to another would be rounded."""
    for own, given in ((target.qkv, source.qkv), (target.output, source.output)):
        for parameter, value in zip(own.parameters(), given.parameters(), strict=True):
            parameter.data.copy_(value)
            parameter.requires_grad_(value.requires_grad)
