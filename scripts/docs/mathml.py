r"""Formulas in Markdown, ``$…$`` and ``$$…$$``, as MathML that browsers draw themselves: no script, no font, no network.

The formulas of the claims are read by :mod:`regard.claims`'s own small parser, which refuses what it does not know. What
docstrings use beyond it is brought into its language here: sizes of brackets, ``cases``, and lines aligned at ``&``.
"""

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

from markdown import Extension, Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.inlinepatterns import InlineProcessor

from regard.claims._latex import parse, to_mathml

_SIZES = re.compile(r"\\(?:[bB]igg?[lrm]?|textstyle|displaystyle|limits)(?![A-Za-z])|\\!")
_WORDS = {
    r"\tfrac": r"\frac",
    r"\dfrac": r"\frac",
    r"\ldots": r"\dots",
    r"\lVert": r"\|",
    r"\rVert": r"\|",
    r"\lvert": "|",
    r"\rvert": "|",
    r"\arg\max": r"\argmax",
    r"\arg\min": r"\argmin",
    r"\iota": r"\text{ι}",
    r"\eta": r"\text{η}",
    r"\kappa": r"\text{κ}",
    r"\colon": ":",
    r"\leq": r"\le",
    r"\geq": r"\ge",
}
_WORD = re.compile("|".join(re.escape(word) + r"(?![A-Za-z])" for word in sorted(_WORDS, key=len, reverse=True)))
_CASES = re.compile(r"(.*?)\\begin\{cases\}(.*?)\\end\{cases\}(.*)", re.DOTALL)
_BOARD = re.compile(r"\\mathbb ([A-Z])")
_DIGITS = re.compile(r"\\frac(\d)(?=[a-zA-Z\d])")


def mathml(latex: str, *, display: bool = False) -> str:
    r"""A formula as a ``<math>`` element.

    >>> mathml("x^2")
    '<math><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>'
    >>> mathml(r"a &= 1 \\ b &= 2", display=True).count("<mtr>")
    2
    """
    latex = _DIGITS.sub(r"\\frac{\1}", _BOARD.sub(r"\\mathbb{\1}", _SIZES.sub("", latex)))
    latex = _WORD.sub(lambda found: _WORDS[found[0]], latex).strip()
    tall = any(word in latex for word in (r"\left", r"\frac", r"\begin"))
    return _polished(_whole(latex, display), tall)


def _polished(text: str, tall: bool) -> str:
    """Brackets as high as what is in them only where that is high; a sign in front of something set as a sign."""
    if not tall:
        text = re.sub(r"<mo>([()\[\]|‖])</mo>", r'<mo stretchy="false">\1</mo>', text)
    return re.sub(r"(<mrow>|<mo(?: [^>]*)?>[=≤≥≈→(,\[]</mo>)<mo>−</mo>", r'\1<mo form="prefix">−</mo>', text)


def _whole(latex: str, display: bool) -> str:
    opening = '<math display="block">' if display else "<math>"
    cases = _CASES.fullmatch(latex)
    if cases:
        before, inside, after = cases.groups()
        return f"{opening}<mrow>{_row(before)}<mo>{{</mo>{_lines(inside)}{_row(after)}</mrow></math>"
    if r"\\" in latex or "&" in latex:
        return f"{opening}{_lines(latex)}</math>"
    return to_mathml(parse(latex), display=display)


def _lines(latex: str) -> str:
    """Rows of a table: lines end with ``\\\\``, columns with ``&``."""
    lines = [line.split("&") for line in re.split(r"\\\\", latex) if line.strip()]
    rows = ["".join(f'<mtd style="text-align: left">{_row(cell)}</mtd>' for cell in line) for line in lines]
    return f"<mtable>{''.join(f'<mtr>{row}</mtr>' for row in rows)}</mtable>"


def _row(latex: str) -> str:
    return to_mathml(parse(latex)).removeprefix("<math>").removesuffix("</math>")


class _Inline(InlineProcessor):
    def __init__(self, pattern: str, md: Markdown, *, display: bool) -> None:
        super().__init__(pattern, md)
        self.display = display

    def handleMatch(self, found: re.Match[str], data: str) -> tuple[Any, int, int]:
        return ElementTree.fromstring(mathml(found[1], display=self.display)), found.start(0), found.end(0)


class _Block(BlockProcessor):
    """A paragraph that is one formula."""

    pattern = re.compile(r"\s*\$\$(.+)\$\$\s*", re.DOTALL)

    def test(self, parent: ElementTree.Element, block: str) -> bool:
        return self.pattern.fullmatch(block) is not None

    def run(self, parent: ElementTree.Element, blocks: list[str]) -> None:
        found = self.pattern.fullmatch(blocks.pop(0))
        if found is not None:
            around = ElementTree.SubElement(parent, "p")
            around.append(ElementTree.fromstring(mathml(found[1], display=True)))


class MathML(Extension):
    """The Markdown extension."""

    def extendMarkdown(self, md: Markdown) -> None:
        # Before backslashes and underscores get a meaning, after code.
        display = _Inline(r"\$\$([^$]+)\$\$", md, display=True)
        inline = _Inline(r"(?<![\\$\w])\$(?![\s$])([^$]+?)(?<!\s)\$(?![\w$])", md, display=False)
        md.inlinePatterns.register(display, "mathml-display", 186)
        md.inlinePatterns.register(inline, "mathml", 185)
        md.parser.blockprocessors.register(_Block(md.parser), "mathml", 175)
