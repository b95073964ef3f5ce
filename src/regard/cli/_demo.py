"""Compute attention by hand, train a network on the included images, convert it to convolution, and check claims."""

import argparse
import itertools
import math
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.support.files import check_folder, write_atomic, write_output

MARKER = "demo.json"  # marks a folder that the demo may replace


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="regard demo", description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        help="folder of the run and its report; default runs/demo, with a number if that is taken",
    )
    parser.add_argument("--smoke", action="store_true", help="a few steps only, to check that everything works")
    chosen = parser.parse_args(list(arguments))
    folder = chosen.folder or free_folder(Path("runs/demo"))
    prepare(folder)

    from regard.cli._page import claim_section, run_sections
    from regard.views import page, story
    from regard.views.page import Section, grid, paragraph, preformatted

    begin = time.perf_counter()
    example = worked_example()
    _say("Attention by hand", example)
    trained, words = train_network(folder, chosen.smoke)
    _say("A network of Gaussian heads", words)
    short, converted, findings = convolution_of(trained)
    _say("How much of it was convolution?", short)
    short, rows = verify_claims(1.0 if chosen.smoke else 60.0)
    _say("What people say about attention", short)

    sections = [Section("Attention by hand", preformatted(example)), *run_sections(trained)]
    sections.insert(2, Section("Test accuracy", paragraph(words)))
    sections += [
        Section(
            "How much of it was convolution?", grid(converted, right={3, 4, 5}) + "".join(map(paragraph, findings))
        ),
        claim_section(rows, short),
    ]
    report = folder / "report.html"
    write_output(report, page.story(story(trained), "regard demo", sections, "The run in numbers"))
    print(f"\n{time.perf_counter() - begin:.0f} s in total. Open {report}")
    return 0


def free_folder(wanted: Path) -> Path:
    """The folder, with a number added if it holds anything other than an earlier demo. ``regard train demo`` has the same
    default."""
    names = (wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(1))
    return next(name for name in names if _is_ours(name))


def _is_ours(folder: Path) -> bool:
    return not folder.exists() or not any(folder.iterdir()) or (folder / MARKER).exists()


def prepare(folder: Path) -> None:
    """Make an empty folder. An earlier demo is replaced; anything else is an error."""
    check_folder("--folder", folder)
    if not _is_ours(folder):
        raise FileExistsError(f"{folder} holds something other than an earlier demo: choose another with --folder")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / MARKER, "{}\n")


def worked_example() -> str:
    """Token 2 of three attends to all of them."""
    from regard.reference import worked_example as example

    found = example()
    scores = ", ".join(f"{score:g}" for score in found.scores.tolist())
    soft, hard = ([round(value, 4) for value in each.tolist()] for each in (found.soft, found.hard))
    return "\n".join(
        [
            f"Three tokens  h = {found.hidden.tolist()}",
            f"q₂ · k        = {scores}",
            f"softargmax    → token 2 becomes {soft}   (β = 1)",
            f"hardmax       → token 2 becomes {hard}   (β = ∞: only the best key)",
            "The scores are so far apart that soft attention equals hard attention.",
        ]
    )


def train_network(folder: Path, smoke: bool) -> tuple[Any, str]:
    from regard import recipes
    from regard.training import evaluate_run, train

    recipe = recipes.get("demo").smoke() if smoke else recipes.get("demo")
    choose_threads(recipe)
    trained = train(recipe, folder=folder, resume="auto", accelerator="cpu", tensorboard=False)
    found = evaluate_run(trained, accelerator="cpu")
    summary = trained.summary or {}
    return trained, (
        f"{summary['parameters']:,} parameters, trained for {summary['train_seconds']:.0f} s. Test accuracy "
        f"{found['accuracy']:.1%} ({found['targets']} images), {found['accuracy_flip']:.1%} with flip averaging."
    )


