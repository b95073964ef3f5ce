"""The BERT-like image model: small squares of pixels as tokens, and a choice of attention between them."""

from collections.abc import Mapping, Sequence
from typing import Any

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers import AbsolutePositionalEmbedding, AveragePooling, EncoderBlock, LayerNorm
from regard.models._image_attention import KINDS, AttentionSettings
from regard.models._merging import TokenMerging, checked_merge, grids_of_blocks
from regard.models._pretrained import Pretrained
from regard.observation import on_grid
from regard.support.checks import (
    check_choice,
    check_count,
    check_depth,
    check_dtype,
    check_flag,
    check_positive,
    check_probability,
    check_sides,
    static_sizes,
)
from regard.support.image_checks import check_images

Images = Float[Tensor, "batch channels height width"]
Tokens = Float[Tensor, "batch tokens dim"]
Levels = list[Float[Tensor, "batch _ _"]]  # tokens after each block: fewer and wider where they are merged


class ImageEncoder(Pretrained):
    r"""An image classifier: patches as tokens, blocks of attention and feed-forward networks, and average pooling.

    .. math:: z_{r,c} = W (x_{\cdot,\, rp \dots rp+p-1,\, cp \dots cp+p-1}) + b, \qquad z \leftarrow \text{block}_l(z), \qquad
        y = W' \operatorname{mean}(z) + b'

    ===================== ============================================================================================
    ``attention``         what its heads look at
    ===================== ============================================================================================
    gaussian              position alone: one sharpness per head (:class:`GaussianAttention`); ``gaussian-diagonal``:
                          one per axis, ``gaussian-full``: a matrix
    signed                position alone: two Gaussian maps per head, added with a weight of either sign for each channel
    relative              position alone: learned vectors of the offset (:class:`RelativeAttention`)
    relative-content      those vectors, and content
    gated                 a gate between a Gaussian head and content (:class:`GatedPositionalAttention`)
    content               content alone (:class:`MultiHeadAttention`); learned absolute positions are added to the tokens
    depthwise             no attention, but a 3×3 convolution of each channel, as a baseline
    ===================== ============================================================================================

    Args:
        image_size: height and width of the images, or one number for both. Gaussian and gated heads also take other
            sizes, relative heads smaller ones; learned positions are interpolated.
        patch_size: p, the side of a token's square.
        num_classes: number of classes; 0 leaves the last layer out.
        channels: channels of the images.
        dim: width of the tokens.
        depth: number of blocks.
        heads: attention heads of each block.
        hidden: width inside the feed-forward networks, default ``4 · dim``.
        attention: a kind from the table, or :class:`AttentionSettings`.
        norm: ``"pre"`` (with one more norm at the end) or ``"post"``.
        merge: numbers of the blocks before which each square of 2×2 tokens becomes one token of twice the width
            (:class:`TokenMerging`). From there on ``dim``, ``hidden`` and ``head_dim`` are doubled.
        dropout: probability of dropping, in training, attention weights, hidden features and sub-layer outputs.

    ``grid`` holds the rows and columns of tokens, ``grids`` those that each block sees; ``prefix_tokens`` is 0.

    Shapes: images ``(batch, channels, height, width)`` to ``(batch, num_classes)``.

    >>> from regard.models import ImageEncoder
    >>> model = ImageEncoder(32, 2, 10, dim=18, depth=2, heads=9)
    >>> model(torch.randn(2, 3, 32, 32)).shape, model.grid
    (torch.Size([2, 10]), (16, 16))
    """

    prefix_tokens = 0

    def __init__(
        self,
        image_size: int | Sequence[int],
        patch_size: int,
        num_classes: int,
        *,
        channels: int = 3,
        dim: int = 384,
        depth: int = 6,
        heads: int = 9,
        hidden: int | None = None,
        attention: str | AttentionSettings | Mapping[str, Any] = "gaussian",
        norm: str = "pre",
        merge: Sequence[int] = (),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"channels": channels, "patch_size": patch_size, "dim": dim, "heads": heads}
        for name, size in sizes.items():
            check_positive(name, size)
        check_depth("depth", depth)
        check_count("num_classes", num_classes)
        check_probability("dropout", dropout)
        settings = AttentionSettings.of(attention)
        self.channels, self.patch_size, self.dim, self.attention_kind = channels, patch_size, dim, settings.kind
        self.merge = checked_merge(merge, depth)
        self.grid = self.grid_for(image_size)
        self.grids = grids_of_blocks(self.grid, depth, self.merge)
        self.embedding = nn.Linear(channels * patch_size**2, dim)
        self.positions: AbsolutePositionalEmbedding | None = None
        if settings.kind == "content":
            self.positions = AbsolutePositionalEmbedding(dim, self.grid, interpolate=True)
        self.dropout = nn.Dropout(dropout)
        self.merging = nn.ModuleDict()
        blocks = []
        for number, grid in enumerate(self.grids):
            if number in self.merge:
                self.merging[str(number)] = TokenMerging(dim)
                dim *= 2
                hidden = None if hidden is None else 2 * hidden
                settings = settings.twice_as_wide()
            layer = settings.build(dim, heads, grid, dropout)
            blocks.append(EncoderBlock(dim, hidden=hidden, dropout=dropout, norm=norm, attention=layer))
        self.blocks = nn.ModuleList(blocks)
        self.norm = LayerNorm(dim) if norm == "pre" else nn.Identity()
        self.pooling = AveragePooling()
        self.head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()

    def grid_for(self, image_size: int | Sequence[int]) -> tuple[int, int]:
        """Rows and columns of tokens in an image of this size."""
        sides = check_sides("image_size", image_size)
        step = self.patch_size * 2 ** len(self.merge)
        for name, size in zip(("height", "width"), sides, strict=True):
            if size % step:
                merged = f", tokens are merged {len(self.merge)} times" if self.merge else ""
                raise ValueError(
                    f"the image's {name} (image_size) is {size}, but must be a multiple of {step} (patch_size is "
                    f"{self.patch_size}{merged})"
                )
        return sides[0] // self.patch_size, sides[1] // self.patch_size

    def forward_intermediates(self, images: Images) -> tuple[Tokens, Levels]:
        """The output of :meth:`forward_features`, and the tokens after every block, without the last norm."""
        check_images(images, self.channels)
        check_dtype("images", images, self.embedding.weight)
        grid = self.grid_for(static_sizes(images)[2:])
        x = self.embedding(space_to_depth(images, self.patch_size))
        if self.positions is not None:
            x = self.positions(x, grid=grid)
        x = self.dropout(x)
        intermediates = []
        for number, own_grid in enumerate(grids_of_blocks(grid, len(self.blocks), self.merge)):
            if number in self.merge:
                x = self.merging[str(number)](x, grid)
                grid = own_grid
            options = {} if self.positions is not None else {"grid": grid}
            x = on_grid(grid, self.blocks[number], x, **options)
            intermediates.append(x)
        return self.norm(x), intermediates

    def forward_features(self, images: Images) -> Tokens:
        """``(batch, tokens, dim)``, row-major."""
        return self.forward_intermediates(images)[0]

    def pool(self, tokens: Tokens) -> Float[Tensor, "batch dim"]:
        """One vector for each image: the average."""
        return self.pooling(tokens)

    def forward_head(self, tokens: Tokens) -> Float[Tensor, "batch num_classes"]:
        """From the output of ``forward_features`` to the logits."""
        return self.head(self.pool(tokens))

    def forward(
        self, images: Images, *, return_intermediates: bool = False
    ) -> Float[Tensor, "batch num_classes"] | tuple[Float[Tensor, "batch num_classes"], Levels]:
        """
        Args:
            images: ``(batch, channels, height, width)``.
            return_intermediates: also return the tokens after each block.
        """
        check_flag("return_intermediates", return_intermediates)
        tokens, intermediates = self.forward_intermediates(images)
        logits = self.forward_head(tokens)
        return (logits, intermediates) if return_intermediates else logits


