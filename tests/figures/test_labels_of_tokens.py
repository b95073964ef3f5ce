"""Labels of tokens in figures: as in the views, what cannot be seen has a sign."""

import pytest

from regard.figures.style import plain_label

UNSEEN = (
    "",
    " ",
    "  ",
    "\n",
    "\r",
    "\r\n",
    "\t",
    "\x00",
    "\x7f",
    "\u00ad",
    "\u200b",
    "\u200b\u200b",
    "\u200d",
    "\ufeff",
)


def test_tokens_that_cannot_be_seen_have_signs_and_no_two_look_alike():
    shown = [plain_label(token) for token in UNSEEN]
    assert len(set(shown)) == len(UNSEEN)
    assert all(set(text) <= {*"∅␣⏎⇥␍␀␡<>U+0123456789ABCDEF"} for text in shown)


@pytest.mark.parametrize("token", ["word", "שלום", "👩‍👩‍👧‍👦", "می‌خواهم", "<b>", "e\u0301", "  x"])
def test_others_stay_as_they_are(token):
    assert plain_label(token) == token


def test_letters_are_not_turned_around():
    assert plain_label("\u202eevil") == "<U+202E>evil"
