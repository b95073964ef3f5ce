"""The BERT-like image model: small squares of pixels as tokens, and attention of any kind among them."""

from collections.abc import Sequence
from typing import Any

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers import (
    AbsolutePositionalEmbedding,
    AveragePooling,
    EncoderBlock,
    GatedPositionalAttention,
    GaussianAttention,
    LayerNorm,
    MultiHeadAttention,
    RelativeAttention,
)
from regard.models._depthwise import DepthwiseMixing
from regard.models._merging import TokenMerging, checked_merge, grids_of_blocks
from regard.models._pretrained import Pretrained
from regard.support.checks import check_choice, check_dtype, check_ndim, check_positive, check_probability, describe

ATTENTIONS = ("gaussian", "gaussian-diagonal", "gaussian-full", "relative", "relative-content", "gated", "content")
KINDS = (*ATTENTIONS, "depthwise")
Images = Float[Tensor, "batch channels height width"]
Tokens = Float[Tensor, "batch tokens dim"]
Levels = list[Float[Tensor, "batch _ _"]]  # tokens after each block: fewer and wider where they are merged


class ImageEncoder(Pretrained):
    r"""Tokens are squares of pixels; blocks of attention and feed-forward networks; the average tells the class.

    .. math:: z_{r,c} = W (x_{\cdot,\, rp \dots rp+p-1,\, cp \dots cp+p-1}) + b, \qquad z \leftarrow \text{block}_l(z), \qquad
        y = W' \operatorname{mean}(z) + b'

    ===================== ============================================================================================
    ``attention``         what it looks at
    ===================== ============================================================================================
    gaussian              place alone: one sharpness per head (:class:`GaussianAttention`); ``-diagonal``: one per axis,
                          ``-full``: a matrix
    relative              place alone: learned vectors of the offset (:class:`RelativeAttention`)
    relative-content      those, and content
    gated                 a gate between a Gaussian head and content (:class:`GatedPositionalAttention`)
    content               content alone (:class:`MultiHeadAttention`); learned absolute positions are added to the tokens
    depthwise             no attention: a 3×3 convolution of each channel in its place, the rival to compare with
    ===================== ============================================================================================

    Args:
        image_size: height and width of the images, or one number for both. Gaussian and gated heads take others too,
            relative ones smaller ones, learned positions are interpolated.
        classes: how many there are; 0 leaves the last layer out.
        channels: channels of the images.
        patch: p, the side of a token's square.
        dim, depth, heads, hidden: width of tokens, number of blocks, attention heads of each, width inside the
            feed-forward networks (default ``4 · dim``).
        attention: see above.
        head_dim: width of a head, default ``dim / heads``; for Gaussian and plain content attention. ``"full"``, for
            attention by place alone: every head reads the whole token (:class:`GaussianAttention`'s ``full_width``).
        init: where Gaussian heads start, ``"normal"`` or ``"grid"``.
        norm: ``"pre"`` (with one more at the end) or ``"post"``.
        dropout: probability of dropping, in training, attention weights, hidden features and sub-layer outputs.
        second_output: another linear layer after each attention's own, as the 2020 paper's code has.
        merge: numbers of the blocks before which each square of 2×2 tokens becomes one token, twice as wide
            (:class:`TokenMerging`). From there on ``dim``, ``hidden`` and ``head_dim`` count twofold.

    ``grid`` is the rows and columns of tokens, ``grids`` those that each block sees, ``prefix_tokens`` is 0.

    Shapes: images ``(batch, channels, height, width)`` to ``(batch, classes)``.

    >>> from regard.models import ImageEncoder
    >>> model = ImageEncoder(32, 10, dim=18, depth=2, heads=9, init="grid")
    >>> model(torch.randn(2, 3, 32, 32)).shape, model.grid
    (torch.Size([2, 10]), (16, 16))
    """

    prefix_tokens = 0

    def __init__(
        self,
        image_size: int | Sequence[int],
        classes: int,
        *,
        channels: int = 3,
        patch: int = 2,
        dim: int = 384,
        depth: int = 6,
        heads: int = 9,
        hidden: int | None = None,
        attention: str = "gaussian",
        head_dim: int | str | None = None,
        init: str = "normal",
        norm: str = "pre",
        dropout: float = 0.0,
        second_output: bool = False,
        merge: Sequence[int] = (),
    ) -> None:
        super().__init__()
        for name, size in (("channels", channels), ("patch", patch), ("dim", dim), ("depth", depth), ("heads", heads)):
            check_positive(name, size)
        check_choice("attention", attention, KINDS)
        check_probability("dropout", dropout)
        if isinstance(classes, bool) or not isinstance(classes, int) or classes < 0:
            raise ValueError(f"classes must be a whole number of 0 or more, got {describe(classes)}")
        self.channels, self.patch, self.dim, self.attention_kind = channels, patch, dim, attention
        self.merge = checked_merge(merge, depth)
        self.grid = self.grid_for(image_size)
        self.grids = grids_of_blocks(self.grid, depth, self.merge)
        self.embedding = nn.Linear(channels * patch**2, dim)
        self.positions: AbsolutePositionalEmbedding | None = None
        if attention == "content":
            self.positions = AbsolutePositionalEmbedding(dim, self.grid, interpolate=True)
        self.dropout = nn.Dropout(dropout)
        self.merging = nn.ModuleDict()
        blocks = []
        for number, grid in enumerate(self.grids):
            if number in self.merge:
                self.merging[str(number)] = TokenMerging(dim)
                dim *= 2
                hidden = None if hidden is None else 2 * hidden
                head_dim = 2 * head_dim if isinstance(head_dim, int) else head_dim
            layer = _attention(attention, dim, heads, head_dim, grid, init, dropout)
            layer = SecondOutput(layer, dim) if second_output else layer
            blocks.append(EncoderBlock(dim, hidden=hidden, dropout=dropout, norm=norm, attention=layer))
        self.blocks = nn.ModuleList(blocks)
        self.norm = LayerNorm(dim) if norm == "pre" else nn.Identity()
        self.pooling = AveragePooling()
        self.head = nn.Linear(dim, classes) if classes else nn.Identity()

    def grid_for(self, image_size: int | Sequence[int]) -> tuple[int, int]:
        """Rows and columns of tokens in an image of this size."""
        sizes = (image_size, image_size) if isinstance(image_size, int) else image_size
        if not isinstance(sizes, Sequence) or len(sizes) != 2:
            raise TypeError(f"image_size must be a number or (height, width), got {describe(image_size)}")
        for name, size in zip(("height", "width"), sizes, strict=True):
            check_positive(f"image {name}", size)
            if size % self.patch:
                raise ValueError(f"image {name} is {size}, which is not a multiple of patch, {self.patch}")
            if size % (smallest := self.patch * 2 ** len(self.merge)):
                raise ValueError(
                    f"image {name} is {size}, which is not a multiple of {smallest}: patch is {self.patch}, and tokens are "
                    f"merged {len(self.merge)} times"
                )
        return sizes[0] // self.patch, sizes[1] // self.patch

    def forward_intermediates(self, images: Images) -> tuple[Tokens, Levels]:
        """What :meth:`forward_features` gives, and the tokens after every block, without the last norm."""
        check_ndim("images", images, "batch channels height width")
        if images.shape[1] != self.channels:
            raise ValueError(f"images has shape {tuple(images.shape)}, but must have {self.channels} channels")
        check_dtype("images", images, self.embedding.weight)
        grid = self.grid_for(tuple(images.shape[2:]))
        x = self.embedding(space_to_depth(images, self.patch))
        if self.positions is not None:
            x = self.positions(x, grid=grid)
        x = self.dropout(x)
        intermediates = []
        for number, own_grid in enumerate(grids_of_blocks(grid, len(self.blocks), self.merge)):
            if number in self.merge:
                x = self.merging[str(number)](x, grid)
                grid = own_grid
            block = self.blocks[number]
            x = block(x) if self.positions is not None else block(x, grid=grid)
            intermediates.append(x)
        return self.norm(x), intermediates

    def forward_features(self, images: Images) -> Tokens:
        """``(batch, tokens, dim)``, row-major."""
        return self.forward_intermediates(images)[0]

    def pool(self, tokens: Tokens) -> Float[Tensor, "batch dim"]:
        """One vector for each image: the average."""
        return self.pooling(tokens)

    def forward_head(self, tokens: Tokens) -> Float[Tensor, "batch classes"]:
        """From what ``forward_features`` gives to the classes."""
        return self.head(self.pool(tokens))

    def forward(
        self, images: Images, *, return_intermediates: bool = False
    ) -> Float[Tensor, "batch classes"] | tuple[Float[Tensor, "batch classes"], Levels]:
        """
        Args:
            images: ``(batch, channels, height, width)``.
            return_intermediates: also return the tokens after each block.
        """
        tokens, intermediates = self.forward_intermediates(images)
        logits = self.forward_head(tokens)
        return (logits, intermediates) if return_intermediates else logits


