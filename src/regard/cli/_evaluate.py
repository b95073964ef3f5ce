"""``regard evaluate RUN``: measure a run's network on the test set, which nothing else touches."""

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.training import Run


def run(arguments: Sequence[str]) -> int:
    """The command's exit code."""
    parser = argparse.ArgumentParser(prog="regard evaluate", description=__doc__)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--which", default="last", help="the checkpoint: last, best (by what was held out), or a step")
    parser.add_argument("--accelerator", default="auto", choices=("auto", "cpu", "cuda", "mps"))
    parser.add_argument("--lengths", type=int, nargs="+", metavar="N", help="case task: also for sentences so long")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(list(arguments))

    from regard.training import CaseConversion, length_sweep, load_run
    from regard.training._results import keep_measurement, measure_run

    folder = load_run(chosen.run)
    if chosen.lengths and not isinstance(folder.recipe.task, CaseConversion):
        raise ValueError(f"--lengths is for runs of the case task, and this is one of {folder.recipe.name!r}")
    which = int(chosen.which) if chosen.which.isdigit() else chosen.which
    found = measure_run(folder, which=which, accelerator=chosen.accelerator)
    kept = dict(found)
    if chosen.lengths:
        swept = length_sweep(folder.network(which), chosen.lengths)
        found["lengths"] = {length: said._asdict() for length, said in zip(chosen.lengths, swept, strict=True)}
    if chosen.json:
        print(json.dumps(found, indent=1))
    else:
        _show(found, chosen.which, folder)
    try:  # once the numbers are shown: minutes of measuring are not lost to a folder that takes no file
        keep_measurement(folder, kept)
    except OSError as error:
        raise OSError(f"this was measured, but could not be kept in the run's folder: {error}") from error
    return 0


def _show(found: dict[str, Any], which: str, folder: "Run") -> None:
    from regard.training import CaseConversion, MaskedLanguage

    kinds = {CaseConversion: "characters, told the right ones so far", MaskedLanguage: "masked tokens of the test text"}
    kind = kinds.get(type(folder.recipe.task), "test samples")
    print(f"{folder.recipe.name} in {folder.folder}, checkpoint {which} (step {found['step']})")
    print(f"  {found['accuracy']:8.2%}  of {found['targets']:,} {kind}")
    if "accuracy_flip" in found:
        print(f"  {found['accuracy_flip']:8.2%}  averaged over each image and its mirror image")
    if "characters" in found:
        print(f"  {found['characters']:8.2%}  of characters without help, {found['sentences']:.2%} of whole sentences")
    for length, said in found.get("lengths", {}).items():
        print(f"  {said['characters']:8.2%}  of characters in sentences of {length}, {said['sentences']:.2%} whole")
