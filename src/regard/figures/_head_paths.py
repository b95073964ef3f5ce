"""The paths that heads' centers take in training."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from regard.figures._checks import check_labels, check_named, is_drawable, is_pair_of_numbers
from regard.figures.style import COLORS, GRAY, Figure, PathArgument, arrange, finish, new_figure, plain, tidy
from regard.support.checks import describe


def _is_path(value: Any) -> bool:
    return is_drawable(value) and value.ndim == 3 and value.shape[2] == 2 and value.numel() > 0


def head_paths(
    title: str,
    paths: Mapping[str, Float[Tensor, "steps heads 2"]],
    *,
    marks: Sequence[tuple[int, int]] = (),
    path: PathArgument = None,
) -> Figure:
    """One panel per run or layer: each head's center (row, column) from its first step, a small dot, to its last, a
    large dot.

    Args:
        paths: the centers at each step, by the panel's title.
        marks: places (row, column) to mark with a cross, such as the shifts of a kernel.
        path: where to save the figure.

    >>> figure = regard.figures.head_paths("Heads", {"layer 1": torch.randn(5, 9, 2)}, marks=[(0, 0)])
    >>> figure.axes[0].get_title()
    'layer 1'
    """
    check_labels(title=title)
    check_named("paths", paths, "centers (steps, heads, 2)", _is_path)
    if not isinstance(marks, list | tuple) or not all(map(is_pair_of_numbers, marks)):
        raise TypeError(f"marks must be pairs (row, column), got {describe(marks)}")
    rows, columns = arrange(len(paths))
    figure, panels = new_figure(rows, columns, width=3.4, height=3.5)
    for panel in panels[len(paths) :]:
        panel.set_axis_off()
    for panel, (name, centers) in zip(panels, paths.items(), strict=False):
        reach = max(2.5, float(plain(centers).abs().max()) + 0.5)
        for row, column in marks:
            panel.plot([column], [row], "+", color=GRAY, markersize=9)
        for head in range(centers.shape[1]):
            ys, xs = plain(centers[:, head]).T.tolist()
            color = COLORS[head % len(COLORS)]
            panel.plot(xs, ys, color=color, linewidth=0.9)
            panel.plot(xs[:1], ys[:1], ".", color=color, markersize=4)
            panel.plot(xs[-1:], ys[-1:], "o", color=color, markersize=6)
        panel.set_xlim(-reach, reach)
        panel.set_ylim(reach, -reach)
        panel.set_aspect("equal")
        tidy(panel, title=name, x="columns from the query", y="rows from the query")
    figure.suptitle(title, fontsize=9)
    return finish(figure, path)
