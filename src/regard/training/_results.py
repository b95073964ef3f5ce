"""The last measurement of finished runs, on the test set, and the files that report it."""

import json
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any

from regard.training._checkpoints import write_whole
from regard.training._engine import train
from regard.training._evaluation import FlipAveraged, score
from regard.training._fabric import is_first_process, start
from regard.training._machine import command, commit, hardware, without
from regard.training._progress import say
from regard.training._recipe import Recipe
from regard.training._run import EVALUATION, Run, load_run
from regard.training._sequences import CaseConversion, said_right
from regard.training._tasks import ImageTask


def evaluate_run(
    run: Run | str | PathLike[str], *, which: int | str = "last", accelerator: str = "auto", batch_size: int = 500
) -> dict[str, Any]:
    """Measure a run's network on the test set, which nothing else touches. Also written to ``evaluation.json`` there.

    Args:
        run: the run, or its folder.
        which: the checkpoint: ``"last"``, ``"best"`` (by what was held out) or a step.
        accelerator: ``"auto"``, ``"cpu"``, ``"cuda"`` …
        batch_size: images at a time; the result does not depend on it, but for rounding.

    Returns ``{"accuracy", "loss", "targets", …}``; for images also ``"accuracy_flip"``, the accuracy of the mean over an
    image and its mirror image; for the case task ``"characters"`` and ``"sentences"``, right without help.
    """
    if not isinstance(run, Run):
        run = load_run(run)
    found = measure_run(run, which=which, accelerator=accelerator, batch_size=batch_size)
    keep_measurement(run, found)
    return found


def measure_run(run: Run, *, which: int | str, accelerator: str, batch_size: int = 500) -> dict[str, Any]:
    """What :func:`evaluate_run` returns, without keeping it."""
    recipe, task = run.recipe, run.recipe.task
    fabric = start(recipe.precision, accelerator=accelerator)
    checkpoint = run.checkpoint(which)
    network = run.network_of(checkpoint, fabric.device)
    examples = task.examples("test", fabric.device)
    plain = score(fabric, task, network, examples, batch_size=batch_size)
    found: dict[str, Any] = {"which": which, "step": checkpoint.state["step"], **plain._asdict()}
    if isinstance(task, ImageTask):
        flipped = score(fabric, task, FlipAveraged(network), examples, batch_size=batch_size)
        found["accuracy_flip"] = flipped.accuracy
    if isinstance(task, CaseConversion):
        said = said_right(network, task.examples("test", fabric.device), batch_size=batch_size)
        found |= {"characters": said.characters, "sentences": said.sentences}
    return found | {"hardware": hardware(fabric.device)}


def keep_measurement(run: Run, found: dict[str, Any]) -> None:
    """In the run's folder, by the first process."""
    if is_first_process():
        run.write(EVALUATION, found)


@dataclass
class SeedRuns:
    """Runs of one recipe that differ in their seed. Those that failed have an error instead of a run."""

    recipe: Recipe
    seeds: tuple[int, ...]
    runs: dict[int, Run] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)

    def accuracy(self) -> list[float]:
        """Of each run that did not fail: on the test set where that was measured, else on what was held out."""
        if self.evaluations:
            return [self.evaluations[seed]["accuracy"] for seed in self.runs]
        found = [(self.runs[seed].summary or {}).get("validation_accuracy") for seed in self.runs]
        return [value for value in found if value is not None]

    def __str__(self) -> str:
        values = self.accuracy()
        where = "test" if self.evaluations else "held out"
        lines = [f"seed {seed} failed: {error}" for seed, error in self.errors.items()]
        if not values:
            return "\n".join([*lines, f"{self.recipe.name}: no run has an accuracy to report"])
        spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
        each = ", ".join(f"{100 * value:.2f}" for value in values)
        summary = f"{self.recipe.name}, {where}: {100 * statistics.mean(values):.2f}{spread} % "
        return "\n".join([*lines, f"{summary}(mean{' ± standard deviation' if spread else ''} of {each})"])


