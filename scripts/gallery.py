"""Make the pictures of the gallery, all from real output: plots, a trained run, and the views in a real browser.

    regard train demo --folder runs/demo           # once; any run with Gaussian heads on images will do
    python scripts/gallery.py --run runs/demo      # all pictures, into docs/images/gallery
    python scripts/gallery.py limit gelu           # some of them
    python scripts/gallery.py view-heads --run src/regard/views/shipped/cifar10-small     # of the run that comes with the package

Pictures of views need a Chromium and playwright (``pip install '.[dev]'``).
"""

import argparse
import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import regard
from regard.training import HeadTrajectory

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "gallery"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
Make = Callable[[Path, Path | None], None]
PICTURES: dict[str, Make] = {}


def picture(function: Make) -> Make:
    """List a function by its name, with dashes; it gets the path to write and the run's folder."""
    PICTURES[function.__name__.replace("_", "-")] = function
    return function


@picture
def limit(path: Path, run: Path | None) -> None:
    regard.figures.limit((1, 1), (9, 9)).savefig(path, dpi=90)


@picture
def relative_positions(path: Path, run: Path | None) -> None:
    center = torch.tensor([[0.0, 3.0], [-2.0, -2.0]])
    sharpness = torch.tensor([[0.3, 0.3], [0.05, 0.6]])
    regard.figures.relative_positions(center, sharpness, (14, 14)).savefig(path, dpi=80)


@picture
def absolute_positions(path: Path, run: Path | None) -> None:
    regard.figures.absolute_positions(regard.reference.sinusoidal_positions(64, 64)).savefig(path, dpi=80)


@picture
def gelu(path: Path, run: Path | None) -> None:
    regard.figures.gelu().savefig(path, dpi=80)


@picture
def trained_heads(path: Path, run: Path | None) -> None:
    network = _trained(run).network()
    layers = [module for module in network.modules() if isinstance(module, regard.GaussianAttention)]
    figure = regard.figures.heads(
        [layer.center.detach() for layer in layers], [layer.sharpness.detach() for layer in layers], network.grids
    )
    figure.savefig(path, dpi=90)


@picture
def speedrun_heads(path: Path, run: Path | None) -> None:
    """Of a run of cifar10-transformer; its heads.jsonl is all that is needed."""
    trajectory = None if run is None else HeadTrajectory.read(run / "heads.jsonl")
    if trajectory is None:
        raise ValueError("this picture is of a run's heads.jsonl: pass --run FOLDER")
    last = trajectory.at(-1)
    titles = [f"block {at}, {'×'.join(map(str, grid or ()))} tokens" for at, grid in enumerate(trajectory.grids, 1)]
    figure = regard.figures.heads(list(last.center), list(last.sharpness), list(trajectory.grids), titles=titles)
    figure.savefig(path, dpi=80)


@picture
def image_attention(path: Path, run: Path | None) -> None:
    network, normalized, pixels = _looked_at(run)
    figure = regard.figures.image_attention(regard.training.attention_maps(network, normalized), pixels)
    if figure is None:
        raise ValueError(f"{run} has no attention between positions of an image")
    figure.savefig(path, dpi=90)


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
def view_tokens(path: Path, run: Path | None) -> None:
    """A text encoder with random weights: the picture shows the view, not a language."""
    torch.manual_seed(0)
    words = ["the", "cat", "sat", "on", "the", "mat", "and", "looked", "at", "the", "dog"]
    layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 3).eval()
    with torch.no_grad(), regard.capture(model) as maps:
        model(3 * torch.randn(1, len(words), 32))
    _photograph(regard.show(maps, tokens=words), path)


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
    """The studio's page on the folder that holds the run, served here and now."""
    port = _free_port()
    words = [str(_trained(run).folder.resolve().parent), "--no-browser", "--port", str(port)]
    server = subprocess.Popen([sys.executable, "-m", "regard.cli", "studio", *words], stdout=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        _photograph_page(f"http://127.0.0.1:{port}/", path)
    finally:
        server.terminate()
        server.wait(timeout=20)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def _trained(run: Path | None) -> Any:
    if run is None:
        raise ValueError("this picture is of a trained run: pass --run FOLDER")
    return regard.load_run(run)


def _looked_at(run: Path | None) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The run's network, and one image that it was not trained on, as it takes it and as a person sees it."""
    trained = _trained(run)
    images = trained.recipe.task.data_set
    pixels = images.validation.images[1]
    return trained.network().eval(), regard.data.normalize(pixels[None], images.mean, images.std), pixels


def _photograph(view: Any, path: Path, tallest: int = 1600) -> None:
    """A view's own file, opened from disk."""
    with tempfile.TemporaryDirectory() as folder:
        _photograph_page(view.save(Path(folder) / "view.html").as_uri(), path, tallest)


def _photograph_page(address: str, path: Path, tallest: int = 1600) -> None:
    """What a real browser draws, down to its end; an error on the page is an error here."""
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        raise FileNotFoundError(f"a picture of a view needs a browser: one of {', '.join(BROWSERS)}")
    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.wait_for_timeout(2500)
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
    parser.add_argument("--run", type=Path, help="the folder of a trained run")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where they go")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(PICTURES)
    if unknown:
        parser.error(f"no picture is called {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or PICTURES:
        path = options.folder / f"{name}.png"
        PICTURES[name](path, options.run)
        print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
