"""Formulas: every one in the claims is understood, becomes well-formed MathML, and reads well as text."""

import sys
from xml.etree import ElementTree

import pytest

from regard.claims import all_claims
from regard.claims.formulas import to_mathml, to_text
from regard.claims.prose import as_html, as_text


def _texts() -> list[str]:
    parts = []
    for claim in all_claims():
        parts += [claim.statement, claim.derivation, claim.mutant.text, "" if claim.true is None else claim.true.text]
    return parts


def test_every_formula_of_the_claims_is_well_formed_mathml() -> None:
    for text in filter(None, _texts()):
        ElementTree.fromstring(f"<body>{as_html(text)}</body>")
        assert "\\" not in as_text(text)
        assert "$" not in as_text(text)


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\frac{1}{m}", "1/m"),
        (r"\frac{a + b}{2}", "(a + b)/2"),
        (r"e^{-\alpha r^2}", "e^(−αr²)"),
        (r"\sqrt{d}", "√d"),
        (r"\sum_{i=1}^d x_i", "∑_(i = 1)^d xᵢ"),
        (r"W_k^\top", "Wₖᵀ"),
        (r"\mathbb{R}^{d \times n}", "ℝ^(d × n)"),
        (r"\text{two words} + 1", "two words + 1"),
        (r"\left( \frac{a}{b} \right)", "(a/b)"),
        (r"x \to -\infty", "x → −∞"),
    ],
)
def test_formulas_read_as_text(latex: str, text: str) -> None:
    assert to_text(latex) == text


@pytest.mark.parametrize(
    ("latex", "part"),
    [
        (r"\frac{a}{b}", "<mfrac><mrow><mi>a</mi></mrow><mrow><mi>b</mi></mrow></mfrac>"),
        (r"\sum_{j} x", "<munder><mo>&#x02211;</mo>"),
        (r"x_i^2", "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"),
        (r"a < b", "<mo>&#x0003C;</mo>"),
        (r"\hat{a}", '<mover accent="true">'),
        (r"\softmax(z)", '<mtext>softmax</mtext><mo stretchy="false">'),
        (r"\log n", '<mi>log</mi><mspace width="0.17em"/><mi>n</mi>'),
        (r"\argmax_i z_i", '<munder><mo movablelimits="true">argmax</mo>'),
    ],
)
def test_formulas_become_mathml(latex: str, part: str) -> None:
    text = to_mathml(latex)
    ElementTree.fromstring(text)
    assert part in text


@pytest.mark.parametrize("latex", [r"\unknown x", "{x", "x}", r"\frac{a}", "x^"])
def test_what_is_not_understood_is_refused(latex: str) -> None:
    with pytest.raises(ValueError, match=r"has|ends"):
        to_text(latex)


@pytest.mark.parametrize("latex", [r"\unknown x", r"a + \nonsense{b}"])
def test_a_page_shows_no_formula_that_is_not_understood(latex: str) -> None:
    with pytest.raises(ValueError, match="which latex2mathml does not know"):
        to_mathml(latex)


def test_prose_keeps_code_and_emphasis() -> None:
    assert as_text("*all* of `beta=0` at $x$") == "all of beta=0 at x"
    assert as_html("*all* of `a < b`") == "<p><em>all</em> of <code>a &lt; b</code></p>"


def test_without_the_library_texts_keep_formulas_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core has no extra, and the README's first claims are printed with it."""
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", None)
    assert as_text(r"*Every* weight is $\frac{7}{m}$.") == r"Every weight is \frac{7}{m}."
