"""Triton kernels, used only on CUDA devices. Each gives the same result as plain torch operations, in less time.

:func:`usable` and its siblings say whether the kernels support given tensors; callers need to know nothing else.

A job usually has two files: what one program of the GPU computes (the kernels), and how many programs run with which
block sizes (the launches, which are ordinary Python). Where to find what:

- Small planes, both axes in one kernel: ``_plane.py``. Planes of up to 128 × 128 with given axis matrices, one pass per
  axis: ``_axis_pass.py``. Axis matrices of heads: ``_matrices.py``. One value for all heads: ``_map_gradient.py``. Launches:
  ``_launch.py``, with the block sizes of ``_setups.py``. For autograd: ``_functions.py``, and ``_ops.py`` in compiled code.
- Gaussian heads on a grid of any size, one pass per axis: ``_grid.py``, with the launches of ``_grid_plan.py`` and
  ``_axes.py``. Local heads: ``_stream_pass.py``. Wide heads: ``_wide_pass.py``, on long axes ``_gaussian_pass.py``. Calls
  like earlier ones: ``_call_cache.py``. Wide heads of a frozen plan: ``_node_pass.py``, ``_node_launch.py``,
  ``_node_steps.py``.
- Exponential decay: ``_decay.py``, ``_decay_launch.py``.
- Content and position. Columns that carry positions: ``_carriers.py``, ``_placed_pass.py``, ``_placed_launch.py``.
  Gradients of center and sharpness: ``_moments_pass.py``, ``_moments_launch.py``, ``_placed_reach.py``.
- Converted convolutions: ``_tap_pass.py``, ``_tap_launch.py``.
- Maps of any attention. Whole: ``_map_write.py``, ``_map_launch.py``. As an overview: ``_map_scores.py``,
  ``_map_finish.py``, ``_overview_launch.py``, ``_packing.py``.
- For all: ``_start.py`` starts compiled kernels, ``_tensors.py`` prepares tensors, ``_limits.py`` has sizes, and
  ``_plain.py`` replaces kernels that do not fit the GPU.
"""

import functools
import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.functional.kernels._call_cache import cached_attention, is_repeatable
from regard.functional.kernels._carriers import PIECES as PIECES
from regard.functional.kernels._carriers import Carriers as Carriers
from regard.functional.kernels._limits import LARGEST_AXIS, MOST_CHANNELS, MOST_PROGRAMS, SMALL_SIDE
from regard.functional.kernels._map_launch import MOST_HEADS as MOST_HEADS
from regard.functional.kernels._map_launch import WIDEST as WIDEST
from regard.functional.kernels._map_launch import ScoreTensors as ScoreTensors
from regard.functional.kernels._map_launch import WeightsPlan as WeightsPlan
from regard.functional.kernels._map_launch import write_weights as write_weights
from regard.functional.kernels._moments_launch import place_moments as place_moments
from regard.functional.kernels._node_steps import AxisSizes as AxisSizes
from regard.functional.kernels._node_steps import WideForm as WideForm
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
from regard.functional.kernels._tensors import power_of_two as power_of_two
from regard.functional.kernels._tensors import raw_stream as raw_stream
from regard.functional.kernels._tensors import readable as readable
from regard.support.checks import is_exporting, is_transformed, under_autocast