def paper_image_encoder(
    classes: int = 10, *, attention: str = "gaussian", image_size: int = 32, dropout: float = 0.1
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
        classes: how many there are.
        attention: another kind, see :class:`ImageEncoder`. Those that look at content split the token between their
            heads; 9 do not divide 400, so there they are 8.
        image_size: side of the images.
        dropout: probability of dropping in training.

    >>> from regard.models import paper_image_encoder
    >>> sum(parameter.numel() for parameter in paper_image_encoder().parameters())
    12086844
    """
    by_place = attention.startswith("gaussian") or attention == "relative"
    return ImageEncoder(
        image_size,
        classes,
        dim=400,
        depth=6,
        heads=9 if by_place else 8,
        hidden=512,
        attention=attention,
        head_dim="full" if by_place else None,
        norm="post",
        dropout=dropout,
        second_output=True,
    )


class SecondOutput(nn.Module):
    """An attention layer with one more linear layer after it."""

    def __init__(self, attention: nn.Module, dim: int) -> None:
        super().__init__()
        self.inner = attention
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tokens, *, return_weights: bool = False, **options: Any) -> Tokens | tuple[Tokens, Tensor]:
        if return_weights:
            out, weights = self.inner(x, return_weights=True, **options)
            return self.output(out), weights
        return self.output(self.inner(x, **options))


def space_to_depth(images: Images, side: int) -> Float[Tensor, "batch tokens features"]:
    """Each square of pixels as one vector, in the order (channel, row, column); squares row-major.

    >>> space_to_depth(torch.arange(16.0).reshape(1, 1, 4, 4), 2)[0, 1]
    tensor([2., 3., 6., 7.])
    """
    return rearrange(images, "b c (r p) (q s) -> b (r q) (c p s)", p=side, s=side)


def _attention(
    kind: str, dim: int, heads: int, head_dim: int | str | None, grid: tuple[int, int], init: str, dropout: float
) -> nn.Module:
    gaussian = kind.startswith("gaussian")
    if isinstance(head_dim, str) and (head_dim != "full" or not (gaussian or kind in ("relative", "depthwise"))):
        raise ValueError(
            f"head_dim must be a number or None, or 'full' for attention by place alone ('gaussian…', 'relative'); "
            f"got {head_dim!r} for {kind!r}"
        )
    full = head_dim == "full"
    width = None if isinstance(head_dim, str) else head_dim
    if width is not None and not (gaussian or kind in ("content", "depthwise")):
        raise ValueError(f"head_dim is {width}, but {kind!r} splits dim between its heads: leave it out")
    if gaussian:
        covariance: Any = kind.partition("-")[2] or "isotropic"
        start: Any = init
        return GaussianAttention(
            dim, heads, head_dim=width, full_width=full, covariance=covariance, init=start, dropout=dropout
        )
    if kind == "depthwise":
        return DepthwiseMixing(dim, heads, head_dim=width, full_width=full)
    if kind == "gated":
        return GatedPositionalAttention(dim, heads, init=init, dropout=dropout)  # type: ignore[arg-type]
    if kind == "content":
        return MultiHeadAttention(dim, heads, head_dim=width, dropout=dropout)
    return RelativeAttention(dim, heads, grid, content=kind == "relative-content", full_width=full, dropout=dropout)
