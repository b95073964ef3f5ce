"""Mean and standard deviation of images, for normalization."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from regard.data.own_images._decode import refuse_unreadable
from regard.data.own_images._pixels import Pixels
from regard.data.own_images._workers import in_order

AT_ONCE = 2**20  # numbers summed at a time, which fit in the CPU cache


def measure_moments(pixels: Pixels, rows: Int64[Tensor, "n"]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, in [0, 1], over these images.

    >>> from regard.data.own_images._pixels import TensorPixels
    >>> measure_moments(TensorPixels(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)), torch.arange(2))
    ((0.5,), (0.5,))
    """
    channels, height, width = pixels.shape

    def add_up(places: range) -> Any:
        """The sum of each channel and of its squares, in this thread: in float32 along a row, then in float64."""
        part = rows[places.start : places.stop].numpy()
        images = np.empty((len(part), *pixels.shape), np.uint8)
        refuse_unreadable(pixels.fill(part, images), len(part), pixels.where)
        values = images.astype(np.float32)
        lines = np.stack([values.sum(3), np.einsum("nchw,nchw->nch", values, values)])
        return lines.sum((1, 3), dtype=np.float64)

    size = max(1, AT_ONCE // (channels * height * width))
    total = torch.from_numpy(sum(in_order(add_up, len(rows), size))) / (len(rows) * height * width)
    mean, squares = total[0] / 255, total[1] / 255**2
    std = (squares - mean.square()).clamp(min=1e-6).sqrt()  # a channel may be constant
    return tuple(mean.tolist()), tuple(std.tolist())
