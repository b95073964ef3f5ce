"""Gaussian heads as an attention layer of timm's vision transformers, by name."""

import math
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.layers import GaussianAttention


class TimmGaussianAttention(nn.Module):
    """:class:`regard.GaussianAttention` with the constructor and the call of timm's ``Attention``.

    Heads start on a grid of shifts if their number is a square (4, 9, 16), otherwise at random. Tokens are assumed to form a
    square grid unless ``grid`` is set. The model must have no class token and no registers (``class_token=False,
    reg_tokens=0, global_pool="avg"``), because they have no place on the grid.

    Args:
        dim: width of the tokens.
        num_heads: the number of heads.
        attn_drop: dropout of the attention weights, in training.
        unused: timm's other arguments, which concern queries and keys.

    >>> layer = TimmGaussianAttention(12, num_heads=4)
    >>> layer(torch.randn(2, 49, 12)).shape
    torch.Size([2, 49, 12])
    """

    grid: tuple[int, int] | None = None

    def __init__(self, dim: int, num_heads: int = 9, attn_drop: float = 0.0, **unused: Any) -> None:
        super().__init__()
        init: Any = "grid" if math.isqrt(num_heads) ** 2 == num_heads else "normal"
        self.heads = GaussianAttention(dim, num_heads, init=init, dropout=attn_drop)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        attn_mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        if attn_mask is not None or is_causal:
            raise ValueError("attn_mask and is_causal must be left out: Gaussian heads on a full grid take no mask")
        side = math.isqrt(x.shape[1])
        grid = self.grid or (side, side)
        if math.prod(grid) != x.shape[1]:
            raise ValueError(
                f"x has shape {tuple(x.shape)}, but the grid is {grid}: build the model with class_token=False, reg_tokens=0, "
                f"global_pool='avg', and set grid on every such layer where the image is not square"
            )
        return self.heads(x, grid=grid)  # type: ignore[no-any-return]


def register_in_timm(name: str = "gaussian") -> None:
    """Make Gaussian heads known to timm, as ``timm.create_model(…, attn_layer="gaussian")``.

    >>> regard.models.register_in_timm()  # doctest: +SKIP
    >>> options = {"num_heads": 4, "class_token": False, "global_pool": "avg"}
    >>> timm.create_model("vit_tiny_patch16_224", attn_layer="gaussian", **options)  # doctest: +SKIP
    """
    from timm.models import vision_transformer

    vision_transformer.ATTN_LAYERS[name] = TimmGaussianAttention
