"""Which parts of cifar10-transformer matter? Each row changes one thing; validation images from the training set decide.

    python benchmarks/ablation.py                       # a GPU; all rows, 8 epochs, two seeds
    python benchmarks/ablation.py --names speedrun flat # some of them; finished runs in --folder are reused

With --smoke or --epochs the runs and the result go to a separate folder under runs/.
``plan`` rows compute the same function by another method: only their times differ.
"""

import argparse
import dataclasses
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import torch

from _measure import dashed, hardware, places, positive, print_table, trial, write_rows
from regard import recipes
from regard.training import AdamWSettings, ImageEncoderSettings, Recipe, train_seeds

EPOCHS = 8
replace = dataclasses.replace


@dataclass(frozen=True)
class DenseEncoder(ImageEncoderSettings):
    """An encoder whose heads form their whole maps."""

    plan: ClassVar[str] = "dense"

    def build(self, task: Any) -> torch.nn.Module:
        network = super().build(task)
        for module in network.modules():
            if hasattr(module, "plan"):
                module.plan = self.plan
        return network


@dataclass(frozen=True)
class SeparableEncoder(DenseEncoder):
    """An encoder whose heads work along one axis after the other."""

    plan: ClassVar[str] = "separable"


def network(**changes: Any) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(recipe, network=replace(recipe.network, **changes))


def planned(kind: type[ImageEncoderSettings]) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(recipe, network=kind(**dataclasses.asdict(recipe.network)))


Rows = dict[str, tuple[str, Callable[[Recipe], Recipe]]]  # what is changed, and how

ROWS: Rows = {
    "speedrun": ("as it is", lambda recipe: recipe),
    "normal": ("init: heads anywhere", network(init="normal")),
    "flat": ("no merging: 6 blocks of 384 on 16×16", network(dim=384, depth=6, head_dim=64, hidden=1536, merge=())),
    "width-16": ("heads half as wide", network(head_dim=16)),
    "full-width": ("every head reads the whole token", network(head_dim=None, full_width=True)),
    "no-decay": ("no weight decay", lambda recipe: replace(recipe, optimizer=replace(recipe.optimizer, matrix_weight_decay=0.0))),
    "adamw": ("AdamW alone", lambda recipe: replace(recipe, optimizer=AdamWSettings(2e-3, weight_decay=0.05, center_factor=5.0))),
    "diagonal": ("covariance: a sharpness per axis", network(attention="gaussian-diagonal")),
    "full": ("covariance: a matrix per head", network(attention="gaussian-full")),
    "gated": ("a gate with content, 8 heads", network(attention="gated", heads=8, head_dim=None, init="normal")),
    "depthwise": ("a depthwise convolution instead of heads", network(attention="depthwise", init="normal")),
    "dense": ("plan: whole maps", planned(DenseEncoder)),
    "no-kernels": ("plan: separable, without our kernels", planned(SeparableEncoder)),
}  # fmt: skip


def main(benchmark: str = "ablation", rows_of: Rows = ROWS, description: str = __doc__) -> None:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--names", nargs="+", default=list(rows_of), choices=list(rows_of))
    parser.add_argument("--epochs", type=positive, help=f"default: {EPOCHS}; 2 with --smoke")
    parser.add_argument("--seeds", type=positive, default=2)
    parser.add_argument(
        "--folder", type=Path, help=f"folder of the runs; default runs/{benchmark}, or a separate one for a trial"
    )
    parser.add_argument(
        "--output", type=Path, help="result file; default in benchmarks/results, or in --folder for a trial"
    )
    parser.add_argument("--smoke", action="store_true", help="a trial of about a minute on a CPU")
    options = parser.parse_args()
    tried = trial(options)
    options.folder, output = places(benchmark, options)
    if options.output is None:
        output = output / f"{dashed(benchmark, tried)}-{date.today().isoformat()}.json"
    torch._dynamo.config.recompile_limit = 64
    rows = [measure(name, rows_of, options) for name in options.names]
    print_table(rows, ["row", "what", "parameters", "held out", "deviation", "ms / step"])
    if failed := [row["row"] for row in rows if row["parameters"] is None]:
        raise SystemExit(f"no result is written: of {', '.join(failed)} every seed failed, as said above")
    machine = hardware("cuda" if torch.cuda.is_available() else "cpu")
    epochs = recipe_of(rows_of[options.names[0]][1], epochs=options.epochs, smoke=options.smoke).epochs
    title = f"{benchmark} ({tried})" if tried else benchmark
    print(write_rows(title, output, rows, machine, epochs=epochs, seeds=options.seeds))


def recipe_of(change: Callable[[Recipe], Recipe], *, epochs: int | None = None, smoke: bool = False) -> Recipe:
    """The recipe with a row's change, on less than the training set, measured at its end alone."""
    recipe = change(recipes.get("cifar10-transformer"))
    if smoke:
        recipe = recipe.smoke()
    else:
        recipe = replace(recipe, epochs=EPOCHS, task=replace(recipe.task, validation=5000))
    epochs = epochs or recipe.epochs
    return replace(recipe, epochs=epochs, evaluate_every=epochs)


def measure(name: str, rows_of: Rows, options: argparse.Namespace) -> dict[str, Any]:
    recipe = recipe_of(rows_of[name][1], epochs=options.epochs, smoke=options.smoke)
    os.environ["REGARD_KERNELS"] = "0" if name == "no-kernels" else "1"
    torch.compiler.reset()
    runs = train_seeds(
        recipe, range(options.seeds), folder=options.folder / name, resume="auto", tensorboard=False, log_every=100,
        progress=False,
    )  # fmt: skip
    print(name, runs, flush=True)
    summaries = [run.summary or {} for run in runs.runs.values()]
    accuracy = [100 * value for value in runs.accuracy()]
    milliseconds = [1e3 * summary["train_seconds"] / summary["steps"] for summary in summaries]
    return {
        "row": name,
        "what": rows_of[name][0],
        "parameters": summaries[0].get("parameters") if summaries else None,
        "seeds": list(runs.runs),
        "accuracy": runs.accuracy(),
        "held out": round(statistics.mean(accuracy), 2) if accuracy else None,
        "deviation": round(statistics.stdev(accuracy), 2) if len(accuracy) > 1 else None,
        "ms / step": round(statistics.median(milliseconds), 2) if milliseconds else None,
        "failed": runs.errors or None,
    }


if __name__ == "__main__":
    main()
