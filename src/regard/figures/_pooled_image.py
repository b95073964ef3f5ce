"""An image that is pooled to the pixels it is drawn with: a saved figure may have fewer than a map has cells."""

from collections.abc import Callable
from typing import Any

from matplotlib.image import AxesImage
from torch import Tensor


class PooledImage(AxesImage):
    """A picture of cells of which none is skipped, whatever the size and the resolution.

    Args:
        panel: where to draw.
        shape: the numbers of rows and columns of cells.
        cells: gives the picture in so many rows and columns.
        options: options of an image of matplotlib.
    """

    def __init__(
        self, panel: Any, shape: tuple[int, int], cells: Callable[[tuple[int, int]], Tensor], **options: Any
    ) -> None:
        super().__init__(panel, **options)
        self._shape, self._cells = shape, cells
        self.set_data(cells(shape).numpy())

    def make_image(self, renderer: Any, magnification: float = 1.0, unsampled: bool = False) -> Any:
        box = self.get_window_extent(renderer)
        tall, wide = (max(1, int(abs(size) * magnification)) for size in (box.height, box.width))
        if tall >= self._shape[0] and wide >= self._shape[1]:
            return super().make_image(renderer, magnification, unsampled)
        self.set_data(self._cells((tall, wide)).numpy())
        try:
            return super().make_image(renderer, magnification, unsampled)
        finally:
            self.set_data(self._cells(self._shape).numpy())