if TYPE_CHECKING:
    from regard.functional.kernels._node_launch import WideLaunches

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def usable(value: Tensor, outputs: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    """Whether kernels support these values: a plane of at most 128 × 128 tokens, on a GPU of the Ampere generation or newer.

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
    """Whether one program holds a whole plane in registers and computes both axes at once."""
    return len(grid) == 2 and grid[0] <= SMALL_SIDE and grid[1] <= SMALL_SIDE


def usable_on_grid(value: Tensor, grid: tuple[int, ...]) -> bool:
    """Whether kernels can compute Gaussian heads with border "native" on these values, on a grid of any size."""
    if value.dtype not in _DTYPES or is_exporting() or len(grid) > 3 or not all(isinstance(n, int) for n in grid):
        return False
    if is_transformed():
        return False
    return _run_on(value.device.type) and value.numel() > 0


def usable_for_maps(x: Tensor) -> bool:
    """Whether kernels can compute maps from queries, keys and values like x, ``(batch, heads, tokens, width)``."""
    return x.dtype in _DTYPES and x.shape[3] <= WIDEST and x.numel() > 0 and _run_on(x.device.type)


def overview(given: ScoreTensors, cell: tuple[int, int], first_keys: int) -> CellSums:
    """Total and largest weight of cells of ``cell[0]`` queries × ``cell[1]`` keys, and statistics per query and per key.

    One of the statistics per query is its total weight on the first ``first_keys`` keys, at most 16."""
    from regard.functional.kernels._overview_launch import cell_sums

    return cell_sums(given, cell, first_keys)


def packed_overview(
    given: ScoreTensors, cell: tuple[int, int], first_keys: int, value: Tensor, output: Tensor, rows: tuple[int, ...]
) -> tuple[PackedParts, Tensor] | None:
    """The same, stored in its final dtypes in one tensor of bytes, and checked against the full ``rows``; see
    :class:`regard.functional.kernels._overview_launch.OverviewPlan`. None if the tensors have unsuitable alignment or strides.

    Args:
        value, output: of the same dtype; the check compares weights @ value with the output.
    """
    from regard.functional.kernels._overview_launch import packed

    return packed(given, cell, first_keys, value, output, rows)


def usable_for_places(x: Tensor, grid: tuple[int, ...]) -> bool:
    """Whether kernels can append position columns to queries and keys like x, ``(batch, heads, tokens, width)``."""
    return x.dtype in PIECES and usable_for_moments(x, grid)


def usable_for_moments(x: Tensor, grid: tuple[int, ...]) -> bool:
    """Whether kernels can compute gradients of positions from queries, keys and values like x."""
    fits = x.dtype in _DTYPES and len(grid) <= 3 and x.shape[3] <= WIDEST and x.numel() > 0
    return fits and x.shape[0] * x.shape[1] <= MOST_HEADS and _run_on(x.device.type)


def usable_for_taps(x: Tensor, matrices: Sequence[Tensor]) -> bool:
    """Whether kernels can multiply a converted convolution's input by matrices (taps, outputs, inputs) along each axis."""
    half = x.dtype in (torch.float16, torch.bfloat16) and x.numel() > 0
    half = half and torch._C._len_torch_dispatch_stack() == 0  # dispatch modes must see plain operators
    return half and all(max(matrix.shape) <= _LONGEST for matrix in matrices) and _run_on(x.device.type)


def usable_for_nodes(value: Tensor, build: torch.dtype) -> bool:
    """Whether kernels can interpolate wide heads of these values. Derivatives of their weights would overflow half precision."""
    fits = value.dtype in (torch.float32, torch.bfloat16) and build is torch.float32 and value.numel() > 0
    return fits and value.shape[3] > 0 and _run_on(value.device.type)


def wide_launches(form: WideForm) -> "WideLaunches":
    """The forward and backward passes of wide heads, for calls of one form."""
    from regard.functional.kernels._node_launch import launches_of

    return launches_of(form)


def usable_for_images(images: Tensor) -> bool:
    """Whether a kernel can augment images, bytes (n, channels, height, width), that are on this device."""
    return images.numel() > 0 and images.is_contiguous() and _run_on(images.device.type)


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


# The effect of torch.compiler.assume_constant_result, without importing the compiler, which takes seconds.
_run_on._dynamo_marked_constant = True  # type: ignore[attr-defined]


def as_autocast(value: Tensor) -> Tensor:
    """The value in the dtype that autocast would use for a matrix product."""
    return value.to(torch.get_autocast_dtype(value.device.type)) if under_autocast(value) else value


def _as_operator() -> bool:
    """Whether to call a kernel as a custom operator, so that the compiler or a dispatch mode (a FLOP counter) sees it."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def mix_plane(value: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Multiply values (batch, heads or 1, tokens, width) by one (heads, outputs, inputs) matrix along each axis."""
    value = as_autocast(value)
    rows, columns = rows.to(value.dtype), columns.to(value.dtype)
    plane = (rows.shape[1], rows.shape[2], columns.shape[1], columns.shape[2])
    if _as_operator():
        from regard.functional.kernels._ops import mix_plane as operator

        return operator(value, rows, columns, list(plane))[0]
    from regard.functional.kernels._functions import MixPlane
    from regard.functional.kernels._setups import Plane

    return MixPlane.apply(value, rows, columns, Plane(*plane))


def gaussian_plane(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Gaussian attention on a small plane with border "native", from center and sharpness (heads, 2)."""
    value = as_autocast(value)
    if _as_operator():
        from regard.functional.kernels._ops import gaussian_plane as operator

        return operator(value, center, sharpness, *grid)[0]
    from regard.functional.kernels._functions import GaussianPlane

    return GaussianPlane.apply(value, center, sharpness, grid)


def gaussian_grid(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Gaussian attention with border "native" on any grid, from center (heads, axes) and sharpness (heads, axes) or (heads,)."""
    value = as_autocast(value)
    if _as_operator():
        from regard.functional.kernels._grid import gaussian_grid as operator

        return operator(value, center, sharpness, list(grid))[0]
    from regard.functional.kernels._grid import attend
    from regard.functional.kernels._plain import plain_grid

    try:
        return attend(value, center, sharpness, grid)
    except MemoryError:  # the GPU lacks shared memory or registers for a kernel: use torch's products
        return plain_grid(value, center, sharpness, grid)


def cached_gaussian_grid(value: Tensor, center: Tensor, sharpness: Tensor, grid: Sequence[int]) -> Tensor | None:
    """The result of :func:`gaussian_grid` if it was called before with tensors of the same shapes and kinds, else None."""
    if torch.compiler.is_compiling() or type(grid) is not tuple or not is_repeatable(value, center, sharpness):
        return None
    return cached_attention(as_autocast(value), center, sharpness, grid) if _run_on(value.device.type) else None


def usable_for_scans(x: Tensor) -> bool:
    """Whether kernels can compute decayed averages of (items, heads, tokens, width). Compilers get plain operations instead."""
    if torch.compiler.is_compiling() or is_exporting() or is_transformed():
        return False
    fits = x.dtype in _DTYPES and x.numel() > 0 and x.shape[3] <= MOST_CHANNELS * MOST_PROGRAMS
    return fits and _run_on(x.device.type) and torch._C._len_torch_dispatch_stack() == 0


def decayed_average(x: Tensor, rate: Tensor, side: str, plain: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Averages along the tokens with weights e^{−λ|q − k|}. ``plain`` computes the same, for second-order gradients and in
    case the kernels fail."""
    from regard.functional.kernels import _decay_launch

    return _decay_launch.decayed_average(x, rate, _decay_launch.SeenSides(side != "after", side != "before"), plain)
