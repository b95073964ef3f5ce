"""How well trained networks do on sentences of each length, and how long that takes to find out."""

import time
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from torch import nn

from regard.support.checks import check_positive
from regard.training._fabric import start_fabric
from regard.training._run import Run, load_run
from regard.training.tasks import Task

LENGTHS = (8, 12, 16, 20, 24, 32, 40, 56, 72)
TRIED = (128, 256)  # lengths whose time says how long others take
LONG = 20.0  # seconds; what takes longer is announced

Metrics = dict[int, dict[str, float]]
Tell = Callable[[str], None]


def measure_lengths(
    run: Run,
    lengths: Sequence[int],
    *,
    which: int | str = "last",
    accelerator: str = "cpu",
    samples: int = 200,
    tell: Tell | None = None,
) -> Metrics:
    """Metrics of one run's network on test sentences of each length. ``tell`` is called with a line of text before a length that
    takes long."""
    for length in lengths:
        check_positive("lengths", length)
    task, found = run.recipe.task, Metrics()
    network = run.network(which, start_fabric(run.recipe.precision, accelerator=accelerator).device)
    for length in lengths:
        if tell is not None and (seconds := expected_seconds(task, network, length, samples)) > LONG:
            tell(f"sentences of {length:,} characters: this takes about {in_words(seconds)}, or more; Ctrl-C stops it")
        found |= task.by_length(network, [length], samples)
    return found


def expected_seconds(task: Task, network: nn.Module, length: int, samples: int) -> float:
    """About how long a length takes, by the time of two shorter ones: a part that grows like the length, for the calls of the
    network, and one like its square, for the characters before each. 0 for lengths that are no longer than those two."""
    if length <= max(TRIED):
        return 0.0
    taken = []
    for tried in (TRIED[0], *TRIED):  # the first of all calls takes longer
        start = time.perf_counter()
        task.by_length(network, [tried], samples)
        taken.append(time.perf_counter() - start)
    once, twice = taken[1:]
    square = max(twice / 2 - once, 0.0)
    times = length / TRIED[0]
    return (once - square) * times + square * times**2


def in_words(seconds: float) -> str:
    """A duration, rounded.

    >>> in_words(40), in_words(60 * 50), in_words(3600 * 30), in_words(86400 * 1000)
    ('40 seconds', '50 minutes', '30 hours', '1,000 days')
    """
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {name}"
    return f"{seconds:.0f} seconds"


def sweep_lengths(
    runs: Sequence[str | PathLike[str]],
    lengths: Sequence[int] = LENGTHS,
    *,
    samples: int = 200,
    tell: Tell | None = None,
) -> dict[str, Metrics]:
    """Metrics of the trained networks of these runs on test sentences of each length.

    Args:
        runs: folders of runs of a task with sentences, such as case conversion.
        lengths: characters of a sentence.
        samples: sentences of each length.
        tell: called with a line of text before a length that takes long.

    Returns the metrics by length, for the name of each run: its recipe, and its folder where several have the same recipe.
    :func:`regard.figures.length_sweep` draws them.
    """
    loaded = [load_run(folder) for folder in runs]
    for run in loaded:
        if run.recipe.task.trained_lengths is None:
            raise ValueError(
                f"{run.folder} is a run of {run.recipe.name!r}, whose task has no sentences of different lengths"
            )
    return {
        name: measure_lengths(run, lengths, samples=samples, tell=tell) for name, run in names_of_runs(loaded).items()
    }


def names_of_runs(runs: Sequence[Run]) -> dict[str, Run]:
    """Each run under a name of its own: its recipe's, with the folder if several runs have the same recipe."""
    places = [run.folder.resolve() for run in runs]
    if twice := [str(run.folder) for run, place in zip(runs, places, strict=True) if places.count(place) > 1]:
        raise ValueError(f"each run can be passed once, but these are the same folder: {', '.join(twice)}")
    recipes = [run.recipe.name for run in runs]
    shared = [place for place, recipe in zip(places, recipes, strict=True) if recipes.count(recipe) > 1]
    named: dict[str, Run] = {}
    for run, place, recipe in zip(runs, places, recipes, strict=True):
        name = recipe if place not in shared else f"{recipe} ({shortest_ending(place, shared)})"
        named[name] = run
    return named


def shortest_ending(path: Path, among: Sequence[Path]) -> str:
    """As few of the last parts of a path as tell it from the others.

    >>> shortest_ending(Path("/runs/a/seed-0"), [Path("/runs/a/seed-0"), Path("/runs/b/seed-0"), Path("/runs/c")])
    'a/seed-0'
    """
    for count in range(1, len(path.parts)):
        ending = path.parts[-count:]
        if sum(other.parts[-count:] == ending for other in among) == 1:
            return "/".join(ending)
    return path.as_posix()
