"""``regard.train``: from a recipe to a trained network in a run's folder."""

import importlib.util
import os
import shlex
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from regard.models import Pretrained
from regard.support.checks import check_positive, describe
from regard.training._checkpoints import (
    Checkpoint,
    DamagedCheckpointError,
    DiskFullError,
    read_checkpoint,
    read_state,
    reporting_full_disk,
)
from regard.training._fabric import start, total_over_processes
from regard.training._heads import layer_grids
from regard.training._loop import Loop
from regard.training._machine import command, commit, hardware, versions, without
from regard.training._progress import say
from regard.training._recipe import Recipe, decode, differences, encode
from regard.training._run import EVALUATION, HEADS, LOCK, METRICS, RECIPE, SUMMARY, Run, RunLock
from regard.training._tensorboard import Board
from regard.training._watch import Watch


def train(
    recipe: Recipe,
    *,
    folder: str | os.PathLike[str] | None = None,
    resume: bool | str | os.PathLike[str] = False,
    accelerator: str = "auto",
    devices: int | None = None,
    nodes: int | None = None,
    log_every: int = 20,
    save_every: int | None = None,
    keep: int = 2,
    tensorboard: bool | None = None,
    progress: bool | None = None,
) -> Run:
    """Train a network by a recipe. The result depends on the recipe alone; everything else here is about how and where.

    Args:
        recipe: what to do, as ``regard.recipes.get("demo")`` returns it.
        folder: of the run; by default ``runs/NAME``, with a number where that is taken.
        resume: ``False`` begins anew, ``True`` goes on from the folder's last checkpoint, ``"auto"`` does so where
            there is one. A path to another run, or to one of its checkpoints, goes on from there in ``folder``
            (by default in that run's own).
        accelerator: ``"auto"``, ``"cpu"``, ``"cuda"`` …
        devices, nodes: how many, of what ``torchrun`` or SLURM does not say already.
        log_every: steps between looks at the device's numbers. All steps are written down, whatever it is.
        save_every: steps between checkpoints; by default one comes with each evaluation.
        keep: how many of the last checkpoints are kept, besides the best.
        tensorboard: whether to write for TensorBoard; by default where it is installed.
        progress: whether to show a progress bar; by default on a terminal.

    >>> import tempfile
    >>> recipe = regard.recipes.get("demo").smoke()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = regard.train(recipe, folder=folder, accelerator="cpu", tensorboard=False)
    ...     run.summary["steps"], len(run.evaluations)
    (8, 2)
    """
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a Recipe, as regard.recipes.get('demo') returns, got {describe(recipe)}")
    for name, value in (("log_every", log_every), ("save_every", save_every), ("keep", keep)):
        if value is not None:
            check_positive(name, value)
    fabric = start(recipe.precision, accelerator=accelerator, devices=devices, nodes=nodes)
    run, origin = _choose(fabric, recipe, folder, resume, keep)
    first = fabric.is_global_zero
    if first:
        run.folder.mkdir(parents=True, exist_ok=True)
    random = torch.random.fork_rng([fabric.device] if fabric.device.type == "cuda" else [])
    with RunLock(run.folder) if first else nullcontext(), random:
        if first:
            run.checkpoints.clean()
            if origin is not None:
                _check_recipe(recipe, read_state(origin), origin.parent.parent)
                _bring(origin, run)
        fabric.barrier()
        checkpoint = _last_good(run, resume, first)
        fabric.barrier()
        watch = Watch(run, active=first, board=None, bar=progress, resume_command=_resume_command(recipe, run.folder))
        loop = Loop(fabric, recipe, watch, log_every=log_every, save_every=save_every)
        if checkpoint is not None:
            _check_same(recipe, checkpoint, run.folder)
            loop.restore(checkpoint)
        elif first:
            run.write_recipe(recipe)
        watch.cut({} if checkpoint is None else checkpoint.state["logs"])
        if tensorboard is None:
            tensorboard = importlib.util.find_spec("tensorboard") is not None
        if first and tensorboard and loop.step < loop.total:
            watch.board = Board(run.folder / "tensorboard", loop.step, loop.total, layer_grids(loop.network))
        if first and loop.step < loop.total:
            for name in (SUMMARY, EVALUATION):  # what this run came to before is no longer what it comes to
                (run.folder / name).unlink(missing_ok=True)
        try:
            with reporting_full_disk(run.folder, "run's files", 0):
                loop.run()
                if first and run.summary is None:  # or its end was cut off
                    _finish(run, loop)
        except DiskFullError as full:
            raise DiskFullError(full.errno, f"{full}: {watch.resume_command}") from full
        fabric.barrier()
    return run


def _choose(
    fabric: Any, recipe: Recipe, folder: str | os.PathLike[str] | None, resume: Any, keep: int
) -> tuple[Run, Path | None]:
    """The run's folder, and the checkpoint of another run that it goes on from."""
    if isinstance(resume, bool) or resume == "auto":
        if folder is None:
            wanted = Path("runs") / recipe.name
            folder = _next_free(fabric, wanted) if resume is False else wanted
        run = Run(folder, keep)
        if resume is False and (run.checkpoints.steps() or (run.folder / METRICS).exists()):
            raise FileExistsError(
                f"{run.folder} already holds a run: pass resume='auto' (--resume auto) to go on with it, "
                f"or choose another folder"
            )
        if not run.checkpoints.steps() and (run.folder / METRICS).exists() and not (run.folder / RECIPE).exists():
            raise FileExistsError(f"{run.folder} has a {METRICS} that is of no run of ours: choose another folder")
        return run, None
    source = Path(resume)
    if not source.exists():
        raise FileNotFoundError(f"resume must be False, True, 'auto' or the path of a run or checkpoint, got {source}")
    is_checkpoint = source.name.startswith("step-")
    other = Run(source.parent.parent if is_checkpoint else source, keep)
    run = Run(other.folder if folder is None else folder, keep)
    steps = other.checkpoints.steps()
    if not steps:
        raise FileNotFoundError(f"{source} has no checkpoint to go on from")
    if run.folder.resolve() == other.folder.resolve():
        if is_checkpoint and source.name != other.checkpoints.path(steps[-1]).name:
            raise ValueError(
                f"{source} is not the last checkpoint of its run (that is of step {steps[-1]}), and going on from it "
                f"there would overwrite what came later: give another folder"
            )
        return run, None
    if run.checkpoints.steps():
        raise FileExistsError(f"{run.folder} already holds a run: choose another folder to go on from {source} in")
    return run, source if is_checkpoint else other.checkpoints.path(steps[-1])


