"""A compiled network in bfloat16 has the gradients of one that is not compiled."""

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from regard.models import AttentionPyramid
from regard.models._max_pooling import largest_of_squares
from regard.models._whitening import WhitenedPatches


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


@pytest.mark.parametrize("grid", [(6, 4), (5, 4), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooling_and_its_gradient_are_those_of_torch_also_for_equal_entries(grid, dtype):
    """Few different values: in every other square the largest occurs more than once."""
    torch.manual_seed(0)
    torch.compiler.reset()
    tokens = torch.randint(-2, 3, (3, grid[0] * grid[1], 8)).to(dtype)
    tokens[0, 1, 2] = float("nan")
    above = torch.randn(3, (grid[0] // 2) * (grid[1] // 2), 8).to(dtype)
    found = []
    for function in (largest_of_squares, torch.compile(largest_of_squares, fullgraph=True, dynamic=False)):
        x = tokens.clone().requires_grad_()
        out = function(x, grid)
        out.backward(above)
        found.append((out.detach(), x.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_compiled_pooling_does_without_the_gradient_that_adds_entry_by_entry():
    torch.compiler.reset()
    x = torch.randn(2, 16, 8, requires_grad=True)
    pooled = torch.compile(lambda x: largest_of_squares(x.sin(), (4, 4)), fullgraph=True)
    code = "".join(run_and_get_code(lambda: pooled(x).sum().backward())[1])
    assert "cos" in code  # of the sine's gradient
    assert "max_pool2d_with_indices_backward" not in code


def test_whitened_patches_are_exported_for_any_number_of_images():
    """Exports were fixed to the number of images that were shown."""
    patches, images = WhitenedPatches(3, 2, 2).eval(), torch.randn(5, 3, 8, 8)
    sizes = ({0: torch.export.Dim("images", max=64)},)
    program = torch.export.export(patches, (images[:2],), dynamic_shapes=sizes).module()
    torch.testing.assert_close(program(images), patches(images))
