"""Shared parts of all figures: creation without pyplot, colors, labels and saving."""

import math
import re
import unicodedata
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.support.checks import check_path
from regard.support.text import whole_characters

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

# Characters that no font draws, or that turn others around. Joiners belong to emoji and to some scripts: they count only alone.
_UNSEEN = re.compile(
    "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]|^[\u200c\u200d\ufe00-\ufe0f]+$"
)
MOST_LETTERS = 32  # the width of a label; a longer token is cut
_CONTROLS = {"\n": "⏎", "\t": "⇥", "\x7f": "␡"}


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
    """Save the figure if a path is given (its suffix is the format; missing folders are made), and return it."""
    if path is not None:
        check_path("path", path)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(Path(path), dpi=150)
    return figure


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


def plain_label(text: str) -> str:
    """A token as a label: not read as a formula, without halves of characters, which no font has, no longer than a figure has
    room for, and with signs for spaces and control characters, as in the views.

    >>> plain_label("$5"), plain_label("  "), plain_label("a\\n"), plain_label("\\u200b")
    ('\\\\$5', '␣␣', 'a⏎', '<U+200B>')
    >>> plain_label("Ġthe"), plain_label("▁▁"), plain_label("ĊĊ"), plain_label("cat</w>")
    ('the', '␣␣', '⏎⏎', 'cat')
    """
    text = _without_marks(text)
    if not text.strip(" "):
        return "␣" * len(text) or "∅"
    text = re.sub(r"[\x00-\x1f\x7f]", lambda one: _CONTROLS.get(one[0], chr(0x2400 + ord(one[0]))), text)
    text = _UNSEEN.sub(lambda some: "".join(f"<U+{ord(one):04X}>" for one in some[0]), text)
    text = whole_characters(text)
    if text_width(text) > MOST_LETTERS:
        while text_width(text) >= MOST_LETTERS:
            text = text[: MOST_LETTERS - 1] if len(text) >= MOST_LETTERS else text[:-1]
        text = re.sub(r"<U?\+?[0-9A-F]*$", "", text) + "…"  # half a code point would name another one
    return text.replace("$", r"\$")


def _without_marks(text: str) -> str:
    """A token without the marks of tokenizers: one before a word goes, others are the spaces and newlines that they stand for."""
    rest = text.lstrip("Ġ▁Ċ")
    marks = text[: len(text) - len(rest)]
    rest = rest.removesuffix("</w>") or rest
    if rest and marks in ("Ġ", "▁"):
        return rest
    return re.sub("[Ġ▁]", "␣", marks).replace("Ċ", "\n") + rest


def text_width(text: str) -> int:
    """How wide a text is, in letters: Chinese, Japanese and Korean characters and emoji are as wide as two.

    >>> text_width("word"), text_width("世界"), text_width("e\\u0301")
    (4, 4, 1)
    """
    return sum(0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text)
