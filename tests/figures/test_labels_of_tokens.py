"""Labels of tokens in figures: as in the views, what cannot be seen has a sign."""

import pytest
import torch

from regard.figures import weight_map
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
    "\x85",
    "\x9b",
    "\u2028",
    "\u2029",
    "\ufffe",
    "\U0010ffff",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u3164",
    "\U000e0001",
    "\U000e0041",
    "\U000e0100",
    "\ufff9",
    " \u00a0",
)


def test_tokens_that_cannot_be_seen_have_signs_and_no_two_look_alike():
    shown = [plain_label(token) for token in UNSEEN]
    assert len(set(shown)) == len(UNSEEN)
    assert all(set(text) <= {*"∅␣⏎⇥␍␀␡<>U+0123456789ABCDEF"} for text in shown)


@pytest.mark.parametrize(
    "token", ["word", "שלום", "👩‍👩‍👧‍👦", "می‌خواهم", "<b>", "e\u0301", "  x", "10\u00a0km", "🏴\U000e0067\U000e007f"]
)
def test_others_stay_as_they_are(token):
    assert plain_label(token) == token


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("Ġthe", "the"),
        ("▁the", "the"),
        ("Ġ", "␣"),
        ("Ċ", "⏎"),
        ("ĠĠ", "␣␣"),
        ("▁▁▁", "␣␣␣"),
        ("ĊĊ", "⏎⏎"),
        ("ĊĊĠ", "⏎⏎␣"),
        ("ĠĠx", "␣␣x"),
        ("cat</w>", "cat"),
        ("</w>", "</w>"),
    ],
)
def test_marks_of_tokenizers_are_shown_as_on_the_pages(token, shown):
    assert plain_label(token) == shown


def test_a_long_token_leaves_room_for_the_map():
    names = ["a" * 500, "b", "c"]
    figure = weight_map(torch.eye(3), torch.full((3,), 3), queries=names, keys=names)  # a warning is an error here
    figure.draw_without_rendering()
    panel = figure.axes[0]
    assert panel.get_window_extent().width > 0.3 * figure.bbox.width
    for label in (*panel.get_xticklabels(), *panel.get_yticklabels()):
        box = label.get_window_extent()
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= figure.bbox.width
        assert box.y1 <= figure.bbox.height


def test_letters_are_not_turned_around():
    assert plain_label("\u202eevil") == "<U+202E>evil"
