"""A real Chromium, with the network off, that fails a test on any error or request of the page."""

import contextlib
import runpy
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import regard

LOCAL = ("file:", "data:", "blob:", "about:")


class Watched:
    """A page, and what it did that it should not have done."""

    def __init__(self, context, allowed=()):
        self.context, self.allowed = context, (*LOCAL, *allowed)
        self.page = context.new_page()
        self.page.set_default_timeout(15_000)
        self.errors, self.requests = [], []
        self.page.on("pageerror", lambda error: self.errors.append(f"{error}"))
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.errors.append(said.text))
        self.page.on("request", lambda asked: asked.url.startswith(self.allowed) or self.requests.append(asked.url))

    def check(self):
        found = self.errors[:], self.requests[:]
        self.errors.clear(), self.requests.clear()
        assert found == ([], [])


@pytest.fixture(scope="session")
def offline(browser):
    """One page for all tests of files and notebooks: a new process for each would cost more than the tests."""
    context = browser.new_context(accept_downloads=True, offline=True)
    yield Watched(context)
    context.close()


@pytest.fixture
def new_page(browser, offline):
    """``new_page(width=…, height=…, mode="light")``: a page without any network, checked at the end of the test.

    With ``offline=False, allowed=("http://127.0.0.1:…",)`` it is one of its own that may ask for these addresses. A test
    that changes the page itself, and not only what it shows, asks for one of its own with ``own=True``.
    """
    opened = []
    shared = offline

    def make(width=1200, height=900, mode="light", offline=True, allowed=(), own=False, **options):
        watched = shared
        if own or not offline or options:
            context = browser.new_context(accept_downloads=True, offline=offline, **options)
            watched = Watched(context, tuple(allowed))
        opened.append(watched)
        watched.page.set_viewport_size({"width": width, "height": height})
        watched.page.emulate_media(color_scheme=mode)
        return watched.page

    yield make
    for watched in opened:
        if watched is shared:
            watched.page.goto("about:blank")
        else:
            watched.context.close()
        watched.check()


@pytest.fixture
def open_file(new_page, tmp_path):
    """Save what ``regard.show`` gives, and open it from disk."""

    def open_it(shown, **options):
        page = new_page(**options)
        page.goto(shown.save(tmp_path / f"{shown.view}.html").as_uri())
        settle(page)
        return page

    return open_it


# Until no canvas was painted during two frames, or a second has passed, as it does where something moves.
STILL = """() => new Promise((done) => {
  const painted = () => [...document.querySelectorAll("canvas")].map((canvas) => canvas.dataset.painted).join();
  const begin = performance.now();
  const wait = (before, frames) => requestAnimationFrame(() => setTimeout(() => {
    const now = painted();
    const same = now === before ? frames + 1 : 0;
    same >= 2 || performance.now() - begin > 1000 ? done() : wait(now, same);
  }));
  wait(painted(), 0);
})"""


def settle(page):
    """Until what was asked for is drawn."""
    page.wait_for_selector(".regard canvas[data-painted]")
    page.evaluate(STILL)


def pixels(page, selector, number=0):
    """What a canvas shows."""
    settle(page)
    return page.locator(f"{selector} canvas").nth(number).evaluate("(canvas) => canvas.toDataURL()")


def point(page, selector, x, y, number=0):
    """Move to a place of a canvas: shares of its width and height, or pixels where larger than 1."""
    box = page.locator(f"{selector} canvas").nth(number).bounding_box()
    place = [at if at > 1 else at * size for at, size in ((x, box["width"]), (y, box["height"]))]
    page.mouse.move(box["x"] + place[0], box["y"] + place[1])
    settle(page)
    return box["x"] + place[0], box["y"] + place[1]


def subtitle(page):
    settle(page)
    return page.locator(".rg-subtitle").first.inner_text()


@pytest.fixture(scope="session")
def look():
    """The helpers above, for tests (a conftest cannot be imported)."""

    class Look:
        settle, pixels, point, subtitle = map(staticmethod, (settle, pixels, point, subtitle))

    return Look


