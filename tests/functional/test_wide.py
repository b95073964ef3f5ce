"""Wide heads, whose weights are interpolated between a few nodes per axis: equal to whole axis matrices, within a bound."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from regard.functional import HeadPlan, axis_matrix, gaussian_attention, plan_for
from regard.functional._interpolation import _least_sum, node_basis, nodes_needed
from regard.functional._wide_heads import WideAxis

CPU = torch.device("cpu")


def count_nodes(*axis, tolerance):
    """Of one axis: its sharpness, the first and last target, the lowest and highest key."""
    return nodes_needed(*torch.tensor(axis, dtype=torch.float64), tolerance).item()


def interpolated_rows(targets, alpha, size, count):
    """The axis matrix that ``count`` nodes give, in the dtype of targets."""
    axis, dtype = WideAxis(targets, size, count, "native", (0, 0)), targets.dtype
    basis = axis.basis(dtype, dtype)
    weights = axis.weights(basis, torch.zeros(1, dtype=dtype), torch.tensor([alpha], dtype=dtype))
    return weights @ basis.polynomials


def distance(targets, alpha, size, count):
    """The largest L1 distance of a row from the exact one."""
    exact = axis_matrix(targets[None], torch.tensor([alpha], dtype=torch.float64), size)
    return (interpolated_rows(targets, alpha, size, count) - exact).abs().sum(-1).max().item()


@settings(max_examples=150)
@given(
    size=st.integers(4, 150),
    spread=st.floats(0.01, 40.0),
    begin=st.floats(-3.0, 3.0),
    length=st.floats(0.0, 3.0),
    bits=st.integers(5, 40),
)
def test_enough_nodes_keep_every_row_within_the_tolerance(size, spread, begin, length, bits):
    alpha, tolerance = (spread / size) ** 2, 2.0**-bits
    targets = torch.linspace(begin * size, (begin + length) * size, 37, dtype=torch.float64)
    count = count_nodes(alpha, targets[0].item(), targets[-1].item(), 0, size - 1, tolerance=tolerance)
    if count == size:
        return
    assert 1 <= count < size
    assert distance(targets, alpha, size, count) <= tolerance + 1e-13


def test_half_the_nodes_would_not_be_enough():
    targets = torch.arange(100, dtype=torch.float64)
    for alpha in (1e-4, 1e-3, 5e-3):
        count = count_nodes(alpha, 0.0, 99.0, 0, 99, tolerance=2.0**-24)
        assert distance(targets, alpha, 100, count // 2) > 2.0**-24


def test_nodes_grow_with_the_square_root_of_sharpness_and_not_with_the_axis():
    counts = [count_nodes(alpha, 0.0, 255.0, 0, 255, tolerance=2.0**-9) for alpha in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)]
    assert counts == sorted(counts)
    assert counts[-1] < 10 * counts[-3] + 10
    same = [count_nodes(10.0 / n**2, 0.0, n - 1.0, 0, n - 1, tolerance=2.0**-9) for n in (64, 512, 4096)]
    assert max(same) - min(same) <= 1


@pytest.mark.parametrize("first", [-1e30, 1e30, 3e38, -1e5])
def test_targets_far_outside_need_whole_matrices(first):
    assert count_nodes(1e-6, first, first + 10, 0, 9, tolerance=1e-3) == 10


def test_extreme_sharpness_needs_whole_matrices_and_none_at_all_a_few_nodes():
    for size in (1, 2, 3, 4, 5, 50, 10**6):
        for alpha in (1e30, 1e308):
            assert count_nodes(alpha, -3.0, size + 2.0, 0, size - 1, tolerance=1e-3) == size
        for alpha in (0.0, 5e-324, 1e-300):
            few = count_nodes(alpha, -3.0, size + 2.0, 0, size - 1, tolerance=2.0**-53)
            assert few == size if size < 4 else 1 <= few <= 5


def test_heads_and_axes_are_counted_at_once():
    alpha = torch.tensor([[1e-4, 2e-3], [1e-6, 5.0]], dtype=torch.float64)
    last = torch.tensor([255.0, 40.0], dtype=torch.float64)
    found = nodes_needed(alpha, torch.zeros_like(last), last, torch.zeros_like(last), last, 2.0**-9).tolist()
    ends = (255.0, 40.0)
    assert found == [
        [count_nodes(a, 0.0, end, 0, end, tolerance=2.0**-9) for a, end in zip(row, ends, strict=True)]
        for row in alpha.tolist()
    ]


@pytest.mark.parametrize("beyond", [0.0, 7.5, 900.0])
def test_the_sum_of_a_row_is_at_least_its_lower_bound(beyond):
    for size in (2, 9, 300):
        steps = torch.arange(size, dtype=torch.float64)
        for alpha in (0.0, 1e-300, 1e-16, 1e-12, 1e-9, 1e-7, 1e-5, 1e-3, 0.1, 3.0, 1e5):
            exact = (-alpha * steps * (steps + 2 * beyond)).exp().sum().item()
            least = _least_sum(*torch.tensor([alpha, beyond, size], dtype=torch.float64)).item()
            assert exact / 3 < least <= exact * (1 + 1e-9)


def test_polynomials_of_low_degree_are_reproduced():
    basis = node_basis(6, 31, "native", (0, 0), torch.float64, torch.float64, CPU)
    keys = torch.arange(31, dtype=torch.float64)
    scale = basis.sums.sum() / 31
    for degree in range(6):
        found = ((basis.whole + basis.fraction) / 30) ** degree @ basis.polynomials / scale
        torch.testing.assert_close(found, (keys / 30) ** degree, atol=1e-13, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "deviations"), [(40_000, 60.0), (3000, 20.0), (2001, 1.0)])
def test_long_axes_lose_no_digits_of_the_coordinates(size, deviations, dtype):
    alpha = torch.tensor((deviations / size) ** 2 / 2, dtype=torch.float32).item()
    targets = torch.tensor([0.0, 7.3, size / 3, size - 20.0, size - 1.0], dtype=torch.float32)
    count = count_nodes(alpha, 0.0, size - 1.0, 0, size - 1, tolerance=torch.finfo(dtype).eps / 2)
    assert count < size / 2
    exact = axis_matrix(targets[None].double(), torch.tensor([alpha], dtype=torch.float64), size)
    found = interpolated_rows(targets.to(dtype), alpha, size, count)
    most = 4 if dtype is torch.float32 else 40
    assert (found - exact).abs().sum(-1).max() < most * torch.finfo(dtype).eps


def test_a_long_axis_may_need_many_nodes():
    """They take less memory than whole matrices or windows, 80 GB here."""
    center, sharpness = torch.zeros(1, 1), torch.tensor([(60 / 100_000) ** 2 / 2])
    plan = plan_for(center, sharpness, (100_000,))
    assert plan.heads[0].nodes == (256,), plan


def wide(grid, heads=3, dtype=torch.float64, spread=1.0, value_heads=None, batch=2):
    generator = torch.Generator().manual_seed(math.prod(grid))
    scale = torch.tensor([(spread / n) ** 2 for n in grid], dtype=dtype)
    center = torch.randn(heads, len(grid), generator=generator, dtype=dtype) * 3
    sharpness = scale * (0.5 + torch.rand(heads, 1, generator=generator, dtype=dtype))
    value = torch.randn(batch, value_heads or heads, math.prod(grid), 4, generator=generator, dtype=dtype)
    return [x.requires_grad_() for x in (value, center, sharpness)]


def results(inputs, grid, plan, **options):
    out = gaussian_attention(*inputs, grid, plan=plan, **options)
    above = (1.7 * torch.arange(out.numel(), dtype=torch.float64)).sin().reshape(out.shape)
    return out, *torch.autograd.grad(out, inputs, above.to(out.dtype))


def assert_same(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), atol=tolerance * max(1.0, b.abs().max().item()), rtol=0)


@pytest.mark.parametrize("value_heads", [3, 1])
@pytest.mark.parametrize("border", ["native", "zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("grid", [(2000,), (80, 90), (5, 90, 80)])
def test_interpolation_gives_what_whole_matrices_give(grid, border, value_heads):
    spread = 1.0 if len(grid) < 3 else 0.2
    inputs = wide(grid, value_heads=value_heads, spread=spread, batch=1)
    padding = None if border == "native" else tuple((2, 1) for _ in grid)
    options = {"border": border, "padding": padding}
    plan = plan_for(inputs[1], inputs[2], grid, torch.float64, **options)
    assert all(head.way == "separable" and head.nodes for head in plan.heads)
    assert_same(results(inputs, grid, plan, **options), results(inputs, grid, "separable", **options), 1e-11)


def test_queries_may_lie_anywhere_and_get_gradients():
    grid, inputs = (90, 80), wide((90, 80))
    queries = [torch.linspace(-20.3, 70.0, 11, dtype=torch.float64), torch.rand(7, dtype=torch.float64) * 80]
    plan = plan_for(inputs[1], inputs[2], grid, torch.float64, queries=queries)
    assert plan.heads[0].nodes
    assert_same(
        results(inputs, grid, plan, queries=queries), results(inputs, grid, "separable", queries=queries), 1e-11
    )
    found = []
    for way in (plan, "separable"):
        leaves = [query.clone().requires_grad_() for query in queries]
        out = gaussian_attention(*inputs, grid, queries=leaves, plan=way)
        found.append(torch.autograd.grad(out.sin().sum(), leaves))
    assert_same(*found, 1e-11)


def test_gradients_of_first_and_second_order():
    grid = (24, 22)
    value, center, sharpness = wide(grid, heads=2, spread=0.05, batch=1)
    value = value[..., :1].detach().requires_grad_()
    plan = plan_for(center, sharpness, grid, torch.float16, slack=0.1)
    assert plan.heads[0].nodes
    # Finite differences make heads sharper, and these are derivatives of the interpolated weights, however exact they are.
    plan = plan._replace(sharpness=tuple((1.0, 1.0) for _ in range(2)), dtype=torch.float64)

    def run(v, c, s):
        return gaussian_attention(v, c, s, grid, plan=plan)

    assert torch.autograd.gradcheck(run, (value, center, sharpness), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (value, center, sharpness), fast_mode=True)


@pytest.mark.parametrize(
    ("dtype", "mean"),
    list(itertools.product([torch.float32, torch.float16, torch.bfloat16], [0.0, 4.0])),
)
def test_as_accurate_as_whole_matrices_in_every_dtype(dtype, mean):
    grid = (100, 90)
    exact = [x.detach() for x in wide(grid, spread=1.0 if mean else 5.0)]
    exact[0] = (exact[0] + mean).to(dtype).double()  # values have a mean after most layers
    exact = [x.requires_grad_() for x in exact]
    inputs = [exact[0].to(dtype), *(x.float() for x in exact[1:])]
    inputs = [x.detach().requires_grad_() for x in inputs]
    plan = plan_for(inputs[1], inputs[2], grid, dtype)
    assert plan.heads[0].nodes
    expected = results(exact, grid, "separable")
    off = {}
    for name, way in (("nodes", plan), ("matrices", "separable")):
        found = results(inputs, grid, way)
        off[name] = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True)]
    for a, b in zip(off["nodes"], off["matrices"], strict=True):
        assert a <= 2 * b + torch.finfo(dtype).eps


def test_local_and_wide_heads_in_one_call_keep_their_order():
    grid = (90, 90)
    center = torch.tensor([[0.0, 1.0], [2.0, -3.0], [1.5, 0.5], [0.0, 0.0]], requires_grad=True)
    sharpness = torch.tensor([4.0, 1e-4, 8.0, 1e-6], requires_grad=True)
    value = torch.randn(2, 4, 8100, 3, requires_grad=True)
    plan = plan_for(center, sharpness, grid)
    assert [head.way for head in plan.heads] == ["banded", "separable", "banded", "separable"]
    assert [head.nodes is None for head in plan.heads] == [True, False, True, False]
    assert "nodes" in str(plan)
    expected = results((value, center, sharpness), grid, "separable")
    for way in (plan, "auto"):
        assert_same(results((value, center, sharpness), grid, way), expected, 1e-5)


def test_auto_interpolates_wide_heads_on_the_cpu(monkeypatch):
    grid, inputs = (90, 80), wide((90, 80), dtype=torch.float32)
    calls = []
    original = torch.bmm
    monkeypatch.setattr(
        torch, "bmm", lambda *args, **options: calls.append(args[0].shape) or original(*args, **options)
    )
    gaussian_attention(*inputs, grid)
    assert calls
    assert max(min(shape[1:]) for shape in calls) <= 30  # products with a few nodes, none with whole axes


class LargestTensor(TorchDispatchMode):
    """The most bytes that a tensor takes which an operation makes."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else (found,):
            if isinstance(each, torch.Tensor):
                self.most = max(self.most, each.untyped_storage().nbytes())
        return found


