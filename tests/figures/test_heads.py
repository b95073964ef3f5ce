"""figures.heads: the contours hold the mass they claim, and everything lies where it should."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import figures
from regard.figures._gaussian_heads import mass_contour


def positive(seed):
    torch.manual_seed(seed)
    root = torch.randn(2, 2, dtype=torch.float64)
    return root @ root.mT + 0.2 * torch.eye(2, dtype=torch.float64)


@given(seed=st.integers(0, 50), mass=st.sampled_from([0.5, 0.9]))
@settings(max_examples=10)
def test_a_contour_of_any_sharpness_matrix_holds_its_mass(seed, mass):
    matrix = positive(seed)
    axis = torch.linspace(-12, 12, 801, dtype=torch.float64)
    places = torch.cartesian_prod(axis, axis)
    form = ((places @ matrix) * places).sum(-1)
    density = torch.exp(-form)
    contour = mass_contour(matrix, mass)
    level = ((contour @ matrix) * contour).sum(-1)
    torch.testing.assert_close(level, torch.full_like(level, float(level.mean())))  # it is a contour
    inside = density[form <= level.mean()].sum() / density.sum()
    assert inside.item() == pytest.approx(mass, abs=5e-3)


@pytest.mark.parametrize("mass", [0.5, 0.9])
def test_an_interval_along_one_axis_holds_its_mass(mass):
    sharpness = torch.tensor([[0.7]], dtype=torch.float64)
    low, high = mass_contour(sharpness, mass)[:, 0].tolist()
    deviation = 1 / math.sqrt(2 * 0.7)  # e^(−αx²) is a normal density of variance 1/(2α)
    normal = torch.distributions.Normal(0.0, deviation)
    assert float(normal.cdf(torch.tensor(high)) - normal.cdf(torch.tensor(low))) == pytest.approx(mass, abs=1e-6)


def test_an_isotropic_contour_is_the_circle_of_the_formula():
    radius = mass_contour(0.3 * torch.eye(2, dtype=torch.float64), 0.9).norm(dim=-1)
    torch.testing.assert_close(radius, torch.full_like(radius, math.sqrt(math.log(10) / 0.3)))


def markers(panel):
    """(column, row) of each center."""
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in panel.lines if line.get_marker() == "o"]


def test_centers_stand_at_their_column_and_row_offsets_and_rows_run_down():
    center = torch.tensor([[-2.0, 3.0], [1.0, 0.5]])
    panel = figures.heads(center, torch.tensor([1.0, 2.0]), (8, 10)).axes[0]
    assert markers(panel) == [(3.0, -2.0), (0.5, 1.0)]
    assert [text.get_text() for text in panel.texts] == ["0", "1"]
    low, high = panel.get_ylim()
    assert low > high
    assert panel.get_xlim()[0] < -5.5 + 0.5
    assert panel.get_xlim()[1] > 4.5 - 0.5


def test_ellipses_are_long_where_sharpness_is_low():
    # Sharp along rows, blunt along columns: the contour is wide in the picture, and low.
    panel = figures.heads(torch.zeros(1, 2), torch.tensor([[4.0, 0.25]]), (8, 8)).axes[0]
    contour = next(line for line in panel.lines if len(line.get_xdata()) > 2)
    width = max(contour.get_xdata()) - min(contour.get_xdata())
    height = max(contour.get_ydata()) - min(contour.get_ydata())
    assert width / height == pytest.approx(math.sqrt(4.0 / 0.25), rel=1e-3)


def test_each_layer_has_a_panel_and_the_rest_stay_empty():
    centers = [torch.randn(n, 2) for n in (3, 3, 3, 3, 5)]
    sharpnesses = [
        torch.rand(3),
        torch.rand(3, 2),
        torch.stack([positive(n) for n in range(3)]).float(),
        torch.ones(3),
        torch.ones(5),
    ]
    figure = figures.heads(centers, sharpnesses, (6, 6), columns=3)
    assert [panel.get_visible() for panel in figure.axes] == [True] * 5 + [False]
    assert [panel.get_title() for panel in figure.axes[:5]] == [f"layer {n}" for n in range(1, 6)]
    named = figures.heads(centers[:2], sharpnesses[:2], titles=["early", "late"])
    assert [panel.get_title() for panel in named.axes] == ["early", "late"]


def edges(panel):
    """(rows, columns) of the outlined grid; the query's cell is outlined too."""
    outlines = [patch for patch in panel.patches if not patch.get_fill()]
    return [(patch.get_height(), patch.get_width()) for patch in outlines]


