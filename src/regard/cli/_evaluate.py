"""Measure a run's network on the test set, which training never uses."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from regard.cli._moved_images import add_data_option, open_run
from regard.support.checks import check_positive
from regard.support.files import finite_numbers
from regard.support.text import format_metric
from regard.training import Run, measure_lengths, measure_run, save_evaluation


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="regard evaluate", description=__doc__)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument(
        "--which", default="last", help="the checkpoint: last, best (by validation accuracy), or a step"
    )
    parser.add_argument(
        "--accelerator", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="the kind of device; default auto"
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        metavar="N",
        help="for runs of case-… recipes: also measure on sentences of these lengths",
    )
    add_data_option(parser)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    chosen = parser.parse_args(list(arguments))

    folder = open_run(chosen.run, chosen.data)
    task = folder.recipe.task
    if chosen.lengths and task.trained_lengths is None:
        raise ValueError(f"--lengths is for runs of case conversion, but this is a run of {folder.recipe.name!r}")
    for length in chosen.lengths or ():
        check_positive("--lengths", length)
    which = int(chosen.which) if chosen.which.isdecimal() else chosen.which
    found = measure_run(folder, which=which, accelerator=chosen.accelerator)
    by_length: dict[int, dict[str, float]] = {}
    if not chosen.json:
        _show(folder, found)
    try:
        for length in chosen.lengths or ():  # each is printed as it is measured: a long one may be interrupted
            measured = measure_lengths(folder, [length], which=which, accelerator=chosen.accelerator, tell=_tell)
            by_length |= measured
            if not chosen.json:
                _show_lengths(folder, measured)
        if chosen.json:
            print(json.dumps(finite_numbers({**found, "lengths": by_length} if by_length else found), indent=1))
    finally:  # after printing, so that no measurement is lost to a folder that cannot be written
        try:
            save_evaluation(folder, found)
        except OSError as error:
            raise OSError(f"the evaluation could not be saved in the run's folder: {error}") from error
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(folder: Run, found: dict[str, Any]) -> None:
    task = folder.recipe.task
    print(f"{folder.recipe.name} in {folder.folder}, checkpoint {found['which']} (step {found['step']})")
    for name, words in task.metric_names.items():
        count = f" ({found['targets']:,} {task.target_name})" if name == "accuracy" else ""
        print(f"  {format_metric(found[name]):>8}  {words}{count}", flush=True)


def _show_lengths(folder: Run, by_length: dict[int, dict[str, float]]) -> None:
    for length, metrics in by_length.items():
        for name, value in metrics.items():
            print(
                f"  {format_metric(value):>8}  {folder.recipe.task.metric_names[name]}, in sentences of {length}",
                flush=True,
            )
