"""The attention of a network on one sample: maps over an image, or the alignment of two sentences."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, UInt8
from torch import Tensor

from regard.figures._checks import is_drawable, is_matrix, is_pair_of_numbers
from regard.figures._color_scale import add_color_bar, paint, scale_position
from regard.figures._label_fonts import token_labels
from regard.figures.style import COLORS, Axes, Figure, PathArgument, finish, frame, new_figure, plain
from regard.maps import Map, Maps, check_maps
from regard.support.checks import check_sides, describe

MOST_LAYERS, MOST_HEADS = 12, 12


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
        maps: the maps of one pass over the image. Maps without a grid are omitted, and maps whose ``rows=`` do not include the
            query; if none is left, the result is None.
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
    first = on_grid[0].layout(grid).grid
    if query is not None and not all(0 <= at < size for at, size in zip(query, first, strict=True)):
        raise ValueError(f"query is {query}, but must lie on the grid {first} of the first layer")

    def place(found: Map) -> tuple[int, int]:
        rows, columns = found.layout(grid).grid
        if query is None:
            return rows // 2, columns // 2
        return query[0] * rows // first[0], query[1] * columns // first[1]

    shown = [found for found in on_grid if _row(found, found.layout(grid), place(found)) is not None][:MOST_LAYERS]
    if not shown:
        return None
    heads = min(MOST_HEADS, max(found.shape[1] for found in shown))
    figure, panels = new_figure(len(shown), heads + 1, width=1.3, height=1.45)
    for panel in panels:
        panel.set_axis_off()
    top = float(max(found.shape[3] for found in shown))
    painted = None
    for row, found in enumerate(shown):
        line = panels[row * (heads + 1) : (row + 1) * (heads + 1)]
        painted = _draw_layer(line, found, found.layout(grid), image, place(found), top)
    seen = "the class token" if shown[0].layout(grid).prefix else "the marked token"
    add_color_bar(figure, panels, painted, top, False, f"Where heads look from {seen}")
    return finish(figure, path)


def _draw_layer(panels: Sequence[Axes], found: Any, layout: Any, image: Tensor, at: tuple[int, int], top: float) -> Any:
    """Draw the image with the query marked, then the weights of each head; returns the last image for the color bar."""
    from matplotlib.patches import Rectangle

    rows, columns = layout.grid
    pixels = image.permute(1, 2, 0).cpu().numpy()
    panels[0].imshow(pixels if pixels.shape[2] == 3 else pixels[:, :, 0], cmap="gray", vmin=0, vmax=255)
    panels[0].set_title(found.name.removesuffix(".inner").removesuffix(".attention"), fontsize=7)
    if not layout.prefix and found.latest.shape[2] > 1:
        height, width = image.shape[1] / rows, image.shape[2] / columns
        corner = (at[1] * width - 0.5, at[0] * height - 0.5)  # pixels are drawn around whole numbers
        panels[0].add_patch(Rectangle(corner, width, height, facecolor="none", edgecolor=COLORS[1]))
    weights = found.weights[0, :, _row(found, layout, at), layout.prefix :]
    numbers = found.latest.heads or range(len(weights))
    for number, row, panel in zip(numbers, weights, panels[1:], strict=False):
        lift = plain(row).reshape(rows, columns) * found.shape[3]
        painted = paint(panel, scale_position(lift, top))
        panel.set_aspect("equal")
        frame(panel)
        panel.set_title(f"head {number}", fontsize=7)
    return painted


def _row(found: Map, layout: Any, at: tuple[int, int]) -> int | None:
    """The place of the query among the rows that were kept: the class token, or the one at this place of the grid."""
    rows, queries = found.latest.rows, found.latest.shape[2]
    number = 0 if layout.prefix or queries == 1 else at[0] * layout.grid[1] + at[1]
    if rows is None:
        return number
    return rows.index(number) if number in rows else None


def _is_on_grid(found: Any, grid: tuple[int, int] | None) -> bool:
    try:
        return len(found.layout(grid).grid) == 2
    except ValueError:
        return False


def alignment(
    weights: Float[Tensor, "written read"],
    read: Sequence[str],
    written: Sequence[str],
    *,
    path: PathArgument = None,
) -> Figure:
    """The alignment of two sentences: how much each written token (rows) attends to each read token (columns).

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
    size = max(4.8, 0.16 * max(len(read), len(written)) + 1.6)  # the title fits
    figure, [panel] = new_figure(1, 1, width=size, height=size)
    top = float(weights.shape[1])
    painted = paint(panel, scale_position(plain(weights) * top, top))
    panel.set_aspect("equal")
    for set_ticks, tokens in ((panel.set_xticks, read), (panel.set_yticks, written)):
        names, fonts = token_labels(tokens)
        set_ticks(range(len(tokens)), labels=names, fontsize=7, fontfamily=fonts)
    panel.xaxis.tick_top()
    panel.set_title("Attention of each written character to each one read", fontsize=9)
    panel.set_xlabel("read", fontsize=8)
    panel.set_ylabel("written", fontsize=8)
    add_color_bar(figure, panel, painted, top, bool((weights < 0).any()), "")
    return finish(figure, path)