def choose_threads(recipe: Any) -> None:
    """Use all cores or one, whichever is faster now: if other programs use the cores, threads wait for each other."""
    import torch

    network = recipe.network.build(recipe.task)
    images = torch.randn(recipe.batch_size, *recipe.task.image_shape)
    all_threads = torch.get_num_threads()
    seconds: dict[int, float] = {}
    for threads in {all_threads, 1}:
        torch.set_num_threads(threads)
        for step in range(4):
            begin = time.perf_counter()
            network(images).sum().backward()
            if step:  # the first one warms up
                seconds[threads] = min(seconds.get(threads, math.inf), time.perf_counter() - begin)
    torch.set_num_threads(min(seconds, key=lambda threads: seconds[threads]))


def convolution_of(trained: Any) -> tuple[str, list[tuple[str, ...]], list[str]]:
    """Convert the Gaussian layers of the trained network to convolutions. Returns a few lines about the change, the table
    of all layers, and conclusions of one sentence each."""
    import torch

    from regard.convert import GaussianConvolution, convert_network
    from regard.training import score, start_fabric

    network, task = trained.network(), trained.recipe.task
    fabric = start_fabric(accelerator="cpu")
    validation = task.examples("validation", torch.device("cpu"))
    batch = task.batch("validation", range(min(100, len(validation)))).images
    convolutional, report = convert_network(network, to="convolution", example=batch)
    layers = [layer for layer in convolutional.modules() if isinstance(layer, GaussianConvolution)]
    heads = sum(len(layer.kernels) for layer in layers)
    sharp = sum(kernel.taps.numel() == 1 for layer in layers for kernel in layer.kernels)
    before, after = (score(fabric, task, each, validation).accuracy for each in (network, convolutional))
    with torch.no_grad():
        same = (network(batch).argmax(-1) == convolutional(batch).argmax(-1)).float().mean().item()
    words = [
        str(report).splitlines()[-1],
        f"{sharp} of {heads} converted heads look at a single position; the others look at a few around it.",
        f"Validation accuracy: {before:.1%} as attention, {after:.1%} as convolution; both agree on {same:.0%} of images.",
    ]
    brief = [line for row in report.rows for line in _layer(row)]
    return "\n".join([*brief, *words]), report.table(), words


def _layer(row: Any) -> list[str]:
    """The conversion of a layer, in lines that fit a terminal."""
    measured = "" if None in (row.error, row.bound) else f" (error {row.error:.0e}, at most {row.bound:.0e})"
    note = "" if row.after != "kept" else f": {row.note}"
    text = f"{row.name}: {row.before} → {row.after}{measured}{note}"
    return textwrap.wrap(text, 96, subsequent_indent="    ")


def verify_claims(seconds: float) -> tuple[str, list[Any]]:
    """Verify as many quick claims as the time allows. Returns a summary, and the result for each claim."""
    from regard.claims import examine, select

    begin, rows = time.perf_counter(), []
    quick = [claim for claim in select() if not claim.slow]
    for claim in quick:
        if time.perf_counter() - begin > seconds:
            break
        rows.append(examine(claim))
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in ("holds", "holds under", "fails")}
    words = {"holds": "hold", "holds under": "hold under a condition", "fails": "fail"}
    verdicts = ", ".join(f"{count} {words[verdict]}" for verdict, count in counts.items() if count)
    left = f" ({len(quick) - len(rows)} more quick claims were skipped to save time)" if len(rows) < len(quick) else ""
    lines = [f"{len(rows)} claims verified in {math.ceil(time.perf_counter() - begin)} s: {verdicts}{left}."]
    if wrong := [row.claim.id for row in rows if not row.agrees]:
        lines.append(f"Evidence and record DISAGREE on {', '.join(wrong)}.")
    lines.append("regard verify shows the evidence, and the wrong variant that each check rejects.")
    return "\n".join(lines), rows


def _say(heading: str, text: str) -> None:
    bold = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold[0]}{heading}{bold[1]}\n{text}", flush=True)
