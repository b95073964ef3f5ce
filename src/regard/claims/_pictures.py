"""The pictures of claims: curves, maps and bars, drawn when someone looks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from regard.figures._figure import COLORS, GRAY, SEQUENTIAL, Figure, new_figure, plain, tidy

Series = Mapping[str, tuple[Sequence[int | float], Sequence[int | float]]]
Draw = Callable[[], Figure]
_LINES, _MARKS = ("-", "--", "-.", ":"), ("o", "s", "^", "D", "v", "x")


def curves(
    title: str, x: str, y: str, series: Series, *, log_x: bool = False, log_y: bool = False, marks: bool = False
) -> Draw:
    """Lines, by name."""

    def draw() -> Figure:
        figure, (panel,) = new_figure(1, 1, width=5.6, height=3.8)
        for number, (name, (xs, ys)) in enumerate(series.items()):
            panel.plot(
                list(xs),
                list(ys),
                label=name,
                color=COLORS[number % len(COLORS)],
                linestyle=_LINES[number % len(_LINES)],
                marker=_MARKS[number % len(_MARKS)] if marks else None,
                markersize=4,
            )
        if log_x:
            panel.set_xscale("log")
        if log_y:
            panel.set_yscale("log")
        if len(series) > 1:
            panel.legend(fontsize=8, frameon=False)
        tidy(panel, title=title, x=x, y=y)
        return figure

    return draw


def maps(title: str, matrices: Mapping[str, Tensor], *, x: str = "key", y: str = "query") -> Draw:
    """Matrices side by side, on one scale from 0 to the largest."""

    def draw() -> Figure:
        figure, panels = new_figure(1, len(matrices), width=2.8, height=3.0)
        top = max(float(plain(matrix).max()) for matrix in matrices.values()) or 1.0
        image: Any = None
        for panel, (name, matrix) in zip(panels, matrices.items(), strict=True):
            image = panel.imshow(plain(matrix).numpy(), cmap=SEQUENTIAL, vmin=0, vmax=top, interpolation="none")
            tidy(panel, title=name, x=x, y=y)
            panel.set_xticks([])
            panel.set_yticks([])
        figure.colorbar(image, ax=panels, shrink=0.7)
        figure.suptitle(title, fontsize=10)
        return figure

    return draw


def bars(title: str, y: str, values: Mapping[str, float], *, limit: float | None = None, log_y: bool = False) -> Draw:
    """One bar for each name, and a line for a limit."""

    def draw() -> Figure:
        figure, (panel,) = new_figure(1, 1, width=max(3.6, 1.3 * len(values)), height=3.4)
        colors = [COLORS[number % len(COLORS)] for number in range(len(values))]
        panel.bar(list(values), list(values.values()), color=colors, width=0.6)
        if limit is not None:
            panel.axhline(limit, color=GRAY, linestyle="--", linewidth=1)
            panel.annotate("limit", (0.0, limit), xytext=(0, 3), textcoords="offset points", fontsize=8, color=GRAY)
        if log_y:
            panel.set_yscale("log")
        tidy(panel, title=title, x="", y=y)
        return figure

    return draw


def errors(title: str, found: Mapping[str, Mapping[str, Any]]) -> Draw | None:
    """How far each variant of a statement is from what is measured, next to what counts as none."""
    lowest, highest = 1e-17, 1e3
    values = {
        name: min(max(float(numbers["error"]), lowest), highest)
        for name, numbers in found.items()
        if "error" in numbers
    }
    if not values:
        return None
    limit = max(float(numbers["tolerance"]) for numbers in found.values() if "tolerance" in numbers)
    return bars(title, "largest difference", values, limit=limit, log_y=True)
