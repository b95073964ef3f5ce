"""Heads that move while they learn: real trajectories, on image classes and on a convolution to imitate."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import figures, functional, layers, models
from regard.claims._claim import Effort, Evidence, holds_under
from regard.claims._shifts import shifts
from regard.claims._training import fit, fit_classes, images
from regard.figures.style import Figure


class MovementRuns(NamedTuple):
    """How large the runs are."""

    class_steps: int
    imitation_steps: int
    seeds: tuple[int, ...]


PLANS: dict[Effort, MovementRuns] = {"full": MovementRuns(300, 800, (0, 1, 2)), "smoke": MovementRuns(2, 2, (0,))}
# Where the heads of a longer training on CIFAR-10 looked, as the training engine wrote it down: the run that the package
# ships (its files are data here; nothing of the views is imported).
CIFAR10 = Path(__file__).parents[2] / "views" / "shipped" / "cifar10-small" / "heads.jsonl"
START = 1.0  # deviation of the first centers: heads begin near the query
PENALTY = 1e-3  # on squared weights, as weight decay is: heads that overlap need large weights against each other


class Course(NamedTuple):
    """Nine heads over training: centers ``(times, heads, 2)`` and sharpness ``(times, heads)``."""

    center: Tensor
    sharpness: Tensor

    def covered(self, time: int) -> int:
        """How many of the nine shifts of a 3×3 kernel are the nearest pixel of some head."""
        return len(set(map(tuple, self.center[time].round().int().tolist())) & set(shifts(3)))

    def distance(self, time: int) -> float:
        """From a kernel's shift to the nearest head, the mean over the nine."""
        grid = torch.tensor(shifts(3), dtype=self.center.dtype)
        return float(torch.cdist(grid, self.center[time]).amin(1).mean())

    def distinct(self, time: int) -> int:
        """How many different pixels heads look at."""
        return len(set(map(tuple, self.center[time].round().int().tolist())))

    def reach(self, time: int) -> float:
        """How far from the query heads look, the mean over heads."""
        return float(self.center[time].norm(dim=-1).mean())

    def on_grid(self) -> bool:
        """Whether heads came to lie on the kernel's nine shifts, one on each, twice as sharp as at first or more."""
        spread = self.covered(-1) == 9 > self.covered(0) and self.distance(-1) < 0.2
        return spread and self.peak(-1) > 2 * self.peak(0)

    def peak(self, time: int) -> float:
        """The largest weight of a head's map, for a query in the middle of a 15×15 image; the mean over heads."""
        query = [torch.tensor([7.0]).double()] * 2
        maps = functional.gaussian_weights(
            self.center[time].double(), self.sharpness[time].double(), (15, 15), queries=query
        )
        return float(maps[:, 0].amax(-1).mean())


class CenterRecorder:
    """Watches a layer's heads, eleven times over a run."""

    def __init__(self, heads: layers.GaussianHeads, steps: int) -> None:
        self.heads, self.times = heads, {round(steps * i / 10) for i in range(11)}
        self.center: list[Tensor] = []
        self.sharpness: list[Tensor] = []

    def __call__(self, step: int) -> None:
        if step in self.times:
            self.center.append(self.heads.center.detach().clone())
            self.sharpness.append(self.heads.sharpness.detach().clone())

    def course(self) -> Course:
        return Course(torch.stack(self.center), torch.stack(self.sharpness))


def _groups(model: nn.Module, rate: float, place_rate: float) -> list[dict[str, object]]:
    """Where heads look is learned at a rate of its own: pixels are larger units than weights."""
    places = [p for name, p in model.named_parameters() if "positions." in name]
    others = [p for name, p in model.named_parameters() if "positions." not in name]
    return [{"params": others, "lr": rate}, {"params": places, "lr": place_rate, "weight_decay": 0.0}]


@cache
def run_classes(effort: Effort) -> tuple[Course, ...]:
    """An encoder with Gaussian heads learns classes of images; its first layer's heads, for one seed."""
    plan, data = PLANS[effort], images(effort)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = models.ImageEncoder(28, 2, 10, channels=1, dim=36, depth=2, heads=9, hidden=72)
        layer = model.blocks[0].attention
        if not isinstance(layer, layers.GaussianAttention):
            raise TypeError("the encoder's attention is not Gaussian")
        nn.init.normal_(layer.positions.center, std=START)
    recorder = CenterRecorder(layer.positions, plan.class_steps)
    fit_classes(
        model, data.train, data.train_labels, steps=plan.class_steps, rate=2e-3, seed=0,
        groups=_groups(model, 2e-3, 2e-2), watch=recorder,
    )  # fmt: skip
    return (recorder.course(),)


