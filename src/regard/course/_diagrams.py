"""Diagrams of the notebooks: boxes and arrows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

INK, BLUE, ORANGE, GREEN, GRAY = "#22303c", "#cfe2f3", "#fbe0c3", "#d5ead0", "#e9edf0"


class Box(NamedTuple):
    """A label around a point; x and y are in units of a box's width and height."""

    x: float
    y: float
    text: str
    color: str = GRAY
    width: float = 0.82
    height: float = 0.62


Arrow = tuple[int | str, ...]  # an arrow between two boxes, by number, with an optional label

_ATTENTION = (
    [
        Box(0, 1, "tokens\n$h_1, h_2, h_3$"),
        Box(1.2, 2, "queries $q_i = W_q h_i$", BLUE, 1.1),
        Box(1.2, 1, "keys $k_j = W_k h_j$", ORANGE, 1.1),
        Box(1.2, 0, "values $v_j = W_v h_j$", GREEN, 1.1),
        Box(2.6, 1.5, "scores\n$q_i \\cdot k_j$", GRAY, 0.7),
        Box(3.6, 1.5, "softargmax$_\\beta$\nover $j$", GRAY),
        Box(4.6, 1.5, "weights $w_{ij}$\nrows sum to 1", GRAY),
        Box(5.75, 0.75, "output\n$w_{i1} v_1 + w_{i2} v_2 + \\dots$", GREEN, 1.1),
    ],
    [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (4, 5), (5, 6), (6, 7), (3, 7)],
    "Attention as boxes and arrows. Tokens are projected three times: to queries, keys and values. Queries and keys meet in "
    "the scores, softargmax over the keys turns each row of scores into weights that sum to one, and the weights mix the "
    "values into the output.",
)
_SEQUENCES = (
    [
        *[Box(t, 0, word, GRAY, 0.6, 0.5) for t, word in enumerate(("<U>", "s", "u", "n"))],
        *[Box(t, 1, f"$h_{t}$", BLUE, 0.6, 0.5) for t in range(4)],
        *[Box(5 + t, 1, f"$s_{t}$", ORANGE, 0.6, 0.5) for t in range(3)],
        *[Box(5 + t, 2.1, word, GREEN, 0.6, 0.5) for t, word in enumerate("SUN")],
        Box(1.5, 2.1, "context: the states $h_t$, weighted by softmax$(s \\cdot h_t)$", GRAY, 3.6, 0.5),
    ],
    [(0, 4), (1, 5), (2, 6), (3, 7), (4, 5), (5, 6), (6, 7), (7, 8, "the last state: all there is"), (8, 9), (9, 10),
     (8, 11), (9, 12), (10, 13), (4, 14), (5, 14), (6, 14), (7, 14), (14, 11, "attention: a second road")],
    "An encoder reads the tokens <U>, s, u, n one after the other, each state handed on to the next. The last state is all "
    "that a decoder without attention gets. With attention every step of the decoder also reads a context, a weighted sum of "
    "all the encoder's states, and says S, U, N.",
)  # fmt: skip
_TRANSFORMER = (
    [
        Box(0, 0, "source + positions"),
        Box(0, 1, "self-attention", BLUE),
        Box(0, 2, "add, norm"),
        Box(0, 3, "feed-forward", GREEN),
        Box(0, 4, "add, norm"),
        Box(1.7, 0, "target so far + positions", GRAY, 1.1),
        Box(1.7, 1, "self-attention, causal", BLUE, 1.1),
        Box(1.7, 2, "add, norm"),
        Box(1.7, 3, "cross-attention", ORANGE, 1.1),
        Box(1.7, 4, "add, norm"),
        Box(1.7, 5, "feed-forward", GREEN),
        Box(1.7, 6, "add, norm"),
        Box(1.7, 7, "next token"),
    ],
    [(0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (7, 8), (8, 9), (9, 10), (10, 11), (11, 12),
     (4, 8, "keys, values")],
    "The Transformer. An encoder layer is self-attention and a feed-forward network, each followed by adding the input and "
    "a norm. A decoder layer has causal self-attention, then cross-attention whose keys and values come from the encoder's "
    "output and whose queries are its own, then a feed-forward network.",
)  # fmt: skip
_VISION = (
    [
        Box(0, 1, "image"),
        Box(1, 1, "patches\n(a convolution\nwith stride)", BLUE, 0.82, 0.8),
        Box(2.05, 1, "class token in\nfront, plus learned\npositions", ORANGE, 1.0, 0.8),
        Box(3.3, 1.55, "norm, attention, plus x", GRAY, 1.15, 0.5),
        Box(3.3, 0.45, "norm, MLP, plus x", GRAY, 1.15, 0.5),
        Box(4.45, 1, "last norm,\nclass token", ORANGE),
        Box(5.5, 1, "linear head:\nclasses", GREEN),
    ],
    [(0, 1), (1, 2), (2, 3), (3, 4, "every block"), (4, 5), (5, 6)],
    "The vision transformer. An image is cut into patches, which is a convolution with a stride; a class token goes in "
    "front and learned positions are added; blocks of attention and MLP, each added to what came in, follow; the class "
    "token after the last norm goes through a linear head.",
)
_CONVOLUTION = (
    [
        Box(0, 1, "image\n(pixels are tokens)"),
        *[
            Box(1.6, 2.1 - 1.1 * row, f"head {row + 1}: looks at $\\Delta_{row + 1}$", BLUE, 1.2, 0.55)
            for row in range(3)
        ],
        *[
            Box(3.15, 2.1 - 1.1 * row, f"times $W_{row + 1}$, one\ntap of the kernel", ORANGE, 1.0, 0.55)
            for row in range(3)
        ],
        Box(4.4, 1, "sum + bias"),
        Box(5.5, 1, "as the convolution,\nif heads are sharp", GREEN, 0.95),
    ],
    [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6), (4, 7), (5, 7), (6, 7), (7, 8)],
    "Attention as a convolution. Every head looks from each pixel at one fixed offset; what it reads is multiplied by one "
    "tap of the kernel; the sum over heads, plus the bias, is the convolution if the heads are sharp.",
)
_DIAGRAMS: dict[str, tuple[Sequence[Box], Sequence[Arrow], str]] = {
    "attention": _ATTENTION,
    "sequences": _SEQUENCES,
    "transformer": _TRANSFORMER,
    "vision": _VISION,
    "convolution": _CONVOLUTION,
}


