"""Draw the accuracy of networks with heads and with convolutions, a dot for each seed, from the files under benchmarks/results.

python scripts/rival.py            # docs/images/rival.png
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parent))
from front import save

from results import PAIRS, Result, rivals_by_epochs

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "rival.png"
HEADS, CONVOLUTIONS = "#2f6fb0", "#b0562f"


def panels(results: Sequence[Result]) -> dict[str, dict[str, list[float]]]:
    """Accuracies in %, one for each seed, by network and by what mixes its tokens. Rows that change the optimizer stay out, and
    so do networks with a single row, which compare nothing."""
    by_recipe = {result["recipe"]: result for result in results if "recipe" in result}
    found = {
        network: {what: [100 * x for x in by_recipe[recipe]["accuracy"]] for what, recipe in pair.items()}
        for network, pair in PAIRS.items()
    }
    for rival in rivals_by_epochs(results):
        for row in rival["rows"]:
            network, _, what = row["what"].partition(": ")
            if "AdamW" not in what:
                of_network = found.setdefault(f"{network}, {rival['epochs']} epochs, held out", {})
                of_network[what] = [100 * x for x in row["accuracy"]]
    return {network: rows for network, rows in found.items() if len(rows) > 1}


def draw(results: Sequence[Result]) -> Any:
    found = panels(results)
    heights = [len(rows) for rows in found.values()]
    figure, all_axes = plt.subplots(len(found), 1, figsize=(8.5, 5.2), layout="constrained", height_ratios=heights)
    for axes, (network, rows) in zip(all_axes, found.items(), strict=True):
        for place, (what, accuracy) in enumerate(rows.items()):
            color = CONVOLUTIONS if "convolution" in what else HEADS
            axes.scatter(accuracy, [place] * len(accuracy), color=color, s=22, alpha=0.6, linewidths=0)
            axes.plot([mean(accuracy)] * 2, [place - 0.3, place + 0.3], color=color, linewidth=2)
        axes.set_yticks(range(len(rows)), labels=list(rows), fontsize=8)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_title(network, fontsize=9, loc="left")
        axes.grid(alpha=0.3, axis="x")
        axes.tick_params(axis="x", labelsize=8)
    all_axes[-1].set_xlabel("accuracy, %; each dot is a seed, each line a mean", fontsize=9)
    return figure


if __name__ == "__main__":
    save(draw, PICTURE, __doc__)
