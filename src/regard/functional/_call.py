"""The arguments of Gaussian attention: checked once, with defaults filled in."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.functional._axis import Border, build_dtype, check_border, check_sharpness
from regard.support.checks import TEXT, check_floating, check_grid, check_ndim, describe, values_are_readable


class GaussianCall(NamedTuple):
    """Gaussian heads on a grid. ``queries``: one 1-D tensor of query coordinates per axis; None for those of the grid."""

    center: Tensor
    sharpness: Tensor
    grid: tuple[int, ...]
    queries: tuple[Tensor, ...] | None
    border: Border
    padding: tuple[tuple[int, int], ...]

    @property
    def heads(self) -> int:
        return self.center.shape[0]

    @property
    def outputs(self) -> tuple[int, ...]:
        return self.grid if self.queries is None else tuple(coordinate.shape[0] for coordinate in self.queries)

    @property
    def coordinates(self) -> tuple[Tensor, ...]:
        """Query coordinates, one 1-D tensor per axis."""
        if self.queries is not None:
            return self.queries
        dtype, device = build_dtype(self.center), self.center.device
        return tuple(torch.arange(n, device=device, dtype=dtype) for n in self.grid)

    @property
    def is_full(self) -> bool:
        """Whether sharpness is a full matrix per head, which does not factorize over the axes."""
        return self.sharpness.ndim == 3

    @property
    def axis_sharpness(self) -> Tensor:
        """(heads, axes), from one sharpness per head or from one per head and axis."""
        return self.sharpness if self.sharpness.ndim == 2 else self.sharpness.unsqueeze(-1).expand(-1, len(self.grid))

    def check_value(self, value: Tensor) -> None:
        check_ndim("value", value, "batch heads tokens width")
        if value.shape[1] not in (1, self.heads):
            raise ValueError(f"value has {value.shape[1]} heads but center has {self.heads}; one head is shared by all")
        tokens = math.prod(self.grid)
        if value.shape[2] != tokens:
            sizes = " × ".join(map(str, self.grid))
            raise ValueError(f"value has {value.shape[2]} tokens but grid {self.grid} has {sizes} = {tokens}")
        if value.device != self.center.device:
            raise ValueError(f"value is on {value.device} but must be on {self.center.device}, as center is")


def resolve(
    center: Tensor,
    sharpness: Tensor,
    grid: Sequence[int],
    queries: Sequence[Tensor] | None,
    border: Border,
    padding: Sequence[tuple[int, int]] | None,
) -> GaussianCall:
    """Check the arguments that describe the heads and the grid, and fill in the defaults."""
    by_default = queries is None and padding is None and isinstance(border, str) and border == "native"
    plain = by_default and type(grid) is tuple
    if plain and isinstance(center, Tensor) and isinstance(sharpness, Tensor) and center.is_cuda:
        # On a GPU the checks read no values, so one check per combination of shapes, dtypes and devices is enough. Where
        # host time limits a training step, this saves a tenth of it.
        key = (center.shape, sharpness.shape, grid, center.dtype, sharpness.dtype, center.device, sharpness.device)
        if torch.compiler.is_compiling() or key not in _checked:
            call = check_arguments(center, sharpness, grid, queries, border, padding)
            if not torch.compiler.is_compiling() and len(_checked) < 1024:
                _checked.add(key)
            return call
        return GaussianCall(center, sharpness, tuple(grid), None, "native", ((0, 0),) * len(grid))
    return check_arguments(center, sharpness, grid, queries, border, padding)


_checked: set[tuple[object, ...]] = set()


def check_arguments(
    center: Tensor,
    sharpness: Tensor,
    grid: Sequence[int],
    queries: Sequence[Tensor] | None,
    border: Border,
    padding: Sequence[tuple[int, int]] | None,
) -> GaussianCall:
    grid = check_grid(grid)
    axes = len(grid)
    check_floating("center", center)
    check_floating("sharpness", sharpness)
    if center.ndim != 2:
        raise ValueError(f"center must be (heads, axes), got {describe(center)}")
    heads = center.shape[0]
    if not torch.compiler.is_compiling() and heads < 1:
        raise ValueError(f"center has shape {tuple(center.shape)}, but there must be at least one head")
    if center.shape[1] != axes:
        raise ValueError(f"center has shape {tuple(center.shape)} but grid {grid} has {axes} axes")
    fits = [(heads,), (heads, axes), (heads, axes, axes)]
    # Compared size by size: torch.compile with dynamic shapes finds no tuple of symbols in a list of tuples.
    sizes = tuple(sharpness.shape)
    if not any(len(sizes) == len(fit) and all(map(operator.eq, sizes, fit)) for fit in fits):
        raise ValueError(
            f"sharpness has shape {tuple(sharpness.shape)}; for {heads} heads on a grid of {axes} axes it must be one of "
            f"{', '.join(map(str, fits))}"
        )
    if sharpness.device != center.device:
        raise ValueError(f"sharpness is on {sharpness.device} but center is on {center.device}")
    if sharpness.ndim == 3:
        check_full_sharpness(sharpness)
    else:
        check_sharpness(sharpness)
    if values_are_readable(center) and not bool(center.isfinite().all()):
        raise ValueError("center must be finite, but holds NaN or infinite values")
    check_border(border)
    if padding is None:
        if border != "native":
            raise ValueError(f"border {border!r} needs padding: ((before, after), …), one pair per axis of grid {grid}")
        padding = ((0, 0),) * axes
    if not isinstance(padding, Sequence) or any(not isinstance(pair, tuple | list) for pair in padding):
        raise TypeError(
            f"padding must be ((before, after), …), one pair per axis of grid {grid}, got {describe(padding)}"
        )
    if len(padding) != axes:
        raise ValueError(f"padding is {padding!r:.200}, {len(padding)} pairs, but grid {grid} has {axes} axes")
    check_border(border, *padding)
    if queries is not None:
        check_queries(queries, grid)
        for axis, coordinates in enumerate(queries):
            if coordinates.device != center.device:
                raise ValueError(
                    f"queries[{axis}] is on {coordinates.device} but must be on {center.device}, as center is"
                )
    pairs = tuple((int(before), int(after)) for before, after in padding)
    return GaussianCall(center, sharpness, grid, None if queries is None else tuple(queries), border, pairs)


def check_queries(queries: object, grid: tuple[int, ...]) -> None:
    wanted = f"queries must be one 1-D tensor of coordinates, at least one, for each axis of grid {grid}"
    if isinstance(queries, (Tensor, *TEXT)) or not isinstance(queries, Sequence):
        raise TypeError(f"{wanted}, got {describe(queries)}")
    if len(queries) != len(grid) or any(not isinstance(q, Tensor) or q.ndim != 1 or not q.shape[0] for q in queries):
        said = ", ".join(describe(q) for q in queries)
        raise ValueError(f"{wanted}, got {f'[{said}]' if queries else describe(queries)}")
    if any(q.dtype is torch.bool or q.is_complex() for q in queries):
        raise TypeError(f"queries must be real numbers, got [{', '.join(describe(q) for q in queries)}]")
    if any(values_are_readable(q) and not bool(q.isfinite().all()) for q in queries):
        raise ValueError(f"queries must be finite coordinates, got {queries!r:.200}")


def check_full_sharpness(sharpness: Tensor) -> None:
    if not values_are_readable(sharpness):
        return
    matrix = sharpness.detach().double()
    scale = matrix.abs().amax((-2, -1)).clamp_min(1e-30)
    if not bool(matrix.isfinite().all()):
        raise ValueError("sharpness must be finite, but holds NaN or infinite values")
    if bool(((matrix - matrix.mT).abs().amax((-2, -1)) > 1e-5 * scale).any()):
        raise ValueError("sharpness as (heads, axes, axes) must be symmetric matrices")
    lowest = torch.linalg.eigvalsh(matrix).amin(-1)
    if bool((lowest < -1e-5 * scale).any()):
        raise ValueError(
            f"sharpness as (heads, axes, axes) must be positive semi-definite, but its smallest eigenvalue is "
            f"{lowest.min().item():g}"
        )
