"""The studio in a real browser, on real runs: what is seen is what the server has, and nobody else is asked."""

import io
import json
import re
import shutil
import socket
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import expect

import regard

pytestmark = pytest.mark.browser
pytest.importorskip("uvicorn", reason="the studio's extra is not installed")


def noise(size=(64, 48)):
    file = io.BytesIO()
    Image.frombytes("RGB", size, bytes(number * 89 % 251 for number in range(3 * size[0] * size[1]))).save(file, "PNG")
    return {"name": "mine.png", "mimeType": "image/png", "buffer": file.getvalue()}


def test_it_opens_on_a_run_with_its_heads_and_curves(studio, look, runs):
    page = studio()
    run = regard.load_run(runs / "gaussian")
    assert page.locator(".st-title").all_inner_texts().count("gaussian") == 1
    expect(page.locator(".st-run h1")).to_have_text("gaussian", use_inner_text=True)
    expect(page.locator(".st-facts")).to_contain_text(f"{run.summary['parameters']:,} parameters", use_inner_text=True)
    slider = page.get_by_label("step", exact=True)
    expect(slider).to_have_attribute("max", str(len(run.heads.steps) - 1))
    last = look.pixels(page, "[data-view=heads]", 1)
    slider.fill("0")
    assert look.pixels(page, "[data-view=heads]", 1) != last
    page.wait_for_function(f"() => document.body.innerText.includes('step {run.metrics[-1]['step']}')")
    curves = look.pixels(page, "[data-view=training]")
    page.get_by_label("smoothing").fill("0")
    assert look.pixels(page, "[data-view=training]") != curves


def test_images_are_chosen_and_sent(studio, look, runs):
    page = studio("run/vit/image")
    page.wait_for_selector(".st-guesses")
    picture = look.pixels(page, "[data-view=image]")
    guesses = page.locator(".st-guesses").inner_text()
    expect(page.locator(".st-strip img")).to_have_count(24)
    with page.expect_response(re.compile("/images/test/5/attention")):
        page.locator(".st-strip button").nth(5).click()
    page.wait_for_function("(old) => document.querySelector('.st-guesses').innerText !== old", arg=guesses)
    second = look.pixels(page, "[data-view=image]")
    assert second != picture
    classes = regard.load_run(runs / "vit").recipe.task.data_set.classes
    assert page.locator(".st-guesses span").first.inner_text() in classes
    with page.expect_response(re.compile("/attention$")):
        page.locator("input[type=file]").set_input_files(noise())
    page.wait_for_function("() => !document.querySelector('.st-busy')")
    assert look.pixels(page, "[data-view=image]") != second
    page.get_by_label("further images").click()
    page.wait_for_selector("img[src$='/images/test/47']")


def test_a_sentence_is_typed_and_the_alignment_follows(studio, look):
    page = studio("run/case-rnn/tokens")
    page.wait_for_selector(".st-said")
    before = look.pixels(page, "[data-view=tokens]")
    assert "expected I AM A STUDENT" in page.locator(".st-said").inner_text().replace("\n", " ")
    with page.expect_response(re.compile("/sentence$")):
        page.get_by_label("sentence").fill("Much longer than that")
    page.wait_for_function("() => document.querySelector('.st-said').innerText.includes('MUCH LONGER')")
    assert look.pixels(page, "[data-view=tokens]") != before
    page.get_by_role("button", name="in small letters").click()
    page.wait_for_function("() => document.querySelector('.st-said').innerText.includes('much longer')")


@pytest.mark.parametrize("name", ["mechanism", "convolution", "claims"])
def test_pages_that_need_no_run(studio, look, name):
    page = studio(name)
    expect(page.locator(f".regard[data-view={name}]")).to_have_count(1)
    if name == "claims":
        page.locator("[data-claim=hw4-beta-zero] > button").click()
        # Evidence is computed when it is asked for, picture included.
        page.wait_for_selector("[data-claim=hw4-beta-zero] img")
        expect(page.locator("[data-claim=hw4-beta-zero]")).to_contain_text(
            "the wrong variant rejected", use_inner_text=True
        )
        return
    before = look.pixels(page, ".regard", 0 if name == "mechanism" else 1)
    page.locator("input[type=range]").first.fill("0")
    assert look.pixels(page, ".regard", 0 if name == "mechanism" else 1) != before
    # Styles came through a policy that allows no inline ones.
    holder = ".rg-mechanism" if name == "mechanism" else ".rg-planes"
    assert page.locator(holder).evaluate("(one) => getComputedStyle(one).display") == "grid"


