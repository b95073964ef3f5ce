"""A run as the API describes it: its task, state, views and trained networks."""

import contextlib
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from torch import nn

from regard.studio._errors import Refused
from regard.studio._image_files import png_files
from regard.studio._models import CheckpointEntry, RunDetail, RunSummary, State, View
from regard.studio._run_folders import (
    HEADS,
    METRICS,
    RECIPE,
    SUMMARY,
    RunFolder,
    network_signature,
    read_json,
    read_piece,
)
from regard.training import DamagedCheckpointError, Run

SILENT = 90.0  # seconds without a new line after which a run is considered stopped
TAIL = 64 * 2**10
MOST_TRIED = 10  # damaged checkpoints to try: a folder may have thousands, and other views wait


def state_of(place: RunFolder) -> State:
    """A finished run has a summary of all its steps; a run in training writes regularly."""
    metrics, summary = place.file(METRICS), read_json(place.file(SUMMARY))
    if isinstance(summary, dict):
        steps, last = summary.get("steps"), _last_step(last_lines(metrics))
        # Only later steps than the summary's show that the run was resumed. File times do not: after an
        # installation or a copy they are new.
        if not isinstance(steps, int) or last is None or last <= steps:
            return "finished"
    wrote = metrics.stat().st_mtime if metrics.exists() else place.file(RECIPE).stat().st_mtime
    return "training" if time.time() - wrote < SILENT else "stopped"


def views_of(place: RunFolder, run: Run) -> list[View]:
    """The views that have data for a run."""
    found: list[View] = []
    heads = place.file(HEADS)
    if heads.exists() and heads.stat().st_size:
        found.append("heads")
    if run.recipe.network.attends:
        found += ["image"] if run.recipe.task.image_shape is not None else []
        found += ["tokens"] if run.recipe.task.suggestion is not None else []
    return found


def summarize(place: RunFolder) -> RunSummary:
    """An entry of the list; it is also made for runs that cannot be read."""
    modified = 0.0
    try:
        with place.refusing():
            return _summary(place)
    except Refused as error:
        with contextlib.suppress(OSError):
            modified = place.folder.stat().st_mtime
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
            problem=error.message.encode("utf-8", "replace").decode(),
        )


def _summary(place: RunFolder) -> RunSummary:
    modified = place.folder.stat().st_mtime
    run = place.open()
    metrics = place.file(METRICS)
    lines = last_lines(metrics)
    modified = max(modified, metrics.stat().st_mtime if metrics.exists() else 0.0)
    return RunSummary(
        id=place.id,
        title=place.title,
        recipe=run.recipe.name,
        kind=run.recipe.task.kind,
        state=state_of(place),
        views=views_of(place, run),
        example=place.is_example,
        step=_last_step(lines),
        accuracy=_accuracy(place, lines),
        modified=modified,
        problem=None,
    )


def detail(place: RunFolder, example: Path | None) -> RunDetail:
    """Everything about one run except its metrics."""
    run = place.open()
    task = run.recipe.task
    summary = read_json(place.file(SUMMARY))
    return RunDetail(
        **summarize(place).model_dump(),
        settings=read_json(place.file(RECIPE)) or {},
        summary=summary if isinstance(summary, dict) else None,
        checkpoints=[CheckpointEntry(step=step, score=run.checkpoints.score(step)) for step in run.checkpoints.steps()],
        shape=task.image_shape,
        classes=list(task.class_names),
        samples={name: count for name, count in sample_counts(run, example).items() if count},
        suggestion=task.suggestion,
    )


def sample_counts(run: Run, example: Path | None) -> dict[str, int]:
    """How many images there are to choose from, by source. The page opens with the first source that has any: the images of
    the example, if the run knows their classes, otherwise its own."""
    if run.recipe.task.image_shape is None:
        return {}
    shipped = shipped_images(run, example)
    counts = {"shipped": len(shipped), "test": run.recipe.task.count("test")}
    known = all(knows(run, shipped_label(path)) for path in shipped)
    return counts if known else {name: counts[name] for name in ("test", "shipped")}


def shipped_label(path: Path) -> str:
    """The class of an image that comes with the example."""
    return path.stem.partition("-")[0]


def knows(run: Run, label: str | None) -> bool:
    """Whether this is a class of the run. Only then can the network be right or wrong about it."""
    return label in run.recipe.task.class_names


def shipped_images(run: Run, example: Path | None) -> list[Path]:
    """The images that come with the example, for networks that take images with that many channels."""
    shape = run.recipe.task.image_shape
    return [] if shape is None or example is None else png_files(example / "images", channels=shape[0])


class Networks:
    """Loads trained networks and keeps the last few."""

    def __init__(self, most: int = 3) -> None:
        self.most = most
        self._kept: OrderedDict[tuple[str, int], tuple[object, nn.Module]] = OrderedDict()

    def get(self, place: RunFolder, run: Run, step: int | None) -> tuple[nn.Module, int]:
        """The network at a step (the last by default), in evaluation mode, and the step."""
        steps = run.checkpoints.steps()
        if not steps:
            raise Refused(409, f"{place.title} has no checkpoint yet: its network can be shown after the first one")
        if step is not None and step not in steps:
            raise Refused(
                404, f"{place.title} has no checkpoint of step {step}; there are {', '.join(map(str, steps))}"
            )
        # If no step is given, damaged checkpoints are skipped.
        wanted = steps[: -MOST_TRIED - 1 : -1] if step is None else [step]
        damage: Exception | None = None
        for each in wanted:
            key, written = (str(place.folder), each), network_signature(place.folder, [each])
            kept = self._kept.get(key)
            if kept is None or kept[0] != written:
                try:
                    kept = self._kept[key] = written, run.network(each).float()
                except DamagedCheckpointError as damaged:
                    damage = damage or damaged
                    continue
                except (ValueError, OSError, MemoryError) as error:
                    raise Refused(422, f"{place.title} cannot be loaded: {_first_line(error)}") from error
            self._kept.move_to_end(key)
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)
            return kept[1], each
        raise Refused(422, f"{place.title} cannot be loaded: {damage}") from damage


def _accuracy(place: RunFolder, lines: list[dict[str, Any]]) -> float | None:
    for line in reversed(lines):
        if isinstance(line.get("validation_accuracy"), float):
            return float(line["validation_accuracy"])
    summary = read_json(place.file(SUMMARY))
    found = summary.get("validation_accuracy") if isinstance(summary, dict) else None
    return float(found) if isinstance(found, float | int) else None


def _last_step(lines: list[dict[str, Any]]) -> int | None:
    return next((line["step"] for line in reversed(lines) if isinstance(line.get("step"), int)), None)


def last_lines(path: Path) -> list[dict[str, Any]]:
    """The last lines of a file."""
    size = path.stat().st_size if path.exists() else 0
    # A piece that begins inside a line loses that line, since its rest is not valid JSON.
    return read_piece(path, max(0, size - TAIL), TAIL).lines


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
