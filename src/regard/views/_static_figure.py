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
        query: on an image, the number of the query; default: the first.
        width: in inches; default: one column.
        pool: what a cell of a large map shows, ``"largest"`` or ``"mass"``; default: mass for an overview, else the largest.
        title: default: the layer and the head.
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
    words = f"{about['name']} · {name}" if title is None else title
    if payload.view == "mixed":
        return _mixed(payload, about, weights, visible, query, words, size)
    if payload.view == "image":
        return _on_image(payload, about, weights, visible, query, words, size)
    _check_all_queries(query)
    lists = payload.meta["tokens"]
    rows = about["rows"] or range(about["queries"])
    asks, reads = (None if about[side] is None else lists[about[side]] for side in ("asks", "reads"))
    queries = [str(row) if asks is None else asks[row] for row in rows]
    return weight_map(weights, visible, queries=queries, keys=reads, title=words, pool=pool or "largest", **size)


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
    payload: Payload, about: dict[str, Any], weights: Tensor, visible: Tensor, query: int | None, words: str, size: Any
) -> Figure:
    rows = about["rows"] or list(range(about["queries"]))
    asked = rows[0] if query is None else query
    if asked not in rows:
        raise ValueError(f"query must be one of the {len(rows)} captured, up to {rows[-1]}, got {asked}")
    at = rows.index(asked)
    patches = weights[at, about["prefix"] :].reshape(about["grid"])
    place = None
    if about["query_grid"] is not None and asked >= about["query_prefix"]:
        place = divmod(asked - about["query_prefix"], about["query_grid"][1])
    image = payload.arrays.get("image")
    shown = image if isinstance(image, Tensor) else None
    mark = place if about["query_grid"] == about["grid"] else None
    return weight_image(patches, int(visible[at]), image=shown, query=mark, title=f"{words} · query {asked}", **size)


def _mixed(
    payload: Payload, about: dict[str, Any], weights: Tensor, visible: Tensor, query: int | None, words: str, size: Any
) -> Figure:
    """The weights of one query, on each picture and among the words."""
    rows = about["rows"] or list(range(about["queries"]))
    asked = rows[-1] if query is None else query
    if asked not in rows:
        raise ValueError(f"query must be one of the {len(rows)} captured, up to {rows[-1]}, got {asked}")
    row, names = weights[rows.index(asked)], payload.meta["tokens"]
    segments = payload.meta["segments"]
    grids = [(each["start"], each["grid"]) for each in segments if each["grid"] is not None]
    pictures = [row[start : start + grid[0] * grid[1]].reshape(grid) for start, grid in grids]
    images = [payload.arrays.get(f"image{number}") for number in range(len(pictures))]
    at = [
        place
        for each in segments
        if each["grid"] is None
        for place in range(each["start"], each["start"] + each["count"])
    ]
    text = [(names[place], float(row[place])) for place in at if place < len(row)]
    shown = [image if isinstance(image, Tensor) else None for image in images]
    title = f"{words} · from {plain_label(names[asked])}"
    return weight_segments(pictures, text, int(visible[rows.index(asked)]), images=shown, title=title, **size)


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
    made, panels = new_figure(
        1, len(layers), width=max(width / len(layers), 1.4), height=max(width / len(layers), 1.4) + 0.4
    )
    for number, (panel, about) in enumerate(zip(panels, layers, strict=True)):
        center = payload.arrays[f"center{number}"]
        if not isinstance(center, Tensor):
            raise TypeError(f"center{number} must be a tensor, got {describe(center)}")
        for head in range(center.shape[1]):
            path = center[:, head].double()
            across = path[:, -1]
            down = path[:, 0] if about["axes"] == 2 else torch.full_like(across, head)
            color = COLORS[head % len(COLORS)]
            panel.plot(across.numpy(), down.numpy(), color=color, linewidth=0.6, alpha=0.6)
            panel.plot(across[-1:].numpy(), down[-1:].numpy(), "o", color=color, markersize=3)
            panel.annotate(str(about.get("numbers", range(center.shape[1]))[head]), (across[-1], down[-1]), fontsize=5)
        panel.axhline(0, color=GRAY, linewidth=0.4)
        panel.axvline(0, color=GRAY, linewidth=0.4)
        panel.invert_yaxis()
        tidy(panel, title=about["name"], x="columns away", y="rows away" if about["axes"] == 2 else "head")
        panel.title.set_fontsize(7)
        panel.xaxis.label.set_fontsize(7)
        panel.yaxis.label.set_fontsize(7)
    if title:
        add_title(made, title)
    return finish(made, None)
