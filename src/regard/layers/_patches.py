"""Images as sequences of patches."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from regard.support.checks import check_dtype, check_ndim, check_positive, describe


class PatchEmbedding(nn.Module):
    r"""Each patch of an image, flattened and mapped linearly, is a token: a convolution that steps by its own size.

    .. math:: z_{r,c} = b + \sum_{k,i,j} W_{:,k,i,j}\; x_{k,\; rP + i,\; cQ + j}

    Args:
        patch: P, or (P, Q): height and width of a patch.
        dim: width of a token.
        channels: channels of the images.
        bias: whether there is a b.

    Shapes: ``(batch, channels, height, width)`` to ``(batch, height/P · width/Q, dim)``, row-major.

    >>> from regard.layers import PatchEmbedding
    >>> patches = PatchEmbedding(4, 16, channels=1)
    >>> patches(torch.randn(2, 1, 8, 12)).shape, patches.grid(8, 12)
    (torch.Size([2, 6, 16]), (2, 3))
    """

    def __init__(self, patch: int | Sequence[int], dim: int, *, channels: int = 3, bias: bool = True) -> None:
        super().__init__()
        height, width = (patch, patch) if isinstance(patch, int) else _two(patch)
        for name, size in (("patch", height), ("patch", width), ("dim", dim), ("channels", channels)):
            check_positive(name, size)
        self.patch, self.dim, self.channels = (height, width), dim, channels
        self.projection = nn.Conv2d(channels, dim, self.patch, stride=self.patch, bias=bias)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches in an image of this size."""
        for name, size, step in (("height", height, self.patch[0]), ("width", width, self.patch[1])):
            if size % step or size < step:
                raise ValueError(f"image {name} is {size}, which is not a multiple of the patch's {name}, {step}")
        return height // self.patch[0], width // self.patch[1]

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch tokens dim"]:
        check_ndim("images", images, "batch channels height width")
        if images.shape[1] != self.channels:
            raise ValueError(f"images has shape {tuple(images.shape)}, but must have {self.channels} channels")
        check_dtype("images", images, self.projection.weight)
        self.grid(images.shape[2], images.shape[3])
        return self.projection(images).flatten(2).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"patch={self.patch}, dim={self.dim}, channels={self.channels}"


def _two(patch: Any) -> tuple[int, int]:
    if not isinstance(patch, Sequence) or len(patch) != 2:
        raise TypeError(f"patch must be a number or (height, width), got {describe(patch)}")
    return patch[0], patch[1]
