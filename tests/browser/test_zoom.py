"""Zoomed pictures without a mouse: the same keys in every view, and words that say what is visible."""

import re

import pytest
import torch
from playwright.sync_api import expect
from torch import nn

import regard

pytestmark = pytest.mark.browser
TOKENS = 60
VIEWS = ("heat map", "arcs", "long")


def overview():
    """Two heads of a small model, in cells of 4 × 4 tokens."""
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    layer.self_attn.in_proj_weight.data *= 4
    with torch.no_grad(), regard.capture(layer, overview=15) as maps:
        layer(torch.randn(1, TOKENS, 8))
    return maps


@pytest.fixture
def opened(open_file):
    def open_it(view, **options):
        names = [f"w{i}" for i in range(TOKENS)]
        torch.manual_seed(5)
        weights = torch.randn(2, TOKENS, TOKENS).mul(3).softmax(-1)
        page = open_file(regard.show(overview() if view == "long" else weights, tokens=names), **options)
        if view == "arcs":
            page.get_by_text("Arcs").click()
        page.keyboard.press("Shift")  # from here on with the keyboard
        page.locator(".rg-main canvas").focus()
        return page

    return open_it


def press(page, look, *keys):
    """Press keys; the subtitle and the picture after them."""
    for key in keys:
        page.keyboard.press(key)
    return look.subtitle(page), look.pixels(page, ".rg-main")


def shown(subtitle):
    """First and last visible query, and first and last visible key."""
    found = re.search(r"shown: queries (.*), keys (.*?)( ·|$)", subtitle)
    return tuple(tuple(map(int, re.findall(r"w(\d+)", side))) for side in found.groups()[:2])


@pytest.mark.parametrize("view", VIEWS)
def test_a_zoomed_picture_is_moved_by_keys_up_to_its_edges(opened, look, view):
    page = opened(view)
    whole = press(page, look)
    assert "shown:" not in whole[0]
    assert press(page, look, "Shift+ArrowDown", "Shift+ArrowRight") == whole  # nowhere to go
    zoomed = press(page, look, "+", "+", "+")
    (top, bottom), (left, right) = shown(zoomed[0])
    assert 10 < top < bottom < 50
    down = press(page, look, "Shift+ArrowDown")
    assert down[1] != zoomed[1]
    assert shown(down[0])[0] > (top, bottom)
    moved = press(page, look, "Shift+ArrowRight")
    assert shown(moved[0])[1] > (left, right)
    assert shown(moved[0])[0] == shown(down[0])[0]
    assert press(page, look, "Shift+ArrowLeft", "Shift+ArrowUp") == zoomed
    end = press(page, look, *["Shift+ArrowDown"] * 8, *["Shift+ArrowRight"] * 8)
    assert [side[1] for side in shown(end[0])] == [TOKENS - 1] * 2
    begin = press(page, look, *["Shift+ArrowUp"] * 16, *["Shift+ArrowLeft"] * 16)
    assert [side[0] for side in shown(begin[0])] == [0, 0]
    assert press(page, look, "0") == whole
    press(page, look, "+")
    assert press(page, look, "Escape") == whole


@pytest.mark.parametrize("view", VIEWS)
def test_what_the_keys_do_is_said_to_everyone(opened, look, view):
    page = opened(view)
    canvas = page.locator(".rg-main canvas")
    expect(canvas).to_have_accessible_description(re.compile("Shift and the arrow keys move a zoomed picture"))
    assert canvas.evaluate("(one) => getComputedStyle(one).outlineStyle") == "solid"
    hint = page.locator(".rg-hint")
    expect(hint).not_to_contain_text("Shift")
    page.keyboard.press("+")
    expect(hint).to_contain_text("Shift + arrow keys")
    page.keyboard.press("?")
    expect(page.locator(".rg-keys")).to_contain_text("Shift + arrowsmove the zoomed picture")
    look.point(page, ".rg-main", 300, 255)
    page.mouse.wheel(0, 1)
    expect(page.locator(".rg-hint-over")).to_contain_text("1.5×")


@pytest.mark.parametrize("view", VIEWS)
def test_keys_move_the_picture_wherever_the_focus_is(opened, look, view):
    """Arrows select small maps while these have the focus, but not together with Shift."""
    page = opened(view)
    page.get_by_label("head", exact=True).select_option("0")
    before = press(page, look, "+", "+")
    page.locator(".rg-atlas canvas").focus()
    after = press(page, look, "Shift+ArrowRight")
    assert shown(after[0])[1] > shown(before[0])[1]
    assert "head 0" in after[0]
    assert "head 1" in press(page, look, "ArrowRight")[0]


@pytest.mark.parametrize("view", ["heat map", "arcs"])
def test_a_token_chosen_by_keys_is_visible(opened, look, view):
    page = opened(view)
    press(page, look, "+", "+", "+", "+")
    page.keyboard.press("ArrowDown")  # the first token, which was outside
    assert "“w0” looks at" in look.subtitle(page)
    with_first = look.pixels(page, ".rg-main")
    page.keyboard.press("Escape")
    assert shown(look.subtitle(page))[0][0] == 0
    assert look.pixels(page, ".rg-main") != with_first
    for _ in range(30):
        page.keyboard.press("ArrowDown")
    assert "“w29” looks at" in look.subtitle(page)
    page.keyboard.press("Escape")
    top, bottom = shown(look.subtitle(page))[0]
    assert top < 29 <= bottom
    assert "shown:" not in press(page, look, "Escape")[0]