@cache
def run_imitation(effort: Effort) -> tuple[Course, ...]:
    """A layer of nine Gaussian heads learns to imitate a random 3×3 convolution, for each seed."""
    plan, courses = PLANS[effort], []
    for seed in plan.seeds:
        random = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            conv = nn.Conv2d(4, 16, 3, bias=False).requires_grad_(False)
            layer = layers.GaussianAttention(4, 9, out_dim=16, full_width=True, bias=False)
            nn.init.normal_(layer.positions.center, std=START)

        def loss(
            step: int, conv: nn.Module = conv, layer: layers.GaussianAttention = layer, random: torch.Generator = random
        ) -> Tensor:
            x = torch.randn(16, 4, 10, 10, generator=random)
            got = layer(x.movedim(1, -1)).movedim(-1, 1)[:, :, 1:-1, 1:-1]  # inside the image
            goal = conv(x)
            return F.mse_loss(got, goal) / goal.var() + PENALTY * layer.output.weight.square().sum()

        recorder = CenterRecorder(layer.positions, plan.imitation_steps)
        groups = _groups(layer, 1e-2, 3e-2)
        fit(layer, loss, steps=plan.imitation_steps, rate=1e-2, groups=groups, watch=recorder)
        courses.append(recorder.course())
    return tuple(courses)


@cache
def recorded(path: Path) -> dict[str, Course]:
    """The heads of each layer over a recorded run; nothing where there is no record."""
    from regard.training import HeadTrajectory

    found = HeadTrajectory.read(path)
    if found is None:
        return {}
    layers_ = zip(found.layers, found.center, found.sharpness, strict=True)
    return {name: Course(center, sharpness) for name, center, sharpness in layers_}


class Movement(NamedTuple):
    """What is learned, and whether heads are said to spread over the kernel's shifts or to gather in one place."""

    task: str
    spread: bool


@holds_under(
    "a6-heads-move",
    "question 2 (e)",
    says=Movement("classes", spread=True),
    condition=(
        "what is to be learned is a convolution, as when the layer is trained to imitate one, with some weight decay; "
        "trained on image classes heads move apart, to places of their own, but form no kernel's grid",
        Movement("convolution", spread=True),
    ),
    mutant=("heads gather in one place", Movement("convolution", spread=False)),
    slow=True,
)
def heads_move(movement: Movement, effort: Effort = "full") -> Evidence:
    r"""In training, Gaussian heads move toward a grid of distinct shifts.

    The main theorem needs nine heads at the nine shifts of a 3×3 kernel, each sharp enough to be one pixel. The check
    lets all heads start near the query and follows them. Trained to imitate a random 3×3 convolution, with a small
    penalty on the weights, they end on the nine shifts, to a fifth of a pixel on average, and several times as sharp:
    gradient descent finds what the theorem says can be expressed. (Without the penalty they also cover the shifts,
    but need not end on whole pixels, because nine different bumps span the same kernels.)

    On image classes there are two runs: a short one here, on pictures of clothing, and a recorded one, 40 epochs of
    the recipe `cifar10-small`, an encoder of six layers on CIFAR-10. They support half of the statement. In the
    recorded run the nine heads of every layer end at nine different pixels, though some started at the same one. In
    the first layers some heads come near the query, close to whole pixels, and become sharp: a part of a kernel. In
    the deeper layers they move outwards and stay broad. In no layer do they form the grid of a kernel, and
    classification does not require one.
    """
    courses = run_classes(effort) if movement.task == "classes" else run_imitation(effort)
    longer = tuple(recorded(CIFAR10).values()) if movement.task == "classes" else ()
    both = courses + longer
    if movement.spread:
        fine = all(course.on_grid() for course in both)
    else:
        fine = all(course.distinct(-1) < course.distinct(0) for course in both)
    line = _said(courses)
    numbers = _measured(courses)
    if longer:
        pixels = ", ".join(str(course.distinct(-1)) for course in longer)
        line += f"; on CIFAR-10, by layer, heads look at {pixels} different pixels at last, {_said(longer)}"
        numbers["on_cifar10"] = _measured(longer)
    return Evidence(fine, line, numbers, "" if fine else line, lambda: _draw(effort))


def _said(courses: tuple[Course, ...]) -> str:
    starts, ends = (", ".join(str(course.covered(time)) for course in courses) for time in (0, -1))
    first, last = (sum(course.peak(time) for course in courses) / len(courses) for time in (0, -1))
    return (
        f"of a kernel's nine shifts {starts} are covered at first and {ends} at last; "
        f"the largest weight of a map goes from {first:.2f} to {last:.2f}"
    )


def _measured(courses: tuple[Course, ...]) -> dict[str, Any]:
    """At first and at last, run by run (or layer by layer)."""
    times = (0, -1)
    return {
        "shifts_covered_at_first": [course.covered(0) for course in courses],
        "shifts_covered_at_last": [course.covered(-1) for course in courses],
        "pixels_looked_at": [tuple(course.distinct(time) for time in times) for course in courses],
        "distance_of_a_shift_from_the_nearest_head": [tuple(map(course.distance, times)) for course in courses],
        "distance_from_the_query": [tuple(map(course.reach, times)) for course in courses],
        "largest_weight": [tuple(map(course.peak, times)) for course in courses],
        "centers_at_last": [
            [[round(x, 2) for x in center] for center in course.center[-1].tolist()] for course in courses
        ],
    }


def _draw(effort: Effort) -> Figure:
    """The paths of all heads."""
    runs = {"imitating a 3×3 convolution": run_imitation(effort)[0], "learning image classes": run_classes(effort)[0]}
    runs |= {f"CIFAR-10, layer {number}": course for number, course in enumerate(recorded(CIFAR10).values(), 1)}
    title = "Heads in training: from the small dots to the large ones; + marks a kernel's shifts"
    return figures.head_paths(title, {name: course.center for name, course in runs.items()}, marks=shifts(3))
