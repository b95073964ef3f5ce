"""The studio remembers in its address what one looks at; Back goes back; long lists, own photos and comparisons."""

import io
import json
import os
import re
import shutil

import pytest
from PIL import Image
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


@pytest.fixture
def page(stray, example):
    stray.goto(f"{example}#/run/example/image")
    stray.wait_for_selector(".st-guesses")
    return stray


def fresh(page):
    page.wait_for_function("() => document.querySelector('.st-guesses') && !document.querySelector('.st-stale')")


def chosen(page):
    return page.locator(".st-strip button[aria-selected=true]").get_attribute("title")


def choices(page):
    return {name: page.get_by_label(name, exact=True).input_value() for name in ("layer", "head")}


def test_the_address_says_what_is_shown_and_back_goes_back(page, example, look):
    page.get_by_label("layer", exact=True).select_option("2")
    page.get_by_label("head", exact=True).select_option("4")
    first = chosen(page)
    page.locator(".st-strip button").nth(3).click()
    fresh(page)
    second = chosen(page)
    assert second != first
    address = page.url
    assert all(part in address for part in ("sample=shipped/3", "image.layer=2", "image.head=4"))

    page.go_back()
    fresh(page)
    assert chosen(page) == first
    page.go_forward()
    fresh(page)
    assert chosen(page) == second

    # Another view of the same run, another title, and all of it again behind Back.
    titles = {page.title()}
    page.get_by_role("link", name="Training", exact=True).click()
    page.wait_for_selector("[data-view=training] canvas[data-painted]")
    titles.add(page.title())
    assert len(titles) == 2
    page.go_back()
    fresh(page)
    assert chosen(page) == second

    # Whoever gets the address sees the same.
    page.goto("about:blank")
    page.goto(address)
    fresh(page)
    assert chosen(page) == second
    assert choices(page) == {"layer": "2", "head": "4"}


def test_an_open_claim_stands_in_the_address(stray, example):
    stray.goto(f"{example}#/claims?claims.open=hw4-beta-zero")
    opened = stray.locator(".rg-claim button[aria-expanded=true]")
    opened.first.wait_for()
    expect(opened).to_have_count(1)
    stray.locator(".rg-claim button[aria-expanded=false]").first.click()
    stray.wait_for_function("() => document.querySelectorAll('.rg-claim > [aria-expanded=true]').length === 2")
    stray.go_back()
    stray.wait_for_function("() => document.querySelectorAll('.rg-claim > [aria-expanded=true]').length === 1")


