"""``regard train NAME``: train a network from a recipe. Every field of the recipe can be set on the command line."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from regard import recipes
from regard.cli._option_names import named_as_typed, unboxed_errors, without_markup
from regard.support.checks import UnusableInputError, check_positive
from regard.support.files import check_folder, check_writable
from regard.support.tables import text_table
from regard.training import (
    Recipe,
    SeedRuns,
    changed_name,
    evaluate_run,
    is_first_process,
    load_recipe,
    recipe_summaries,
    shut_down,
    train,
    train_seeds,
    write_result,
)

USAGE = """usage: regard train NAME [--smoke] [--field value …]      (regard train NAME --help lists all fields)
       regard train my_recipe.py[:NAME] [--import my_package.module] …      (a recipe of your own)
       regard train --list [NAME]                         (list all recipes, or describe one)"""


@dataclass(frozen=True)
class TrainOptions:
    """How and where to train; only the recipe changes the result (docs/guides/machines.md has three exceptions).

    Args:
        folder: the run's folder; by default runs/NAME, with a number if that exists.
        resume: false, true (resume from the folder's last checkpoint), auto (resume if there is a checkpoint, otherwise
            start), or the path of a run or checkpoint to resume from.
        seeds: number of seeds to train with, starting at the recipe's own seed, each in its own folder. If one seed
            fails, the others continue.
        result: measure on the test set at the end, and write this result file.
        accelerator: the kind of device.
        devices: number of devices on each node, if neither torchrun nor SLURM sets it.
        nodes: number of nodes, if neither torchrun nor SLURM sets it.
        log_every: steps between reads of numbers from the device; all steps are logged.
        save_every: steps between checkpoints; by default each evaluation saves one.
        keep: number of latest checkpoints to keep, besides the best one.
        tensorboard: whether to write TensorBoard files.
        progress: whether to show a progress bar; auto shows it on a terminal.
    """

    folder: Path | None = None
    resume: str = "false"
    seeds: int = 1
    result: Path | None = None
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: int | None = None
    nodes: int | None = None
    log_every: int = 20
    save_every: int | None = None
    keep: int = 2
    tensorboard: bool = True
    progress: Literal["auto", "on", "off"] = "auto"

    def for_train(self) -> dict[str, Any]:
        names = ("accelerator", "devices", "nodes", "log_every", "save_every", "keep", "tensorboard")
        resume: Any = {"false": False, "true": True}.get(self.resume.lower(), self.resume)
        progress = {"auto": None, "on": True, "off": False}[self.progress]
        return {"resume": resume, "progress": progress, **{name: getattr(self, name) for name in names}}


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    names = [word for word in arguments[:1] if not word.startswith("-")]
    if "--list" in arguments:
        return list_recipes([word for word in arguments if not word.startswith("-")])
    if not names and set(arguments) & {"-h", "--help"}:
        print(USAGE)
        return 0
    if not names:
        first = f"the first argument must be a recipe, got {arguments[0]!r}\n" if arguments else ""
        print(f"{first}{USAGE}", file=sys.stderr)
        return 2
    rest = [word for word in arguments[1:] if word != "--smoke"]
    smoke = "--smoke" in arguments
    recipe = load_recipe(names[0]) if is_file(names[0]) else _named(names[0])
    if smoke:
        recipe = parse(recipe, rest)[0].smoke()  # sizes that were not typed adapt to those that were
    original = recipe
    recipe, options = parse(recipe, rest)
    if options.folder is not None:
        check_folder("--folder", options.folder)
    try:
        with named_as_typed(recipe, rest, smoke):
            if options.seeds == 1 and options.result is None:
                return _train_one(recipe, options)
            return _train_many(recipe, options, changed_name(recipe, original, smoke))
    finally:
        shut_down()


def is_file(name: str) -> bool:
    """Whether this names a recipe of the user's own, ``file.py`` or ``file.py:name``."""
    return name.endswith(".py") or ".py:" in name


