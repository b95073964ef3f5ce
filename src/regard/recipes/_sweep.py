"""Accuracy against length, for several models: where a bottleneck shows."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.training import CaseConversion, Said, length_sweep, load_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any

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
    from regard.plots._figure import COLOURS, PALE, finish, new_figure, tidy

    figure, [panel] = new_figure(1, 1, width=6.4, height=4.0)
    if trained is not None:
        panel.axvspan(*trained, color=PALE, linewidth=0, zorder=0)
    for number, (name, by_length) in enumerate(results.items()):
        lengths = sorted(by_length)
        shares = [100 * by_length[length].characters for length in lengths]
        panel.plot(lengths, shares, "o-", color=COLOURS[number % len(COLOURS)], label=name, markersize=4)
    panel.set_ylim(0, 103)
    panel.legend(fontsize=8, frameon=False)
    title = "Characters that are right" + ("" if trained is None else " (shaded: lengths in training)")
    tidy(panel, title=title, x="characters in the sentence", y="right, %")
    return finish(figure, path)
