"""Decayed averages by kernels, run by Triton's interpreter: as their formula, over one block and over blocks of blocks."""

import pytest
import torch

from regard.functional import DecayProfile, gaussian_attention, kernels, separable_attention
from regard.functional.kernels import _decay_launch


@pytest.mark.parametrize(("side", "size", "width"), [("before", 130, 20), ("after", 5, 3), ("both", 70, 3)])
def test_values_and_gradients_equal_the_formula(side, size, width):
    torch.manual_seed(0)
    value, weight = (torch.randn(2, 4, size, width) for _ in range(2))
    rate = torch.tensor([0.0, 1e-4, 0.3, 40.0])
    assert kernels.usable_for_scans(value)
    assert not kernels.usable_for_scans(value.double())
    found = []
    for inputs, plan in (((value, rate), "scans"), ((value.double(), rate.double()), "matrices")):
        x, r = (each.clone().requires_grad_() for each in inputs)
        out = separable_attention(x, [DecayProfile(r, side)], (size,), plan=plan)
        found.append([each.double() for each in (out, *torch.autograd.grad(out, (x, r), weight.to(out.dtype)))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * max(1.0, other.abs().max().item()), rtol=1e-5)


def test_edges_of_edges_are_passed_on():
    """More tokens than a block of blocks has: what stands at one end reaches the other."""
    size = 64 * 64 + 3
    value = torch.zeros(1, 1, size, 1)
    value[0, 0, 0] = value[0, 0, -1] = 1.0
    rate = torch.tensor([1e-3])
    out = separable_attention(value, [DecayProfile(rate)], (size,), plan="scans").flatten()
    place = torch.arange(size, dtype=torch.float64)
    weights = (-1e-3 * (place - place[:, None]).abs()).softmax(-1)
    torch.testing.assert_close(out.double(), weights[:, 0] + weights[:, -1], atol=0.0, rtol=1e-5)


def test_planes_other_layouts_and_gradients_of_gradients():
    torch.manual_seed(0)
    value = torch.randn(1, 4 * 70, 2, 6).transpose(1, 2).requires_grad_()
    rate = torch.tensor([0.5, 0.1], requires_grad=True)
    profiles = [DecayProfile(rate, "before"), DecayProfile(rate)]
    by_scans, by_matrices = (separable_attention(value, profiles, (4, 70), plan=plan) for plan in ("scans", "matrices"))
    torch.testing.assert_close(by_scans, by_matrices, atol=1e-5, rtol=1e-5)
    seconds = []
    for out in (by_scans, by_matrices):
        (first,) = torch.autograd.grad(out.sin().sum(), rate, create_graph=True)
        seconds.append(torch.autograd.grad(first.sum(), rate)[0])
    torch.testing.assert_close(*seconds, atol=1e-3, rtol=1e-3)


def test_second_gradients_of_heads_that_are_used_twice():
    """What comes through the first layer of heads is not the second's own gradient."""
    torch.manual_seed(0)
    value, center = torch.randn(1, 2, 35, 16), torch.randn(2, 2)
    seconds = []
    for dtype in (torch.float32, torch.float64):  # by kernels, and without
        own, sharpness = center.to(dtype).requires_grad_(), torch.tensor([0.3, 0.6], dtype=dtype)
        once = gaussian_attention(value.to(dtype), own, sharpness, (5, 7))
        out = gaussian_attention(once, own, sharpness, (5, 7))
        (first,) = torch.autograd.grad(out.sin().sum(), own, create_graph=True)
        seconds.append(torch.autograd.grad(first.sum(), own)[0].double())
    torch.testing.assert_close(*seconds, atol=1e-3, rtol=1e-3)


def test_kernels_that_disagree_are_replaced(monkeypatch):
    """As a compiler's mistake on some card would make them: found at the first use, said, and not used again."""
    right = _decay_launch.sums

    def wrong(*args, **options):
        dots = right(*args, **options)
        args[7].mul_(1.01)
        return dots

    monkeypatch.setattr(_decay_launch, "_tried", {})
    monkeypatch.setattr(_decay_launch, "sums", wrong)
    value, profile = torch.randn(1, 2, 9, 3), DecayProfile(torch.tensor([0.1, 1.0]))
    with pytest.warns(UserWarning, match="have error .*: plain operations are used instead"):
        found = separable_attention(value, [profile], (9,), plan="scans")
    assert torch.equal(found, separable_attention(value, [profile], (9,), plan="scans"))
    torch.testing.assert_close(found, separable_attention(value, [profile], (9,), plan="matrices"))