def test_each_layer_is_drawn_in_its_own_grid_which_fills_its_panel():
    center, sharpness = torch.tensor([[0.0, 1.0]]), torch.ones(1)
    figure = figures.heads([center] * 3, [sharpness] * 3, [(16, 8), (8, 4), None])
    assert [edges(panel) for panel in figure.axes[:3]] == [[(16, 8)], [(8, 4)], []]
    heights = [abs(low - high) for low, high in (panel.get_ylim() for panel in figure.axes[:2])]
    assert heights == pytest.approx([16 * 1.04, 8 * 1.04])
    assert [markers(panel) for panel in figure.axes[:3]] == [[(1.0, 0.0)]] * 3
    same = figures.heads([center] * 2, [sharpness] * 2, [(16, 8)] * 2)
    one = figures.heads([center] * 2, [sharpness] * 2, (16, 8))
    assert [panel.axis() for panel in same.axes] == [panel.axis() for panel in one.axes]


def test_a_head_that_spreads_without_end_is_named_and_drawn_without_a_contour():
    panel = figures.heads(torch.zeros(2, 2), torch.tensor([0.0, 1.0])).axes[0]
    assert panel.get_title() == "2 heads\nno contour: head 0"
    assert len(markers(panel)) == 2


def test_one_axis_is_drawn_as_bars_around_the_centers():
    panel = figures.heads(torch.tensor([[2.0], [-3.0]]), torch.tensor([0.5, 5.0]), (16,)).axes[0]
    assert markers(panel) == [(2.0, 0), (-3.0, 1)]
    bars = [line.get_xdata() for line in panel.lines if line.get_marker() != "o" and line.get_ydata()[0] == 0]
    assert [sum(bar) / 2 for bar in bars[-2:]] == pytest.approx([2.0, 2.0])


def test_trained_parameters_can_be_passed_as_they_are(tmp_path):
    center = torch.nn.Parameter(torch.randn(2, 2))
    sharpness = torch.nn.Parameter(torch.ones(2))
    for name in ("heads.png", "heads.svg"):
        figures.heads(center, sharpness, (4, 4), path=tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"center": torch.ones(2, 3)}, ValueError, r"center must be \(heads, 1\) or \(heads, 2\) to be drawn"),
        ({"sharpness": torch.ones(3)}, ValueError, r"sharpness has shape \(3,\)"),
        ({"sharpness": [torch.ones(2)]}, TypeError, "center and sharpness must both be tensors or both lists"),
        ({"center": [torch.ones(2, 2)], "sharpness": []}, ValueError, "center has 1 layers but sharpness has 0"),
        ({"grid": (8,)}, ValueError, r"center has shape \(2, 2\) but grid \(8,\) has 1 axes"),
        ({"grid": [(8, 8), None]}, ValueError, "grid has 2 entries, but there are 1 layers"),
        ({"grid": [(8, 0)]}, ValueError, "grid must have sizes of 1 or more"),
        ({"grid": 8}, TypeError, "grid must be a sequence of sizes"),
        ({"titles": ["a", "b"]}, ValueError, "titles has 2 entries, but there are 1 layers"),
        ({"columns": 0}, ValueError, "columns must be 1 or more, got 0"),
    ],
)
@pytest.mark.usefixtures("user_errors")
def test_bad_input_is_named(arguments, error, says):
    with pytest.raises(error, match=says):
        figures.heads(**({"center": torch.ones(2, 2), "sharpness": torch.ones(2)} | arguments))
