"""Removing heads of a trained model: at once, at random, and with a little training afterwards."""

import copy
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import analysis, models
from regard.claims._claim import Effort, Evidence, holds_under
from regard.claims._pictures import curves
from regard.claims._training import Images, class_accuracy, fit_classes, images


class PruningRuns(NamedTuple):
    """How large the run is."""

    steps: int
    more_steps: int
    left: tuple[int, ...]


PLANS: dict[Effort, PruningRuns] = {
    "full": PruningRuns(400, 120, (24, 18, 12, 8, 4)),
    "smoke": PruningRuns(2, 1, (24, 12)),
}
HALF = 12


class Pruned(NamedTuple):
    """Accuracies by the number of heads left, of 24; and how importance is spread.

    Attributes: at_once: the least important heads removed, nothing else done. at_random: heads removed at random,
    then trained a little. trained: the least important heads removed, then trained a little. With all 24 left:
    trained as long. top_quarter: the share of all importance that the six most important heads have.
    """

    at_once: dict[int, float]
    at_random: dict[int, float]
    trained: dict[int, float]
    top_quarter: float


def _batches(x: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(200), labels.split(200), strict=True))


@cache
def prune(effort: Effort) -> Pruned:
    """Train a small vision transformer, weigh its heads on training images, remove them, and measure."""
    plan, data = PLANS[effort], images(effort)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = models.VisionTransformer(28, 4, 10, channels=1, dim=64, depth=3, heads=8, hidden=128, pool="average")
    fit_classes(model, data.train, data.train_labels, steps=plan.steps, rate=2e-3, seed=0)
    weighed = analysis.importance(model, _batches(data.train[:1000], data.train_labels[:1000]))
    random = torch.Generator().manual_seed(0)
    chance = {name: torch.rand(len(score), generator=random) for name, score in weighed.scores.items()}
    drawn = analysis.Importance(chance, "chance")
    scores = torch.cat([score.double() for score in weighed.scores.values()]).sort(descending=True).values
    found: dict[str, dict[int, float]] = {"at_once": {}, "at_random": {}, "trained": {}}
    for left in plan.left:
        found["at_once"][left] = _left(model, weighed, left, data, 0)
        found["trained"][left] = _left(model, weighed, left, data, plan.more_steps)
        found["at_random"][left] = _left(model, drawn, left, data, plan.more_steps)
    return Pruned(**found, top_quarter=float(scores[: len(scores) // 4].sum() / scores.sum()))


def _left(model: nn.Module, weighed: analysis.Importance, left: int, data: Images, steps: int) -> float:
    """Accuracy with so many heads left, the others really removed, after so many steps of further training."""
    with torch.random.fork_rng(devices=[]):
        smaller = analysis.prune_heads(copy.deepcopy(model), weighed, left)
    if steps:
        fit_classes(smaller, data.train, data.train_labels, steps=steps, rate=1e-3, seed=1)
    return class_accuracy(smaller, data)


class Removal(NamedTuple):
    """How heads are removed, and how many of the 24 are left."""

    how: str
    left: int


@holds_under(
    "c182-head-pruning",
    "problem (c), iii",
    says=Removal("at_once", HALF),
    condition=(
        "the model is trained a little after the removal, as in the study that the source cites",
        Removal("trained", HALF),
    ),
    mutant=("the same with 4 of 24 heads left and no training", Removal("at_once", 4)),
    slow=True,
)
def head_pruning(removal: Removal, effort: Effort = "full") -> Evidence:
    r"""Heads specialize, and many of them can be removed with little loss.

    The check trains a small vision transformer with 24 heads, weighs each head by the gradient of the loss with
    respect to a gate on its output, and removes half of them. Importance is uneven: a quarter of the heads has more
    than a third of it. If half of the heads are removed at once, accuracy falls by many points, in whatever order
    they are removed. After a short training of the remaining heads (compared with the whole model, trained for as
    long) the loss is two points or less. So other heads can do the work of the removed ones, but they have to learn
    it.
    """
    found = prune(effort)
    accuracy = getattr(found, removal.how)
    whole = found.trained[24]
    left = removal.left if removal.left in accuracy else min(accuracy)
    little = accuracy[left] > whole - 0.02
    uneven = found.top_quarter > 1 / 3
    ways = {
        "at_once": "removed at once",
        "trained": "trained a little afterwards",
        "at_random": "at random, then trained",
    }
    line = f"{accuracy[left]:.1%} with {left} of 24 heads, {ways[removal.how]}, {whole:.1%} with all"
    numbers = {
        "heads_left": list(found.trained),
        **{ways[name].replace(" ", "_"): list(getattr(found, name).values()) for name in ways},
        "importance_of_the_top_quarter": found.top_quarter,
    }
    series = {
        ways[name]: (list(map(float, by)), list(by.values())) for name, by in found._asdict().items() if name in ways
    }
    draw = curves("Validation accuracy without some of 24 heads", "heads left", "accuracy", series, marks=True)
    return Evidence(little and uneven, line, numbers, "" if little and uneven else line, draw)
