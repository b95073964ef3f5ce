"""The other pictures: what is drawn is what the formulas say."""

import itertools
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from regard import figures, reference
from regard.layers import AbsolutePositionalEmbedding


def image_of(panel):
    return torch.as_tensor(panel.images[0].get_array().filled(math.nan))


def test_a_table_is_shown_with_the_cosine_of_every_two_positions():
    table = torch.randn(6, 4)
    left, right = figures.absolute_positions(table).axes[:2]
    torch.testing.assert_close(image_of(left).float(), table)
    expected = nn.functional.cosine_similarity(table[:, None], table[None], dim=-1)
    torch.testing.assert_close(image_of(right).float(), expected)


def test_a_grid_is_a_picture_of_pictures():
    rows, columns = 3, 4
    table = torch.randn(rows, columns, 5)
    shown = image_of(figures.absolute_positions(table).axes[1])
    flat = table.flatten(0, 1)
    cosine = nn.functional.cosine_similarity(flat[:, None], flat[None], dim=-1)
    assert shown.shape == (rows * (rows + 1) - 1, columns * (columns + 1) - 1)
    for row in range(rows):
        for column in range(columns):
            top, left = row * (rows + 1), column * (columns + 1)
            small = shown[top : top + rows, left : left + columns]
            torch.testing.assert_close(small.float(), cosine[row * columns + column].reshape(rows, columns))
    assert shown[rows].isnan().all()
    again = image_of(figures.absolute_positions(flat, grid=(rows, columns)).axes[1])
    torch.testing.assert_close(again, shown, equal_nan=True)


def test_modules_show_their_own_table():
    embedding = nn.Embedding(5, 3)
    torch.testing.assert_close(
        image_of(figures.absolute_positions(embedding).axes[0]).float(), embedding.weight.detach()
    )
    module = AbsolutePositionalEmbedding(8, (2, 3), kind="learned")
    figure = figures.absolute_positions(module)
    torch.testing.assert_close(image_of(figure.axes[0]).float(), module.positions().detach())
    assert figure.axes[1].get_title() == "Cosine similarity of each position to all others"
    sequence = AbsolutePositionalEmbedding(8, kind="sinusoidal")
    shown = image_of(figures.absolute_positions(sequence, grid=(7,)).axes[0])
    torch.testing.assert_close(shown.float(), reference.sinusoidal_positions(7, 8))


def test_a_position_of_zeros_is_like_nothing_and_not_nan():
    shown = image_of(figures.absolute_positions(torch.tensor([[0.0, 0.0], [1.0, 0.0]])).axes[1])
    assert shown.tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize("sharpness", [torch.rand(2), torch.rand(2, 2), torch.eye(2).expand(2, 2, 2)])
def test_maps_are_rows_of_the_attention_matrix(sharpness):
    center, grid, queries = torch.randn(2, 2), (4, 5), [(0, 0), (3, 2)]
    figure = figures.relative_positions(center, sharpness, grid, queries=queries)
    _, weights = reference.gaussian_attention(torch.zeros(1, 2, 20, 1), center, sharpness, grid)
    panels = [panel for panel in figure.axes if panel.get_title()]
    assert len(panels) == 4
    for head in range(2):
        for number, (row, column) in enumerate(queries):
            panel = panels[2 * head + number]
            assert panel.get_title() == f"head {head}, query ({row}, {column})"
            torch.testing.assert_close(image_of(panel).float(), weights[head, row * 5 + column].reshape(grid))
            query, target = panel.lines[0], panel.lines[1]
            assert (query.get_xdata()[0], query.get_ydata()[0]) == (column, row)
            found = torch.tensor([target.get_ydata()[0] - row, target.get_xdata()[0] - column]).float()
            torch.testing.assert_close(found, center[head])


def test_a_target_outside_the_grid_is_still_in_the_picture():
    figure = figures.relative_positions(torch.tensor([[-6.0, 9.0]]), torch.ones(1), (4, 4))
    for panel in figure.axes[:3]:
        low, high = sorted(panel.get_xlim())
        assert low <= 0
        assert high >= 12
        assert min(panel.get_ylim()) <= -6


def test_maps_along_one_axis_are_bars():
    figure = figures.relative_positions(torch.tensor([[1.0]]), torch.tensor([0.5]), (6,), queries=[2, 5])
    _, weights = reference.gaussian_attention(torch.zeros(1, 1, 6, 1), torch.tensor([[1.0]]), torch.tensor([0.5]), (6,))
    for panel, query in zip(figure.axes, (2, 5), strict=True):
        assert [bar.get_height() for bar in panel.patches] == pytest.approx(weights[0, query].tolist(), abs=1e-6)


