"""The folder of a run, and access to its files.

::

    runs/NAME/
      recipe.json           the recipe; "imports" lists the files and modules of your own that it needs
      metrics.jsonl         a line per step, {"step", "loss", "accuracy", "gradient_norm", "learning_rate"}, and one per
                            evaluation, {"step", "epoch", "validation_loss", "validation_accuracy", "seconds"}
      heads.jsonl           where Gaussian heads looked (see regard.training._head_trajectory)
      checkpoints/          safetensors and JSON (see regard.training._checkpoints)
      tensorboard/          for tensorboard --logdir
      model/                the trained network: config.json and safetensors
      summary.json          steps, seconds, parameters, validation accuracy and machine of a finished run; train_seconds
                            count the steps without compiling, evaluating, saving and drawing, and process_seconds the
                            processor time in them
      evaluation.json       metrics on the test set, once they were measured
"""

import dataclasses
import json
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from regard.data import own_path
from regard.support.checks import check_path
from regard.support.files import write_atomic
from regard.support.reading import UnreadableError, file_inside, read_json, read_object
from regard.training._checkpoints import Checkpoint, Checkpoints, DamagedCheckpointError, read_state
from regard.training._fitting import check_data, check_fit, check_images, check_state
from regard.training._head_trajectory import HeadTrajectory
from regard.training._json_lines import read_lines
from regard.training._own_code import OwnCodeError, import_sources, remember, sources_of
from regard.training._progress import say
from regard.training._recipe import Recipe
from regard.training._recipe_json import decode, encode
from regard.training.tasks import ImageTask

METRICS, HEADS, RECIPE, SUMMARY = "metrics.jsonl", "heads.jsonl", "recipe.json", "summary.json"
EVALUATION, LOCK = "evaluation.json", ".lock"
LARGEST_RECIPE = 4 * 2**20
MOST_LINES = 5_000_000  # lines of metrics; as objects they fill some gigabytes
_SUMMARY: dict[str, Any] = {
    "steps": int,
    "parameters": int,
    "train_seconds": int | float,
    "hardware": str,
    "validation_accuracy": int | float | None,
}


