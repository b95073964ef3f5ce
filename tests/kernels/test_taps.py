"""Converted convolutions in half precision by kernels, in float16 (the interpreter has no products in bfloat16)."""

import pytest
import torch

from regard import conv_to_attention
from regard.functional import kernels

CASES = {
    "padded": (torch.nn.Conv2d(5, 4, 3, padding=1), (2, 5, 6, 20)),
    "reflected": (torch.nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect", bias=False), (1, 3, 7, 5)),
    "strided": (torch.nn.Conv2d(6, 4, (3, 2), stride=2, padding=1, groups=2), (2, 6, 9, 8)),
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