def captured(model, *inputs, **options):
    with torch.no_grad(), regard.capture(model.eval()) as maps:
        model(*inputs, **options)
    return maps


WORDS = ["[CLS]", "the", "quick", "brown", "fox", "jumps", "over", "[SEP]"]


@pytest.fixture(scope="session")
def text_maps():
    """Of an encoder as torch has it: 3 layers of 4 heads over 8 words."""
    torch.manual_seed(1)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 32, batch_first=True), 3)
    for layer in encoder.layers:
        layer.self_attn.in_proj_weight.data *= 4
    return captured(encoder, torch.randn(1, len(WORDS), 32))


@pytest.fixture(scope="session")
def image_maps():
    """Of a vision transformer with a class token, a register and a grid that is not square, and its image."""
    from regard.models import VisionTransformer

    torch.manual_seed(2)
    model = VisionTransformer((24, 40), 4, 5, dim=48, depth=3, heads=4, registers=1)
    for block in model.blocks:
        for name, weight in block.named_parameters():
            if "attention" in name and weight.ndim == 2:
                weight.data *= 3
    image = torch.rand(3, 24, 40)
    return captured(model, image[None]), image


@pytest.fixture(scope="session")
def merged_maps():
    """Of an encoder that sees an image of 32 × 32 in 16 × 16 tokens, and from its third layer on in 8 × 8; its image."""
    from regard.models import ImageEncoder

    torch.manual_seed(3)
    model = ImageEncoder(32, 2, 5, dim=24, depth=4, heads=3, attention="content", merge=(2,))
    for name, weight in model.blocks.named_parameters():
        if "attention" in name and weight.ndim == 2:
            weight.data *= 4
    image = torch.rand(3, 32, 32)
    return captured(model, image[None]), image


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A finished training of a small network of Gaussian heads."""
    from regard.training import AdamWSettings, ImageEncoderSettings, ImageTask, Recipe

    task = ImageTask("fashion-mini", validation=20, limit=64)
    network = ImageEncoderSettings(patch_size=4, dim=18, depth=2, hidden=8)
    recipe = Recipe("small", task, network, AdamWSettings(2e-2, center_factor=5.0), epochs=4, batch_size=16)
    folder = tmp_path_factory.mktemp("runs") / "small"
    return regard.train(recipe, folder=folder, accelerator="cpu", tensorboard=False)


@contextlib.contextmanager
def served(folder, **options):
    """A server as ``regard studio`` runs it; gives its address."""
    import uvicorn

    from regard.studio import create_app
    from regard.studio._serve import listen

    listening = listen("127.0.0.1", 0)
    app = create_app(folder, **{"example": None, **options})
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        listening.close()


@pytest.fixture(scope="session")
def serving():
    """``with serving(folder) as address``: a studio that is opened on a folder."""
    pytest.importorskip("uvicorn", reason="the studio's extra is not installed")
    return served


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    helpers = runpy.run_path(str(Path(__file__).parents[1] / "studio" / "trained_runs.py"))
    return helpers["train_runs"](tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def address(runs, serving):
    with serving(runs) as found:
        yield found


@pytest.fixture
def studio(new_page, address, look):
    """Open a place of the studio. At the end the page must have asked nobody but the server, and met no error."""

    def open_it(place="runs", **options):
        page = new_page(offline=False, allowed=(address,), **options)
        page.goto(f"{address}#/{place}")
        look.settle(page)
        return page

    return open_it


@pytest.fixture
def stray(browser):
    """A page on which a refusal may show up in the browser's own list of errors as well."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(30_000)
    yield page
    context.close()


@pytest.fixture(scope="session")
def example(tmp_path_factory, serving):
    """The studio with the run that comes with it, and nothing else."""
    from regard.studio._run_folders import EXAMPLE

    with serving(tmp_path_factory.mktemp("none"), example=EXAMPLE) as found:
        yield found
