"""Accuracy and loss: over training, against the length of sentences, and against the number of heads."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from regard.figures._checks import check_named, has_single_point, is_number, is_pair_of_numbers
from regard.figures.style import COLORS, PALE, Figure, PathArgument, finish, new_figure, tidy
from regard.support.checks import describe

POINTS = 60  # points of the training curve, each the mean of some steps
MARKS = (("o", 5), ("s", 8), ("^", 5), ("D", 8))


def learning_curves(metrics: Sequence[Mapping[str, Any]], *, path: PathArgument = None) -> Figure:
    """Accuracy and loss over the steps, on the training and validation set.

    Args:
        metrics: the lines of a run's ``metrics.jsonl``.

    >>> lines = [{"step": 1, "loss": 2.3, "accuracy": 0.1}, {"step": 2, "loss": 1.9, "accuracy": 0.3}]
    >>> figure = regard.figures.learning_curves(lines)
    >>> figure.axes[1].lines[0].get_ydata().tolist()
    [2.3, 1.9]
    """
    if not isinstance(metrics, list | tuple) or not all(isinstance(line, Mapping) for line in metrics):
        raise TypeError(f"metrics must be the lines of a run's metrics.jsonl, got {describe(metrics):.200}")
    figure, panels = new_figure(1, 2, width=5.2, height=3.2)
    steps = [line for line in metrics if line.get("loss") is not None]
    evaluations = [line for line in metrics if "validation_accuracy" in line]
    window = max(1, len(steps) // POINTS)
    groups = [steps[at : at + window] for at in range(0, len(steps), window)]
    for panel, name, scale, unit in ((panels[0], "accuracy", 100, "accuracy, %"), (panels[1], "loss", 1, "loss")):
        means = [scale * sum(_known(line[name]) for line in group) / len(group) for group in groups]
        mark = "o" if has_single_point(means) else None
        ends = [group[-1]["step"] for group in groups]
        panel.plot(ends, means, color=COLORS[0], label="training", linewidth=1.2, marker=mark, markersize=4)
        if evaluations:
            values = [scale * _known(line[f"validation_{name}"]) for line in evaluations]
            panel.plot([line["step"] for line in evaluations], values, "o-", color=COLORS[1], label="validation", ms=4)
        panel.legend(fontsize=8, frameon=False)
        tidy(panel, title=name, x="step", y=unit)
    return finish(figure, path)


def _known(value: float | None) -> float:
    """JSON has null for what is not finite, as in a run that diverged."""
    return math.nan if value is None else value


def length_sweep(
    results: Mapping[str, Mapping[int, Mapping[str, float]]],
    *,
    trained: tuple[int, int] | None = None,
    path: PathArgument = None,
) -> Figure:
    """Accuracy of characters against the length of the sentence, one line per network.

    Args:
        results: as :func:`regard.training.sweep_lengths` returns them: for each run, metrics by length.
        trained: the shortest and longest sentences in training, shaded.
        path: where to save the figure.

    >>> results = {"case-rnn": {8: {"characters": 0.9}, 16: {"characters": 0.4}}}
    >>> figure = regard.figures.length_sweep(results, trained=(8, 12))
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['case-rnn']
    """
    check_named("results", results, "metrics by length, with characters in each", _is_sweep)
    if trained is not None and not is_pair_of_numbers(trained):
        raise TypeError(f"trained must be (shortest, longest), got {describe(trained)}")
    figure, [panel] = new_figure(1, 1, width=6.4, height=4.0)
    if trained is not None:
        panel.axvspan(*trained, color=PALE, linewidth=0, zorder=0)
    for number, (name, by_length) in enumerate(results.items()):
        lengths = sorted(by_length)
        shares = [100 * by_length[length]["characters"] for length in lengths]
        # Different markers distinguish lines that coincide.
        mark, size = MARKS[number % len(MARKS)]
        color = COLORS[number % len(COLORS)]
        panel.plot(lengths, shares, f"{mark}-", color=color, label=name, markersize=size, markerfacecolor="none")
    panel.set_ylim(0, 103)
    panel.legend(fontsize=8, frameon=False)
    title = "Accuracy of characters" + ("" if trained is None else " (shaded: lengths in training)")
    tidy(panel, title=title, x="characters in the sentence", y="accuracy, %")
    return finish(figure, path)


def _is_sweep(by_length: Any) -> bool:
    return isinstance(by_length, Mapping) and all(
        is_number(length) and isinstance(found, Mapping) and is_number(found.get("characters"))
        for length, found in by_length.items()
    )


def pruning_curve(points: Sequence[tuple[int, float]], *, path: PathArgument = None) -> Figure:
    """Accuracy against the number of heads left, where the least important are removed first.

    Args:
        points: (heads left, accuracy).

    >>> figure = regard.figures.pruning_curve([(4, 0.9), (2, 0.8), (0, 0.1)])
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [90.0, 80.0, 10.0]
    """
    if not isinstance(points, list | tuple) or not points or not all(map(is_pair_of_numbers, points)):
        raise TypeError(f"points must be pairs (heads left, accuracy), got {describe(points)}")
    figure, [panel] = new_figure(1, 1, width=5.2, height=3.2)
    heads, accuracy = zip(*points, strict=True)
    panel.plot(heads, [100 * x for x in accuracy], "o-", color=COLORS[0], ms=4)
    margin = 0.02 * max(1, *heads)
    panel.set_xlim(max(heads) + margin, -margin)
    panel.set_ylim(0, 100)
    tidy(panel, title="accuracy against heads left", x="heads left, least important removed first", y="accuracy, %")
    return finish(figure, path)
