"""``regard report RUN``: what a run's network attends to, as one HTML file; ``--image`` for an image of yours."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MOST_PIXELS = 50_000_000
TITLES = {
    "heads": "Heads over training",
    "image": "What it attends to, head by head",
    "tokens": "What it attends to, head by head",
}


def run(arguments: Sequence[str]) -> int:
    """The command's exit code."""
    parser = argparse.ArgumentParser(prog="regard report", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the run's folder; several with --lengths")
    parser.add_argument("--image", type=Path, help="an image file: where each head looks in it")
    parser.add_argument("--query", type=int, nargs=2, metavar=("ROW", "COLUMN"), help="the token that looks")
    parser.add_argument("--lengths", type=int, nargs="+", metavar="N", help="case task: accuracy against these lengths")
    parser.add_argument(
        "--samples", type=int, default=200, help="images for accuracy against the number of heads; 0 leaves it out"
    )
    parser.add_argument("--output", type=Path, help="an .html or .png file; default: report.html in the run's folder")
    chosen = parser.parse_args(list(arguments))
    if chosen.lengths:
        written = lengths_report(chosen.runs, chosen.lengths, chosen.output)
    elif len(chosen.runs) > 1:
        raise ValueError("several runs are compared with --lengths; otherwise give one")
    elif chosen.image is not None:
        written = image_report(chosen.runs[0], chosen.image, chosen.query, chosen.output)
    else:
        written = run_report(chosen.runs[0], chosen.output, chosen.samples)
    print(f"written to {written}")
    return 0


def run_report(folder: str, output: Path | None, samples: int = 0) -> Path:
    """How the run went, where its heads look, what it attends to (views to play with, and pictures), and how many of
    its heads it needs."""
    from regard.cli._needed_heads import needed_heads
    from regard.cli._page import run_sections
    from regard.training import load_run
    from regard.views import run_payloads
    from regard.views.page import Section, report, view

    run = load_run(folder)
    output = output or run.folder / "report.html"
    _check_ending(output, (".html",))
    if samples < 0:
        raise ValueError(f"--samples must be 0 or more, got {samples}")
    sections = run_sections(run)
    # After how it went, before the pictures that are there for paper.
    sections[2:2] = [Section(TITLES[name], view(payload, name)) for name, payload in run_payloads(run).items()]
    if samples and (needed := needed_heads(run, samples)) is not None:
        sections.append(needed)
    output.write_text(report(f"regard: {run.recipe.name}", sections), encoding="utf-8")
    return output


def image_report(folder: str, image: Path, query: Sequence[int] | None, output: Path | None) -> Path:
    """Where each head of each layer looks in one image, and what the network takes it for."""
    from regard.training import ImageTask, load_run
    from regard.training._pictures import attention_of, image_attention
    from regard.views import image_payload
    from regard.views.page import Section, paragraph, picture, report, view

    run = load_run(folder)
    task = run.recipe.task
    if not isinstance(task, ImageTask):
        raise ValueError(f"--image is for networks that look at images, and {run.recipe.name!r} does not")
    pixels = read_image(image, task.shape)
    network = run.network()
    grids: Any = getattr(network, "grids", None)
    grid: Any = grids[0] if grids else getattr(network, "grid", None)
    if query is not None and (grid is None or not all(0 <= at < size for at, size in zip(query, grid, strict=True))):
        raise ValueError(f"--query must be a row and a column of the grid of tokens, {grid}, got {tuple(query)}")
    from regard.data import normalize

    inputs = normalize(pixels[None], task.data_set.mean, task.data_set.std)
    figure = image_attention(network, inputs, pixels, query=None if query is None else (query[0], query[1]))
    if figure is None:
        raise ValueError(f"the network of {folder} has no attention among the places of an image")
    output = output or run.folder / f"{image.stem}-attention.html"
    _check_ending(output, (".html", ".png"))
    if output.suffix == ".png":
        figure.savefig(output, dpi=150)
        return output
    chances = network(inputs).detach().softmax(-1)[0]
    best = chances.topk(3)
    classes = task.data_set.classes
    said = ", ".join(f"{classes[at]} ({p:.0%})" for p, at in zip(*(x.tolist() for x in best), strict=True))
    sections = [Section(image.name, paragraph(f"Taken for: {said}.") + picture(figure, "where each head looks"))]
    payload = image_payload(attention_of(network, inputs), pixels)
    if payload is not None:
        sections.insert(0, Section(TITLES["image"], view(payload, "image")))
    output.write_text(report(f"regard: {image.name} seen by {run.recipe.name}", sections), encoding="utf-8")
    return output


def lengths_report(folders: Sequence[str], lengths: Sequence[int], output: Path | None) -> Path:
    """Accuracy against length for one or several runs of the case task."""
    from regard.recipes import draw_sweep, sweep, write_sweep
    from regard.training import CaseConversion, load_run

    task = load_run(folders[0]).recipe.task
    trained = (task.shortest, task.longest) if isinstance(task, CaseConversion) else None
    output = output or Path(folders[0]) / "lengths.png"
    _check_ending(output, (".png", ".svg", ".json"))
    found = sweep(folders, lengths)
    if output.suffix == ".json":
        write_sweep(found, output)
    else:
        draw_sweep(found, trained=trained, path=output)
    return output


def read_image(path: Path, shape: tuple[int, int, int]) -> Any:
    """An image file as bytes of the wanted (channels, height, width): scaled to fit, in color or gray."""
    import warnings

    import torch

    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as missing:
        raise ImportError("--image needs pillow: pip install 'regard[train]'") from missing
    channels, height, width = shape
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(path)
        with opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise ValueError(f"{path} has {opened.width} × {opened.height} pixels, more than {MOST_PIXELS:,}")
            scaled = opened.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.LANCZOS)
    except UnidentifiedImageError as unknown:
        raise ValueError(f"{path} is not an image that can be read") from unknown
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as huge:
        raise ValueError(f"{path} has more than {MOST_PIXELS:,} pixels: make it smaller first") from huge
    content = torch.frombuffer(bytearray(scaled.tobytes()), dtype=torch.uint8)
    return content.reshape(height, width, channels).permute(2, 0, 1).contiguous()


def _check_ending(path: Path, endings: Sequence[str]) -> None:
    if path.suffix not in endings:
        raise ValueError(f"--output must end in {' or '.join(endings)}, got {path}")
