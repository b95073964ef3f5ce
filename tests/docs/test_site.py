"""The site builds without a warning, without a network, and shows every public name, claim and formula."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import filelock
import pytest

from regard.claims import all_claims

# What makes a browser load something; an <a href> or a namespace does not.
LOADING = {
    "script": ["src"], "link": ["href"], "img": ["src", "srcset"], "iframe": ["src"], "source": ["src", "srcset"],
    "video": ["src"], "audio": ["src"], "embed": ["src"], "object": ["data"], "form": ["action"],
}  # fmt: skip

NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


@pytest.fixture(scope="session")
def site(root, environment, tmp_path_factory, worker_id) -> Path:
    """The built site. Test processes that run side by side share one."""
    shared = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    folder = shared / "site"
    with filelock.FileLock(shared / "site.lock"):
        if not (folder / "index.html").exists():
            done = subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
                cwd=root, env={**environment, **NO_NETWORK}, capture_output=True, text=True, timeout=400,
            )  # fmt: skip
            if done.returncode:
                shutil.rmtree(folder, ignore_errors=True)
            assert done.returncode == 0, done.stderr
            assert "WARNING" not in done.stderr
    return folder


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.loads, self.ids, self.math, self.pictures = [], set(), 0, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.loads += [found[name] for name in LOADING.get(tag, []) if found.get(name)]
        self.math += tag == "math"
        if "id" in found:
            self.ids.add(found["id"])
        if tag == "img":
            self.pictures.append(found)


@pytest.fixture(scope="session")
def pages(site):
    return {path.relative_to(site).as_posix(): _Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}


def test_it_has_the_pages_that_people_look_for(pages):
    wanted = {
        "index",
        "guides/see",
        "guides/convert",
        "guides/train",
        "guides/teach",
        "guides/machines",
        "guides/studio",
    }
    wanted |= {
        "theory/index",
        "theory/claims",
        "misconceptions",
        "gallery",
        "comparison",
        "costs",
        "contributing",
        "api/commands",
    }
    assert {f"{name}.html" for name in wanted} <= set(pages)


def test_no_page_loads_anything_from_elsewhere(pages, site):
    for name, page in pages.items():
        for address in page.loads:
            assert not re.match(r"(?:[a-z]+:)?//|https?:", address), f"{name} loads {address}"
            if not address.startswith(("#", "data:")):
                path = address.partition("#")[0].partition("?")[0]
                assert name == "404.html" or (site / name).parent.joinpath(path).exists(), f"{name} misses {address}"


def test_no_style_or_script_names_a_host_to_load_from(site):
    for path in sorted(site.rglob("*.html")):
        inside = re.findall(
            r"<(?:style|script)\b[^>]*>(.*?)</(?:style|script)>| style=\"(.*?)\"", path.read_text("utf-8"), re.DOTALL
        )
        assert inside
        assert not re.search(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", " ".join(map("".join, inside))), path.name
    for path in sorted(site.rglob("*.css")):
        text = path.read_text("utf-8")
        assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//", text), path.name
    for path in sorted(site.rglob("*.js")):
        if path.name == "search_index.js":
            continue  # text of the pages, with their links to click
        # Namespaces, licences and the theme's own address are names, not requests.
        hosts = set(re.findall(r"https?://([a-z0-9.-]+)", path.read_text("utf-8")))
        asked = hosts - {"www.w3.org", "clipboardjs.com", "bit.ly", "fontawesome.com", "lunrjs.com", "tartarus.org"}
        assert not asked, f"{path.name}: {asked}"


def test_the_check_for_hosts_can_fail():
    page = _Page('<link href="https://fonts.example/css"><img src="a.png"><a href="https://example.org">x</a>')
    assert page.loads == ["https://fonts.example/css", "a.png"]


def test_every_public_name_is_described(pages, script):
    api = script("scripts/docs/api.py")
    names = api.public_names()
    assert {"reference", "functional", "layers", "models", "convert", "maps", "analysis", "training"} <= set(names)
    for package, public in names.items():
        missing = {f"regard.{package}.{name}" for name in public} - pages[f"api/{package}.html"].ids
        assert not missing
    for name, module in api.top_level_names().items():
        assert name in names[module.removeprefix("regard.")], f"regard.{name} is not public in {module}"


def test_every_claim_has_its_place(pages):
    for claim in all_claims():
        assert claim.id in pages[f"theory/{claim.topic}.html"].ids


def test_formulas_are_mathml_and_none_is_left_as_it_was_typed(pages, site):
    assert sum(page.math for page in pages.values()) > 500
    for name in pages:
        text = re.sub(r"<(pre|code|script|title)\b.*?</\1>", "", (site / name).read_text("utf-8"), flags=re.DOTALL)
        shown = re.sub(r"<[^>]+>", "", text)
        assert not re.search(
            r"\\(?:frac|sum|alpha|beta|mathrm|operatorname)\b|\.\. math::|:(?:class|func|math):", shown
        ), name


def test_pictures_have_words_for_those_who_do_not_see_them(pages):
    found = [picture for page in pages.values() for picture in page.pictures]
    assert len(found) > 20
    assert all(picture.get("alt") for picture in found)


def test_every_guide_has_a_picture_or_a_live_view(site):
    guides = sorted((site / "guides").rglob("*.html"))
    assert len(guides) >= 12
    for path in guides:
        text = path.read_text("utf-8")
        article = text.partition("<article")[2]
        assert "<img" in article or '<iframe class="live"' in article, path.name
        for name in re.findall(r'<iframe class="live" src="([^"]+)"', text):
            assert (path.parent / name).resolve().exists(), name


def test_the_index_says_what_each_name_is(site):
    text = (site / "api" / "index.html").read_text("utf-8")
    rows = re.findall(r"<tr>\s*<td>.*?</td>\s*<td>(.*?)</td>", text, re.DOTALL)
    assert len(rows) > 200
    assert sum(bool(row.strip()) for row in rows) > 0.9 * len(rows)


def test_tables_come_from_the_result_files(site, root):
    text = (site / "comparison.html").read_text("utf-8")
    assert "benchmarks/results/" not in re.sub(r"<code>.*?</code>", "", text)  # links lead to the site's own copies
    names = re.findall(r'href="results/([\w.-]+\.json)"', text)
    assert len(names) >= 4
    for name in names:
        assert json.loads((site / "results" / name).read_text()) == json.loads(
            (root / "benchmarks/results" / name).read_text()
        )


def test_the_ledger_typesets_its_formulas(pages):
    written = sum(claim.statement.count("$") // 2 for claim in all_claims())
    assert pages["theory/claims.html"].math == written > 50


@pytest.fixture
def new_page(browser):
    opened = []

    def make(**options):
        opened.append(browser.new_page(**options))
        return opened[-1]

    yield make
    for page in opened:
        page.close()


@pytest.mark.browser
@pytest.mark.parametrize("name", ["comparison", "costs", "guides/train", "theory/claims"])
def test_tables_fit_beside_the_navigation(site, new_page, name):
    page = new_page(viewport={"width": 1300, "height": 1000})
    page.goto((site / f"{name}.html").as_uri())
    tables = page.locator(".md-typeset__scrollwrap")
    assert tables.count()
    assert tables.evaluate_all("all => all.every(one => one.scrollWidth <= one.clientWidth)")


@pytest.mark.browser
@pytest.mark.parametrize("name", ["misconceptions", "questions/a6", "theory/heads", "theory/scaling"])
def test_no_formula_makes_a_page_wider_than_a_phone(site, new_page, name):
    page = new_page(viewport={"width": 390, "height": 800})
    page.goto((site / f"{name}.html").as_uri())
    widest = "all => Math.max(...all.map(one => one.getBoundingClientRect().width))"
    assert page.locator("math").evaluate_all(widest) > 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.browser
def test_subscripts_are_low_whatever_the_font(site, new_page):
    page = new_page()
    page.goto((site / "questions" / "a6.html").as_uri())
    # How far the letters of each subscript reach below those of its base. (A sum sign itself reaches far down.)
    below = """all => all.map(one => {
        const bottom = element => element.getBoundingClientRect().bottom;
        return bottom(one.children[1]) - bottom(one.children[0]);
    })"""
    drops = page.locator("math msub:not(:has(> mo:first-child))").evaluate_all(below)
    assert len(drops) > 50
    assert min(drops) > 1


@pytest.mark.browser
def test_search_works_from_disk_and_nothing_is_requested(site, new_page):
    page = new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else problems.append(asked.url))
    page.goto((site / "theory" / "temperature.html").as_uri())
    assert page.locator("math").first.bounding_box()["width"] > 5  # drawn
    page.keyboard.press("s")
    page.keyboard.type("conv_to_attention")
    page.locator(".md-search-result__item").first.wait_for(timeout=20_000)
    assert problems == []