def _next_free(fabric: Any, wanted: Path) -> Path:
    """The first process decides, for it may already have made the folder when others look."""
    number = 1
    while fabric.is_global_zero and _is_taken(wanted.with_name(_numbered(wanted.name, number))):
        number += 1
    chosen = torch.full((), float(number if fabric.is_global_zero else 0), device=fabric.device)
    return wanted.with_name(_numbered(wanted.name, int(total_over_processes(fabric, chosen))))


def _is_taken(folder: Path) -> bool:
    """Whether it holds more than the lock of a run that could not begin."""
    return folder.exists() and (not folder.is_dir() or any(path.name != LOCK for path in folder.iterdir()))


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def _bring(origin: Path, run: Run) -> None:
    """A checkpoint of another run, with the logs up to it, so that this run holds each step once from the start."""
    checkpoint = read_checkpoint(origin)
    for name in (METRICS, HEADS):
        size = checkpoint.state["logs"].get(name, 0)
        if size:
            (run.folder / name).write_bytes((origin.parent.parent / name).read_bytes()[:size])
    run.write("recipe.json", checkpoint.state["recipe"])
    state = {key: value for key, value in checkpoint.state.items() if key != "tensors"}
    run.checkpoints.save(state["step"], checkpoint.tensors, state)


def _last_good(run: Run, resume: Any, first: bool) -> Checkpoint | None:
    """The newest checkpoint that is whole. Damaged ones are reported and set aside."""
    if resume is False:
        return None
    steps = run.checkpoints.steps()
    for step in reversed(steps):
        try:
            return run.checkpoints.load(step)
        except DamagedCheckpointError as damage:
            if first:
                say(f"damaged checkpoint: {damage}. Trying the one before it.")
                run.checkpoints.set_aside(step)
    if steps or run.checkpoints.damaged():
        raise DamagedCheckpointError(
            f"all checkpoints of {run.folder} are damaged (steps {', '.join(map(str, run.checkpoints.damaged()))}); "
            f"they are set aside. Begin anew in another folder"
        )
    if resume is True:
        raise FileNotFoundError(
            f"{run.folder} has no checkpoint to resume; resume='auto' begins anew where there is none"
        )
    return None


def _check_recipe(recipe: Recipe, state: dict[str, Any], folder: Path) -> None:
    begun = encode(decode(state["recipe"]))
    if different := differences(begun, encode(recipe)):
        raise ValueError(
            f"the run in {folder} was begun by another recipe (then and now): {'; '.join(different)}. "
            f"Give the same settings again, or choose another folder"
        )


def _check_same(recipe: Recipe, checkpoint: Checkpoint, folder: Path) -> None:
    """Going on by another recipe would give a result that belongs to neither. A field that did not exist when the run
    was begun has its default."""
    _check_recipe(recipe, checkpoint.state, folder)
    changed = differences(checkpoint.state["versions"], versions())
    if changed:
        say(f"versions have changed since the checkpoint (then and now): {'; '.join(changed)}")


def _resume_command(recipe: Recipe, folder: Path) -> str:
    words = shlex.split(command())
    program, rest = (words[:1], words[1:]) if words[:1] == ["regard"] else (words[:3], words[3:])
    if program in (["regard"], ["python", "-m", "regard.cli"]):
        if rest[:1] == ["demo"]:
            smoke = ["--smoke"] if "--smoke" in rest else []
            return shlex.join([*program, "train", "demo", *smoke, "--folder", str(folder), "--resume", "auto"])
        if rest[:1] == ["train"]:
            if without(rest, "--seeds") != rest and folder.name == f"seed-{recipe.seed}":
                folder = folder.parent  # that of all seeds
            rest = without(rest, "--resume", "--folder")
            return shlex.join([*program, *rest, "--folder", str(folder), "--resume", "auto"])
    return f"regard.train(recipe, folder={str(folder)!r}, resume='auto'), with the recipe of {recipe.name!r} as it was"


def _finish(run: Run, loop: Loop) -> None:
    """What the run came to, and the network by itself."""
    if isinstance(loop.evaluated, Pretrained):
        loop.evaluated.save_pretrained(run.folder / "model")
    run.write(
        SUMMARY,
        {
            "recipe": loop.recipe.name,
            "seed": loop.recipe.seed,
            "date": datetime.now().astimezone().isoformat(timespec="seconds"),
            "steps": loop.step,
            "parameters": sum(parameter.numel() for parameter in loop.network.parameters()),
            "train_seconds": round(loop.seconds, 3),
            "process_seconds": round(loop.process_seconds, 3),
            "compile_seconds": round(loop.compile_seconds, 3),
            "validation_loss": None if loop.latest is None else loop.latest.loss,
            "validation_accuracy": None if loop.latest is None else loop.latest.accuracy,
            "hardware": hardware(loop.fabric.device, loop.fabric.world_size),
            "command": command(),
            "commit": commit(),
            "versions": versions(),
        },
    )