def pinch(page, look, selector, before, after):
    """Two fingers on a picture, so many pixels apart at first and at last."""
    box = page.locator(f"{selector} canvas").first.bounding_box()
    x, y = box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5
    client = page.context.new_cdp_session(page)

    def touch(kind, *places):
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": at, "y": y} for at in places]})

    touch("touchStart", x - before / 2)
    touch("touchStart", x - before / 2, x + before / 2)
    for step in range(1, 9):
        half = (before + (after - before) * step / 8) / 2
        touch("touchMove", x - half, x + half)
        page.wait_for_timeout(20)  # a frame, as between the events of a screen
    touch("touchEnd")
    look.settle(page)


def drag_up(page, look, selector):
    """One finger, from below to above."""
    box = page.locator(f"{selector} canvas").first.bounding_box()
    x, y = box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6
    client = page.context.new_cdp_session(page)
    for kind, up in (("touchStart", 0), *(("touchMove", 10 * step) for step in range(1, 9))):
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y - up}]})
        page.wait_for_timeout(20)
    client.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    look.settle(page)


PHONE = {"width": 375, "has_touch": True, "is_mobile": True}
SCALE = "visualViewport.scale"


@pytest.mark.parametrize("view", VIEWS)
def test_two_fingers_zoom_a_picture(opened, look, view):
    page = opened(view, **PHONE)
    whole = press(page, look)
    pinch(page, look, ".rg-main", 50, 150)
    (top, bottom), _ = shown(look.subtitle(page))  # and no span of tokens is marked
    assert abs(bottom - top - TOKENS / 3) < 3
    drag_up(page, look, ".rg-main")
    assert shown(look.subtitle(page))[0] > (top, bottom)
    assert page.evaluate("scrollY") == 0
    pinch(page, look, ".rg-main", 150, 50)
    assert press(page, look) == whole
    drag_up(page, look, ".rg-main")  # of a whole picture, it moves the page
    assert page.evaluate("scrollY") > 0
    assert page.evaluate(SCALE) == 1


def test_two_fingers_zoom_the_page_on_other_pictures(open_file, look, image_maps):
    maps, image = image_maps
    page = open_file(regard.show(maps, image=image), **PHONE)
    pinch(page, look, ".rg-main", 50, 150)
    assert page.evaluate(SCALE) > 1.1


def panels(page, look):
    """What the three maps side by side show."""
    return [look.pixels(page, ".rg-three", number) for number in range(3)]


@pytest.fixture
def side_by_side(open_file):
    """Two heads, or two maps of texts of which the second has a word more."""

    def open_it(view):
        torch.manual_seed(5)
        names = [f"w{i}" for i in range(TOKENS)]
        weights, other = (torch.randn(2, count, count).mul(3).softmax(-1) for count in (TOKENS, TOKENS + 1))
        if view == "compare":
            return open_file(regard.show(weights, other, tokens=(names, [names[0], "new", *names[1:]])))
        page = open_file(regard.show(weights, tokens=names))
        page.get_by_label("compare with").select_option(label="head 1")
        return page

    return open_it


@pytest.mark.parametrize("view", ["two heads", "compare"])
def test_maps_side_by_side_are_zoomed_together(side_by_side, look, view):
    page = side_by_side(view)
    whole = panels(page, look)
    for number in range(3):
        page.locator(".rg-three canvas").nth(number).focus()
        zoomed = page.keyboard.press("+") or panels(page, look)
        assert all(before != after for before, after in zip(whole, zoomed, strict=True))
        assert "shown: queries" in look.subtitle(page)
        moved = page.keyboard.press("Shift+ArrowDown") or panels(page, look)
        assert all(before != after for before, after in zip(zoomed, moved, strict=True))
        page.keyboard.press("0")
        assert panels(page, look) == whole
    look.point(page, ".rg-three", 0.6, 0.5, 1)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    look.point(page, ".rg-atlas", 2, 2)
    zoomed = panels(page, look)
    assert all(before != after for before, after in zip(whole, zoomed, strict=True))
    page.locator(".rg-three canvas").nth(1).dblclick()
    look.point(page, ".rg-atlas", 2, 2)
    assert panels(page, look) == whole


@pytest.mark.parametrize("view", ["two heads", "compare"])
def test_cells_of_maps_side_by_side_are_read_by_keys(side_by_side, look, view):
    page = side_by_side(view)
    whole = panels(page, look)
    for number, more in enumerate((0, view == "compare", 0)):
        canvas = page.locator(".rg-three canvas").nth(number)
        canvas.focus()
        expect(canvas).to_have_accessible_description(re.compile("arrow keys mark a cell"))
        before = look.subtitle(page)
        page.keyboard.press("ArrowRight")
        for _ in range(TOKENS):
            page.keyboard.press("ArrowUp")
            page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowDown")  # on the second side, the new word
        page.keyboard.press("ArrowDown")
        assert f"“w{2 - more}” → “w0”" in look.subtitle(page), before
        assert look.subtitle(page).count("%") >= 3
        assert all(one != other for one, other in zip(panels(page, look), whole, strict=True))
        if view == "compare":
            page.keyboard.press("Escape")
            assert panels(page, look) == whole


def test_controls_beside_two_heads_zoom_them(side_by_side, look):
    page = side_by_side("two heads")
    whole = panels(page, look)
    slider = page.get_by_label("zoom", exact=True)
    slider.focus()
    slider.press("End")
    assert all(before != after for before, after in zip(whole, panels(page, look), strict=True))
    page.keyboard.press("?")
    expect(page.locator(".rg-keys")).to_contain_text("zoom in")
    expect(page.locator(".rg-keys")).not_to_contain_text("zoom to the marked span")  # spans are of one map
