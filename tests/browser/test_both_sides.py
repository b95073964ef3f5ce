"""Comparisons, and text with images in it: what is pointed at on one side is shown on the other."""

import re

import pytest
import torch
from playwright.sync_api import expect

import regard
from regard.views import _token_maps

pytestmark = pytest.mark.browser


def test_a_comparison_marks_one_cell_on_all_sides(open_file, look):
    a, b = torch.full((2, 4, 4), 0.25), torch.full((2, 4, 4), 0.25)
    b[1] = torch.eye(4)
    page = open_file(regard.show(a, b, tokens=list("wxyz"), names=("before", "after")))
    assert "head 1 · 75 % of the attention differs · the head that changes most" in look.subtitle(page)
    before = [look.pixels(page, ".rg-three", side) for side in range(3)]
    look.point(page, ".rg-three", 0.3, 0.5)
    said = look.subtitle(page)
    assert "before 25 %, after " in said
    assert "after − before " in said
    assert all(look.pixels(page, ".rg-three", side) != before[side] for side in range(3))
    page.get_by_label("head", exact=True).select_option("0")
    assert "head 0 · 0 % of the attention differs" in look.subtitle(page)


COLOR = "(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(x * devicePixelRatio, y * devicePixelRatio, 1, 1).data]"


def test_a_difference_has_the_same_color_in_its_small_map(open_file, look):
    a, b = (torch.full((1, 6, 6), 1 / 6).tril() for _ in range(2))
    a[0, 1, :2], b[0, 1, :2] = torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0])
    page = open_file(regard.show([a, a], [a, b], tokens=list("uvwxyz")))
    # The small maps begin to the right of "layer 0", which has 12 + 6.4 pixels for each letter, and 16 below the top.
    small = page.locator(".rg-atlas canvas").evaluate(COLOR, [56.8 + 56 * 1.5 / 6, 16 + 60 + 56 * 1.5 / 6])
    large = page.locator(".rg-three canvas").nth(2)
    box = large.bounding_box()
    for down in range(30, int(box["height"]), 12):
        look.point(page, ".rg-three", 0.5, down, 2)
        across = next((at for at in range(60, int(box["width"]), 12) if _is_named(page, look, at, down)), None)
        if across is not None:
            break
    assert large.evaluate(COLOR, [across, down]) == small


def _is_named(page, look, across, down):
    look.point(page, ".rg-three", across, down, 2)
    return "“v” → “v”" in look.subtitle(page)


def test_a_word_map_says_which_patches_look_at_a_word(open_file, look, tmp_path):
    from regard.maps import AttentionRecord, Map, Maps

    weights = torch.tensor([[0.1, 0.9], [0.4, 0.6], [0.5, 0.5], [1.0, 0.0]])[None, None]  # patches look at words
    words = regard.analysis.word_maps(
        Maps([Map("attn2", [AttentionRecord.given(weights, "attn2")])]), (2, 2), tokens=["a", "cat"]
    )
    shown = regard.show(words, image=torch.rand(3, 8, 8))
    page = open_file(shown)
    said = look.subtitle(page)
    assert "“cat” is looked at by patch (0, 0) 45 %, patch (0, 1) 30 %" in said
    assert "head" not in said
    assert page.get_by_label("head", exact=True).count() == page.get_by_role("radio").count() == 0
    look.point(page, ".rg-image", 0.75, 0.75)
    assert "patch (1, 1) looks at “a” 50 %" in look.subtitle(page)
    figure = shown.save(tmp_path / "words.svg")
    assert "head" not in figure.read_text("utf-8")


def test_a_word_shows_its_patches_and_a_patch_its_words(open_file, look):
    weights = torch.zeros(1, 7, 7)
    weights[0, :, 0] = 1.0
    weights[0, 6] = torch.tensor([0, 0, 0, 0, 0, 0.9, 0.1])  # the last word looks at the last patch,
    weights[0, 5] = torch.tensor([0, 0.8, 0.2, 0, 0, 0, 0])  # and this patch at the second word
    segments = [("text", 2), ("image", (2, 2)), ("text", 1)]
    page = open_file(regard.show(weights, tokens=["see", "this", "cat"], image=torch.rand(3, 8, 8), segments=segments))
    assert "“cat” looks at patch (1, 1) 90 %, “cat” 10 % · 90 % on the image" in look.subtitle(page)
    words = look.pixels(page, ".rg-image", 1)
    look.point(page, ".rg-image", 0.75, 0.75)  # the last patch
    assert "patch (1, 1) looks at “this” 80 %, patch (0, 0) 20 %" in look.subtitle(page)
    assert look.pixels(page, ".rg-image", 1) != words
    page.get_by_text("Is looked at by").click()
    look.point(page, ".rg-image", 0.75, 0.75)
    assert "patch (1, 1) is looked at by “cat” 90 %" in look.subtitle(page)
    patches = look.pixels(page, ".rg-image", 0)
    look.point(page, ".rg-image", 8, 8, 1)  # the first word
    assert "“see” is looked at by" in look.subtitle(page)
    assert look.pixels(page, ".rg-image", 0) != patches


