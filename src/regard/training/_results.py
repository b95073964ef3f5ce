"""Metrics of finished runs on the test set, runs with several seeds, and result files."""

import json
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.support.checks import UnusableInputError, check_path, describe, is_iterable
from regard.support.files import finite_numbers, write_output
from regard.support.input_errors import is_input_error
from regard.support.text import listed
from regard.training._evaluation import score
from regard.training._fabric import is_first_process, several_processes, start_fabric
from regard.training._fitting import have_images_changed
from regard.training._machine import command, commit, hardware, without
from regard.training._progress import say
from regard.training._recipe import Recipe
from regard.training._run import EVALUATION, METRICS, Run, load_run
from regard.training._stop import NonFiniteError
from regard.training._train import train


def evaluate_run(
    run: Run | str | PathLike[str], *, which: int | str = "last", accelerator: str = "auto", batch_size: int = 500
) -> dict[str, Any]:
    """Measure a run's network on the test set, which training never uses. Also write ``evaluation.json`` to the run's folder.

    Args:
        run: the run, or its folder.
        which: the checkpoint: ``"last"``, ``"best"`` (by validation accuracy) or a step.
        accelerator: ``"auto"``, ``"cpu"``, ``"cuda"`` …
        batch_size: samples at a time; it changes the result only by rounding.

    Returns ``{"accuracy", "loss", "targets", …}`` and the task's own metrics (:meth:`Task.metrics`): for images
    ``"accuracy_flip"``, the accuracy of the mean over an image and its mirror image; for case conversion
    ``"characters"`` and ``"sentences"``, the accuracy in free running.
    """
    if not isinstance(run, Run):
        check_path("run", run)
        run = load_run(run)
    found = measure_run(run, which=which, accelerator=accelerator, batch_size=batch_size)
    save_evaluation(run, found)
    return found


def measure_run(run: Run, *, which: int | str, accelerator: str, batch_size: int = 500) -> dict[str, Any]:
    """What :func:`evaluate_run` returns, without writing it."""
    recipe, task = run.recipe, run.recipe.task
    fabric = start_fabric(recipe.precision, accelerator=accelerator)
    examples = task.examples("test", fabric.device)  # reads changed images again, before they are compared
    checkpoint = run.checkpoint(which)
    if have_images_changed(recipe, checkpoint.state):
        say(
            f"note: the images at {getattr(task, 'data', '')} have changed since the training, or were renamed; those of now are "
            "measured"
        )
    network = run.network_of(checkpoint, fabric.device)

    def accuracy(network: nn.Module) -> float:
        return score(fabric, task, network, examples, batch_size=batch_size).accuracy

    plain = score(fabric, task, network, examples, batch_size=batch_size)
    found = {"which": which, "step": checkpoint.state["step"], **plain._asdict()}
    found |= {name: float(value) for name, value in task.metrics(network, examples, accuracy).items()}
    if missing := [name for name in task.metric_names if name not in found]:
        raise UnusableInputError(
            f"{type(task).__name__}.metrics must return {listed(missing)}, which its metric_names announce"
        )
    return found | {"hardware": hardware(fabric.device)}


def save_evaluation(run: Run, found: dict[str, Any]) -> None:
    """Write what :func:`measure_run` returned to the run's folder, in the first process."""
    if is_first_process():
        run.write(EVALUATION, finite_numbers(found))


@dataclass
class SeedRuns:
    """Runs of one recipe with different seeds. Those that failed have an error instead of a run."""

    recipe: Recipe
    seeds: tuple[int, ...]
    runs: dict[int, Run] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)

    def accuracy(self) -> list[float]:
        """The accuracy of each successful run: on the test set if it was measured, else on the validation set."""
        if self.evaluations:
            return [self.evaluations[seed]["accuracy"] for seed in self.runs]
        found = [(self.runs[seed].summary or {}).get("validation_accuracy") for seed in self.runs]
        return [value for value in found if value is not None]

    def columns(self) -> dict[str, Any]:
        """Accuracies and times of a result file, in the order of the runs; the longest time to compile."""
        summaries = [run.summary or {} for run in self.runs.values()]
        found = {key: [each.get(key) for each in self.evaluations.values()] for key in ("accuracy", "accuracy_flip")}
        times = {key: [summary.get(key) for summary in summaries] for key in ("train_seconds", "process_seconds")}
        compiling = max(summary.get("compile_seconds") or 0.0 for summary in summaries)
        return {**found, **times, "compile_seconds": compiling}

    def __str__(self) -> str:
        values = self.accuracy()
        where = "test" if self.evaluations else "validation"
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
    after_each: Callable[[SeedRuns], None] | None = None,
    **options: Any,
) -> SeedRuns:
    """Train the same recipe with several seeds, each in ``folder/seed-N``. If one seed fails, the others continue; in several
    processes only after a loss that is not finite, which they all see. But an argument with which the first seed cannot take
    a step is an error at once: the others could not use it, either.

    Args:
        recipe: its own seed is replaced.
        seeds: the seeds.
        folder: contains the folders of the runs.
        resume: as for :func:`train`; ``"auto"`` does not repeat finished runs.
        evaluate: whether to measure each run on the test set at the end, unless it was measured before.
        after_each: called after each seed with the runs so far, for example to write a result file that survives a later
            interruption.
        options: passed on to :func:`train`.
    """
    if not is_iterable(seeds):
        raise TypeError(f"seeds must be several seeds, such as range(3), got {describe(seeds)}")
    if len(set(seeds)) < len(seeds) or not seeds:
        raise ValueError(f"seeds must be distinct, and at least one, got {list(seeds)}")
    done = SeedRuns(recipe, tuple(seeds))
    for seed in seeds:
        place, trained = Path(folder) / f"seed-{seed}", False
        before = _logged_bytes(place)
        try:
            run = train(replace(recipe, seed=seed), folder=place, resume=resume, **options)
            trained = True
            if evaluate:
                accelerator = options.get("accelerator", "auto")
                done.evaluations[seed] = _known(run) or evaluate_run(run, accelerator=accelerator)
            done.runs[seed] = run
        except Exception as error:
            started = trained or _logged_bytes(place) != before
            if seed == done.seeds[0] and not started and is_input_error(error):
                raise
            if several_processes() and not isinstance(error, NonFiniteError):
                raise  # the others may not have this error, and would wait for this process
            done.errors[seed] = f"{type(error).__name__}: {error}"
            say(f"seed {seed} failed; continuing with the others. {done.errors[seed]}")
        if after_each is not None and done.runs:
            after_each(done)
    return done


