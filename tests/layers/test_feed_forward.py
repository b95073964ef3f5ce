"""Feed-forward network and layer norm equal their formulas and torch's."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard import reference
from regard.layers import FeedForward, LayerNorm


@given(
    dim=st.integers(1, 5),
    hidden=st.sampled_from([None, 3]),
    activation=st.sampled_from(["relu", "gelu", "gelu_tanh"]),
    bias=st.booleans(),
    lead=st.sampled_from([(), (3,), (2, 3)]),
)
def test_feed_forward_equals_the_reference(dim, hidden, activation, bias, lead):
    layer = FeedForward(dim, hidden, activation=activation, bias=bias).double()
    x = torch.randn(*lead, dim, dtype=torch.float64)
    first, second = layer.expand, layer.contract
    assert first.out_features == (hidden or 4 * dim)
    expected = reference.feed_forward(x, first.weight, first.bias, second.weight, second.bias, activation)
    parameters = list(layer.parameters())
    torch.testing.assert_close(layer(x), expected)
    grads = [torch.autograd.grad(y.square().sum(), parameters) for y in (layer(x), expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("activation", "function"),
    [("relu", F.relu), ("gelu", F.gelu), ("gelu_tanh", nn.GELU("tanh")), ("silu", F.silu)],
)
def test_activations_are_torchs(activation, function):
    layer, x = FeedForward(3, 8, activation=activation), torch.randn(5, 3)
    torch.testing.assert_close(layer(x), layer.contract(function(layer.expand(x))))


def test_feed_forward_drops_in_training_alone():
    layer, x = FeedForward(3, 8, dropout=0.5), torch.randn(5, 3)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))
    same = FeedForward(3, 8)
    assert torch.equal(same.train()(x), same.eval()(x))


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    epsilon=st.sampled_from([1e-5, 1e-2]),
    affine=st.booleans(),
    bias=st.booleans(),
)
def test_layer_norm_equals_torch(shape, epsilon, affine, bias):
    theirs = nn.LayerNorm(shape, eps=epsilon, elementwise_affine=affine, bias=bias, dtype=torch.float64)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours = LayerNorm(shape, epsilon=epsilon, affine=affine, bias=bias).double()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 2, *shape, dtype=torch.float64)
    assert torch.equal(ours(x), theirs(x))


@given(dim=st.integers(1, 6))
def test_layer_norm_equals_the_reference(dim):
    layer = LayerNorm(dim).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(3, dim, dtype=torch.float64, requires_grad=True)
    expected = reference.layer_norm(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected)
    inputs = [x, *layer.parameters()]
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), inputs) for y in (layer(x), expected)))


def test_bad_input_is_named(user_errors):
    with pytest.raises(ValueError, match="hidden must be 1 or more, got 0"):
        FeedForward(3, 0)
    with pytest.raises(ValueError, match="activation must be one of 'gelu', 'gelu_tanh', 'relu', 'silu', got 'swish'"):
        FeedForward(3, activation="swish")
    with pytest.raises(ValueError, match=r"x has shape \(2, 4\), but its last axis must be 3 wide"):
        FeedForward(3)(torch.zeros(2, 4))
    with pytest.raises(TypeError, match="x is a float64 tensor"):
        FeedForward(3)(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"last axes must be \(3, 4\)"):
        LayerNorm((3, 4))(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="epsilon must be a finite number of 0 or more, got -1"):
        LayerNorm(3, epsilon=-1)
    with pytest.raises(ValueError, match="dim must be a size, or sizes of at least one axis"):
        LayerNorm(())
    assert "hidden=12, activation='gelu'" in repr(FeedForward(3))
    assert "epsilon=1e-05" in repr(LayerNorm(3))
