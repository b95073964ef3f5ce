"""How many of its heads a network needs: accuracy against the number of heads left, for ``regard report``."""

from typing import Any

import torch

from regard.data import AugmentedImages
from regard.training import ImageTask, Run
from regard.views.page import Section, paragraph, picture

SAMPLES = 200
BATCH = 50


def needed_heads(run: Run, samples: int = SAMPLES) -> Section | None:
    """Heads silenced one after the other, the least important first; None for networks that classify no images or
    have no heads.

    Args:
        samples: how many held-out images the curve is measured on.
    """
    task = run.recipe.task
    if not isinstance(task, ImageTask):
        return None
    from regard.analysis import importance, pruning_curve
    from regard.analysis._heads import heads_in

    network = run.network().eval()
    examples = task.examples("validation", torch.device("cpu"))
    where = "held-out" if examples is not None else "test"
    if examples is None:
        examples = task.examples("test", torch.device("cpu"))
    batches = _batches(examples, samples)
    try:
        heads_in(network, lambda: network(batches[0][0][:1]))
    except ValueError:  # a network without attention
        return None
    order = importance(network, batches)
    points = pruning_curve(network, batches, order, points=9)
    figure = _figure([(point.heads, point.accuracy) for point in points])
    total, whole = points[0].heads, points[0].accuracy
    least = min(point.heads for point in points if point.accuracy >= whole - 0.02)
    count = sum(len(labels) for _, labels in batches)
    said = (
        f"Of {total} heads, the {least} most important ones are enough to stay within two points of "
        f"{whole:.1%}, the accuracy of all, on {count} {where} images (±{_error(whole, count):.1%}). "
        "Heads go by the gradient of a gate on their output, the least important first; regard.prune_heads removes "
        "them for good, with the same outputs as here."
    )
    return Section("How many heads it needs", paragraph(said) + picture(figure, "accuracy against heads left"))


def _batches(examples: Any, samples: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    plain = AugmentedImages(examples.set)
    numbers = torch.arange(min(samples, len(plain)))
    found = [plain.batch(part, seed=0, epoch=0) for part in numbers.split(BATCH)]
    return [(batch.images, batch.labels) for batch in found]


def _error(share: float, count: int) -> float:
    """One standard error of a share."""
    return float((share * (1 - share) / count) ** 0.5)


def _figure(points: list[tuple[int, float]]) -> Any:
    from regard.figures.style import COLORS, new_figure, tidy

    figure, panels = new_figure(1, 1, width=5.2, height=3.2)
    heads, accuracy = zip(*points, strict=True)
    panels[0].plot(heads, [100 * x for x in accuracy], "o-", color=COLORS[0], ms=4)
    panels[0].set_xlim(max(heads) * 1.02, -0.02 * max(heads))
    panels[0].set_ylim(0, 100)
    tidy(panels[0], title="accuracy against heads left", x="heads left, the least important gone first", y="right, %")
    return figure
