"""``regard.show``: the right picture of whatever it is given, in a notebook or as a file."""

from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from regard.support.checks import check_choice, describe
from regard.views import _heads, _images, _tokens
from regard.views._file import document
from regard.views._maps import as_maps
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


def show(
    what: Any,
    *,
    image: Any = None,
    tokens: Any = None,
    grid: Sequence[int] | None = None,
    prefix: int | None = None,
    sample: int = 0,
    **options: Any,
) -> Show:
    """Look at something: in a notebook it is shown, and ``.save("x.html")`` writes it as one file.

    ============================================  =====================================================================
    ``show(maps, image=x)``                       where each head looks from a patch of the image
    ``show(maps, tokens=[...])``, ``show(maps)``  which token looks at which, as a heat map or as arcs
    ``show(run)``, ``show(trajectory)``           where heads look, over training
    ``show("mechanism")``                         queries, keys and values to play with
    ``show("convolution")``                       heads that become a convolution
    ``show("claims")``                            what people say about attention, and what of it holds
    ============================================  =====================================================================

    Args:
        what: maps that ``regard.capture`` gave (or plain tensors of weights, ``(heads, queries, keys)`` with a batch or
            without, one or one per layer); a run or its heads; a trajectory or a locality; or a view's name.
        image: what the model looked at: a tensor, an array or a PIL image, as a person sees it or normalized.
        tokens: the text, a string per token; for a model that reads and writes the pair (read, written).
        grid, prefix: how the tokens lie on the image, for models that do not say it themselves.
        sample: which one of the batch.
        options: for the views that have a name, theirs.

    >>> weights = torch.rand(2, 4, 4).softmax(-1)
    >>> regard.show(weights, tokens=["so", "it", "goes", "."])
    Show('tokens', 64 bytes); .save('tokens.html') writes it as a file
    """
    if isinstance(what, str):
        check_choice("what", what, sorted(PAGES))
        return Show(import_module(PAGES[what]).payload(**options))
    if options:
        raise TypeError(
            f"{', '.join(options)} is an option of the views that have a name, not of {type(what).__name__}"
        )
    maps = as_maps(what)
    if maps is None:
        if image is not None or tokens is not None:
            raise TypeError(f"image= and tokens= go with maps, but {describe(what)} came")
        return Show(_heads.payload(what))
    if image is not None and tokens is not None:
        raise ValueError("maps are shown over an image or over tokens: pass one of the two")
    if image is not None or grid is not None:
        return Show(_images.payload(maps, image=image, grid=grid, prefix=prefix, sample=sample))
    return Show(_tokens.payload(maps, tokens=tokens, sample=sample))


def claim_evidence(row: Any) -> dict[str, Any]:
    """What the check of a claim found, as the view of claims shows it: ``{"verdict", "found"}``."""
    evidence: dict[str, Any] = import_module(PAGES["claims"]).found(row)
    return evidence
