"""Relative positions: the attention of a Gaussian head from some queries."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.figures._checks import is_drawable
from regard.figures.style import (
    COLORS,
    GRAY,
    SEQUENTIAL,
    Axes,
    Figure,
    PathArgument,
    finish,
    new_figure,
    plain,
    tidy,
    whole_ticks,
)
from regard.reference import gaussian_scores, softargmax
from regard.support.checks import TEXT, check_gaussian_heads, describe

Query = Sequence[int | float]
Limits = list[tuple[float, float]]


def relative_positions(
    center: Float[Tensor, "heads axes"],
    sharpness: Float[Tensor, "heads *axes_or_matrix"],
    grid: Sequence[int],
    *,
    queries: Sequence[Query | int | float] | None = None,
    path: PathArgument = None,
) -> Figure:
    r"""The attention of Gaussian heads: one row of panels per head, one panel per query.

    .. math:: A_{qk} = \mathrm{softmax}_k\big(-(\delta - \Delta)^\top S\,(\delta - \Delta)\big), \qquad \delta = k - q

    A circle marks the query q, a cross marks the target q + Δ. If the target is outside the grid, the keys nearest to
    it get the weight.

    Args:
        center, sharpness, grid: as for :func:`regard.gaussian_attention`; one or two axes.
        queries: coordinates, ``(row, column)`` each, or one number each for a single axis. Default: two opposite corners
            and the middle.
        path: where to save the figure.

    >>> center, sharpness = torch.tensor([[0.0, 2.0]]), torch.tensor([0.5])
    >>> figure = regard.figures.relative_positions(center, sharpness, (8, 8), queries=[(4, 4)])
    >>> figure.axes[0].get_title()
    'head 0, query (4, 4)'
    """
    check_gaussian_heads(center, sharpness, grid)
    for name, values in (("center", center), ("sharpness", sharpness)):
        if not is_drawable(values) or not bool(values.isfinite().all()):
            raise ValueError(
                f"{name} must be finite to be drawn, got {describe(values)} with NaN, infinity or no values"
            )
    if len(grid) not in (1, 2):
        raise ValueError(f"grid must have one or two axes to be drawn, got {tuple(grid)}")
    if not len(center):
        raise ValueError(f"center must hold one head or more, got {describe(center)}")
    places = _places(queries, grid)
    center, sharpness = plain(center), plain(sharpness)
    heads, two = len(center), len(grid) == 2
    targets = [[[x + d for x, d in zip(place, one.tolist(), strict=True)] for place in places] for one in center]
    limits = _limits([*places, *(target for row in targets for target in row)], grid)
    figure, panels = new_figure(
        heads, len(places), width=4.2 if len(places) == 1 else 3.0 if two else 3.6, height=3.0 if two else 2.4
    )
    for head in range(heads):
        own = slice(head, head + 1)
        maps = [_weights(center[own], sharpness[own], grid, place) for place in places]
        # One scale for all panels of a head, so that they can be compared.
        largest = max(float(weights.max()) for weights in maps)
        row = panels[head * len(places) : (head + 1) * len(places)]
        for panel, place, target, weights in zip(row, places, targets[head], maps, strict=True):
            where = f"({', '.join(f'{x:g}' for x in place)})" if two else f"{place[0]:g}"
            title = f"head {head}, query {where}"
            if two:
                image = _draw_map(panel, weights, place, target, limits, largest)
                tidy(panel, title=title, x="key column", y="key row")
            else:
                _draw_bars(panel, weights, place, target, limits, largest)
                tidy(panel, title=title, x="key", y="weight")
        if two:
            figure.colorbar(image, ax=row, shrink=0.8, label="weight, square-root scale")
    key = "circle = query, cross = target of the head"
    figure.suptitle(f"What a query attends to{chr(10) if len(places) == 1 else ': '}{key}", fontsize=11)
    return finish(figure, path)


def _places(queries: Any, grid: Sequence[int]) -> list[tuple[int | float, ...]]:
    if queries is None:
        return list(dict.fromkeys((tuple(0 for _ in grid), tuple(n // 2 for n in grid), tuple(n - 1 for n in grid))))
    if not isinstance(queries, Sequence) or isinstance(queries, TEXT) or not len(queries):
        raise ValueError(f"queries must be a list of coordinates, as in [(0, 0), (4, 4)], got {describe(queries)}")
    places = []
    for query in queries:
        place = (query,) if isinstance(query, int | float) else query
        if (
            not isinstance(place, Sequence)
            or len(place) != len(grid)
            or not all(isinstance(x, int | float) for x in place)
        ):
            raise ValueError(f"queries must hold {len(grid)} coordinate(s) each for grid {tuple(grid)}, got {query!r}")
        places.append(tuple(place))
    return places


def _limits(seen: Sequence[Query], grid: Sequence[int]) -> Limits:
    """The range to draw on each axis: the grid, and half a token around each of these coordinates."""
    return [
        (min(-0.5, *(x[axis] - 0.5 for x in seen)), max(size - 0.5, *(x[axis] + 0.5 for x in seen)))
        for axis, size in enumerate(grid)
    ]


def _weights(center: Tensor, sharpness: Tensor, grid: Sequence[int], place: Query) -> Tensor:
    """What one head gives to each key of the grid, from the query at ``place``."""
    queries = [torch.tensor([x], dtype=torch.float64) for x in place]
    return softargmax(gaussian_scores(center, sharpness, grid, queries=queries)).reshape(tuple(grid))


def _draw_map(panel: Axes, weights: Tensor, place: Query, target: Query, limits: Limits, largest: float) -> Any:
    from matplotlib.colors import PowerNorm

    # The square root keeps a wide head visible beside one that the border made sharp.
    norm = PowerNorm(0.5, vmin=0, vmax=largest)
    image = panel.imshow(weights.numpy(), cmap=SEQUENTIAL, norm=norm, interpolation="none")
    # White on black is visible on every color.
    for color, width in (("black", 3.0), ("white", 1.4)):
        panel.plot(
            [place[1]],
            [place[0]],
            "o",
            markersize=9,
            markerfacecolor="none",
            markeredgecolor=color,
            markeredgewidth=width,
        )
        panel.plot([target[1]], [target[0]], "x", markersize=7, markeredgecolor=color, markeredgewidth=width)
    panel.set_xlim(*limits[1])
    panel.set_ylim(*reversed(limits[0]))
    panel.set_facecolor("#EEEEEE")
    whole_ticks(panel, "x", "y")
    return image


def _draw_bars(panel: Axes, weights: Tensor, place: Query, target: Query, limits: Limits, largest: float) -> None:
    panel.bar(range(len(weights)), weights.tolist(), width=0.9, color=COLORS[0])
    panel.plot(
        [place[0]], [0], "o", markersize=8, markerfacecolor="white", markeredgecolor="black", clip_on=False, zorder=3
    )
    panel.plot([target[0]], [0], "x", markersize=8, color=COLORS[1], markeredgewidth=2, clip_on=False, zorder=4)
    panel.axvline(target[0], color=GRAY, linewidth=0.8, linestyle=":")
    panel.set_xlim(*limits[0])
    panel.set_ylim(0, 1.08 * largest)
    whole_ticks(panel, "x")