def _logged_bytes(folder: Path) -> int:
    """The size of a run's log of steps."""
    log = folder / METRICS
    return log.stat().st_size if log.is_file() else 0


def _known(run: Run) -> dict[str, Any] | None:
    """The earlier evaluation of a finished run; training removes it."""
    found = run.evaluation
    if not found or not {"accuracy", *run.recipe.task.metric_names} <= found.keys():
        return None
    is_last = found.get("which") == "last" and found.get("step") == (run.summary or {}).get("steps")
    return found if is_last else None


def epoch_log(run: Run) -> list[dict[str, Any]]:
    """A row for each epoch of a run: mean loss and accuracy of its steps, and validation accuracy."""
    steps = [line for line in run.metrics if "loss" in line and line["loss"] is not None]
    total = (run.summary or {}).get("steps") or (steps[-1]["step"] if steps else 0)
    length = max(1, total // run.recipe.epochs)
    measured = {line["epoch"]: line for line in run.evaluations}
    of_epochs: dict[int, list[dict[str, Any]]] = {}
    for line in steps:
        of_epochs.setdefault((line["step"] - 1) // length + 1, []).append(line)
    rows = []
    for epoch, own in sorted(of_epochs.items()):
        if epoch > total // length:
            continue
        row = {"epoch": epoch, **{name: sum(line[name] for line in own) / len(own) for name in ("loss", "accuracy")}}
        found = measured.get(epoch, {})
        rows.append(row | {name: found[name] for name in ("validation_accuracy", "seconds") if name in found})
    return rows


def write_result(runs: SeedRuns, path: str | PathLike[str], *, name: str | None = None) -> dict[str, Any]:
    """Write the result file of evaluated runs: accuracies in the order of their seeds, hardware, command and commit.

    ``"process_seconds"`` is the processor time in the same steps as ``"train_seconds"``: the cost of training on a CPU
    that other programs share. ``name`` replaces the recipe's name, if fields of it were changed. Seeds that failed are
    listed under ``"failed"``, with the reason.
    """
    if not runs.runs or runs.evaluations.keys() != runs.runs.keys():
        raise ValueError("a result file needs at least one run, and every run measured on the test set (evaluate=True)")
    first = next(iter(runs.runs.values())).summary or {}
    result: dict[str, Any] = {
        "recipe": name or runs.recipe.name,
        "date": str(first.get("date") or date.today().isoformat())[:10],
        "hardware": first.get("hardware") or hardware(start_fabric().device),
        "command": shlex.join(without(shlex.split(command()), "--result", "--folder", "--output")),
        "commit": first.get("commit") or commit(),
        "seeds": list(runs.runs),
        **runs.columns(),
        "parameters": first.get("parameters"),
        "log": [epoch_log(run) for run in runs.runs.values()],
    }
    for key in runs.recipe.task.metric_names:
        result.setdefault(key, [found.get(key) for found in runs.evaluations.values()])
    if runs.errors:
        result["failed"] = runs.errors
    _write(path, result)
    return result


def write_sweep(results: Mapping[str, Mapping[int, Mapping[str, float]]], path: str | PathLike[str]) -> dict[str, Any]:
    """Write what :func:`sweep_lengths` returned as a result file: for each metric and run, a number per length.

    >>> import tempfile
    >>> from regard.training import write_sweep
    >>> results = {"case-rnn": {8: {"characters": 0.9, "sentences": 0.5}}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = write_sweep(results, f"{folder}/lengths.json")
    >>> written["lengths"], written["characters"], written["sentences"]
    ([8], {'case-rnn': [0.9]}, {'case-rnn': [0.5]})
    """
    lengths = sorted({length for by_length in results.values() for length in by_length})
    metrics = {name: None for by_length in results.values() for found in by_length.values() for name in found}
    result: dict[str, Any] = {
        "recipes": list(results),
        "date": date.today().isoformat(),
        "hardware": hardware(torch.device("cpu")),
        "command": command(),
        "commit": commit(),
        "lengths": lengths,
    }
    for metric in metrics:
        result[metric] = {
            name: [by_length.get(length, {}).get(metric) for length in lengths] for name, by_length in results.items()
        }
    _write(path, result)
    return result


def _write(path: str | PathLike[str], result: dict[str, Any]) -> None:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, json.dumps(finite_numbers(result), indent=1, ensure_ascii=False) + "\n")