@pytest.mark.parametrize("grid", [(2000,), (80, 60)])
def test_the_matrices_of_heads_are_not_copied_for_each_item(grid):
    most = []
    for batch in (1, 32):
        inputs = wide(grid, heads=2, dtype=torch.float32, spread=3.0, batch=batch)
        plan = plan_for(*inputs[1:], grid)
        assert plan.heads[0].nodes
        out = gaussian_attention(*inputs, grid, plan=plan)
        with LargestTensor() as seen:
            gaussian_attention(*inputs, grid, plan=plan)
            torch.autograd.grad(out, inputs, torch.ones_like(out))
        most.append(seen.most)
    assert most[1] <= max(most[0], out.nbytes), most


def test_large_fake_tensors_have_no_memory_to_prepare():
    grid = (3000, 1000)
    center, sharpness = torch.zeros(1, 2), torch.full((1,), 1e-7)
    plan = plan_for(center, sharpness, grid)
    assert plan.heads[0].nodes
    with FakeTensorMode():
        fake = gaussian_attention(torch.empty(2, 1, 3_000_000, 2), torch.empty(1, 2), torch.empty(1), grid, plan=plan)
    assert fake.shape == (2, 1, 3_000_000, 2)


def test_a_plan_holds_until_a_wide_head_becomes_sharper_or_moves():
    grid, (value, center, sharpness) = (90, 80), wide((90, 80))
    plan = plan_for(center, sharpness, grid, torch.float64, slack=1.0)
    gaussian_attention(value, center + 0.9, sharpness * 0.5, grid, plan=plan)
    with pytest.raises(ValueError, match="sharper"):
        gaussian_attention(value, center, sharpness * 1.01, grid, plan=plan)
    with pytest.raises(ValueError, match=r"moved by 1\.1"):
        gaussian_attention(value, center + 1.1, sharpness, grid, plan=plan)
    coarse = plan_for(center.float(), sharpness.float(), grid, torch.bfloat16)
    with pytest.raises(TypeError, match="coarser"):
        gaussian_attention(value.float(), center.float(), sharpness.float(), grid, plan=coarse)


