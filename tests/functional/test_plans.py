"""What a frozen plan holds for, and what it is refused for."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard import GaussianAttention
from regard.functional import _plan, gaussian_attention, gaussian_weights, plan_for

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("made_for", DTYPES)
@pytest.mark.parametrize(("center", "sharpness"), [(0.3, 5.0), (0.0, 10.0), (0.0, 50.0), (0.0, 1e-3)])
def test_a_plan_loses_less_than_the_dtype_of_the_values_can_tell_or_is_refused(center, sharpness, made_for, dtype):
    center, sharpness = torch.full((2, 1), center), torch.full((2,), sharpness)
    plan, eye = plan_for(center, sharpness, (100,), made_for), torch.eye(100, dtype=dtype).expand(1, 2, -1, -1)
    try:
        rows = gaussian_attention(eye, center, sharpness, (100,), plan=plan)
    except TypeError:
        assert made_for.itemsize <= dtype.itemsize
        assert made_for is not dtype
        return
    exact = gaussian_weights(center.double(), sharpness.double(), (100,))
    assert (rows[0].double() - exact).abs().sum(-1).max() < 8 * torch.finfo(dtype).eps


def test_a_plan_for_bfloat16_is_refused_for_float32():
    center, sharpness, value = torch.zeros(2, 2), torch.full((2,), 10.0), torch.randn(1, 2, 64, 3)
    taps = plan_for(center, sharpness, (8, 8), torch.bfloat16)
    bands = plan_for(center + 0.5, sharpness, (64, 64), torch.bfloat16)
    assert (taps.heads[0].way, bands.heads[0].way) == ("taps", "banded")
    with pytest.raises(
        TypeError, match=r"plan holds for values of torch.b?float16 or coarser, but value is torch.float32"
    ):
        gaussian_attention(value, center, sharpness, (8, 8), plan=taps)
    with pytest.raises(
        TypeError, match=r"plan holds for values of torch.b?float16 or coarser, but value is torch.float32"
    ):
        gaussian_attention(torch.randn(1, 2, 4096, 3), center + 0.5, sharpness, (64, 64), plan=bands)
    with torch.autocast("cpu", torch.bfloat16):
        gaussian_attention(value, center, sharpness, (8, 8), plan=taps)
    accepted = plan_for(center, sharpness, (8, 8), torch.bfloat16, tolerance=1e-3)
    assert accepted.leak <= 1e-3
    gaussian_attention(value.double(), center, sharpness, (8, 8), plan=accepted)


def test_a_layer_of_taps_checks_the_dtype_too_and_plans_for_its_own():
    layer = GaussianAttention(4, 4, full_width=True, init="grid", sharpness=10.0).requires_grad_(False)
    x = torch.randn(2, 6, 5, 4)
    layer.freeze_plan((6, 5), torch.bfloat16)
    with pytest.raises(TypeError, match=r"plan holds for values of torch.b?float16 or coarser"):
        layer(x)
    layer.freeze_plan((6, 5))
    layer(x)
    soft = GaussianAttention(4, 4, init="grid", sharpness=1.0)
    assert soft.freeze_plan((50, 60)).dtype is torch.float32
    assert soft.double().freeze_plan((50, 60)).dtype is torch.float64
    soft(torch.randn(1, 50, 60, 4, dtype=torch.float64))


def test_a_plan_of_factors_is_refused_for_full_matrices():
    sharpness, value = torch.eye(2).expand(1, 2, 2), torch.randn(1, 1, 1600, 2)
    for alpha, center in ((5.0, 0.3), (1e-4, 0.3), (50.0, 0.0)):  # banded, separable, taps
        place = torch.full((1, 2), center)
        plan = plan_for(place, torch.tensor([alpha]), (40, 40))
        with pytest.raises(ValueError, match="whose maps factorize over the axes, but sharpness has shape"):
            gaussian_attention(value, place, sharpness, (40, 40), plan=plan)


def test_shifts_made_for_fake_tensors_are_not_kept():
    center, sharpness = torch.zeros(1, 2), torch.full((1,), 50.0)
    plan, value = plan_for(center, sharpness, (11, 7)), torch.randn(1, 1, 77, 2)
    with FakeTensorMode():
        fake = gaussian_attention(torch.empty(1, 1, 77, 2), torch.empty(1, 2), torch.empty(1), (11, 7), plan=plan)
    assert fake.shape == value.shape
    torch.testing.assert_close(gaussian_attention(value, center, sharpness, (11, 7), plan=plan), value)
    with torch.device("meta"):
        torch.testing.assert_close(gaussian_attention(value, center, sharpness, (11, 7), plan=plan), value)


def test_no_heads_and_queries_that_are_no_places_are_refused():
    value, center, sharpness = torch.randn(1, 1, 6, 2), torch.zeros(1, 1), torch.ones(1)
    with pytest.raises(ValueError, match=r"center has shape \(0, 1\), but there must be at least one head"):
        gaussian_attention(value, center[:0], sharpness[:0], (6,))
    for queries in (torch.tensor([True]), torch.tensor([1j])):
        with pytest.raises(TypeError, match="queries must be real numbers"):
            gaussian_attention(value, center, sharpness, (6,), queries=[queries])


@pytest.mark.usefixtures("user_errors")
@pytest.mark.parametrize(
    ("device", "options", "message"),
    [
        ("cpu", {"slack": math.inf}, "slack must be a finite number of 0 or more, got inf"),
        ("cpu", {"slack": True}, "slack must be a finite number"),
        ("cpu", {"tolerance": False}, "tolerance must be a number"),
        ("meta", {}, "center must have values"),
        ("cpu", {"queries": [torch.zeros(3, device="meta")]}, r"queries\[0\] is on meta but must be on cpu"),
        ("cpu", {"border": "zeros", "padding": ((True, 1),)}, "padding must be .* whole numbers"),
    ],
)
def test_what_a_plan_cannot_take_is_named(device, options, message):
    with pytest.raises(ValueError, match=message):
        plan_for(torch.zeros(1, 1, device=device), torch.ones(1, device=device), (400,), **options)


class LargestResult(TorchDispatchMode):
    """The entries of the largest tensor that is computed."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, torch.Tensor):
                self.entries = max(self.entries, x.untyped_storage().nbytes() // x.element_size())
        return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bands_of_a_long_axis_take_memory_for_few_matrices(dtype):
    tokens = 30_000
    value, center = torch.randn(1, 1, tokens, 2, dtype=dtype), torch.tensor([[3.3]], requires_grad=True)
    sharpness = torch.tensor([1 / (2 * 25.0**2)])
    assert plan_for(center, sharpness, (tokens,)).heads[0].way == "banded"
    with LargestResult() as largest:
        gaussian_attention(value, center, sharpness, (tokens,)).sum().backward()
    assert largest.entries < 20 * tokens  # a band of one matrix for each block has 318 for each token


@pytest.mark.parametrize(
    ("grid", "border", "centers"),
    [
        ((1203,), "native", [0.5, -7.3]),
        ((1100,), "zeros", [0.0, 400.25]),
        ((1200,), "native", [-300.0, 3.0]),
        ((3, 503), "native", [0.0, 40.5]),
    ],
)
def test_blocks_with_one_matrix_give_what_whole_axes_give(grid, border, centers, monkeypatch):
    monkeypatch.setattr(_plan, "MOST_SERVED", 20)
    generator = torch.Generator().manual_seed(0)
    center = torch.tensor(centers, dtype=torch.float64)[:, None].expand(-1, len(grid)).clone().requires_grad_()
    sharpness = torch.tensor([0.4, 0.7], dtype=torch.float64, requires_grad=True)
    value = torch.randn(2, 2, math.prod(grid), 3, generator=generator, dtype=torch.float64, requires_grad=True)
    inputs, padding = (value, center, sharpness), None if border == "native" else ((30, 5),) * len(grid)
    plan = plan_for(center, sharpness, grid, torch.float64, border=border, padding=padding, slack=0.5)
    blocks = plan.groups[0].axes[-1]
    assert len(set(blocks.numbers)) < len(blocks.numbers)
    with torch.no_grad():
        center += 0.4
    found = []
    for way in (plan, "separable"):
        out = gaussian_attention(*inputs, grid, border=border, padding=padding, plan=way)
        above = (1.7 * torch.arange(out.numel(), dtype=torch.float64)).sin().reshape(out.shape)
        first = torch.autograd.grad((out * above).sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in first), inputs)
        found.append((out, *first, *second))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10 * max(1.0, b.abs().max().item()), rtol=0)
