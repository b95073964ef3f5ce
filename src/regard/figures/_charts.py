"""Plain charts: curves, matrices side by side, and bars."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from regard.figures._checks import (
    check_finite,
    check_flags,
    check_labels,
    check_named,
    has_single_point,
    is_matrix,
    is_number,
    is_numbers,
)
from regard.figures._label_fonts import drawn_title
from regard.figures.style import (
    COLORS,
    DIVERGING,
    GRAY,
    SEQUENTIAL,
    Figure,
    PathArgument,
    finish,
    new_figure,
    plain,
    tidy,
)
from regard.support.checks import describe

Series = Mapping[str, tuple[Sequence[int | float], Sequence[int | float]]]
_LINES, _MARKS = ("-", "--", "-.", ":"), ("o", "s", "^", "D", "v", "x")


def _is_line(pair: object) -> bool:
    return (
        isinstance(pair, tuple | list)
        and len(pair) == 2
        and all(map(is_numbers, pair))
        and len(pair[0]) == len(pair[1])
    )


def curves(
    title: str,
    x: str,
    y: str,
    series: Series,
    *,
    log_x: bool = False,
    log_y: bool = False,
    marks: bool = False,
    path: PathArgument = None,
) -> Figure:
    """One line per name in ``series``, which maps a name to its x and y values.

    >>> figure = regard.figures.curves("Squares", "n", "n²", {"n²": ([1, 2, 3], [1, 4, 9])}, log_y=True)
    >>> figure.axes[0].get_yscale()
    'log'
    """
    check_labels(title=title, x=x, y=y)
    check_flags(log_x=log_x, log_y=log_y, marks=marks)
    check_named("series", series, "x and y values, as many of each", _is_line)
    figure, (panel,) = new_figure(1, 1, width=5.6, height=max(3.8, 1.0 + 0.17 * len(series)))  # the legend fits
    for number, (name, (xs, ys)) in enumerate(series.items()):
        panel.plot(
            list(xs),
            list(ys),
            label=name,
            color=COLORS[number % len(COLORS)],
            linestyle=_LINES[number % len(_LINES)],
            # A point without a neighbor has no line.
            marker=_MARKS[number % len(_MARKS)] if marks or has_single_point(ys) else None,
            markersize=4,
        )
    if log_x:
        panel.set_xscale("log")
    if log_y:
        panel.set_yscale("log")
    if len(series) > 1:
        panel.legend(fontsize=8, frameon=False)
    tidy(panel, title=title, x=x, y=y)
    return finish(figure, path)


def matrices(
    title: str, values: Mapping[str, Tensor], *, x: str = "key", y: str = "query", path: PathArgument = None
) -> Figure:
    """Matrices side by side, with one color scale from 0 to the largest entry. If an entry is negative, the colors diverge from
    zero.

    >>> [panel.get_title() for panel in regard.figures.matrices("Weights", {"one head": torch.eye(3)}).axes[:1]]
    ['one head']
    """
    check_labels(title=title, x=x, y=y)
    check_named("values", values, "matrices (tensors)", is_matrix)
    check_finite("values", *values.values())
    figure, panels = new_figure(1, len(values), width=2.8, height=3.0)
    top = max(float(plain(matrix).abs().max()) for matrix in values.values()) or 1.0
    signed = any(bool((matrix < 0).any()) for matrix in values.values())
    scale: dict[str, Any] = {"cmap": DIVERGING if signed else SEQUENTIAL, "vmin": -top if signed else 0, "vmax": top}
    for panel, (name, matrix) in zip(panels, values.items(), strict=True):
        image = panel.imshow(plain(matrix).numpy(), interpolation="none", **scale)
        tidy(panel, title=name, x=x, y=y)
        panel.set_xticks([])
        panel.set_yticks([])
    figure.colorbar(image, ax=panels, shrink=0.7)
    figure.suptitle(title, fontsize=10)
    return finish(figure, path)


def bars(
    title: str,
    y: str,
    values: Mapping[str, float],
    *,
    limit: float | None = None,
    log_y: bool = False,
    path: PathArgument = None,
) -> Figure:
    """One bar per name, and a dashed line at ``limit``.

    >>> regard.figures.bars("Errors", "error", {"float32": 1e-6, "float64": 1e-15}, log_y=True).axes[0].get_ylabel()
    'error'
    """
    check_labels(title=title, y=y)
    check_flags(log_y=log_y)
    check_named("values", values, "numbers", is_number)
    if limit is not None and not is_number(limit):
        raise TypeError(f"limit must be a number or None, got {describe(limit)}")
    figure, (panel,) = new_figure(1, 1, width=max(3.6, 1.3 * len(values)), height=3.4)
    colors = [COLORS[number % len(COLORS)] for number in range(len(values))]
    panel.bar(range(len(values)), list(values.values()), color=colors, width=0.6)
    _, fonts = drawn_title("\n".join(values))
    panel.set_xticks(range(len(values)), labels=[drawn_title(name)[0] for name in values], fontfamily=fonts)
    if limit is not None:
        panel.axhline(limit, color=GRAY, linestyle="--", linewidth=1)
        panel.annotate("limit", (0.0, limit), xytext=(0, 3), textcoords="offset points", fontsize=8, color=GRAY)
    if log_y:
        panel.set_yscale("log")
    tidy(panel, title=title, x="", y=y)
    return finish(figure, path)