def test_dropout_drops_entries_of_whole_matrices():
    grid, inputs = (90, 80), wide((90, 80))
    inputs[2] = torch.full((3, 2), 1e-4, dtype=torch.float64)
    plan = plan_for(inputs[1], inputs[2], grid, torch.float64)
    assert plan.heads[0].nodes
    found = []
    for way in (plan, "separable"):
        torch.manual_seed(0)
        found.append(gaussian_attention(*inputs, grid, plan=way, dropout=0.3))
    torch.testing.assert_close(*found)


def test_transforms_and_autocast():
    grid, (value, center, sharpness) = (90, 80), wide((90, 80), dtype=torch.float32)
    plan = plan_for(center, sharpness, grid)

    def run(v, c, s, way=plan):
        return gaussian_attention(v, c, s, grid, plan=way)

    one = value.detach()[0], center.detach(), sharpness.detach()
    mapped = torch.func.vmap(lambda v: run(v[None], *one[1:]))(value.detach())
    torch.testing.assert_close(mapped[:, 0], run(value, center, sharpness).detach())
    inputs = (value.detach(), *one[1:])
    tangents = tuple(torch.randn_like(x) * scale for x, scale in zip(inputs, (1.0, 1.0, 1e-5), strict=True))
    _, found = torch.func.jvp(run, inputs, tangents)
    _, expected = torch.func.jvp(lambda *x: run(*x, way="separable"), inputs, tangents)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    with torch.autocast("cpu", torch.float16):
        half = run(value, center, sharpness)
    torch.testing.assert_close(half.float(), run(value, center, sharpness), atol=5e-3, rtol=1e-2)


