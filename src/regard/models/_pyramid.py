"""Attention by place alone on coarser and coarser grids: full-width Gaussian heads where a convolutional network has
its filters."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers import GaussianAttention
from regard.models._pretrained import Pretrained
from regard.models._whitening import WhitenedSquares
from regard.support.checks import check_choice, check_ndim, check_positive, describe

Grid = tuple[int, int]
Images = Float[Tensor, "batch channels height width"]
Tokens = Float[Tensor, "batch tokens dim"]
Mixed = Float[Tensor, "batch _ out_dim"]  # other tokens, of another width
MIXINGS = ("gaussian", "convolution")


class TokenBatchNorm(nn.Module):
    """Each feature shifted and scaled to mean 0 and variance 1 over all tokens of the batch, then shifted anew.

    >>> from regard.models._pyramid import TokenBatchNorm
    >>> TokenBatchNorm(4)(torch.randn(8, 9, 4)).mean((0, 1)).abs().max().item() < 1e-5
    True
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        # Networks that learn in seconds need running statistics that follow them: a momentum of 0.4, not 0.1.
        self.statistics = nn.BatchNorm1d(dim, momentum=0.4)
        self.statistics.weight.requires_grad_(False)  # what follows can scale, and does

    def forward(self, x: Tokens) -> Tokens:
        return self.statistics(x.flatten(0, 1)).view_as(x)


class TokenConvolution(nn.Module):
    """A 3×3 convolution of tokens on a grid: what the heads are compared with."""

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.filters = nn.Conv2d(dim, out_dim, 3, padding=1, bias=False)
        with torch.no_grad():
            nn.init.dirac_(self.filters.weight[: min(dim, out_dim)])

    def forward(self, x: Tokens, grid: Grid) -> Mixed:
        image = x.unflatten(1, grid).permute(0, 3, 1, 2)  # channels last in memory
        return self.filters(image).permute(0, 2, 3, 1).flatten(1, 2)


class PyramidBlock(nn.Module):
    r"""Every head reads the whole token; the largest of each 2×2 square, where tokens become fewer; norm, φ.

    .. math:: y = \phi\Bigl(\operatorname{norm}\bigl(\operatorname{pool}(\textstyle\sum_h A_h x W_h)\bigr) + r\Bigr)

    r is a residual, or nothing.
    """

    def __init__(self, dim: int, out_dim: int, *, mixing: str, heads: int, pool: bool) -> None:
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
        if self.pool:
            image = mixed.unflatten(1, grid).permute(0, 3, 1, 2)
            mixed = F.max_pool2d(image, 2).permute(0, 2, 3, 1).flatten(1, 2)
        mixed = self.norm(mixed)
        return F.gelu(mixed if residual is None else mixed + residual)


