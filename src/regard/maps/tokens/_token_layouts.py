"""Adds to a record where its tokens lie: windows, positions in the sequence, and the layout on an image.

The layout comes from the layer itself, else from :func:`regard.maps.on_grid`, else from a module around the attention
that states it.
"""

from typing import Any

from torch import Tensor, nn

from regard.maps._module_names import CallSite
from regard.maps._record import AttentionRecord
from regard.maps.tokens._axes import MapAxes
from regard.maps.tokens._layout import Layout, inferred_layout, states_layout
from regard.maps.tokens._positions import positions_of
from regard.maps.tokens._windows import windows_of
from regard.observation import current_grid


class TokenLayouts:
    """Gives records their windows, positions and layouts.

    Attributes:
        patches: the grid of patches into which the latest image was cut.
    """

    def __init__(self) -> None:
        self.patches: tuple[int, ...] | None = None

    def convolved(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[int, ...] | None:
        """A ``conv2d`` ran. Returns the size of its kernel.

        If the stride is the size of the kernel, it cuts an image into patches: its output has their grid.
        """
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        stride = args[3] if len(args) > 3 else kwargs.get("stride", 1)
        if not isinstance(weight, Tensor) or not isinstance(out, Tensor):
            return None
        steps, kernel = (stride, stride) if isinstance(stride, int) else tuple(stride), tuple(weight.shape[2:])
        if kernel == steps * (2 // len(steps)) and min(steps) > 1:
            self.patches = tuple(out.shape[-2:])
        return kernel

    def add(self, record: AttentionRecord, site: CallSite, around: list[nn.Module]) -> None:
        """Add windows, positions and layout to a record.

        Args:
            around: the module that attends and those that contain it, innermost first.
        """
        keys, grid = record.shape[3], current_grid()
        record.windows = windows_of(record.shape, around, site)
        if record.windows is None and record.axes.over == "tokens":
            known = record.axes
            record.axes = MapAxes(known.certainty, known.over, known.query_layout, positions_of(record.shape, site))
        if record.windows is not None:
            record.layout = Layout(record.windows.grid, 0)
        elif record.layout is None and grid is not None and Layout(grid, 0).tokens == keys:
            record.layout = Layout(grid, 0)
        record.running.layout_declared = record.layout is not None
        if record.layout is None:
            at = (site.name, keys, self.patches)
            if at not in site.remembered:
                stating = site.remembered.get((site.name, "stating"))
                if stating is None:  # in a language model none does, and each call of generate has more keys
                    stating = site.remembered[site.name, "stating"] = [x for x in around if states_layout(x)]
                site.remembered[at] = inferred_layout(keys, stating, self.patches)
            record.layout = site.remembered[at]