class Run:
    """The folder of a run that is finished, interrupted or still training. See :func:`load_run`."""

    def __init__(
        self, folder: str | os.PathLike[str], keep: int = 2, *, data: str | os.PathLike[str] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.checkpoints = Checkpoints(self.folder / "checkpoints", keep)
        self._data = None if data is None else os.fspath(data)

    def __repr__(self) -> str:
        steps = self.checkpoints.steps()
        return f"Run({str(self.folder)!r}, recipe={self.recipe.name!r}, last checkpoint at step {steps[-1:] or None})"

    @cached_property
    def recipe(self) -> Recipe:
        path = self.folder / RECIPE
        if not path.exists():
            raise FileNotFoundError(f"{self.folder} is not the folder of a run: it has no {RECIPE}")
        try:
            content = read_json(path, LARGEST_RECIPE, finite=False)
            modules: set[str] = set()
            if isinstance(content, dict) and isinstance(content.get("imports"), list):
                modules = import_sources(content.pop("imports"), str(self.folder))
            recipe = decode(content, modules)
        except (OwnCodeError, UnreadableError):
            raise
        except (ValueError, OverflowError) as error:
            raise UnreadableError(f"{path}: {error}") from error
        if not isinstance(recipe, Recipe):
            raise UnreadableError(f"{path} does not hold a recipe")
        return recipe if self._data is None else with_images_at(recipe, self._data)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Every line of ``metrics.jsonl``."""
        return list(read_lines(self.folder / METRICS, MOST_LINES))

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl`` about evaluations on the validation set."""
        return [line for line in self.metrics if "validation_accuracy" in line]

    @property
    def heads(self) -> HeadTrajectory | None:
        """Where Gaussian heads looked; None for a network without such heads."""
        return HeadTrajectory.read(self.folder / HEADS)

    @property
    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run; None before."""
        found = self._read(SUMMARY)
        if found is None:
            return None
        for name, kind in _SUMMARY.items():
            value = found.get(name)
            if isinstance(value, bool) or not isinstance(value, kind):
                raise UnreadableError(f"{self.folder / SUMMARY} is not a summary of regard: {name} is {value!r:.60}")
        return found

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """Metrics on the test set; None until :func:`evaluate_run` has measured them."""
        return self._read(EVALUATION)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name
        return read_object(path, finite=False) if path.exists() else None

    def checkpoint(self, which: int | str = "last") -> Checkpoint:
        """The ``"last"`` undamaged checkpoint, the ``"best"`` by validation accuracy, or the checkpoint of a step."""
        steps = self.checkpoints.steps()
        if not steps:
            raise FileNotFoundError(f"{self.folder} has no checkpoint")
        if which == "last":
            for step in reversed(steps):
                try:
                    return self._load(step)
                except DamagedCheckpointError as error:
                    damage = error
                    say(f"damaged checkpoint: {error}")
            raise damage
        if which == "best":
            best = self.checkpoints.best()
            if best is None:
                say(f"{self.folder} has no checkpoint with a validation accuracy: the last one stands for the best")
            return self._load(steps[-1] if best is None else best)
        if which not in steps:
            raise ValueError(f"which must be 'last', 'best' or one of the steps {steps}, got {which!r}")
        return self._load(int(which))

    def _load(self, step: int) -> Checkpoint:
        """Load a checkpoint, after checking that its shapes fit the recipe's network."""
        recipe = self.recipe  # read before: if it is unreadable, the checkpoint is not what is damaged

        def check(tensors: Path) -> None:
            state = read_state(tensors.parent)
            check_data(recipe, state, self.folder)
            if self._data is not None:
                check_images(recipe, state, self.folder)
            check_fit(recipe, tensors)

        return self.checkpoints.load(step, check=check)

    def network(self, which: int | str = "last", device: torch.device | str = "cpu") -> nn.Module:
        """The trained network (its average, if the recipe has one), in evaluation mode."""
        return self.network_of(self.checkpoint(which), device)

    def network_of(self, checkpoint: Checkpoint, device: torch.device | str = "cpu") -> nn.Module:
        """The network of a checkpoint."""
        with torch.random.fork_rng(devices=[]):
            network = self.recipe.network.build(self.recipe.task)
        state = checkpoint.part("average") or checkpoint.part("network")
        check_state(network, state, f"the checkpoint of {self.folder}")
        network.load_state_dict(state)
        return network.to(device).eval()

    def write(self, name: str, content: Any) -> Path:
        """Write a JSON file in the folder, completely or not at all."""
        path = self.folder / name
        write_atomic(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        return path

    def write_recipe(self, recipe: Recipe) -> None:
        sources = sources_of(recipe)
        remember(sources)
        self.write(RECIPE, {**encode(recipe), **({"imports": sources} if sources else {})})


def load_run(path: str | os.PathLike[str], *, data: str | os.PathLike[str] | None = None) -> Run:
    """Open the folder of a run: its recipe, metrics, heads and trained network. Nothing is unpickled.

    Args:
        path: the folder.
        data: where the run's own images are now, if they were moved since. Other images than those are refused.

    >>> regard.load_run("runs/nowhere")
    Traceback (most recent call last):
    FileNotFoundError: runs/nowhere is not the folder of a run: it has no recipe.json
    """
    check_path("path", path)
    if data is not None:
        check_path("data", data)
    run = Run(path, data=data)
    run.recipe  # noqa: B018  # refuse a wrong folder here, not at its first use
    return run


def with_images_at(recipe: Recipe, data: str) -> Recipe:
    """The recipe of a run whose own images were moved to the path ``data``."""
    task = recipe.task
    if not isinstance(task, ImageTask) or own_path(task.data) is None:
        trained = f"{task.data}, which regard knows by name" if isinstance(task, ImageTask) else task.target_name
        raise ValueError(
            f"data is {data!r}, but only for runs on images of your own; this run of {recipe.name!r} was trained on {trained}"
        )
    if own_path(data) is None:
        raise ValueError(f"data must be the path of the run's images, got the name of a data set, {data!r}")
    return dataclasses.replace(recipe, task=dataclasses.replace(task, data=data))


class FolderTakenError(RuntimeError):
    """Another process is training in this folder."""


class RunLock:
    """A lock of the process that trains in a folder. The operating system releases it whenever the process ends."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._file: IO[str] | None = None

    def __enter__(self) -> None:
        if os.path.lexists(self.path):
            file_inside(self.path.parent, self.path.name)  # a pipe would block; a link may lead outside
        self._file = self.path.open("a")
        try:
            _lock(self._file.fileno())
        except OSError as taken:
            self._file.close()
            raise FolderTakenError(f"another process is training in {self.path.parent}") from taken

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()


def _lock(handle: int) -> None:
    """Lock an open file for this process; raises OSError if another process holds it."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
