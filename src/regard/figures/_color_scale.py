"""The color scale of weights, relative to uniform attention, with a color bar in percent."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from regard.figures._label_fonts import drawn_title
from regard.figures._wrapped_texts import wrap_text
from regard.figures.style import DIVERGING, Figure

MOST_CELLS = 400  # cells per side; larger maps are pooled
Pool = Literal["largest", "mass"]
POOLS: tuple[Pool, ...] = ("largest", "mass")
# The colors of the interactive views on a light page.
STOPS = ("#ffffff", "#dceaf6", "#a5cbe6", "#5a9fcf", "#2170ae", "#0d4583", "#061f47")


def scale_position(lift: Tensor, top: float) -> Tensor:
    """The position of a multiple of uniform attention (lift) on the color scale: log(1 + lift) / log(1 + top), with its sign.

    >>> scale_position(torch.tensor([0.0, 40.0]), 40).tolist()
    [0.0, 1.0]
    """
    return lift.sign() * (lift.abs().log1p() / math.log1p(max(top, 1.0))).clamp_max(1)


def pooled(lift: Tensor, most: tuple[int, int], pool: Pool = "largest") -> Tensor:
    """Pool to a limited number of rows and columns, each the largest of its weights, so that no line disappears; or their mean,
    which shows the mass.

    >>> [pooled(torch.eye(1000), (250, 250), pool).diagonal().mean().item() for pool in POOLS]
    [1.0, 0.25]
    """
    sides = min(most[0], lift.shape[0]), min(most[1], lift.shape[1])
    if sides == tuple(lift.shape):
        return lift
    if pool == "mass":
        return torch.nn.functional.adaptive_avg_pool2d(lift[None], sides)[0]
    high, low = (torch.nn.functional.adaptive_max_pool2d(sign * lift[None], sides)[0] for sign in (1, -1))
    return torch.where(low > high.abs(), -low, high)


def paint(
    panel: Any,
    lift: Tensor,
    top: float,
    signed: bool,
    *,
    shape: tuple[int, int] | None = None,
    most: int = MOST_CELLS,
    pool: Pool = "largest",
    alpha: float = 1.0,
) -> Any:
    """Draw weights as multiples of uniform attention, (rows, columns).

    Args:
        panel: where to draw.
        lift: the multiples.
        top: the multiple that a weight of 1 has.
        signed: whether the figure has negative weights.
        shape: the numbers of rows and columns that they stand for; default: their own.
        most: the number of cells per side; a larger map is pooled.
        pool: how.
        alpha: less than 1 shows what is below.
    """
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    from regard.figures._pooled_image import PooledImage

    rows, columns = lift.shape if shape is None else shape
    colors = DIVERGING if signed else LinearSegmentedColormap.from_list("regard", STOPS)
    box = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    cells = pooled(lift, (most, most), pool)
    shown = PooledImage(
        panel,
        (cells.shape[0], cells.shape[1]),
        lambda shape: scale_position(pooled(cells, shape, pool), top),
        extent=box,
        origin="upper",
        cmap=colors,
        norm=Normalize(-1 if signed else 0, 1),
        alpha=alpha,
        interpolation="nearest",
    )
    panel.add_image(shown)
    shown.set_clip_path(panel.patch)
    shown.set_extent(box)  # which sets the limits of the axes
    panel.set_aspect("auto")
    return shown


def add_color_bar(figure: Figure, panels: Any, shown: Any, top: float, signed: bool, title: str) -> None:
    shares = [0.0, *([1 / top, *(share for share in (0.1, 0.5, 1.0) if share > 1.8 / top)] if top >= 1 else [])]
    places = scale_position(torch.tensor(shares) * top, top).tolist()
    names = ["0", *(f"{_percent(share)}\nuniform" for share in shares[1:2]), *(_percent(share) for share in shares[2:])]
    if signed:
        places += [-place for place in places[1:]]
        names += [f"−{_percent(share)}" for share in shares[1:]]
    wide, tall = figure.get_size_inches()
    long = 40 * max(1.0, wide / tall)  # as long as the panels, also if these have few rows
    bar = figure.colorbar(shown, ax=panels, orientation="horizontal", fraction=0.05, pad=0.03, aspect=long)
    bar.set_ticks(places, labels=names, fontsize=6)
    bar.outline.set_linewidth(0.4)
    if title:
        add_title(figure, title)
    _thin_ticks(figure, bar, places, names)


def _thin_ticks(figure: Figure, bar: Any, places: list[float], names: list[str]) -> None:
    """Leave out marks that would lie on others: those of uniform attention and of the ends stay, as on the pages."""
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in bar.ax.get_xticklabels()]
    order = [
        *(i for i, name in enumerate(names) if name.endswith("uniform")),
        *sorted(range(len(names)), key=lambda i: -abs(places[i])),
    ]
    kept: list[int] = []
    for i in dict.fromkeys(order):
        if all(boxes[i].x1 < boxes[j].x0 or boxes[i].x0 > boxes[j].x1 for j in kept):
            kept.append(i)
    if len(kept) < len(names):
        bar.set_ticks([places[i] for i in sorted(kept)], labels=[names[i] for i in sorted(kept)], fontsize=6)


def add_title(figure: Figure, title: str) -> None:
    """Write a title in lines that fit the figure."""
    said, fonts = drawn_title(title)
    wrap_text(figure.suptitle(said, fontsize=8, fontfamily=fonts), figure.bbox.width)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.2g} %"
