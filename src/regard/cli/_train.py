"""``regard train NAME``: train a network by a recipe, any field of which can be set on the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from regard import recipes
from regard.training import Recipe, evaluate_run, shut_down, train, train_seeds, write_result
from regard.training._fabric import is_first_process
from regard.training._progress import say
from regard.training._recipe import described
from regard.training._results import SeedRuns

USAGE = """usage: regard train NAME [--smoke] [--field value …]      (regard train NAME --help lists all fields)
       regard train --list [NAME]                         (which recipes there are, and what one says)"""


@dataclass(frozen=True)
class Options:
    """How and where; the recipe alone decides what comes out (docs/guides/machines.md has three exceptions).

    Args:
        folder: of the run; by default runs/NAME, with a number where that is taken.
        resume: false, true (go on from the folder's last checkpoint), auto (so where there is one), or the path of a
            run or checkpoint to go on from.
        seeds: train with so many seeds, from the recipe's own on, each in a folder of its own; one that fails does not
            stop the others.
        result: measure on the test set at the end, and write a result file there.
        accelerator: what to run on.
        devices: how many on each node, where torchrun or SLURM do not say.
        nodes: how many, where torchrun or SLURM do not say.
        log_every: steps between looks at the device's numbers.
        save_every: steps between checkpoints; by default one comes with each evaluation.
        keep: how many of the last checkpoints are kept, besides the best.
        tensorboard: whether to write for TensorBoard.
        progress: a progress bar; auto shows it on a terminal.
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
    """The command's exit code."""
    names = [word for word in arguments[:1] if not word.startswith("-")]
    if "--list" in arguments:
        return list_recipes([word for word in arguments if not word.startswith("-")])
    if not names:
        print(USAGE)
        return 0 if set(arguments) & {"-h", "--help"} else 2
    recipe = recipes.get(names[0])
    rest = list(arguments[1:])
    if "--smoke" in rest:
        rest.remove("--smoke")
        recipe = recipe.smoke()
    followed = recipe
    recipe, options = parse(recipe, rest)
    try:
        if options.seeds == 1 and options.result is None:
            return _train_one(recipe, options)
        return _train_many(recipe, options, described(recipe, followed, "--smoke" in arguments))
    finally:
        shut_down()


def parse(recipe: Recipe, arguments: Sequence[str]) -> tuple[Recipe, Options]:
    """The recipe with the fields that are given replaced, and the other options."""
    try:
        import tyro
    except ImportError as missing:
        raise ImportError("the command line of regard train needs tyro: pip install 'regard[train]'") from missing

    @dataclass(frozen=True)
    class Command:
        options: Annotated[Options, tyro.conf.arg(name="")]
        recipe: Annotated[Recipe, tyro.conf.arg(name="")]

    chosen = tyro.cli(
        Command,
        default=Command(Options(), recipe),
        args=list(arguments),
        prog=f"regard train {recipe.name}",
        description=_plain(recipes.summary(recipe.name)) if recipe.name in recipes.names() else "",
    )
    return chosen.recipe, chosen.options


def list_recipes(wanted: Sequence[str]) -> int:
    """All recipes with the first line of what they say; or all that some of them say."""
    for name in wanted:
        print(f"{name}\n\n{_plain(recipes.summary(name))}\n")
    if wanted:
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("recipe", "what it trains", box=None)
    for name in recipes.names():
        table.add_row(name, _plain(recipes.summary(name).splitlines()[0]))
    Console().print(table)
    return 0


def _plain(text: str) -> str:
    """Without the marks that a docstring has around code."""
    return text.replace("``", "")


def _train_one(recipe: Recipe, options: Options) -> int:
    done = train(recipe, folder=options.folder, **options.for_train())
    if not is_first_process():
        return 0
    summary = done.summary or {}
    found = summary.get("validation_accuracy")
    print(
        f"{recipe.name}: {summary.get('steps')} steps in {summary.get('train_seconds'):.1f} s"
        + (f", and {summary['compile_seconds']:.1f} s to compile" if summary.get("compile_seconds") else "")
        + ("" if found is None else f"; {found:.2%} right on what was held out")
    )
    print(f"in {done.folder}; next: regard evaluate {done.folder}")
    return 0


def _train_many(recipe: Recipe, options: Options, name: str) -> int:
    seeds = range(recipe.seed, recipe.seed + options.seeds)
    folder = options.folder or Path("runs") / (recipe.name if options.seeds == 1 else f"{recipe.name}-seeds")
    settings = options.for_train()
    if options.seeds == 1:
        one = train(recipe, folder=options.folder, **settings)
        done = SeedRuns(recipe, (recipe.seed,), {recipe.seed: one})
        done.evaluations[recipe.seed] = evaluate_run(one, accelerator=options.accelerator)
    else:
        done = train_seeds(recipe, seeds, folder=folder, evaluate=options.result is not None, **settings)
    if is_first_process():
        print(done)
        if options.result is not None and done.runs:
            write_result(done, options.result, name=name)
            say(f"written to {options.result}")
    return 0 if done.runs and not done.errors else 1
