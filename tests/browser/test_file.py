"""Views saved as one file: opened from disk with the network off, every control changes what is drawn."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from playwright.sync_api import expect

import regard
from regard.maps import AttentionRecord, Check, Map, Maps

pytestmark = pytest.mark.browser

WORDS = ["[CLS]", "the", "quick", "brown", "fox", "jumps", "over", "[SEP]"]


def said(share):
    """As the views say it."""
    text = 100 * share
    return f"{round(text)} %" if share >= 0.0995 or share == 0 else f"{float(f'{text:.2g}'):g} %"


def percent_in(text):
    return float(re.search(r"([\d.]+) %", text)[1]) / 100


class TestHeads:
    @pytest.fixture
    def page(self, open_file, run):
        return open_file(regard.show(run))

    def test_the_slider_moves_the_heads(self, page, look):
        last = look.pixels(page, ".rg-panels")
        slider = page.get_by_label("step")
        expect(slider).to_have_attribute("max", str(len(page_steps(page)) - 1))
        slider.fill("0")
        assert look.subtitle(page).startswith("before training")
        assert look.pixels(page, ".rg-panels") != last
        slider.press("End")
        assert look.pixels(page, ".rg-panels") == last

    def test_it_plays_to_the_end_and_stops(self, page, look):
        page.get_by_label("step").fill("0")
        first = look.pixels(page, ".rg-panels")
        page.get_by_label("play").click()
        page.wait_for_function("() => Number(document.querySelector('input[type=range]').value) > 2")
        page.get_by_label("pause").click()
        assert look.pixels(page, ".rg-panels") != first
        expect(page.get_by_label("play")).to_be_visible()

    def test_hovering_a_head_shows_its_map_and_its_way(self, page, look, run):
        heads = run.heads
        expect(page.locator(".rg-inspector canvas")).to_have_count(1)  # the legend of sharpness
        point_at_a_head(page, look)
        text = look.subtitle(page)
        expect(page.locator(".rg-inspector canvas")).to_have_count(3)
        number = int(re.search(r"head (\d+)", text)[1])
        center = heads.center[0][-1, number]
        row, column = (float(x.replace("−", "-")) for x in re.search(r"\((\S+), (\S+)\)", text).groups())
        assert max(abs(row - float(center[0])), abs(column - float(center[1]))) < 0.006
        sharpness = float(re.search(r"sharpness ([\d.]+)", text)[1])
        assert abs(sharpness / float(heads.sharpness[0][-1, number]) - 1) < 0.01

    def test_a_click_keeps_it_and_keys_change_it(self, page, look):
        page.mouse.click(*point_at_a_head(page, look))
        page.mouse.move(0, 0)
        kept = look.subtitle(page)
        assert "head" in kept
        page.keyboard.press("ArrowDown")
        assert look.subtitle(page) != kept
        page.keyboard.press("Escape")
        assert "head" not in look.subtitle(page)
        page.keyboard.press("Home")
        assert look.subtitle(page).startswith("before training")

    def test_convolution_and_trails_can_be_switched(self, page, look):
        seen = {look.pixels(page, ".rg-panels")}
        page.get_by_label("convolution").select_option("5")
        seen.add(look.pixels(page, ".rg-panels"))
        page.get_by_label("trails").uncheck()
        seen.add(look.pixels(page, ".rg-panels"))
        assert len(seen) == 3

    def test_full_matrices_one_axis_and_heads_without_end(self, open_file, look):
        from regard.training import HeadTrajectory

        turned = torch.tensor([[2.0, 1.5], [1.5, 2.0]]).expand(2, 4, 2, 2)
        straight = torch.tensor([[2.0, 0.0], [0.0, 2.0]]).expand(2, 4, 2, 2)
        center = torch.tensor([[-1.0, -1], [-1, 1], [1, -1], [1, 1]]).expand(2, 4, 2)
        pictures = []
        for sharpness in (turned, straight, -straight):
            page = open_file(regard.show(HeadTrajectory((0, 9), ("a",), (6, 9), (center,), (sharpness,))))
            pictures.append(look.pixels(page, ".rg-panels"))
        page.get_by_label("whole grid").check()
        assert len({*pictures, look.pixels(page, ".rg-panels")}) == 4
        expect(page.locator(".rg-footer")).to_contain_text("4 heads have no contour", use_inner_text=True)
        text = HeadTrajectory((0, 9), ("a",), (12,), (torch.randn(2, 3, 1),), (torch.rand(2, 3),))
        page = open_file(regard.show(text))
        look.point(page, ".rg-panels", 0.5, 0.9)
        assert "head 2 · looks" in look.subtitle(page)


def point_at_a_head(page, look):
    for row in range(1, 12):
        for column in range(1, 12):
            place = look.point(page, ".rg-panels", column / 12, row / 12)
            if "head " in look.subtitle(page):
                return place
    raise AssertionError("there is no head to point at")


def page_steps(page):
    return page.evaluate("() => JSON.parse(document.getElementById('view-0-header').textContent).meta.steps")


class TestImage:
    @pytest.fixture
    def page(self, open_file, image_maps):
        maps, image = image_maps
        return open_file(regard.show(maps, image=image))

    def test_it_opens_on_the_class_token(self, page, look, image_maps):
        opening = regard.show(image_maps[0], image=image_maps[1]).payload.meta["opening"]
        row = image_maps[0][opening["layer"]].weights[0, opening["head"], 0]
        patch = int(row[2:].argmax())
        text = look.subtitle(page)
        assert "from class token" in text
        assert f"head {opening['head']} ·" in text
        assert f"most at patch ({patch // 10}, {patch % 10})" in text
        assert opening["why"] in text

    def test_hovering_a_patch_asks_it(self, page, look, image_maps):
        page.get_by_label("layer", exact=True).select_option(str(len(image_maps[0]) - 1))
        page.get_by_label("head", exact=True).select_option("mean")
        main, heads = look.pixels(page, ".rg-main"), look.pixels(page, ".rg-atlas")
        look.point(page, ".rg-main", 0.05, 60)
        text = look.subtitle(page)
        assert "from patch (0, 0)" in text
        row = image_maps[0][-1].weights[0].mean(0)[2]
        assert abs(percent_in(text) - float(row[2:].max())) < 0.01
        assert look.pixels(page, ".rg-main") != main
        assert look.pixels(page, ".rg-atlas") != heads

    def test_a_click_pins_the_patch(self, page, look):
        page.mouse.click(*look.point(page, ".rg-main", 0.05, 60))
        heads = look.pixels(page, ".rg-atlas")
        look.point(page, ".rg-main", 0.9, 100)
        text = look.subtitle(page)
        assert "from patch (0, 0)" in text
        assert "gets" in text
        assert look.pixels(page, ".rg-atlas") == heads

    def test_thumbnails_enlarge_on_hover_and_lock_on_click(self, page, look, image_maps):
        page.get_by_label("head", exact=True).select_option("mean")
        before = look.pixels(page, ".rg-atlas")
        place = look.point(page, ".rg-atlas", 0.5, 0.3)
        text = look.subtitle(page)
        assert re.search(r"blocks\.0\.attention · head \d", text)
        assert look.pixels(page, ".rg-atlas") != before
        page.mouse.move(0, 0)
        assert "mean over heads" in look.subtitle(page)
        page.mouse.click(*place)
        page.mouse.move(0, 0)
        assert look.subtitle(page) == text

    def test_rollout_is_the_one_of_the_library(self, page, look, image_maps):
        maps, _ = image_maps
        page.get_by_label("layer", exact=True).select_option(str(len(maps) - 1))
        page.get_by_label("head", exact=True).select_option("rollout")
        row = regard.rollout(maps)[0, 0, 2:]
        patch = int(row.argmax())
        text = look.subtitle(page)
        assert f"rollout · from class token · most at patch ({patch // 10}, {patch % 10})" in text
        assert abs(percent_in(text) - float(row.max())) < 0.005

    def test_smoothing_does_not_bleed_from_one_head_into_the_next(self, open_file, look):
        edge = torch.zeros(16, 16)
        edge[:, 3::4] = 0.25  # all weight on the right column of 4 × 4 patches
        nothing = torch.full((16, 16), 1 / 16)
        page = open_file(regard.show(torch.stack([edge, nothing]), image=torch.rand(3, 8, 8), grid=(4, 4)))
        page.get_by_text("Map", exact=True).click()
        page.get_by_label("smooth").check()
        look.settle(page)
        # The second tile is uniform: a line across it has one color, up to its frame.
        colors = page.evaluate(
            """() => {
              const canvas = document.querySelector('.rg-atlas canvas');
              const cell = canvas.width > 400 ? 190 : (canvas.width - 5) / 2 - 4;
              const left = Math.round(2 + cell + 4);
              const { data } = canvas.getContext('2d').getImageData(left + 3, 16 + Math.round(cell / 2), cell - 6, 1);
              return [...new Set(Array.from({ length: data.length / 4 }, (_, i) => data[4 * i]))];
            }"""
        )
        assert max(colors) - min(colors) <= 1

    def test_overlay_strength_and_layout_change_the_picture(self, page, look):
        seen = {look.pixels(page, ".rg-main")}
        page.get_by_text("Spotlight").click()
        seen.add(look.pixels(page, ".rg-main"))
        page.get_by_label("strength").fill("0.3")
        seen.add(look.pixels(page, ".rg-main"))
        page.get_by_label("smooth").check()
        seen.add(look.pixels(page, ".rg-main"))
        page.get_by_text("Map", exact=True).click()
        seen.add(look.pixels(page, ".rg-main"))
        assert len(seen) == 5
        heads = look.pixels(page, ".rg-atlas")
        page.get_by_text("This layer", exact=True).click()
        block = look.pixels(page, ".rg-atlas")
        page.get_by_label("one scale for all heads").uncheck()
        assert len({heads, block, look.pixels(page, ".rg-atlas")}) == 3

    def test_the_keyboard_reaches_every_patch_head_and_layer(self, page, look):
        page.get_by_label("layer", exact=True).select_option("2")
        page.get_by_label("head", exact=True).select_option("mean")
        page.locator(".rg-main canvas").focus()
        page.keyboard.press("ArrowDown")
        assert "from patch (3, 5)" in look.subtitle(page)
        page.keyboard.press("ArrowRight")
        assert "from patch (3, 6)" in look.subtitle(page)
        page.keyboard.press("PageUp")
        page.keyboard.press("]")
        assert "blocks.1.attention · head 0" in look.subtitle(page)
        page.keyboard.press("c")
        assert "from class token" in look.subtitle(page)
        page.keyboard.press("c")
        assert "from prefix 1" in look.subtitle(page)

    def test_on_a_projector_all_is_larger_and_the_pointer_still_hits(self, open_file, look, image_maps):
        maps, image = image_maps
        page = open_file(regard.show(maps, image=image), width=2560, height=1440)
        size = page.locator(".rg-main canvas").evaluate("(canvas) => [canvas.width, canvas.clientWidth]")
        assert abs(size[0] - size[1]) < 3
        box = page.locator(".rg-main canvas").bounding_box()
        # The image has the aspect 24 : 40 and fills the width; below it is a legend, above it are two tokens.
        look.point(page, ".rg-main", box["width"] - 8, box["height"] - 36 * 1.6 - 8)
        assert "from patch (5, 9)" in look.subtitle(page)

    def test_every_map_shows_its_residual(self, page, image_maps):
        page.get_by_label("layer", exact=True).select_option(str(len(image_maps[0]) - 1))
        text = page.locator(".rg-footer").inner_text()
        assert f"{image_maps[0][-1].residual:.1e}".replace("e-0", "e-") in text
        page.locator(".rg-residuals summary").click()
        for name in image_maps[0]:
            assert name in page.locator(".rg-residuals").inner_text()

    def test_a_map_that_is_wrong_is_marked(self, open_file):
        check = Check("kernel", torch.tensor(0.5), torch.tensor(1e-5))
        wrong = AttentionRecord.given(torch.rand(1, 1, 4, 4).softmax(-1), kind="sdpa", check=check)
        page = open_file(regard.show(Maps([Map("attn", [wrong])]), grid=(2, 2)))
        assert (
            "residual 5.0e-1 against the kernel, more than rounding explains"
            in page.locator(".rg-warn").first.inner_text()
        )

    def test_chosen_rows_and_grids_of_several_sizes(self, open_file, look):
        def of(grid, rows=None):
            keys = grid[0] * grid[1]
            weights = torch.rand(1, 2, len(rows) if rows else keys, keys).softmax(-1)
            layout = regard.maps.Layout(grid, 0)
            return AttentionRecord.given(weights, rows=rows, layout=layout)

        maps = Maps([Map("large", [of((4, 6))]), Map("small", [of((2, 3))]), Map("rows", [of((2, 3), (0, 4))])])
        page = open_file(regard.show(maps, image=torch.rand(3, 16, 24)))
        page.get_by_label("layer", exact=True).select_option("2")
        page.get_by_label("head", exact=True).select_option("mean")
        assert "from patch (1, 1)" in look.subtitle(page)
        look.point(page, ".rg-main", 0.9, 0.1)
        assert "not captured" in look.subtitle(page)
        page.get_by_label("layer", exact=True).select_option("0")
        look.point(page, ".rg-main", 0.95, 0.1)
        assert "large · mean over heads · from patch (0, 5)" in look.subtitle(page)


def rounded(maps):
    """As a browser gets them: in bytes."""
    arrays = regard.show(maps).payload.arrays
    calls = [replace(found.latest, stored=arrays[f"map{i}"].values[None]) for i, found in enumerate(maps.values())]
    return Maps(Map(name, [call]) for name, call in zip(maps, calls, strict=True))


class TestMergedTokens:
    """Layers that see the image in patches of different sizes: 16 × 16, then 8 × 8."""

    @pytest.fixture
    def page(self, open_file, merged_maps):
        maps, image = merged_maps
        page = open_file(regard.show(maps, image=image))
        page.get_by_label("layer", exact=True).select_option("3")
        page.get_by_label("head", exact=True).select_option("mean")
        return page

    def pixel(self, page, look, row, column):
        """Move to a pixel of the image of 32 × 32."""
        width = page.locator(".rg-main canvas").bounding_box()["width"]
        return look.point(page, ".rg-main", width * (column + 0.5) / 32, 2 + width * (row + 0.5) / 32)

    def test_a_patch_is_as_large_as_its_layer_has_it(self, page, look):
        self.pixel(page, look, 20, 12)
        first, thumbnails = look.pixels(page, ".rg-main"), look.pixels(page, ".rg-atlas")
        assert "from patch (5, 3) of 8 × 8" in look.subtitle(page)
        self.pixel(page, look, 23, 15)  # of the same 4 × 4 pixels, but another patch of the layers below
        assert look.pixels(page, ".rg-main") == first
        assert look.pixels(page, ".rg-atlas") != thumbnails
        self.pixel(page, look, 24, 15)
        assert "from patch (6, 3) of 8 × 8" in look.subtitle(page)
        page.get_by_label("layer", exact=True).select_option("0")
        assert "from patch (12, 7) of 16 × 16" in look.subtitle(page)
        self.pixel(page, look, 25, 13)
        assert "from patch (12, 6) of 16 × 16" in look.subtitle(page)

    @pytest.mark.parametrize("layer", [1, 2, 3])
    def test_rollout_is_the_one_of_the_library(self, page, look, merged_maps, layer):
        maps, _ = merged_maps
        page.get_by_label("layer", exact=True).select_option(str(layer))
        page.get_by_label("head", exact=True).select_option("rollout")
        page.mouse.click(*self.pixel(page, look, 20, 12))
        query, size = ((10, 6), 16) if layer < 2 else ((5, 3), 8)
        row, exact = (
            regard.rollout(each[: layer + 1])[0, query[0] * size + query[1]] for each in (rounded(maps), maps)
        )
        assert float((row - exact).abs().max()) < 0.02 * float(exact.max())  # bytes hold so much of the maps
        for patch in (int(row.argmax()), 0, 37, 255):
            self.pixel(page, look, 2 * (patch // 16) + 1, 2 * (patch % 16))
            text = look.subtitle(page)
            assert f"rollout · from patch {query} of {size} × {size}" in text
            assert f"patch ({patch // 16}, {patch % 16}) of 16 × 16 gets" in text
            # Two digits are said.
            assert percent_in(text.rpartition("gets")[2]) == pytest.approx(float(row[patch]), rel=0.051)

    def test_names_say_which_layer_has_which_patches(self, page):
        options = page.get_by_label("layer", exact=True).locator("option").all_inner_texts()
        assert [text.rpartition(" · ")[2] for text in options] == ["16 × 16", "16 × 16", "8 × 8", "8 × 8"]

    def test_as_tokens_the_rollout_has_the_first_layer_s_keys(self, open_file, look, merged_maps):
        maps, _ = merged_maps
        page = open_file(regard.show(maps))
        page.get_by_label("layer", exact=True).select_option("3")
        page.get_by_label("head", exact=True).select_option("rollout")
        page.wait_for_timeout(300)
        assert page.locator(".rg-main canvas").get_attribute("aria-label") == "heat map of 64 × 256 tokens"
        page.locator(".rg-main canvas").focus()
        page.keyboard.press("ArrowDown")
        row = regard.rollout(rounded(maps))[0, 0]
        best = int(row.argmax())
        assert f"“(0, 0)” looks at “({best // 16}, {best % 16})” {said(float(row.max()))}" in look.subtitle(page)

    def test_heads_of_merged_layers_share_one_scale_of_the_image(self, open_file, look):
        from regard.training import HeadTrajectory

        def at(row, column):
            return torch.tensor([[[float(row), float(column)]]])

        sharpness = (torch.full((1, 1), 9.0),) * 3
        centers = at(0, 4), at(0, 2), at(0, -1)
        found = HeadTrajectory((0,), ("a", "b", "c"), None, centers, sharpness, ((16, 16), (8, 8), (8, 8)))
        page = open_file(regard.show(found))
        scale = page.get_by_label("one scale for all layers")
        assert scale.is_checked()
        width = page.locator(".rg-panels canvas").nth(0).bounding_box()["width"]
        place = next(x for x in range(int(width / 2), int(width)) if "a head 0" in self.heads_at(page, look, 0, x))
        assert "looks (0, 4.00) away, in tokens of 16 × 16" in look.subtitle(page)
        assert "b head 0 · looks (0, 2.00) away, in tokens of 8 × 8" in self.heads_at(page, look, 1, place)
        assert "head" not in self.heads_at(page, look, 2, place)
        assert "c head 0" in self.heads_at(page, look, 2, width / 2 - (place - width / 2) / 2)
        page.mouse.move(0, 0)
        before = look.pixels(page, ".rg-panels", 0)
        scale.uncheck()
        assert look.pixels(page, ".rg-panels", 0) != before
        expect(page.locator(".rg-footer")).to_contain_text("different scales", use_inner_text=True)

    def heads_at(self, page, look, panel, x):
        box = page.locator(".rg-panels canvas").nth(panel).bounding_box()
        look.point(page, ".rg-panels", x, 24 + (box["height"] - 26) / 2, panel)
        return look.subtitle(page)


# A copy can be read again and again without a warning.
COPY = """const shown = document.querySelector('.rg-main canvas');
  const canvas = document.createElement('canvas');
  const [w, h] = [canvas.width, canvas.height] = [shown.width, shown.height];
  const pen = canvas.getContext('2d', { willReadFrequently: true });
  pen.drawImage(shown, 0, 0);"""

# The canvas of the map has light pixels only where there is no weight.
ROWS_WITHOUT_INK = (
    f"() => {{ {COPY}"
    + """
  const { data } = pen.getImageData(0, 0, w, h);
  let [top, bottom, empty] = [Math.round(h * 0.5), Math.round(h * 0.88), 0];
  for (let y = top; y < bottom; y++) {
    let found = false;
    for (let x = Math.round(w * 0.3); x < w - 4; x++) {
      const i = 4 * (y * w + x);
      found ||= data[i + 3] > 0 && data[i] < 60 && data[i + 2] > data[i] + 30;
    }
    empty += !found;
  }
  return empty;
}"""
)


def darkest(page):
    """The darkest red of the middle of the map, 0 … 255."""
    return page.evaluate(
        f"() => {{ {COPY}"
        + """
          const { data } = pen.getImageData(w * 0.4, h * 0.3, w * 0.3, h * 0.4);
          let least = 255;
          for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) least = Math.min(least, data[i]);
          return least;
        }"""
    )


def ink_in_the_middle(page):
    """The strongest opacity between the two columns of tokens, in the rows of the token in the middle."""
    return page.evaluate(
        f"() => {{ {COPY}"
        + """
          const { data } = pen.getImageData(w * 0.2, h * 0.4, 2, h * 0.2);
          let most = 0;
          for (let i = 3; i < data.length; i += 4) most = Math.max(most, data[i]);
          return most;
        }"""
    )


class TestTokens:
    @pytest.fixture
    def page(self, open_file, text_maps):
        page = open_file(regard.show(text_maps, tokens=WORDS))
        page.get_by_label("layer", exact=True).select_option(str(len(text_maps) - 1))
        page.get_by_label("head", exact=True).select_option("0")
        return page

    def test_it_opens_on_the_most_structured_head_and_says_why(self, open_file, look):
        before = torch.eye(12).roll(-1, 1)
        before[-1] = torch.eye(12)[-1]
        layers = [torch.full((2, 12, 12), 1 / 12), torch.stack([torch.eye(12)[0].expand(12, 12), before])]
        page = open_file(regard.show(layers))
        assert "layer 1 · head 1 · the most structured head" in look.subtitle(page)

    def test_uniform_attention_is_pale_beside_a_sharp_head(self, open_file, look):
        weights = torch.stack([torch.full((40, 40), 1 / 40), torch.eye(40)])
        page = open_file(regard.show(weights))
        darkness = []
        for head in ("0", "1"):
            page.get_by_label("head", exact=True).select_option(head)
            look.settle(page)
            darkness.append(darkest(page))
        assert darkness[0] > 200  # nearly white: 2.5 % everywhere is no structure
        assert darkness[1] < 80

    def test_a_head_that_looks_one_back_is_seen_at_1500_tokens(self, open_file, look):
        count = 1500
        weights = torch.zeros(1, count, count)
        weights[0, torch.arange(count), (torch.arange(count) - 1).clamp_min(0)] = 1
        page = open_file(regard.show(weights))
        for pooling in ("max", "mass"):
            page.get_by_label("pixels show").select_option(pooling)
            look.settle(page)
            # Every row of pixels in the lower half of the map shows the head.
            assert page.evaluate(ROWS_WITHOUT_INK) == 0

    def test_hovering_an_arc_makes_it_stronger(self, open_file, look):
        weights = torch.full((1, 6, 6), 0.02)
        weights[0, torch.arange(6), torch.arange(6)] = 0.1  # no weight is large
        page = open_file(regard.show(weights))
        page.get_by_text("Arcs").click()
        page.mouse.move(0, 0)
        look.settle(page)
        pale = strong = ink_in_the_middle(page)
        for _ in range(30):  # on a busy machine the arcs may still take the place of the map while the mouse moves
            place = look.point(page, ".rg-main", 0.05, 0.5)
            strong = ink_in_the_middle(page)
            if strong > pale * 1.3:
                break
            page.mouse.move(0, 0)
            page.wait_for_timeout(100)
            look.settle(page)
            pale = ink_in_the_middle(page)
        assert strong > pale * 1.3, place

    def test_hovering_a_cell_says_its_weight(self, page, look, text_maps):
        weights = text_maps[-1].weights[0, 0]
        seen = set()
        for _ in range(2):
            look.point(page, ".rg-main", 240, 240)
            text = look.subtitle(page)
            query, key = (WORDS.index(word) for word in re.search(r"“(.+)” → “(.+)”", text).groups())
            assert abs(percent_in(text) - float(weights[query, key])) < 0.006
            seen.add(look.pixels(page, ".rg-main"))
            page.get_by_label("head", exact=True).select_option("1")
            weights = text_maps[-1].weights[0, 1]
        assert len(seen) == 2

    def test_arcs_show_where_a_token_looks(self, page, look, text_maps):
        heat = look.pixels(page, ".rg-main")
        page.get_by_text("Arcs").click()
        arcs = look.pixels(page, ".rg-main")
        look.point(page, ".rg-main", 0.1, 0.5)
        text = look.subtitle(page)
        query = WORDS.index(re.search(r"“(\w+)” looks at", text)[1])
        best = int(text_maps[-1].weights[0, 0, query].argmax())
        assert f"looks at “{WORDS[best]}”" in text
        assert len({heat, arcs, look.pixels(page, ".rg-main")}) == 3
        look.point(page, ".rg-main", 0.9, 0.5)
        assert "is looked at by" in look.subtitle(page)

    def test_arcs_of_all_heads_of_a_layer_at_once(self, page, look, text_maps):
        page.get_by_text("Arcs").click()
        one = look.pixels(page, ".rg-main")
        page.get_by_label("all heads of the layer").check()
        every = look.pixels(page, ".rg-main")
        assert "mean over heads" in look.subtitle(page)
        look.point(page, ".rg-main", 0.1, 0.5)
        query = WORDS.index(re.search(r"“(\w+)” looks at", look.subtitle(page))[1])
        best = int(text_maps[-1].weights[0].mean(0)[query].argmax())
        assert f"looks at “{WORDS[best]}”" in look.subtitle(page)
        assert len({one, every, look.pixels(page, ".rg-main")}) == 3
        look.point(page, ".rg-atlas", 0.35, 0.2)  # a head that is pointed at is shown alone
        assert re.search(r"layers\.0\.self_attn · head \d", look.subtitle(page))

    def test_special_tokens_hide_and_their_share_is_said(self, page, look, text_maps):
        before = look.pixels(page, ".rg-main")
        page.get_by_label("hide special tokens").check()
        assert look.pixels(page, ".rg-main") != before
        page.locator(".rg-main canvas").focus()
        page.keyboard.press("ArrowDown")
        row = text_maps[-1].weights[0, 0, 1]
        text = look.subtitle(page)
        assert "“the” looks at" in text
        assert "[CLS]" not in text
        hidden = float(row[0] + row[-1])
        assert hidden > 0.005
        assert abs(percent_in(text.rpartition("special tokens")[2]) - hidden) < 0.01

    def test_heads_hover_lock_and_step(self, page, look):
        before = look.pixels(page, ".rg-main")
        place = look.point(page, ".rg-atlas", 0.35, 0.2)
        text = look.subtitle(page)
        assert re.search(r"layers\.0\.self_attn · head \d", text)
        assert look.pixels(page, ".rg-main") != before
        page.mouse.move(0, 0)
        assert look.subtitle(page) != text
        page.mouse.click(*place)
        page.mouse.move(0, 0)
        assert look.subtitle(page) == text
        page.keyboard.press("PageDown")
        assert "layers.1" in look.subtitle(page)
        page.keyboard.press("m")
        assert "mean over heads" in look.subtitle(page)

    def test_colors_by_row_and_rollout(self, page, look, text_maps):
        seen = {look.pixels(page, ".rg-main")}
        for scale in ("row", "root"):
            page.get_by_label("colors").select_option(scale)
            seen.add(look.pixels(page, ".rg-main"))
        assert len(seen) == 3
        page.locator(".rg-main canvas").focus()
        page.keyboard.press("r")
        page.keyboard.press("ArrowDown")
        best = regard.rollout(text_maps)[0, 0]
        assert f"“[CLS]” looks at “{WORDS[int(best.argmax())]}” {said(float(best.max()))}" in look.subtitle(page)

    def test_reading_and_writing(self, open_file, look):
        cross = torch.rand(2, 3, 5).softmax(-1)
        page = open_file(regard.show({"decoder.0.cross_attention": cross}, tokens=(list("abcde"), ["x", "y", "z"])))
        page.get_by_label("head", exact=True).select_option("0")
        look.point(page, ".rg-main", 0.95, 0.6)
        assert re.search(r"“[xyz]” → “[abcde]”|“e”|head 0", look.subtitle(page))
        page.locator(".rg-main canvas").focus()
        page.keyboard.press("ArrowDown")
        page.mouse.move(0, 0)
        best = "abcde"[int(cross[0, 0].argmax())]
        assert f"“x” looks at “{best}”" in look.subtitle(page)

    def test_the_alignment_of_a_recurrent_model_has_one_picture(self, open_file, look):
        from regard.models import Seq2SeqRNN

        model = Seq2SeqRNN(12, dim=8, hidden=8).eval()
        with torch.no_grad(), regard.capture(model) as maps:
            model(torch.randint(12, (1, 6)), torch.randint(12, (1, 4)))
        page = open_file(regard.show(maps, tokens=(list("source"), list("said"))))
        expect(page.locator(".rg-atlas")).to_have_count(0)
        page.locator(".rg-main canvas").focus()
        page.keyboard.press("ArrowUp")
        assert "“d” looks at" in look.subtitle(page)

    def test_a_long_text_zooms(self, open_file, look):
        weights = torch.randn(2, 300, 300).mul(4).softmax(-1)
        page = open_file(regard.show([weights, weights.flip(0)], tokens=[f"w{i}" for i in range(300)]))
        before = look.pixels(page, ".rg-main")
        page.get_by_label("zoom").fill("3")
        near = look.pixels(page, ".rg-main")
        x, y = look.point(page, ".rg-main", 0.5, 0.5)
        page.mouse.down()
        page.mouse.move(x - 60, y - 60, steps=3)
        page.mouse.up()
        page.mouse.move(0, 0)
        assert len({before, near, look.pixels(page, ".rg-main")}) == 3
        page.get_by_label("head", exact=True).select_option("rollout")
        page.wait_for_timeout(300)
        page.get_by_text("Arcs").click()
        assert look.pixels(page, ".rg-main") != near


class TestInteraction:
    def test_the_keyboard_moves_what_has_the_focus(self, open_file, look):
        from regard.training import HeadTrajectory

        layers = tuple(torch.randn(2, 3, 2) for _ in range(2))
        page = open_file(regard.show(HeadTrajectory((0, 9), ("a", "b"), (6, 9), layers, (torch.rand(2, 3) + 1,) * 2)))
        page.locator(".rg-panels canvas").nth(1).focus()
        page.keyboard.press("ArrowDown")
        assert "b head 0" in look.subtitle(page)
        page.keyboard.press("ArrowUp")
        assert "b head 2" in look.subtitle(page)

    def test_thumbnails_have_keys_numbers_an_order_and_a_name(self, open_file, look):
        sharp = torch.stack([torch.full((9, 9), 1 / 9), torch.eye(9).roll(4, 1), torch.eye(9)])
        page = open_file(regard.show([sharp, sharp]))
        atlas = page.locator(".rg-atlas canvas")
        expect(atlas).to_have_attribute("role", "application")
        page.get_by_label("head", exact=True).select_option("0")
        atlas.focus()
        page.keyboard.press("ArrowRight")
        assert "layer 0 · head 1" in look.subtitle(page)
        page.keyboard.press("ArrowDown")
        assert "layer 1 · head 1" in look.subtitle(page)
        page.get_by_label("thumbnails").select_option("locality")
        page.keyboard.press("Tab")
        atlas.focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")  # the most local one comes first
        assert "layer 1 · head 2" in look.subtitle(page)
        before = look.pixels(page, ".rg-atlas")
        page.get_by_label("hide uniform heads").check()
        assert look.pixels(page, ".rg-atlas") != before
        look.point(page, ".rg-atlas", 85, 40)
        expect(page.locator(".rg-atlas .rg-tip")).to_contain_text("bits of structure", use_inner_text=True)

    def test_the_weight_is_said_at_the_pointer(self, open_file, look):
        page = open_file(regard.show(torch.eye(6)[None], tokens=list("abcdef")))
        x, y = look.point(page, ".rg-main", 150, 150)
        tip = page.locator(".rg-main .rg-tip")
        assert re.fullmatch(r"[a-f] → [a-f]\s+\d+ %", tip.inner_text())
        box = tip.bounding_box()
        assert min(abs(box["x"] - x), abs(box["x"] + box["width"] - x)) < 30
        assert abs(box["y"] - y) < 40

    def test_the_address_and_the_browser_remember(self, open_file, look, text_maps):
        page = open_file(regard.show(text_maps, tokens=WORDS))
        page.get_by_label("layer", exact=True).select_option("0")
        page.get_by_label("head", exact=True).select_option("1")
        page.get_by_text("Arcs").click()
        page.get_by_label("dark page").click()
        look.settle(page)
        before = look.subtitle(page)
        page.reload()
        look.settle(page)
        assert look.subtitle(page).startswith(before)
        assert "arcs of" in page.locator(".rg-main canvas").get_attribute("aria-label")
        expect(page.locator(".regard")).to_have_attribute("data-theme", "dark")


class TestEveryView:
    @pytest.fixture
    def shown(self, run, image_maps, text_maps):
        maps, image = image_maps
        return [regard.show(run), regard.show(maps, image=image), regard.show(text_maps, tokens=WORDS)]

    def test_pictures_are_saved(self, open_file, look, shown, tmp_path):
        for each in shown:
            page = open_file(each)
            for kind in ("PNG", "SVG"):
                with page.expect_download() as download:
                    page.get_by_role("button", name=kind).click()
                assert download.value.suggested_filename == f"{each.view}.{kind.lower()}"
                path = tmp_path / download.value.suggested_filename
                download.value.save_as(path)
                content = path.read_bytes()
                if kind == "PNG":
                    assert content.startswith(b"\x89PNG")
                    assert len(content) > 10_000
                else:
                    root = ElementTree.fromstring(content)
                    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
                    assert page.locator("h2").first.inner_text() in texts
                    assert len(texts) > 5

    def test_it_fits_a_phone_and_a_projector_in_light_and_dark(self, open_file, look, shown):
        for each in shown:
            backgrounds = set()
            for width, height, mode in ((360, 740, "dark"), (1920, 1080, "light")):
                page = open_file(each, width=width, height=height, mode=mode)
                assert page.evaluate("() => document.documentElement.scrollWidth") <= width
                backgrounds.add(page.locator(".regard").evaluate("(e) => getComputedStyle(e).backgroundColor"))
                before = look.pixels(page, ".rg-picture")
                page.get_by_label("light page" if mode == "dark" else "dark page").click()
                assert look.pixels(page, ".rg-picture") != before
            assert len(backgrounds) == 2

    def test_every_control_has_a_name_and_the_keys_are_listed(self, open_file, shown):
        for each in shown:
            page = open_file(each)
            nameless = page.evaluate(
                """() => [...document.querySelectorAll('.regard button, .regard input, .regard select, .regard canvas')]
                .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)"""
            )
            assert nameless == []
            page.keyboard.press("Tab")
            page.keyboard.press("?")
            expect(page.locator(".rg-keys")).to_contain_text("show or hide this list", use_inner_text=True)

    def test_a_report_of_a_run_holds_its_views(self, run, new_page, look, tmp_path):
        from regard.cli import main

        path = tmp_path / "report.html"
        assert main(["report", str(run.folder), "--samples", "0", "--output", str(path)]) == 0
        page = new_page()
        page.goto(path.as_uri())
        page.wait_for_selector("[data-view=heads] canvas[data-painted]")
        page.wait_for_selector("[data-view=image] canvas[data-painted]")
        before = look.pixels(page, "[data-view=heads] .rg-panels")
        page.locator("[data-view=heads] input[type=range]").fill("0")
        assert look.pixels(page, "[data-view=heads] .rg-panels") != before
        curves = look.pixels(page, "[data-view=training]")
        page.locator("[data-view=training]").get_by_label("smoothing").fill("0")
        assert look.pixels(page, "[data-view=training]") != curves
        expect(page.locator("img")).to_have_count(0)  # no figure beside the views that show the same

    def test_a_browser_that_is_too_old_is_told(self, new_page, text_maps, tmp_path):
        path = regard.show(text_maps, tokens=WORDS).save(tmp_path / "x.html")
        page = new_page(own=True)  # the script would stay with the page that all tests share
        page.add_init_script("delete window.DecompressionStream")
        page.goto(path.as_uri())
        page.get_by_text("This page needs a browser of 2023 or later").wait_for()

    def test_broken_data_is_said_and_not_thrown(self, new_page, text_maps, tmp_path):
        path = regard.show(text_maps, tokens=WORDS).save(tmp_path / "x.html")
        path.write_text(path.read_text().replace('"version":1', '"version":2', 1))
        page = new_page()
        page.goto(path.as_uri())
        expect(page.get_by_role("alert")).to_contain_text("this page reads version 1", use_inner_text=True)
