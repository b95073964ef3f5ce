"""Pooling heads: one vector out of any number of tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import reference
from regard.layers import AttentionPooling, AveragePooling, ClassTokenPooling


@given(tokens=st.integers(1, 5), dim=st.integers(1, 4))
def test_the_class_token_goes_in_front_and_is_read_back(tokens, dim):
    pool, x = ClassTokenPooling(dim), torch.randn(2, tokens, dim)
    longer = pool.prepend(x)
    assert torch.equal(longer[:, 1:], x)
    assert torch.equal(pool(longer), pool.token.expand(2, dim))
    pool(longer).sum().backward()
    assert torch.equal(pool.token.grad, torch.full((dim,), 2.0))


@given(tokens=st.integers(1, 5))
def test_the_average_is_that_of_the_kept(tokens):
    x, keep = torch.randn(3, tokens, 4, dtype=torch.float64), torch.rand(3, tokens) < 0.6
    pool = AveragePooling()
    torch.testing.assert_close(pool(x), x.sum(1) / tokens)
    hidden = x.masked_fill(~keep[..., None], float("nan"))
    for item in range(3):
        kept = x[item, keep[item]]
        expected = kept.sum(0) / max(len(kept), 1)
        torch.testing.assert_close(pool(hidden, keep=keep)[item], expected)  # what is hidden does not count, even NaN


@given(tokens=st.integers(1, 5), heads=st.integers(1, 3), masked=st.booleans())
def test_attention_pooling_equals_its_formula(tokens, heads, masked):
    dim = 2 * heads
    pool = AttentionPooling(dim, heads, 7).double()
    for parameter in pool.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, tokens, dim, dtype=torch.float64)
    keep = torch.rand(2, tokens) < 0.6 if masked else None
    layer, network = pool.attention, pool.feed_forward
    weights, biases = layer.input_weights(), layer.input_biases()
    pooled, expected_weights = reference.multi_head_attention(
        pool.probe.expand(2, 1, dim),
        x,
        *weights,
        layer.output.weight,
        **dict(zip(("b_query", "b_key", "b_value"), biases, strict=True)),
        b_out=layer.output.bias,
        heads=heads,
        keep=None if keep is None else keep[:, None, None],
    )
    normed = reference.layer_norm(pooled, pool.norm.weight, pool.norm.bias)
    first, second = network.expand, network.contract
    expected = pooled + reference.feed_forward(normed, first.weight, first.bias, second.weight, second.bias, "gelu")
    out, where = pool(x, keep=keep, return_weights=True)
    torch.testing.assert_close(out, expected[:, 0])
    torch.testing.assert_close(where, expected_weights[:, :, 0])
    torch.testing.assert_close(pool(x, keep=keep), out)
    grads = (torch.autograd.grad(y.square().sum(), list(pool.parameters())) for y in (out, expected))
    torch.testing.assert_close(*grads)


def test_attention_and_average_pooling_ignore_order():
    x, order = torch.randn(2, 6, 4), torch.randperm(6)
    for pool in (AveragePooling(), AttentionPooling(4, 2)):
        torch.testing.assert_close(pool(x[:, order]), pool(x))


def test_bad_input_is_named(user_errors):
    x = torch.zeros(2, 3, 4)
    for pool in (ClassTokenPooling(4), AveragePooling(), AttentionPooling(4, 2)):
        with pytest.raises(ValueError, match=r"x has shape \(3, 4\), 2 axes"):
            pool(x[0])
        with pytest.raises(ValueError, match="there must be at least one token"):
            pool(x[:, :0])
    for pool in (ClassTokenPooling(5), AttentionPooling(6, 2)):
        with pytest.raises(ValueError, match=r"its last axis must be \d wide"):
            pool(x)
    for pool in (AveragePooling(), AttentionPooling(4, 2)):
        with pytest.raises(ValueError, match=r"keep has shape \(3, 2\)"):
            pool(x, keep=torch.ones(3, 2, dtype=torch.bool))
        with pytest.raises(TypeError, match="keep must be a boolean tensor"):
            pool(x, keep=torch.ones(2, 3))
    assert "dim=4" in repr(ClassTokenPooling(4))
    assert "dim=6" in repr(AttentionPooling(6, 2))


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 5)])
def test_one_mask_for_several_tokens_is_that_mask_for_each(shape):
    x, keep = torch.randn(3, 5, 8, dtype=torch.float64), torch.ones(shape, dtype=torch.bool)
    for pool in (AveragePooling(), AttentionPooling(8, 2).double()):
        torch.testing.assert_close(pool(x, keep=keep), pool(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_average_of_many_tokens_in_half_precision(dtype):
    """Neither their sum (200,000) nor their number (2,001) fits into half precision."""
    x, keep = torch.full((1, 2003, 2), 100.0, dtype=dtype), torch.arange(2003)[None] < 2001
    torch.testing.assert_close(AveragePooling()(x, keep=keep), x[:, 0])