def paper_image_encoder(
    num_classes: int = 10, *, attention: str = "gaussian", image_size: int = 32, dropout: float = 0.1
) -> ImageEncoder:
    """The 2020 paper's model for CIFAR-10: 6 post-norm blocks of width 400, 9 heads as wide as the token, feed-forward
    512, squares of 2×2 pixels, and a second output layer in every block.

    ========================= =================================== ============
    parameters                                                      of each
    ========================= =================================== ============
    6 × centers, sharpness    9 · 2 + 9                                    27
    6 × output of the heads   9 · 400 · 400 + 400                   1,440,400
    6 × second output         400 · 400 + 400                         160,400
    6 × feed-forward          2 · 400 · 512 + 512 + 400               410,512
    6 × two layer norms       2 · 800                                   1,600
    tokens                    2 · 2 · 3 · 400 + 400                     5,200
    classes                   400 · 10 + 10                             4,010
    ========================= =================================== ============

    Args:
        num_classes: number of classes.
        attention: another kind, see :class:`ImageEncoder`. Heads that look at content split the token between them;
            9 does not divide 400, so there are 8.
        image_size: side of the images.
        dropout: probability of dropping in training.

    >>> from regard.models import paper_image_encoder
    >>> sum(parameter.numel() for parameter in paper_image_encoder().parameters())
    12086844
    """
    check_choice("attention", attention, KINDS)
    by_position = attention.startswith("gaussian") or attention == "relative"
    return ImageEncoder(
        image_size,
        2,
        num_classes,
        dim=400,
        depth=6,
        heads=9 if by_position else 8,
        hidden=512,
        attention=AttentionSettings(attention, full_width=by_position, second_output=True),
        norm="post",
        dropout=dropout,
    )


def space_to_depth(images: Images, side: int) -> Float[Tensor, "batch tokens features"]:
    """Each square of pixels as one vector, in the order (channel, row, column); squares row-major.

    >>> space_to_depth(torch.arange(16.0).reshape(1, 1, 4, 4), 2)[0, 1]
    tensor([2., 3., 6., 7.])
    """
    return rearrange(images, "b c (r p) (q s) -> b (r q) (c p s)", p=side, s=side)