def test_a_run_that_is_training_is_followed(new_page, look, runs, tmp_path, serving):
    """Lines and moments that are written while one looks appear by themselves."""
    folder = Path(shutil.copytree(runs / "gaussian", tmp_path / "runs" / "now"))
    (folder / "summary.json").unlink()
    metrics, heads = (folder / name for name in ("metrics.jsonl", "heads.jsonl"))
    rest = {path: path.read_text(encoding="utf-8").splitlines(keepends=True) for path in (metrics, heads)}
    metrics.write_text("".join(rest[metrics][:1]), encoding="utf-8")
    heads.write_text("".join(rest[heads][:2]), encoding="utf-8")
    with serving(tmp_path / "runs") as address:
        page = new_page(offline=False, allowed=(address,))
        page.goto(f"{address}#/runs")
        look.settle(page)
        page.wait_for_function("() => document.querySelector('.st-state')?.innerText === 'training now'")
        expect(page.locator(".st-facts")).to_contain_text("1 steps", use_inner_text=True)
        for path in (metrics, heads):
            path.write_text("".join(rest[path]), encoding="utf-8")
        last = json.loads(rest[metrics][-1])["step"]
        page.wait_for_function(f"() => document.querySelector('.st-facts').innerText.includes('{last} steps')")
        page.wait_for_function(f"() => document.querySelector('input[type=range]')?.max === '{len(rest[heads]) - 2}'")
        # What is trained later is found as well.
        shutil.copytree(runs / "vit", tmp_path / "runs" / "later")
        page.wait_for_selector("text=later")


def test_what_goes_wrong_is_said(stray, address, runs, serving):
    stray.goto(f"{address}#/run/vit/image")
    stray.wait_for_selector(".st-guesses")
    stray.locator("input[type=file]").set_input_files({"name": "x.png", "mimeType": "image/png", "buffer": b"no image"})
    assert stray.get_by_role("alert").inner_text().startswith("The file is not an image that can be read")
    stray.goto(f"{address}#/run/case-rnn")
    stray.get_by_label("sentence").fill("naïve")
    stray.wait_for_selector("[role=alert]")
    expect(stray.get_by_role("alert")).to_contain_text("contains the character 'ï'", use_inner_text=True)
    stray.goto(f"{address}#/run/nothing")
    stray.wait_for_selector("text=There is no run")
    with serving(runs) as gone:
        stray.goto(f"{gone}#/mechanism")
        stray.wait_for_selector(".regard canvas")
    stray.get_by_role("link", name="Claims").click()
    stray.wait_for_selector("text=Is regard studio still running?")


def test_it_opens_on_the_story_and_takes_a_photo(stray, example, tmp_path):
    stray.goto(example)
    stray.locator(".rg-story h1").wait_for(timeout=60_000)
    expect(stray.get_by_role("link", name="Start")).to_have_attribute("aria-current", "page")
    stray.locator("[data-section='2']").scroll_into_view_if_needed()
    verdict = stray.locator(".rg-verdict").inner_text()
    Image.new("RGB", (90, 60), (200, 30, 30)).save(tmp_path / "red.png")
    stray.locator("[data-section='2'] input[type=file]").set_input_files(tmp_path / "red.png")
    stray.wait_for_selector("text=The middle of red.png.")
    assert stray.locator(".rg-verdict b").inner_text()
    assert stray.locator(".rg-verdict").inner_text() != verdict
    stray.get_by_role("link", name="Runs").click()
    stray.wait_for_selector(".st-runs li")


