"""The attention map of a module, one panel per head."""

import math

from regard.figures._color_scale import add_color_bar, paint, pooled, scale_position
from regard.figures.style import Figure, PathArgument, arrange, finish, frame, new_figure, plain
from regard.maps import Map, visible_keys
from regard.support.checks import check_index, describe

PANEL_CELLS = 128  # cells per side of a panel, two pixels each


def attention(found: Map, *, sample: int = 0, query: int | None = None, path: PathArgument = None) -> Figure:
    """One panel per head: the map, or with ``query`` what one query attends to, on the image.

    All panels share one color scale, relative to uniform attention. A map that is larger than its panel is pooled: a
    cell shows its largest weight.

    Args:
        found: a map, such as ``maps[-1]``.
        sample: which sample of the batch.
        query: the number of the query, also if ``rows=`` chose some; the grid of the tokens must be known.
        path: where to save the figure.

    >>> from regard.maps import AttentionRecord, Map
    >>> found = Map("layer", [AttentionRecord.given(torch.eye(4).expand(1, 2, 4, 4))])
    >>> [panel.get_title() for panel in regard.figures.attention(found).axes[:-1]]  # the last one is the color bar
    ['head 0', 'head 1']
    """
    if not isinstance(found, Map):
        raise TypeError(f"found must be one map, such as maps[-1], got {describe(found)}")
    weights = found.weights
    check_index("sample", sample, weights.shape[0], "the batch size")
    latest = found.latest
    visible, _ = visible_keys(weights[sample], latest.kind, latest.rows, latest.asked)
    signed, top = bool((weights[sample] < 0).any()), float(visible.max())
    maps = plain(weights[sample]) * plain(visible)[:, None]
    title = found.name
    if query is not None:
        layout = found.layout()
        sides = layout.grid if len(layout.grid) == 2 else (1, math.prod(layout.grid))
        maps = maps[:, _place(found, query, maps.shape[1]), layout.prefix :].reshape(-1, *sides)
        title = f"{found.name}, query {query}"
    numbers = found.latest.heads or range(len(maps))
    rows, columns = arrange(len(maps), math.ceil(math.sqrt(len(maps))))
    figure, panels = new_figure(rows, columns, width=1.8, height=1.8 + 0.4 / rows)
    for panel in panels:
        panel.set_axis_off()
    shown = None
    for panel, head, lift in zip(panels, numbers, maps, strict=False):
        box = (-0.5, lift.shape[1] - 0.5, lift.shape[0] - 0.5, -0.5)
        shown = paint(panel, scale_position(pooled(lift, PANEL_CELLS), top), signed, extent=box)
        panel.set_aspect("equal")
        frame(panel)
        panel.set_title(f"head {head}", fontsize=8)
    add_color_bar(figure, panels, shown, top, signed, title)
    return finish(figure, path)


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
