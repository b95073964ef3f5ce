"""Long texts in the browser: heads of which every row has one key leave pixels that can be counted, at any length."""

import re

import pytest
import torch

import regard
from regard.maps import AttentionRecord, Check, Computation, MapAxes, Overview
from regard.maps.weights import _overview_pass
from regard.maps.weights._attention_scores import AttentionScores
from regard.maps.weights._band import Band

from .conftest import pixels, point, settle, subtitle

CELLS = 128


def one_key_each(tokens, target, side=CELLS):
    """The overview of a head whose query i attends to key target[i] alone, by counting."""
    overview = Overview.empty((1, 1, tokens, tokens), side, torch.device("cpu"))
    (height, width), rows = overview.cell, torch.arange(tokens)
    overview.mass[0, 0].index_put_((rows // height, target // width), torch.ones(tokens), accumulate=True)
    overview.largest.copy_(overview.mass.clamp(max=1))
    overview.per_key.received[0, 0].index_add_(0, target, torch.ones(tokens))
    return overview


def by_band(tokens, back):
    """The same for a head that looks so many tokens back, as capture computes it: nothing else is visible."""
    query = torch.ones(1, 1, tokens, 1)
    scores = AttentionScores(query, query, 1.0, band=Band(left=back, right=-back))
    output = (torch.arange(tokens) >= back).float()[None, None, :, None]
    lse = torch.where(output[..., 0] > 0, 1.0, -torch.inf)
    running = Computation(scores, output=output, value=query, logsumexp=lse)
    record = AttentionRecord("x", "sdpa", (1, 1, tokens, tokens), Check("kernel"), computation=running)
    record.check.allowed = running.rounding(tokens)
    overview = _overview_pass.overview_of(record, slice(None), CELLS)
    assert record.agrees
    return overview


def heads(tokens):
    """A sink head, a previous-token head, and one that looks 1,000 tokens back."""
    found = [one_key_each(tokens, torch.zeros(tokens, dtype=torch.long))]
    if tokens <= 2048:
        found += [by_band(tokens, 1), by_band(tokens, 1000)]
    else:  # by counting, which is faster
        found += [one_key_each(tokens, (torch.arange(tokens) - back).clamp_min(0)) for back in (1, 1000)]
    parts = {name: torch.cat([each.tensors[name] for each in found], 1) for name in found[0].tensors}
    overview = Overview.of(parts, found[0].cell).kept()
    shape = (1, 3, tokens, tokens)
    record = AttentionRecord("layer", "sdpa", shape, Check("kernel"), rows=(tokens - 1,))
    record.overview = overview
    record.stored = torch.zeros(1, 3, 1, tokens)
    for head, key in enumerate((0, tokens - 2, tokens - 1001)):
        record.stored[0, head, 0, key] = 1
    return regard.maps.Maps([regard.maps.Map("layer", [record])])


DARK = """(canvas) => {
  const [left, top, ratio] = [62, 18, canvas.width / canvas.clientWidth];
  const side = Math.max(40, Math.min(canvas.clientWidth - left - 58 - 14, canvas.clientHeight - 58 - 10 - 44));
  const size = Math.round(side * ratio);
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const pen = copy.getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const { data } = pen.getImageData(Math.round(left * ratio), Math.round(top * ratio), size, size);
  const offsets = {};
  let dark = 0;
  for (let y = 2; y < size - 2; y++) for (let x = 0; x < size - 2; x++) {
    const at = 4 * (y * size + x);
    if (data[at] < 120) {
      dark++;
      const key = Math.round(20 * (y - x) / size);
      offsets[key] = (offsets[key] ?? 0) + 1;
    }
  }
  return { dark, size, offsets };
}"""


@pytest.mark.parametrize("tokens", [2048, 16384, 131072])
def test_sharp_heads_leave_pixels_at_any_length(open_file, tokens):
    page = open_file(regard.show(heads(tokens)))
    canvas = page.locator(".rg-main canvas")
    for measure in ("Mass", "Largest weight"):
        page.get_by_text(measure, exact=True).first.click()
        for head, away in ((0, None), (1, 0), (2, round(20 * 1000 / tokens))):
            page.get_by_label("head", exact=True).select_option(str(head))
            page.mouse.move(1, 1)
            settle(page)
            seen = canvas.evaluate(DARK)
            assert seen["dark"] >= seen["size"] * (1 - 1000 / tokens) * 0.9, (measure, head, seen)
            assert seen["dark"] <= 6 * seen["size"] * max(1, seen["size"] / CELLS / 2), (measure, head, seen)
            if away is not None:
                near = sum(count for at, count in seen["offsets"].items() if abs(int(at) - away) <= 1)
                assert near >= 0.95 * seen["dark"], (measure, head, seen)


def test_hover_search_and_zoom_down_to_a_row_token_by_token(open_file):
    tokens = [f"w{i}" for i in range(2048)]
    tokens[1047] = "needle"
    page = open_file(regard.show(heads(2048), tokens=tokens))
    page.get_by_label("head", exact=True).select_option("1")
    point(page, ".rg-main", 300, 255)
    assert re.search(
        r"· \d+ “w\d+” … \d+ “w\d+” → \d+ “w\d+” … \d+ “w\d+” .* of each query · keys there receive", subtitle(page)
    )
    page.get_by_label("find a token").fill("needle")
    page.get_by_text("1 found").wait_for()
    page.get_by_label("go to the next one").click()
    settle(page)
    point(page, ".rg-main", 300, 255)
    assert subtitle(page).split("tokens in cells of 16 · ")[1].startswith("10")  # around token 1047
    page.get_by_label("head", exact=True).select_option("2")
    page.get_by_label("row in full").select_option("0")
    row = pixels(page, ".rg-main")
    page.get_by_label("row in full").select_option("-1")
    assert pixels(page, ".rg-main") != row


def test_numbers_of_a_cell_are_means_over_its_tokens(open_file):
    torch.manual_seed(5)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    layer.self_attn.in_proj_weight.data *= 4
    x = torch.randn(1, 61, 8)
    with torch.no_grad(), regard.capture(layer, overview=15) as maps:
        layer(x)
    with torch.no_grad(), regard.capture(layer) as whole:
        layer(x)
    page = open_file(regard.show(maps))
    page.get_by_label("head", exact=True).select_option("1")
    weights = whole[0].weights[0, 1]
    for x, y in ((100, 60), (163, 150), (300, 255), (260, 333)):
        point(page, ".rg-main", x, y)
        said = re.search(r"· (\d+) … (\d+) → (\d+) … (\d+) .*receive (\S+) on average · entropy (\S+)", subtitle(page))
        top, bottom, left, right = map(int, said.groups()[:4])
        rows = weights[top : bottom + 1]
        entropy = -torch.special.xlogy(rows, rows).sum(-1).mean()
        assert float(said[5]) == pytest.approx(float(weights[:, left : right + 1].sum(0).mean()), rel=0.06, abs=0.006)
        assert float(said[6]) == pytest.approx(float(entropy), abs=0.02)


@pytest.mark.parametrize("view", ["long", "tokens"])
def test_after_a_key_zoomed_no_other_cell_is_named_at_the_pointer(open_file, view):
    """The pointer has not moved, but another cell is under it: the numbers of the former one would be wrong."""
    page = open_file(regard.show(heads(2048) if view == "long" else torch.rand(1, 60, 60).softmax(-1)))
    point(page, ".rg-main", 300, 255)
    assert "→" in subtitle(page)
    page.locator(".rg-main canvas").focus()
    page.keyboard.press("+")
    assert "→" not in subtitle(page)
    assert not page.locator(".rg-main .rg-tip").is_visible()


def test_next_reaches_every_found_token_and_begins_again(open_file):
    """At the ends of the text the window stays inside, so that a found token is not in its middle."""
    tokens = [f"w{i}" for i in range(2048)]
    places = [3, 9, 1000, 2040, 2045]
    for place in places:
        tokens[place] = "needle"
    page = open_file(regard.show(heads(2048), tokens=tokens))
    page.get_by_label("find a token").fill("needle")
    page.get_by_text("5 found").wait_for()
    canvas, seen = page.locator(".rg-main canvas"), []
    for _ in range(6):
        page.get_by_label("go to the next one").click()
        settle(page)
        box = canvas.bounding_box()
        point(page, ".rg-main", round(box["width"] / 2), round(box["height"] / 2))
        seen.append(int(re.search(r"in cells of 16 · (\d+)", subtitle(page))[1]))
        page.mouse.move(1, 1)
    assert seen[0] == seen[5] < 64  # the first window has the first two
    assert seen[1] < 64
    assert abs(seen[2] - 1000) < 48
    assert min(seen[3], seen[4]) > 2048 - 64 - 16


@pytest.mark.parametrize("long", [False, True])
def test_channels_are_not_called_tokens(open_file, long):
    record = AttentionRecord.given(torch.eye(8).expand(1, 2, 8, 8), "attn", axes=MapAxes("known", "channels"))
    if long:
        record.overview, record.stored = Overview.empty((1, 2, 8, 8), 4, torch.device("cpu")).kept(), None
    page = open_file(regard.show(regard.maps.Map("attn", [record])))
    title = page.locator("h1, h2, .rg-title").first.inner_text()
    assert title == ("Attention over channels" if long else "Channel attention")
    said = page.locator(".rg-main canvas").get_attribute("aria-label") + subtitle(page)
    assert "token" not in said
    assert ("8 channels in cells of 2" if long else "8 × 8 channels") in said


def test_a_map_of_unequal_sides_says_both_and_colors_have_a_legend(open_file):
    overview = Overview.empty((1, 1, 300, 40), 10, torch.device("cpu"))
    overview.mass.fill_(1.0)
    record = AttentionRecord("cross", "sdpa", (1, 1, 300, 40), Check("kernel"))
    record.overview = overview.kept()
    page = open_file(regard.show(regard.maps.Map("cross", [record])))
    assert "300 queries × 40 keys in cells of 30 × 4" in subtitle(page)
    legends = {}
    for measure in ("Mass", "Largest weight"):
        page.get_by_text(measure, exact=True).first.click()
        page.mouse.move(1, 1)
        with page.expect_download() as download:
            page.get_by_text("SVG", exact=True).click()
        legends[measure] = download.value.path().read_text()
    assert "of each query, in a cell" in legends["Mass"]
    assert "100 %" in legends["Mass"]
    assert "largest weight in a cell" in legends["Largest weight"]