class AttentionPyramid(Pretrained):
    r"""Whitened squares of pixels, then stages of full-width Gaussian heads, each on a quarter of the tokens.

    The first block of a stage looks at the grid of the stage before it and keeps the largest of each 2×2 square; the
    others look at what is left. The largest of all tokens tells the class. Heads start as the taps of a 3×3 kernel, of
    which the middle one hands features on as they are, and are free to go: at the first step this is a convolutional
    network, by the theorem that attention with K² heads can be one.

    Args:
        image_size: height and width of the images, or one number for both. Others may come, if the pooling divides them.
        classes: how many there are; 0 leaves the last layer out.
        channels: channels of the images.
        widths: of the tokens, one for each stage.
        depth: blocks of a stage. With three or more the last adds what the first gave.
        heads: of each block, a square number.
        stride: pixels from one 2×2 square to the next: 1 makes a token of each pixel; 2 a quarter as many, and the
            first stage then keeps its grid.
        directions: of the whitened squares, see :class:`WhitenedSquares`; by default all.
        mixing: ``"gaussian"``, or ``"convolution"``, a 3×3 one in the place of the heads: the rival to compare with.

    ``grids`` has the rows and columns that each block sees, ``grid`` those of the first.

    Shapes: images ``(batch, channels, height, width)`` to ``(batch, classes)``.

    >>> from regard.models import AttentionPyramid
    >>> model = AttentionPyramid(32, 10, widths=(8, 16), depth=2)
    >>> model(torch.randn(2, 3, 32, 32)).shape, model.grids
    (torch.Size([2, 10]), [(32, 32), (16, 16), (16, 16), (8, 8)])
    """

    prefix_tokens = 0

    def __init__(
        self,
        image_size: int | Sequence[int],
        classes: int,
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
        check_positive("depth", depth)
        check_choice("mixing", mixing, MIXINGS)
        if not isinstance(widths, list | tuple) or not widths:
            raise TypeError(f"widths must be numbers, one for each stage, got {describe(widths)}")
        for width in widths:
            check_positive("widths", width)
        if stride not in (1, 2):
            raise ValueError(f"stride must be 1 or 2, got {describe(stride)}")
        self.widths, self.depth = tuple(widths), depth
        self.embedding = WhitenedSquares(channels, 2, stride, directions=directions)
        self.pools = tuple(stage > 0 or stride == 1 for stage in range(len(widths)))
        self.grids = self.grids_for(image_size)
        self.grid = self.grids[0]
        blocks, before = [], self.embedding.out
        for width, pool in zip(widths, self.pools, strict=True):
            for number in range(depth):
                blocks.append(PyramidBlock(before, width, mixing=mixing, heads=heads, pool=pool and number == 0))
                before = width
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(before, classes) if classes else nn.Identity()

    def whiten(self, images: Images) -> None:
        """Measure the directions of the squares on images, normalized as those that will come."""
        self.embedding.fit(images)

    def grids_for(self, image_size: int | Sequence[int]) -> list[Grid]:
        """Rows and columns that each block sees in an image of this size."""
        sizes = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
        if len(sizes) != 2:
            raise TypeError(f"image_size must be a number or (height, width), got {describe(image_size)}")
        stride = self.embedding.stride
        for name, size in zip(("height", "width"), sizes, strict=True):
            check_positive(f"image {name}", size)
            if size < (smallest := stride * 2 ** sum(self.pools)):
                raise ValueError(f"image {name} is {size}, but {sum(self.pools)} poolings need at least {smallest}")
        grid = -(-sizes[0] // stride), -(-sizes[1] // stride)
        grids = []
        for pool in self.pools:
            after = (grid[0] // 2, grid[1] // 2) if pool else grid
            grids += [grid] + [after] * (self.depth - 1)
            grid = after
        return grids

    def forward_features(self, images: Images) -> Tokens:
        """Tokens of the last stage, ``(batch, tokens, dim)``, row-major."""
        check_ndim("images", images, "batch channels height width")
        grids = self.grids_for(tuple(images.shape[2:]))
        x = first = self.embedding(images)
        for number, block in enumerate(self.blocks):
            place = number % self.depth
            adds = self.depth > 2 and place == self.depth - 1
            x = block(x, grids[number], first if adds else None)
            first = x if place == 0 else first
        return x

    def pool(self, tokens: Tokens) -> Float[Tensor, "batch dim"]:
        """One vector for each image: the largest of each feature."""
        # Not amax, whose gradient goes to what equals the largest: a compiler that keeps more digits than the
        # tensor has finds nothing equal, and divides by that.
        return tokens.max(1).values

    def forward_head(self, tokens: Tokens) -> Float[Tensor, "batch classes"]:
        """From what ``forward_features`` gives to the classes."""
        return self.head(self.pool(tokens))

    def forward(self, images: Images) -> Float[Tensor, "batch classes"]:
        return self.forward_head(self.forward_features(images))


@torch.no_grad()
def start_as_identity(attention: GaussianAttention) -> None:
    """The head in the middle hands the first features on as they are, and others add nothing to those: what
    ``nn.init.dirac_`` is for a convolution.

    >>> from regard.models._pyramid import start_as_identity
    >>> attention = GaussianAttention(4, 9, full_width=True, init="grid", sharpness=60.0, bias=False)
    >>> start_as_identity(attention)
    >>> x = torch.randn(1, 5, 5, 4)
    >>> torch.allclose(attention(x), x, atol=1e-5)
    True
    """
    if not attention.full_width or attention.positions.init != "grid":
        raise ValueError("only full-width heads that start on a grid can hand the token on")
    weight = attention.output.weight.unflatten(1, (attention.heads, attention.dim))
    size = round(attention.heads ** (1 / attention.axes))
    middle = sum((size - 1) // 2 * size**axis for axis in range(attention.axes))
    both = min(attention.dim, attention.out_dim)
    weight[:both] = 0
    weight[:both, middle] = torch.eye(both, attention.dim)
