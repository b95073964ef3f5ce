"""Where Gaussian heads look: their centers, and contours of their mass."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.figures._checks import is_drawable
from regard.figures.style import (
    COLORS,
    GRAY,
    PALE,
    Axes,
    Figure,
    PathArgument,
    arrange,
    finish,
    new_figure,
    plain,
    tidy,
    whole_ticks,
)
from regard.support.checks import check_gaussian_heads, check_grid, check_positive, describe

MASSES = (0.5, 0.9)


def heads(
    center: Float[Tensor, "heads axes"] | Sequence[Float[Tensor, "_ _"]],
    sharpness: Float[Tensor, "heads *axes_or_matrix"] | Sequence[Float[Tensor, "..."]],
    grid: Sequence[int] | Sequence[Sequence[int] | None] | None = None,
    *,
    titles: Sequence[str] | None = None,
    columns: int | None = None,
    path: PathArgument = None,
) -> Figure:
    r"""Centers of Gaussian heads relative to the query, with contours that contain 50 % and 90 % of their mass.

    The density :math:`e^{-(x - \Delta)^\top S (x - \Delta)}` in the plane has mass p within
    :math:`(x - \Delta)^\top S (x - \Delta) \le -\ln(1 - p)`: a circle of radius :math:`\sqrt{-\ln(1 - p)/\alpha}` for
    :math:`S = \alpha I`, else an ellipse. Along one axis the mass p lies within
    :math:`\mathrm{erf}^{-1}(p)/\sqrt\alpha`. This is the density on an endless plane; on pixels, the mass of a sharp
    head lies on one of them. If S is not positive definite, the head has no contour, only a center.

    Args:
        center, sharpness: the heads of one layer, as for :func:`regard.gaussian_attention`, with one or two axes; or a
            list of each with one entry per layer, drawn side by side.
        grid: the size of each axis, drawn around the query in the middle. Without it the limits fit the heads. If layers
            have different grids, a list with one entry (or None) per layer.
        titles: a name for each layer. Default: ``"layer 1"`` and so on.
        columns: panels side by side, at most 4 by default.
        path: where to save the figure.

    >>> center = torch.tensor([[0.0, 0.0], [-2.0, 3.0]])
    >>> figure = regard.figures.heads(center, torch.tensor([0.5, 2.0]), (8, 8))
    >>> figure.axes[0].get_title()
    '2 heads'
    """
    layers = _layers(center, sharpness, grid)
    if columns is not None:
        check_positive("columns", columns)
    _check_titles(titles, len(layers))
    axes = layers[0].center.shape[-1]
    rows, columns = arrange(len(layers), columns)
    figure, panels = new_figure(rows, columns, width=4.0 if axes == 2 else 5.0, height=4.2 if axes == 2 else 3.2)
    # The unit is one token of the layer, so layers with different grids have different scales.
    own_scales = len({layer.grid for layer in layers}) > 1
    for panel in panels[len(layers) :]:
        panel.set_visible(False)
    for number, (panel, layer) in enumerate(zip(panels, layers, strict=False)):
        unbounded = _draw_layer(panel, layer, _limits([layer] if own_scales else layers))
        title = titles[number] if titles is not None else _name(number, layers)
        if own_scales and layer.grid is not None:
            title += f", {'×'.join(map(str, layer.grid))} tokens"
        if unbounded:
            title += f"\nno contour: {'heads' if len(unbounded) > 1 else 'head'} {', '.join(map(str, unbounded))}"
        names = (
            ("column offset, key − query", "row offset, key − query") if axes == 2 else ("offset, key − query", "head")
        )
        tidy(panel, title=title, x=names[0], y=names[1])
    inner, outer = ("solid", "dashed") if axes == 2 else ("thick", "thin")
    key = f"gray: the query; {inner}: {MASSES[0]:.0%} of the mass, {outer}: {MASSES[1]:.0%}"
    figure.suptitle(f"Where heads look from the query\n{key}", fontsize=10)
    if rows > 1:  # the labels of a row would overlap the titles of the next
        engine: Any = figure.get_layout_engine()
        engine.set(h_pad=0.12)
    return finish(figure, path)


def _check_titles(titles: Any, layers: int) -> None:
    if titles is None:
        return
    if not isinstance(titles, list | tuple) or not all(isinstance(title, str) for title in titles):
        raise TypeError(f"titles must be strings, one for each layer, got {describe(titles)}")
    if len(titles) != layers:
        raise ValueError(f"titles has {len(titles)} entries, but there are {layers} layers, got {describe(titles)}")


def mass_contour(
    matrix: Float[Tensor, "axes axes"], mass: float, points: int = 181
) -> Float[Tensor, "points axes"] | None:
    r"""Points x around 0 with :math:`x^\top S x = -\ln(1 - p)` (two axes), or the two ends of the interval (one axis).

    None if S is not positive definite: then no bounded region contains the mass.

    >>> radius = mass_contour(torch.eye(2), 0.5).norm(dim=-1)
    >>> torch.allclose(radius, torch.tensor(math.sqrt(math.log(2))))
    True
    """
    values, vectors = torch.linalg.eigh(matrix)
    if not bool((values > 0).all()):
        return None
    if len(values) == 1:
        reach = torch.erfinv(torch.tensor(mass, dtype=matrix.dtype)) / values[0].sqrt()
        return torch.stack([-reach, reach])[:, None]
    angle = torch.linspace(0, 2 * math.pi, points, dtype=matrix.dtype)
    circle = torch.stack([angle.cos(), angle.sin()], -1) * math.sqrt(-math.log(1 - mass))
    return (circle / values.sqrt()) @ vectors.mT


class _HeadLayer(NamedTuple):
    """Heads of one layer: centers (heads, axes), the matrices S (heads, axes, axes) and the grid, in float64."""

    center: Tensor
    matrices: Tensor
    grid: tuple[int, ...] | None


def _layers(center: Any, sharpness: Any, grid: Any) -> list[_HeadLayer]:
    if isinstance(center, Tensor) != isinstance(sharpness, Tensor):
        raise TypeError(
            f"center and sharpness must both be tensors or both lists of tensors, one per layer, got "
            f"{describe(center)} and {describe(sharpness)}"
        )
    for name, given in (("center", center), ("sharpness", sharpness)):
        if not isinstance(given, Tensor | list | tuple):
            raise TypeError(f"{name} must be a tensor, or a list of tensors, one per layer, got {describe(given)}")
    centers, sharpnesses = (list(each) if not isinstance(each, Tensor) else [each] for each in (center, sharpness))
    if not centers or len(centers) != len(sharpnesses):
        raise ValueError(f"center has {len(centers)} layers but sharpness has {len(sharpnesses)}")
    layers: list[_HeadLayer] = []
    for number, each in enumerate(zip(centers, sharpnesses, _grids(grid, len(centers)), strict=True)):
        axes = each[0].shape[-1] if isinstance(each[0], Tensor) and each[0].ndim else 0
        if axes not in (1, 2):
            raise ValueError(f"center must be (heads, 1) or (heads, 2) to be drawn, got {describe(each[0])}")
        if layers and axes != layers[0].center.shape[-1]:
            raise ValueError(f"center[{number}] has {axes} axes but center[0] has {layers[0].center.shape[-1]}")
        check_gaussian_heads(each[0], each[1], each[2] or (1,) * axes)
        for name, values in (("center", each[0]), ("sharpness", each[1])):
            if not is_drawable(values) or not bool(values.isfinite().all()):
                raise ValueError(
                    f"{name} must be finite to be drawn, got {describe(values)} with NaN, infinity or no values"
                )
        layers.append(_HeadLayer(plain(each[0]), _matrices(plain(each[1]), axes), each[2]))
    return layers


def _grids(grid: Any, layers: int) -> list[tuple[int, ...] | None]:
    """One for each layer."""
    several = isinstance(grid, list | tuple) and any(each is None or isinstance(each, Sequence) for each in grid)
    grids = list(grid) if several else [grid] * layers
    if len(grids) != layers:
        raise ValueError(f"grid has {len(grids)} entries, but there are {layers} layers, got {describe(grid)}")
    return [None if each is None else check_grid(each) for each in grids]


def _matrices(sharpness: Tensor, axes: int) -> Tensor:
    """S of each head, (heads, axes, axes)."""
    if sharpness.ndim == 1:
        return sharpness[:, None, None] * torch.eye(axes, dtype=sharpness.dtype)
    return torch.diag_embed(sharpness) if sharpness.ndim == 2 else (sharpness + sharpness.mT) / 2


def _name(number: int, layers: list[_HeadLayer]) -> str:
    if len(layers) > 1:
        return f"layer {number + 1}"
    heads = len(layers[0].center)
    return f"{heads} heads" if heads != 1 else "1 head"


def _limits(layers: list[_HeadLayer]) -> list[tuple[float, float]]:
    """The range of each axis: the grid around the query, all centers, and the contours where there is no grid."""
    grid = layers[0].grid
    axes = layers[0].center.shape[-1]
    low, high = [-1.5] * axes, [1.5] * axes
    # Otherwise a nearly flat head would shrink all others to a point.
    farthest = max(8.0, *(2 * float(layer.center.abs().max()) for layer in layers if layer.center.numel()), 0.0)
    if grid is not None:
        low, high = [-(n // 2) - 0.5 for n in grid], [n - n // 2 - 0.5 for n in grid]
    for place, matrix in (pair for layer in layers for pair in zip(layer.center, layer.matrices, strict=True)):
        contour = mass_contour(matrix, MASSES[1]) if grid is None else None
        shown = place[None] if contour is None else (contour + place).clamp(-farthest, farthest)
        for axis in range(axes):
            low[axis] = min(low[axis], float(shown[:, axis].min()) - 0.5)
            high[axis] = max(high[axis], float(shown[:, axis].max()) + 0.5)
    return [(a - 0.02 * (b - a), b + 0.02 * (b - a)) for a, b in zip(low, high, strict=True)]


def _draw_layer(panel: Axes, layer: _HeadLayer, limits: list[tuple[float, float]]) -> list[int]:
    """Draw all heads. Returns those that have no contour."""
    if layer.center.shape[-1] == 2:
        _draw_plane(panel, layer, limits)
    else:
        _draw_line(panel, layer, limits)
    return [head for head, matrix in enumerate(layer.matrices) if mass_contour(matrix, MASSES[0]) is None]


def _draw_plane(panel: Axes, layer: _HeadLayer, limits: list[tuple[float, float]]) -> None:
    """Rows run down, as in an image."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    if layer.grid is not None:
        rows, columns = layer.grid
        corner = (-(columns // 2) - 0.5, -(rows // 2) - 0.5)
        for row in range(rows + 1):
            panel.plot([corner[0], corner[0] + columns], [corner[1] + row] * 2, color=PALE, linewidth=0.5, zorder=0)
        for column in range(columns + 1):
            panel.plot([corner[0] + column] * 2, [corner[1], corner[1] + rows], color=PALE, linewidth=0.5, zorder=0)
        panel.add_patch(Rectangle(corner, columns, rows, fill=False, edgecolor=GRAY, linewidth=1))
    panel.add_patch(Rectangle((-0.5, -0.5), 1, 1, facecolor=PALE, edgecolor=GRAY, zorder=1))
    for head, (place, matrix) in enumerate(zip(layer.center, layer.matrices, strict=True)):
        color = COLORS[head % len(COLORS)]
        for mass, line in zip(MASSES, ("-", (0, (4, 2))), strict=True):
            contour = mass_contour(matrix, mass)
            if contour is not None:
                x, y = (contour + place)[:, 1], (contour + place)[:, 0]
                panel.plot(x.tolist(), y.tolist(), color=color, linestyle=line, linewidth=1.2, zorder=2)
        row, column = place.tolist()
        panel.plot([column], [row], "o", color=color, markersize=4, zorder=3)
        panel.annotate(
            str(head),
            (column, row),
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=9,
            fontweight="bold",
            color=color,
            path_effects=[withStroke(linewidth=2, foreground="white")],
            zorder=4,
        )
    panel.set_xlim(*limits[1])
    panel.set_ylim(*reversed(limits[0]))
    panel.set_aspect("equal")
    whole_ticks(panel, "x", "y")


def _draw_line(panel: Axes, layer: _HeadLayer, limits: list[tuple[float, float]]) -> None:
    """One row per head."""
    panel.axvspan(-0.5, 0.5, color=PALE, linewidth=0, zorder=0)
    if layer.grid is not None:
        size = layer.grid[0]
        for edge in (-(size // 2) - 0.5, size - size // 2 - 0.5):
            panel.axvline(edge, color=GRAY, linewidth=1, zorder=0)
    for head, (place, matrix) in enumerate(zip(layer.center[:, 0].tolist(), layer.matrices, strict=True)):
        color = COLORS[head % len(COLORS)]
        for mass, width in zip(MASSES, (4.0, 1.2), strict=True):
            ends = mass_contour(matrix, mass)
            if ends is not None:
                panel.plot((ends[:, 0] + place).tolist(), [head] * 2, color=color, linewidth=width, zorder=2)
        panel.plot([place], [head], "o", color="white", markeredgecolor=color, markersize=5, zorder=3)
    panel.set_xlim(*limits[0])
    panel.set_ylim(len(layer.center) - 0.5, -0.5)
    whole_ticks(panel, "x", "y")
