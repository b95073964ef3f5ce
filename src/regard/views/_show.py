"""``regard.show``: the right picture of whatever it is given, in a notebook or as a file."""

from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from regard.views._file import document
from regard.views._payload import Payload

# Views that need no data of yours: each module has payload(**options) -> Payload.
PAGES = {
    "claims": "regard.views._claims",
    "convolution": "regard.views._convolution",
    "mechanism": "regard.views._mechanism",
}
TITLES = {
    "claims": "What people say about attention",
    "convolution": "Attention is convolution",
    "heads": "Heads over training",
    "image": "Image attention",
    "mechanism": "How attention works",
    "tokens": "Token attention",
}


class Show:
    """A view of something. A notebook shows it as it is; :meth:`save` writes it as one HTML file.

    Attributes:
        payload: what is shown, as a browser gets it.
    """

    def __init__(self, payload: Payload) -> None:
        self.payload = payload

    @property
    def view(self) -> str:
        return self.payload.view

    @property
    def title(self) -> str:
        return TITLES.get(self.view, self.view)

    @cached_property
    def widget(self) -> Any:
        """The notebook widget (needs anywidget)."""
        from regard.views._widget import widget

        return widget(self.payload)

    @property
    def selection(self) -> dict[str, Any]:
        """What the person has picked in the notebook: layer, head, token."""
        return dict(self.widget.selection)

    def html(self, title: str | None = None) -> str:
        """One HTML document that needs nothing else."""
        return document([self.payload], title or f"{self.title} · regard")

    def save(self, path: str | Path, *, title: str | None = None) -> Path:
        """Write one self-contained ``.html`` file: it opens from disk, without any network."""
        path = Path(path)
        if path.suffix not in (".html", ".htm"):
            raise ValueError(f"path must end in .html, got {str(path)!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html(title), encoding="utf-8")
        return path

    def _repr_mimebundle_(self, **options: Any) -> Any:
        try:
            return self.widget._repr_mimebundle_(**options)
        except ImportError:  # no anywidget: the file itself, in a frame
            import html

            frame = f'<iframe srcdoc="{html.escape(self.html())}" style="width:100%;height:760px;border:0"></iframe>'
            return {"text/html": frame, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"Show({self.view!r}, {len(self.payload.buffer):,} bytes); .save('{self.view}.html') writes it as a file"


def show(what: Any, **options: Any) -> Show:
    from regard.views import _heads

    if isinstance(what, str):
        return Show(import_module(PAGES[what]).payload(**options))
    return Show(_heads.payload(what, **options))
