"""Gaussian heads: the formula entry by entry, the factorization over axes, borders, limits and extreme sharpness."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from regard.reference import border_source, fold, gaussian_attention, gaussian_scores, grid_coordinates

BORDERS = ("zeros", "reflect", "replicate", "circular")
grids = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def random(*shape, grad=False):
    return torch.randn(shape, dtype=torch.float64, requires_grad=grad)


def sharpness_of(kind, heads, axes):
    if kind == "scalar":
        return torch.rand(heads, dtype=torch.float64)
    if kind == "diagonal":
        return torch.rand(heads, axes, dtype=torch.float64)
    root = random(heads, axes, axes)
    return root @ root.mT


@given(grid=grids, heads=st.integers(1, 2), kind=st.sampled_from(["scalar", "diagonal", "matrix"]))
def test_scores_are_the_quadratic_form_of_key_minus_query_minus_center(grid, heads, kind):
    axes = len(grid)
    center, sharpness = random(heads, axes), sharpness_of(kind, heads, axes)
    scores = gaussian_scores(center, sharpness, grid)
    places = grid_coordinates(grid, dtype=torch.float64)
    assert scores.shape == (heads, len(places), len(places))
    q, k, h = (int(torch.randint(n, ())) for n in (len(places), len(places), heads))
    distance = places[k] - places[q] - center[h]
    matrix = {
        "scalar": lambda: sharpness[h] * torch.eye(axes, dtype=torch.float64),
        "diagonal": lambda: torch.diag(sharpness[h]),
        "matrix": lambda: sharpness[h],
    }[kind]()
    torch.testing.assert_close(scores[h, q, k], -distance @ matrix @ distance)


@given(grid=grids, border=st.sampled_from(("native", *BORDERS)), before=st.integers(0, 5), after=st.integers(0, 5))
def test_weights_factorize_into_one_axis_matrix_each(grid, border, before, after):
    axes = len(grid)
    center, sharpness = random(2, axes), torch.rand(2, axes, dtype=torch.float64)
    padding = None if border == "native" else [(before, after)] * axes
    _, weights = gaussian_attention(
        random(1, 2, math.prod(grid), 1), center, sharpness, grid, border=border, padding=padding
    )
    for head in range(2):
        product = torch.ones(1, 1, dtype=torch.float64)
        for axis, size in enumerate(grid):
            _, matrix = gaussian_attention(
                random(1, 1, size, 1),
                center[head : head + 1, axis : axis + 1],
                sharpness[head : head + 1, axis],
                (size,),
                border=border,
                padding=None if padding is None else padding[axis : axis + 1],
            )
            product = torch.kron(product, matrix[0])
        torch.testing.assert_close(weights[head], product)


@given(
    size=st.integers(1, 5),
    border=st.sampled_from(BORDERS),
    before=st.integers(0, 7),
    after=st.integers(0, 7),
    shift=st.integers(-5, 5),
)
def test_a_sharp_head_reads_the_padded_image_at_its_shift(size, border, before, after, shift):
    value = random(1, 1, size, 2)
    output, _ = gaussian_attention(
        value,
        torch.tensor([[float(shift)]]).double(),
        torch.tensor([500.0]).double(),
        (size,),
        border=border,
        padding=((before, after),),
    )
    source, inside = border_source(torch.arange(-before, size + after), size, border)
    padded = value[0, 0, source] * inside[:, None]
    for i in range(size):
        place = min(max(i + shift + before, 0), len(padded) - 1)  # beyond the padding the nearest one is best
        torch.testing.assert_close(output[0, 0, i], padded[place])


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@given(size=st.integers(2, 6), data=st.data())
def test_border_source_is_torchs_padding_where_torch_has_one(mode, size, data):
    most = size - 1 if mode == "reflect" else size
    before, after = data.draw(st.integers(0, most)), data.draw(st.integers(0, most))
    source, inside = border_source(torch.arange(-before, size + after), size, mode)
    expected = F.pad(torch.arange(size, dtype=torch.float64)[None, None], (before, after), mode=mode)
    assert source.tolist() == expected[0, 0].tolist()
    assert inside.all()


@given(size=st.integers(1, 5), pad=st.integers(0, 12), border=st.sampled_from(BORDERS))
def test_borders_are_defined_however_far_outside(size, pad, border):
    coordinates = torch.arange(-pad, size + pad)
    source, inside = border_source(coordinates, size, border)
    assert ((source >= 0) & (source < size)).all()
    within = (coordinates >= 0) & (coordinates < size)
    assert torch.equal(source[within], coordinates[within])
    assert torch.equal(inside, within if border == "zeros" else torch.ones_like(within))
    if border == "reflect" and size > 1:
        left, right = source[: 2 * pad + 1], source[-2 * pad - 1 :]  # centered on the first and the last coordinate
        assert torch.equal(left, left.flip(0))
        assert torch.equal(right, right.flip(0))
    if size == 1:
        assert (source == 0).all()


@given(grid=grids, border=st.sampled_from(BORDERS), pad=st.integers(0, 4))
def test_each_padded_token_comes_home_once_or_is_dropped(grid, border, pad):
    matrix = fold(grid, [(pad, pad)] * len(grid), border)
    assert matrix.shape == (math.prod(n + 2 * pad for n in grid), math.prod(grid))
    rows = matrix.sum(1)
    assert ((rows == 1) | ((rows == 0) & torch.tensor(border == "zeros"))).all()
    assert int(rows.sum()) == (math.prod(grid) if border == "zeros" else len(rows))


@given(border=st.sampled_from(("native", *BORDERS)), size=st.integers(1, 4), center=st.floats(-3, 3))
def test_weights_sum_to_one_save_what_zeros_drop(border, size, center):
    padding = None if border == "native" else ((2, 1),)
    head = torch.tensor([[center]], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    _, weights = gaussian_attention(random(1, 1, size, 1), *head, (size,), border=border, padding=padding)
    total = weights.sum(-1)
    if border == "zeros":
        assert (total < 1).all()
    else:
        torch.testing.assert_close(total, torch.ones_like(total))


@given(grid=grids)
def test_the_grid_itself_is_the_default_for_queries(grid):
    center, sharpness = random(2, len(grid)), torch.rand(2, dtype=torch.float64)
    queries = [torch.arange(n, dtype=torch.float64) for n in grid]
    torch.testing.assert_close(
        gaussian_scores(center, sharpness, grid, queries=queries), gaussian_scores(center, sharpness, grid)
    )


def test_moving_the_queries_is_moving_the_center():
    center, sharpness, value = random(2, 2), torch.rand(2, dtype=torch.float64), random(1, 2, 12, 3)
    queries = [torch.arange(3).double() + 0.3, torch.arange(4).double() - 7.5]
    moved = center + torch.tensor([0.3, -7.5]).double()
    torch.testing.assert_close(
        gaussian_attention(value, center, sharpness, (3, 4), queries=queries),
        gaussian_attention(value, moved, sharpness, (3, 4)),
    )
    fewer, _ = gaussian_attention(value, center, sharpness, (3, 4), queries=[queries[0][:2], queries[1][:1]])
    assert fewer.shape == (1, 2, 2, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sharpness", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("far", [0.0, 30.0, -1e4])
@pytest.mark.parametrize("border", ["native", "zeros", "reflect"])
def test_never_nan_however_sharp_and_however_far(dtype, sharpness, far, border):
    center = torch.tensor([[far, 0.5]], dtype=dtype, requires_grad=True)
    sharp = torch.tensor([sharpness], dtype=dtype, requires_grad=True)
    padding = None if border == "native" else ((1, 2), (0, 3))
    output, weights = gaussian_attention(
        torch.randn(1, 1, 12, 2).to(dtype), center, sharp, (3, 4), border=border, padding=padding
    )
    assert output.dtype == weights.dtype == dtype
    assert weights.isfinite().all()
    assert (weights.sum(-1) <= 1.02).all()
    gradients = torch.autograd.grad(output.float().square().sum(), (center, sharp))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("kind", ["scalar", "diagonal", "matrix"])
@pytest.mark.parametrize("border", ["native", "zeros", "circular"])
def test_gradients(kind, border):
    value, center = random(1, 2, 6, 2, grad=True), random(2, 2, grad=True)
    sharpness = sharpness_of(kind, 2, 2).requires_grad_()
    padding = None if border == "native" else ((1, 0), (2, 1))
    assert torch.autograd.gradcheck(
        lambda v, c, s: gaussian_attention(v, c, s, (2, 3), border=border, padding=padding), (value, center, sharpness)
    )


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (
            {"center": torch.ones(9, 2), "grid": (16, 16, 4)},
            ValueError,
            r"center has shape \(9, 2\) but grid \(16, 16, 4\) has 3",
        ),
        (
            {"sharpness": torch.ones(3)},
            ValueError,
            r"sharpness has shape \(3,\) but center .* needs \(2,\), \(2, 2\) or",
        ),
        ({"sharpness": torch.ones(2).double()}, TypeError, "sharpness is torch.float64 but center is torch.float32"),
        ({"sharpness": 1.0}, TypeError, "sharpness must be a tensor, got 1.0"),
        ({"border": "wrap"}, ValueError, "border must be one of 'native', 'zeros'.* got 'wrap'"),
        ({"border": "zeros"}, ValueError, "border='zeros' needs padding .* got None"),
        ({"border": "zeros", "padding": ((1, 1),)}, ValueError, r"border='zeros' needs padding .* got \(\(1, 1\),\)"),
        (
            {"border": "zeros", "padding": ((1, 1), (1, -1))},
            ValueError,
            r"needs padding .* got \(\(1, 1\), \(1, -1\)\)",
        ),
        ({"padding": ((1, 1), (1, 1))}, ValueError, "padding must be None if border is 'native'"),
        ({"queries": [torch.ones(2)]}, ValueError, "queries has 1 entries but the grid has 2 axes"),
        ({"grid": (2, -3)}, ValueError, r"grid must have sizes of 1 or more, got \(2, -3\)"),
    ],
)
@pytest.mark.usefixtures("user_errors")
def test_bad_input_is_named(arguments, error, says):
    good = {"value": torch.ones(1, 2, 6, 3), "center": torch.ones(2, 2), "sharpness": torch.ones(2), "grid": (2, 3)}
    with pytest.raises(error, match=says):
        gaussian_attention(**(good | arguments))
