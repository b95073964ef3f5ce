"""The attention map of a module, one panel per head."""

import math

from regard.figures.style import SEQUENTIAL, Figure, PathArgument, arrange, finish, new_figure, plain
from regard.maps import Map
from regard.support.checks import check_index, describe


def attention(found: Map, *, sample: int = 0, query: int | None = None, path: PathArgument = None) -> Figure:
    """One panel per head: the map, or with ``query`` what one query attends to, on the image.

    Args:
        found: a map, such as ``maps[-1]``.
        sample: which sample of the batch.
        query: which query; the grid of the tokens must be known.
        path: where to save the picture.

    >>> from regard.maps import AttentionRecord, Map
    >>> found = Map("layer", [AttentionRecord.given(torch.eye(4).expand(1, 2, 4, 4))])
    >>> [panel.get_title() for panel in regard.figures.attention(found).axes]
    ['head 0', 'head 1']
    """
    if not isinstance(found, Map):
        raise TypeError(f"found must be one map, such as maps[-1], got {describe(found)}")
    weights = found.weights
    check_index("sample", sample, weights.shape[0], "the batch size")
    maps = plain(weights[sample])
    title = found.name
    if query is not None:
        check_index("query", query, maps.shape[1], "the number of queries")
        layout = found.layout()
        sides = layout.grid if len(layout.grid) == 2 else (1, math.prod(layout.grid))
        maps = maps[:, query, layout.prefix :].reshape(-1, *sides)
        title = f"{found.name}, query {query}"
    numbers = found.latest.heads or range(len(maps))
    rows, columns = arrange(len(maps), math.ceil(math.sqrt(len(maps))))
    figure, panels = new_figure(rows, columns, width=1.8, height=1.8 + 0.4 / rows)
    for panel in panels:
        panel.set_axis_off()
    for panel, head, weight in zip(panels, numbers, maps, strict=False):
        panel.imshow(weight.numpy(), vmin=0, cmap=SEQUENTIAL, interpolation="nearest")
        panel.set_title(f"head {head}", fontsize=8)
    figure.suptitle(title, fontsize=9)
    return finish(figure, path)
