"""Layers and conversions on a GPU compute what they compute on the CPU. CI has no GPU."""

import copy

import pytest
import torch
from torch import nn

from regard import GaussianAttention, MultiHeadAttention, conv_to_attention, separable_attention
from regard.functional import DecayProfile

pytestmark = pytest.mark.gpu


def with_gradients(layer, x):
    out = layer(x)
    wanted = [x, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
    return [each.detach().double().cpu() for each in (out, *torch.autograd.grad(out.sin().sum(), wanted))]


def assert_same(layer, x, prepare=lambda layer: None):
    """In float32 there as in float64 here, with gradients."""
    exact = copy.deepcopy(layer).double()
    for each in (layer, exact):
        prepare(each)
    expected = with_gradients(exact, x.double().requires_grad_())
    found = with_gradients(layer.cuda(), x.cuda().requires_grad_())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3 * max(1.0, b.abs().max().item()), rtol=2e-3)


def test_multi_head_attention_by_one_operator():
    layer, x = MultiHeadAttention(64, 4).eval(), torch.randn(3, 17, 64)
    assert_same(layer, x)
    with torch.no_grad():
        expected, weights = copy.deepcopy(layer).double().cpu()(x.double(), return_weights=True)
        found = (layer(x.cuda()), *layer(x.cuda(), return_weights=True))
    for a, b in zip(found, (expected, expected, weights), strict=True):
        torch.testing.assert_close(a.double().cpu(), b, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("options", [{"stride": 1}, {"stride": 2}, {"padding_mode": "reflect", "groups": 2}])
def test_converted_convolutions(options):
    assert_same(conv_to_attention(nn.Conv2d(8, 6, 3, padding=1, **options), plan="attention"), torch.randn(5, 8, 9, 12))


def test_full_width_heads_that_are_taps():
    layer = GaussianAttention(8, 9, full_width=True, init="grid", sharpness=30.0)
    layer.positions.requires_grad_(False)
    # A plan made for float32 leaves out weights that matter in float64, so each has its own.
    assert_same(layer, torch.randn(2, 7, 6, 8), lambda each: each.freeze_plan((7, 6)))


@pytest.mark.parametrize("side", ["before", "after", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decay_by_kernels(side, dtype):
    value, above = (torch.randn(2, 4, 9000, 40).to(dtype) for _ in range(2))
    rate, results = torch.tensor([1e-4, 0.02, 0.5, 30.0]), []
    for device, plan in (("cpu", "scans"), ("cuda", "scans")):
        own = (value.double() if device == "cpu" else value.cuda()).requires_grad_()
        rates = (rate.double() if device == "cpu" else rate.cuda()).requires_grad_()
        out = separable_attention(own, [DecayProfile(rates, side)], (9000,), plan=plan)
        grads = torch.autograd.grad(out, (own, rates), above.to(device, out.dtype))
        results.append([each.detach().double().cpu() for each in (out, *grads)])
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() <= (1e-5 if dtype == torch.float32 else 1e-2) * b.norm()
