"""Shared parts of all figures: creation without pyplot, colors, labels and saving."""

import math
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.figures._label_fonts import draw_all_scripts
from regard.figures._plain_labels import plain_label as plain_label
from regard.figures._plain_labels import text_width as text_width
from regard.figures._wrapped_texts import wrap_texts
from regard.support.checks import check_path
from regard.support.files import open_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:  # only annotations need them; matplotlib is imported when something is drawn
    Axes = Figure = Any

PathArgument = str | PathLike[str] | None

# The palette of Okabe and Ito without its yellow, which is too pale for lines on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GRAY = "#777777"
PALE = "#DDDDDD"
SEQUENTIAL = "viridis"
DIVERGING = "PuOr"


def new_figure(rows: int, columns: int, *, width: float, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of rows × columns panels of ``width`` × ``height`` inches each, and its panels, row by row."""
    try:
        from matplotlib.figure import Figure as NewFigure
    except ImportError as missing:
        raise ImportError("regard.figures needs matplotlib: pip install 'regard[train]'") from missing
    figure = NewFigure(figsize=(columns * width, rows * height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(panels.flat)


def finish(figure: Figure, path: PathArgument) -> Figure:
    """Choose fonts for the characters of its texts, break long ones into lines, save the figure if a path is given (its suffix is
    the format; missing folders are made), and return it."""
    draw_all_scripts(figure)
    wrap_texts(figure)
    if path is not None:
        check_path("path", path)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_figure(figure, Path(path))
    return figure


def save_figure(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """Write a figure completely or not at all. The suffix of the path is the format; without one,
    matplotlib's default is added."""
    path = path if path.suffix else path.with_name(f"{path.name}.{figure.canvas.get_default_filetype()}")
    with open_output(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=dpi)


def tidy(panel: Axes, *, title: str, x: str, y: str) -> None:
    """Set the title and the labels of the axes, and remove the top and right spines."""
    panel.set_title(title, fontsize=10)
    panel.set_xlabel(x, fontsize=9)
    panel.set_ylabel(y, fontsize=9)
    panel.tick_params(labelsize=8)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def frame(panel: Axes) -> None:
    """A thin frame without ticks, for a picture that contains the color of the page."""
    panel.set_axis_on()
    panel.set_xticks([])
    panel.set_yticks([])
    for spine in panel.spines.values():
        spine.set(linewidth=0.4, edgecolor=GRAY)
        spine.set_position(("outward", 1.5))  # the first column may be one pixel wide


def whole_ticks(panel: Axes, *names: str) -> None:
    """Put ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    for name in names:
        getattr(panel, f"{name}axis").set_major_locator(MaxNLocator(6, integer=True))


def arrange(panels: int, columns: int | None = None) -> tuple[int, int]:
    """Rows and columns for this many panels: at most four columns, unless given, and as few rows as possible."""
    columns = min(panels, 4) if columns is None else min(panels, columns)
    return math.ceil(panels / columns), columns


def plain(value: Tensor) -> Tensor:
    """A tensor for matplotlib: float64, on the CPU, without gradients."""
    return value.detach().double().cpu()
