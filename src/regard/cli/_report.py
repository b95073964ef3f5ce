"""Write one HTML file that shows what a run's network attends to; --image shows it on an image of your own."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard import figures
from regard.cli._moved_images import add_data_option, open_run
from regard.cli._page import claim_section, needed_heads, run_sections
from regard.data import MOST_BYTES, ImageRefusedError, decode_image, fit_image
from regard.figures.style import save_figure
from regard.support.files import check_folder, check_writable, write_output
from regard.support.reading import read_limited
from regard.training import Run, load_run, sweep_lengths, write_sweep
from regard.views import attention_view, page, run_views, story

TITLES = {
    "heads": "Heads over training",
    "image": "What it attends to, head by head",
    "tokens": "What it attends to, head by head",
}


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="regard report", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the run's folder; with --lengths, several")
    parser.add_argument("--image", type=Path, help="an image file: show where each head looks in it")
    parser.add_argument(
        "--query", type=int, nargs=2, metavar=("ROW", "COLUMN"), help="with --image: the token whose attention is shown"
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        metavar="N",
        help="for runs of case-… recipes: draw the accuracy on sentences of these lengths",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=200,
        help="samples for the curve of accuracy against the number of heads; 0 omits the curve",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="an .html file; with --image also .png; with --lengths .png, .svg or .json; default: in the run's folder",
    )
    add_data_option(parser)
    chosen = parser.parse_args(list(arguments))
    if chosen.lengths and chosen.data is not None:
        raise ValueError("--task.data is for runs on images, and --lengths for runs of case conversion: choose one")
    if chosen.lengths and chosen.image is not None:
        raise ValueError("--image and --lengths are two reports: choose one")
    if chosen.query is not None and chosen.image is None:
        raise ValueError("--query is a token of an image: pass the image with --image")
    if chosen.output is not None:
        check_writable("--output", chosen.output, _endings(chosen))
    elif Path(chosen.runs[0]).is_dir():
        check_folder("the default of --output, the run's folder", Path(chosen.runs[0]))
    if chosen.lengths:
        written = lengths_report(chosen.runs, chosen.lengths, chosen.output)
    elif len(chosen.runs) > 1:
        raise ValueError("several runs can be compared with --lengths; otherwise pass one run")
    elif chosen.image is not None:
        written = image_report(open_run(chosen.runs[0], chosen.data), chosen.image, chosen.query, chosen.output)
    else:
        written = run_report(open_run(chosen.runs[0], chosen.data), chosen.output, chosen.samples)
    print(f"written to {written}")
    return 0


def run_report(run: Run, output: Path | None, samples: int = 0) -> Path:
    """The page "Watch a network learn where to look" with this run; below it the run's summary and learning curves, its
    heads and attention, how many of its heads it needs, and claims."""
    output = output or run.folder / "report.html"
    if samples < 0:
        raise ValueError(f"--samples must be 0 or more, got {samples}")
    sections = run_sections(run)
    sections += [page.Section(TITLES[name], page.view(payload, name)) for name, payload in run_views(run).items()]
    if samples and (needed := needed_heads(run, samples)) is not None:
        sections.append(needed)
    sections.append(claim_section())
    title, heading = f"regard: {run.recipe.name}", "The run in numbers"
    content = page.story(story(run), title, sections, heading)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_output(output, content)
    return output


def image_report(run: Run, image: Path, query: Sequence[int] | None, output: Path | None) -> Path:
    """Where each head of each layer looks in one image, and how the network classifies it."""
    task, network = run.recipe.task, run.network()
    if task.image_shape is None:
        raise ValueError(f"--image is for networks that take images, but {run.recipe.name!r} does not")
    grids: Any = getattr(network, "grids", None)
    grid: Any = grids[0] if grids else getattr(network, "grid", None)
    if query is not None and (grid is None or not all(0 <= at < size for at, size in zip(query, grid, strict=True))):
        raise ValueError(f"--query must be a row and a column of the grid of tokens, {grid}, got {tuple(query)}")
    output = output or run.folder / f"{image.stem}-attention.html"
    pixels = read_image(image, task.image_shape)
    seen = task.attend(network, task.read_image(pixels))
    chosen = None if query is None else (query[0], query[1])
    figure = figures.image_attention(seen.maps, pixels, query=chosen, grid=seen.grid)
    if figure is None:
        raise ValueError(f"the network of {run.folder} has no attention between positions of an image")
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.suffix.lower() == ".png":
        save_figure(figure, output)
        return output
    guesses = ", ".join(f"{guess['label']} ({guess['chance']:.0%})" for guess in seen.answer["guesses"][:3])
    body = page.paragraph(f"Classified as: {guesses}.") + page.picture(figure, "where each head looks")
    sections = [page.Section(image.name, body)]
    payload = attention_view(seen)
    if payload is not None:
        sections.insert(0, page.Section(TITLES[payload.view], page.view(payload, payload.view)))
    write_output(output, page.report(f"regard: {image.name} seen by {run.recipe.name}", sections))
    return output


def lengths_report(folders: Sequence[str], lengths: Sequence[int], output: Path | None) -> Path:
    """Accuracy against the length of sentences, for one or several runs of case conversion."""
    output = output or Path(folders[0]) / "lengths.png"
    found = sweep_lengths(folders, lengths, tell=lambda line: print(line, file=sys.stderr, flush=True))
    if output.suffix.lower() == ".json":
        write_sweep(found, output)
    else:
        trained = {load_run(folder).recipe.task.trained_lengths for folder in folders}
        # Runs that were trained on different lengths have no range in common that could be shaded.
        figures.length_sweep(found, trained=trained.pop() if len(trained) == 1 else None, path=output)
    return output


def read_image(path: Path, shape: tuple[int, int, int]) -> Any:
    """An image file as uint8 of the given (channels, height, width), in color or gray: scaled and center-cropped like the
    training images."""
    if not path.exists():
        raise FileNotFoundError(f"--image must be an image file, but {path} does not exist")
    try:
        pixels = decode_image(read_limited(path, MOST_BYTES))
    except ImageRefusedError as refused:
        raise ValueError(f"{path}: {refused}") from refused
    return fit_image(pixels, shape)


def _endings(chosen: argparse.Namespace) -> tuple[str, ...]:
    """What the file of this report may end in."""
    if chosen.lengths:
        return ".png", ".svg", ".json"
    return (".html",) if chosen.image is None else (".html", ".png")
