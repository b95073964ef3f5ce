"""Can the networks of the 2020 paper be reproduced, and is a depthwise convolution as good?

Each network is trained with the same short recipe and several seeds, and evaluated on the official test set.

    python benchmarks/reproduction.py                                  # a GPU; the seven networks, three seeds each
    python benchmarks/reproduction.py --epochs 30 --seeds 1            # runs and results go to a separate folder
    python benchmarks/reproduction.py --names a6-gaussian resnet18
    python benchmarks/reproduction.py --full --names a6-gaussian --seeds 1   # the paper's own recipe, 300 epochs
    python benchmarks/reproduction.py --collect                        # make the table from existing result files

Every network has a result file like all trained recipes, and the table has one more. Results of the paper's own recipe (--full)
join the table when it is next made. With --smoke or --epochs all files go to a separate folder under runs/, not to the
results that the documentation shows.
"""

import argparse
import dataclasses
import json
import statistics
from datetime import date
from pathlib import Path
from typing import Any

import torch

import regard
from _measure import dashed, places, positive, print_table, trial, write_rows
from regard import recipes
from regard.training import Recipe, changed_name, train_seeds, write_result

# Accuracy in per cent from the table of the paper, after 300 epochs of its own recipe.
PUBLISHED = {
    "resnet18": 93.8,
    "a6-gaussian": 93.8,
    "a6-general": 93.8,
    "a6-learned": 91.8,
    "a6-content": 87.1,
    "a6-gated": None,
    "a6-depthwise": None,
}
MEASURED_EVERY = 25  # epochs of the 300: each time a checkpoint is written, from which an interrupted run resumes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="+", default=list(PUBLISHED), choices=list(PUBLISHED))
    parser.add_argument("--epochs", type=positive, help="default: as in the short recipe")
    parser.add_argument("--seeds", type=positive, default=3)
    parser.add_argument("--full", action="store_true", help="the paper's own recipe instead of the short one")
    parser.add_argument(
        "--folder", type=Path, help="folder of the runs; default runs/reproduction, or a separate one for a trial"
    )
    parser.add_argument(
        "--output", type=Path, help="folder of the results; default benchmarks/results, or --folder for a trial"
    )
    parser.add_argument(
        "--collect", action="store_true", help="train nothing; make the table from existing result files"
    )
    parser.add_argument("--smoke", action="store_true", help="a trial of about a minute on a CPU")
    options = parser.parse_args()
    options.folder, options.output = places("reproduction", options)
    torch._dynamo.config.recompile_limit = 64
    if options.full and options.collect:
        parser.error("--full trains and --collect trains nothing: choose one (--collect reads results of both recipes)")
    if options.full:
        train_in_full(options)
        return
    results = {name: found(name, options) if options.collect else trained(name, options) for name in options.names}
    in_full = {name: newest(name, options) for name in results}
    rows = [row(name, result, in_full[name], options) for name, result in results.items() if result is not None]
    if rows:
        print_table(rows, list(rows[0]))
    if failed := [name for name, result in results.items() if result is None]:
        raise SystemExit(f"no table is written: of {', '.join(failed)} every seed failed, as said above")
    if set(results) != set(PUBLISHED) and not trial(options):
        print("no table is written, since --names leaves networks out; --collect makes it from the result files of all")
        return
    used = [result for result in (*results.values(), *in_full.values()) if result is not None]
    machines, measured = {result["hardware"] for result in used}, max(result["date"] for result in used)
    tried = trial(options)
    path = options.output / f"{dashed('reproduction', tried)}-{measured}.json"
    elsewhere = {"torch": None} if options.collect else {}  # that of this machine says nothing about the runs
    title = f"reproduction ({tried})" if tried else "reproduction"
    print(write_rows(title, path, rows, ", ".join(sorted(machines)), date=measured, **elsewhere))


