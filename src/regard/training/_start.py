"""The folder of a run and its starting point: step 0, its last checkpoint, or a checkpoint of another run."""

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from regard.support.files import write_atomic
from regard.support.reading import is_plain_name, open_regular, read_object
from regard.training._checkpoints import Checkpoint, DamagedCheckpointError, read_checkpoint, read_state
from regard.training._fabric import total_over_processes
from regard.training._fitting import check_data, check_images, has_comparable_images
from regard.training._json_lines import LARGEST_LOG, JsonLines
from regard.training._machine import versions
from regard.training._optimizer_state import GROUPS
from regard.training._progress import say
from regard.training._recipe import Recipe
from regard.training._recipe_json import decode, differences, encode, modules_of
from regard.training._run import EVALUATION, HEADS, LOCK, METRICS, RECIPE, SUMMARY, Run

Resume = bool | str | PathLike[str]


def choose_folder(
    fabric: Any, recipe: Recipe, folder: str | PathLike[str] | None, resume: Resume, keep: int
) -> tuple[Run, Path | None]:
    """The run's folder, and the checkpoint of another run that it continues, if any."""
    if isinstance(resume, bool) or resume == "auto":
        if folder is None and not is_plain_name(recipe.name):
            raise ValueError(f"the recipe's name {recipe.name!r:.100} cannot name a folder: pass folder (--folder)")
        wanted = Path("runs") / recipe.name
        chosen = folder or (_next_free(fabric, wanted) if resume is False else wanted)
        return _own_folder(Run(chosen, keep), resume), None
    return _other_run(Path(resume), folder, keep)


def _own_folder(run: Run, resume: bool | str) -> Run:
    has_steps, has_metrics = bool(run.checkpoints.steps()), (run.folder / METRICS).exists()
    if resume is False and (has_steps or has_metrics):
        raise FileExistsError(
            f"{run.folder} already holds a run: pass resume='auto' (--resume auto) to continue it, "
            f"or choose another folder"
        )
    if has_metrics and not has_steps and not (run.folder / RECIPE).exists():
        raise FileExistsError(f"{run.folder} has a {METRICS} not written by regard: choose another folder")
    return run


def _other_run(source: Path, folder: str | PathLike[str] | None, keep: int) -> tuple[Run, Path | None]:
    if not source.exists():
        raise FileNotFoundError(f"resume must be False, True, 'auto' or the path of a run or checkpoint, got {source}")
    is_checkpoint = source.name.startswith("step-")
    other = Run(source.parent.parent if is_checkpoint else source, keep)
    run = Run(folder or other.folder, keep)
    steps = other.checkpoints.steps()
    if not steps:
        raise FileNotFoundError(f"{source} has no checkpoint to resume from")
    if run.folder.resolve() == other.folder.resolve():
        if is_checkpoint and source.name != other.checkpoints.path(steps[-1]).name:
            raise ValueError(
                f"{source} is not the last checkpoint of its run (that is step {steps[-1]}). Resuming from it there "
                f"would overwrite the later steps: give another folder"
            )
        return run, None
    if run.checkpoints.steps():
        raise FileExistsError(f"{run.folder} already holds a run: choose another folder to resume {source} in")
    return run, source if is_checkpoint else other.checkpoints.path(steps[-1])


def _next_free(fabric: Any, wanted: Path) -> Path:
    """The first free folder name. The first process decides, since it may have made the folder before others look."""
    number = 1
    while fabric.is_global_zero and _is_taken(wanted.with_name(_numbered(wanted.name, number))):
        number += 1
    chosen = torch.full((), float(number if fabric.is_global_zero else 0), device=fabric.device)
    return wanted.with_name(_numbered(wanted.name, int(total_over_processes(fabric, chosen))))


def _is_taken(folder: Path) -> bool:
    """Whether the folder holds more than the lock of a run that failed to start."""
    return folder.exists() and (not folder.is_dir() or any(path.name != LOCK for path in folder.iterdir()))


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def copy_checkpoint(origin: Path, run: Run, recipe: Recipe) -> None:
    """Copy a checkpoint of another run and the logs up to it, so that this run has each step once."""
    state = read_state(origin)
    check_form(state, origin)
    check_recipe(recipe, state, origin.parent.parent)
    checkpoint = read_checkpoint(origin)
    for name in (METRICS, HEADS):
        size = checkpoint.state["logs"].get(name, 0)
        if size:
            with open_regular(origin.parent.parent / name, LARGEST_LOG) as file:
                write_atomic(run.folder / name, file.read(size))
    run.write_recipe(recipe)
    state = {key: value for key, value in checkpoint.state.items() if key != "tensors"}
    run.checkpoints.save(state["step"], checkpoint.tensors, state)


