"""Text of strangers in pages: tokens, labels, class names and names of runs are shown and never run. Scripts that we did
not write do not run either."""

import html
import json
import random
import runpy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import regard
from regard.views import page as pages

pytestmark = pytest.mark.browser

COUNT = 10_000
RUN = "window.hacked = (window.hacked || 0) + 1"
# ruff: noqa: E501
BREAKS = (
    "", "</script>", "</SCRIPT >", "--></script>", "]]>", "-->", "<!--", "<!--<script>", '"', "'", "`", "\\", "\\u003c/script>", "\u2028", "\u2029",
    "\\", "${", "}}", "{{", "&lt;/script&gt;", "</title>", "</style>", "</textarea>", "</noscript>", "</template>", "\x00", "\ud83d", "\U0001f600", "\u202e", "\r\n",
)  # fmt: skip
ATTACKS = (
    "<script>{run}</script>", "<img src=x onerror='{run}'>", "<svg onload='{run}'>", "<svg><script>{run}</script></svg>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>", "<body onload='{run}'>", "<details open ontoggle='{run}'>x</details>",
    "javascript:{run}", "<a href='javascript:{run}'>x</a>", "<math><mtext><script>{run}</script></mtext></math>", "<input autofocus onfocus='{run}'>",
    "<meta http-equiv=refresh content='0;url=javascript:{run}'>", "<object data='data:text/html,<script>{run}</script>'></object>", "${{{run}}}",
    "{{{{constructor.constructor('{run}')()}}}}", "'-({run})-'", '";{run};//', "</script><script>{run}</script>", "<base href='//evil.example/'>",
    "<link rel=stylesheet href=//evil.example/x.css>", "<style>@import '//evil.example/x.css'</style>", "__proto__", "constructor", "toString",
)  # fmt: skip


def hostile_strings(count, seed=0):
    """Strings that are different from each other, made of pieces that break out and pieces that would run."""
    draw, found = random.Random(seed), {}
    while len(found) < count:
        parts = [draw.choice(BREAKS) + draw.choice(ATTACKS).format(run=RUN) for _ in range(draw.randint(1, 2))]
        found["".join(parts) + f"{len(found)}"] = None
    return list(found)


STRINGS = hostile_strings(COUNT)
FIREFOX = runpy.run_path(str(Path(__file__).with_name("firefox.py")))
# Whether something appears within a minute.
APPEARS = """new Promise(done => {{
  const until = Date.now() + 60000
  const look = () => document.querySelector({part}) ? done(true) : Date.now() > until ? done(false) : setTimeout(look, 50)
  look()
}})"""


def test_a_script_that_we_did_not_write_does_not_run(browser, tmp_path):
    """What a hole in a page would let in: its policy names our two scripts by their hashes."""
    path = regard.show(torch.eye(3)[None], tokens=["a", "b", "c"]).save(tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    assert "script-src 'unsafe-inline'" not in text
    foreign = "<script>window.hacked = 1</script><img src='data:,' onerror='window.hacked = 2'>"
    path.write_text(text.replace("</body>", foreign + "</body>"), encoding="utf-8")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector(".regard canvas[data-painted]")  # ours does
    page.wait_for_timeout(300)
    assert page.evaluate("() => window.hacked") is None
    context.close()


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    """Pages with 8,000 of the strings as tokens."""
    folder, weights = tmp_path_factory.mktemp("views"), torch.eye(1000)[None].roll(1, -1)
    some = [STRINGS[number : number + 1000] for number in range(0, 8000, 1000)]
    return [
        regard.show(weights, tokens=each).save(folder / f"{number}.html", title=each[0])
        for number, each in enumerate(some)
    ]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page with 1,900 of them in its text."""
    some = STRINGS[8000:9900]
    sections = [pages.Section(text, pages.paragraph(text) + pages.table([(text, text)])) for text in some]
    sections.append(pages.Section("log", pages.preformatted("\n".join(some)) + pages.grid([some, some])))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(pages.report(some[0], sections), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def runs(run, tmp_path_factory):
    """Runs with a hundred of them as folder names (without signs that a name cannot have) and as recipe names."""
    root = tmp_path_factory.mktemp("runs")
    for number, text in enumerate(STRINGS[9900:]):
        name = f"{number} {text}".replace("/", "∕").replace("\x00", "").replace("\ud83d", "")[:60]
        folder = Path(shutil.copytree(run.folder, root / name, ignore=shutil.ignore_patterns("checkpoints")))
        regard.training.Run(folder).write_recipe(replace(run.recipe, name=text.replace("\ud83d", "")))
    return root


def test_tokens_and_labels_are_text(new_page, look, views):
    page = new_page()
    for view in views:
        page.goto(view.as_uri())
        look.settle(page)
        look.point(page, ".regard", 0.5, 0.5)
        assert page.evaluate("() => window.hacked") is None


def test_reports_show_names_as_text(new_page, report):
    some = STRINGS[8000:9900]
    page = new_page()
    page.goto(report.as_uri())
    page.wait_for_timeout(300)
    assert page.evaluate("() => window.hacked") is None
    shown = page.locator("section p").first.text_content()
    assert shown.split() == html.unescape(html.escape(some[0].replace("\x00", "\ufffd").replace("\ud83d", "?"))).split()


def test_names_of_runs_are_text(new_page, runs, serving):
    with serving(runs) as address:
        page = new_page(offline=False, allowed=(address,))
        page.goto(f"{address}#/runs")
        page.wait_for_selector("text=∕script")
        page.wait_for_timeout(500)
        assert page.evaluate("() => window.hacked") is None
        page.goto("about:blank")  # it asks no more before the server ends


@pytest.mark.skipif(FIREFOX["program"]() is None, reason="Firefox is not installed")
def test_nothing_of_it_runs_in_firefox_either(views, report, runs, serving, tmp_path):
    firefox = FIREFOX["Firefox"](tmp_path)
    try:
        foreign = tmp_path / "foreign.html"
        foreign.write_text("<!doctype html><script>window.hacked = 1</script>")
        firefox.go(foreign.as_uri())
        assert firefox.evaluate("window.hacked") == 1  # it would be seen
        for view in views:
            firefox.go(view.as_uri())
            assert firefox.evaluate(APPEARS.format(part=json.dumps(".regard canvas[data-painted]")))
            assert firefox.evaluate("window.hacked ?? null") is None
        firefox.go(report.as_uri())
        assert firefox.evaluate("document.querySelectorAll('section').length") == 1901
        assert firefox.evaluate("window.hacked ?? null") is None
        with serving(runs) as address:
            firefox.go(f"{address}#/runs")
            assert firefox.evaluate(APPEARS.format(part=json.dumps("main a, main button, li")))
            firefox.evaluate("new Promise(done => setTimeout(done, 500))")
            assert "∕script" in firefox.evaluate("document.body.innerText")
            assert firefox.evaluate("window.hacked ?? null") is None
            firefox.go("about:blank")
    finally:
        firefox.close()
