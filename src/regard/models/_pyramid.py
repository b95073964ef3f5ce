"""A network of full-width Gaussian heads on successively coarser grids, built like a small convolutional network."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers import GaussianAttention
from regard.models._max_pooling import largest_of_squares
from regard.models._pretrained import Pretrained
from regard.models._whitening import WhitenedPatches
from regard.observation import on_grid
from regard.support.checks import (
    check_choice,
    check_count,
    check_depth,
    check_dtype,
    check_flag,
    check_ndim,
    check_positive,
    check_sides,
    describe,
    static_sizes,
)

Grid = tuple[int, int]
Images = Float[Tensor, "batch channels height width"]
Tokens = Float[Tensor, "batch tokens dim"]
Mixed = Float[Tensor, "batch _ out_dim"]  # fewer tokens, of another width
MIXINGS = ("gaussian", "convolution")


class TokenBatchNorm(nn.Module):
    """Batch normalization of tokens, with a learned shift and without a learned scale.

    >>> from regard.models._pyramid import TokenBatchNorm
    >>> TokenBatchNorm(4)(torch.randn(8, 9, 4)).mean((0, 1)).abs().max().item() < 1e-5
    True
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        # Training takes a few hundred steps: running statistics need a larger momentum than 0.1 to keep up.
        self.statistics = nn.BatchNorm1d(dim, momentum=0.4)
        self.statistics.weight.requires_grad_(False)

    def forward(self, x: Tokens) -> Tokens:
        return self.statistics(x.flatten(0, 1)).view_as(x)


class TokenConvolution(nn.Module):
    """A 3×3 convolution of tokens on a grid, for comparison with the heads."""

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.filters = nn.Conv2d(dim, out_dim, 3, padding=1, bias=False)
        with torch.no_grad():
            nn.init.dirac_(self.filters.weight[: min(dim, out_dim)])

    def forward(self, x: Tokens, grid: Grid) -> Mixed:
        image = x.unflatten(1, grid).permute(0, 3, 1, 2)  # channels last in memory
        return self.filters(image).permute(0, 2, 3, 1).flatten(1, 2)


class PyramidBlock(nn.Module):
    r"""Full-width attention, max pooling where the grid shrinks, batch norm, gelu.

    .. math:: y = \mathrm{gelu}\Bigl(\mathrm{norm}\bigl(\mathrm{pool}(\textstyle\sum_h A_h x W_h)\bigr) + r\Bigr)

    r is the residual, if there is one.
    """

    def __init__(self, dim: int, out_dim: int, *, mixing: str, heads: int, pool: bool) -> None:
        check_flag("pool", pool)
        super().__init__()
        self.pool = pool
        if mixing == "convolution":
            self.attention: nn.Module = TokenConvolution(dim, out_dim)
        else:
            self.attention = GaussianAttention(dim, heads, out_dim=out_dim, full_width=True, init="grid", bias=False)
            start_as_identity(self.attention)
        self.norm = TokenBatchNorm(out_dim)

    def forward(self, x: Tokens, grid: Grid, residual: Mixed | None = None) -> Mixed:
        mixed = self.attention(x, grid=grid)
        mixed = self.norm(largest_of_squares(mixed, grid) if self.pool else mixed)
        return F.gelu(mixed if residual is None else mixed + residual)