def check_form(state: Mapping[str, Any], where: Path) -> None:
    """Refuse a checkpoint with a valid digest whose state training cannot have written."""
    for name, (is_due, needed) in _FORM.items():
        if needed and name not in state:
            raise DamagedCheckpointError(f"{where}: the state lacks {name}")
        if name in state and not is_due(state[name]):
            raise DamagedCheckpointError(f"{where}: the state has {name} {state[name]!r:.60}")
    if f"step-{state['step']:08d}" != where.name:
        raise DamagedCheckpointError(f"{where}: the state is that of step {state['step']}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _is_score(value: Any) -> bool:
    return value is None or (isinstance(value, list) and len(value) == 3 and all(map(_is_number, value)))


# The entries of a state that resuming reads, and whether older versions wrote them, too.
_FORM: dict[str, tuple[Callable[[Any], bool], bool]] = {
    "step": (_is_count, True),
    "seconds": (_is_number, True),
    "compile_seconds": (_is_number, True),
    "process_seconds": (_is_number, False),
    "evaluation": (_is_score, True),
    "best": (_is_number, False),
    "optimizers": (
        lambda value: _are_objects(value) and all(_are_objects(each.get(GROUPS, [])) for each in value),
        True,
    ),
    "recipe": (lambda value: isinstance(value, dict), True),
    "versions": (lambda value: isinstance(value, dict), True),
    "logs": (lambda value: isinstance(value, dict) and all(map(_is_count, value.values())), True),
}


def last_checkpoint(run: Run, resume: Resume, first: bool) -> Checkpoint | None:
    """The newest checkpoint that is not damaged. Damaged ones are reported and renamed."""
    if resume is False:
        return None
    steps = run.checkpoints.steps()
    for step in reversed(steps):
        try:
            found = run.checkpoints.load(step)
            check_form(found.state, run.checkpoints.path(step))
            return found
        except DamagedCheckpointError as damage:
            if first:
                say(f"damaged checkpoint: {damage}. Trying the one before it.")
                run.checkpoints.set_aside(step)
    if steps or run.checkpoints.damaged():
        raise DamagedCheckpointError(
            f"all checkpoints of {run.folder} are damaged (steps {', '.join(map(str, run.checkpoints.damaged()))}); "
            f"they were renamed. Start again in another folder"
        )
    if resume is True:
        raise FileNotFoundError(
            f"{run.folder} has no checkpoint to resume; resume='auto' starts a new run where there is none"
        )
    return None


def check_recipe(recipe: Recipe, state: dict[str, Any], folder: Path) -> None:
    """Refuse to resume with a different recipe, classes or images: the result would belong to neither. A field that did not
    exist when the run was started has its default. The same images may be at another path."""
    started, now = encode(decode(state["recipe"], modules_of(recipe))), encode(recipe)
    if has_comparable_images(recipe, state):
        started["task"]["data"] = now["task"]["data"]
    if different := differences(started, now):
        raise ValueError(
            f"the run in {folder} was started with another recipe (then and now): {'; '.join(different)}. "
            f"Use the same settings, or choose another folder"
        )
    check_data(recipe, state, folder)
    check_images(recipe, state, folder)


def restore_recipe(run: Run, recipe: Recipe, encoded: Any) -> None:
    """Rewrite the recipe's file if it is missing, damaged or not that of the checkpoint, or if the path of the images has
    changed."""
    moved = decode(encoded, modules_of(recipe)) != recipe  # the recipe was checked before, so nothing else can differ
    try:
        found = read_object(run.folder / RECIPE, finite=False)
        found.pop("imports", None)
        same = found == encoded or (moved and found == encode(recipe))
    except (OSError, ValueError):
        same = False
    if not same:
        say(f"{run.folder / RECIPE} is damaged or was changed; it is restored from the checkpoint")
    if moved or not same:
        run.write_recipe(recipe)


def report_versions(state: dict[str, Any]) -> None:
    if changed := differences(state["versions"], versions()):
        say(f"versions changed since the checkpoint (then and now): {'; '.join(changed)}")


def prepare_files(run: Run, recipe: Recipe, checkpoint: Checkpoint | None, finished: bool) -> list[JsonLines]:
    """The log files, truncated to the checkpoint. For a new run, also write the recipe. Results of an earlier, shorter run
    are removed."""
    sizes = {}
    if checkpoint is None:
        run.write_recipe(recipe)
    else:
        restore_recipe(run, recipe, checkpoint.state["recipe"])
        report_versions(checkpoint.state)
        sizes = checkpoint.state["logs"]
    logs = [JsonLines(run.folder / name) for name in (METRICS, HEADS)]
    for log in logs:
        log.cut(sizes.get(log.path.name, 0))
    if not finished:
        for name in (SUMMARY, EVALUATION):
            (run.folder / name).unlink(missing_ok=True)
    return logs
