"""A compiled network in bfloat16 has the gradients of one that is not compiled."""

import torch

from regard.models import AttentionPyramid


def test_gradients_are_finite_where_the_compiler_keeps_more_digits_than_the_tensors_have():
    # The gradient of amax goes to what equals the largest; compiled, nothing did, and it was 0 / 0.
    torch.manual_seed(0)
    network = AttentionPyramid(8, 10, channels=1, widths=(8,), depth=1, mixing="convolution")
    images = torch.randn(64, 1, 8, 8)
    found = []
    for model in (network, torch.compile(network)):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(images)
        logits.float().logsumexp(-1).sum().backward()
        found.append({name: p.grad for name, p in network.named_parameters() if p.grad is not None})
        network.zero_grad(set_to_none=True)
    for name, gradient in found[0].items():
        error = (found[1][name] - gradient).norm() / gradient.norm().clamp_min(1e-3)
        assert error < 0.1, name
