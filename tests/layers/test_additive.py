"""Additive attention equals its formula."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import reference
from regard.layers import AdditiveAttention


@given(
    sizes=st.tuples(*[st.integers(1, 4)] * 4),
    bias=st.booleans(),
    own_value=st.booleans(),
    masked=st.sampled_from([None, "batch", "all", "pairs"]),
    projected=st.booleans(),
)
def test_values_and_gradients_equal_the_reference(sizes, bias, own_value, masked, projected):
    queries, keys, query_dim, key_dim = sizes
    layer = AdditiveAttention(query_dim, key_dim, 3, bias=bias).double()
    assert (layer.query.bias is not None) == bias
    query = torch.randn(2, queries, query_dim, dtype=torch.float64)
    key = torch.randn(2, keys, key_dim, dtype=torch.float64)
    value = torch.randn(2, keys, 5, dtype=torch.float64) if own_value else None
    shapes = {"batch": (2, 1, keys), "all": (2, queries, keys), "pairs": (queries, keys)}
    keep = None if masked is None else torch.rand(shapes[masked]) < 0.6
    expected, expected_weights = reference.additive_attention(
        query,
        key,
        key if value is None else value,
        layer.query.weight,
        layer.key.weight,
        layer.score.weight[0],
        b_hidden=layer.query.bias,
        keep=keep,
    )
    options = {"keep": keep, "projected_key": layer.project_keys(key) if projected else None}
    out, weights = layer(query, key, value, **options, return_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(layer(query, key, value, **options), expected)
    parameters = list(layer.parameters())
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), parameters) for y in (out, expected)))


def test_a_query_with_nothing_to_attend_gives_zeros_and_finite_gradients():
    layer = AdditiveAttention(3, 4)
    keep = torch.tensor([[[False, False]], [[True, False]]])
    out, weights = layer(torch.randn(2, 1, 3), torch.randn(2, 2, 4), keep=keep, return_weights=True)
    assert torch.equal(out[0], torch.zeros(1, 4))
    assert torch.equal(weights[1, 0], torch.tensor([1.0, 0.0]))
    out.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("held", [math.nan, math.inf])
@pytest.mark.parametrize("projected", [False, True])
def test_what_hidden_keys_hold_has_no_effect(held, projected):
    layer, query, key = AdditiveAttention(4, 6), torch.randn(2, 3, 4), torch.randn(2, 5, 6)
    keep = torch.tensor([[True, True, False, True, False], [True, False, True, True, True]])[:, None]
    bad = key.masked_fill(~keep.mT, held)
    out = layer(query, bad, keep=keep, projected_key=layer.project_keys(bad) if projected else None)
    torch.testing.assert_close(out, layer(query, key, keep=keep))
    if not projected:
        out.square().sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_bad_input_is_named(user_errors):
    layer = AdditiveAttention(3, 4, 5)
    query, key = torch.zeros(2, 1, 3), torch.zeros(2, 6, 4)
    for arguments, options, message in (
        ((query[0], key), {}, "query has shape"),
        ((key, key), {}, "query has shape .* last axis must be 3 wide"),
        ((query, key[:1]), {}, "key has batch size 1 but query has 2"),
        ((query, key, key[:, :5]), {}, "value has 5 tokens but key has 6"),
        ((query, key), {"projected_key": key}, "projected_key has shape .* must be 5 wide"),
        ((query, key), {"keep": torch.ones(2, 6, dtype=torch.bool)}, r"keep has shape \(2, 6\)"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(*arguments, **options)
    with pytest.raises(TypeError, match="keep must be a boolean tensor"):
        layer(query, key, keep=torch.ones(1, 6))
    with pytest.raises(ValueError, match="hidden must be 1 or more"):
        AdditiveAttention(3, 4, 0)
    assert "query_dim=3, key_dim=4, hidden=5" in repr(layer)
