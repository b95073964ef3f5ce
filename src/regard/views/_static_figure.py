"""A view as a static figure: one head, labeled, with a color bar, for a paper."""

import math
from typing import Any

import torch
from torch import Tensor

from regard.figures import POOLS, Pool, add_title, weight_image, weight_map, weight_maps, weight_segments
from regard.figures.style import COLORS, GRAY, Figure, finish, new_figure, plain_label, tidy
from regard.support.checks import check_choice, describe
from regard.views._payload import Payload

FORMATS = (".svg", ".pdf", ".png")
OPTIONS = ("layer", "head", "query", "width", "pool")
NARROWEST = 1.4  # inches of a panel of heads


def check_options(options: dict[str, Any]) -> None:
    """Raise an error unless these are options of a figure, of the right kind."""
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise TypeError(f"{', '.join(unknown)} is no option of a figure, which has {', '.join(OPTIONS)}")
    for name, named in (("layer", True), ("head", True), ("query", False)):
        given = options.get(name)
        whole = isinstance(given, int) and not isinstance(given, bool)
        if not (given is None or whole or (named and isinstance(given, str))):
            raise TypeError(f"{name} must be a whole number{' or a name' if named else ''}, got {describe(given)}")
    width = options.get("width")
    number = isinstance(width, int | float) and not isinstance(width, bool) and 0 < width < math.inf
    if width is not None and not number:
        raise ValueError(f"width must be a number of inches above 0, got {describe(width)}")
    if options.get("pool") is not None:
        check_choice("pool", options["pool"], POOLS)


def figure(
    payload: Payload,
    *,
    layer: int | str | None = None,
    head: int | str | None = None,
    query: int | None = None,
    width: float | None = None,
    pool: Pool | None = None,
    title: str | None = None,
) -> Figure:
    """The figure of maps or of where heads look.

    Args:
        payload: the view's data.
        layer: a name or an index; default: the layer of the most structured head.
        head: its number, or ``"mean"``; default: the most structured one.
        query: on an image, the number of the query; default: the one that the page opens on.
        width: in inches; default: one column.
        pool: what a cell of a large map shows, ``"largest"`` or ``"mass"``; default: mass for an overview, else the largest.
        title: default: the layer and the head, and on an image the query.
    """
    size: dict[str, Any] = {} if width is None else {"width": float(width)}
    if pool is not None and payload.view not in ("compare", "long", "tokens"):
        raise ValueError(f"pool is for maps over tokens; the view {payload.view!r} pools no weights, got pool={pool!r}")
    if payload.view == "heads":
        return _heads(payload, title, **size)
    if payload.view == "compare":
        return _compared(payload, layer, head, query, title, pool=pool or "largest", **size)
    if payload.view == "long":
        return _long(payload, layer, head, query, title, pool=pool or "mass", **size)
    if payload.view not in ("tokens", "image", "mixed"):
        raise ValueError(f"the view {payload.view!r} has no static figure: save it as .html")
    layers = payload.meta["layers"]
    number = _layer(layers, layer, payload.meta["opening"]["layer"])
    about = layers[number]
    weights, name = _weights(payload, number, layer, head)
    seen = payload.arrays.get(f"visible{number}")
    visible = seen if isinstance(seen, Tensor) else torch.full((about["queries"],), about["visible"])
    of_words = payload.meta.get("word_maps", False)  # sums over all heads
    words = about["name"] if of_words else f"{about['name']} · {name}"
    options = size if title is None else {"title": title, **size}
    if payload.view == "mixed":
        return _mixed(payload, about, weights, visible, query, words, options)
    if payload.view == "image":
        return _on_image(payload, about, weights, visible, query, words, options)
    _check_all_queries(query)
    lists = payload.meta["tokens"]
    rows = about["rows"] or range(about["queries"])
    asks, reads = (None if about[side] is None else lists[about[side]] for side in ("asks", "reads"))
    queries = [str(row) if asks is None else asks[row] for row in rows]
    return weight_map(
        weights, visible, queries=queries, keys=reads, pool=pool or "largest", **{"title": words, **options}
    )


def _layer(layers: list[dict[str, Any]], asked: int | str | None, opening: int) -> int:
    if asked is None:
        return opening
    names = [about["name"] for about in layers]
    if isinstance(asked, str) and asked in names:
        return names.index(asked)
    if isinstance(asked, int) and -len(layers) <= asked < len(layers):
        return asked % len(layers)
    raise ValueError(f"layer must be one of {', '.join(names)}, or a number below {len(names)}, got {describe(asked)}")


