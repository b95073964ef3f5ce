"""Where Gaussian heads look: their centers, and how far around them."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.figures._figure import (
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
    r"""Centers of Gaussian heads as seen from the query, with the contours that hold 50 % and 90 % of their mass.

    The density :math:`e^{-(x - \Delta)^\top S (x - \Delta)}` in the plane has mass p within
    :math:`(x - \Delta)^\top S (x - \Delta) \le -\ln(1 - p)`: a circle of radius :math:`\sqrt{-\ln(1 - p)/\alpha}` for
    :math:`S = \alpha I`, else an ellipse. Along one axis the mass p lies within
    :math:`\mathrm{erf}^{-1}(p)/\sqrt\alpha`. That is the bump on an endless plane; on pixels a sharp head's mass sits
    on one of them. A head with S not positive spreads without end along some direction: it has a center but no
    contour.

    Args:
        center, sharpness: of one layer's heads, as for :func:`regard.gaussian_attention`, one or two axes; or a list of
            each with an entry per layer, drawn side by side.
        grid: the size of each axis, outlined around the query in the middle. Without it the view fits the heads. Layers
            with grids of their own take a list, with an entry (or None) per layer: then each panel shows its own.
        titles: a name for each layer. Default: ``"layer 1"`` and so on.
        columns: panels side by side, at most 4 by default.
        path: where to save the picture.

    >>> center = torch.tensor([[0.0, 0.0], [-2.0, 3.0]])
    >>> figure = regard.figures.heads(center, torch.tensor([0.5, 2.0]), (8, 8))
    >>> figure.axes[0].get_title()
    '2 heads'
    """
    centers, sharpnesses = _layers(center, sharpness)
    for number, one_center in enumerate(centers):
        axes = one_center.shape[-1] if isinstance(one_center, Tensor) and one_center.ndim else 0
        if axes not in (1, 2):
            raise ValueError(f"center must be (heads, 1) or (heads, 2) to be drawn, got {describe(one_center)}")
        if axes != centers[0].shape[-1]:
            raise ValueError(f"center[{number}] has {axes} axes but center[0] has {centers[0].shape[-1]}")
    grids = _grids(grid, len(centers))
    for one_center, one_sharpness, own in zip(centers, sharpnesses, grids, strict=True):
        check_gaussian_heads(one_center, one_sharpness, (1,) * one_center.shape[-1] if own is None else own)
    if columns is not None:
        check_positive("columns", columns)
    if titles is not None and len(titles) != len(centers):
        raise ValueError(f"titles has {len(titles)} entries, but there are {len(centers)} layers")

    axes = centers[0].shape[-1]
    rows, columns = arrange(len(centers), columns)
    figure, panels = new_figure(rows, columns, width=4.0 if axes == 2 else 5.0, height=4.2 if axes == 2 else 3.2)
    draw = _draw_plane if axes == 2 else _draw_line
    limits = [_limits(centers, sharpnesses, grids[0])] * len(centers)
    if len(set(grids)) > 1:  # a step is a token of that layer: one scale for all would be another place in the image
        limits = [_limits([c], [s], own) for c, s, own in zip(centers, sharpnesses, grids, strict=True)]
    for number, panel in enumerate(panels):
        if number >= len(centers):
            panel.set_visible(False)
            continue
        matrices = _matrices(centers[number], sharpnesses[number])
        unbounded = draw(panel, plain(centers[number]), matrices, grids[number], limits[number])
        count = f"{len(centers[number])} heads" if len(centers[number]) != 1 else "1 head"
        title = titles[number] if titles is not None else (f"layer {number + 1}" if len(centers) > 1 else count)
        if len(set(grids)) > 1 and (own := grids[number]) is not None:
            title += f", {'×'.join(map(str, own))} tokens"
        if unbounded:
            title += f"\nno contour: {'heads' if len(unbounded) > 1 else 'head'} {', '.join(map(str, unbounded))}"
        if axes == 2:
            tidy(panel, title=title, x="column offset, key − query", y="row offset, key − query")
        else:
            tidy(panel, title=title, x="offset, key − query", y="head")
    inner, outer = (f"{mass:.0%}" for mass in MASSES)
    if axes == 2:
        key = f"gray: the query; solid: {inner} of the mass, dashed: {outer}"
    else:
        key = f"gray: the query; thick: {inner} of the mass, thin: {outer}"
    figure.suptitle(f"Where heads look from the query\n{key}", fontsize=10)
    if rows > 1:  # squares of equal steps: a row's labels would reach into the next one's titles
        engine: Any = figure.get_layout_engine()
        engine.set(h_pad=0.12)
    return finish(figure, path)


def mass_contour(
    matrix: Float[Tensor, "axes axes"], mass: float, points: int = 181
) -> Float[Tensor, "points axes"] | None:
    r"""Points x around 0 with :math:`x^\top S x = -\ln(1 - p)` (two axes), or the two ends of the interval (one axis).

    None where S is not positive, for then no bounded region holds the mass.

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


def _layers(center: Any, sharpness: Any) -> tuple[list[Tensor], list[Tensor]]:
    if isinstance(center, Tensor) != isinstance(sharpness, Tensor):
        raise TypeError(
            f"center and sharpness must both be tensors or both lists of tensors, one per layer, got "
            f"{describe(center)} and {describe(sharpness)}"
        )
    if isinstance(center, Tensor):
        return [center], [sharpness]
    centers, sharpnesses = list(center), list(sharpness)
    if not centers or len(centers) != len(sharpnesses):
        raise ValueError(f"center has {len(centers)} layers but sharpness has {len(sharpnesses)}")
    return centers, sharpnesses