class AttentionPyramid(Pretrained):
    r"""Whitened patches, then stages of full-width Gaussian heads, each stage with a quarter of the tokens.

    The first block of a stage works on the grid of the stage before it and ends with 2×2 max pooling. A maximum over all
    tokens predicts the class. Heads start on a 3×3 grid, and the center head passes features on unchanged: at
    initialization this is a convolutional network, since K² sharp heads are a K×K convolution. In training the heads move.

    Args:
        image_size: height and width of the images, or one number for both. The network also takes other sizes.
        num_classes: number of classes; 0 leaves the last layer out.
        channels: channels of the images.
        widths: width of the tokens in each stage.
        depth: number of blocks in each stage. With three or more, the output of the first is added in the last.
        heads: attention heads of each block, a square number; 9 where a convolution takes their place.
        stride: distance between the 2×2 patches in pixels. 1 makes one token for each pixel; with 2 the first stage
            does not pool.
        directions: how many directions of the whitened patches are kept (:class:`WhitenedPatches`); by default all.
        mixing: ``"gaussian"``, or ``"convolution"``: a 3×3 convolution instead of the heads, for comparison.

    ``grids`` has the rows and columns of tokens that each block sees, ``grid`` those of the first.

    Shapes: images ``(batch, channels, height, width)`` to ``(batch, num_classes)``.

    >>> from regard.models import AttentionPyramid
    >>> model = AttentionPyramid(32, 10, widths=(8, 16), depth=2)
    >>> model(torch.randn(2, 3, 32, 32)).shape, model.grids
    (torch.Size([2, 10]), [(32, 32), (16, 16), (16, 16), (8, 8)])
    """

    prefix_tokens = 0

    def __init__(
        self,
        image_size: int | Sequence[int],
        num_classes: int,
        *,
        channels: int = 3,
        widths: Sequence[int] = (64, 256, 256),
        depth: int = 2,
        heads: int = 9,
        stride: int = 1,
        directions: int | None = None,
        mixing: str = "gaussian",
    ) -> None:
        super().__init__()
        check_count("num_classes", num_classes)
        check_depth("depth", depth)
        check_choice("mixing", mixing, MIXINGS)
        if mixing == "convolution" and heads != 9:
            raise ValueError(
                f"heads is {describe(heads)}, but with mixing 'convolution' a 3×3 kernel takes the place of 9"
            )
        if not isinstance(widths, list | tuple) or not widths:
            raise TypeError(f"widths must be a list of numbers, one for each stage, got {describe(widths)}")
        for width in widths:
            check_positive("widths", width)
        check_positive("channels", channels)
        check_positive("stride", stride)
        if stride not in (1, 2):
            raise ValueError(f"stride must be 1 or 2, got {describe(stride)}")
        self.widths, self.depth = tuple(widths), depth
        self.attends = mixing == "gaussian"  # else regard.capture must not expect maps, despite the class name
        self.embedding = WhitenedPatches(channels, 2, stride, directions=directions)
        self.pools = tuple(stage > 0 or stride == 1 for stage in range(len(widths)))
        self.grids = self.grids_for(image_size)
        self.grid = self.grids[0]
        blocks, before = [], self.embedding.out
        for width, pool in zip(widths, self.pools, strict=True):
            for number in range(depth):
                blocks.append(PyramidBlock(before, width, mixing=mixing, heads=heads, pool=pool and number == 0))
                before = width
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(before, num_classes) if num_classes else nn.Identity()

    def whiten(self, images: Images) -> None:
        """Fit the patch embedding to images that are normalized like the inputs."""
        self.embedding.fit(images)

    def grids_for(self, image_size: int | Sequence[int]) -> list[Grid]:
        """Rows and columns of tokens that each block sees in an image of this size."""
        sides = check_sides("image_size", image_size)
        stride, poolings = self.embedding.stride, sum(self.pools)
        for name, size in zip(("height", "width"), sides, strict=True):
            if size < (smallest := stride * 2**poolings):
                raise ValueError(
                    f"the image's {name} (image_size) is {size}, but {poolings} poolings need at least {smallest}"
                )
        grid = -(-sides[0] // stride), -(-sides[1] // stride)
        grids = []
        for pool in self.pools:
            after = (grid[0] // 2, grid[1] // 2) if pool else grid
            grids += [grid] + [after] * (self.depth - 1)
            grid = after
        return grids

    def forward_features(self, images: Images) -> Tokens:
        """Tokens of the last stage, ``(batch, tokens, dim)``, row-major."""
        check_ndim("images", images, "batch channels height width")
        check_dtype("images", images, self.embedding.weight)
        grids = self.grids_for(static_sizes(images)[2:])
        x = first = self.embedding(images)
        for number, block in enumerate(self.blocks):
            place = number % self.depth
            adds = self.depth > 2 and place == self.depth - 1
            x = on_grid(grids[number], block, x, grids[number], first if adds else None)
            first = x if place == 0 else first
        return x

    def pool(self, tokens: Tokens) -> Float[Tensor, "batch dim"]:
        """One vector for each image: the maximum of each feature."""
        # Not amax: its gradient goes to the entries that equal the maximum, and a compiled graph compares unrounded values
        # with a maximum rounded to bfloat16. It finds no equal entry and divides by 0.
        return tokens.max(1).values

    def forward_head(self, tokens: Tokens) -> Float[Tensor, "batch num_classes"]:
        """From the output of ``forward_features`` to the logits."""
        return self.head(self.pool(tokens))

    def forward(self, images: Images) -> Float[Tensor, "batch num_classes"]:
        return self.forward_head(self.forward_features(images))


@torch.no_grad()
def start_as_identity(attention: GaussianAttention) -> None:
    """Initialize a full-width layer so that its middle head passes the first features on unchanged, as ``nn.init.dirac_``
    does for a convolution.

    >>> from regard.models._pyramid import start_as_identity
    >>> attention = GaussianAttention(4, 9, full_width=True, init="grid", sharpness=60.0, bias=False)
    >>> start_as_identity(attention)
    >>> x = torch.randn(1, 5, 5, 4)
    >>> torch.allclose(attention(x), x, atol=1e-5)
    True
    """
    if not attention.full_width or attention.positions.init != "grid":
        raise ValueError("attention must have full-width heads that start on a grid")
    weight = attention.output.weight.unflatten(1, (attention.heads, attention.dim))
    size = round(attention.heads ** (1 / attention.axes))
    middle = sum((size - 1) // 2 * size**axis for axis in range(attention.axes))
    both = min(attention.dim, attention.out_dim)
    weight[:both] = 0
    weight[:both, middle] = torch.eye(both, attention.dim)