class TestNothingStale:
    ATTENTION = re.compile("/attention")

    @pytest.fixture
    def page(self, stray, example):
        stray.goto(f"{example}#/run/example/image")
        stray.wait_for_selector(".st-guesses")
        stray.wait_for_function("() => !document.querySelector('.st-stale')")
        return stray

    def test_while_a_request_runs_the_previous_result_is_dim_and_named(self, page):
        held = []
        page.route(self.ATTENTION, lambda route: held.append(route))
        page.locator(".st-strip button").nth(1).click()
        page.wait_for_selector(".st-stale .st-previous")
        expect(page.locator(".st-previous")).to_contain_text("Previous result", use_inner_text=True)
        page.wait_for_function("() => Number(getComputedStyle(document.querySelector('.st-result')).opacity) < 0.6")
        # The bars of the image before are among what is dim.
        expect(page.locator(".st-stale .st-result .st-guesses")).to_have_count(1)
        held[0].continue_()
        page.wait_for_function("() => !document.querySelector('.st-stale')")

    def test_after_a_request_failed_too(self, page):
        page.route(self.ATTENTION, lambda route: route.fulfill(status=500, json={"error": "the network is broken"}))
        page.locator(".st-strip button").nth(1).click()
        page.wait_for_selector("text=The network is broken.")
        page.wait_for_selector(".st-previous")
        expect(page.locator(".st-previous")).to_have_text("Previous result", use_inner_text=True)
        expect(page.locator(".st-stale .st-guesses")).to_have_count(1)

    def test_bars_have_one_origin_and_the_truth_has_a_name(self, page):
        starts = page.locator(".st-guesses i").evaluate_all(
            "(bars) => bars.map((bar) => bar.getBoundingClientRect().x)"
        )
        assert len(starts) > 2
        assert len(set(starts)) == 1
        rows = page.locator(".st-guesses > div em").all_inner_texts()
        assert rows[0].startswith("prediction")
        expect(page.locator(".st-guesses")).to_contain_text("truth", use_inner_text=True)

    def test_a_server_that_comes_back_is_noticed_and_its_loss_is_said_once(self, stray, example):
        stray.route("**/api/**", lambda route: route.abort())
        stray.goto(f"{example}#/run/example/image")
        stray.wait_for_selector("[role=alert]")
        stray.wait_for_timeout(300)
        assert stray.get_by_role("alert").count() == 1
        stray.unroute("**/api/**")
        stray.wait_for_selector(".st-guesses")
        expect(stray.get_by_role("alert")).to_have_count(0)
        stray.route("**/api/**", lambda route: route.abort())
        stray.locator(".st-strip button").nth(1).click()
        stray.wait_for_selector("[role=alert]")
        stray.wait_for_timeout(300)
        assert stray.get_by_role("alert").count() == 1
        stray.wait_for_selector(".st-previous")
        expect(stray.locator(".st-previous")).to_have_text("Previous result", use_inner_text=True)
        stray.unroute("**/api/**")
        stray.wait_for_function("() => !document.querySelector('.st-stale, [role=alert]')")

    def test_pages_have_titles_of_their_own(self, page, example):
        titles = {page.title()}
        for place in ("mechanism", "convolution", "claims"):
            page.goto(f"{example}#/{place}")
            page.wait_for_selector(f".regard[data-view={place}]")
            titles.add(page.title())
        assert len(titles) == 4


def test_the_token_leaves_the_address(stray, runs, serving):
    with serving(runs, token="a-secret") as address:
        assert stray.goto(address).status == 401
        assert "complete address" in stray.text_content("body")
        stray.goto(f"{address}?token=a-secret")
        stray.wait_for_selector(".st-opening, .st-story")
        assert stray.url == address
        assert stray.evaluate("document.cookie") == ""


def test_the_file_that_the_browser_is_given_leads_in(stray, runs, monkeypatch, serving):
    """From a file on the disk, which is another site to a browser: the cookie must be sent all the same."""
    from regard.studio import _serve

    monkeypatch.setattr(_serve.webbrowser, "open", lambda address: None)
    with serving(runs, token="a-secret") as address, _serve.entrance(f"{address}?token=a-secret") as file:
        stray.goto(file)
        stray.get_by_role("link", name="Runs").click()
        stray.wait_for_selector(".regard canvas")
        assert stray.url == f"{address}#/runs"


@pytest.mark.parametrize("place", ["run/gaussian/heads", "run/vit/image", "run/case-transformer/tokens", "claims"])
def test_it_fits_a_phone_in_the_dark(studio, place):
    page = studio(place, width=360, height=740, mode="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_label("light page").first.click()
    page.wait_for_selector(".regard[data-theme=light]")


def test_without_runs_it_says_what_to_do(new_page, tmp_path, serving):
    with serving(tmp_path) as address:
        page = new_page(offline=False, allowed=(address,))
        page.goto(f"{address}#/runs")
        page.wait_for_selector("text=No runs yet")
        expect(page.locator(".st-welcome")).to_contain_text("regard train demo", use_inner_text=True)


def test_only_this_machine_can_reach_it():
    from regard.studio._serve import listen

    with listen("127.0.0.1", 0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
        taken = listening.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{taken}"):
            listen("127.0.0.1", taken)
        assert isinstance(listening, socket.socket)
