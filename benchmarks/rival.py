"""Convolutions instead of Gaussian heads: where do they win, and what closes the gap? Judged by held-out images.

    python benchmarks/rival.py --seeds 5                             # a GPU; all rows, 8 epochs
    python benchmarks/rival.py --names pyramid pyramid-convolution   # some of them

Three networks, each beside its twin with convolutions: the pyramid of cifar10-speedrun, the transformer of
cifar10-transformer, and the 2020 paper's network by the short recipe.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ablation import Rows, main
from regard import recipes
from regard.training import AdamWSettings, MuonSettings, Recipe


def of(recipe: str, **changes: Any) -> Callable[[Recipe], Recipe]:
    """A recipe of its own, whatever is passed, with changes of the network."""

    def change(_: Recipe) -> Recipe:
        found = recipes.get(recipe)
        return replace(found, network=replace(found.network, **changes))

    return change


def learning(recipe: str, **changes: Any) -> Callable[[Recipe], Recipe]:
    """A recipe of its own with changes of the optimizer."""

    def change(_: Recipe) -> Recipe:
        found = recipes.get(recipe)
        return replace(found, optimizer=replace(found.optimizer, **changes))

    return change


def adamw(learning_rate: float) -> Callable[[Recipe], Recipe]:
    def change(recipe: Recipe) -> Recipe:
        return replace(recipe, optimizer=AdamWSettings(learning_rate, weight_decay=0.05, center_factor=5.0))

    return change


def sharper(factor: float) -> Callable[[Recipe], Recipe]:
    """Centers at another multiple of the learning rate."""

    def change(recipe: Recipe) -> Recipe:
        assert isinstance(recipe.optimizer, MuonSettings)
        return replace(recipe, optimizer=replace(recipe.optimizer, center_factor=factor))

    return change


PYRAMID, PAPER = "cifar10-speedrun", "a6-gaussian-short"
ROWS: Rows = {
    "pyramid": ("pyramid: 9 full-width heads", of(PYRAMID)),
    "pyramid-convolution": ("pyramid: 3×3 convolutions", of(PYRAMID, mixing="convolution")),
    "pyramid-4": ("pyramid: 4 heads", of(PYRAMID, heads=4)),
    "pyramid-16": ("pyramid: 16 heads", of(PYRAMID, heads=16)),
    "pyramid-still": ("pyramid: centers that do not move", learning(PYRAMID, center_factor=0.0)),
    "transformer": ("transformer: 9 heads of width 32", lambda recipe: recipe),
    "transformer-depthwise": ("transformer: depthwise convolutions",
                              of("cifar10-transformer", attention="depthwise", init="normal")),
    "transformer-25": ("transformer: 25 heads of width 12", of("cifar10-transformer", heads=25, head_dim=12)),
    "transformer-36": ("transformer: 36 heads of width 8", of("cifar10-transformer", heads=36, head_dim=8)),
    "transformer-signed": ("transformer: two Gaussians of either sign in each head",
                           of("cifar10-transformer", attention="signed")),
    "transformer-slow": ("transformer: centers at the others' rate", sharper(1.0)),
    "transformer-fast": ("transformer: centers at 20 times the rate", sharper(20.0)),
    "transformer-gated": ("transformer: gated heads that start on the grid",
                          of("cifar10-transformer", attention="gated", heads=9, dim=288, head_dim=None)),
    "transformer-adamw-5e-4": ("transformer: AdamW alone, rate 5e-4", adamw(5e-4)),
    "transformer-adamw-1e-3": ("transformer: AdamW alone, rate 1e-3", adamw(1e-3)),
    "transformer-adamw-4e-3": ("transformer: AdamW alone, rate 4e-3", adamw(4e-3)),
    "paper": ("2020 paper: heads that start anywhere", of(PAPER)),
    "paper-grid": ("2020 paper: heads that start on the grid", of(PAPER, init="grid")),
    "paper-depthwise": ("2020 paper: depthwise convolutions", of("a6-depthwise-short")),
}  # fmt: skip

if __name__ == "__main__":
    main("rival", ROWS, __doc__)
