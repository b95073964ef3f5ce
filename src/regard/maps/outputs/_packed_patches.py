"""Where each patch lies on its image, for vision towers that pack the patches of several images into one sequence (Qwen-VL)."""

import math
from typing import Any

import torch
from torch import Tensor

from regard.maps._module_names import CallSite
from regard.maps.tokens._axis_evidence import heads_of, sequences_of
from regard.maps.tokens._layout import Layout


def about_tokens(
    site: CallSite | None,
) -> tuple[int | None, tuple[int, int] | None, Tensor | None, Layout | None]:
    """What is known of the running module: its number of heads, the number of samples and their length, the order of its
    patches, and their layout."""
    if site is None:
        return None, None, None, None
    return heads_of(site.module), sequences_of(site), *_patch_order(site)


def _patch_order(site: CallSite) -> tuple[Tensor | None, Layout | None]:
    """The index of each token if patches are counted row by row, image after image; and the layout, if there is one image.

    Such towers order patches by squares, which are merged later. Some (Qwen2.5-VL) also put the squares of a window next to
    each other, so that each window is a contiguous part of the sequence.
    """
    for frame in site.frames:
        names = frame.f_code.co_varnames
        if frame.f_code.co_name != "forward" or "grid_thw" not in names:
            continue
        here = frame.f_locals
        sizes, squares = here.get("grid_thw"), here.get("window_index")
        merged = getattr(here.get("self"), "spatial_merge_size", None)
        if isinstance(sizes, Tensor) and isinstance(merged, int):
            return _order(sizes.tolist(), merged, squares)
    return None, None


def _order(sizes: list[Any], merged: int, squares: Any) -> tuple[Tensor | None, Layout | None]:
    """The order and the layout of images of these sizes, as frames × rows × columns.

    >>> _order([[1, 2, 4]], 2, None)
    (tensor([0, 1, 4, 5, 2, 3, 6, 7]), Layout(grid=(2, 4), prefix=0))
    >>> _order([[1, 2, 4]], 2, torch.tensor([1, 0]))[0]
    tensor([2, 3, 6, 7, 0, 1, 4, 5])
    """
    parts, start = [], 0
    for frames, rows, columns in sizes:
        numbers = torch.arange(start, start + frames * rows * columns).reshape(
            frames, rows // merged, merged, columns // merged, merged
        )
        parts.append(numbers.transpose(2, 3).reshape(-1, merged * merged))
        start += numbers.numel()
    whole = torch.cat(parts)
    if isinstance(squares, Tensor):
        if squares.numel() != len(whole):
            return None, None
        whole = whole[squares.flatten().cpu()]
    frames, rows, columns = sizes[0]
    grid = (rows, columns) if frames == 1 else (frames, rows, columns)
    return whole.flatten(), Layout(grid, 0) if len(sizes) == 1 and math.prod(grid) == whole.numel() else None