def train_in_full(options: argparse.Namespace) -> None:
    """Train by the paper's own recipe; write a result file for each network."""
    without = [name for name in options.names if name not in recipes.names()]
    if without:
        raise SystemExit(f"the paper has no recipe for {', '.join(without)}: leave them out of --names")
    results = {name: trained(name, options) for name in options.names}
    if failed := [name for name, result in results.items() if result is None]:
        raise SystemExit(f"of {', '.join(failed)} every seed failed, as said above")


def recipe_of(name: str, *, epochs: int | None = None, smoke: bool = False, full: bool = False) -> Recipe:
    """The network's short recipe, measured at its end alone; or the paper's own, measured on the way, too."""
    recipe = recipes.get(name if full else f"{name}-short")
    if smoke:
        recipe = recipe.smoke()
    epochs = recipe.epochs if epochs is None else epochs
    return dataclasses.replace(recipe, epochs=epochs, evaluate_every=min(epochs, MEASURED_EVERY) if full else epochs)


def named(name: str, recipe: Recipe, *, smoke: bool = False, full: bool = False) -> str:
    """The recipe's name, with what was changed; how often it is measured on the way changes nothing."""
    followed = dataclasses.replace(recipe_of(name, smoke=smoke, full=full), evaluate_every=recipe.evaluate_every)
    return changed_name(recipe, followed, smoke)


def trained(name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Train every seed that is not finished yet; what the result file says, or None where every seed failed."""
    recipe = recipe_of(name, epochs=options.epochs, smoke=options.smoke, full=options.full)
    runs = train_seeds(
        recipe, range(options.seeds), folder=options.folder / (f"{name}-full" if options.full else name), resume="auto",
        evaluate=True, tensorboard=False, log_every=100,
    )  # fmt: skip
    print(runs, flush=True)
    if not runs.runs:
        return None
    path = options.output / f"{dashed(recipe.name, trial(options))}-{date.today().isoformat()}.json"
    return write_result(runs, path, name=named(name, recipe, smoke=options.smoke, full=options.full))


def found(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The newest result file of the short recipe."""
    result = newest(f"{name}-short", options)
    if result is None:
        kept = dashed(f"{name}-short", trial(options))
        raise SystemExit(f"{options.output} has no result file of {kept}: leave out --collect to train it")
    return result


def newest(recipe: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """The newest result file of a recipe."""
    files = sorted(options.output.glob(f"{dashed(recipe, trial(options))}-[0-9]*.json"))
    return json.loads(files[-1].read_text("utf-8")) if files else None


def row(name: str, result: dict[str, Any], full: dict[str, Any] | None, options: argparse.Namespace) -> dict[str, Any]:
    """A row of the table, from the results of the short recipe and of the paper's own."""
    recipe = recipe_of(name, epochs=options.epochs, smoke=options.smoke)
    network = recipe.network.build(recipe.task)
    counted = regard.cost(network, (1, *recipe.task.image_shape))
    accuracy = [100 * value for value in result["accuracy"]]
    in_full = [100 * value for value in full["accuracy"]] if full else []
    # None where other programs shared the GPU:
    seconds, seconds_in_full = (
        [x for x in (one or {}).get("train_seconds", ()) if x is not None] for one in (result, full)
    )
    return {
        "network": name,
        "parameters": result["parameters"],
        "multiply-adds (M)": round(counted.multiply_adds / 1e6),
        "accuracy": round(statistics.mean(accuracy), 2),
        "deviation": round(statistics.stdev(accuracy), 2) if len(accuracy) > 1 else None,
        "seeds": len(accuracy),
        "seconds": round(statistics.mean(seconds), 3) if seconds else None,
        "epochs": len(result["log"][0]),
        "published, 300 epochs": PUBLISHED[name],
        "ours, 300 epochs": round(statistics.mean(in_full), 2) if in_full else None,
        "seeds, 300 epochs": len(in_full),
        "seconds, 300 epochs": round(statistics.mean(seconds_in_full), 1) if seconds_in_full else None,
    }


if __name__ == "__main__":
    main()
