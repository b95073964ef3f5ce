"""Triton kernels, used only where CUDA is present. Everything here computes what the plain path computes.

:func:`usable` says whether a plane of values can be handed to them; nothing else needs to be known about them.
"""

import functools
import importlib.util
import math
import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.functional.kernels._again import attend_again, is_repeatable
from regard.functional.kernels._carriers import PIECES as PIECES
from regard.functional.kernels._carriers import Carriers as Carriers
from regard.functional.kernels._limits import LARGEST_AXIS, SMALL_SIDE
from regard.functional.kernels._map_launch import MOST_HEADS as MOST_HEADS
from regard.functional.kernels._map_launch import WIDEST as WIDEST
from regard.functional.kernels._map_launch import ScoreTensors as ScoreTensors
from regard.functional.kernels._map_launch import WeightsPlan as WeightsPlan
from regard.functional.kernels._map_launch import write_weights as write_weights
from regard.functional.kernels._moments_launch import place_moments as place_moments
from regard.functional.kernels._packing import CellSums as CellSums
from regard.functional.kernels._packing import PackedParts as PackedParts
from regard.functional.kernels._placed_launch import Heads as Heads
from regard.functional.kernels._placed_launch import JoinColumns as JoinColumns
from regard.functional.kernels._placed_launch import PadColumns as PadColumns
from regard.functional.kernels._placed_launch import three_axes as three_axes
from regard.functional.kernels._tap_launch import LONGEST as _LONGEST
from regard.functional.kernels._tap_launch import axis_taps as axis_taps
from regard.functional.kernels._tap_launch import tap_launch as tap_launch
from regard.functional.kernels._tensors import is_aligned as is_aligned
from regard.functional.kernels._tensors import is_on_current_gpu as is_on_current_gpu
from regard.functional.kernels._tensors import on_device_of as on_device_of
from regard.functional.kernels._tensors import raw_stream as raw_stream
from regard.support.checks import is_exporting, is_transformed, under_autocast

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def usable(value: Tensor, outputs: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    """Whether kernels can mix these values: a plane of at most 128 × 128 tokens, on a GPU of the Ampere kind or newer.

    ``REGARD_KERNELS=0`` in the environment turns them off; under Triton's interpreter they also run on a CPU.
    """
    if len(grid) != 2 or value.dtype not in _DTYPES or is_exporting():
        return False
    if is_transformed():
        return False
    if not all(isinstance(n, int) and 1 <= n <= LARGEST_AXIS for n in (*grid, *outputs)):
        return False
    return _run_on(value.device.type) and value.numel() > 0 and math.prod(outputs) > 0


def is_small_plane(grid: tuple[int, ...]) -> bool:
    """Whether a plane is kept on the chip as a whole, both axes at once."""
    return len(grid) == 2 and grid[0] <= SMALL_SIDE and grid[1] <= SMALL_SIDE


def usable_on_grid(value: Tensor, grid: tuple[int, ...]) -> bool:
    """Whether kernels can compute native Gaussian heads on these values, whatever the size of the grid."""
    if value.dtype not in _DTYPES or is_exporting() or len(grid) > 3 or not all(isinstance(n, int) for n in grid):
        return False
    if is_transformed():
        return False
    return _run_on(value.device.type) and value.numel() > 0


def usable_for_maps(x: Tensor) -> bool:
    """Whether kernels can compute maps from queries, keys and values like x, ``(batch, heads, tokens, width)``."""
    return x.dtype in _DTYPES and x.shape[3] <= WIDEST and x.numel() > 0 and _run_on(x.device.type)


def overview(given: ScoreTensors, cell: tuple[int, int], first_keys: int) -> CellSums:
    """Mass and largest weight of cells of ``cell[0]`` queries × ``cell[1]`` keys, and statistics of queries and keys.

    ``first_keys``, of which the mass is a statistic of queries, are at most 16."""
    from regard.functional.kernels._overview_launch import cell_sums

    return cell_sums(given, cell, first_keys)


def packed_overview(
    given: ScoreTensors, cell: tuple[int, int], first_keys: int, value: Tensor, output: Tensor, rows: tuple[int, ...]
) -> tuple[PackedParts, Tensor] | None:
    """The same in the dtypes in which it is kept, side by side in a tensor of bytes, and compared with these rows in full: see
    :class:`regard.functional.kernels._overview_launch.OverviewPlan`. None if the tensors do not lie as they must.

    Args:
        value, output: with which the rows are compared, of the same dtype.
    """
    from regard.functional.kernels._overview_launch import packed

    return packed(given, cell, first_keys, value, output, rows)


def usable_for_places(x: Tensor, grid: tuple[int, ...]) -> bool:
    """Whether kernels can join positions to queries, keys and values like x, ``(batch, heads, tokens, width)``."""
    return x.dtype in PIECES and usable_for_moments(x, grid)


def usable_for_moments(x: Tensor, grid: tuple[int, ...]) -> bool:
    """Whether kernels can compute gradients of positions from queries, keys and values like x."""
    fits = x.dtype in _DTYPES and len(grid) <= 3 and x.shape[3] <= WIDEST and x.numel() > 0
    return fits and _run_on(x.device.type)


def usable_for_taps(x: Tensor, matrices: Sequence[Tensor]) -> bool:
    """Whether kernels can mix the axes of a converted convolution's input, by matrices (taps, outputs, inputs)."""
    half = x.dtype in (torch.float16, torch.bfloat16) and x.numel() > 0
    half = half and torch._C._len_torch_dispatch_stack() == 0  # a mode that counts operators must see them
    return half and all(max(matrix.shape) <= _LONGEST for matrix in matrices) and _run_on(x.device.type)


def _run_on(device: str) -> bool:
    if device != "cuda" and not (device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"):
        return False
    if os.environ.get("REGARD_KERNELS") == "0" or not _is_installed():
        return False
    return device == "cpu" or _is_capable()


@functools.cache
def _is_capable() -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)


@functools.cache
def _is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


# What torch.compiler.assume_constant_result does, which would load the compiler, for seconds, to do it.
_run_on._dynamo_marked_constant = True  # type: ignore[attr-defined]


def as_autocast(value: Tensor) -> Tensor:
    """In the dtype that a product of torch's own would take here."""
    return value.to(torch.get_autocast_dtype(value.device.type)) if under_autocast(value) else value


def _as_operator() -> bool:
    """Whether to call a kernel as an operator of torch: a compiler, or a mode that counts operators, must see it."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def mix_plane(value: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Values (batch, heads or 1, tokens, width) mixed by one (heads, outputs, inputs) matrix per axis."""
    value = as_autocast(value)
    rows, columns = rows.to(value.dtype), columns.to(value.dtype)
    plane = (rows.shape[1], rows.shape[2], columns.shape[1], columns.shape[2])
    if _as_operator():
        from regard.functional.kernels._ops import mix_plane as operator

        return operator(value, rows, columns, list(plane))[0]
    from regard.functional.kernels._cuts import Plane
    from regard.functional.kernels._functions import MixPlane

    return MixPlane.apply(value, rows, columns, Plane(*plane))


def gaussian_plane(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Gaussian attention of native heads, matrices and all, from center and sharpness (heads, 2)."""
    value = as_autocast(value)
    if _as_operator():
        from regard.functional.kernels._ops import gaussian_plane as operator

        return operator(value, center, sharpness, *grid)[0]
    from regard.functional.kernels._functions import GaussianPlane

    return GaussianPlane.apply(value, center, sharpness, grid)


def gaussian_grid(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Gaussian attention of native heads on a grid of any size, from center (heads, axes) and sharpness, the same or (heads,)."""
    value = as_autocast(value)
    if _as_operator():
        from regard.functional.kernels._grid import gaussian_grid as operator

        return operator(value, center, sharpness, list(grid))[0]
    from regard.functional.kernels._grid import attend
    from regard.functional.kernels._plain import plain_grid

    try:
        return attend(value, center, sharpness, grid)
    except MemoryError:  # the card has no room for a pass: torch's own products take its place
        return plain_grid(value, center, sharpness, grid)


def gaussian_again(value: Tensor, center: Tensor, sharpness: Tensor, grid: Sequence[int]) -> Tensor | None:
    """What :func:`gaussian_grid` gives, where it was called before with tensors like these; else None."""
    if torch.compiler.is_compiling() or type(grid) is not tuple or not is_repeatable(value, center, sharpness):
        return None
    return attend_again(as_autocast(value), center, sharpness, grid) if _run_on(value.device.type) else None


def usable_for_scans(x: Tensor) -> bool:
    """Whether kernels can take decayed averages of (items, heads, tokens, width). A compiler sees plain operations instead."""
    if torch.compiler.is_compiling() or is_exporting() or is_transformed():
        return False
    return x.dtype in _DTYPES and _run_on(x.device.type) and x.numel() > 0 and torch._C._len_torch_dispatch_stack() == 0


def decayed_average(x: Tensor, rate: Tensor, side: str, plain: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Averages along the tokens with weights e^{−λ|q − k|}; ``plain`` computes the same, for gradients of gradients and where
    the kernels fail."""
    from regard.functional.kernels import _decay_launch

    return _decay_launch.decayed_average(x, rate, _decay_launch.SeenSides(side != "after", side != "before"), plain)
