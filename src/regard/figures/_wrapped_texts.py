"""Titles and labels of axes in lines that fit their place: matplotlib writes one line, over others and beyond the figure."""

import re
import textwrap
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:  # as in regard.figures.style
    Figure = Any

# A formula is one word: half of one would be drawn as its source.
_WORD = re.compile(r"(?:\$(?:\\.|[^$\\])*\$|\\.|[^ ])+")
_LETTER = 0.00725  # the mean width of a letter in inches, for each point of the font's size


def wrap_text(text: Any, room: float) -> None:
    """Break a text of a figure into lines no longer than ``room``, in pixels. Paths of modules are long, and have no spaces where
    a line could end."""
    said = text.get_text()
    most = max(8, int(room / text.figure.dpi / (_LETTER * text.get_fontsize())))
    while _length(text) > room:
        lines = [_lines(line, most) for line in said.split("\n")]
        text.set_text("\n".join(lines))
        if most <= 8:
            return
        most = max(8, int(0.9 * most))  # characters of some scripts are twice as wide as others


def wrap_texts(figure: Figure) -> None:
    """Break titles and labels of axes into lines where they are longer than their share of the figure."""
    wide, tall = figure.bbox.width, figure.bbox.height
    for text in figure.texts:
        wrap_text(text, wide)
    for panel in figure.axes:
        place = panel.get_subplotspec()
        if place is None:
            continue
        grid = place.get_gridspec()
        share = 0.85 * wide * len(place.colspan) / grid.ncols
        for text in (panel.title, panel.xaxis.label):
            wrap_text(text, share)
        wrap_text(panel.yaxis.label, 0.95 * tall * len(place.rowspan) / grid.nrows)


def _lines(line: str, most: int) -> str:
    lines = [""]
    for word in _WORD.findall(line):
        for piece in [word] if "$" in word else textwrap.wrap(word, most, break_on_hyphens=False):
            longer = f"{lines[-1]} {piece}".lstrip()
            if lines[-1] and len(longer) > most:
                lines.append(piece)
            else:
                lines[-1] = longer
    return "\n".join(lines)


def _length(text: Any) -> float:
    """Pixels along the lines of a text."""
    if not text.get_text():
        return 0.0
    box = text.get_window_extent(_measure(float(text.figure.dpi)))
    return float(box.height if text.get_rotation() == 90 else box.width)


@lru_cache(maxsize=8)
def _measure(dpi: float) -> Any:
    """What texts are measured with. Otherwise matplotlib makes a canvas of the size of the figure for each of them."""
    from matplotlib.backends.backend_agg import RendererAgg

    return RendererAgg(1, 1, dpi)
