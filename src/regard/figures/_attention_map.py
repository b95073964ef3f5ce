"""The attention map of a module, one panel per head."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.figures._checks import check_finite
from regard.figures._color_scale import POOLS, Pool, add_color_bar, paint
from regard.figures.style import Figure, PathArgument, arrange, finish, frame, new_figure, plain
from regard.maps import Map, Overview, visible_keys
from regard.support.checks import check_choice, check_index, describe

PANEL_CELLS = 128  # cells per side of a panel, two pixels each
LONGEST = 8  # from this ratio of the sides on, a panel is not to scale: few queries over many keys would be a thin line


@dataclass(frozen=True)
class _Panels:
    """What the panels of a figure show.

    Attributes:
        lifts: a picture for each head, as multiples of uniform attention.
        top: the multiple that a weight of 1 has.
        signed: whether weights are negative, too.
        shape: the numbers of rows and columns that a picture stands for.
        title: the title of the figure.
    """

    lifts: Tensor
    top: float
    signed: bool
    shape: tuple[int, int]
    title: str


def attention(
    found: Map, *, sample: int = 0, query: int | None = None, pool: Pool | None = None, path: PathArgument = None
) -> Figure:
    """One panel per head: the map, or with ``query`` what one query attends to, on the image.

    All panels share one color scale, relative to uniform attention. A map that is larger than its panel is pooled. Of an
    overview (``capture(overview=128)``) its cells are drawn.

    Args:
        found: a map, such as ``maps[-1]``.
        sample: which sample of the batch.
        query: the number of the query, also if ``rows=`` chose some; the grid of the tokens must be known.
        pool: what a cell of a large map shows: ``"largest"``, its largest weight, or ``"mass"``, its mean weight, which is in
            proportion to its mass. Default: ``"largest"``, and ``"mass"`` for an overview.
        path: where to save the figure.

    >>> from regard.maps import AttentionRecord, Map
    >>> found = Map("layer", [AttentionRecord.given(torch.eye(4).expand(1, 2, 4, 4))])
    >>> [panel.get_title() for panel in regard.figures.attention(found).axes[:-1]]  # the last one is the color bar
    ['head 0', 'head 1']
    """
    if not isinstance(found, Map):
        raise TypeError(f"found must be one map, such as maps[-1], got {describe(found)}")
    if pool is not None:
        check_choice("pool", pool, POOLS)
    overview = found.latest.overview
    if overview is not None and query is None:
        check_index("sample", sample, overview.shape[0], "the batch size")
        made = _of_overview(found, overview.sample(sample % overview.shape[0]), pool or "mass")
    else:
        made = _of_weights(found, sample, query)
    numbers = found.latest.heads or range(len(made.lifts))
    rows, columns = arrange(len(made.lifts), math.ceil(math.sqrt(len(made.lifts))))
    figure, panels = new_figure(rows, columns, width=1.8, height=1.8 + 0.4 / rows)
    for panel in panels:
        panel.set_axis_off()
    shown = None
    to_scale = max(made.shape) <= LONGEST * min(made.shape)
    for panel, head, lift in zip(panels, numbers, made.lifts, strict=False):
        how = pool or ("largest" if overview is None else "mass")
        shown = paint(panel, lift, made.top, made.signed, shape=made.shape, most=PANEL_CELLS, pool=how)
        panel.set_aspect("equal" if to_scale else "auto")
        frame(panel)
        panel.set_title(f"head {head}", fontsize=8)
    add_color_bar(figure, panels, shown, made.top, made.signed, made.title)
    return finish(figure, path)


def _of_weights(found: Map, sample: int, query: int | None) -> _Panels:
    """The maps of all heads, or the weights of one query on the image."""
    weights = found.weights
    check_finite(f"the weights of {found.name!r}", weights)
    check_index("sample", sample, weights.shape[0], "the batch size")
    latest = found.latest
    visible, _ = visible_keys(weights[sample], latest.kind, latest.rows, latest.asked)
    maps, title = plain(weights[sample]) * plain(visible)[:, None], found.name
    if query is not None:
        layout = found.layout()
        sides = layout.grid if len(layout.grid) == 2 else (1, math.prod(layout.grid))
        maps = maps[:, _place(found, query, maps.shape[1]), layout.prefix :].reshape(-1, *sides)
        title = f"{found.name}, query {query}"
    signed = bool((weights[sample] < 0).any())
    return _Panels(maps, float(visible.max()), signed, (maps.shape[1], maps.shape[2]), title)


def _of_overview(found: Map, one: Overview, pool: Pool) -> _Panels:
    """The cells of one sample: the share of a query's attention that a cell has on average, or its largest weight."""
    check_finite(f"the overview of {found.name!r}", one.mass)
    (height, width), (_, _, queries, keys) = one.cell, one.shape
    title = f"{found.name}, in cells of {height} × {width} {found.over}"
    if pool == "largest":
        return _Panels(plain(one.largest[0]) * keys, float(keys), False, (queries, keys), title)
    each = torch.tensor([min(height, queries - start) for start in range(0, queries, height)])
    shares, columns = plain(one.mass[0]) / each[:, None], one.mass.shape[3]
    return _Panels(shares * columns, float(columns), False, (queries, keys), title)


def _place(found: Map, query: int, count: int) -> int:
    """The place of a query among the rows that were kept."""
    rows, asked = found.latest.rows, found.latest.asked
    if rows is None:
        check_index("query", query, count, "the number of queries")
        return query
    if asked is not None:
        check_index("query", query, asked, "the number of queries")
        query %= asked
    if query not in rows:
        raise ValueError(f"query must be one of the rows of {found.name!r} that were kept, {list(rows)}, got {query!r}")
    return rows.index(query)
