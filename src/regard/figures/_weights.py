"""Attention weights as a figure for a paper: colors relative to uniform attention, with a color bar in percent."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard.figures._color_scale import MOST_CELLS, STOPS, Pool, add_color_bar, add_title, paint
from regard.figures._label_fonts import drawn_title, token_labels
from regard.figures.style import Figure, new_figure, plain, text_width

COLUMN = 3.4  # inches: one column of a two-column paper
LABEL = 4.75  # points from one label to the next, at least


def weight_map(
    weights: Tensor,
    visible: Tensor,
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    title: str = "",
    width: float = COLUMN,
    pool: Pool = "largest",
    axes: tuple[str, str] = ("queries", "keys"),
) -> Figure:
    """A map, (queries, keys), with a label for each token and a color bar.

    Args:
        weights: the weights, signed or not.
        visible: how many keys each query may see, ``(queries,)``: uniform attention is one over this number.
        queries, keys: labels; default: numbers.
        title: the title of the map.
        width: the width of the figure, in inches.
        pool: what a cell of a large map shows: its largest weight, or its mean, which is in proportion to its mass.
        axes: what queries and keys are called.
    """
    lift = plain(weights) * plain(visible)[:, None]
    sides = [min(count, MOST_CELLS) for count in weights.shape]
    tall = width * min(1.6, 0.25 + sides[0] / sides[1])
    figure, (panel,) = new_figure(1, 1, width=width, height=max(tall, _least_height(keys, weights.shape[1])))
    top = float(visible.max())
    signed = bool((weights < 0).any())
    shown = paint(panel, lift, top, signed, pool=pool)
    _labels(panel.xaxis, keys, weights.shape[1], 90)
    _labels(panel.yaxis, queries, weights.shape[0], 0)
    panel.xaxis.tick_top()
    panel.set_xlabel(axes[1], fontsize=7)
    panel.xaxis.set_label_position("top")
    panel.set_ylabel(axes[0], fontsize=7)
    add_color_bar(figure, panel, shown, top, signed, title)
    _thin_labels(figure, [(panel, weights, queries, keys)])
    return figure


def weight_maps(
    maps: Sequence[Tensor],
    titles: Sequence[str],
    labels: Sequence[Sequence[Sequence[str] | None]],
    *,
    title: str = "",
    width: float = 2 * COLUMN,
    pool: Pool = "largest",
) -> Figure:
    """Maps side by side on one color scale, such as two maps and their difference.

    Args:
        maps: maps of (queries, keys).
        titles: a title for each map.
        labels: labels of the queries and of the keys, for each map; None for numbers.
        title: the title of the figure.
        width: the width of the figure, in inches.
        pool: as in :func:`weight_map`.
    """
    tall = max(weights.shape[0] / max(1, weights.shape[1]) for weights in maps)
    least = max(_least_height(reads, weights.shape[1]) for weights, (_, reads) in zip(maps, labels, strict=True))
    height = max(width / len(maps) * min(1.6, 0.4 + tall), least)
    figure, panels = new_figure(1, len(maps), width=width / len(maps), height=height)
    top = float(max(weights.shape[1] for weights in maps))
    shown = None
    for panel, weights, name, (asks, reads) in zip(panels, maps, titles, labels, strict=True):
        shown = paint(panel, plain(weights) * top, top, signed=True, pool=pool)
        _labels(panel.xaxis, reads, weights.shape[1], 90)
        _labels(panel.yaxis, asks, weights.shape[0], 0)
        said, fonts = drawn_title(name)
        panel.set_title(said, fontsize=7, fontfamily=fonts)
    add_color_bar(figure, panels, shown, top, True, title)
    drawn = zip(panels, maps, labels, strict=True)
    _thin_labels(figure, [(panel, weights, asks, reads) for panel, weights, (asks, reads) in drawn])
    return figure


def weight_image(
    row: Tensor,
    visible: int,
    *,
    image: Tensor | None = None,
    query: tuple[int, int] | None = None,
    title: str = "",
    width: float = COLUMN,
) -> Figure:
    """The weights of one query over the patches (rows, columns) of an image, beside the image with the query marked."""
    from matplotlib.patches import Rectangle

    panels = 1 if image is None else 2
    sides = image.shape[0] / image.shape[1] if image is not None else row.shape[0] / row.shape[1]
    figure, found = new_figure(1, panels, width=width / panels, height=width / panels * sides + 0.6)
    if image is not None:
        box = (-0.5, row.shape[1] - 0.5, row.shape[0] - 0.5, -0.5)
        found[0].imshow(image.numpy(), extent=box, aspect="auto")
    signed = bool((row < 0).any())
    shown = paint(found[-1], plain(row) * visible, float(visible), signed)
    for panel in found:
        panel.set_xticks([])
        panel.set_yticks([])
        if query is not None:
            mark = Rectangle((query[1] - 0.5, query[0] - 0.5), 1, 1, fill=False, edgecolor="#d55e00", linewidth=1.2)
            panel.add_patch(mark)
    add_color_bar(figure, found, shown, float(visible), signed, title)
    return figure


def weight_segments(
    pictures: Sequence[Tensor],
    text: Sequence[tuple[str, float]],
    visible: int,
    *,
    images: Sequence[Tensor | None],
    title: str = "",
    width: float | None = None,
    most: int = 16,
) -> Figure:
    """The weights of one query in a sequence of text and images: a panel for each image, and bars for words.

    Args:
        pictures: weights of the patches of each image, (rows, columns).
        text: words and their weights; the ``most`` with the largest weights are shown, in the order of the text.
        visible: how many keys the query may see.
        images: the pictures themselves, drawn below the weights.
        title: the title of the figure.
        width: the width of the figure, in inches; default: one column for one panel, else two.
    """
    panels = len(pictures) + bool(text)
    width = COLUMN * min(2, panels) if width is None else width
    figure, found = new_figure(1, panels, width=width / panels, height=width / panels + 0.6)
    signed = any(bool((weights < 0).any()) for weights in pictures)
    shown = None
    for panel, weights, image in zip(found, pictures, images, strict=False):
        if image is not None:
            box = (-0.5, weights.shape[1] - 0.5, weights.shape[0] - 0.5, -0.5)
            panel.imshow(image.float().mean(-1).numpy(), extent=box, aspect="auto", cmap="gray", vmin=0, vmax=255)
        shown = paint(panel, plain(weights) * visible, float(visible), signed, alpha=1.0 if image is None else 0.7)
        # As tall as the image is for its width, or with square patches.
        tall, wide = weights.shape if image is None else image.shape[:2]
        panel.set_aspect(tall / wide * weights.shape[1] / weights.shape[0])
        panel.set_xticks([])
        panel.set_yticks([])
    if text:
        best = sorted(sorted(range(len(text)), key=lambda i: -abs(text[i][1]))[:most])
        found[-1].barh(range(len(best)), [100 * text[i][1] for i in best], color=STOPS[4], height=0.7)
        names, fonts = token_labels([text[i][0] for i in best])
        found[-1].set_yticks(range(len(best)), names, fontsize=6, fontfamily=fonts)
        found[-1].invert_yaxis()
        found[-1].set_xlabel("attention in %", fontsize=7)
        found[-1].tick_params(axis="x", labelsize=6)
    if shown is not None:
        add_color_bar(figure, list(found[: len(pictures)]), shown, float(visible), signed, title)
    elif title:
        add_title(figure, title)
    return figure


def _least_height(labels: Sequence[str] | None, count: int) -> float:
    """Inches that the labels of the keys, which stand upright, the title and the color bar need, and a few rows."""
    names = [str(count - 1)] if labels is None else token_labels(labels)[0]
    return 1.3 + 0.06 * max(map(text_width, names), default=0)


def _labels(axis: Any, labels: Sequence[str] | None, count: int, turn: int, room: float = 190.0) -> None:
    """Label every token, or as many as fit into ``room`` points."""
    every = max(1, math.ceil(count * LABEL / room))
    at = list(range(0, count, every))
    names, fonts = token_labels([str(number) if labels is None else labels[number] for number in at])
    if all(text_width(name) == 1 for name in names) and 7 * len(at) <= room:
        turn = 0  # lying on its side, the sign for a space looks like a letter
    axis.set_ticks(at, names, rotation=turn, fontsize=min(7.0, room / max(1, len(at))), fontfamily=fonts)
    axis.set_tick_params(length=0, pad=2)


def _thin_labels(figure: Figure, drawn: Sequence[tuple[Any, Tensor, Any, Any]]) -> None:
    """Leave out labels that would lie on each other, now that the sizes of the panels are known.

    Args:
        drawn: each panel with its map, and the labels of queries and keys.
    """
    figure.draw_without_rendering()
    for panel, weights, queries, keys in drawn:
        box = panel.get_window_extent()
        for axis, labels, count, turn, size in (
            (panel.xaxis, keys, weights.shape[1], 90, box.width),
            (panel.yaxis, queries, weights.shape[0], 0, box.height),
        ):
            room = 72 * size / figure.dpi
            if room < LABEL * len(axis.get_ticklocs()):
                _labels(axis, labels, count, turn, room)
