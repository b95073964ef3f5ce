"""``regard.train``: from a recipe to a trained network in a run's folder.

It prepares everything around the loop, in this order: arguments and data are checked, devices and processes start, the folder
is chosen and locked, the loop is made and restored from a checkpoint, and the listeners that write the run's files are attached.
Then the loop runs.
"""

import importlib.util
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from regard.support.checks import check_flag, check_path, check_positive, describe, is_iterable
from regard.support.files import DiskFullError, remove_unfinished, reporting_full_disk
from regard.training._checkpoints import Checkpoint
from regard.training._fabric import is_lost_connection, start_fabric
from regard.training._head_trajectory import layer_grids
from regard.training._listeners import CheckpointWriter, HeadWriter, MetricsWriter, SummaryWriter, report_skipped
from regard.training._loop import Loop
from regard.training._machine import resume_command
from regard.training._progress import ProgressBar, say
from regard.training._recipe import Recipe
from regard.training._recipe_json import check_readable
from regard.training._run import METRICS, Run, RunLock
from regard.training._start import check_recipe, choose_folder, copy_checkpoint, last_checkpoint, prepare_files
from regard.training._stop import LostProcessError, NonFiniteError, TrainingInterrupted
from regard.training._tensorboard import TensorBoard
from regard.training.events import Listener


def train(
    recipe: Recipe,
    *,
    folder: str | PathLike[str] | None = None,
    resume: bool | str | PathLike[str] = False,
    accelerator: str = "auto",
    devices: int | None = None,
    nodes: int | None = None,
    log_every: int = 20,
    save_every: int | None = None,
    keep: int = 2,
    tensorboard: bool | None = None,
    progress: bool | None = None,
    listeners: Sequence[Listener] = (),
) -> Run:
    """Train a network from a recipe. Only the recipe changes the result; the other arguments say how and where to train.

    Args:
        recipe: what to train, such as ``regard.recipes.get("demo")``.
        folder: folder of the run; by default ``runs/NAME``, with a number if that exists.
        resume: ``False`` starts a new run; ``True`` resumes from the folder's last checkpoint; ``"auto"`` resumes if there
            is a checkpoint, and otherwise starts. The path of another run, or of one of its checkpoints, resumes from there
            and writes to ``folder`` (by default to that run's own folder).
        accelerator: ``"auto"``, ``"cpu"``, ``"cuda"`` …
        devices, nodes: their number, if neither ``torchrun`` nor SLURM sets it.
        log_every: steps between reads of numbers from the device. All steps are logged, whatever its value.
        save_every: steps between checkpoints; by default each evaluation saves one.
        keep: number of latest checkpoints to keep, besides the best one.
        tensorboard: whether to write TensorBoard files; by default if TensorBoard is installed.
        progress: whether to show a progress bar; by default on a terminal.
        listeners: functions called with each event of the first process (see :mod:`regard.training.events`).

    >>> import tempfile
    >>> recipe = regard.recipes.get("demo").smoke()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = regard.train(recipe, folder=folder, accelerator="cpu", tensorboard=False)
    ...     run.summary["steps"], len(run.evaluations)
    (8, 2)
    """
    _check_arguments(
        recipe,
        (folder, resume),
        listeners,
        log_every=log_every,
        save_every=save_every,
        keep=keep,
        tensorboard=tensorboard,
        progress=progress,
    )
    notes = recipe.task.check()  # unusable data is refused before anything is written
    fabric = start_fabric(recipe.precision, accelerator=accelerator, devices=devices, nodes=nodes)
    first = fabric.is_global_zero
    if first and notes:
        say(*(f"note: {note}" for note in notes))
    run, origin = choose_folder(fabric, recipe, folder, resume, keep)
    fabric.barrier()  # all have looked at the folder before the first one writes to it
    created = first_missing(run.folder) if first else None
    if first:
        run.folder.mkdir(parents=True, exist_ok=True)
    random = torch.random.fork_rng([fabric.device] if fabric.device.type == "cuda" else [])
    with RunLock(run.folder) if first else nullcontext(), random:
        with _removed_on_error(run.folder, created):
            if first:
                _prepare(run, origin, recipe)
            fabric.barrier()
            checkpoint = last_checkpoint(run, resume, first)
            fabric.barrier()
            loop = Loop(fabric, recipe, log_every=log_every, save_every=save_every)
        if checkpoint is not None:
            check_recipe(recipe, checkpoint.state, run.folder)
            loop.restore(checkpoint)
        bar = ProgressBar(recipe.name, progress if first else False)
        if first:
            loop.listeners = [*_writers(run, loop, checkpoint, tensorboard), report_skipped, bar, *listeners]
        unstarted = created if checkpoint is None else None
        with _explained_errors(run, recipe, first), _removed_on_error(run.folder, unstarted, unless=METRICS):
            try:
                loop.run()
            finally:
                bar.close()
        fabric.barrier()
    return run