def test_default_queries_are_corner_middle_and_corner_once_each():
    figure = figures.relative_positions(torch.zeros(1, 2), torch.ones(1), (5, 6))
    assert [panel.get_title() for panel in figure.axes[:3]] == [
        f"head 0, query {q}" for q in ("(0, 0)", "(2, 3)", "(4, 5)")
    ]
    single = figures.relative_positions(torch.zeros(1, 2), torch.ones(1), (1, 1))
    assert len([panel for panel in single.axes if panel.get_title()]) == 1


@pytest.mark.parametrize(("center", "share"), [((1.0, 1.0), 1), ((0.5, 0.0), 2), ((0.5, -0.5), 4), ((20.0, 0.0), 1)])
def test_weights_reach_their_limits_and_the_gap_falls_below_any_bound(center, share):
    left, right = figures.limit(center).axes
    curves = [torch.as_tensor(line.get_ydata()) for line in left.lines if len(line.get_ydata()) > 2]
    gaps = [torch.as_tensor(line.get_ydata()) for line in right.lines]
    assert len(curves) == len(gaps) == 4
    goals = [1 / share, 0, 0, 0]
    for curve, gap, goal in zip(curves, gaps, goals, strict=True):
        torch.testing.assert_close(curve[-1], torch.tensor(goal, dtype=curve.dtype))
        torch.testing.assert_close((curve - goal).abs(), gap, atol=1e-12, rtol=1e-6)
        assert gap[-1] < 1e-14
        assert gap[0] > 1e-3
    assert right.get_xscale() == right.get_yscale() == "log"
    assert left.get_xscale() == left.get_yscale() == "linear"


def test_the_gap_is_drawn_without_cancellation():
    # At α = 40 the four neighbors hold 4·e^−40 ≈ 1.7e−17, less than float64 can take from one.
    gap = figures.limit().axes[1].lines[0].get_ydata()[-1]
    assert gap == pytest.approx(4 * math.exp(-40), rel=1e-6)


def test_gelu_shows_both_forms_and_their_difference():
    left, right = figures.gelu(-3, 3).axes
    curves = {line.get_label(): line for line in left.lines}
    x = torch.as_tensor(curves["exact (erf)"].get_xdata())
    assert (float(x[0]), float(x[-1])) == (-3, 3)
    exact = nn.functional.gelu(x)
    approximate = nn.functional.gelu(x, approximate="tanh")
    torch.testing.assert_close(torch.as_tensor(curves["exact (erf)"].get_ydata()), exact)
    torch.testing.assert_close(torch.as_tensor(curves["tanh form"].get_ydata()), approximate)
    gap = next(torch.as_tensor(line.get_ydata()) for line in right.lines if len(line.get_ydata()) > 2)
    torch.testing.assert_close(gap, approximate - exact)