def test_two_heads_are_compared_with_their_difference(open_file, look):
    ways = torch.stack([torch.eye(4), torch.full((4, 4), 0.25), torch.eye(4).roll(1, 1)])
    page = open_file(regard.show(ways, tokens=list("wxyz")))
    subtitle = page.locator(".rg-subtitle")
    page.get_by_label("compare with").select_option("head 1")
    expect(subtitle).to_have_text("head 0 and head 1 · 75 % of the attention differs")
    expect(page.locator(".rg-three canvas")).to_have_count(3)
    before = [look.pixels(page, ".rg-three", side) for side in range(3)]
    look.point(page, ".rg-three", 0.22, 0.5)  # the first column, in the first map
    expect(subtitle).to_have_text(re.compile("“.” → “w” (100 % and 25 %, −75 %|0 % and 25 %, \\+25 %)$"))
    assert all(look.pixels(page, ".rg-three", side) != before[side] for side in range(3))
    expect(page.locator(".rg-tip:visible")).to_have_count(1)  # only where the pointer is
    # The address says so, and Escape ends it. A click with Shift on a thumbnail begins it again.
    expect(page).to_have_url(re.compile("tokens.beside=0.1"))
    page.reload()
    expect(page.locator(".rg-three canvas")).to_have_count(3)
    page.locator(".rg-atlas canvas").focus()
    page.keyboard.press("Escape")
    expect(page.locator(".rg-three")).to_have_count(0)
    look.settle(page)
    box = page.locator(".rg-atlas canvas").bounding_box()
    page.keyboard.down("Shift")
    page.mouse.click(box["x"] + 300, box["y"] + 60)
    page.keyboard.up("Shift")
    expect(page.get_by_label("compare with")).to_have_value("0.2")


def test_two_heads_are_compared_on_the_photo(open_file, look, image_maps):
    maps, image = image_maps
    page = open_file(regard.show(maps, image=image), width=390, height=844)
    page.get_by_label("compare with").select_option(index=2)
    expect(page.locator(".rg-three canvas")).to_have_count(3)
    assert len({look.pixels(page, ".rg-three", side) for side in range(3)}) == 3
    expect(page.locator(".rg-subtitle")).to_have_text(re.compile("of the attention differs"))
    page.locator(".rg-three canvas").nth(1).scroll_into_view_if_needed()
    look.point(page, ".rg-three", 0.9, 0.6, 1)
    expect(page.locator(".rg-tip:visible")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # the tip stays inside


def test_a_large_page_is_shown_before_it_is_read(open_file, look, monkeypatch, tmp_path):
    """Thumbnails and one head come first, and look as they do when everything has been read."""
    monkeypatch.setattr(_token_maps, "MANY", 0)
    torch.manual_seed(0)
    maps = {f"blocks.{i}.attn": torch.randn(3, 60, 60).mul(2).softmax(-1) for i in range(2)}
    shown = regard.show(maps)
    page = open_file(shown)
    subtitle = page.locator(".rg-subtitle")
    expect(subtitle).to_contain_text("the most structured head")
    whole = [look.pixels(page, place) for place in (".rg-atlas", ".rg-main")]
    text, early = shown.html(), tmp_path / "early.html"
    early.write_text(text.replace(" data-regard-late", ""), "utf-8")  # the rest is not asked for
    page.goto(early.as_uri())
    expect(subtitle).to_contain_text("loading the other heads")
    assert [look.pixels(page, place) for place in (".rg-atlas", ".rg-main")] == whole
    # Colors that the thumbnails were not made for are worked out from the maps.
    page.goto(shown.save(tmp_path / "whole.html").as_uri())
    expect(subtitle).to_contain_text("the most structured head")
    page.get_by_label("colors").select_option("row")
    page.wait_for_function("(old) => document.querySelector('.rg-atlas canvas').toDataURL() !== old", arg=whole[0])
    # A file that ends too early says so.
    early.write_text(text[: text.index('id="view-0-rest">') + 40], "utf-8")
    page.goto(early.as_uri())
    expect(page.get_by_role("alert")).to_have_text(
        "The data of this page cannot be read: the file is incomplete or damaged."
    )
