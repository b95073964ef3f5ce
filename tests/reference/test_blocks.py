"""Layer normalization, GELU and the feed-forward part: equal to torch's."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.reference import feed_forward, gelu, gelu_tanh, layer_norm


def random(*shape, grad=False):
    return torch.randn(shape, dtype=torch.float64, requires_grad=grad)


@given(lead=st.lists(st.integers(1, 3), max_size=3), width=st.integers(1, 5), affine=st.booleans())
def test_layer_norm_equals_torchs(lead, width, affine):
    x = 3 * random(*lead, width) + 1
    weight, bias = (random(width), random(width)) if affine else (None, None)
    torch.testing.assert_close(layer_norm(x, weight, bias, 1e-3), F.layer_norm(x, (width,), weight, bias, 1e-3))


def test_the_default_eps_is_torchs():
    x = 1e-3 * random(4, 3)
    torch.testing.assert_close(layer_norm(x), F.layer_norm(x, (3,)))


def test_gelu_and_its_approximation_equal_torchs():
    x = torch.linspace(-8, 8, 401, dtype=torch.float64)
    torch.testing.assert_close(gelu(x), F.gelu(x))
    torch.testing.assert_close(gelu_tanh(x), F.gelu(x, approximate="tanh"))
    apart = (gelu(x) - gelu_tanh(x)).abs().max()
    assert 1e-4 < apart < 1e-3  # close, yet not the same function


@pytest.mark.parametrize(
    ("activation", "module"), [("relu", nn.ReLU()), ("gelu", nn.GELU()), ("gelu_tanh", nn.GELU(approximate="tanh"))]
)
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_equals_torchs_layers_at_every_token(activation, module, bias):
    first, second = nn.Linear(3, 5, bias=bias).double(), nn.Linear(5, 2, bias=bias).double()
    x = random(2, 4, 3)
    output = feed_forward(x, first.weight, first.bias, second.weight, second.bias, activation)
    torch.testing.assert_close(output, second(module(first(x))))
    alone = feed_forward(x[1, 2], first.weight, first.bias, second.weight, second.bias, activation)
    torch.testing.assert_close(output[1, 2], alone)


def test_gradients():
    x, weight, bias = random(2, 4, grad=True), random(4, grad=True), random(4, grad=True)
    assert torch.autograd.gradcheck(layer_norm, (x, weight, bias))
    assert torch.autograd.gradcheck(gelu, x)
    assert torch.autograd.gradcheck(gelu_tanh, x)
    inputs = [random(*s, grad=True) for s in ((2, 3), (4, 3), (4,), (2, 4), (2,))]
    for activation in ("relu", "gelu"):
        assert torch.autograd.gradcheck(lambda *given: feed_forward(*given, activation), inputs)  # noqa: B023


@pytest.mark.usefixtures("user_errors")
def test_an_unknown_activation_is_named():
    with pytest.raises(ValueError, match="activation must be one of 'relu', 'gelu', 'gelu_tanh', got 'silu'"):
        feed_forward(torch.ones(3), torch.ones(4, 3), None, torch.ones(2, 4), None, "silu")