def test_every_picture_can_be_saved(tmp_path):
    head = torch.zeros(1, 2), torch.ones(1)
    pictures = {
        "heads": lambda path: figures.heads(*head, (4, 4), path=path),
        "absolute": lambda path: figures.absolute_positions(torch.randn(4, 3), path=path),
        "relative": lambda path: figures.relative_positions(*head, (4, 4), path=path),
        "limit": lambda path: figures.limit(path=path),
        "gelu": lambda path: figures.gelu(path=str(path)),
    }
    for name, draw in pictures.items():
        draw(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_pyplot_is_left_alone_and_matplotlib_is_imported_only_to_draw():
    program = """
import sys
import regard
regard.figures
assert "matplotlib" not in sys.modules
regard.figures.gelu()
regard.figures.limit()
assert "matplotlib.pyplot" not in sys.modules
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done", done.stderr


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'regard\[train\]'"):
        figures.gelu()


@pytest.mark.parametrize(
    ("draw", "error", "says"),
    [
        (lambda: figures.absolute_positions([1.0]), TypeError, r"table must be a tensor, got \[1.0\]"),
        (
            lambda: figures.absolute_positions(torch.ones(4)),
            ValueError,
            "table must be .* got a float32 tensor of shape",
        ),
        (lambda: figures.absolute_positions(nn.Linear(2, 2)), TypeError, "table must be .* got Linear"),
        (
            lambda: figures.absolute_positions(torch.ones(4, 2), grid=(3, 2)),
            ValueError,
            r"grid \(3, 2\) has 6 cells but table has 4 positions",
        ),
        (
            lambda: figures.absolute_positions(torch.ones(2, 2, 3), grid=(4, 1)),
            ValueError,
            r"grid is \(4, 1\) but table has shape \(2, 2, 3\)",
        ),
        (
            lambda: figures.relative_positions(torch.ones(1, 3), torch.ones(1), (2, 2, 2)),
            ValueError,
            r"grid must have one or two axes to be drawn, got \(2, 2, 2\)",
        ),
        (
            lambda: figures.relative_positions(torch.ones(1, 2), torch.ones(1), (2, 2), queries=[(1,)]),
            ValueError,
            r"queries must hold 2 coordinate\(s\) each for grid \(2, 2\), got \(1,\)",
        ),
        (
            lambda: figures.relative_positions(torch.ones(1, 2), torch.ones(1), (2, 2), queries=[]),
            ValueError,
            "queries must be a list of coordinates",
        ),
        (lambda: figures.limit((1.0,)), ValueError, r"center must hold 2 number\(s\).* got \(1.0,\)"),
        (lambda: figures.limit((1.0, math.nan)), ValueError, "center must hold finite numbers"),
        (lambda: figures.limit(sharpness=torch.tensor([0.0, 1.0])), ValueError, "sharpness must be above 0.* 0.0"),
        (lambda: figures.limit(sharpness=torch.ones(2, 2)), ValueError, "sharpness must be a 1-D tensor"),
        (lambda: figures.limit(distances=0), ValueError, "distances must be a whole number of 1 or more, got 0"),
        (lambda: figures.gelu(3.0, 1.0), ValueError, "low must be below high, got low=3.0 and high=1.0"),
        (lambda: figures.gelu(low="a"), TypeError, "low must be a finite number, got 'a'"),
    ],
)
@pytest.mark.usefixtures("user_errors")
def test_bad_input_is_named(draw, error, says):
    with pytest.raises(error, match=says):
        draw()


LONG = "a title of many words " * 3 + "model.encoder.layers.11.self_attention.inner"


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.curves(LONG, LONG, LONG, {"a": ([1, 2], [1, 2])}),
        lambda: figures.bars(LONG, LONG, {"a": 1.0}),
        lambda: figures.matrices(LONG, {f"{LONG} {n}": torch.eye(3) for n in range(3)}, x=LONG, y=LONG),
        lambda: figures.head_paths(LONG, {f"{LONG} {n}": torch.zeros(2, 1, 2) for n in range(5)}),
        lambda: figures.heads([torch.zeros(1, 2)] * 3, [torch.ones(1)] * 3, (8, 8), titles=[LONG] * 3),
    ],
)
def test_long_texts_stay_inside_of_the_figure_and_beside_each_other(draw):
    figure = draw()
    figure.draw_without_rendering()
    titles = [panel.title.get_window_extent() for panel in figure.axes if panel.get_title()]
    labels = [axis.label.get_window_extent() for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    for box in (*titles, *labels, *(text.get_window_extent() for text in figure.texts)):
        assert box.width <= figure.bbox.width
        assert box.height <= figure.bbox.height
    for one, two in itertools.combinations(titles, 2):
        assert not one.overlaps(two)


def test_negative_entries_of_matrices_have_colors_of_their_own():
    first, second = (
        panel.images[0] for panel in figures.matrices("x", {"a": -torch.eye(2), "b": torch.eye(2)}).axes[:2]
    )
    assert first.get_clim() == second.get_clim() == (-1, 1)
    assert image_colors(first)[0, 0] != image_colors(second)[0, 0]
    assert image_colors(first)[0, 1] == image_colors(second)[0, 1]


def image_colors(image):
    """Each color as a number."""
    return torch.as_tensor(image.to_rgba(image.get_array(), bytes=True).astype("int64")) @ torch.tensor(
        [65536, 256, 1, 0]
    )


def test_a_single_value_and_one_between_missing_ones_are_seen():
    for values in ([1.0], [math.nan, 2.0, math.nan]):
        (line,) = figures.curves("x", "x", "y", {"a": (list(range(len(values))), values)}).axes[0].lines
        assert line.get_marker() == "o"
    assert figures.curves("x", "x", "y", {"a": ([1, 2], [1, 2])}).axes[0].lines[0].get_marker() == "None"
    figures.pruning_curve([(0, 0.1)])  # a warning is an error here


def test_a_run_that_diverged_has_learning_curves():
    lines = [
        {"step": 1, "loss": 2.0, "accuracy": 0.1},
        {"step": 1, "validation_loss": None, "validation_accuracy": 0.1},
    ]
    accuracy, loss = figures.learning_curves(lines).axes
    assert accuracy.lines[1].get_ydata().tolist() == [10.0]
    assert math.isnan(loss.lines[1].get_ydata()[0])
    assert loss.lines[0].get_marker() == "o"


def test_texts_are_measured_without_a_canvas_for_each(monkeypatch):
    """A canvas of a tall figure takes longer than everything that is drawn on it."""
    from matplotlib.backends import backend_agg

    made = []
    monkeypatch.setattr(
        backend_agg, "RendererAgg", lambda *size, one=backend_agg.RendererAgg: made.append(size) or one(*size)
    )
    figures.relative_positions(torch.zeros(2, 2), torch.ones(2), (4, 4))
    assert all(width * height == 1 for width, height, _ in made)
