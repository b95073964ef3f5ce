"""Pictures in the notebooks: each has a description for screen readers, and a static image for interactive views."""

import io
from typing import Any

from matplotlib.figure import Figure


class Picture:
    """A figure with a description, which notebooks and web pages keep as the image's alternative text.

    Args:
        figure: a matplotlib figure; closed here, so that it is shown once.
        alt: the description.
        shown: an interactive view of the same, shown instead wherever it can run.
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
    """The figure with its description, for the last line of a cell.

    >>> import regard.course
    >>> from matplotlib.figure import Figure
    >>> regard.course.picture(Figure(), "An empty panel.")
    An empty panel.
    """
    return Picture(figure, alt, shown)


def _close(figure: Figure) -> None:
    from matplotlib import pyplot

    pyplot.close(figure)
