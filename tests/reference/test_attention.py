"""The reference attention: torch's fused kernel for finite β, the per-query form, masks, bias and the hard limit."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from regard.reference import (
    additive_attention,
    attention,
    attention_for_query,
    causal_keep,
    exponential_kernel,
    gaussian_kernel,
    kernel_regression,
    worked_example,
)


def random(*shape, grad=False):
    return torch.randn(shape, dtype=torch.float64, requires_grad=grad)


@given(
    lead=st.lists(st.integers(1, 3), max_size=3),
    queries=st.integers(1, 5),
    keys=st.integers(1, 5),
    beta=st.sampled_from([None, 0.0, 0.3, 4.0]),
    masked=st.booleans(),
)
def test_equals_the_fused_kernel_of_torch(lead, queries, keys, beta, masked):
    query, key, value = random(*lead, queries, 3), random(*lead, keys, 3), random(*lead, keys, 2)
    keep = torch.rand(queries, keys) < 0.7 if masked else torch.ones(queries, keys, dtype=torch.bool)
    keep[:, 0] = True  # torch's kernels disagree about a row with nothing to attend
    bias = random(*lead, queries, keys)
    output, weights = attention(query, key, value, beta=beta, keep=keep, bias=bias)
    expected = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias.masked_fill(~keep, -math.inf), scale=beta
    )
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights.sum(-1), torch.ones(*lead, queries, dtype=torch.float64))
    torch.testing.assert_close(weights @ value, output)


@given(queries=st.integers(1, 4), keys=st.integers(1, 5), beta=st.sampled_from([None, 0.0, 1.0, math.inf]))
def test_each_row_is_the_per_query_form(queries, keys, beta):
    query, key, value = random(queries, 3), random(keys, 3), random(keys, 2)
    output, _ = attention(query, key, value, beta=beta)
    rows = [attention_for_query(q, key, value, beta=beta) for q in query]
    torch.testing.assert_close(output, torch.stack(rows))


@given(queries=st.integers(1, 5), keys=st.integers(1, 5))
def test_causal_attention_is_aligned_at_the_end_so_that_a_cache_works(queries, keys):
    query, key, value = random(queries, 2), random(keys, 2), random(keys, 2)
    output, _ = attention(query, key, value, causal=True)
    for i in range(queries):
        seen = max(0, keys - (queries - 1 - i))
        expected = attention(query[i : i + 1], key[:seen], value[:seen])[0][0] if seen else torch.zeros(2).double()
        torch.testing.assert_close(output[i], expected)
    assert bool(causal_keep(queries, keys)[-1].all())


def test_the_hard_limit_breaks_ties_by_the_softmax_of_the_bias():
    query, key, value = torch.ones(1, 1), torch.tensor([[2.0], [1.0], [2.0], [2.0]]), torch.eye(4)
    bias = torch.tensor([[0.0, 9.0, math.log(3), -math.inf]])
    _, weights = attention(query, key, value, beta=math.inf, bias=bias)
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.0, 0.75, 0.0]]))
    _, soft = attention(query.double(), key.double(), value.double(), beta=1e6, bias=bias.double())
    torch.testing.assert_close(soft, weights.double())
    _, even = attention(query, key, value, beta=math.inf)
    torch.testing.assert_close(even, torch.tensor([[1.0, 0.0, 1.0, 1.0]]) / 3)


def test_the_hard_limit_looks_for_the_best_among_what_is_kept():
    query, key, value = torch.ones(1, 1), torch.tensor([[3.0], [2.0], [1.0]]), torch.eye(3)
    _, weights = attention(query, key, value, beta=math.inf, keep=torch.tensor([[False, True, True]]))
    assert weights.tolist() == [[0, 1, 0]]


def test_a_temperature_for_each_query():
    query, key, value = random(3, 2), random(4, 2), random(4, 2)
    beta = torch.tensor([[0.0], [1.5], [math.inf]], dtype=torch.float64)
    rows = [attention(query[i : i + 1], key, value, beta=float(beta[i]))[0][0] for i in range(3)]
    torch.testing.assert_close(attention(query, key, value, beta=beta)[0], torch.stack(rows))


@pytest.mark.parametrize("beta", [None, 0.0, math.inf])
def test_gradients_are_right_with_masks_bias_and_an_empty_row(beta):
    query, key, value, bias = random(3, 2, grad=True), random(4, 2, grad=True), random(4, 2, grad=True), random(3, 4)
    bias.requires_grad_()
    keep = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])

    def run(query, key, value, bias):
        return attention(query, key, value, beta=beta, bias=bias, keep=keep)

    assert torch.autograd.gradcheck(run, (query, key, value, bias))
    output, weights = run(query, key, value, bias)
    assert output[1].tolist() == [0, 0]
    assert weights[1].tolist() == [0] * 4
    gradients = torch.autograd.grad(output.square().sum(), (query, key, value, bias))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_no_keys_at_all_give_zeros():
    output, weights = attention(random(2, 3), random(0, 3), random(0, 4))
    assert output.tolist() == [[0] * 4] * 2
    assert weights.shape == (2, 0)
    assert attention_for_query(random(3), random(0, 3), random(0, 4)).tolist() == [0] * 4


@given(queries=st.integers(1, 4), keys=st.integers(1, 5), beta=st.floats(0, 2))
def test_attention_is_kernel_regression_with_an_exponential_kernel(queries, keys, beta):
    query, key, value = random(queries, 3), random(keys, 3), random(keys, 2)
    expected, _ = attention(query, key, value, beta=beta)
    torch.testing.assert_close(kernel_regression(query, key, value, exponential_kernel(beta)), expected)


def test_kernel_regression_with_a_gaussian_kernel():
    x, x_train, y_train = random(3, 2), random(5, 2), random(5, 1)
    distance = torch.cdist(x, x_train)
    expected = (-distance.square() / (2 * 0.7**2)).softmax(-1) @ y_train
    torch.testing.assert_close(kernel_regression(x, x_train, y_train, gaussian_kernel(0.7)), expected)
    far = kernel_regression(torch.full((1, 2), 1e6).double(), x_train, y_train, gaussian_kernel(0.7))
    assert far.tolist() == [[0]]


def test_additive_attention_is_the_written_out_sum():
    query, key, value = random(2, 3, 4), random(2, 5, 6), random(2, 5, 2)
    w_query, w_key, w_score, b_hidden = random(7, 4), random(7, 6), random(7), random(7)
    keep = torch.rand(2, 1, 5) < 0.7
    keep[0, 0, 0] = True
    keep[1] = False
    output, weights = additive_attention(query, key, value, w_query, w_key, w_score, b_hidden=b_hidden, keep=keep)
    for i in range(3):
        scores = torch.stack([w_score @ torch.tanh(w_query @ query[0, i] + w_key @ k + b_hidden) for k in key[0]])
        expected = scores.masked_fill(~keep[0, 0], -math.inf).softmax(0)
        torch.testing.assert_close(weights[0, i], expected)
        torch.testing.assert_close(output[0, i], expected @ value[0])
    assert (output[1] == 0).all()


def test_gradients_of_additive_attention():
    inputs = [random(*s, grad=True) for s in ((2, 3), (4, 2), (4, 2), (3, 3), (3, 2), (3,))]
    assert torch.autograd.gradcheck(additive_attention, inputs)


def test_the_worked_example_gives_the_numbers_computed_by_hand():
    example = worked_example()
    assert example.scores.tolist() == [1054, 852, -396]
    assert example.hard.tolist() == [23, 46]
    torch.testing.assert_close(example.soft, example.hard)  # e^(852 − 1054) is nothing beside 1
    values = example.hidden @ example.w_value.T
    assert values.tolist() == [[23, 46], [25, 39], [10, -12]]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"beta": -0.1}, ValueError, "beta must lie in"),
        ({"beta": torch.ones(4)}, ValueError, r"beta has shape \(4,\)"),
        ({"keep": torch.ones(2, 4)}, TypeError, "keep must be a boolean tensor"),
        ({"keep": torch.ones(4, dtype=torch.bool)}, ValueError, r"keep has shape \(4,\).*scores of shape \(2, 4\)"),
        ({"bias": torch.ones(2, 3)}, ValueError, r"bias has shape \(2, 3\).*scores of shape \(2, 4\)"),
    ],
)
@pytest.mark.usefixtures("user_errors")
def test_bad_input_is_named(arguments, error, says):
    good = {"query": torch.ones(2, 3), "key": torch.ones(4, 3), "value": torch.ones(4, 2)}
    with pytest.raises(error, match=says):
        attention(**(good | arguments))


@pytest.mark.usefixtures("user_errors")
def test_bad_kernels_are_named():
    x, y = torch.ones(2, 3), torch.ones(4, 1)
    with pytest.raises(ValueError, match=r"kernel gave shape \(2, 4, 3\).*\(2, 4\)"):
        kernel_regression(x, torch.ones(4, 3), y, lambda a, b: a + b)
