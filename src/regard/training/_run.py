"""The folder of a run, and what can be read from it.

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

import json
import os
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from regard.support.files import write_atomic
from regard.training._checkpoints import Checkpoint, Checkpoints, DamagedCheckpointError
from regard.training._head_trajectory import HeadTrajectory
from regard.training._json_lines import read_lines
from regard.training._own_code import OwnCodeError, import_sources, remember, sources_of
from regard.training._progress import say
from regard.training._recipe import Recipe
from regard.training._recipe_json import decode, encode

METRICS, HEADS, RECIPE, SUMMARY = "metrics.jsonl", "heads.jsonl", "recipe.json", "summary.json"
EVALUATION, LOCK = "evaluation.json", ".lock"


class Run:
    """The folder of a run that is finished, interrupted or still training. See :func:`load_run`."""

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2) -> None:
        self.folder = Path(folder)
        self.checkpoints = Checkpoints(self.folder / "checkpoints", keep)

    def __repr__(self) -> str:
        steps = self.checkpoints.steps()
        return f"Run({str(self.folder)!r}, recipe={self.recipe.name!r}, last checkpoint at step {steps[-1:] or None})"

    @cached_property
    def recipe(self) -> Recipe:
        path = self.folder / RECIPE
        if not path.exists():
            raise FileNotFoundError(f"{self.folder} is not the folder of a run: it has no {RECIPE}")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(content, dict) and isinstance(content.get("imports"), list):
                import_sources(content.pop("imports"), str(self.folder))
            recipe = decode(content)
        except OwnCodeError:
            raise
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if not isinstance(recipe, Recipe):
            raise ValueError(f"{path} does not hold a recipe")
        return recipe

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Every line of ``metrics.jsonl``."""
        return list(read_lines(self.folder / METRICS))

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
        return self._read(SUMMARY)

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """Metrics on the test set; None until :func:`evaluate_run` has measured them."""
        return self._read(EVALUATION)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def checkpoint(self, which: int | str = "last") -> Checkpoint:
        """The ``"last"`` checkpoint that is not damaged, the ``"best"`` by validation accuracy, or that of a step."""
        steps = self.checkpoints.steps()
        if not steps:
            raise FileNotFoundError(f"{self.folder} has no checkpoint")
        if which == "last":
            for step in reversed(steps):
                try:
                    return self.checkpoints.load(step)
                except DamagedCheckpointError as error:
                    damage = error
                    say(f"damaged checkpoint: {error}")
            raise damage
        if which == "best":
            best = self.checkpoints.best()
            return self.checkpoints.load(steps[-1] if best is None else best)
        if which not in steps:
            raise ValueError(f"which must be 'last', 'best' or one of the steps {steps}, got {which!r}")
        return self.checkpoints.load(int(which))

    def network(self, which: int | str = "last", device: torch.device | str = "cpu") -> nn.Module:
        """The trained network (its average, where the recipe has one), in evaluation mode."""
        return self.network_of(self.checkpoint(which), device)

    def network_of(self, checkpoint: Checkpoint, device: torch.device | str = "cpu") -> nn.Module:
        """The network of a checkpoint."""
        with torch.random.fork_rng(devices=[]):
            network = self.recipe.network.build(self.recipe.task)
        network.load_state_dict(checkpoint.part("average") or checkpoint.part("network"))
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


def load_run(path: str | os.PathLike[str]) -> Run:
    """Open the folder of a run: its recipe, metrics, heads and trained network. Nothing is unpickled.

    >>> regard.load_run("runs/nowhere")
    Traceback (most recent call last):
    FileNotFoundError: runs/nowhere is not the folder of a run: it has no recipe.json
    """
    run = Run(path)
    run.recipe  # noqa: B018  # refuse a wrong folder here, not at its first use
    return run


class FolderTakenError(RuntimeError):
    """Two processes cannot train in one folder."""


class RunLock:
    """Held by the process that trains in a folder. The operating system releases it when the process ends in any way."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._file: IO[str] | None = None

    def __enter__(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows has none
            return
        self._file = self.path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            self._file.close()
            raise FolderTakenError(f"another process is training in {self.path.parent}") from taken

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