def _prepare(run: Run, origin: Path | None, recipe: Recipe) -> None:
    """Remove what an interrupted run left unfinished in the folder, and copy the checkpoint of another run that is resumed."""
    run.checkpoints.clean()
    for place in (run.folder, run.folder / "model"):
        remove_unfinished(place)
    if origin is not None:
        copy_checkpoint(origin, run, recipe)


def _check_arguments(
    recipe: object,
    places: tuple[object, object],
    listeners: Sequence[Listener],
    *,
    tensorboard: object,
    progress: object,
    **counts: Any,
) -> None:
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a Recipe, as regard.recipes.get('demo') returns, got {describe(recipe)}")
    check_readable(recipe)
    for name, value in counts.items():
        if value is not None:
            check_positive(name, value)
    for name, flag in (("tensorboard", tensorboard), ("progress", progress)):
        if flag is not None:
            check_flag(name, flag)
    folder, resume = places
    if folder is not None:
        check_path("folder", folder)
    if not isinstance(resume, bool | str | PathLike):
        raise TypeError(
            f"resume must be False, True, 'auto' or the path of a run or checkpoint, got {describe(resume)}"
        )
    if not isinstance(resume, bool):
        check_path("resume", resume)
    if not is_iterable(listeners) or not all(map(callable, listeners)):
        raise TypeError(f"listeners must be functions that take an event, got {describe(listeners)}")


def _writers(run: Run, loop: Loop, checkpoint: Checkpoint | None, tensorboard: bool | None) -> list[Listener]:
    """The listeners that write the run's files."""
    recipe, network, finished = loop.recipe, loop.learner.network, loop.step == loop.total
    if finished:
        say(_already_finished(run, loop))
    metrics, heads = prepare_files(run, recipe, checkpoint, finished)
    board = None
    if tensorboard is None:
        tensorboard = importlib.util.find_spec("tensorboard") is not None
    if tensorboard and not finished:
        board = TensorBoard(run.folder / "tensorboard", recipe, loop.learner.result, layer_grids(network))
    return [
        *([] if board is None else [board]),
        MetricsWriter(metrics),
        HeadWriter(heads, network, loop.total, None if board is None else board.heads),
        CheckpointWriter(run, [metrics, heads]),
        SummaryWriter(run, recipe),
    ]


def _already_finished(run: Run, loop: Loop) -> str:
    found = "" if loop.latest is None else f" with validation accuracy {loop.latest.accuracy:.2%}"
    return (
        f"{run.folder} was finished before: all {loop.total} steps of {loop.recipe.epochs} epochs{found}. Nothing is left to "
        f"train. To train longer, start a run with more epochs in another folder (--epochs {2 * loop.recipe.epochs} "
        f"--folder {run.folder}-longer)"
    )


@contextmanager
def _removed_on_error(folder: Path, created: Path | None, unless: str = "") -> Iterator[None]:
    """If a run cannot start, remove its folder and the parent folders that were created for it; not if the folder has a file
    ``unless``."""
    try:
        yield
    except Exception:
        if created is not None and not (unless and (folder / unless).exists()):
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # another run may be in it by now
                for place in folder.parents:
                    if not place.is_relative_to(created):
                        break
                    place.rmdir()
        raise


def first_missing(folder: Path) -> Path | None:
    """The outermost parent folder that does not exist yet; None if the folder exists."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    return missing[-1] if missing else None


@contextmanager
def _explained_errors(run: Run, recipe: Recipe, first: bool) -> Iterator[None]:
    """Add to an error which checkpoint was saved last, and how to resume."""
    again = resume_command(recipe.name, recipe.seed, run.folder)
    try:
        with reporting_full_disk(run.folder, "run's files", 0):
            yield
    except DiskFullError as full:
        raise DiskFullError(full.errno, f"{full}: {again}") from full
    except TrainingInterrupted as stopped:
        raise TrainingInterrupted(f"{stopped}. To resume: {again}", stopped.step) from None
    except NonFiniteError as error:
        file = run.folder / "non_finite.json"
        if first:
            run.write(file.name, {"step": error.step, "indices": error.indices})
        message = f"{error} ({_last_checkpoint(run)}; {file} lists all samples)"
        raise NonFiniteError(message, error.step, error.indices) from error
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise LostProcessError(
            f"an exchange with the other processes of this run failed: one may have ended, and its own message say why. "
            f"{_last_checkpoint(run)}. To resume: {again} ({str(error).strip():.500})"
        ) from error


def _last_checkpoint(run: Run) -> str:
    steps = run.checkpoints.steps()
    return f"The last checkpoint is of step {steps[-1]}" if steps else "No checkpoint was saved yet"
