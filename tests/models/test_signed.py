"""Heads that are differences of two Gaussians."""

import torch

import regard
from regard.models import AttentionSettings, ImageEncoder
from regard.models._signed import SignedGaussians


def test_it_is_the_signed_sum_of_two_gaussian_maps():
    torch.manual_seed(0)
    layer = SignedGaussians(8, 4, init="normal").double()
    torch.nn.init.normal_(layer.second.center)
    torch.nn.init.normal_(layer.first_weight)
    torch.nn.init.normal_(layer.second_weight)
    x = torch.randn(2, 5, 4, 8, dtype=torch.float64)
    value = layer.value(x).reshape(2, 20, 4, 2).transpose(1, 2)
    maps = [
        regard.functional.gaussian_weights(heads.center, heads.sharpness, (5, 4))
        for heads in (layer.first, layer.second)
    ]
    weights = [w.view(4, 1, 2) for w in (layer.first_weight, layer.second_weight)]
    mixed = sum(w * (m @ value) for w, m in zip(weights, maps, strict=True))
    expected = layer.output(mixed.transpose(1, 2).reshape(2, 5, 4, 8))
    torch.testing.assert_close(layer(x), expected, rtol=1e-10, atol=1e-12)


def test_it_starts_as_gaussian_attention():
    torch.manual_seed(0)
    signed, plain = SignedGaussians(18, 9), regard.GaussianAttention(18, 9, init="grid")
    plain.value.load_state_dict(signed.value.state_dict())
    plain.output.load_state_dict(signed.output.state_dict())
    x = torch.randn(2, 6, 7, 18)
    torch.testing.assert_close(signed(x), plain(x))


def test_one_head_detects_an_edge():
    """A step from 0 to 1 gives one bright column: what no single map with positive weights can give."""
    layer = SignedGaussians(1, 1, init="grid")
    with torch.no_grad():
        for linear in (layer.value, layer.output):
            linear.weight.fill_(1)
            linear.bias.zero_()
        layer.first.set(torch.tensor([[0.0, 0.0]]), torch.tensor([50.0]))
        layer.second.set(torch.tensor([[0.0, -1.0]]), torch.tensor([50.0]))
        layer.second_weight.fill_(-1)
    step = (torch.arange(6) >= 3).float().expand(1, 4, 6).unsqueeze(-1)
    edge = layer(step)
    torch.testing.assert_close(edge[0, :, :, 0], (torch.arange(6) == 3).float().expand(4, 6))


def test_after_one_step_every_parameter_learns():
    torch.manual_seed(0)
    layer, x = SignedGaussians(9, 9), torch.randn(2, 5, 5, 9)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(2):  # the second map has weight 0 in the first step, so its center cannot learn yet
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()
    assert [name for name, p in layer.named_parameters() if not p.grad.abs().max() > 0] == []


def test_gradients_in_float64():
    torch.manual_seed(0)
    layer = SignedGaussians(2, 1, init="normal").double()
    torch.nn.init.normal_(layer.second_weight)
    x = torch.randn(1, 3, 3, 2, dtype=torch.float64, requires_grad=True)
    names, values = zip(*((n, p.detach().requires_grad_()) for n, p in layer.named_parameters()), strict=True)
    call = lambda x, *p: torch.func.functional_call(layer, dict(zip(names, p, strict=True)), (x,))  # noqa: E731
    assert torch.autograd.gradcheck(call, (x, *values))


def test_an_encoder_has_it_and_capture_sees_both_maps():
    network = ImageEncoder(8, 2, 10, dim=9, depth=1, heads=9, attention=AttentionSettings("signed", init="grid"))
    with torch.no_grad(), regard.capture(network) as maps:
        network(torch.randn(1, 3, 8, 8))
    assert list(maps) == ["blocks.0.attention.first", "blocks.0.attention.second"]
    assert not maps.missed
    assert all(m.agrees for m in maps.values())
