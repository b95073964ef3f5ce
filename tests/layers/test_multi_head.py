"""Multi-head attention equals its formula, in every variant."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import MultiHeadAttention, reference
from regard.layers import BlockLinear, KeyValueCache


def randomized(layer: MultiHeadAttention) -> MultiHeadAttention:
    """Biases that start at zero hide mistakes."""
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def by_reference(layer, x, context, value, **options):
    names = ("w_query", "w_key", "w_value"), ("b_query", "b_key", "b_value")
    weights = dict(zip(names[0], layer.input_weights(), strict=True))
    biases = dict(zip(names[1], layer.input_biases(), strict=True))
    shared = {"heads": layer.heads, "beta": layer.beta, "b_out": layer.output.bias, **biases, **options}
    context = x if context is None else context
    if layer.slice_heads:
        return reference.sliced_multi_head_attention(x, context, **weights, w_out=layer.output.weight, **shared)
    return reference.multi_head_attention(x, context, **weights, w_out=layer.output.weight, values=value, **shared)


@settings(max_examples=100)
@given(data=st.data())
def test_values_and_gradients_equal_the_reference(data):
    heads, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    slices = data.draw(st.booleans())
    groups = heads if slices else data.draw(st.sampled_from([d for d in range(1, heads + 1) if heads % d == 0]))
    dim = heads * width
    options = {
        "head_dim": data.draw(st.sampled_from([None, 3])),
        "out_dim": data.draw(st.sampled_from([None, 5])),
        "key_value_heads": groups,
        "bias": data.draw(st.booleans()),
        "output_bias": data.draw(st.sampled_from([None, True, False])),
        "beta": data.draw(st.sampled_from([None, 0.0, 1.5, math.inf])),
        "slice_heads": slices,
    }
    kind = data.draw(st.sampled_from(["self", "cross", "widths"] + ["value", "value width"] * (not slices)))
    if kind == "widths":
        options["context_dim"] = 2 * dim
    if kind == "value width":
        options["value_dim"] = dim + 1
    layer = randomized(MultiHeadAttention(dim, heads, **options).double())
    batch, queries, keys = 2, data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    x = torch.randn(batch, queries, dim, dtype=torch.float64)
    keys = queries if kind == "self" else keys
    context = None if kind == "self" else torch.randn(batch, keys, layer.context_dim, dtype=torch.float64)
    value = torch.randn(batch, keys, layer.value_dim, dtype=torch.float64) if "value" in kind else None
    masks = {"causal": data.draw(st.booleans())}
    if data.draw(st.booleans()):
        masks["keep"] = torch.rand(batch, 1, queries, keys) < 0.6
    if data.draw(st.booleans()):
        masks["bias"] = torch.randn(heads, queries, keys, dtype=torch.float64)[None]

    expected, expected_weights = by_reference(layer, x, context, value, **masks)
    probe = torch.randn_like(expected)
    parameters = list(layer.parameters())
    expected_grads = torch.autograd.grad(expected, parameters, probe, materialize_grads=True)
    out, weights = layer(x, context, value, **masks, return_weights=True)
    torch.testing.assert_close(weights, expected_weights)
    for result in (out, layer(x, context, value, **masks)):
        torch.testing.assert_close(result, expected)
        grads = torch.autograd.grad(result, parameters, probe, materialize_grads=True)
        torch.testing.assert_close(grads, expected_grads)


def test_slices_are_a_block_diagonal_projection_without_its_zeros():
    sliced = randomized(MultiHeadAttention(12, 3, slice_heads=True).double())
    whole = MultiHeadAttention(12, 3).double()
    with torch.no_grad():
        for mine, theirs in zip(whole.input_weights(), sliced.input_weights(), strict=True):
            mine.copy_(torch.block_diag(*theirs))
        for mine, theirs in zip(whole.input_biases(), sliced.input_biases(), strict=True):
            mine.copy_(theirs.flatten())
        whole.output.load_state_dict(sliced.output.state_dict())
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(sliced(x), whole(x))
    assert sliced.qkv.weight.numel() * 3 == whole.qkv.weight.numel()


def test_a_head_with_its_own_slice_sees_nothing_else():
    layer = randomized(MultiHeadAttention(6, 3, slice_heads=True))
    x = torch.randn(1, 4, 6)
    changed = x.clone()
    changed[..., :2] += 1.0  # the first head's slice
    before, after = (layer(t, return_weights=True)[1] for t in (x, changed))
    assert torch.equal(before[:, 1:], after[:, 1:])
    assert not torch.allclose(before[:, 0], after[:, 0])


@pytest.mark.parametrize("options", [{}, {"slice_heads": True}, {"context_dim": 5}])
@pytest.mark.parametrize("return_weights", [False, True])
def test_a_fully_masked_row_gives_zeros_before_the_output_projection(options, return_weights):
    layer = randomized(MultiHeadAttention(4, 1 if "context_dim" in options else 2, **options).double())
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    context = torch.randn(2, 3, 5, dtype=torch.float64) if "context_dim" in options else None
    keep = torch.ones(3, 3, dtype=torch.bool)
    keep[1] = False
    out = layer(x, context, keep=keep, return_weights=return_weights)
    if return_weights:
        out, weights = out
        assert torch.equal(weights[:, :, 1], torch.zeros_like(weights[:, :, 1]))
    torch.testing.assert_close(out[:, 1], layer.output.bias.expand(2, 4))
    out.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    assert x.grad.isfinite().all()


@given(data=st.data())
def test_decoding_with_a_cache_equals_the_whole_sequence(data):
    heads = data.draw(st.sampled_from([2, 4]))
    layer = randomized(MultiHeadAttention(8, heads, key_value_heads=2 if data.draw(st.booleans()) else None).double())
    tokens = data.draw(st.integers(1, 7))
    x = torch.randn(2, tokens, 8, dtype=torch.float64)
    cuts = sorted(data.draw(st.lists(st.integers(1, tokens), max_size=3)))
    pieces = torch.tensor_split(x, cuts, dim=1)
    expected, expected_weights = layer(x, causal=True, return_weights=True)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            cache = KeyValueCache(capacity=data.draw(st.integers(1, 4)))
            results = [layer(piece, causal=True, cache=cache, return_weights=True) for piece in pieces if piece.numel()]
        assert cache.tokens == tokens
        torch.testing.assert_close(torch.cat([out for out, _ in results], 1), expected)
        last = results[-1][1]
        torch.testing.assert_close(last, expected_weights[:, :, -last.shape[2] :])


def test_a_cache_with_room_is_written_in_place_and_one_without_doubles():
    layer, cache = MultiHeadAttention(4, 2), KeyValueCache(capacity=4)
    with torch.no_grad():
        places = []
        for _ in range(9):
            layer(torch.randn(1, 1, 4), cache=cache)
            places.append((cache.key.data_ptr(), cache.value.data_ptr()))
    assert [len(set(places[start:stop])) for start, stop in ((0, 4), (4, 8), (0, 9))] == [1, 1, 3]
    assert cache.key.shape == cache.value.shape == (1, 2, 9, 2)


def test_gradients_flow_through_a_cache():
    layer, x = MultiHeadAttention(4, 2).double(), torch.randn(1, 3, 4, dtype=torch.float64)
    cache = KeyValueCache()
    torch.cat([layer(x[:, i : i + 1], causal=True, cache=cache) for i in range(3)], 1).square().sum().backward()
    stepwise = layer.qkv.weight.grad.clone()
    layer.zero_grad()
    layer(x, causal=True).square().sum().backward()
    torch.testing.assert_close(stepwise, layer.qkv.weight.grad)


@pytest.mark.parametrize("context_dim", [None, 6])
def test_the_cache_of_a_context_is_filled_once(context_dim):
    layer = randomized(MultiHeadAttention(4, 2, context_dim=context_dim).double())
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    context = torch.randn(2, 5, context_dim or 4, dtype=torch.float64)
    cache = KeyValueCache()
    with torch.no_grad():
        steps = [layer(x[:, i : i + 1], context, cache=cache) for i in range(3)]
        torch.testing.assert_close(torch.cat(steps, 1), layer(x, context))
        assert cache.tokens == 5
        torch.testing.assert_close(layer(x, context + 1, cache=cache), layer(x, context))  # read, not projected again


def test_a_cache_that_does_not_fit_is_refused(user_errors):
    layer, cache = MultiHeadAttention(4, 2), KeyValueCache()
    layer(torch.randn(2, 3, 4), cache=cache)
    with pytest.raises(ValueError, match=r"cache holds \(batch, heads\) = \(2, 2\) but the new keys have \(1, 2\)"):
        layer(torch.randn(1, 3, 4), cache=cache)
    with pytest.raises(ValueError, match="cache holds 3 keys but context has 4 tokens"):
        layer(torch.randn(2, 1, 4), torch.randn(2, 4, 4), cache=cache)


def test_training_equals_evaluation_without_dropout():
    layer, x = MultiHeadAttention(8, 2), torch.randn(2, 5, 8)
    assert torch.equal(layer.train()(x), layer.eval()(x))


def test_dropout_drops_in_training_alone_and_keeps_the_mean():
    layer = MultiHeadAttention(4, 1, dropout=0.5).double()
    x = torch.randn(1, 3, 4, dtype=torch.float64).expand(20000, -1, -1)
    expected = layer.eval()(x[:1])
    layer.train()
    for return_weights in (False, True):
        out = layer(x, return_weights=return_weights)
        out = out[0] if return_weights else out
        assert out.std(0).max() > 0.01
        torch.testing.assert_close(out.mean(0), expected[0], atol=0.05, rtol=0.0)


def test_empty_batches_and_sequences_pass():
    layer = MultiHeadAttention(4, 2)
    for return_weights in (False, True):
        for shape in ((0, 3, 4), (2, 0, 4)):
            out = layer(torch.randn(shape), return_weights=return_weights)
            assert (out[0] if return_weights else out).shape == shape


def test_settings_are_shown():
    shown = repr(MultiHeadAttention(8, 4, context_dim=6, key_value_heads=2, dropout=0.1, beta=2.0))
    for part in ("dim=8", "heads=4", "head_dim=2", "context_dim=6", "key_value_heads=2", "dropout=0.1", "beta=2.0"):
        assert part in shown
    assert "slice_heads=True" in repr(MultiHeadAttention(8, 4, slice_heads=True))


@given(blocks=st.integers(1, 3), width=st.integers(1, 3), features=st.integers(1, 3), bias=st.booleans())
def test_block_linear_is_a_block_diagonal_matrix(blocks, width, features, bias):
    layer = BlockLinear(blocks * width, blocks * features, blocks, bias=bias).double()
    x = torch.randn(2, 3, blocks * width, dtype=torch.float64)
    expected = x @ torch.block_diag(*layer.weight).T + (layer.bias.flatten() if bias else 0.0)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer(x[0, 0]), expected[0, 0])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((5, 2), {}, "dim is 5, which 2 heads do not divide"),
        ((0, 1), {}, "dim must be 1 or more, got 0"),
        ((4, 2), {"key_value_heads": 3}, "key_value_heads is 3"),
        ((4, 2), {"dropout": 1.0}, "dropout must lie in"),
        ((4, 2), {"beta": -1.0}, "beta must lie in"),
        ((4, 2), {"slice_heads": True, "key_value_heads": 1}, "key_value_heads must be 2"),
        ((4, 2), {"slice_heads": True, "context_dim": 3}, "context_dim is 3, which 2 heads do not divide"),
    ],
)
def test_bad_settings_are_named(user_errors, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(*arguments, **options)
    with pytest.raises(TypeError, match="heads must be a whole number"):
        MultiHeadAttention(4, 2.0)


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((3, 4),), {}, r"x has shape \(3, 4\), 2 axes"),
        (((2, 3, 5),), {}, r"x has shape \(2, 3, 5\), but its last axis must be 4 wide"),
        (((2, 3, 4), (2, 3, 5)), {}, "context has shape"),
        (((2, 3, 4), (1, 3, 4)), {}, "context has batch size 1 but x has 2"),
        (((2, 3, 4), (2, 3, 4), (2, 2, 4)), {}, "value has 2 tokens but there are 3 keys"),
        (((2, 3, 4),), {"keep": torch.ones(2, 3, dtype=torch.bool)}, r"keep has shape \(2, 3\)"),
        (((2, 3, 4),), {"bias": torch.zeros(2, 3, 3)}, r"bias has shape \(2, 3, 3\)"),
    ],
)
def test_bad_input_is_named(user_errors, shapes, options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(4, 2)(*map(torch.zeros, shapes), **options)


def test_missing_and_mistyped_input_is_named(user_errors):
    x = torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match="context is needed"):
        MultiHeadAttention(4, 2, context_dim=3)(x)
    with pytest.raises(ValueError, match="value is needed"):
        MultiHeadAttention(4, 2, value_dim=3)(x)
    with pytest.raises(TypeError, match="x is a float64 tensor"):
        MultiHeadAttention(4, 2)(x.double())
    with pytest.raises(TypeError, match="keep must be a boolean tensor"):
        MultiHeadAttention(4, 2)(x, keep=torch.ones(3, 3))
    with pytest.raises(TypeError, match="x must be a floating-point tensor"):
        MultiHeadAttention(4, 2)(x.long())
    with pytest.raises(ValueError, match="out_features is 5, but must be divisible by blocks, 2"):
        BlockLinear(4, 5, 2)
