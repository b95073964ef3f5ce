"""The attention of a network on one sample: maps over an image, or the alignment of two sentences."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.figures._checks import check_finite, is_drawable, is_matrix, is_pair_of_numbers
from regard.figures._color_scale import add_color_bar, paint
from regard.figures._weights import weight_map
from regard.figures.style import COLORS, Axes, Figure, PathArgument, finish, frame, new_figure, plain
from regard.maps import Layout, Map, Maps, check_maps
from regard.support.checks import check_sides, describe

MOST_LAYERS, MOST_HEADS = 12, 12
WIDEST = 12.0  # inches of an alignment


def image_attention(
    maps: Maps | Sequence[Map],
    image: UInt8[Tensor, "channels height width"],
    *,
    query: tuple[int, int] | None = None,
    grid: tuple[int, int] | None = None,
    path: PathArgument = None,
) -> Figure | None:
    """Where each head of each layer looks from one token of an image: a row per layer, a column per head.

    All heads share one color scale, relative to uniform attention over the tokens of the layer.

    Args:
        maps: the maps of one pass over the image. Maps without a grid are omitted, maps from tokens that are no part of the
            image (learned queries), and maps whose ``rows=`` do not include the query; if none is left, the result is None.
        image: the image for display.
        query: (row, column) of the query, on the grid of the first layer; the center by default. Layers with fewer
            tokens show the token at the same place. Layers with a class token show where the class token looks instead,
            since the class is computed from it.
        grid: the grid of tokens, if the maps do not declare it.
        path: where to save the figure.

    >>> model = regard.models.VisionTransformer(16, 4, 3, dim=8, depth=2, heads=2, pool="average")
    >>> with torch.no_grad(), regard.capture(model) as maps:
    ...     _ = model(torch.randn(1, 3, 16, 16))
    >>> figure = regard.figures.image_attention(maps, torch.zeros(3, 16, 16, dtype=torch.uint8), query=(1, 2))
    >>> len(figure.axes)  # for both layers the image and two heads; a color bar
    7
    """
    maps = check_maps(maps)
    if not is_drawable(image) or image.ndim != 3 or image.shape[0] not in (1, 3) or not image.numel():
        raise ValueError(f"image must be (channels, height, width) with 1 or 3 channels, got {describe(image)}")
    if query is not None and (not is_pair_of_numbers(query) or any(not isinstance(at, int) for at in query)):
        raise TypeError(f"query must be (row, column), got {describe(query)}")
    if grid is not None:
        grid = check_sides("grid", grid)
    on_grid = [found for found in maps.values() if _is_on_grid(found, grid)]
    if not on_grid:
        return None
    first = _asking(on_grid[0], grid).grid
    if query is not None and not all(0 <= at < size for at, size in zip(query, first, strict=True)):
        raise ValueError(f"query is {query}, but must lie on the grid {first} of the first layer")

    # The map, the layout of its queries, the place of the query on it, and its weights (heads, keys).
    shown: list[tuple[Map, Layout, tuple[int, int], Tensor]] = []
    for found in on_grid:
        asking = _asking(found, grid)
        rows, columns = asking.grid
        at = (
            (rows // 2, columns // 2)
            if query is None
            else (query[0] * rows // first[0], query[1] * columns // first[1])
        )
        row = _row(found, asking, at)
        if row is not None and len(shown) < MOST_LAYERS:
            check_finite(f"maps[{found.name!r}].weights", found.weights)
            shown.append((found, asking, at, found.weights[0, :, row]))
    if not shown:
        return None
    heads = min(MOST_HEADS, max(found.shape[1] for found, *_ in shown))
    figure, panels = new_figure(len(shown), heads + 1, width=1.3, height=1.45)
    for panel in panels:
        panel.set_axis_off()
    top = float(max(found.shape[3] for found, *_ in shown))
    signed = any(bool((weights < 0).any()) for *_, weights in shown)
    painted = None
    for number, (found, asking, at, weights) in enumerate(shown):
        line = panels[number * (heads + 1) : (number + 1) * (heads + 1)]
        _draw_image(line[0], found, asking, image, at)
        painted = _draw_heads(line[1:], found, found.layout(grid), weights, top, signed)
    seen = "the class token" if shown[0][1].prefix else "the marked token"
    add_color_bar(figure, panels, painted, top, signed, f"Where heads look from {seen}")
    return finish(figure, path)


def _draw_image(panel: Axes, found: Any, asking: Layout, image: Tensor, at: tuple[int, int]) -> None:
    """The image with the query marked."""
    from matplotlib.patches import Rectangle

    rows, columns = asking.grid
    pixels = image.permute(1, 2, 0).cpu().numpy()
    panel.imshow(pixels if pixels.shape[2] == 3 else pixels[:, :, 0], cmap="gray", vmin=0, vmax=255)
    panel.set_title(found.name.removesuffix(".inner").removesuffix(".attention"), fontsize=7)
    if not asking.prefix and found.latest.shape[2] > 1:
        height, width = image.shape[1] / rows, image.shape[2] / columns
        corner = (at[1] * width - 0.5, at[0] * height - 0.5)  # pixels are drawn around whole numbers
        panel.add_patch(Rectangle(corner, width, height, facecolor="none", edgecolor=COLORS[1]))


def _draw_heads(panels: Sequence[Axes], found: Any, layout: Layout, weights: Tensor, top: float, signed: bool) -> Any:
    """The weights of each head, (heads, keys); returns the last picture, for the color bar."""
    numbers = found.latest.heads or range(len(weights))
    for number, row, panel in zip(numbers, weights[:, layout.prefix :], panels, strict=False):
        painted = paint(panel, plain(row).reshape(layout.grid) * found.shape[3], top, signed)
        panel.set_aspect("equal")
        frame(panel)
        panel.set_title(f"head {number}", fontsize=7)
    return painted


def _asking(found: Map, grid: tuple[int, int] | None) -> Layout:
    """The layout of the queries, which may be more tokens than the keys."""
    return found.latest.query_layout or found.layout(grid)


def _row(found: Map, asking: Layout, at: tuple[int, int]) -> int | None:
    """The place of the query among the rows that were kept: the class token, or the one at this place of the grid. None if it
    is not there, or if queries are no tokens of the grid; but a single one is drawn."""
    rows = found.latest.rows
    asked = found.latest.shape[2] if rows is None else found.latest.asked
    if asked not in (None, 1, asking.tokens):
        return None
    number = 0 if asking.prefix or asked == 1 else at[0] * asking.grid[1] + at[1]
    if rows is None:
        return number
    return rows.index(number) if number in rows else None


def _is_on_grid(found: Any, grid: tuple[int, int] | None) -> bool:
    try:
        return found.over == "tokens" and len(found.layout(grid).grid) == len(_asking(found, grid).grid) == 2
    except ValueError:
        return False


def alignment(
    weights: Float[Tensor, "written read"],
    read: Sequence[str],
    written: Sequence[str],
    *,
    path: PathArgument = None,
) -> Figure:
    """The alignment of two sentences: how much each written token (rows) attends to each read token (columns). Long sentences
    are pooled, and have a label for every few tokens.

    >>> figure = regard.figures.alignment(torch.eye(2), ["a", " "], ["A", " "])
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['a', '␣']
    """
    if not is_matrix(weights):
        raise ValueError(f"weights must be a matrix (written, read), got {describe(weights)}")
    for name, tokens, count in (("read", read, weights.shape[1]), ("written", written, weights.shape[0])):
        if not isinstance(tokens, str | list | tuple) or not all(isinstance(token, str) for token in tokens):
            raise TypeError(f"{name} must be strings, got {describe(tokens)}")
        if len(tokens) != count:
            raise ValueError(f"{name} is {describe(tokens)}, but must have {count} tokens, as weights has")
    check_finite("weights", weights)
    visible = torch.full((len(written),), len(read))
    title = "Attention of each written token to each one read"
    width = min(WIDEST, max(4.8, 0.16 * len(read) + 1.6))
    return finish(
        weight_map(weights, visible, queries=written, keys=read, title=title, width=width, axes=("written", "read")),
        path,
    )
