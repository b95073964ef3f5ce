"""Converted convolutions in half precision by kernels, in float16 (the interpreter has no products in bfloat16)."""

import pytest
import torch

from regard import conv_to_attention
from regard.functional import kernels

CASES = {
    "padded": (torch.nn.Conv2d(5, 4, 3, padding=1), (2, 5, 6, 20)),
    "reflected": (torch.nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect", bias=False), (1, 3, 7, 5)),
    "strided": (torch.nn.Conv2d(6, 4, (3, 2), stride=2, padding=1, groups=2), (2, 6, 9, 8)),
    "strided, one group": (torch.nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 3, 9, 8)),
    "line": (torch.nn.Conv1d(3, 9, 5, dilation=2, padding="same"), (2, 3, 19)),
    "volume": (torch.nn.Conv3d(3, 2, 2, padding=1), (1, 3, 3, 4, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_attention(name, monkeypatch):
    conv, shape = CASES[name]
    generator, results, launched = torch.Generator().manual_seed(0), [], []
    x, conv = torch.randn(shape, generator=generator).half(), conv.half()
    mix = kernels.axis_taps
    monkeypatch.setattr(kernels, "axis_taps", lambda *a, **k: (launched.append(1), mix(*a, **k)))
    for dtype in (torch.float16, torch.float64):
        layer = conv_to_attention(conv, plan="attention").to(dtype)
        image = x.to(dtype).requires_grad_()
        out = layer(image)
        above = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        results.append([out, *torch.autograd.grad(out, [image, *layer.parameters()], above)])
    assert launched
    for found, expected in zip(*results, strict=True):
        assert ((found.double() - expected).norm() / expected.norm()).item() < 2e-3


def test_items_are_taken_a_few_at_a_time_and_nothing_is_made_for_each_of_them(monkeypatch):
    """One part or several, the results are alike; a gradient of the weight for each item would be larger than all else."""
    from regard.convert import _tap_products

    x, results, sizes = torch.randn(5, 16, 4, 4, generator=torch.Generator().manual_seed(0)).half(), [], []
    layer = conv_to_attention(torch.nn.Conv2d(16, 16, 3, padding=1), plan="attention").half()
    add = _tap_products.WeightSum.add
    monkeypatch.setattr(
        _tap_products.WeightSum,
        "add",
        lambda self, *sides: (sizes.append((sides[0] @ sides[1].mT).numel()), add(self, *sides)),
    )
    for room in (1 << 27, 1 << 13):
        monkeypatch.setitem(_tap_products.CHUNK_BYTES, "cpu", room)
        out = layer(x)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), list(layer.parameters()))])
    assert sizes == [layer.weight.numel()] * 4  # of all items; then of two, two and one
    for found, expected in zip(*results, strict=True):
        assert (found - expected).float().norm() < 2e-3 * expected.float().norm()
