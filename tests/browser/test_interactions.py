"""What people do with a view: heads on, off and alone, a span of tokens, the strongest patches, the wheel."""

import re

import pytest
import torch
from playwright.sync_api import expect

import regard

pytestmark = pytest.mark.browser


def test_heads_of_a_layer_are_turned_off_and_shown_alone(open_file, look, text_maps):
    page = open_file(regard.show(text_maps, tokens=["[CLS]", "the", "quick", "brown", "fox", "jumps", "over", "[SEP]"]))
    page.get_by_text("Arcs").click()
    page.get_by_label("all heads of the layer").check()
    everything = look.pixels(page, ".rg-main")
    heads = page.locator(".rg-legend button[aria-pressed]")
    expect(heads).to_have_count(4)
    heads.nth(1).click()
    some = look.pixels(page, ".rg-main")
    assert some != everything
    assert "3 of 4 heads" in look.subtitle(page)
    heads.nth(2).dblclick()
    for place, pressed in enumerate(("false", "false", "true", "false")):
        expect(heads.nth(place)).to_have_attribute("aria-pressed", pressed)
    assert look.pixels(page, ".rg-main") not in (some, everything)
    page.get_by_role("button", name="all heads", exact=True).click()
    assert look.pixels(page, ".rg-main") == everything

    # A drag marks a span of tokens, and the page says how much of the attention it holds.
    page.get_by_text("Heat map").click()
    whole = look.pixels(page, ".rg-main")
    canvas = page.locator(".rg-main canvas")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 110, box["y"] + 110)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, box["y"] + 160, steps=3)
    page.mouse.up()
    assert "of the attention of" in look.subtitle(page)
    assert "(uniform: " in look.subtitle(page)
    page.get_by_role("button", name="zoom to the span").click()
    assert look.pixels(page, ".rg-main") != whole

    # A wheel that only scrolls the page says how to zoom.
    hint = page.locator(".rg-hint-over")
    expect(hint).to_be_hidden()
    look.point(page, ".rg-main", 130, 130)
    page.mouse.wheel(0, 1)
    hint.wait_for(state="visible")
    expect(hint).to_contain_text("Ctrl + wheel")
    page.get_by_role("button", name="clear the span").click()
    assert "of the attention of" not in look.subtitle(page)


def test_the_strongest_patches_are_outlined_on_the_photo(open_file, look, image_maps):
    maps, image = image_maps
    page = open_file(regard.show(maps, image=image))
    colored = look.pixels(page, ".rg-main")
    page.get_by_label("mass shown").fill("0.3")
    few = look.pixels(page, ".rg-main")
    assert few != colored
    assert "patches hold 30 %" in look.subtitle(page)
    page.get_by_text("Outlines").click()
    look.point(page, ".rg-main", 0.5, 0.6)
    outlined = look.pixels(page, ".rg-main")
    tip = page.locator(".rg-main .rg-tip")
    expect(tip).to_be_visible()
    expect(tip).to_have_text(re.compile("→.*%"))
    # One photo per head of the layer, in color.
    tiles = look.pixels(page, ".rg-atlas")
    page.locator(".rg-legend button[aria-pressed]").first.click()
    assert look.pixels(page, ".rg-main") != outlined
    page.get_by_label("mass shown").fill("0.9")
    assert look.pixels(page, ".rg-atlas") != tiles


def test_the_share_of_the_strongest_patches_is_of_what_patches_have(open_file, look):
    """Beside a class token with nearly all of the weight, most of the mass on patches is little attention."""
    weights = torch.full((1, 2, 17, 17), 0.05 / 16)
    weights[..., 0] = 0.95
    page = open_file(regard.show(weights, image=torch.rand(3, 16, 16), grid=(4, 4), prefix=1))
    page.get_by_label("mass shown").fill("0.5")
    assert "8 of 16 patches hold 50 % of the 5.0 % on patches" in look.subtitle(page)
    page = open_file(regard.show(weights[..., 1:, 1:] * 20, image=torch.rand(3, 16, 16), grid=(4, 4)))
    page.get_by_label("mass shown").fill("0.5")
    assert "8 of 16 patches hold 50 %" in look.subtitle(page)
    assert "on patches" not in look.subtitle(page)


def test_heads_are_filtered_by_what_they_do(open_file, look):
    ways = torch.stack([torch.eye(5), torch.eye(5).roll(-1, 1), torch.full((5, 5), 0.2)])
    page = open_file(regard.show(ways))
    every = look.pixels(page, ".rg-atlas")
    choice = page.get_by_label("pattern")
    assert choice.locator("option").all_inner_texts() == [
        "any pattern",
        "looks at itself (1)",
        "looks at the previous token (1)",
        "looks everywhere equally (1)",
    ]
    choice.select_option("previous")
    assert look.pixels(page, ".rg-atlas") != every