def _named(name: str) -> Recipe:
    """One of regard's own recipes."""
    path = name.replace(".", "/") + ".py"
    if name not in recipes.names() and Path(path).is_file():
        raise UnusableInputError(f"there is no recipe {name!r}; for your own file, type regard train {path}")
    return recipes.get(name)


def parse(recipe: Recipe, arguments: Sequence[str]) -> tuple[Recipe, TrainOptions]:
    """The recipe with the given fields replaced, and the other options."""
    try:
        import tyro
    except ImportError as missing:
        raise ImportError("the command line of regard train needs tyro: pip install 'regard[train]'") from missing

    @dataclass(frozen=True)
    class Command:
        options: Annotated[TrainOptions, tyro.conf.arg(name="")]
        recipe: Annotated[Recipe, tyro.conf.arg(name="")]

    with named_as_typed(recipe, arguments), unboxed_errors():
        chosen = tyro.cli(
            Command,
            default=Command(TrainOptions(), recipe),
            args=list(arguments),
            prog=f"regard train {recipe.name}",
            description=without_markup(recipes.summary(recipe.name)) if recipe.name in recipes.names() else "",
        )
    return chosen.recipe, chosen.options


def list_recipes(wanted: Sequence[str]) -> int:
    """Print all recipes with the first line of their docstring, or the whole docstring of some."""
    for name in wanted:
        if is_file(name):
            for own, summary in recipe_summaries(name).items():
                print(f"{own}\n\n{without_markup(summary) or 'its function has no docstring'}\n")
        else:
            print(f"{name}\n\n{without_markup(recipes.summary(name))}\n")
    if wanted:
        return 0
    first_lines = [(name, without_markup(recipes.summary(name).splitlines()[0])) for name in recipes.names()]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None  # a file has one line for each recipe
    print("\n".join(text_table([("recipe", "what it trains"), *first_lines], width=width)))
    return 0


def _train_one(recipe: Recipe, options: TrainOptions) -> int:
    done = train(recipe, folder=options.folder, **options.for_train())
    if not is_first_process():
        return 0
    summary = done.summary or {}
    found = summary.get("validation_accuracy")
    print(
        f"{recipe.name}: {summary.get('steps')} steps in {summary.get('train_seconds'):.1f} s"
        + (f" and {summary['compile_seconds']:.1f} s to compile" if summary.get("compile_seconds") else "")
        + ("" if found is None else f"; validation accuracy {found:.2%}")
    )
    print(f"saved in {done.folder}; next: {shlex.join(['regard', 'evaluate', str(done.folder)])}")
    return 0


def _train_many(recipe: Recipe, options: TrainOptions, name: str) -> int:
    check_positive("seeds", options.seeds)
    if options.result is not None:
        check_writable("--result", options.result)
    seeds = range(recipe.seed, recipe.seed + options.seeds)
    folder = options.folder or Path("runs") / (recipe.name if options.seeds == 1 else f"{recipe.name}-seeds")
    settings = options.for_train()

    def keep(so_far: SeedRuns) -> None:
        """Write the result of the seeds so far, so that nothing is lost if a later one is interrupted."""
        if options.result is not None and so_far.runs and is_first_process():
            write_result(so_far, options.result, name=name)
            if options.seeds > 1:
                print(f"{so_far} after {len(so_far.runs)} of {options.seeds} seeds", file=sys.stderr, flush=True)

    if options.seeds == 1:
        one = train(recipe, folder=options.folder, **settings)
        done = SeedRuns(recipe, (recipe.seed,), {recipe.seed: one})
        done.evaluations[recipe.seed] = evaluate_run(one, accelerator=options.accelerator)
        keep(done)
    else:
        done = train_seeds(
            recipe, seeds, folder=folder, evaluate=options.result is not None, after_each=keep, **settings
        )
    if is_first_process():
        print(done)
        if options.result is not None and done.runs:
            print(f"written to {options.result}", file=sys.stderr)
    return 0 if done.runs and not done.errors else 1