def _weights(payload: Payload, number: int, layer: Any, head: int | str | None) -> tuple[Tensor, str]:
    """The requested map, (queries, keys), and its name."""
    about = payload.meta["layers"][number]
    scores = about["statistics"]["structure"]
    best = payload.meta["opening"]["head"] if layer is None else scores.index(max(scores))
    return _of_head(_values(payload, f"map{number}"), about["heads"], head, best)


def _check_all_queries(query: int | None) -> None:
    if query is not None:
        raise ValueError(f"query is for an image; this figure shows all queries, got query={query}")


def _values(payload: Payload, name: str) -> Tensor:
    stored = payload.arrays[name]
    return stored if isinstance(stored, Tensor) else stored.values


def _of_head(values: Tensor, heads: list[int], asked: int | str | None, best: int) -> tuple[Tensor, str]:
    """The requested head or mean of (heads, queries, keys), by default the most structured head, and its name."""
    if asked == "mean":
        return values.mean(0), "mean over heads"
    if asked is None:
        return values[best], f"head {heads[best]}"
    if asked not in heads:
        raise ValueError(f'head must be "mean" or one of {heads}, got {describe(asked)}')
    return values[heads.index(int(asked))], f"head {asked}"


def _long(
    payload: Payload,
    layer: int | str | None,
    head: int | str | None,
    query: int | None,
    title: str | None,
    *,
    pool: Pool,
    **size: Any,
) -> Figure:
    """An overview: the mass that an average query of each cell's row gives to the keys of the cell, or its largest weight."""
    _check_all_queries(query)
    layers, opening = payload.meta["layers"], payload.meta["opening"]
    number = _layer(layers, layer, opening["layer"])
    about = layers[number]
    best = opening["head"] if layer is None else int(_values(payload, f"entropy{number}").mean(-1).argmin())
    shown, name = _of_head(_values(payload, f"{pool}{number}"), about["heads"], head, best)
    cells = [range(0, about[side], step) for side, step in zip(("queries", "keys"), about["cell"], strict=True)]
    lists = payload.meta["tokens"]
    labels = []
    for starts, side, first in zip(cells, ("asks", "reads"), about["first"], strict=True):
        said = [] if about[side] is None else lists[about[side]]
        numbers = [first + at for at in starts]
        labels.append([f"{at} {said[at]}" if at < len(said) else str(at) for at in numbers])
    words = f"{about['name']} · {name} · in cells of {about['cell'][0]} × {about['cell'][1]} {about['over']}"
    words += ", the largest weight of each" if pool == "largest" else ""
    uniform = torch.full((len(shown),), about["keys"] if pool == "largest" else shown.shape[1])
    return weight_map(shown, uniform, queries=labels[0], keys=labels[1], title=title or words, pool=pool, **size)


def _on_image(
    payload: Payload,
    about: dict[str, Any],
    weights: Tensor,
    visible: Tensor,
    query: int | None,
    words: str,
    options: Any,
) -> Figure:
    grid, prefix = about["query_grid"], about["query_prefix"]
    usual = 0 if prefix else grid[0] // 2 * grid[1] + grid[1] // 2
    asked, at = _row_of(about, query, [usual])
    patches = weights[at, about["prefix"] :].reshape(about["grid"])
    place = None if asked < prefix else divmod(asked - prefix, grid[1])
    image = payload.arrays.get("image")
    shown = image if isinstance(image, Tensor) else None
    mark = place if grid == about["grid"] else None
    title = f"{words} · query {asked}" if place is None else f"{words} · from patch {place}"
    return weight_image(patches, int(visible[at]), image=shown, query=mark, **{"title": title, **options})


def _row_of(about: dict[str, Any], query: int | None, usual: list[int]) -> tuple[int, int]:
    """The number of the query that was asked for, or of the last usual one that was captured; and its row."""
    rows = about["rows"] or list(range(about["queries"]))
    asked = next((row for row in reversed(usual) if row in rows), rows[0]) if query is None else query
    if asked not in rows:
        raise ValueError(f"query must be one of the {len(rows)} captured, up to {rows[-1]}, got {asked}")
    return asked, rows.index(asked)