def test_a_slider_goes_through_the_steps_of_generation(open_file, look):
    """Four steps after a prompt of three tokens: each shows what had been written until then."""
    from regard.maps import AttentionRecord, Map, Maps

    torch.manual_seed(0)
    calls = [AttentionRecord.given(torch.rand(1, 2, 3, 3).tril() + 1e-3 * torch.ones(3, 3).tril())]
    calls += [AttentionRecord.given(torch.rand(1, 2, 1, keys).softmax(-1)) for keys in range(4, 8)]
    page = open_file(regard.show(Maps([Map("attention", calls)]), tokens=list("abcdefg")))
    slider = page.get_by_label("generated", exact=True)
    assert (slider.get_attribute("max"), slider.input_value()) == ("4", "4")
    name = "heat map of {} × {} tokens"
    page.get_by_role("application", name=name.format(7, 7)).wait_for()
    slider.fill("1")
    page.get_by_role("application", name=name.format(4, 4)).wait_for()
    expect(page.locator(".rg-controls")).to_contain_text("1 of 4 tokens")


def test_patches_of_images_in_a_text_are_selected_by_keys(open_file, look):
    torch.manual_seed(3)
    weights = torch.rand(2, 2 + 12 + 1 + 4, 19).softmax(-1)
    parts = [("text", 2), ("image", (3, 4)), ("text", 1), ("image", (2, 2))]
    page = open_file(regard.show(weights, tokens=["look", "at", "this"], segments=parts))
    first, second = (page.locator(".rg-image canvas").nth(number) for number in range(2))
    expect(page.locator(".rg-image canvas[tabindex='0']")).to_have_count(3)  # two images and the words
    expect(first).to_have_accessible_description(re.compile("arrow keys select a patch"))

    def selected(*keys):
        for key in keys:
            page.keyboard.press(key)
        return re.search(r" · patch \((.*)\) of image (.) looks", look.subtitle(page)).groups()

    first.focus()
    assert selected("ArrowDown") == ("1, 2", "1")
    assert selected("ArrowUp", "ArrowLeft") == ("0, 1", "1")
    assert selected("ArrowUp", *["ArrowRight"] * 5) == ("0, 3", "1")
    assert selected(*["ArrowDown"] * 5) == ("2, 3", "1")
    assert selected("]") == ("2, 3", "1")  # other keys do what they do elsewhere
    second.focus()
    assert selected("ArrowLeft", "ArrowLeft") == ("1, 0", "2")


# Whether a part of the page has a background of its own: that of the page comes with colors of the system, too.
STANDS_OUT = """(one) => {
  const of = (element) => getComputedStyle(element).backgroundColor;
  return !/, 0\\)$/.test(of(one)) && ![of(document.body), "rgb(255, 255, 255)"].includes(of(one));
}"""


def test_what_is_chosen_can_be_told_in_the_colors_of_the_system(open_file):
    page = open_file(regard.show(torch.eye(4)[None]), forced_colors="active")
    chosen, other = (page.locator(".rg-choice label", has_text=name) for name in ("Heat map", "Arcs"))
    assert (chosen.evaluate(STANDS_OUT), other.evaluate(STANDS_OUT)) == (True, False)
    other.click()
    expect(other).to_have_class("rg-on")
    assert (chosen.evaluate(STANDS_OUT), other.evaluate(STANDS_OUT)) == (False, True)


def test_the_page_of_the_studio_can_be_told_in_the_colors_of_the_system(studio):
    page = studio("mechanism", forced_colors="active")
    links = page.locator(".st-top nav a")
    assert [link.evaluate(STANDS_OUT) for link in links.all()].count(True) == 1
    assert page.locator(".st-top nav a[aria-current]").evaluate(STANDS_OUT)


def long_map():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    with torch.no_grad(), regard.capture(layer, overview=15) as maps:
        layer(torch.randn(1, 60, 8))
    return maps


@pytest.mark.parametrize("view", ["tokens", "compare", "image", "mixed", "long", "heads"])
def test_an_address_that_names_no_head_opens_the_page_as_if_it_named_none(open_file, look, run, view):
    weights = torch.rand(2, 2, 8, 8, generator=torch.Generator().manual_seed(0)).softmax(-1)
    layers = {"a": weights[0], "b": weights[1]}
    shown = {
        "tokens": lambda: regard.show(layers),
        "compare": lambda: regard.show(layers, {"a": weights[1], "b": weights[0]}),
        "image": lambda: regard.show(layers, image=torch.rand(3, 8, 16), grid=(2, 4)),
        "mixed": lambda: regard.show(layers, segments=[("text", 2), ("image", (2, 3))]),
        "long": lambda: regard.show(long_map()),
        "heads": lambda: regard.show(run),
    }[view]()
    page = open_file(shown)
    expected, address = look.subtitle(page), page.url.split("#")[0]
    for wrong in ("0.5", "-1", "NaN", ""):
        page.goto("about:blank")
        page.goto(f"{address}#{view}.layer={wrong}&{view}.head={wrong}&{view}.step={wrong}")
        assert look.subtitle(page) == expected
