"""A page about a run that needs nothing else: one HTML file with its pictures inside."""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from regard.data import AugmentedImages
from regard.training import Run
from regard.views._file import POLICY

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
img { max-width: 100%; height: auto; background: white; border-radius: 4px; }
table { border-collapse: collapse; font-size: 0.9rem; } td, th { padding: 0.15rem 0.8rem 0.15rem 0; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; font-size: 0.8rem; } .note { opacity: 0.75; font-size: 0.9rem; }
"""


class Section(NamedTuple):
    """A heading, and HTML under it."""

    heading: str
    body: str


def page(title: str, sections: Iterable[Section]) -> str:
    """A whole HTML document. It loads nothing from anywhere."""
    parts = [f"<section><h2>{html.escape(each.heading)}</h2>{each.body}</section>" for each in sections]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><h1>{html.escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{html.escape(text)}</p>' if kind else f"<p>{html.escape(text)}</p>"


def preformatted(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def table(rows: Sequence[tuple[str, Any]]) -> str:
    cells = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>" for name, value in rows)
    return f"<table>{''.join(cells)}</table>"


def picture(figure: Any, description: str) -> str:
    """A matplotlib figure as an image inside the page."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    data = base64.b64encode(content.getvalue()).decode()
    return f'<p><img alt="{html.escape(description)}" src="data:image/png;base64,{data}"></p>'


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
    from regard.figures._figure import COLORS, new_figure, tidy

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