def _mixed(
    payload: Payload,
    about: dict[str, Any],
    weights: Tensor,
    visible: Tensor,
    query: int | None,
    words: str,
    options: Any,
) -> Figure:
    """The weights of one query, on each picture and among the words."""
    names, segments, of_words = (payload.meta[name] for name in ("tokens", "segments", "word_maps"))
    texts, grids = ([each for each in segments if (each["grid"] is None) == is_text] for is_text in (True, False))
    places = [place for each in texts for place in range(each["start"], each["start"] + each["count"])]
    asked, at = _row_of(about, query, sorted(range(len(names)), key=set(places).__contains__))  # words come last
    row = weights[at]
    pictures = [row[each["start"] : each["start"] + each["count"]].reshape(each["grid"]) for each in grids]
    images = [payload.arrays.get(f"image{number}") for number in range(len(pictures))]
    text = [] if of_words else [(names[place], float(row[place])) for place in places if place < len(row)]
    shown = [image if isinstance(image, Tensor) else None for image in images]
    title = f"{words} · {'' if of_words else 'from '}{'' if asked in places else 'patch '}{plain_label(names[asked])}"
    return weight_segments(pictures, text, int(visible[at]), images=shown, **{"title": title, **options})


def _compared(
    payload: Payload,
    layer: int | str | None,
    head: int | str | None,
    query: int | None,
    title: str | None,
    *,
    pool: Pool,
    **size: float,
) -> Figure:
    """Both maps and their difference."""
    _check_all_queries(query)
    layers = payload.meta["layers"]
    number = _layer(layers, layer, payload.meta["opening"]["layer"])
    about = layers[number]
    if head is None:
        chosen = payload.meta["opening"]["head"] if layer is None else about["change"].index(max(about["change"]))
    elif head in about["heads"]:
        chosen = about["heads"].index(head)
    else:
        raise ValueError(f"head must be one of {about['heads']}, got {describe(head)}")
    first, second = payload.meta["names"]
    maps, texts = [], payload.meta["tokens"]
    for name in ("first", "second", "difference"):
        stored = payload.arrays[f"{name}{number}"]
        maps.append(stored[chosen] if isinstance(stored, Tensor) else stored.values[chosen])
    labels = [_compared_labels(side, text) for side, text in zip(about["sides"], texts, strict=True)]
    shared = [
        None if names is None else [names[pair[0]] for pair in about[axis]]
        for names, axis in zip(labels[0], ("rows", "columns"), strict=True)
    ]
    words = f"{about['name']} · head {about['heads'][chosen]}" if title is None else title
    return weight_maps(maps, [first, second, f"{second} − {first}"], [*labels, shared], title=words, pool=pool, **size)


def _compared_labels(side: dict[str, Any], text: list[str] | None) -> list[list[str] | None]:
    """The names of the queries and of the keys of one side; None where they are only numbered, from 0."""
    rows = side["rows"]
    asks, reads = (text if named else None for named in side["named"])
    numbers = range(side["queries"]) if rows is None else rows
    queries = None if asks is None and rows is None else [str(row) if asks is None else asks[row] for row in numbers]
    return [queries, None if reads is None else reads[: side["keys"]]]


def _heads(payload: Payload, title: str | None, width: float = 3.4) -> Figure:
    """Where the heads of each layer look at the last step, and how they got there."""
    layers = payload.meta["layers"]
    columns = max(1, min(len(layers), int(width / NARROWEST)))
    side = width / columns
    made, panels = new_figure(math.ceil(len(layers) / columns), columns, width=side, height=side)
    for panel in panels[len(layers) :]:
        panel.set_axis_off()
    for number, (panel, about) in enumerate(zip(panels, layers, strict=False)):
        center = payload.arrays[f"center{number}"]
        if not isinstance(center, Tensor):
            raise TypeError(f"center{number} must be a tensor, got {describe(center)}")
        plane = about["axes"] == 2
        for head in range(center.shape[1]):
            path = center[:, head].double()
            across = path[:, -1]
            down = path[:, 0] if plane else torch.full_like(across, head)
            color = COLORS[head % len(COLORS)]
            panel.plot(across.numpy(), down.numpy(), color=color, linewidth=0.6, alpha=0.6)
            panel.plot(across[-1:].numpy(), down[-1:].numpy(), "o", color=color, markersize=3)
            name = str(about.get("numbers", range(center.shape[1]))[head])
            panel.annotate(name, (across[-1], down[-1]), (2, 2), textcoords="offset points", fontsize=5)
        panel.axhline(0, color=GRAY, linewidth=0.4)
        panel.axvline(0, color=GRAY, linewidth=0.4)
        panel.invert_yaxis()
        tidy(panel, title=about["name"], x="columns away", y="rows away" if plane else "head")
        if plane:
            panel.set_aspect("equal", adjustable="datalim")  # a column is as wide as a row is high
        for text in (panel.title, panel.xaxis.label, panel.yaxis.label):
            text.set_fontsize(7)
        panel.tick_params(labelsize=6)
    if title:
        add_title(made, title)
    return finish(made, None)
