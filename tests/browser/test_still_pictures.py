"""Pictures stay where they are while one points at them, whatever the line above them says."""

from itertools import pairwise

import pytest
import torch

import regard
from regard.maps import AttentionRecord, Map, Maps

pytestmark = pytest.mark.browser
WORDS = ["a", "antidisestablishmentarianism", "b", "floccinaucinihilipilification", "c", "d"]


def maps(seed):
    torch.manual_seed(seed)
    weights = torch.randn(1, 3, 6, 6).mul(3).softmax(-1)
    return Maps([Map("model.language_model.layers.11.self_attn", [AttentionRecord.given(weights, "attn")])])


@pytest.mark.parametrize("view", ["tokens", "compare"])
@pytest.mark.parametrize("width", [420, 700])
def test_a_picture_does_not_move_under_the_pointer(open_file, look, view, width):
    given = (maps(1), maps(2)) if view == "compare" else (maps(1),)
    page = open_file(regard.show(*given, tokens=WORDS), width=width)
    canvas, line = page.locator(".rg-main canvas").first, page.locator(".rg-subtitle")
    box = canvas.bounding_box()
    said, tops = set(), []
    for x in range(12):
        for y in range(3):
            page.mouse.move(box["x"] + (0.3 + x / 20) * box["width"], box["y"] + (0.4 + y / 8) * box["height"])
            look.settle(page)
            said.add(line.inner_text())
            tops.append(canvas.bounding_box()["y"])
    assert len(said) > 5
    moves = [after - before for before, after in pairwise(tops) if after != before]
    assert not any(move < 0 for move in moves)  # it makes room, and does not take it back
    assert len(moves) <= 1


def test_a_narrow_page_leaves_no_gap_after_it_became_wide(open_file, look):
    page = open_file(regard.show(maps(1), tokens=WORDS), width=420)
    line = page.locator(".rg-subtitle")
    high = line.bounding_box()["height"]
    page.set_viewport_size({"width": 1400, "height": 900})
    look.settle(page)
    page.get_by_label("head", exact=True).select_option("mean")
    look.settle(page)
    assert line.bounding_box()["height"] < high / 2


# Paper has another width than the screen, and pictures are not drawn again for it.
STRETCHED = """(all) => all.map((canvas) => {
  canvas.parentElement.style.width = "300px";
  const { width, height } = canvas.getBoundingClientRect();
  return canvas.height * width / canvas.width / height;
})"""


@pytest.mark.parametrize("view", ["tokens", "compare"])
def test_pictures_on_paper_are_not_stretched(open_file, look, view):
    given = (maps(1), maps(2)) if view == "compare" else (maps(1),)
    page = open_file(regard.show(*given, tokens=WORDS), mode="dark", own=True)
    page.emulate_media(media="print", color_scheme="dark")
    look.settle(page)
    assert page.locator("canvas").evaluate_all(STRETCHED) == pytest.approx(
        [1] * page.locator("canvas").count(), rel=0.02
    )
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_large_picture_comes_first_where_there_is_no_room_beside_it(open_file):
    for width, above in ((700, True), (1200, False)):
        page = open_file(regard.show(maps(1), tokens=WORDS), width=width)
        large, small = (page.locator(name).bounding_box() for name in (".rg-main", ".rg-atlas"))
        assert (small["y"] >= large["y"] + large["height"]) == above


@pytest.mark.parametrize("view", ["two heads", "compare"])
def test_compared_maps_come_before_the_small_ones(open_file, view):
    given = (maps(1), maps(2)) if view == "compare" else (maps(1),)
    page = open_file(regard.show(*given, tokens=WORDS))
    if view == "two heads":
        page.get_by_label("compare with").select_option(label="head 1")
    large, small = (page.locator(name).bounding_box() for name in (".rg-three", ".rg-atlas"))
    assert small["y"] >= large["y"] + large["height"]
