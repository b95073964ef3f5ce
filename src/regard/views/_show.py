"""``regard.show``: the view that fits its argument, in a notebook or as a file."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from regard.analysis import WordMaps
from regard.figures.style import save_figure
from regard.maps import Maps, Segment, find_segments
from regard.support.checks import check_choice, check_flag, check_path, check_text, describe
from regard.support.files import open_output
from regard.views import (
    _comparison,
    _convolution,
    _head_positions,
    _image_maps,
    _long_maps,
    _mechanism,
    _mixed_maps,
    _static_figure,
    _token_maps,
)
from regard.views._payload import Payload
from regard.views._sheets import as_maps
from regard.views._story import story
from regard.views._words import merged_words, one_sample, tokens_of
from regard.views.page import document, document_pieces
from regard.views.page import story as story_page

NAMED = ("claims", "convolution", "mechanism", "story")  # views that need no data of the user
TITLES = {
    "claims": "Claims about attention",
    "compare": "Attention, compared",
    "convolution": "Attention is convolution",
    "heads": "Heads over training",
    "image": "Image attention",
    "long": "Attention over long texts",
    "mixed": "Text and image attention",
    "mechanism": "How attention works",
    "story": "Watch a network learn where to look",
    "tokens": "Token attention",
}


class Show:
    """A view. A notebook displays it; :meth:`save` writes it as one HTML file, or one head of it as a figure.

    Attributes:
        payload: the data of the view.
    """

    def __init__(self, payload: Payload) -> None:
        self.payload = payload

    @property
    def view(self) -> str:
        return self.payload.view

    @property
    def title(self) -> str:
        return str(self.payload.meta.get("title") or TITLES.get(self.view, self.view))

    @cached_property
    def widget(self) -> Any:
        """The notebook widget (needs anywidget)."""
        from regard.views._widget import widget

        return widget(self.payload)

    @property
    def selection(self) -> dict[str, Any]:
        """The user's selection in the notebook: layer, head, token."""
        return dict(self.widget.selection)

    def html(self, title: str | None = None) -> str:
        """The view as one self-contained HTML document."""
        title = title or f"{self.title} · regard"
        return story_page(self.payload, title) if self.view == "story" else document([self.payload], title)

    def save(self, path: str | Path, *, title: str | None = None, **figure: Any) -> Path:
        """Write one self-contained ``.html`` file, which opens from disk without a network, or a figure for a paper.

        Args:
            path: ends in ``.html``, or in ``.svg``, ``.pdf`` or ``.png`` for a figure (needs matplotlib).
            title: of the page or of the figure.
            figure: what a figure shows: ``layer`` (a name or a number), ``head`` (a number or ``"mean"``; default: the
                most structured one), ``query`` (on an image), ``pool`` (what a cell of a large map shows: ``"largest"``
                weight or ``"mass"``) and ``width`` in inches (default: 3.4, one column).
        """
        check_path("path", path)
        if title is not None:
            check_text("title", title)
        path = Path(path)
        kind = path.suffix.lower()
        if kind in _static_figure.FORMATS:
            _static_figure.check_options(figure)
            drawn = _static_figure.figure(self.payload, title=title, **figure)
            path.parent.mkdir(parents=True, exist_ok=True)
            save_figure(drawn, path, dpi=300)
            return path
        if kind not in (".html", ".htm"):
            raise ValueError(f"path must end in .html, .svg, .pdf or .png, got {str(path)!r}")
        if figure:
            raise TypeError(f"{', '.join(figure)} is only for a figure (.svg, .pdf, .png), got {path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        pieces = (
            [self.html(title)]
            if self.view == "story"
            else document_pieces([self.payload], title or f"{self.title} · regard")
        )
        with open_output(path) as file:
            file.writelines(piece.encode() for piece in pieces)
        return path

    def _repr_mimebundle_(self, **options: Any) -> Any:
        try:
            return self.widget._repr_mimebundle_(**options)
        except ImportError:  # without anywidget, show the file in a frame
            import html

            frame = f'<iframe srcdoc="{html.escape(self.html())}" style="width:100%;height:760px;border:0"></iframe>'
            return {"text/html": frame, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"Show({self.view!r}, {self.payload.size:,} bytes); .save('{self.view}.html') writes it as a file"


def show(
    what: Any,
    other: Any = None,
    *,
    image: Any = None,
    tokens: Any = None,
    grid: Sequence[int] | None = None,
    prefix: int | None = None,
    sample: int = 0,
    names: Sequence[str] | None = None,
    tokenizer: Any = None,
    ids: Any = None,
    segments: Any = None,
    words: bool = False,
    **options: Any,
) -> Show:
    """Show attention: a notebook displays the view, and ``.save("x.html")`` writes it as one file.

    ============================================  =====================================================================
    ``show(maps, image=x)``                       where each head looks from a patch of the image
    ``show(maps, tokens=[...])``, ``show(maps)``  which token attends to which, as a heat map or as arcs
    ``show(maps)`` of overviews                   long texts: the mass of cells, and curves over all tokens
    ``show(maps, ids=ids, tokenizer=t)``          the same, with the tokens' names; ``words=True`` merges subwords
    ``show(maps, ids=ids, image=x)``              text with an image in it: patches on the picture, words beside it
    ``show(a, b)``                                two prompts, two models or two steps side by side, and their difference
    ``show(run)``, ``show("runs/demo")``          where heads look, over training
    ``show("mechanism")``                         queries, keys and values to experiment with
    ``show("convolution")``                       heads that become a convolution
    ``show("claims")``                            claims about attention, and which of them hold
    ============================================  =====================================================================

    Args:
        what: maps from ``regard.capture`` (or tensors of weights, ``(heads, queries, keys)`` with or without a batch, one
            or one per layer); a run, its folder or its heads; a trajectory or a locality; verified claims; or the name of a view.
        other: maps to compare with. Maps of the same name (or in the same order) are shown side by side, with the
            difference ``other − what`` over the tokens that both have.
        image: the model's input: a tensor, an array or a PIL image, normalized or not; or the path of an image file.
        tokens: the text, one string per token; for an encoder–decoder the pair (source, target). After ``generate`` it may
            be one longer than the maps, because the model never read the last token.
        grid, prefix: the grid of the tokens and the number of tokens before it, if the model does not declare them. Without
            ``prefix``, tokens beyond the grid count as a prefix if they are fewer than a row or a column of it.
        sample: the index in the batch.
        tokenizer, ids: the token ids, ``(tokens,)`` or ``(batch, tokens)``, and the tokenizer that decodes them.
        segments: the parts of the sequence, as in ``[("text", 12), ("image", (24, 24)), ("text", 30)]``. By default they
            are found from ``ids`` and the image token of the model's configuration. Pass one ``image`` for each image part.
        words: merge subwords into words: weights are summed over keys and averaged over queries.
        names: names of the two sides of a comparison; ``tokens`` is then one text for both sides, or a pair.
        options: options of a view that is selected by its name.

    Pages hold weights as square roots. A weight w in a row whose largest weight is m is off by at most √(w·m)/32767, which
    keeps two digits of any weight above m/100,000; on a page of more than a million weights by √(w·m)/255.

    >>> weights = torch.rand(2, 4, 4).softmax(-1)
    >>> regard.show(weights, tokens=["so", "it", "goes", "."])
    Show('tokens', 96 bytes); .save('tokens.html') writes it as a file
    """
    if isinstance(what, str | Path):
        check_path("what", what)
    if isinstance(what, str) and (what in NAMED or not Path(what).is_dir()):
        if what not in NAMED and ("/" in what or "\\" in what):
            raise FileNotFoundError(f"what is {what!r}, but there is no such folder with a run")
        check_choice("what", what, NAMED)
        return Show(_named(what, options))
    if isinstance(what, str | Path):
        from regard.training import load_run

        what = load_run(what)
    if options:
        raise TypeError(
            f"{', '.join(options)} is only an option of views selected by name, but what is {type(what).__name__}"
        )
    check_flag("words", words)
    if isinstance(what, WordMaps):
        return Show(_mixed_maps.word_payload(what, image=image, sample=sample))
    if (maps := as_maps(what)) is None:
        if image is not None or tokens is not None:
            raise TypeError(f"what must be maps where image or tokens are given, got {describe(what)}")
        if other is not None:
            raise TypeError(
                f"show(what, other) compares maps: what must be maps of regard.capture or tensors of weights, but is "
                f"{describe(what)}"
            )
        return Show(_without_maps(what))
    if tokens is None and tokenizer is not None:
        tokens = _spelled(tokenizer, ids, sample)
    if other is not None:
        unused = {"image": image, "grid": grid, "prefix": prefix, "segments": segments, "words": words or None}
        return Show(_compared(maps, other, unused, tokens=tokens, sample=sample, names=names))
    if names is not None:
        raise TypeError(
            f"names is {describe(names):.60}, but needs two sets of maps: pass other as well, show(a, b, names=(...))"
        )
    segments = _segments(segments, maps, ids, sample, grid=grid, prefix=prefix, named=tokens is not None)
    if words:
        maps, tokens = _in_words(maps, tokens, segments)
    if segments is not None:
        return Show(_mixed_maps.payload(maps, segments, image=image, tokens=tokens, sample=sample))
    return Show(_text_or_image(maps, image, tokens, sample, grid=grid, prefix=prefix))


def _text_or_image(maps: Maps, image: Any, tokens: Any, sample: int, **layout: Any) -> Payload:
    if image is not None and tokens is not None:
        raise ValueError(
            f"image and tokens exclude each other, got {describe(image):.60} and {describe(tokens):.60}: "
            "pass one of the two, or segments= (or ids=) if the text has the image in it. Where the image is drawn from the "
            "text, show regard.analysis.word_maps(maps, grid, tokens=tokens)"
        )
    if layout["prefix"] is not None and layout["grid"] is None and image is None:
        raise ValueError(f"prefix is {layout['prefix']!r}, but goes with grid= or image=: a text has no prefix")
    if _long_maps.is_long(maps):
        if image is not None or layout["grid"] is not None:
            raise ValueError("an overview has no places on an image: capture whole maps, without overview=")
        return _long_maps.payload(maps, tokens=tokens, sample=sample)
    if image is not None or layout["grid"] is not None:
        return _image_maps.payload(maps, image=image, sample=sample, **layout)
    return _token_maps.payload(maps, tokens=tokens, sample=sample)


def _spelled(tokenizer: Any, ids: Any, sample: int) -> list[str]:
    if ids is None:
        raise ValueError(
            f"ids is None, but must be given with a tokenizer (tokenizer is {describe(tokenizer):.60}): the numbers of "
            "the tokens, (batch, tokens)"
        )
    return tokens_of(tokenizer, ids, sample)


def _segments(segments: Any, maps: Maps, ids: Any, sample: int, *, grid: Any, prefix: Any, named: bool) -> Any:
    """The segments that were given, or else those of a text that has images in it; None if it has none."""
    if segments is not None and (grid is not None or prefix is not None):
        raise ValueError(
            f"grid is {describe(grid)} and prefix is {describe(prefix)}, but segments already say where the grids are: leave "
            "them out"
        )
    if segments is not None or ids is None:
        return segments
    if maps.image_tokens is None and not named:
        raise ValueError(
            f"ids is {describe(ids)}, which names no tokens without a tokenizer, and the maps do not know which token stands "
            "for an image: pass tokenizer=, tokens= or segments="
        )
    return _found_segments(maps, ids, sample, grid)


def _found_segments(maps: Maps, ids: Any, sample: int, grid: Any) -> list[Segment] | None:
    """The segments of a text that has images in it; None if it has none."""
    images, numbers = maps.image_tokens, one_sample(ids, sample)
    if images is None or images.token not in numbers:
        return None
    return find_segments(numbers, images, grid)


def _in_words(maps: Maps, tokens: Any, segments: Any) -> tuple[Maps, list[str]]:
    if segments is not None:
        raise ValueError("words=True cannot be combined with segments: patches are not parts of words")
    lists = _token_maps.token_lists(tokens)
    if "text" not in lists:
        raise ValueError("words=True needs the tokens of one text: pass tokens=[…], or tokenizer= and ids=")
    return merged_words(maps, lists["text"])


def _compared(maps: Maps, other: Any, unused: dict[str, Any], **options: Any) -> Payload:
    second = as_maps(other, "other")
    if second is None:
        raise TypeError(
            f"other must be maps (from regard.capture) or a tensor of weights, to compare with, but is {describe(other)}"
        )
    for name, value in unused.items():
        if value is not None:
            raise ValueError(
                f"{name} is {describe(value):.60}, which does not go with a comparison: both sides must be shown as heat "
                f"maps over tokens"
            )
    return _comparison.payload(maps, second, **options)


def _named(name: str, options: dict[str, Any]) -> Payload:
    if name == "claims":
        from regard.views import claim_ledger  # imports every claim, which takes a second

        return claim_ledger.payload(**options)
    if name == "story":
        return story(**options)
    return (_convolution if name == "convolution" else _mechanism).payload(**options)


def _without_maps(what: Any) -> Payload:
    """The view of a run, of head positions or of verified claims. Maps are handled first, since these imports take seconds."""
    if (heads := _head_positions.payload(what)) is not None:
        return heads
    from regard.claims import Verification

    if isinstance(what, Verification):
        from regard.views import claim_ledger

        return claim_ledger.payload(what, pictures=True)
    raise TypeError(
        "what must be maps (from `with regard.capture(model) as maps: model(x)`), tensors of weights, a run, a "
        "trajectory, a locality or verified claims, got "
        + (f"a {type(what).__name__}" if isinstance(what, nn.Module) else describe(what))
    )
