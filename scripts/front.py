"""Draw accuracy on CIFAR-10 against seconds of training, from the files under benchmarks/results.

    python scripts/front.py            # docs/images/front.png

Published records have their source in PUBLISHED; everything else was measured here.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parent))
from results import Result, load

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "front.png"
OURS = ("cifar10-speedrun", "cifar10-95", "cifar10-96", "cifar10-transformer", "cifar10-best")
# (seconds on one NVIDIA A100, test accuracy in % with test-time averaging): the table of
# https://github.com/KellerJordan/cifar10-airbench, whose methods are described in https://arxiv.org/abs/2404.00498
PUBLISHED = {
    "airbench94_muon": (2.59, 94.01),
    "airbench95": (10.4, 95.01),
    "airbench96_faster": (27.3, 96.00),
}


def points(results: Sequence[Result]) -> dict[str, list[tuple[str, float, float]]]:
    """(name with the number of seeds, mean seconds, mean accuracy in %) by kind: the latest file of each recipe."""
    latest = {result["recipe"]: result for result in results if "H200" in result["hardware"] and "recipe" in result}
    found = {
        "attention by position, H200": [_point(name, latest[name]) for name in OURS if name in latest],
        "convolutions, H200": [_point(name, latest[name]) for name in ("resnet18-short",) if name in latest],
        "convolutions, published, A100, averaged at test time": [(name, *at) for name, at in PUBLISHED.items()],
    }
    for twin in [result for result in results if result.get("benchmark") == "pyramid-twin"][-1:]:
        # Its time is from runs that had the card to themselves, its accuracy from as many seeds as there are.
        more = latest.get("cifar10-speedrun (network.mixing convolution)", {})
        measured = {key: more[key] for key in ("accuracy", "seeds") if key in more}
        found["convolutions, H200"] += [_point("speedrun with convolutions", row | measured) for row in twin["rows"]]
    return found


def _point(name: str, result: dict[str, Any]) -> tuple[str, float, float]:
    seeds = len(result["seeds"])
    return f"{name} ({seeds} seed{'s' * (seeds > 1)})", mean(result["train_seconds"]), 100 * mean(result["accuracy"])


def draw(results: Sequence[Result]) -> Any:
    figure, axes = plt.subplots(figsize=(8.5, 4.8), layout="constrained")
    styles = (("o", "#2f6fb0"), ("s", "#b0562f"), ("x", "#777777"))
    for number, ((kind, found), (marker, color)) in enumerate(zip(points(results).items(), styles, strict=True)):
        beside = (6, -11) if number else (6, 5)  # ours above their points, the others below: so they do not meet
        found = sorted(found, key=lambda point: point[1])
        seconds, accuracy = [point[1] for point in found], [point[2] for point in found]
        axes.scatter(seconds, accuracy, marker=marker, color=color, label=kind, zorder=3)
        for name, x, y in found:
            axes.annotate(name, (x, y), xytext=beside, textcoords="offset points", fontsize=8, color=color)
    axes.set_xscale("log")
    axes.set_xlim(right=1.6e3)  # room for the last label
    axes.set_xticks([2, 5, 10, 20, 50, 100, 200, 500], labels=["2", "5", "10", "20", "50", "100", "200", "500"])
    axes.set(xlabel="seconds of training, compilation not counted", ylabel="test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    return figure


def save(draw: Callable[[Sequence[Result]], Any], picture: Path, description: str | None) -> None:
    """The command line of a script that draws one picture from all result files."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=picture)
    options = parser.parse_args()
    draw(load()).savefig(options.output, dpi=180)
    print(options.output)


if __name__ == "__main__":
    save(draw, PICTURE, __doc__)
