"""The reference softargmax: torch's softmax for finite β, its two limits, and masks."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.reference import softargmax


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    beta=st.floats(0, 20),
    data=st.data(),
)
def test_equals_torchs_softmax_of_beta_times_scores_along_any_axis(shape, beta, data):
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    scores = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(softargmax(scores, beta, dim=dim), (beta * scores).softmax(dim))


def test_an_infinite_beta_is_the_limit_of_large_ones_and_ties_share():
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]], dtype=torch.float64)
    hard = softargmax(scores, math.inf)
    torch.testing.assert_close(hard, softargmax(scores, 1e4))
    assert hard.tolist() == [[0, 0.5, 0.5, 0], [0.25] * 4]


def test_a_beta_of_zero_ignores_the_scores_even_where_they_are_minus_infinity_or_huge():
    scores = torch.tensor([1e300, -1e300, -math.inf, 7.0], dtype=torch.float64)
    torch.testing.assert_close(softargmax(scores, 0.0), torch.tensor([1, 1, 0, 1], dtype=torch.float64) / 3)


@given(rows=st.integers(1, 4), columns=st.integers(1, 5), beta=st.sampled_from([0.0, 0.7, 30.0, math.inf]))
def test_masked_entries_have_no_say(rows, columns, beta):
    scores = torch.randn(rows, columns, dtype=torch.float64)
    keep = torch.rand(rows, columns) < 0.6
    weights = softargmax(scores, beta, keep=keep)
    for row in range(rows):
        kept = keep[row]
        assert (weights[row][~kept] == 0).all()
        if kept.any():
            torch.testing.assert_close(weights[row][kept], softargmax(scores[row][kept], beta))


def test_a_tensor_of_temperatures_is_one_temperature_per_row():
    scores = torch.randn(4, 5, dtype=torch.float64)
    beta = torch.tensor([[0.0], [0.5], [9.0], [math.inf]], dtype=torch.float64)
    rows = [softargmax(scores[i], float(beta[i])) for i in range(4)]
    torch.testing.assert_close(softargmax(scores, beta), torch.stack(rows))


@pytest.mark.parametrize("beta", [0.0, 1.3, math.inf])
def test_gradients_are_right_and_finite_with_a_row_that_keeps_nothing(beta):
    scores = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    keep = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])
    assert torch.autograd.gradcheck(lambda z: softargmax(z, beta, keep=keep), scores)
    weights = softargmax(scores, beta, keep=keep)
    assert weights[1].tolist() == [0, 0, 0, 0]
    (gradient,) = torch.autograd.grad(weights.square().sum(), scores)
    assert gradient.isfinite().all()


def test_gradient_into_beta():
    beta = torch.tensor([[0.3], [2.0]], dtype=torch.float64, requires_grad=True)
    scores = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softargmax, (scores, beta))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"beta": -1.0}, ValueError, r"beta must lie in \[0, ∞\], got -1.0"),
        (
            {"beta": torch.ones(3, 1)},
            ValueError,
            r"beta has shape \(3, 1\).*one temperature per slice, of shape",
        ),
        (
            {"beta": torch.ones(4, 2)},
            ValueError,
            r"beta has shape \(4, 2\).*one temperature per slice, of shape",
        ),
        ({"keep": torch.ones(4, 2)}, TypeError, "keep must be a boolean tensor"),
        ({"keep": torch.ones(2, dtype=torch.bool)}, ValueError, r"keep has shape \(2,\)"),
    ],
)
@pytest.mark.usefixtures("user_errors")
def test_bad_input_is_named(arguments, error, says):
    with pytest.raises(error, match=says):
        softargmax(**({"scores": torch.ones(4, 2)} | arguments))
