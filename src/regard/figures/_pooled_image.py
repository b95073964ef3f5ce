"""An image of weights that is pooled to the pixels it is drawn with: a saved figure may have fewer than the map has cells."""

from typing import Any

import torch
from matplotlib.image import AxesImage

from regard.figures._color_scale import Pool, pooled, scale_position


class PooledImage(AxesImage):
    """Weights relative to uniform attention on a color scale. No weight is skipped, whatever the size and the resolution.

    Args:
        panel: where to draw.
        lift: the weights as multiples of uniform attention, (rows, columns).
        top: the multiple that has the last color.
        pool: what a pixel shows that several weights share.
        options: options of an image of matplotlib.
    """

    def __init__(self, panel: Any, lift: torch.Tensor, top: float, pool: Pool, **options: Any) -> None:
        super().__init__(panel, **options)
        self._lift, self._top, self._pool = lift, top, pool
        self.set_data(scale_position(lift, top).numpy())

    def make_image(self, renderer: Any, magnification: float = 1.0, unsampled: bool = False) -> Any:
        box = self.get_window_extent(renderer)
        tall, wide = (max(1, int(abs(size) * magnification)) for size in (box.height, box.width))
        whole = scale_position(self._lift, self._top).numpy()
        if tall >= whole.shape[0] and wide >= whole.shape[1]:
            return super().make_image(renderer, magnification, unsampled)
        self.set_data(scale_position(pooled(self._lift, (tall, wide), self._pool), self._top).numpy())
        try:
            return super().make_image(renderer, magnification, unsampled)
        finally:
            self.set_data(whole)
