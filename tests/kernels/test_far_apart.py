"""Tensors whose heads lie more than 2³¹ numbers apart: in 32 bits, addresses of the last head would point before the first."""

import math

import pytest
import torch

from regard.functional import gaussian_attention, kernels, plan_for
from regard.functional.kernels._node_steps import AxisSizes, WideForm
from regard.functional.kernels._tensors import readable, readable_as_plane


def far_apart(tensor):
    """The same numbers, with heads 2³⁰ numbers apart. Memory that is never touched is never taken."""
    batch, heads, tokens, width = tensor.shape
    strides = (tokens * width, 2**30, width, 1)
    whole = torch.empty((heads - 1) * 2**30 + batch * tokens * width, dtype=tensor.dtype)
    return whole.as_strided(tensor.shape, strides).copy_(tensor)


def results(value, heads, grid, above, **options):
    given = [x.detach().requires_grad_() for x in (value, *heads)]
    out = gaussian_attention(*given, grid, **options)
    return out, *torch.autograd.grad(out, given, above)


CASES = {  # grid, sharpness, heads of values, axis matrices made elsewhere
    "local heads": ((129,), 2.0, 3, False),
    "wide heads": ((129,), 1e-3, 3, False),
    "wide heads in float32, which have no table": ((129,), 1e-3, 3, False),
    "values that all heads share": ((129,), 2.0, 1, False),
    "a small plane": ((5, 7), 1.0, 3, False),
    "a small plane, shared values": ((5, 7), 1.0, 1, False),
    "a plane with given matrices": ((20, 30), 0.5, 3, True),
}


@pytest.mark.parametrize("case", CASES)
def test_heads_far_apart(case):
    grid, sharpness, value_heads, given = CASES[case]
    generator, dtype = torch.Generator().manual_seed(0), torch.float32 if "float32" in case else torch.float16
    value = torch.randn(1, value_heads, math.prod(grid), 1, generator=generator).to(dtype)
    above = torch.randn(1, 3, math.prod(grid), 1, generator=generator).to(dtype)
    heads = torch.randn(3, len(grid), generator=generator), torch.full((3, len(grid)), sharpness)
    queries = [torch.arange(float(size)) + 0.25 for size in grid] if given else None
    near = results(value, heads, grid, above, queries=queries)
    far = results(value if value_heads == 1 else far_apart(value), heads, grid, far_apart(above), queries=queries)
    assert all(map(torch.equal, near, far))


def test_tokens_far_apart_are_copied_for_kernels_of_planes():
    rows = torch.empty(2**30 + 16, dtype=torch.int8)
    apart = rows.as_strided((1, 1, 2, 3), (6, 6, 2**30, 1))
    assert readable(apart) is apart
    assert readable_as_plane(apart).is_contiguous()
    near = rows.as_strided((1, 1, 2, 3), (6, 6, 2**20, 1))
    assert readable_as_plane(near) is near


def test_what_exceeds_a_launch_grid_goes_the_plain_way():
    """CUDA launches at most 65,535 programs along the second and third axis of a launch grid; the interpreter any number."""
    content = torch.randn(2**14, 4, 2, 8).bfloat16()
    assert not kernels.usable_for_moments(content, (2,))
    assert not kernels.usable_for_places(content, (2,))
    assert kernels.usable_for_moments(content[1:], (2,))
    assert kernels.usable_for_scans(torch.empty(1, 1, 1, 64 * 65535))
    assert not kernels.usable_for_scans(torch.empty(1, 1, 1, 64 * 65536))
    form = WideForm(1, 1, 1, 1, (AxisSizes(100, 100, 4, 0, 99),), (), (), (), torch.float32, torch.device("cpu"))
    assert form.is_launchable
    assert not form._replace(batch=2**16).is_launchable
    for outputs, nodes in ((2**22, 4), (2**20, 2**11)):  # rows of tiles; numbers of a matrix
        assert not form._replace(axes=(AxisSizes(100, outputs, nodes, 0, 99),)).is_launchable


def test_queries_that_do_not_lie_side_by_side():
    """A kernel reads their coordinates one after the other."""
    value, center, sharpness = torch.randn(1, 2, 40, 3), torch.randn(2, 1), torch.full((2, 1), 1e-4)
    for queries in (torch.linspace(-3.0, 50.0, 21)[::2], torch.tensor([7.0]).expand(5)):
        plan = plan_for(center, sharpness, (40,), torch.float32, queries=[queries])
        assert plan.heads[0].nodes
        found = gaussian_attention(value, center, sharpness, (40,), queries=[queries], plan=plan)
        exact = [x.double() for x in (value, center, sharpness)]
        expected = gaussian_attention(*exact, (40,), queries=[queries.double()], plan="separable")
        torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=2e-6)
