"""The sections of a page about a run."""

from typing import Any

import torch

from regard.data import AugmentedImages
from regard.training import Run
from regard.views.page import Section, paragraph, picture, table


def run_sections(run: Run) -> list[Section]:
    """What a run's folder has to show: how it went, where its heads look, what it attends to."""
    sections = [Section("The run", _facts(run)), Section("How it went", picture(curve(run), "accuracy and loss"))]
    if (heads := _heads(run)) is not None:
        sections.append(Section("Where its heads look", heads))
    if attention := _attention(run):
        sections.append(Section("What it attends to", attention))
    return sections


def curve(run: Run) -> Any:
    """Accuracy and loss over the steps, in training and on what was held out."""
    from regard.figures.style import COLORS, new_figure, tidy

    figure, panels = new_figure(1, 2, width=5.2, height=3.2)
    steps = [line for line in run.metrics if "loss" in line and line["loss"] is not None]
    window = max(1, len(steps) // 60)
    groups = [steps[at : at + window] for at in range(0, len(steps), window)]
    held_out = run.evaluations
    for panel, name, scale, unit in ((panels[0], "accuracy", 100, "right, %"), (panels[1], "loss", 1, "loss")):
        at = [group[-1]["step"] for group in groups]
        means = [scale * sum(line[name] for line in group) / len(group) for group in groups]
        panel.plot(at, means, color=COLORS[0], label="training", linewidth=1.2)
        if held_out:
            values = [scale * line[f"validation_{name}"] for line in held_out]
            panel.plot([line["step"] for line in held_out], values, "o-", color=COLORS[1], label="held out", ms=4)
        panel.legend(fontsize=8, frameon=False)
        tidy(panel, title=name, x="step", y=unit)
    return figure


def _facts(run: Run) -> str:
    summary, recipe = run.summary or {}, run.recipe
    rows: list[tuple[str, Any]] = [("recipe", recipe.name), ("folder", run.folder)]
    if summary:
        rows += [
            ("parameters", f"{summary['parameters']:,}"),
            ("steps", f"{summary['steps']:,}, {recipe.epochs} epochs"),
            ("training took", f"{summary['train_seconds']:.1f} s on {summary['hardware']}"),
        ]
        if summary["validation_accuracy"] is not None:
            rows.append(("held out", f"{summary['validation_accuracy']:.2%} right"))
    else:
        rows.append(("state", "not finished"))
    return table(rows)


def _heads(run: Run) -> str | None:
    trajectory = run.heads
    if trajectory is None or trajectory.center[0].shape[-1] not in (1, 2):
        return None
    from regard.figures import heads

    moments = [0] if len(trajectory.steps) == 1 else [0, -1]
    parts = []
    for moment in moments:
        found = trajectory.at(moment)
        pairs = zip(trajectory.grids, found.center, strict=True)
        grids = [grid if len(grid or ()) == center.shape[1] else None for grid, center in pairs]
        figure = heads(list(found.center), list(found.sharpness), grids, titles=list(found.layers))
        step = trajectory.steps[moment]
        parts.append(paragraph(f"After step {step}:" if step else "Before training:"))
        parts.append(picture(figure, f"where each head looks from the query, after step {step}"))
    return "".join(parts)


def _attention(run: Run) -> str:
    """Of the first samples that were held out (or, where nothing was, of training)."""
    task = run.recipe.task
    examples = task.examples("validation", torch.device("cpu")) or task.examples("train", torch.device("cpu"))
    if isinstance(examples, AugmentedImages):
        examples = AugmentedImages(examples.set)
    figures = task.pictures(run.network(), examples)
    return "".join(picture(figure, name) for name, figure in figures.items())
