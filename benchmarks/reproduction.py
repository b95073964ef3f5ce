"""Do the 2020 paper's variants reproduce, and does a depthwise convolution do as well?

Each network by one short, equal recipe, several seeds, on the official test set.

    python benchmarks/reproduction.py                                  # a GPU; the seven networks, three seeds each
    python benchmarks/reproduction.py --epochs 10 --seeds 3
    python benchmarks/reproduction.py --names a6-gaussian resnet18

Every network's result file has the form of all trained recipes; the table goes into one more.
"""

import argparse
import dataclasses
import statistics
from datetime import date
from pathlib import Path
from typing import Any

import torch

import regard
from _measure import RESULTS, hardware, print_table, write_rows
from regard import recipes
from regard.training import Recipe, train_seeds, write_result

# What the paper's table says, after 300 epochs of its own recipe (per cent).
PUBLISHED = {
    "resnet18": 93.8,
    "a6-gaussian": 93.8,
    "a6-general": 93.8,
    "a6-learned": 91.8,
    "a6-content": 87.1,
    "a6-gated": None,
    "a6-depthwise": None,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="+", default=list(PUBLISHED), choices=list(PUBLISHED))
    parser.add_argument("--epochs", type=int, help="default: the short recipe's own")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs") / "reproduction")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="try it out in a minute, on a CPU")
    options = parser.parse_args()
    torch._dynamo.config.recompile_limit = 64
    rows = [measure(name, options) for name in options.names]
    print_table(rows, list(rows[0]))
    machine = hardware("cuda" if torch.cuda.is_available() else "cpu")
    path = options.output / f"reproduction-{date.today().isoformat()}.json"
    print(write_rows("reproduction", path, rows, machine, seeds=options.seeds))


def recipe_of(name: str, *, epochs: int | None = None, smoke: bool = False) -> Recipe:
    """The network's short recipe, measured at its end alone."""
    recipe = recipes.get(f"{name}-short")
    if smoke:
        recipe = recipe.smoke()
    epochs = epochs or recipe.epochs
    return dataclasses.replace(recipe, epochs=epochs, evaluate_every=epochs)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    recipe = recipe_of(name, epochs=options.epochs, smoke=options.smoke)
    folder = options.folder / name
    runs = train_seeds(
        recipe, range(options.seeds), folder=folder, resume="auto", evaluate=True, tensorboard=False, log_every=100
    )
    print(runs, flush=True)
    result = write_result(runs, options.output / f"{recipe.name}-{date.today().isoformat()}.json")
    with torch.device("meta"):
        network = recipe.network.build(recipe.task)
    counted = regard.cost(network, (1, *recipe.task.shape))
    accuracy = [100 * value for value in result["accuracy"]]
    return {
        "network": name,
        "parameters": result["parameters"],
        "multiply-adds (M)": round(counted.multiply_adds / 1e6),
        "accuracy": round(statistics.mean(accuracy), 2),
        "deviation": round(statistics.stdev(accuracy), 2) if len(accuracy) > 1 else None,
        "seeds": len(accuracy),
        "seconds": round(statistics.mean(result["train_seconds"]), 1),
        "epochs": recipe.epochs,
        "published, 300 epochs": PUBLISHED[name],
    }


if __name__ == "__main__":
    main()
