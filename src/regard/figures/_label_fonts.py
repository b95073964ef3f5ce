"""Fonts for the tokens of any script: matplotlib draws a box for each character that its font lacks."""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from regard.figures._plain_labels import plain_label
from regard.support.text import whole_characters

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:  # as in regard.figures.style
    Figure = Any

# A font of this name draws a box for every character there is.
_BOXES = "Last Resort"


def token_labels(tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """Labels of tokens, and the font families that draw them: those of matplotlib's settings, then installed ones that have the
    missing characters. A character that no installed font has becomes its code point.

    >>> token_labels(["a b", "\\U000f0000"])[0]
    ['a b', '<U+F0000>']
    """
    texts = [whole_characters(token) for token in tokens]
    families, missing = _fonts("".join(map(_signs, texts)))
    return [plain_label(_escaped(text, missing)) for text in texts], families


def drawn_title(text: str) -> tuple[str, list[str]]:
    """The same for a title, which may contain formulas and newlines."""
    lines = whole_characters(text).split("\n")
    families, missing = _fonts("".join(map(_signs, lines)))
    return "\n".join(_signs(_escaped(line, missing)) for line in lines), families


def draw_all_scripts(figure: Figure) -> None:
    """Give titles, labels of axes, legends and notes fonts that have their characters, as labels of tokens have. Labels of ticks
    are not changed: matplotlib writes them when it draws."""
    texts = [*figure.texts]
    for panel in figure.axes:
        texts += [panel.title, panel.xaxis.label, panel.yaxis.label, *panel.texts]
        legend = panel.get_legend()
        texts += [] if legend is None else [legend.get_title(), *legend.get_texts()]
    for text in texts:
        said, families = drawn_title(text.get_text())
        if said != text.get_text():
            text.set_text(said)
        if len(families) > len(text.get_fontfamily()):
            text.set_fontfamily(families)


def _signs(text: str) -> str:
    """The characters that must be drawn: control characters have signs."""
    return "".join(plain_label(one) if unicodedata.category(one) == "Cc" else one for one in text)


def _escaped(text: str, missing: frozenset[str]) -> str:
    def shown(one: str) -> str:
        return f"<U+{ord(one):04X}>" if not missing.isdisjoint(_signs(one)) else one

    return "".join(map(shown, text)) if missing else text


def _fonts(text: str) -> tuple[list[str], frozenset[str]]:
    """The font families that draw a text, and the characters that none of them has."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    own = FontProperties().get_family()
    needed = {one for one in text if unicodedata.category(one) != "Cf"}
    for family in own:
        needed -= _having(needed, str(findfont(FontProperties(family=[family]))))
    if not needed:
        return list(own), frozenset()
    more, missing = _fallbacks(frozenset(needed), len(fontManager.ttflist))
    return [*own, *more], missing


@lru_cache(maxsize=256)
def _fallbacks(needed: frozenset[str], fonts: int) -> tuple[tuple[str, ...], frozenset[str]]:
    """Installed families, the one with most of the characters first, and what none of them has. ``fonts`` is the number of
    installed fonts: when one is added, the answer may change."""
    from matplotlib.font_manager import fontManager

    upright = [one for one in fontManager.ttflist if one.style == "normal" and not one.name.startswith(_BOXES)]
    having = {one.name: _having(needed, one.fname) for one in sorted(upright, key=lambda one: one.weight == 400)}
    families: list[str] = []
    left = set(needed)
    while left:
        # Of fonts that have as many, one without serifs suits the other labels best.
        best = max(sorted(having), key=lambda name: (len(having[name] & left), "Sans" in name), default="")
        if not best or not having[best] & left:
            break
        families.append(best)
        left -= having[best]
    return tuple(families), frozenset(left)


def _having(characters: Iterable[str], path: str) -> set[str]:
    """Those of the characters that a font has. A font that cannot be read has none."""
    from matplotlib.font_manager import get_font

    try:
        font = get_font(path)
    except (OSError, RuntimeError):
        return set()
    return {one for one in characters if font.get_char_index(ord(one))}
