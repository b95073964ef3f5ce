"""Squares of pixels as vectors whose parts are uncorrelated and equally large, measured on images."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.support.checks import check_ndim, check_positive


class WhitenedSquares(nn.Module):
    r"""One token for each pixel: the 2×2 square that starts there, whitened, each direction with both signs.

    .. math:: z = \phi\bigl(\pm\,\Lambda^{-1/2} U^\top x + b\bigr), \qquad
        \tfrac1n \sum x x^\top = U \Lambda U^\top

    x is a square's pixels. Neighboring pixels are nearly equal, so that raw squares hardly differ but in brightness;
    whitened, edges and colors are as large as brightness is. Both signs, because φ keeps only one of them. At the right
    and lower edge the last pixels are repeated.

    The directions are measured once, by :meth:`fit`, and stay; b is learned.

    Args:
        channels: of the images.
        side: of a square.
        stride: pixels from one square to the next; ``side`` leaves no overlap.
        directions: how many are kept, those of the largest Λ; by default all channels · side².
        epsilon: added to Λ.

    Shapes: images ``(batch, channels, height, width)`` to tokens ``(batch, rows · columns, out)``, row-major, where
    ``out`` is twice the directions.

    >>> from regard.models._whitening import WhitenedSquares
    >>> squares = WhitenedSquares(3)
    >>> images = torch.randn(8, 3, 16, 16)
    >>> squares.fit(images)
    >>> squares(images).shape
    torch.Size([8, 256, 24])
    """

    weight: Tensor

    def __init__(
        self, channels: int, side: int = 2, stride: int = 1, *, directions: int | None = None, epsilon: float = 5e-4
    ) -> None:
        super().__init__()
        for name, size in (("channels", channels), ("side", side), ("stride", stride)):
            check_positive(name, size)
        if stride > side:
            raise ValueError(f"stride is {stride}, which leaves out pixels between squares of side {side}")
        self.side, self.stride, self.epsilon = side, stride, epsilon
        features = channels * side**2
        directions = features if directions is None else directions
        check_positive("directions", directions)
        if directions > features:
            raise ValueError(f"directions is {directions}, but a square has {features} numbers")
        self.out = 2 * directions
        start = torch.eye(directions, features)
        self.register_buffer("weight", torch.cat([start, -start]))
        self.bias = nn.Parameter(torch.zeros(self.out))

    @torch.no_grad()
    def fit(self, images: Float[Tensor, "batch channels height width"]) -> None:
        """Measure the directions on images, normalized as those that will come."""
        squares = self._squares(images).flatten(0, 1).double()
        values, vectors = torch.linalg.eigh(squares.mT @ squares / len(squares))
        scaled = (vectors.mT / (values.clamp_min(0)[:, None] + self.epsilon).sqrt())[-self.out // 2 :]
        self.weight.copy_(torch.cat([scaled, -scaled]))

    def _squares(self, images: Tensor) -> Float[Tensor, "batch tokens features"]:
        check_ndim("images", images, "batch channels height width")
        height, width = images.shape[2:]
        more = self.side - self.stride
        padded = F.pad(images, (0, more, 0, more), mode="replicate") if more else images
        rows, columns = (range(0, size, self.stride) for size in (height, width))
        parts = [
            padded[:, :, i : i + height : self.stride, j : j + width : self.stride]
            for i in range(self.side)
            for j in range(self.side)
        ]
        return torch.stack(parts, -1).permute(0, 2, 3, 1, 4).reshape(len(images), len(rows) * len(columns), -1)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch tokens out"]:
        return F.gelu(F.linear(self._squares(images), self.weight, self.bias))

    def extra_repr(self) -> str:
        return f"side={self.side}, stride={self.stride}, out={self.out}"
