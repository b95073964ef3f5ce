"""The fewest steps through multi-head attention: torch's one operator, and heads split at once, compute the same layer."""

import copy

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import MultiHeadAttention
from regard.layers import _multi_head, _native, _packed


@pytest.fixture
def layer():
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 4)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer.eval()


@pytest.fixture
def calls(monkeypatch):
    """How often torch's operator is called, on the CPU as on a GPU."""
    counted = []

    def operator(*args):
        counted.append(args)
        return native(*args)

    native = _native.native_attention
    monkeypatch.setattr(_multi_head, "native_attention", operator)
    monkeypatch.setattr(
        _multi_head, "can_be_native", lambda *args: not torch.is_grad_enabled() and _native.fits_operator(*args)
    )
    return counted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operator_computes_the_same_layer(layer, calls, dtype):
    """As close to float64 as the long way is."""
    layer, x = layer.to(dtype), torch.randn(2, 50, 32, dtype=dtype)
    exact = [out.detach() for out in copy.deepcopy(layer).double()(x.double(), return_weights=True)]
    long_way = [out.detach() for out in layer(x, return_weights=True)]
    assert not calls  # a gradient is recorded
    with torch.no_grad():
        out, pair = layer(x), layer(x, return_weights=True)
    assert len(calls) == 2
    for found, usual, wanted in zip((out, *pair), (long_way[0], *long_way), (exact[0], *exact), strict=True):
        assert (found - wanted).norm() <= 1.5 * (usual - wanted).norm()
        assert (found - wanted).norm() <= 4 * torch.finfo(dtype).eps * wanted.norm()


def hooked(layer):
    layer.qkv.register_forward_hook(lambda module, args, out: 2 * out)


def replaced(layer):
    layer.output.forward = lambda x: torch.zeros_like(x)


OTHERWISE = {
    "a hook": (hooked, {}),
    "a forward of its own": (replaced, {}),
    "a temperature": (lambda layer: setattr(layer, "beta", 0.1), {}),
    "dropout": (lambda layer: setattr(layer.train(), "dropout", 0.5), {}),
    "another dtype": (lambda layer: layer.double(), {}),
    "a mask": (lambda layer: None, {"keep": torch.ones(5, 5, dtype=torch.bool).tril()}),
    "causal": (lambda layer: None, {"causal": True}),
    "a context": (lambda layer: None, {"context": torch.zeros(2, 3, 32)}),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_the_operator_does_not_compute_goes_the_long_way(layer, calls, name):
    change, options = OTHERWISE[name]
    change(layer)
    with torch.no_grad():
        layer(torch.randn(2, 5, 32, dtype=layer.output.weight.dtype), **options)
    assert not calls


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_what_watches_the_steps_sees_them(layer, calls):
    x = torch.randn(2, 5, 32)
    with torch.no_grad():
        with regard.capture(layer) as maps:
            layer(x)
        counter = FlopCounterMode(display=False)
        with counter:
            layer(x)
        with Mode():
            layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            layer(x)
        torch.func.vmap(lambda x: layer(x, return_weights=True)[0])(x[None])
    assert len(maps) == 1
    assert (
        counter.get_total_flops() >= 2 * 2 * 5 * 32 * 4 * 32
    )  # the projections; not every kernel of attention is counted
    assert not calls


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("key_value_heads", [4, 2])
def test_heads_split_at_once_are_those_split_by_width(monkeypatch, return_weights, key_value_heads):
    layer, x = MultiHeadAttention(32, 4, key_value_heads=key_value_heads).double(), torch.randn(2, 5, 32).double()
    x.requires_grad_()
    found = []
    for cheap in (0, 1 << 20):
        monkeypatch.setattr(_packed, "CHEAP_ON_CPU", cheap)
        out = layer(x, return_weights=return_weights)
        out = out[0] if return_weights else out
        found.append([out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
