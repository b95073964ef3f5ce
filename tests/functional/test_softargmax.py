"""softargmax: equal to its formula, values and gradients, for every β, mask, axis and dtype."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import reference
from regard.functional import softargmax

BETAS = st.sampled_from([0.0, 0.25, 3.0, math.inf, "tensor"])


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    beta=BETAS,
    masked=st.booleans(),
    ties=st.booleans(),
    data=st.data(),
)
def test_equals_the_reference_values_and_gradients(shape, beta, masked, ties, data):
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    scores = torch.randn(shape, dtype=torch.float64)
    if ties:
        scores = scores.round()
    scores.requires_grad_()
    inputs = [scores]
    if beta == "tensor":
        sizes = [n if data.draw(st.booleans()) else 1 for n in shape]
        sizes[dim] = 1
        beta = torch.rand(sizes, dtype=torch.float64, requires_grad=True)
        inputs.append(beta)
    keep = torch.rand([n if data.draw(st.booleans()) else 1 for n in shape]) < 0.6 if masked else None
    ours = softargmax(scores, beta, keep=keep, dim=dim)
    formula = reference.softargmax(scores, beta, keep=keep, dim=dim)
    torch.testing.assert_close(ours, formula)
    upstream = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, upstream), torch.autograd.grad(formula, inputs, upstream)
    )


@pytest.mark.parametrize("beta", [1e5, 1e39, 1e300])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_finite_beta_however_large_is_never_nan(beta, dtype):
    scores = torch.tensor([60000.0, 50000.0, 60000.0, 65000.0], dtype=dtype, requires_grad=True)
    keep = torch.tensor([True, True, True, False])
    for temperature in (beta, torch.tensor(beta, dtype=torch.float64)):
        weights = softargmax(scores, temperature, keep=keep)
        assert weights.tolist() == [0.5, 0.0, 0.5, 0.0]
    (grad,) = torch.autograd.grad(softargmax(scores, beta, keep=keep)[1], scores)
    assert not grad.isnan().any()


def test_one_tensor_may_hold_every_kind_of_beta():
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    beta = torch.tensor([[0.0], [0.5], [9.0], [math.inf]], dtype=torch.float64)
    ours, formula = softargmax(scores, beta), reference.softargmax(scores, beta)
    torch.testing.assert_close(ours, formula)
    upstream = torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad(ours, scores, upstream), torch.autograd.grad(formula, scores, upstream)
    )


@pytest.mark.parametrize("beta", [0.0, 2.0, math.inf, torch.tensor([[0.0], [2.0], [math.inf]])])
def test_scores_of_minus_infinity_are_not_kept_whatever_beta(beta):
    scores = torch.tensor([[1.0, -math.inf, 1.0, 0.0]]).repeat(3, 1)
    kept = softargmax(scores.masked_fill(scores == -math.inf, 7.0), beta, keep=scores > -math.inf)
    torch.testing.assert_close(softargmax(scores, beta), kept)
    nothing = torch.full((3, 2), -math.inf, requires_grad=True)
    weights = softargmax(nothing, beta)
    assert (weights == 0).all()
    assert torch.autograd.grad(weights.sum(), nothing)[0].isfinite().all()


def test_a_score_of_minus_infinity_leaves_the_gradient_into_beta_finite():
    scores = torch.tensor([[1.0, -math.inf, 2.0]])
    beta = torch.tensor([[0.5]], requires_grad=True)
    expected = softargmax(scores[:, [0, 2]], beta)[0, 1]
    given = softargmax(scores, beta)[0, 2]
    torch.testing.assert_close(torch.autograd.grad(given, beta), torch.autograd.grad(expected, beta))


@pytest.mark.parametrize("beta", [0.0, 1.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_slice_with_nothing_to_keep_gives_zeros_and_finite_gradients(beta, dtype):
    scores = torch.randn(3, 4, dtype=dtype, requires_grad=True)
    keep = torch.tensor([True, False, True])[:, None]
    weights = softargmax(scores, beta, keep=keep)
    assert weights.dtype == dtype
    assert (weights[1] == 0).all()
    (gradient,) = torch.autograd.grad(weights.square().sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient[1] == 0).all()


@pytest.mark.parametrize("beta", [0.0, 1.0, math.inf])
def test_no_scores_at_all(beta):
    assert softargmax(torch.empty(2, 0), beta).shape == (2, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"scores": [1.0]}, TypeError, r"scores must be a tensor, got \[1.0\] \(list\)"),
        ({"scores": torch.ones(2, dtype=torch.long)}, TypeError, "scores must be a floating-point tensor, got a int64"),
        ({"scores": torch.tensor(1.0)}, ValueError, r"dim is -1 but scores has shape \(\)"),
        ({"beta": -1.0}, ValueError, r"beta must lie in \[0, ∞\], got -1.0"),
        ({"beta": math.nan}, ValueError, r"beta must lie in \[0, ∞\], got nan"),
        ({"beta": "hot"}, TypeError, "beta must be a number in .* got 'hot'"),
        ({"beta": True}, TypeError, "beta must be a number in .* got True"),
        (
            {"beta": torch.tensor([[1.0], [-2.0]])},
            ValueError,
            r"beta must lie in \[0, ∞\], but is a float32 tensor .* smallest value is -2.0",
        ),
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
        ({"dim": None}, TypeError, "dim must be the number of an axis, got None"),
        ({"dim": 2}, ValueError, r"dim is 2 but scores has shape \(4, 2\), 2 axes"),
        ({"keep": torch.ones(4, 2)}, TypeError, r"keep must be a boolean tensor \(True = attend\), got a float32"),
        ({"keep": torch.ones(2, dtype=torch.bool)}, ValueError, r"keep has shape \(2,\).*it needs 2 axes"),
        ({"keep": torch.ones(4, 3, dtype=torch.bool)}, ValueError, r"keep has shape \(4, 3\).*shape \(4, 2\)"),
    ],
)
@pytest.mark.usefixtures("user_errors")
def test_bad_input_is_named(arguments, error, says):
    with pytest.raises(error, match=says):
        softargmax(**({"scores": torch.ones(4, 2)} | arguments))
