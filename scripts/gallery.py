"""Make the pictures of the gallery, all from real output: plots, a trained run, and the views in a real browser.

    python scripts/gallery.py                         # all pictures, into docs/images/gallery, of runs that come with regard
    python scripts/gallery.py limit gelu              # some of them
    python scripts/gallery.py view-heads --run runs/demo     # of another run: any with Gaussian heads on images will do
    python scripts/gallery.py speedrun-heads --run runs/cifar10-transformer     # this one and the next need runs of their own
    python scripts/gallery.py paper-heads --run runs/reproduction/a6-gaussian-full/seed-0

Every picture is made twice, for a light page and for a dark one (NAME-dark.png), at two pixels of the file per pixel of the
page. The moving picture of the README is made by scripts/moving_picture.py.

Pictures of views need a Chromium and playwright (``pip install '.[dev]'``).
"""

import argparse
import contextlib
import functools
import io
import math
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import style
from PIL import Image, ImageChops

import regard
from regard.training import HeadTrajectory
from regard.views import shipped_run

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "gallery"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
Make = Callable[[Path, Path | None], None]
PICTURES: dict[str, Make] = {}
MODES = ("light", "dark")
EXAMPLE = shipped_run("cifar10-small")
OF_A_RUN = ("speedrun-heads", "paper-heads")  # which does not come with regard
_mode = "light"  # of the picture that is being made
_text: Path | None = None  # a run with a network that reads text


def picture(function: Make) -> Make:
    """List a function by its name, with dashes; it gets the path to write and the run's folder."""
    PICTURES[function.__name__.replace("_", "-")] = function
    return function


@picture
def limit(path: Path, run: Path | None) -> None:
    regard.figures.limit((1, 1), (9, 9)).savefig(path, dpi=180)


@picture
def relative_positions(path: Path, run: Path | None) -> None:
    center = torch.tensor([[0.0, 3.0], [-2.0, -2.0]])
    sharpness = torch.tensor([[0.3, 0.3], [0.05, 0.6]])
    regard.figures.relative_positions(center, sharpness, (14, 14)).savefig(path, dpi=160)


@picture
def absolute_positions(path: Path, run: Path | None) -> None:
    regard.figures.absolute_positions(regard.reference.sinusoidal_positions(64, 64)).savefig(path, dpi=160)


@picture
def gelu(path: Path, run: Path | None) -> None:
    regard.figures.gelu().savefig(path, dpi=160)


@picture
def trained_heads(path: Path, run: Path | None) -> None:
    network = _trained(run).network()
    layers = [module for module in network.modules() if isinstance(module, regard.GaussianAttention)]
    figure = regard.figures.heads(
        [layer.center.detach() for layer in layers], [layer.sharpness.detach() for layer in layers], network.grids
    )
    figure.savefig(path, dpi=180)


@picture
def speedrun_heads(path: Path, run: Path | None) -> None:
    _last_heads(path, run, "cifar10-transformer", 7)


@picture
def paper_heads(path: Path, run: Path | None) -> None:
    _last_heads(path, run, "a6-gaussian", 6)


def _last_heads(path: Path, run: Path | None, recipe: str, blocks: int) -> None:
    """Where the heads look at the end of a run of this recipe; its heads.jsonl is all that is needed."""
    trajectory = None if run is None or run == EXAMPLE else HeadTrajectory.read(run / "heads.jsonl")
    if trajectory is None or len(trajectory.layers) != blocks:
        raise ValueError(f"this picture is of a run of {recipe}: pass --run FOLDER")
    last = trajectory.at(-1)
    titles = [f"block {at}, {'×'.join(map(str, grid or ()))} tokens" for at, grid in enumerate(trajectory.grids, 1)]
    figure = regard.figures.heads(list(last.center), list(last.sharpness), list(trajectory.grids), titles=titles)
    figure.savefig(path, dpi=160)


@picture
def image_attention(path: Path, run: Path | None) -> None:
    network, normalized, pixels = _looked_at(run)
    figure = regard.figures.image_attention(regard.training.attention_maps(network, normalized), pixels)
    if figure is None:
        raise ValueError(f"{run} has no attention between positions of an image")
    figure.savefig(path, dpi=180)


@picture
def view_heads(path: Path, run: Path | None) -> None:
    _photograph(regard.show(_trained(run)), path)


@picture
def view_image(path: Path, run: Path | None) -> None:
    network, normalized, pixels = _looked_at(run)
    with torch.no_grad(), regard.capture(network) as maps:
        network(normalized)
    _photograph(regard.show(maps, image=pixels), path)


@picture
def readme_see(path: Path, run: Path | None) -> None:
    """What the first example of the README makes, once Outlines is chosen."""
    readme = (FOLDER.parents[2] / "README.md").read_text("utf-8")
    code = readme.partition("## See")[2].partition("```python\n")[2].partition("```")[0]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, "README.md", "exec"), {})
        _photograph_page((Path(folder) / "maps.html").as_uri(), path, 960, press="Outlines")


@picture
def view_outlines(path: Path, run: Path | None) -> None:
    """Heads of one layer as outlines on a photo in color."""
    network, normalized, pixels = _looked_at(run)
    with torch.no_grad(), regard.capture(network) as maps:
        network(normalized)
    _photograph(regard.show(maps, image=pixels), path, press="Outlines")


@picture
def view_tokens(path: Path, run: Path | None) -> None:
    """What a trained network attends to in a sentence: of the run that --text names."""
    from regard.views import Show, run_views

    shown = run_views(_trained(_text))
    _photograph(Show(shown["tokens"]), path)


