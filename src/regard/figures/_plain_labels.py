"""Tokens as labels: short, without the marks of tokenizers, and with signs for what cannot be seen."""

import re
import unicodedata

from regard.support.text import whole_characters

# Characters that no font draws, or that turn others around, as in frontend/src/maps/table.ts. Joiners belong to emoji and to some
# scripts: they count only alone, and so do spaces of other kinds.
_NONE = "".join(chr(0x10000 * plane + 0xFFFE + last) for plane in range(17) for last in (0, 1)) + "\ufdd0-\ufdef"
_UNSEEN = re.compile(
    "[\x80-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    f"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e001f{_NONE}]"
    "|^[ \u00a0\u034f\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180d\u180f\u2000-\u200a\u200c\u200d\u202f\u205f\u3000\ufe00-\ufe0f"
    "\U000e0020-\U000e007f\U000e0100-\U000e01ef]+$"
)
MOST_LETTERS = 32  # the width of a label; a longer token is cut
_CONTROLS = {"\n": "⏎", "\t": "⇥", "\x7f": "␡"}


def plain_label(text: str) -> str:
    """A token as a label: not read as a formula, without halves of characters, which no font has, no longer than a figure has
    room for, and with signs for spaces and control characters, as in the views.

    >>> plain_label("$5"), plain_label("  "), plain_label("a\\n"), plain_label("\\u200b")
    ('\\\\$5', '␣␣', 'a⏎', '<U+200B>')
    >>> plain_label("Ġthe"), plain_label("▁▁"), plain_label("ĊĊ"), plain_label("cat</w>")
    ('the', '␣␣', '⏎⏎', 'cat')
    """
    text = _without_marks(text)
    if not text.strip(" "):
        return "␣" * len(text) or "∅"
    text = re.sub(r"[\x00-\x1f\x7f]", lambda one: _CONTROLS.get(one[0], chr(0x2400 + ord(one[0]))), text)
    text = _UNSEEN.sub(lambda some: "".join(f"<U+{ord(one):04X}>" for one in some[0]), text)
    text = whole_characters(text)
    if text_width(text) > MOST_LETTERS:
        while text_width(text) >= MOST_LETTERS:
            text = text[: MOST_LETTERS - 1] if len(text) >= MOST_LETTERS else text[:-1]
        text = re.sub(r"<U?\+?[0-9A-F]*$", "", text) + "…"  # half a code point would name another one
    return text.replace("$", r"\$")


def _without_marks(text: str) -> str:
    """A token without the marks of tokenizers: one before a word goes, others are the spaces and newlines that they stand for."""
    rest = text.lstrip("Ġ▁Ċ")
    marks = text[: len(text) - len(rest)]
    rest = rest.removesuffix("</w>") or rest
    if rest and marks in ("Ġ", "▁"):
        return rest
    return re.sub("[Ġ▁]", "␣", marks).replace("Ċ", "\n") + rest


def text_width(text: str) -> int:
    """How wide a text is, in letters: Chinese, Japanese and Korean characters and emoji are as wide as two.

    >>> text_width("word"), text_width("世界"), text_width("e\\u0301")
    (4, 4, 1)
    """
    return sum(0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text)