def diagram(name: str) -> Any:
    """A diagram of the course with its description: ``attention``, ``sequences``, ``transformer``, ``vision``, ``convolution``.

    >>> import regard.course
    >>> str(regard.course.diagram("attention"))[:10]
    'Attention '
    """
    from regard.course._pictures import picture

    if name not in _DIAGRAMS:
        raise ValueError(f"name must be one of {', '.join(_DIAGRAMS)}, got {name!r}")
    boxes, arrows, alt = _DIAGRAMS[name]
    return picture(_drawn(boxes, arrows), alt)


def _drawn(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> Figure:
    left, right = min(b.x - b.width / 2 for b in boxes), max(b.x + b.width / 2 for b in boxes)
    low, high = min(b.y - b.height / 2 for b in boxes), max(b.y + b.height / 2 for b in boxes)
    figure = Figure(figsize=(1.55 * (right - left) + 0.4, 0.75 * (high - low) + 0.3))
    panel = figure.add_axes((0, 0, 1, 1))
    panel.set(xlim=(left - 0.1, right + 0.1), ylim=(low - 0.2, high + 0.2))
    panel.set_axis_off()
    for box in boxes:
        corner = (box.x - box.width / 2, box.y - box.height / 2)
        shape = FancyBboxPatch(
            corner, box.width, box.height, boxstyle="round,pad=0,rounding_size=0.08", fc=box.color, ec=INK, lw=1
        )
        panel.add_patch(shape)
        panel.text(box.x, box.y, box.text, ha="center", va="center", fontsize=9, color=INK, linespacing=1.25)
    for start, end, *label in arrows:
        _arrow(panel, boxes[int(start)], boxes[int(end)], str(label[0]) if label else "")
    return figure


def _arrow(panel: Any, start: Box, end: Box, label: str) -> None:
    """An arrow between the facing sides of two boxes."""
    sideways = abs(end.x - start.x) - (start.width + end.width) / 2 > -0.05
    if sideways:
        way = 1 if end.x > start.x else -1
        a, b = (start.x + way * start.width / 2, start.y), (end.x - way * end.width / 2, end.y)
    else:
        way = 1 if end.y > start.y else -1
        # Vertical into a wide box, toward the middle of a narrow one.
        x = start.x if abs(start.x - end.x) < end.width / 2 else end.x
        a, b = (start.x, start.y + way * start.height / 2), (x, end.y - way * end.height / 2)
    panel.annotate("", b, a, arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.1, "shrinkA": 0, "shrinkB": 0})
    if label:
        middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)
        ha, dx, dy = ("center", 0.0, 0.16 + abs(a[1] - b[1]) / 4) if sideways else ("left", 0.06, 0.0)
        panel.text(middle[0] + dx, middle[1] + dy, label, ha=ha, va="center", fontsize=8, style="italic", color=INK)
