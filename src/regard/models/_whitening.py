"""Patch embedding by whitening: directions measured on images, so that all of them have the same variance."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.support.checks import check_positive, static_sizes
from regard.support.image_checks import check_images


class WhitenedPatches(nn.Module):
    r"""Patches projected on their principal directions and scaled to variance 1, each with both signs.

    .. math:: z = \mathrm{gelu}\bigl(\pm\,\Lambda^{-1/2} U^\top x + b\bigr), \qquad
        \tfrac1n \sum x x^\top = U \Lambda U^\top

    x holds the pixels of a patch. Neighboring pixels are nearly equal, so raw patches differ mostly in brightness; after
    whitening, edges and colors have the same variance. Both signs are kept because gelu suppresses one of them. At the right
    and lower edges the last pixels are repeated.

    :meth:`fit` measures U and Λ, which are not trained; b is trained.

    Args:
        channels: channels of the images.
        patch_size: side of a patch.
        stride: distance between patches in pixels; ``patch_size`` leaves no overlap.
        directions: how many are kept, those of the largest Λ; by default all channels · patch_size².
        epsilon: added to Λ.

    Shapes: images ``(batch, channels, height, width)`` to tokens ``(batch, rows · columns, out)``, row-major, where
    ``out`` is 2 · directions.

    >>> from regard.models._whitening import WhitenedPatches
    >>> patches = WhitenedPatches(3)
    >>> images = torch.randn(8, 3, 16, 16)
    >>> patches.fit(images)
    >>> patches(images).shape
    torch.Size([8, 256, 24])
    """

    weight: Tensor

    def __init__(
        self,
        channels: int,
        patch_size: int = 2,
        stride: int = 1,
        *,
        directions: int | None = None,
        epsilon: float = 5e-4,
    ) -> None:
        super().__init__()
        for name, size in (("channels", channels), ("patch_size", patch_size), ("stride", stride)):
            check_positive(name, size)
        if stride > patch_size:
            raise ValueError(f"stride is {stride}, which skips pixels between patches of size {patch_size}")
        self.channels, self.patch_size, self.stride, self.epsilon = channels, patch_size, stride, epsilon
        features = channels * patch_size**2
        directions = features if directions is None else directions
        check_positive("directions", directions)
        if directions > features:
            raise ValueError(f"directions is {directions}, but a patch has {features} numbers")
        self.out = 2 * directions
        start = torch.eye(directions, features)
        self.register_buffer("weight", torch.cat([start, -start]))
        self.bias = nn.Parameter(torch.zeros(self.out))

    @torch.no_grad()
    def fit(self, images: Float[Tensor, "batch channels height width"]) -> None:
        """Measure the directions on images that are normalized like the inputs."""
        patches = self.patches(images).flatten(0, 1).double()
        values, vectors = torch.linalg.eigh(patches.mT @ patches / len(patches))
        scaled = vectors.mT / (values.clamp_min(0)[:, None] + self.epsilon).sqrt()
        strongest = scaled[-(self.out // 2) :]  # eigenvalues are in ascending order
        self.weight.copy_(torch.cat([strongest, -strongest]))

    def patches(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch tokens features"]:
        """The pixels of each patch in the order (channel, row, column)."""
        check_images(images, self.channels)
        height, width = static_sizes(images)[2:]
        rows, columns = (range(0, size, self.stride) for size in (height, width))
        below, right = (
            max(0, starts[-1] + self.patch_size - size) for starts, size in ((rows, height), (columns, width))
        )
        padded = F.pad(images, (0, right, 0, below), mode="replicate") if below or right else images
        parts = [
            padded[:, :, i : i + height : self.stride, j : j + width : self.stride]
            for i in range(self.patch_size)
            for j in range(self.patch_size)
        ]
        return (
            torch.stack(parts, -1)
            .permute(0, 2, 3, 1, 4)
            .reshape(images.shape[0], len(rows) * len(columns), self.weight.shape[1])
        )

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch tokens out"]:
        return F.gelu(F.linear(self.patches(images), self.weight, self.bias))

    def extra_repr(self) -> str:
        return f"patch_size={self.patch_size}, stride={self.stride}, out={self.out}"
