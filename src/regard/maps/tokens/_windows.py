"""Windowed attention (Swin, SAM, MaxViT, …): where the tokens of each window lie, to put maps back onto the image."""

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.maps._module_names import CallSite


@dataclass(frozen=True)
class Windows:
    """How an image was cut into windows: it was padded to whole windows, shifted cyclically, and cut row by row.

    Attributes:
        grid, window, shift: the image, a window, and the cyclic shift, as rows and columns in tokens.
        rolled_first: whether the image was shifted before it was padded (timm), not after (transformers, torchvision).
        strided: whether the tokens of a window are spread evenly over the whole image (the grid attention of MaxViT).

    >>> Windows((2, 4), (2, 2), (0, 0)).index.tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    >>> Windows((1, 3), (1, 2), (0, 1)).index.tolist(), Windows((1, 3), (1, 2), (0, 1), rolled_first=True).index.tolist()
    ([[1, 2], [-1, 0]], [[1, 2], [0, -1]])
    >>> Windows((1, 6), (1, 2), (0, 0), strided=True).index.tolist()
    [[0, 3], [1, 4], [2, 5]]
    """

    grid: tuple[int, int]
    window: tuple[int, int]
    shift: tuple[int, int]
    rolled_first: bool = False
    strided: bool = False

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
        counts = height // self.window[0], width // self.window[1]
        if self.strided:
            cut = index.reshape(self.window[0], counts[0], self.window[1], counts[1]).permute(1, 3, 0, 2)
        else:
            cut = index.reshape(counts[0], self.window[0], counts[1], self.window[1]).transpose(1, 2)
        return cut.reshape(-1, self.window[0] * self.window[1])

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
        """Put vectors of windows back onto the image, without padding."""
        index = self.index.to(x.device)
        parts = x.unflatten(0, (-1, index.shape[0])).transpose(1, 2)
        full = x.new_zeros(*parts.shape[:2], self.grid[0] * self.grid[1], x.shape[-1])
        full[:, :, index[index >= 0]] = parts[:, :, index >= 0]
        return full

    def cut(
        self, full: Float[Tensor, "batch heads tokens width"], like: Float[Tensor, "batch_windows heads area width"]
    ) -> Float[Tensor, "batch_windows heads area width"]:
        """The inverse of :meth:`merge`: cut vectors of the image into windows. Padding is taken from ``like``."""
        index = self.index.to(full.device)
        parts = full[:, :, index.clamp_min(0)].transpose(1, 2).flatten(0, 1)
        present = (index >= 0).repeat(full.shape[0], 1)
        return torch.where(present[:, None, :, None], parts, like)


# timm's blocks with shifted windows, and the method of each that cuts the windows.
_ROLLED = {
    "SwinTransformerBlock": "_attn",
    "SwinTransformerV2Block": "_attn",
    "SwinTransformerV2CrBlock": "_shifted_window_attn",
}
# Blocks that pad images at the end and cut them row by row: SAM, ViTDet and relatives, Hiera, DaViT, GCViT, Twins.
_CUT = re.compile(
    r"^(Sam|VitDet|GotOcr|Slanext|DeepseekOcr|UnlimitedOcr|PPFormulaNet)\w*Layer$|MultiScaleBlock$"
    r"|^(SpatialBlock|GlobalContextVitBlock|LocallyGroupedAttn)$"
)
_SIZES = ("window_size", "partition_size", "ws", "block_size")


def windows_of(shape: tuple[int, ...], modules: list[nn.Module], site: CallSite) -> Windows | None:
    """The windows of the windowed layer around this attention; None if no known one is, or if the sizes do not fit."""
    key = (site.name, "windows")
    if key not in site.remembered:
        site.remembered[key] = [module for module in modules if _may_cut(module)]
    for module in site.remembered[key]:
        windows = _windows(module, site)
        if windows is not None:
            area = windows.window[0] * windows.window[1]
            if shape[2:] == (area, area) and shape[0] % windows.count == 0:
                return windows
    return None


def _may_cut(module: nn.Module) -> bool:
    """Whether :func:`_windows` knows the module's class. The answer is cached for each module."""
    kind = type(module).__name__
    others = "Swin" in kind or "PartitionAttention" in kind or kind in ("ShiftedWindowAttention", "NestLevel")
    return kind in _ROLLED or others or _CUT.search(kind) is not None or _is_sam_block(module)


def _is_sam_block(module: nn.Module) -> bool:
    return type(module).__name__ == "Block" and type(module).__module__.endswith("vision_transformer_sam")


def _windows(module: nn.Module, site: CallSite) -> Windows | None:
    """How a module cuts its image, from its attributes and local variables; None if its class is not known."""
    kind, strided = type(module).__name__, False
    shift: tuple[int, int] | None = (0, 0)
    rolled = _ROLLED.get(kind)
    grid: Any = None
    if rolled is not None:
        grid, shift = _lengths(site, rolled, module, "H", "W"), _pair(getattr(module, "shift_size", 0))
    elif kind.endswith("Layer") and "Swin" in kind:  # transformers: Swin, Swinv2, DonutSwin, MaskFormerSwin
        grid, shift = site.local("forward", "input_dimensions"), _pair(getattr(module, "shift_size", 0))
    elif kind == "ShiftedWindowAttention":  # torchvision
        shift = _pair(site.local("shifted_window_attention", "shift_size"))
        source = site.local("shifted_window_attention", "input")
        grid = source.shape[1:3] if isinstance(source, Tensor) else None
    elif "PartitionAttention" in kind:  # MaxViT
        grid = site.local("_partition_attn", "img_size", module)
        strided = not getattr(module, "partition_block", not site.name.partition("#")[0].endswith("attn_grid"))
    elif kind == "NestLevel":
        blocks, side = site.local("forward", "x", module), getattr(module, "block_size", 0)
        grid = (side * math.isqrt(blocks.shape[1]),) * 2 if isinstance(blocks, Tensor) and blocks.ndim == 4 else None
    elif _CUT.search(kind) or _is_sam_block(module):
        function = "_window_attn" if kind == "GlobalContextVitBlock" else "forward"
        if not getattr(getattr(module, "attn", None), "use_global", False):  # GCViT: queries from the whole image
            grid = _lengths(site, function, module, "H", "W") or _lengths(site, function, module, "height", "width")
    window = next((_pair(x) for name in _SIZES if (x := getattr(module, name, None)) is not None), None)
    if grid is None or window is None or shift is None or not all(isinstance(n, int) for n in grid) or min(window) < 1:
        return None
    return Windows((grid[0], grid[1]), window, shift, rolled_first=rolled is not None, strided=strided)


def _lengths(site: CallSite, function: str, module: nn.Module, *names: str) -> tuple[Any, ...] | None:
    """The values of these local variables of a running method of the module; None if one is missing."""
    found = tuple(site.local(function, name, module) for name in names)
    return None if None in found else found


def _pair(x: Any) -> tuple[int, int] | None:
    if isinstance(x, int):
        return x, x
    if isinstance(x, list | tuple) and len(x) == 2:
        return int(x[0]), int(x[1])
    return None
