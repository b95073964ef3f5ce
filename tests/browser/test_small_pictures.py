"""A head with all its mass on one key leaves pixels in its thumbnail, and in a map with fewer pixels than weights."""

import itertools
import re
from collections import Counter

import pytest
import torch

import regard
from regard.maps import AttentionRecord, Check, Overview

from .conftest import settle
from .test_long import one_key_each

HEADS = 24
SCREENS = [(1200, 1.0), (375, 1.0), (1200, 0.67), (1200, 4.0)]  # width, and pixels per CSS pixel

# For each tile of the one row of thumbnails, how many of its pixels are dark.
TILES = """(canvas, [heads, left]) => {
  const wide = canvas.clientWidth;
  const cell = Math.max(4, Math.min(120, (wide - left - 3) / heads - 2));
  const ratio = Math.min(3, devicePixelRatio);
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const pen = copy.getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  return Array.from({ length: heads }, (_, head) => {
    const [x, y] = [left + head * (cell + 2), 16].map((at) => Math.round(at * ratio));
    const { data } = pen.getImageData(x, y, Math.round(cell * ratio), Math.round(cell * ratio));
    let dark = 0;
    for (let i = 0; i < data.length; i += 4) if (data[i] + data[i + 1] + data[i + 2] < 300 && data[i + 3] > 200) dark++;
    return dark;
  });
}"""


def on_one_key(keys, count):
    """Maps of heads that look at one key each, and otherwise anywhere, so that all keys are visible."""
    weights = torch.full((len(keys), count, count), 1e-6)
    weights[torch.arange(len(keys)), :, torch.tensor(keys)] = 1.0
    return weights


def spread(count):
    return [(97 * head + 5) % count for head in range(HEADS)]


@pytest.mark.parametrize(("width", "ratio"), SCREENS)
@pytest.mark.parametrize("view", ["tokens", "long", "image", "compare"])
def test_every_thumbnail_of_a_sharp_head_has_dark_pixels(open_file, view, width, ratio):
    if view == "tokens":
        shown = regard.show(on_one_key(spread(200), 200))
    elif view == "compare":
        shown = regard.show(torch.full((HEADS, 200, 200), 1e-6), on_one_key(spread(200), 200))
    elif view == "image":
        weights = on_one_key(spread(1024), 1024)[None, :, :1]
        maps = [regard.maps.Map(name, [AttentionRecord.given(weights, name, rows=(0,))]) for name in "ab"]
        shown = regard.show(maps, image=torch.rand(3, 64, 64), grid=(32, 32))
    else:
        parts = [one_key_each(2048, torch.full((2048,), key)) for key in spread(2048)]
        tensors = {name: torch.cat([part.tensors[name] for part in parts], 1) for name in parts[0].tensors}
        record = AttentionRecord("x", "sdpa", (1, HEADS, 2048, 2048), Check("kernel"))
        record.overview = Overview.of(tensors, parts[0].cell).kept()
        shown = regard.show(regard.maps.Map("x", [record]))
    page = open_file(shown, width=width, device_scale_factor=ratio)
    settle(page)
    left = 12 + 6.4 if view == "image" else 2  # the name of a layer, where there are several
    dark = page.locator(".rg-atlas canvas").evaluate(TILES, [HEADS, left])
    assert min(dark) > 0, dark


COLUMN = """(canvas) => {
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const pen = copy.getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const { data } = pen.getImageData(0, Math.round(copy.height / 3), copy.width, 1);
  let dark = 0;
  for (let i = 0; i < data.length; i += 4) if (data[i] + data[i + 1] + data[i + 2] < 300 && data[i + 3] > 200) dark++;
  return dark;
}"""


