"""A run as the API tells of it: what it is, how far it got, and its trained network."""

import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from torch import nn

from regard.studio._errors import Refused
from regard.studio._files import EXAMPLE, HEADS, METRICS, RECIPE, SUMMARY, Place, read_json, read_piece
from regard.studio._images import shipped, test_set
from regard.studio._models import Checkpoint, Kind, RunDetail, RunSummary, State, View
from regard.training import (
    CaseConversion,
    DamagedCheckpointError,
    ImageTask,
    MaskedLanguage,
    Recurrent,
    ResNet,
    Run,
)

SILENT = 90.0  # seconds without a new line after which a run counts as stopped
TAIL = 64 * 2**10


def kind_of(run: Run) -> Kind:
    """What its network takes."""
    task = run.recipe.task
    for kind, task_kind in (("image", ImageTask), ("case", CaseConversion), ("text", MaskedLanguage)):
        if isinstance(task, task_kind):
            return kind  # type: ignore[return-value]
    return "other"


def state_of(place: Place) -> State:
    """A finished run has a summary of all its steps; one that goes on writes now and then."""
    metrics, summary = place.file(METRICS), read_json(place.file(SUMMARY))
    if isinstance(summary, dict):
        steps, last = summary.get("steps"), _last_step(last_lines(metrics))
        # Only steps beyond those of the summary say that it was taken up again; when files were written says nothing,
        # since those of an installation or a copy are new.
        if not isinstance(steps, int) or last is None or last <= steps:
            return "finished"
    wrote = metrics.stat().st_mtime if metrics.exists() else place.file(RECIPE).stat().st_mtime
    return "training" if time.time() - wrote < SILENT else "stopped"


def views_of(place: Place, run: Run) -> list[View]:
    """The views that have something to show for it."""
    found: list[View] = []
    heads = place.file(HEADS)
    if heads.exists() and heads.stat().st_size:
        found.append("heads")
    kind, network = kind_of(run), run.recipe.network
    if kind == "image" and not isinstance(network, ResNet):
        found.append("image")
    if kind in ("case", "text") and not (isinstance(network, Recurrent) and network.attention == "none"):
        found.append("tokens")
    return found


def summarize(place: Place) -> RunSummary:
    """An entry of the list, also for a run that cannot be read."""
    modified = place.folder.stat().st_mtime
    try:
        run = place.open()
        metrics = place.file(METRICS)
        lines = last_lines(metrics)
        modified = max(modified, metrics.stat().st_mtime if metrics.exists() else 0.0)
        return RunSummary(
            id=place.id,
            title=place.title,
            recipe=run.recipe.name,
            kind=kind_of(run),
            state=state_of(place),
            views=views_of(place, run),
            example=place.is_example,
            step=_last_step(lines),
            accuracy=_accuracy(place, lines),
            modified=modified,
            problem=None,
        )
    except (Refused, OSError, ValueError) as error:
        message = error.message if isinstance(error, Refused) else f"{place.title} cannot be read: {error}"
        return RunSummary(
            id=place.id,
            title=place.title,
            recipe=None,
            kind="other",
            state="stopped",
            views=[],
            example=place.is_example,
            step=None,
            accuracy=None,
            modified=modified,
            problem=message,
        )


def detail(place: Place) -> RunDetail:
    """Everything about one run but its numbers."""
    run = place.open()
    task = run.recipe.task
    summary = read_json(place.file(SUMMARY))
    return RunDetail(
        **summarize(place).model_dump(),
        settings=read_json(place.file(RECIPE)) or {},
        summary=summary if isinstance(summary, dict) else None,
        checkpoints=checkpoints(run),
        shape=task.shape if isinstance(task, ImageTask) else None,
        classes=list(task.data_set.classes) if isinstance(task, ImageTask) else [],
        samples={name: count for name, count in sample_counts(run).items() if count},
        suggestion=_suggestion(run),
    )


def checkpoints(run: Run) -> list[Checkpoint]:
    """Those that are there, oldest first."""
    return [Checkpoint(step=step, score=run.checkpoints._score(step)) for step in run.checkpoints.steps()]


def sample_counts(run: Run) -> dict[str, int]:
    task = run.recipe.task
    if not isinstance(task, ImageTask):
        return {}
    images = test_set(task.data)
    return {"shipped": len(shipped_images(run)), "test": 0 if images is None else len(images)}


def shipped_images(run: Run) -> list[Path]:
    """The images that came with the package, for networks that take such."""
    task = run.recipe.task
    return shipped(EXAMPLE / "images") if isinstance(task, ImageTask) and takes_shipped(task.shape) else []


def takes_shipped(shape: tuple[int, int, int]) -> bool:
    """They are in color."""
    return shape[0] == 3


class Networks:
    """Trained networks, the last few of them kept."""

    def __init__(self, most: int = 3) -> None:
        self.most = most
        self.lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], nn.Module] = OrderedDict()

    def get(self, place: Place, run: Run, step: int | None) -> tuple[nn.Module, int]:
        """The network at a step (the last by default), in evaluation mode, and the step."""
        steps = run.checkpoints.steps()
        if not steps:
            raise Refused(409, f"{place.title} has no checkpoint yet: its network can be looked at after the first one")
        if step is not None and step not in steps:
            raise Refused(
                404, f"{place.title} has no checkpoint of step {step}; there are {', '.join(map(str, steps))}"
            )
        # Without a step, damaged ones are passed over.
        wanted = steps[::-1] if step is None else [step]
        damage: Exception | None = None
        for each in wanted:
            key = (str(place.folder), each)
            if key not in self._kept:
                try:
                    self._kept[key] = run.network(each).float()
                except DamagedCheckpointError as damaged:
                    damage = damage or damaged
                    continue
                except (RuntimeError, ValueError, TypeError, KeyError, OSError) as error:
                    raise Refused(422, f"{place.title} cannot be loaded: {_first_line(error)}") from error
            self._kept.move_to_end(key)
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)
            return self._kept[key], each
        raise Refused(422, f"{place.title} cannot be loaded: {damage}") from damage


def _accuracy(place: Place, lines: list[dict[str, Any]]) -> float | None:
    for line in reversed(lines):
        if isinstance(line.get("validation_accuracy"), float):
            return float(line["validation_accuracy"])
    summary = read_json(place.file(SUMMARY))
    found = summary.get("validation_accuracy") if isinstance(summary, dict) else None
    return float(found) if isinstance(found, float | int) else None


def _last_step(lines: list[dict[str, Any]]) -> int | None:
    return next((line["step"] for line in reversed(lines) if isinstance(line.get("step"), int)), None)


def last_lines(path: Path) -> list[dict[str, Any]]:
    """The end of a file of lines."""
    size = path.stat().st_size if path.exists() else 0
    # A piece that begins within a line loses that one, which is no JSON.
    return read_piece(path, max(0, size - TAIL), TAIL).lines


def _suggestion(run: Run) -> str | None:
    return {"case": "I am a student", "text": _first_words(run)}.get(kind_of(run))


def _first_words(run: Run) -> str | None:
    task = run.recipe.task
    if not isinstance(task, MaskedLanguage):
        return None
    vocabulary = task.vocabulary
    words = task.data.validation[: min(task.length, 10 if task.level == "word" else 40)].tolist()
    words[len(words) // 2] = vocabulary.mask
    return vocabulary.decode(words, keep_special=True)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