def test_the_plan_of_a_head_says_how_it_is_computed():
    assert str(HeadPlan("separable", nodes=(5, 7))) == "separable over 5×7 nodes"
    assert str(HeadPlan("banded", (3, 4))) == "banded, radius 3×4"
    assert str(HeadPlan("dense")) == "dense"


@pytest.mark.parametrize("value_heads", [3, 1])
@pytest.mark.parametrize(("batch", "width"), [(0, 4), (2, 0)])
@pytest.mark.parametrize("grid", [(2000,), (80, 90), (30, 30, 30)])
def test_an_empty_batch_has_an_empty_output_and_gradients_of_zero(grid, batch, width, value_heads):
    _, center, sharpness = wide(grid, value_heads=value_heads, dtype=torch.float32, spread=0.05)
    value = torch.randn(batch, value_heads, math.prod(grid), width, requires_grad=True)
    plan = plan_for(center, sharpness, grid)
    assert plan.heads[0].nodes
    for way in (plan, "auto"):
        out, by_value, *by_heads = results((value, center, sharpness), grid, way)
        assert out.shape == (batch, 3, math.prod(grid), width)
        assert by_value.shape == value.shape
        assert not any(grad.any() for grad in by_heads)


def test_sums_over_a_long_axis_keep_their_digits():
    """Added up one after the other, a hundred thousand numbers with a mean lost two digits of outputs, and a third of the
    gradient by sharpness, in which the mean cancels."""
    tokens = 200_000
    generator = torch.Generator().manual_seed(0)
    value = 30 + torch.randn(1, 1, tokens, 2, generator=generator)
    sharpness = torch.zeros(1, 1, requires_grad=True)
    plan = plan_for(torch.zeros(1, 1), sharpness, (tokens,), torch.float32)
    assert plan.heads[0].nodes
    out = gaussian_attention(value, torch.zeros(1, 1), sharpness, (tokens,), plan=plan)
    exact = value.double()
    torch.testing.assert_close(out.double(), exact.mean(2, keepdim=True).expand_as(exact), atol=0, rtol=1e-6)
    (found,) = torch.autograd.grad(out.sum(), sharpness)
    squares = torch.arange(tokens, dtype=torch.float64).sub((tokens - 1) / 2).square()
    expected = -((squares - squares.mean()) @ exact[0, 0].sum(1))  # of −Σ_q Σ_k ((k − q)² − its mean) v_k / tokens
    torch.testing.assert_close(found.double().squeeze(), expected, atol=0, rtol=0.1)
