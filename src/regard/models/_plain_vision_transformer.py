"""The vision transformer of an exercise sheet, with exactly the parts that the sheet lists."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from regard.functional import attention
from regard.layers import AbsolutePositionalEmbedding, PatchEmbedding
from regard.models._pretrained import Pretrained
from regard.support.checks import check_depth, check_positive, check_sides

Tokens = Float[Tensor, "batch tokens dim"]


class PlainAttentionBlock(nn.Module):
    r"""One head as wide as the token, without an output layer, and a feed-forward network; no norms.

    .. math:: x \leftarrow x + \mathrm{softmax}\!\left(\frac{x W_Q (x W_K)^\top}{\sqrt{d}}\right) x W_V, \qquad
        x \leftarrow x + \mathrm{MLP}(x)

    The feed-forward network has three linear layers of the token's width with ReLU between them.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.feed_forward = nn.Sequential(
            nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)
        )

    def forward(self, x: Tokens) -> Tokens:
        query, key, value = self.qkv(x).unsqueeze(1).chunk(3, -1)
        x = x + attention(query, key, value).squeeze(1)
        return x + self.feed_forward(x)


class PlainVisionTransformer(Pretrained):
    """Patches, learned positions, blocks of attention with residual paths, and a small network on the average token.

    The sheet gives a depth of 5, a width of 64 and 140,618 parameters on 32 × 32 images. This network has exactly as
    many: 3,072 for 4 × 4 patches without a bias, 4,096 for positions, five times 12,288 + 12,480 for the blocks, and
    9,610 for a head of two linear layers. The sheet's own code is not public, so its parts may differ.

    Args:
        image_size: height and width of the images, or one number for both.
        patch_size: height and width of a patch, or one number for both.
        num_classes: number of classes.
        channels: channels of the images.
        dim: width of the tokens.
        depth: number of blocks.

    >>> model = PlainVisionTransformer(32, 4, 10)
    >>> model(torch.randn(2, 3, 32, 32)).shape, sum(p.numel() for p in model.parameters())
    (torch.Size([2, 10]), 140618)
    """

    prefix_tokens = 0

    def __init__(
        self,
        image_size: int | Sequence[int],
        patch_size: int | Sequence[int],
        num_classes: int,
        *,
        channels: int = 3,
        dim: int = 64,
        depth: int = 5,
    ) -> None:
        super().__init__()
        check_positive("dim", dim)
        check_depth("depth", depth)
        check_positive("num_classes", num_classes)
        self.patches = PatchEmbedding(patch_size, dim, channels=channels, bias=False)
        self.grid = self.patches.grid(*check_sides("image_size", image_size))
        self.positions = AbsolutePositionalEmbedding(dim, self.grid, kind="learned")
        self.blocks = nn.ModuleList(PlainAttentionBlock(dim) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, num_classes))

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch num_classes"]:
        x = self.patches(images)
        found = self.patches.grid(*images.shape[2:])
        if found != self.grid:
            raise ValueError(
                f"images has shape {tuple(images.shape)}, {found} patches, but this model learned positions for {self.grid}"
            )
        x = self.positions(x, grid=self.grid)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))
