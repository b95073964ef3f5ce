"""Convolution against attention on little data: the same network, with one or the other between its tokens."""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import layers
from regard.claims._claim import Effort, Evidence, holds
from regard.claims._pictures import curves
from regard.claims._training import class_accuracy, fit_classes, images


class LittleDataRuns(NamedTuple):
    """How large the runs are."""

    sizes: tuple[int, ...]
    seeds: tuple[int, ...]
    steps: int


PLANS: dict[Effort, LittleDataRuns] = {
    "full": LittleDataRuns((50, 200, 800, 3200), (0, 1), 200),
    "smoke": LittleDataRuns((10, 20), (0,), 2),
}
LITTLE = 200  # up to here data are called little


class Neighbors(nn.Module):
    """A 3×3 convolution among the tokens of a 7×7 grid, then a linear layer, as attention has one."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(dim, dim, 3, padding=1, groups=4)
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.mix(x.mT.unflatten(2, (7, 7))).flatten(2).mT)


def network(kind: str, dim: int = 64, depth: int = 4) -> nn.Module:
    """Patches of 4×4, blocks with ``"convolution"`` or ``"attention"`` between tokens (which then know their place)."""
    blocks = [
        layers.EncoderBlock(dim, 4, 2 * dim, attention=Neighbors(dim) if kind == "convolution" else None)
        for _ in range(depth)
    ]
    places = [] if kind == "convolution" else [layers.AbsolutePositionalEmbedding(dim, (7, 7))]
    patches = layers.PatchEmbedding(4, dim, channels=1)
    return nn.Sequential(patches, *places, *blocks, layers.LayerNorm(dim), layers.AveragePooling(), nn.Linear(dim, 10))


@cache
def accuracies(effort: Effort) -> dict[str, dict[int, list[float]]]:
    """By kind and number of training images, one validation accuracy per seed."""
    plan, data = PLANS[effort], images(effort)
    found: dict[str, dict[int, list[float]]] = {}
    for kind in ("convolution", "attention"):
        for size in plan.sizes:
            for seed in plan.seeds:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    model = network(kind)
                fit_classes(model, *data.some(size, seed), steps=plan.steps, rate=2e-3, seed=seed)
                found.setdefault(kind, {}).setdefault(size, []).append(class_accuracy(model, data))
    return found


@holds(
    "c182-cnn-bias",
    "question 3 (b)",
    says="convolution",
    mutant=("attention wins on little data", "attention"),
    slow=True,
)
def cnn_bias(winner: str, effort: Effort = "full") -> Evidence:
    r"""On little data, convolution's inductive bias makes it better than attention.

    A convolution looks at neighbors, and in the same way everywhere; attention has to learn both. To compare only
    this difference, the check trains one network twice: patches, four blocks and an average, with a grouped 3×3
    convolution between tokens or with four heads of self-attention and learned positions (which has the more
    parameters). On 50 and 200 images of ten kinds of clothing convolution is ahead by more than two points with every
    seed. The curve shows how the distance changes with more images.
    """
    found, loser = accuracies(effort), "attention" if winner == "convolution" else "convolution"
    sizes = list(found[winner])
    little = [size for size in sizes if size <= LITTLE]
    pairs = [pair for size in little for pair in zip(found[winner][size], found[loser][size], strict=True)]
    wins = all(ahead > behind + 0.02 for ahead, behind in pairs)
    mean = {kind: {size: sum(a) / len(a) for size, a in by.items()} for kind, by in found.items()}
    line = ", ".join(f"{mean['convolution'][n]:.0%} against {mean['attention'][n]:.0%} on {n} images" for n in sizes)
    counts = {kind: sum(p.numel() for p in network(kind).parameters()) for kind in found}
    numbers = {"images": sizes, **{kind: list(mean[kind].values()) for kind in mean}, "parameters": counts}
    series = {kind: (list(map(float, sizes)), list(by.values())) for kind, by in mean.items()}
    draw = curves(
        "Validation accuracy, the same network otherwise", "training images", "accuracy", series, log_x=True, marks=True
    )
    return Evidence(wins, f"convolution against attention: {line}", numbers, "" if wins else line, draw)