@picture
def view_long(path: Path, run: Path | None) -> None:
    """The overview of a long text. It takes minutes."""
    _photograph(regard.show(_long_overview()), path, choose="head 2")


class ThreeHeads(torch.nn.Module):
    """Attention whose heads look at the first token, 1,000 tokens back, and at the own chapter, of eleven unequal ones."""

    def forward(self, place: torch.Tensor) -> torch.Tensor:
        tokens, width = len(place), 20
        slow = 2 * math.pi / (8 * 4.0 ** torch.arange(width // 2))  # wavelengths from 8 tokens to 2 million
        here, before = (
            torch.cat([(x * slow).cos(), (x * slow).sin()], 1) for x in (place[:, None], place[:, None] - 1000)
        )
        ends = (torch.arange(1, 12) / 11) ** 1.5 * tokens
        chapter = torch.nn.functional.one_hot(torch.bucketize(place, ends[:-1], right=True), width).float()
        first = (place == 0).float()[:, None].expand(-1, width)
        query = torch.stack([torch.full((tokens, width), 6.0), 30 * before, 70 * chapter])[None]
        key = torch.stack([first, here, chapter])[None]
        value = torch.randn(1, 3, tokens, width, generator=torch.Generator().manual_seed(0))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


@functools.cache
def _long_overview(tokens: int = 131_072) -> regard.maps.Maps:
    model = ThreeHeads()
    with torch.no_grad(), regard.capture(model, overview=128) as maps:
        model(torch.arange(tokens))
    return maps


@picture
def view_mechanism(path: Path, run: Path | None) -> None:
    _photograph(regard.show("mechanism"), path)


@picture
def view_convolution(path: Path, run: Path | None) -> None:
    _photograph(regard.show("convolution"), path)


@picture
def view_claims(path: Path, run: Path | None) -> None:
    _photograph(regard.show("claims"), path, tallest=1000)


@picture
def studio(path: Path, run: Path | None) -> None:
    """The studio's page on the folder that holds the run (on an empty one for the example), served here and now."""
    import uvicorn

    from regard.studio import EXAMPLE, create_app

    holder = _trained(run).folder.resolve().parent
    with tempfile.TemporaryDirectory() as empty, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        app = create_app(Path(empty) / "runs" if holder == EXAMPLE.parent else holder)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            _photograph_page(f"http://127.0.0.1:{listening.getsockname()[1]}/#/run/example/heads", path)
        finally:
            server.should_exit = True
            thread.join(20)


def _trained(run: Path | None) -> Any:
    if run is None:
        raise ValueError("this picture is of a trained run: pass --run FOLDER")
    return regard.load_run(run)


def _looked_at(run: Path | None) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The run's network, and one image that it was not trained on, as it takes it and as a person sees it."""
    trained = _trained(run)
    task = trained.recipe.task
    shipped = trained.folder / "images" / "horse-13.png"  # of the example, whose data set may not be on this machine
    if shipped.exists():
        pixels = regard.data.decode_image(shipped.read_bytes())
        return trained.network().eval(), task.read_image(pixels).batch[0], pixels
    pixels = task.data_set.validation.images[1]
    normalized = regard.data.normalize(pixels[None], task.data_set.mean, task.data_set.std)
    return trained.network().eval(), normalized, pixels


def _photograph(view: Any, path: Path, tallest: int = 1600, press: str = "", choose: str = "") -> None:
    """A view's own file, opened from disk; ``press`` is the text of what is clicked first, ``choose`` a head."""
    with tempfile.TemporaryDirectory() as folder:
        _photograph_page(view.save(Path(folder) / "view.html").as_uri(), path, tallest, press, choose)


def _photograph_page(address: str, path: Path, tallest: int = 1600, press: str = "", choose: str = "") -> None:
    """What a real browser draws, down to its end; an error on the page is an error here."""
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        raise FileNotFoundError(f"a picture of a view needs a browser: one of {', '.join(BROWSERS)}")
    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800}, device_scale_factor=2, color_scheme=_mode)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.wait_for_selector("canvas[data-painted], .rg-claims", timeout=120_000)
        page.wait_for_timeout(2500)
        if press:
            page.get_by_text(press, exact=True).first.click()
        if choose:
            page.get_by_label("head", exact=True).select_option(label=choose)
        tall = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": 1200, "height": min(tall, tallest)})
        page.wait_for_timeout(500)
        page.screenshot(path=str(path))
        browser.close()
    if errors:
        raise RuntimeError(f"{address} raised {errors[0]}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(PICTURES)}; default all")
    parser.add_argument("--run", type=Path, default=EXAMPLE, help="the folder of a trained run")
    parser.add_argument(
        "--text", type=Path, default=shipped_run("case-transformer"), help="of a network that reads text"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where they go")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(PICTURES)
    if unknown:
        parser.error(f"no picture is called {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    global _mode, _text
    _text = options.text
    for name in options.names or (name for name in PICTURES if name not in OF_A_RUN):
        for _mode in MODES:
            path = options.folder / (f"{name}.png" if _mode == "light" else f"{name}-dark.png")
            with style.context("dark_background" if _mode == "dark" else "default"):
                PICTURES[name](path, options.run)
            _shrink(path)
            print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")
    return 0


def _shrink(path: Path) -> None:
    """256 colors where they are enough, which is a third of the bytes; a color that would get lost keeps them all."""
    with Image.open(path) as opened:
        full = opened.convert("RGB")
    few = full.quantize(256, dither=Image.Dither.NONE)
    largest = max(high for _, high in ImageChops.difference(full, few.convert("RGB")).getextrema())
    (few if largest < 48 else full).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