def _grids(grid: Any, layers: int) -> list[tuple[int, ...] | None]:
    """One for each layer, checked."""
    several = isinstance(grid, list | tuple) and any(each is None or isinstance(each, Sequence) for each in grid)
    grids = list(grid) if several else [grid] * layers
    if len(grids) != layers:
        raise ValueError(f"grid has {len(grids)} entries, but there are {layers} layers")
    for each in grids:
        if each is not None:
            check_grid(each)
    return [None if each is None else tuple(each) for each in grids]


def _matrices(center: Tensor, sharpness: Tensor) -> Tensor:
    """S of each head, (heads, axes, axes)."""
    sharpness = plain(sharpness)
    axes = center.shape[-1]
    if sharpness.ndim == 1:
        return sharpness[:, None, None] * torch.eye(axes, dtype=sharpness.dtype)
    return torch.diag_embed(sharpness) if sharpness.ndim == 2 else (sharpness + sharpness.mT) / 2


def _limits(centers: list[Tensor], sharpnesses: list[Tensor], grid: Sequence[int] | None) -> list[tuple[float, float]]:
    """What to show of each axis: the grid around the query, all centers, and without a grid the contours."""
    axes = centers[0].shape[-1]
    low, high = [-1.5] * axes, [1.5] * axes
    # A nearly flat head would shrink all others to a point.
    farthest = max(8.0, *(2 * float(plain(center).abs().max()) for center in centers if center.numel()), 0.0)
    if grid is not None:
        low, high = [-(n // 2) - 0.5 for n in grid], [n - n // 2 - 0.5 for n in grid]
    for center, sharpness in zip(centers, sharpnesses, strict=True):
        for place, matrix in zip(plain(center), _matrices(center, sharpness), strict=True):
            contour = mass_contour(matrix, MASSES[1]) if grid is None else None
            shown = place[None] if contour is None else (contour + place).clamp(-farthest, farthest)
            for axis in range(axes):
                low[axis] = min(low[axis], float(shown[:, axis].min()) - 0.5)
                high[axis] = max(high[axis], float(shown[:, axis].max()) + 0.5)
    return [(a - 0.02 * (b - a), b + 0.02 * (b - a)) for a, b in zip(low, high, strict=True)]


def _draw_plane(
    panel: Axes, center: Tensor, matrices: Tensor, grid: Sequence[int] | None, limits: list[tuple[float, float]]
) -> list[int]:
    """Rows run down, as in an image. Returns the heads without a contour."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    if grid is not None:
        rows, columns = grid
        corner = (-(columns // 2) - 0.5, -(rows // 2) - 0.5)
        for row in range(rows + 1):
            panel.plot([corner[0], corner[0] + columns], [corner[1] + row] * 2, color=PALE, linewidth=0.5, zorder=0)
        for column in range(columns + 1):
            panel.plot([corner[0] + column] * 2, [corner[1], corner[1] + rows], color=PALE, linewidth=0.5, zorder=0)
        panel.add_patch(Rectangle(corner, columns, rows, fill=False, edgecolor=GRAY, linewidth=1))
    panel.add_patch(Rectangle((-0.5, -0.5), 1, 1, facecolor=PALE, edgecolor=GRAY, zorder=1))
    unbounded = []
    for head, (place, matrix) in enumerate(zip(center, matrices, strict=True)):
        color = COLORS[head % len(COLORS)]
        for mass, line in zip(MASSES, ("-", (0, (4, 2))), strict=True):
            contour = mass_contour(matrix, mass)
            if contour is not None:
                x, y = (contour + place)[:, 1], (contour + place)[:, 0]
                panel.plot(x.tolist(), y.tolist(), color=color, linestyle=line, linewidth=1.2, zorder=2)
        if mass_contour(matrix, MASSES[0]) is None:
            unbounded.append(head)
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
    return unbounded


def _draw_line(
    panel: Axes, center: Tensor, matrices: Tensor, grid: Sequence[int] | None, limits: list[tuple[float, float]]
) -> list[int]:
    """One row per head. Returns the heads without a contour."""
    panel.axvspan(-0.5, 0.5, color=PALE, linewidth=0, zorder=0)
    if grid is not None:
        for edge in (-(grid[0] // 2) - 0.5, grid[0] - grid[0] // 2 - 0.5):
            panel.axvline(edge, color=GRAY, linewidth=1, zorder=0)
    unbounded = []
    for head, (place, matrix) in enumerate(zip(center[:, 0].tolist(), matrices, strict=True)):
        color = COLORS[head % len(COLORS)]
        for mass, width in zip(MASSES, (4.0, 1.2), strict=True):
            ends = mass_contour(matrix, mass)
            if ends is not None:
                panel.plot((ends[:, 0] + place).tolist(), [head] * 2, color=color, linewidth=width, zorder=2)
        if mass_contour(matrix, MASSES[0]) is None:
            unbounded.append(head)
        panel.plot([place], [head], "o", color="white", markeredgecolor=color, markersize=5, zorder=3)
    panel.set_xlim(*limits[0])
    panel.set_ylim(len(center) - 0.5, -0.5)
    whole_ticks(panel, "x", "y")
    return unbounded