@pytest.mark.parametrize(("width", "ratio"), SCREENS)
@pytest.mark.parametrize("view", ["tokens", "long"])
def test_a_map_of_more_weights_than_pixels_shows_a_sharp_head(open_file, view, width, ratio):
    """At every key: a picture that is drawn smaller than it is would skip some."""
    keys = [0, 1, 2, 3, 500, 501, 502, 1021, 1022, 1023]
    if view == "tokens":
        shown = regard.show(on_one_key(keys, 1024))
    else:
        parts = [one_key_each(1024, torch.full((1024,), key), 1024) for key in keys]
        tensors = {name: torch.cat([part.tensors[name] for part in parts], 1) for name in parts[0].tensors}
        record = AttentionRecord("x", "sdpa", (1, len(keys), 1024, 1024), Check("kernel"))
        record.overview = Overview.of(tensors, parts[0].cell).kept()
        shown = regard.show(regard.maps.Map("x", [record]))
    page = open_file(shown, width=width, device_scale_factor=ratio)
    for head in range(len(keys)):
        page.get_by_label("head", exact=True).select_option(str(head))
        settle(page)
        assert page.locator(".rg-main canvas").evaluate(COLUMN) > 0, keys[head]


@pytest.mark.parametrize(
    ("layers", "heads", "width", "expected"),
    [
        (1, 64, 500, [*map(str, range(64))]),  # lines of a layer: a number above each thumbnail
        (3, 48, 420, [*map(str, range(3, 48))] * 3),
        (1, 600, 375, None),  # smaller ones: the first and the last head of each line
        (3, 128, 420, None),
    ],
)
def test_every_line_of_thumbnails_has_the_numbers_of_its_heads(open_file, layers, heads, width, expected):
    weights = torch.rand(1, heads, 6, 6).softmax(-1)
    maps = [regard.maps.Map(f"layers.{at}", [AttentionRecord.given(weights, "attn")]) for at in range(layers)]
    page = open_file(regard.show(regard.maps.Maps(maps)), width=width)
    with page.expect_download() as saved:
        page.get_by_role("button", name="SVG").click()
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", saved.value.path().read_text())
    if expected is not None:
        assert not Counter(expected) - Counter(texts)
        return
    ranges = [tuple(map(int, text.split("–"))) for text in texts if "–" in text]
    assert len(ranges) >= layers * 2
    assert max(last for _, last in ranges) == heads - 1
    for (_, last), (first, _) in itertools.pairwise(ranges):
        assert first == last + 1 or last == heads - 1
    assert not any("…" in text for text in texts)


ANY_DARK = """(canvas, [x, y, width, height]) => {
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [width, height];
  const pen = copy.getContext("2d");
  pen.drawImage(canvas, -x, -y);
  const { data } = pen.getImageData(0, 0, width, height);
  return data.some((value, i) => i % 4 === 3 && value > 200 && data[i - 3] + data[i - 2] + data[i - 1] < 250);
}"""


def test_hundreds_of_layers_fit_on_the_canvas_of_a_fine_screen(open_file):
    """A browser draws nothing on one that is too large."""
    page = open_file(regard.show([on_one_key([3], 6) for _ in range(330)]), width=375)
    canvas = page.locator(".rg-atlas canvas")
    height = canvas.evaluate("(canvas) => canvas.height")
    assert 3 * height < 32768
    assert canvas.evaluate(ANY_DARK, [67, height - 100, 33, 100])


def test_one_of_a_thousand_heads_is_enlarged(open_file):
    page = open_file(regard.show(on_one_key([24] * 1400, 48)), device_scale_factor=2)
    canvas = page.locator(".rg-atlas canvas")
    canvas.hover(position={"x": 200, "y": 100})
    settle(page)
    assert canvas.evaluate(ANY_DARK, [380, 150, 50, 60])  # the middle of the enlarged map


def test_a_saved_picture_has_all_small_maps(open_file):
    """Also where the page drew them one after the other, in another size."""
    layers = 4
    page = open_file(regard.show([on_one_key([3] * 12, 60) for _ in range(layers)]), device_scale_factor=2)
    page.get_by_label("pixels show").select_option("mass")
    settle(page)
    page.evaluate("() => { let now = 0; performance.now = () => (now += 100); }")  # a slow machine
    with page.expect_download() as saved:
        page.get_by_role("button", name="SVG").click()
    assert saved.value.path().read_text().count("<image ") == layers + 1


def test_small_maps_of_narrow_images_are_not_much_higher_than_others(open_file):
    page = open_file(regard.show([torch.rand(3, 64, 64).softmax(-1)] * 2, grid=(64, 1)))
    heights = page.locator("canvas").evaluate_all("(all) => all.map((canvas) => canvas.clientHeight)")
    assert max(heights) < 700
