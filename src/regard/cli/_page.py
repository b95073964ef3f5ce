"""The sections of a report about a run."""

from collections.abc import Sequence
from typing import Any

from regard import figures
from regard.analysis import importance, pruning_curve
from regard.claims import TOPICS, Row, select
from regard.claims.prose import inline_html
from regard.support.text import format_metric
from regard.training import Run
from regard.training.tasks import Split
from regard.views import training_view
from regard.views.page import Section, claims, folded, paragraph, picture, table, view

BATCH = 50


def run_sections(run: Run) -> list[Section]:
    """The sections about a run: its summary and its learning curves."""
    return [Section("The run", _facts(run)), Section("Learning curves", view(training_view(run), "training"))]


def claim_section(rows: Sequence[Row] | None = None, words: str = "") -> Section:
    """Statements about attention and their verdicts: those just checked, or all with their recorded verdicts."""
    if rows is None:
        rows = [Row(claim) for claim in select()]
        words = f"{len(rows)} statements with their recorded verdicts. regard verify checks them on your machine."
    parts = [paragraph(words)]
    for topic in TOPICS:
        found = [(row.verdict, inline_html(row.claim.statement)) for row in rows if row.claim.topic == topic]
        if found:
            parts.append(folded(f"{topic}: {len(found)} statements", claims(found)))
    return Section("What people say about attention", "".join(parts))


def _facts(run: Run) -> str:
    summary, recipe = run.summary or {}, run.recipe
    rows: list[tuple[str, Any]] = [("recipe", recipe.name), ("folder", run.folder)]
    if summary:
        rows += [
            ("parameters", f"{summary['parameters']:,}"),
            ("steps", f"{summary['steps']:,} in {recipe.epochs} epochs"),
            ("training time", f"{summary['train_seconds']:.1f} s on {summary['hardware']}"),
        ]
        if summary["validation_accuracy"] is not None:
            rows.append(("validation accuracy", f"{summary['validation_accuracy']:.2%}"))
    else:
        rows.append(("state", "not finished"))
    return table(rows + _measured(run))


def _measured(run: Run) -> list[tuple[str, Any]]:
    """What ``regard evaluate`` measured on the test set, with the step if that is not the last one of training."""
    found, task = run.evaluation or {}, run.recipe.task
    step, targets, rows = found.get("step"), found.get("targets"), []
    where = "" if step == (run.summary or {}).get("steps") else f" at step {step}"
    for name, words in task.metric_names.items():
        if isinstance(value := found.get(name), float):
            count = f" of {targets:,} {task.target_name}" if name == "accuracy" and isinstance(targets, int) else ""
            rows.append((words, f"{format_metric(value)}{count}{where}"))
    return rows


def needed_heads(run: Run, samples: int) -> Section | None:
    """Accuracy against the number of heads, removing the least important first; None for networks that do not classify or
    have no attention.

    Args:
        samples: number of validation samples (test samples, where nothing is held out) to measure on.
    """
    task, network = run.recipe.task, run.network().eval()
    split: Split = "validation" if task.shown_split == "validation" else "test"
    numbers = range(min(samples, task.count(split)))
    parts = [task.labeled(task.batch(split, numbers[at : at + BATCH])) for at in range(0, len(numbers), BATCH)]
    batches = [part for part in parts if part is not None]
    if not batches or not len(task.attend(network, task.sample(split, 0)).maps):
        return None
    points = pruning_curve(network, batches, importance(network, batches), points=9)
    total, whole = points[0].heads, points[0].accuracy
    least = min(point.heads for point in points if point.accuracy >= whole - 0.02)
    error = (whole * (1 - whole) / len(numbers)) ** 0.5
    text = (
        f"Of {total} heads, the {least} most important ones keep the accuracy within two points of {whole:.1%}, the accuracy "
        f"of all heads, on {len(numbers)} {split} {task.target_name} (standard error {error:.1%}). The importance of a head is "
        "the gradient of the loss at a gate on its output. regard.prune_heads removes heads from a network, with the same "
        "outputs as here."
    )
    figure = figures.pruning_curve([(point.heads, point.accuracy) for point in points])
    return Section("How many heads it needs", paragraph(text) + picture(figure, "accuracy against heads left"))
