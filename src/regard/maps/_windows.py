"""Windowed attention (Swin): the position of each window's tokens on the image, so that maps can be put back."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.maps._module_names import CallSite


@dataclass(frozen=True)
class Windows:
    """How an image was cut into windows: it was padded to whole windows, rolled by ``shift``, and cut row by row.

    Attributes:
        grid, window, shift: in tokens, rows and columns.
        rolled_first: whether it was rolled before it was padded (timm), not after (transformers, torchvision).

    >>> Windows((2, 4), (2, 2), (0, 0)).index.tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    >>> Windows((1, 3), (1, 2), (0, 1)).index.tolist(), Windows((1, 3), (1, 2), (0, 1), rolled_first=True).index.tolist()
    ([[1, 2], [-1, 0]], [[1, 2], [0, -1]])
    """

    grid: tuple[int, int]
    window: tuple[int, int]
    shift: tuple[int, int]
    rolled_first: bool = False

    @property
    def index(self) -> Int[Tensor, "windows area"]:
        """The image token at each position of each window; −1 for padding."""
        rows, columns = self.grid
        height, width = (-(-n // w) * w for n, w in zip(self.grid, self.window, strict=True))
        back = [-s for s in self.shift]
        tokens = torch.arange(rows * columns).reshape(rows, columns)
        index = torch.full((height, width), -1)
        index[:rows, :columns] = tokens.roll(back, (0, 1)) if self.rolled_first else tokens
        if not self.rolled_first:
            index = index.roll(back, (0, 1))
        cut = index.reshape(height // self.window[0], self.window[0], width // self.window[1], self.window[1])
        return cut.transpose(1, 2).reshape(-1, self.window[0] * self.window[1])

    @property
    def count(self) -> int:
        return self.index.shape[0]

    def on_image(
        self, weights: Float[Tensor, "batch_windows heads area area"]
    ) -> Float[Tensor, "batch heads tokens tokens"]:
        """The map over the whole image: zero between windows, and without the weights on padding."""
        index = self.index.to(weights.device)
        tokens = self.grid[0] * self.grid[1]
        parts = weights.unflatten(0, (-1, index.shape[0]))
        # An extra row and column take the weights of padding.
        full = weights.new_zeros(parts.shape[0], parts.shape[2], tokens + 1, tokens + 1)
        place = torch.where(index < 0, tokens, index)
        full[:, :, place[:, :, None], place[:, None, :]] = parts.transpose(1, 2)
        return full[:, :, :tokens, :tokens]

    def merge(self, x: Float[Tensor, "batch_windows heads area width"]) -> Float[Tensor, "batch heads tokens width"]:
        """Values of windows, put back onto the image."""
        index = self.index.to(x.device)
        parts = x.unflatten(0, (-1, index.shape[0])).transpose(1, 2)
        full = x.new_zeros(*parts.shape[:2], self.grid[0] * self.grid[1], x.shape[-1])
        full[:, :, index[index >= 0]] = parts[:, :, index >= 0]
        return full

    def cut(
        self, full: Float[Tensor, "batch heads tokens width"], like: Float[Tensor, "batch_windows heads area width"]
    ) -> Float[Tensor, "batch_windows heads area width"]:
        """Values of the image, cut into windows; padding stays as in ``like``."""
        index = self.index.to(full.device)
        parts = full[:, :, index.clamp_min(0)].transpose(1, 2).flatten(0, 1)
        present = (index >= 0).repeat(full.shape[0], 1)
        return torch.where(present[:, None, :, None], parts, like)


# The method that cuts the windows, of timm's blocks.
_TIMM = {
    "SwinTransformerBlock": "_attn",
    "SwinTransformerV2Block": "_attn",
    "SwinTransformerV2CrBlock": "_shifted_window_attn",
}


def windows_of(shape: tuple[int, ...], modules: list[nn.Module], site: CallSite) -> Windows | None:
    """The windows of a known windowed layer around this attention; None if there is none or its size does not fit."""
    for module in modules:
        kind = type(module).__name__
        window, shift = _pair(getattr(module, "window_size", None)), _pair(getattr(module, "shift_size", 0))
        grid: Any = None
        function = _TIMM.get(kind)
        if function is not None:
            grid = (site.local(function, "H"), site.local(function, "W"))
        elif kind.endswith("Layer") and "Swin" in kind:  # transformers: Swin, Swinv2, DonutSwin, MaskFormerSwin
            grid = site.local("forward", "input_dimensions")
        elif kind == "ShiftedWindowAttention":  # torchvision
            shift = _pair(site.local("shifted_window_attention", "shift_size"))
            source = site.local("shifted_window_attention", "input")
            grid = source.shape[1:3] if isinstance(source, Tensor) else None
        if grid is None or window is None or shift is None or not all(isinstance(n, int) for n in grid):
            continue
        found = Windows((grid[0], grid[1]), window, shift, rolled_first=function is not None)
        area = window[0] * window[1]
        if shape[2:] == (area, area) and shape[0] % found.count == 0:
            return found
    return None


def _pair(x: Any) -> tuple[int, int] | None:
    if isinstance(x, int):
        return x, x
    if isinstance(x, list | tuple) and len(x) == 2:
        return int(x[0]), int(x[1])
    return None
