"""The Markdown of the claims (paragraphs, ``code``, *emphasis* and formulas) as text and as HTML."""

import re
from html import escape

from regard.claims.formulas import to_mathml, to_text

_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$", re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")
_EMPHASIS = re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?!\w)")


def as_text(markdown: str) -> str:
    r"""Plain text, formulas in Unicode (as they are written where the package that reads them is not installed).

    >>> as_text(r"*Every* weight is $\frac{1}{m}$.")
    'Every weight is 1/m.'
    """
    text = _FORMULA.sub(_formula, markdown)
    return _CODE.sub(r"\1", _EMPHASIS.sub(r"\1", text))


def _formula(found: re.Match[str]) -> str:
    written = found[1] or found[2]
    try:
        return to_text(written)
    except ImportError:
        return written


def as_line(markdown: str) -> str:
    """Plain text in one line."""
    return " ".join(as_text(markdown).split())


def as_html(markdown: str) -> str:
    r"""Paragraphs of HTML, formulas in MathML.

    >>> as_html("Let `x < 1`, as in $x^2$.")
    '<p>Let <code>x &lt; 1</code>, as in <math display="inline"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>.</p>'
    """
    return "".join(f"<p>{inline_html(paragraph)}</p>" for paragraph in markdown.split("\n\n"))


def inline_html(markdown: str) -> str:
    """HTML without the paragraph around it."""
    formulas: list[str] = []

    def put_aside(found: re.Match[str]) -> str:
        display = found[1] is not None
        formulas.append(to_mathml(found[1] if display else found[2], display=display))
        return f"\0{len(formulas) - 1}\0"

    text = escape(_FORMULA.sub(put_aside, markdown), quote=False)
    text = _CODE.sub(r"<code>\1</code>", _EMPHASIS.sub(r"<em>\1</em>", text))
    return re.sub("\0(\\d+)\0", lambda found: formulas[int(found[1])], text)
