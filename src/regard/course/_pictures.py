"""Pictures in the notebooks: each with words for whoever cannot see it, and a still where an interactive view stands."""

import io
from typing import Any

from matplotlib.figure import Figure


class Picture:
    """A figure and what it shows, in words: notebooks and web pages keep the words with the image.

    Args:
        figure: drawn by matplotlib; closed here, so that it is shown once.
        alt: what there is to see.
        shown: an interactive view of the same, which goes first wherever it can run.
    """

    def __init__(self, figure: Figure, alt: str, shown: Any = None) -> None:
        self.alt, self.shown = " ".join(alt.split()), shown
        file = io.BytesIO()
        figure.savefig(file, format="png", bbox_inches="tight", dpi=90)
        self.png = file.getvalue()
        _close(figure)

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data: dict[str, Any] = {}
        if self.shown is not None:
            found = self.shown._repr_mimebundle_(**options)
            data |= (found[0] if isinstance(found, tuple) else found) or {}
        return {**data, "image/png": self.png, "text/plain": self.alt}, {"image/png": {"alt": self.alt}}

    def __repr__(self) -> str:
        return self.alt


def picture(figure: Figure, alt: str, *, shown: Any = None) -> Picture:
    """The figure with its words, to be the last line of a cell.

    >>> import regard.course
    >>> from matplotlib.figure import Figure
    >>> regard.course.picture(Figure(), "An empty panel.")
    An empty panel.
    """
    return Picture(figure, alt, shown)


def _close(figure: Figure) -> None:
    from matplotlib import pyplot

    pyplot.close(figure)
