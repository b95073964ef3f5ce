"""The page that is scrolled, as a file: every scene answers to a person, and says what torch says."""

import re

import pytest
import torch
from PIL import Image
from playwright.sync_api import expect

from regard.training import load_run
from regard.views import page as pages
from regard.views import shipped_run, story

from .conftest import STILL

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def payload(run):
    """Of a small run of the person's own, which is no text network."""
    return story(run)


@pytest.fixture(scope="module")
def file(payload, tmp_path_factory):
    path = tmp_path_factory.mktemp("story") / "story.html"
    path.write_text(pages.story(payload, "a story", [pages.Section("Facts", "<p>x</p>")], "In numbers"), "utf-8")
    return path


@pytest.fixture(scope="module")
def opened(browser, file):
    """One page for all tests of this file, without a network; what went wrong is looked at in the end."""
    context = browser.new_context(offline=True, viewport={"width": 1300, "height": 900})
    page = context.new_page()
    wrong = []
    page.on("pageerror", lambda error: wrong.append(f"{error}"))
    page.on("console", lambda said: said.type in ("error", "warning") and wrong.append(said.text))
    page.on("request", lambda asked: asked.url.startswith(("file:", "data:", "blob:")) or wrong.append(asked.url))
    page.goto(file.as_uri())
    page.wait_for_selector("[data-section='1'] canvas[data-painted]")
    yield page
    context.close()
    assert wrong == []


@pytest.fixture
def scene(opened):
    """``scene(3)``: the section of this number, scrolled to."""

    def go(number):
        found = opened.locator(f"[data-section='{number}']")
        found.evaluate("(element) => element.scrollIntoView({ behavior: 'instant' })")
        found.locator("canvas[data-painted]").first.wait_for()
        return found

    return go


def drawn(scene, number=0):
    """What a canvas of a scene shows, once everything that was asked for is drawn."""
    scene.evaluate(STILL)
    return scene.locator("canvas").nth(number).evaluate("(canvas) => canvas.toDataURL()")


def test_it_is_small_and_says_whose_networks_it_shows(opened, file):
    assert file.stat().st_size <= 3e6
    assert "with your run small" in opened.locator(".rg-hero").inner_text()
    notes = {n: opened.locator(f"[data-section='{n}'] .rg-whose").count() for n in range(1, 7)}
    assert notes == {1: 0, 2: 0, 3: 1, 4: 1, 5: 0, 6: 0}
    assert opened.get_by_role("heading", name="In numbers").count() == 1


def test_heads_play_by_themselves_and_once(opened, scene):
    first = scene(1)
    stage = first.locator(".rg-stage")
    opened.wait_for_function("() => Number(document.querySelector('.rg-stage').dataset.share) > 0.02")
    before = drawn(first)
    opened.wait_for_function("() => Number(document.querySelector('.rg-stage').dataset.share) > 0.1")
    assert drawn(first) != before
    first.get_by_label("training").fill("0.98")
    expect(stage).to_have_attribute("data-playing", "false")
    first.get_by_role("button", name="play").click()
    opened.wait_for_function("() => document.querySelector('.rg-stage').dataset.share === '1.00'")
    expect(stage).to_have_attribute("data-playing", "false")
    opened.wait_for_timeout(200)  # once: it does not begin again
    assert (stage.get_attribute("data-playing"), stage.get_attribute("data-share")) == ("false", "1.00")
    expect(first.locator("output")).to_have_text(re.compile(r"step \d+ · validation accuracy [\d.]+ %"))


def test_the_accuracy_is_told_with_its_step_and_not_called_final(scene, run):
    measured = load_run(run.folder).evaluations[-1]  # of an unfinished run it is the last so far
    says = f"at step {measured['step']:,} the validation accuracy is"
    first = scene(1)
    expect(first).to_contain_text(says)
    expect(first).not_to_contain_text("final")


