"""Images as sequences of patches."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from regard.support.checks import check_dtype, check_flag, check_positive, check_sides, static_sizes
from regard.support.image_checks import check_images


class PatchEmbedding(nn.Module):
    r"""One token for each patch of an image: a convolution whose stride is the size of its kernel.

    .. math:: z_{r,c} = b + \sum_{k,i,j} W_{:,k,i,j}\; x_{k,\; rP + i,\; cQ + j}

    Args:
        patch_size: P, or (P, Q): height and width of a patch.
        dim: width of a token.
        channels: channels of the images.
        bias: whether there is a bias b.

    Shapes: ``(batch, channels, height, width)`` to ``(batch, height/P · width/Q, dim)``, row-major.

    >>> from regard.layers import PatchEmbedding
    >>> patches = PatchEmbedding(4, 16, channels=1)
    >>> patches(torch.randn(2, 1, 8, 12)).shape, patches.grid(8, 12)
    (torch.Size([2, 6, 16]), (2, 3))
    """

    def __init__(self, patch_size: int | Sequence[int], dim: int, *, channels: int = 3, bias: bool = True) -> None:
        check_flag("bias", bias)
        super().__init__()
        check_positive("dim", dim)
        check_positive("channels", channels)
        self.patch_size, self.dim, self.channels = check_sides("patch_size", patch_size), dim, channels
        self.projection = nn.Conv2d(channels, dim, self.patch_size, stride=self.patch_size, bias=bias)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches in an image of this size."""
        for name, size, step in zip(("height", "width"), (height, width), self.patch_size, strict=True):
            if size % step or size < step:
                raise ValueError(
                    f"the {name} of images (image_size) is {size}, but must be a positive multiple of the {name} of a patch "
                    f"(patch_size), {step}"
                )
        return height // self.patch_size[0], width // self.patch_size[1]

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch tokens dim"]:
        check_images(images, self.channels)
        check_dtype("images", images, self.projection.weight)
        self.grid(*static_sizes(images)[2:])
        return self.projection(images).flatten(2).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"patch_size={self.patch_size}, dim={self.dim}, channels={self.channels}"
