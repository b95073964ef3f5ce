r"""Formulas in Markdown, ``$…$`` and ``$$…$$``, as MathML that browsers draw themselves: no script, no font, no network.

A command that is not known stops the build.
"""

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

from markdown import Extension, Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.inlinepatterns import InlineProcessor

from regard.claims.formulas import to_mathml


def mathml(latex: str, *, display: bool = False) -> str:
    r"""A formula as a ``<math>`` element. Lines end with ``\\`` and are aligned at ``&``.

    >>> mathml("x^2")
    '<math display="inline"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>'
    >>> mathml(r"a &= 1 \\ b &= 2", display=True).count("<mtr>")
    2
    """
    if "&" in latex and r"\begin" not in latex:
        latex = rf"\begin{{split}} {latex} \end{{split}}"
    return to_mathml(latex.strip(), display=display)


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