def test_contours_follow_the_pointer_the_keyboard_and_a_photo(opened, scene, payload, tmp_path):
    photo = scene(2)
    canvas = photo.locator("canvas").first
    seen = [drawn(photo)]
    box = canvas.bounding_box()
    opened.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 0.9 * box["height"])
    seen.append(drawn(photo))
    canvas.focus()
    opened.keyboard.press("ArrowRight")
    seen.append(drawn(photo))
    photo.get_by_role("button", name="head 4").focus()
    seen.append(drawn(photo))
    photo.get_by_label("layer").fill("1")  # numbered as in every view, from 0
    expect(photo.locator("output").filter(has_text=re.compile("^1$"))).to_be_visible()
    seen.append(drawn(photo))
    photo.locator(".rg-strip button").nth(1).click()
    seen.append(drawn(photo))
    assert len(set(seen)) == len(seen)
    # What the network thinks of the second image is what torch says.
    shown = payload.meta["parts"]["images"]["meta"]["samples"][1]["guesses"][0]["label"]
    expect(photo.locator(".rg-verdict b")).to_have_text(shown)
    Image.new("RGB", (64, 48), (250, 10, 10)).save(tmp_path / "red.png")
    photo.locator("input[type=file]").set_input_files(tmp_path / "red.png")
    opened.wait_for_selector("text=The middle of red.png.")
    assert drawn(photo) not in seen


@pytest.fixture(scope="module")
def networks():
    runs = {name: load_run(shipped_run(name)) for name in ("case-transformer", "induction")}
    return {name: (each.network().eval(), each.recipe.task) for name, each in runs.items()}


def test_a_sentence_is_written_as_torch_writes_it(scene, networks):
    network, task = networks["case-transformer"]
    typing = scene(3)
    before = drawn(typing)
    for text, choice, variant in (
        ("Look at That", "in small letters", "lower"),
        ("qqqqq wxyz", "IN CAPITALS", "upper"),
    ):
        typing.get_by_label("your sentence").fill(text)
        typing.get_by_text(choice).click()
        said = task.attend(network, task.read_text(text, variant)).answer["said"]
        expect(typing.locator(".rg-answer output")).to_have_text(said)
        assert drawn(typing) != before
    # Each written letter tells its best guesses, also to the keyboard.
    typing.locator("canvas").focus()
    typing.page.keyboard.press("ArrowRight")
    expect(typing.locator(".rg-bars b").first).to_have_text("Q")
    typing.get_by_label("your sentence").fill("1 2 3!")
    expect(typing.locator(".rg-answer output")).to_have_count(1)
    typing.get_by_label("your sentence").fill("")
    expect(typing).to_contain_text("letters and spaces")
    typing.get_by_label("your sentence").fill("I am a student")


@torch.no_grad()
def chances(networks, text, off=()):
    """Of the letters that may come next; without heads ``(layer, head)``."""
    network, task = networks["induction"]
    kept = [block.attention.output.weight.clone() for block in network.decoder]
    for layer, head in off:
        width = network.decoder[layer].attention.head_dim
        network.decoder[layer].attention.output.weight[:, head * width : (head + 1) * width] = 0.0
    found = network(None, task.read_text(text, "").batch.tokens)[0, -1].softmax(-1)
    for block, weight in zip(network.decoder, kept, strict=True):
        block.attention.output.weight.copy_(weight)
    return found


def bars(place):
    """The letters and their chances, once what was asked for is drawn."""
    place.evaluate(STILL)
    letters = place.locator(".rg-bars b").all_inner_texts()
    return [
        (letter, float(number.rstrip(" %")) / 100)
        for letter, number in zip(letters, place.locator(".rg-bars span").all_inner_texts(), strict=True)
    ]


def same(shown, wanted, vocabulary):
    tokens = wanted.topk(len(shown)).indices.tolist()
    assert [letter for letter, _ in shown] == [vocabulary.tokens[t].replace(" ", "␣") for t in tokens]
    assert [chance for _, chance in shown] == pytest.approx(wanted[tokens].tolist(), rel=0.06, abs=1e-5)


def test_the_next_letter_is_the_one_that_torch_expects(scene, networks):
    vocabulary = networks["induction"][1].vocabulary
    typing = scene(3)
    typing.get_by_text("guess the next letter").click()
    for text in ("harry potter met harry p", "abcxabc"):
        typing.get_by_label("your text").fill(text)
        same(bars(typing), chances(networks, text), vocabulary)
    typing.get_by_text("change the case").click()