def test_a_large_photo_is_scaled_down_shown_small_and_returned_to(page):
    from regard.data import ImageRefusedError, decode_image

    file = io.BytesIO()
    Image.new("RGB", (6000, 4400), "teal").save(file, "JPEG")
    with pytest.raises(ImageRefusedError):
        decode_image(file.getvalue())  # more pixels than the server takes
    page.locator("input[type=file]").set_input_files(
        {"name": "huge.jpg", "mimeType": "image/jpeg", "buffer": file.getvalue()}
    )
    page.wait_for_selector(".st-mine[aria-selected=true] img")
    fresh(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    note = page.locator(".st-crop").inner_text()
    assert "the middle 4,400 × 4,400 of 6,000 × 4,400 pixels" in note
    assert "scaled to 32 × 32" in note
    assert "without its left and right" in note
    assert "scaled down to 2048 × 1502 before it was sent" in note
    page.locator(".st-strip button:not(.st-mine)").first.click()
    fresh(page)
    expect(page.locator(".st-crop")).to_have_count(0)
    page.locator(".st-mine").click()
    fresh(page)
    expect(page.locator(".st-crop")).to_have_count(1)


@pytest.fixture(scope="module")
def many(runs, tmp_path_factory, serving):
    """A studio on many runs: 40 of each of three recipes, the files of trained ones."""
    root = tmp_path_factory.mktemp("many")
    for name in ("gaussian", "vit", "text"):
        for number in range(40):
            folder = root / f"{name}-{number:02d}"
            folder.mkdir()
            for file in ("recipe.json", "metrics.jsonl", "summary.json"):
                os.link(runs / name / file, folder / file)
    with serving(root) as found:
        yield found


def test_many_runs_are_searched_grouped_and_sorted(stray, many):
    stray.goto(f"{many}#/runs")
    titles = stray.locator(".st-runs .st-title")
    titles.nth(99).wait_for()
    assert titles.count() in (100, 101)  # the rest waits behind a button, or a search
    expect(stray.get_by_role("button", name="20 more")).to_have_count(1)
    stray.get_by_label("search the runs").fill("vit-3")
    stray.wait_for_function("() => document.querySelectorAll('.st-runs .st-title').length === 10")
    stray.get_by_label("order of the runs").select_option("name")
    assert titles.all_inner_texts() == [f"vit-3{digit}" for digit in range(10)]
    stray.get_by_label("search the runs").fill("")
    stray.get_by_label("by recipe").check()
    stray.wait_for_selector(".st-runs h3")
    assert stray.locator(".st-runs h3").all_inner_texts()[0].startswith("demo")
    # The list is asked for again and again, and drawn again only when it changed.
    stray.evaluate(
        """() => {
            window.drawn = 0;
            const all = {childList: true, subtree: true, characterData: true};
            new MutationObserver(() => window.drawn++).observe(document.querySelector('.st-runs'), all);
        }"""
    )
    with stray.expect_response(re.compile("/api/runs$"), timeout=20_000):
        pass
    stray.wait_for_timeout(200)
    assert stray.evaluate("window.drawn") == 0


def test_runs_are_laid_over_each_other_with_their_values(stray, many, look):
    stray.goto(f"{many}#/run/vit-00/training")
    alone = look.pixels(stray, "[data-view=training]")
    stray.get_by_label("compare with", exact=True).select_option("gaussian-01")
    stray.wait_for_selector(".rg-legend button")
    stray.wait_for_function("() => !document.querySelector('.rg-legend').innerText.includes('nothing')")
    expect(stray).to_have_url(re.compile("beside=gaussian-01"))
    assert look.pixels(stray, "[data-view=training]") != alone
    look.point(stray, "[data-view=training]", 0.6, 0.5)
    said = stray.locator("[data-view=training] .rg-tip").first.inner_text()
    assert re.search(r"this run: [\d.]+\ngaussian-01: [\d.]+ \([+−][\d.]+", said)
    stray.locator(".rg-legend button").click()
    stray.mouse.move(0, 0)
    assert look.pixels(stray, "[data-view=training]") == alone
    # The keyboard moves what has the focus.
    canvas = stray.locator("[data-view=training] canvas").first
    canvas.focus()
    canvas.press("Home")
    expect(stray.locator("[data-view=training] .rg-subtitle")).to_contain_text("step 0", use_inner_text=True)


def test_two_steps_of_a_network_are_compared_by_their_difference(stray, address, runs, look):
    steps = sorted(int(path.name.partition("-")[2]) for path in (runs / "vit" / "checkpoints").iterdir())
    assert len(steps) > 1, "the run must have two checkpoints"
    stray.goto(f"{address}#/run/vit/image")
    fresh(stray)
    one = look.pixels(stray, "[data-view=image]")
    stray.get_by_label("minus").select_option(f"step {steps[0]}")
    stray.wait_for_function("() => document.querySelector('.rg-footer').innerText.includes('purple: more than')")
    assert look.pixels(stray, "[data-view=image]") != one
    expect(stray).to_have_url(re.compile("minus=step"))
    expect(stray.locator(".st-minus")).to_contain_text("this network minus", use_inner_text=True)
    stray.get_by_label("minus").select_option("")
    stray.wait_for_function("() => !document.querySelector('.rg-footer').innerText.includes('purple')")
    assert look.pixels(stray, "[data-view=image]") == one


@pytest.fixture(scope="session")
def axe(npm, pytestconfig):
    """axe-core as the front end's packages have it."""
    path = pytestconfig.rootpath / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
    return path.read_text(encoding="utf-8")


def violations(page, axe):
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        (one["id"], one["impact"], node["html"][:120])
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


PLACES = (
    "run/gaussian/heads",
    "run/vit/image",
    "run/vit/training",
    "run/case-transformer/tokens",
    "mechanism",
    "convolution",
    "claims",
    "story",
)


@pytest.mark.node
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(stray, address, axe, look, mode):
    stray.emulate_media(color_scheme=mode)
    found = {}
    for place in PLACES:
        stray.goto(f"{address}#/{place}")
        stray.wait_for_selector(f".regard[data-view={place.rpartition('/')[2]}]")
        for section in stray.locator("[data-section]").all():  # of the page that opens; each is made when it comes near
            section.evaluate("(element) => element.scrollIntoView({ behavior: 'instant' })")
            section.locator("canvas[data-painted]").first.wait_for()
        look.settle(stray)
        found[place] = violations(stray, axe)
    assert found == {place: [] for place in PLACES}


@pytest.mark.node
def test_axe_finds_nothing_serious_in_saved_files(open_file, look, axe, text_maps, image_maps):
    import regard

    page = open_file(regard.show(text_maps))
    page.get_by_text("Arcs").click()
    page.get_by_label("all heads of the layer").check()
    assert violations(page, axe) == []
    maps, image = image_maps
    page = open_file(regard.show(maps, image=image))
    page.get_by_text("Outlines").click()
    assert violations(page, axe) == []
    # What can be pointed at has a role and a name.
    roles = page.locator("canvas").evaluate_all(
        "(all) => all.map((one) => [one.getAttribute('role'), !!one.getAttribute('aria-label')])"
    )
    assert roles == [["application", True]] * len(roles)


def test_the_ledger_is_made_in_a_moment():
    """Recorded verdicts need no examination."""
    import time

    import regard

    regard.show("claims", claims="hw4-beta-zero", run=False)  # the imports
    start = time.process_time()
    shown = regard.show("claims")
    assert time.process_time() - start < 2
    assert len(json.dumps(shown.payload.meta["claims"])) > 10_000
    assert not any("found" in claim for claim in shown.payload.meta["claims"])


def test_a_model_of_ones_own_takes_a_text(stray, tmp_path, serving, look):
    from regard.studio import open_model

    code = tmp_path / "own.py"
    code.write_text(
        "import torch\n"
        "from torch import nn\n"
        "def model():\n"
        "    torch.manual_seed(0)\n"
        "    net = nn.Sequential(nn.Embedding(256, 16), nn.TransformerEncoderLayer(16, 2, 16, batch_first=True))\n"
        "    def read(text):\n"
        "        return torch.tensor([list(text.encode())]), list(text)\n"
        "    return net, read\n",
        encoding="utf-8",
    )
    with serving(tmp_path, model=open_model(f"{code}:model")) as address:
        stray.goto(address)
        stray.wait_for_selector("[data-view=tokens] canvas[data-painted]")
        before = look.pixels(stray, "[data-view=tokens]")
        with stray.expect_response(re.compile("/model/text")):
            stray.get_by_label("text", exact=True).fill("another sentence")
        stray.wait_for_function("() => !document.querySelector('.st-busy')")
        assert look.pixels(stray, "[data-view=tokens]") != before
        expect(stray).to_have_url(re.compile("text=another"))
        expect(stray.get_by_role("link", name="Model")).to_have_attribute("aria-current", "page")
        stray.get_by_label("text", exact=True).fill(" ")
        expect(stray.get_by_role("alert")).to_have_text("Type a text.")
        expect(stray.locator(".st-previous")).to_be_visible()


def test_a_lost_checkpoint_does_not_take_the_first_page_away(stray, runs, serving, tmp_path):
    shutil.copytree(runs / "gaussian", tmp_path / "lost")
    shutil.rmtree(tmp_path / "lost" / "checkpoints")
    with serving(tmp_path) as address:
        stray.goto(address)
        expect(stray.locator(".st-problem")).to_contain_text("has no checkpoint. The networks that come with regard")
        expect(stray.locator(".rg-story canvas[data-painted]").first).to_be_visible()