def train_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    folder: str | PathLike[str],
    resume: bool | str = False,
    evaluate: bool = False,
    **options: Any,
) -> SeedRuns:
    """Train the same recipe with several seeds, each in ``folder/seed-N``. A run that fails does not stop the others.

    Args:
        recipe: whose own seed is replaced.
        seeds: which.
        folder: where the runs' folders go.
        resume: as for :func:`train`; ``"auto"`` takes finished runs as they are.
        evaluate: whether to measure each on the test set at the end; what was measured of a finished run still holds.
        options: passed on to :func:`train`.
    """
    if len(set(seeds)) < len(seeds) or not seeds:
        raise ValueError(f"seeds must be distinct, and at least one, got {list(seeds)}")
    done = SeedRuns(recipe, tuple(seeds))
    for seed in seeds:
        try:
            run = train(replace(recipe, seed=seed), folder=Path(folder) / f"seed-{seed}", resume=resume, **options)
            if evaluate:
                accelerator = options.get("accelerator", "auto")
                done.evaluations[seed] = _known(run) or evaluate_run(run, accelerator=accelerator)
            done.runs[seed] = run
        except Exception as error:
            done.errors[seed] = f"{type(error).__name__}: {error}"
            say(f"seed {seed} failed, going on with the others. {done.errors[seed]}")
    return done


def _known(run: Run) -> dict[str, Any] | None:
    """What was measured of a run that had come to its end before: training that goes on removes it."""
    found = run.evaluation
    return (
        found if found and found["which"] == "last" and found.get("step") == (run.summary or {}).get("steps") else None
    )


def epoch_log(run: Run) -> list[dict[str, Any]]:
    """How a run went, epoch by epoch: the means of its steps, and what was measured on what was held out."""
    steps = [line for line in run.metrics if "loss" in line and line["loss"] is not None]
    total = (run.summary or {}).get("steps") or (steps[-1]["step"] if steps else 0)
    length = max(1, total // run.recipe.epochs)
    measured = {line["epoch"]: line for line in run.evaluations}
    rows = []
    for epoch in range(1, total // length + 1):
        own = [line for line in steps if (epoch - 1) * length < line["step"] <= epoch * length]
        if not own:
            continue
        row = {"epoch": epoch, **{name: sum(line[name] for line in own) / len(own) for name in ("loss", "accuracy")}}
        found = measured.get(epoch, {})
        rows.append(row | {name: found[name] for name in ("validation_accuracy", "seconds") if name in found})
    return rows


def write_result(runs: SeedRuns, path: str | PathLike[str], *, name: str | None = None) -> dict[str, Any]:
    """The result file of evaluated runs: accuracies in the order of their seeds, with where and how they came about.

    ``"process_seconds"`` is the processor's time in the same steps as ``"train_seconds"``: on a CPU that others use too,
    it is what training costs. ``name`` stands for the recipe's, where it was not followed to the letter.
    Seeds that failed are listed under ``"failed"``, with the reason.
    """
    if not runs.runs or runs.evaluations.keys() != runs.runs.keys():
        raise ValueError("a result file needs at least one run, and every run measured on the test set (evaluate=True)")
    summaries = [run.summary or {} for run in runs.runs.values()]
    evaluations = list(runs.evaluations.values())
    result: dict[str, Any] = {
        "recipe": name or runs.recipe.name,
        "date": str(summaries[0].get("date") or date.today().isoformat())[:10],
        "hardware": summaries[0].get("hardware") or hardware(start().device),
        "command": shlex.join(without(shlex.split(command()), "--result", "--folder", "--output")),  # what, not where
        "commit": summaries[0].get("commit") or commit(),
        "seeds": list(runs.runs),
        "accuracy": [found["accuracy"] for found in evaluations],
        "accuracy_flip": [found.get("accuracy_flip") for found in evaluations],
        "train_seconds": [summary.get("train_seconds") for summary in summaries],
        "process_seconds": [summary.get("process_seconds") for summary in summaries],
        "compile_seconds": max(summary.get("compile_seconds") or 0.0 for summary in summaries),
        "parameters": summaries[0].get("parameters"),
        "log": [epoch_log(run) for run in runs.runs.values()],
    }
    for name in ("characters", "sentences"):
        if name in evaluations[0]:
            result[name] = [found[name] for found in evaluations]
    if runs.errors:
        result["failed"] = runs.errors
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    return result