def test_a_head_that_is_off_changes_the_prediction_as_in_torch(scene, networks):
    vocabulary = networks["induction"][1].vocabulary
    rack = scene(4)
    text = "hello world hello w"
    rack.get_by_label("text").fill(text)
    expect(rack.locator(".rg-outcome output")).to_have_text("o")
    same(bars(rack), chances(networks, text), vocabulary)
    head = rack.get_by_role("button", name=re.compile("^head 0 .*layer 0,"))
    alone = chances(networks, text, [(0, 0)])[vocabulary.numbers["o"]].item()
    assert float(re.search(r"o: ([\d.]+) %", head.inner_text())[1]) == pytest.approx(100 * alone, rel=0.06, abs=1e-3)
    before = drawn(rack)
    head.press("Enter")
    expect(head).to_have_attribute("aria-pressed", "true")
    same(bars(rack), chances(networks, text, [(0, 0)]), vocabulary)
    expect(rack.locator(".rg-outcome output")).not_to_have_text("o")
    assert drawn(rack) != before
    rack.get_by_role("button", name="layer 1 all").click()
    same(bars(rack), chances(networks, text, [(0, 0), (1, 0), (1, 1)]), vocabulary)
    rack.get_by_role("button", name="all on").click()
    same(bars(rack), chances(networks, text), vocabulary)


def test_sharp_heads_are_the_convolution(scene):
    sharpen = scene(5)
    numbers = sharpen.locator(".rg-apart output")
    soft = numbers.inner_text()
    assert drawn(sharpen, 2) != drawn(sharpen, 3)
    sharpen.get_by_label("sharpness α").fill("1")
    expect(numbers).to_contain_text("10⁻")
    assert "10⁻" not in soft
    assert drawn(sharpen, 2) == drawn(sharpen, 3)
    sharpen.get_by_label("kernel", exact=True).select_option("shift")
    sharpen.get_by_label("image", exact=True).select_option("rings")
    assert drawn(sharpen, 2) == drawn(sharpen, 3)


def test_the_lines_made_the_view_below_them(scene):
    yours = scene(6)
    code = yours.locator("pre").inner_text().strip()
    assert code == "with regard.capture(model) as maps:\n    model(x)\nregard.show(maps, image=x)"
    assert yours.locator("[data-view=image]").count() == 1
    assert "blocks.0.attention" in yours.get_by_label("layer").first.inner_text()


def test_everything_has_a_name_and_the_keyboard_gets_there(opened, scene):
    for number in range(1, 7):
        scene(number)
    nameless = opened.evaluate(
        """() => [...document.querySelectorAll('.rg-story button, .rg-story input, .rg-story select')]
        .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)"""
    )
    assert nameless == []
    assert opened.evaluate("() => [...document.querySelectorAll('.rg-story [tabindex]')].every((e) => e.tabIndex <= 0)")
    opened.get_by_role("button", name="5: ").press("Enter")
    opened.wait_for_function(
        "() => Math.abs(document.querySelector('[data-section=\\'5\\']').getBoundingClientRect().top) < 5"
    )


def test_dark_on_a_phone_with_little_motion(browser, file):
    options = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "reduced_motion": "reduce"}
    context = browser.new_context(offline=True, has_touch=True, **options)
    page = context.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("[data-section='1'] canvas[data-painted]")
    stage = page.locator(".rg-stage")
    expect(stage).to_have_attribute("data-share", "1.00")
    page.wait_for_timeout(300)  # it stays so
    assert (stage.get_attribute("data-playing"), stage.get_attribute("data-share")) == ("false", "1.00")
    for number in range(1, 7):
        page.locator(f"[data-section='{number}']").evaluate("(e) => e.scrollIntoView({ behavior: 'instant' })")
        page.wait_for_selector(f"[data-section='{number}'] canvas[data-painted]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    dark = "() => getComputedStyle(document.querySelector('.rg-story')).backgroundColor"
    assert page.evaluate(dark) == "rgb(14, 17, 22)"
    page.locator(".rg-hero").get_by_label("light page").click()
    page.wait_for_selector(".rg-story[data-theme=light]")
    page.wait_for_selector("[data-section='6'] .regard[data-theme=light]")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    context.close()


def test_paper_shows_everything_and_is_light(opened):
    """Also what has not been scrolled to, at once: the browser does not wait for frames."""
    opened.reload()
    opened.wait_for_selector("[data-section='1'] canvas[data-painted]")
    opened.emulate_media(color_scheme="dark")
    opened.wait_for_selector(".rg-story[data-theme=dark]")
    painted = """() => {
        window.dispatchEvent(new Event("beforeprint"));
        const parts = [...document.querySelectorAll("[data-section]")];
        const found = parts.map((one) => one.querySelectorAll("canvas[data-painted]").length > 0);
        return [found, document.querySelector(".rg-story").dataset.theme];
    }"""
    assert opened.evaluate(painted) == [[True] * 6, "light"]
    opened.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    opened.wait_for_selector(".rg-story[data-theme=dark]")
    opened.emulate_media(color_scheme="light")
