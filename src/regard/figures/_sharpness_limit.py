"""The limit in which attention becomes convolution: as sharpness grows, one key gets all the weight."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.figures.style import COLORS, GRAY, Figure, PathArgument, finish, new_figure, plain, tidy
from regard.reference import gaussian_scores, grid_coordinates, softargmax
from regard.support.checks import check_floating, check_grid, describe

SMALLEST = 1e-16  # the lower end of the logarithmic axis
LINES = ("-", "--", "-.", ":")


def limit(
    center: Sequence[int | float] = (1.0, 1.0),
    grid: Sequence[int] = (9, 9),
    *,
    sharpness: Float[Tensor, "values"] | None = None,
    distances: int = 3,
    path: PathArgument = None,
) -> Figure:
    r"""The weights of a Gaussian head as its sharpness grows, for a query in the middle of the grid.

    .. math:: \lim_{\alpha \to \infty} \mathrm{softmax}_k\big(-\alpha \|\delta - \Delta\|^2\big) =
        \begin{cases} 1/m & \text{for the } m \text{ keys nearest to } \Delta \\ 0 & \text{for all others} \end{cases}

    If Δ is a key, m = 1: the weight at δ = Δ goes to one, and the weight at distance r from it decreases as
    :math:`e^{-\alpha r^2}`. The left panel shows the weights; the right one, with logarithmic axes, shows their
    distance from the limit.

    Args:
        center: Δ, one number per axis. Keys at equal distance from it share the weight.
        grid: the size of each axis.
        sharpness: the values of α to draw; default: 0.01 to 40.
        distances: how many of the next nearest distances :math:`\|\delta - \Delta\|` to draw beside the nearest.
        path: where to save the figure.

    >>> figure = regard.figures.limit()
    >>> figure.axes[0].get_legend().get_texts()[0].get_text()
    'δ = Δ, limit 1'
    """
    place = _center(center, grid)
    if sharpness is None:
        sharpness = torch.logspace(-2, math.log10(40), 200, dtype=torch.float64)
    check_floating("sharpness", sharpness)
    if sharpness.ndim != 1 or len(sharpness) < 2:
        raise ValueError(f"sharpness must be a 1-D tensor of two values or more, got {describe(sharpness)}")
    sharpness = plain(sharpness)
    if not bool((sharpness > 0).all()):
        raise ValueError(f"sharpness must be above 0, but its smallest value is {float(sharpness.min())}")
    if isinstance(distances, bool) or not isinstance(distances, int) or distances < 1:
        raise ValueError(f"distances must be a whole number of 1 or more, got {describe(distances)}")

    weights, squared = _weights(place, sharpness, grid)
    levels = squared.unique()[: distances + 1]
    nearest = int((squared == levels[0]).sum())
    figure, (left, right) = new_figure(1, 2, width=5.2, height=4.2)
    for number, level in enumerate(levels):
        near = squared == level
        count = int(near.sum())
        one = weights[:, near].mean(1)
        goal = 1 / count if number == 0 else 0.0
        # The nearest keys lack the weight of the others; this sum has no cancellation.
        gap = weights[:, ~near].sum(1) / count if number == 0 else one
        style: dict[str, Any] = {
            "color": COLORS[number % len(COLORS)],
            "linestyle": LINES[number % len(LINES)],
            "linewidth": 1.8,
        }
        left.plot(sharpness.tolist(), one.tolist(), label=_name(float(level), number, count), **style)
        right.plot(sharpness.tolist(), gap.clamp_min(1e-300).tolist(), **style)
        left.axhline(goal, color=GRAY, linewidth=0.6, zorder=0)
    tidy(left, title="A key's weight", x="sharpness α", y="weight")
    left.set_ylim(-0.03, 1.03)
    left.set_xlim(0, min(float(sharpness.max()), 10 / float(levels[1] - levels[0])) if len(levels) > 1 else None)
    left.legend(fontsize=8, frameon=False, loc="center right" if nearest == 1 else "upper right")
    tidy(right, title="Its distance from the limit, logarithmic", x="sharpness α", y="|weight − limit|")
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_ylim(SMALLEST, 2)
    right.grid(color="#EEEEEE")
    shown = ", ".join(f"{x:g}" for x in place)
    taken = "the nearest key gets" if nearest == 1 else f"the {nearest} nearest keys share"
    where = f"Δ = ({shown}), grid {' × '.join(map(str, grid))}, query in the middle"
    figure.suptitle(f"As sharpness grows, {taken} all the weight ({where})", fontsize=11)
    return finish(figure, path)


def _weights(place: list[float], sharpness: Tensor, grid: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Weights of every key for every sharpness, (values, keys), and every key's squared distance from the target."""
    center = torch.tensor([place], dtype=torch.float64)
    middle = [n // 2 for n in grid]
    queries = [torch.tensor([m], dtype=torch.float64) for m in middle]
    scores = gaussian_scores(center.expand(len(sharpness), -1), sharpness, grid, queries=queries)[:, 0]
    distance = grid_coordinates(grid, dtype=torch.float64) - torch.tensor(middle, dtype=torch.float64) - center
    # Rounded, so that keys at the same distance are one group.
    return softargmax(scores), (distance.square().sum(-1) * 1e9).round() / 1e9


def _name(squared: float, number: int, count: int) -> str:
    distance = f"{math.sqrt(squared):.3g}"
    shared = f" ({count} keys)" if count > 1 else ""
    if number:
        return f"‖δ − Δ‖ = {distance}{shared}, limit 0"
    goal = "1" if count == 1 else f"1/{count}"
    return f"δ = Δ, limit {goal}" if squared == 0 else f"nearest, ‖δ − Δ‖ = {distance}{shared}, limit {goal}"


def _center(center: Any, grid: Any) -> list[float]:
    check_grid(grid)
    if not isinstance(center, Sequence) or len(center) != len(grid):
        raise ValueError(
            f"center must hold {len(grid)} number(s), one per axis of grid {tuple(grid)}, got {describe(center)}"
        )
    if not all(isinstance(x, int | float) and math.isfinite(x) for x in center):
        raise ValueError(f"center must hold finite numbers, got {center!r}")
    return [float(x) for x in center]
