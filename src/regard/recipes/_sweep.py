"""Accuracy against length, for several models: where a bottleneck shows."""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.training import CaseConversion, Said, length_sweep, load_run
from regard.training._checkpoints import write_whole
from regard.training._machine import command, commit, hardware

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any

MARKS = (("o", 5), ("s", 8), ("^", 5), ("D", 8))
LENGTHS = (8, 12, 16, 20, 24, 32, 40, 56, 72)


def sweep(
    runs: Sequence[str | PathLike[str]], lengths: Sequence[int] = LENGTHS, *, samples: int = 200
) -> dict[str, dict[int, Said]]:
    """How well the trained networks of these runs write sentences of each length by themselves.

    Args:
        runs: folders of runs of the case task.
        lengths: characters of a sentence.
        samples: sentences of each length, of the test split.

    Returns, for the name of each run, its :class:`regard.training.Said` by length.
    """
    found = {}
    for folder in runs:
        run = load_run(folder)
        if not isinstance(run.recipe.task, CaseConversion):
            raise ValueError(f"{folder} is a run of {run.recipe.name!r}, which is not about the case task")
        name = run.recipe.name if run.recipe.name not in found else Path(folder).name
        found[name] = dict(zip(lengths, length_sweep(run.network(), lengths, samples=samples), strict=True))
    return found


def write_sweep(results: Mapping[str, Mapping[int, Said]], path: str | PathLike[str]) -> dict[str, Any]:
    """A result file of what :func:`sweep` returned: by run, its shares of characters and of sentences at each length.

    >>> import tempfile
    >>> from regard.training import Said
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = regard.recipes.write_sweep({"case-rnn": {8: Said(0.9, 0.5)}}, f"{folder}/lengths.json")
    >>> written["lengths"], written["characters"], written["sentences"]
    ([8], {'case-rnn': [0.9]}, {'case-rnn': [0.5]})
    """
    lengths = sorted({length for by_length in results.values() for length in by_length})
    result: dict[str, Any] = {
        "recipes": list(results),
        "date": date.today().isoformat(),
        "hardware": hardware(torch.device("cpu")),
        "command": command(),
        "commit": commit(),
        "lengths": lengths,
    }
    for what in ("characters", "sentences"):
        result[what] = {
            name: [getattr(by_length[length], what) if length in by_length else None for length in lengths]
            for name, by_length in results.items()
        }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(result, indent=1) + "\n").encode())
    return result


def draw_sweep(
    results: Mapping[str, Mapping[int, Said]],
    *,
    trained: tuple[int, int] | None = None,
    path: str | PathLike[str] | None = None,
) -> Figure:
    """The share of characters that are right against the length of the sentence, a line per model.

    Args:
        results: what :func:`sweep` returned.
        trained: the shortest and longest sentences in training, shaded.
        path: where to save the picture.

    >>> from regard.training import Said
    >>> figure = regard.recipes.draw_sweep({"case-rnn": {8: Said(0.9, 0.5), 16: Said(0.4, 0.0)}}, trained=(8, 12))
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['case-rnn']
    """
    from regard.figures.style import COLORS, PALE, finish, new_figure, tidy

    figure, [panel] = new_figure(1, 1, width=6.4, height=4.0)
    if trained is not None:
        panel.axvspan(*trained, color=PALE, linewidth=0, zorder=0)
    for number, (name, by_length) in enumerate(results.items()):
        lengths = sorted(by_length)
        shares = [100 * by_length[length].characters for length in lengths]
        # Lines that lie on each other are still told apart by their marks.
        mark, size = MARKS[number % len(MARKS)]
        color = COLORS[number % len(COLORS)]
        panel.plot(lengths, shares, f"{mark}-", color=color, label=name, markersize=size, markerfacecolor="none")
    panel.set_ylim(0, 103)
    panel.legend(fontsize=8, frameon=False)
    title = "Characters that are right" + ("" if trained is None else " (shaded: lengths in training)")
    tidy(panel, title=title, x="characters in the sentence", y="right, %")
    return finish(figure, path)
