"""Convolutions instead of Gaussian heads: where do they win, and what closes the gap? Judged by held-out images.

    python benchmarks/rival.py --seeds 5                             # a GPU; all rows, 8 epochs
    python benchmarks/rival.py --names pyramid pyramid-convolution   # some of them

Three networks, each beside its twin with convolutions: the pyramid of cifar10-speedrun, the transformer of
cifar10-transformer, and the 2020 paper's network by the short recipe.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ablation import Rows, main
from regard import recipes
from regard.data import Augmentation
from regard.layers import GaussianHeads
from regard.training import AdamWSettings, ImageEncoderSettings, MuonSettings, Recipe


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


@dataclass(frozen=True)
class SharpenedEncoder(ImageEncoderSettings):
    """An encoder whose heads start with another sharpness than that of their ``init``."""

    sharpness: float = 5.0

    def build(self, task: Any) -> torch.nn.Module:
        usual = {field.name: getattr(self, field.name) for field in dataclasses.fields(ImageEncoderSettings)}
        network = ImageEncoderSettings(**usual).build(task)
        for module in network.modules():
            if isinstance(module, GaussianHeads):
                torch.nn.init.constant_(module.log_sharpness, math.log(self.sharpness))
        return network


def sharpened(recipe: str, sharpness: float, **changes: Any) -> Callable[[Recipe], Recipe]:
    """A recipe of its own whose heads start with this sharpness."""

    def change(_: Recipe) -> Recipe:
        found = recipes.get(recipe)
        network = SharpenedEncoder(**dataclasses.asdict(found.network) | changes, sharpness=sharpness)
        return replace(found, network=network)

    return change


def augmented(change: Callable[[Recipe], Recipe]) -> Callable[[Recipe], Recipe]:
    """The same with the augmentation of ``cifar10-best``, for long training."""

    def stronger(recipe: Recipe) -> Recipe:
        found = change(recipe)
        strong = Augmentation(crop=4, flip="alternate", cutmix=0.3, trivial_augment=True)
        return replace(found, task=replace(found.task, augmentation=strong))

    return stronger


PYRAMID, PAPER = "cifar10-speedrun", "a6-gaussian-short"
GATED = of("cifar10-transformer", attention="gated", heads=9, dim=288, head_dim=None)
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
    "transformer-gated": ("transformer: gated heads that start on the grid", GATED),
    "transformer-augmented": ("transformer: 9 heads of width 32, TrivialAugment and cutmix", augmented(lambda recipe: recipe)),
    "transformer-gated-augmented": ("transformer: gated heads that start on the grid, TrivialAugment and cutmix",
                                    augmented(GATED)),
    "transformer-adamw-5e-4": ("transformer: AdamW alone, rate 5e-4", adamw(5e-4)),
    "transformer-adamw-1e-3": ("transformer: AdamW alone, rate 1e-3", adamw(1e-3)),
    "transformer-adamw-4e-3": ("transformer: AdamW alone, rate 4e-3", adamw(4e-3)),
    "paper": ("2020 paper: heads that start anywhere", of(PAPER)),
    "paper-grid": ("2020 paper: heads that start on the grid", of(PAPER, init="grid")),
    "paper-sharp": ("2020 paper: sharp heads that start anywhere", sharpened(PAPER, 5.0)),
    "paper-grid-wide": ("2020 paper: wide heads that start on the grid", sharpened(PAPER, 0.5, init="grid")),
    "paper-depthwise": ("2020 paper: depthwise convolutions", of("a6-depthwise-short")),
}  # fmt: skip

if __name__ == "__main__":
    main("rival", ROWS, __doc__)
