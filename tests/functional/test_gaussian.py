"""Gaussian attention equals its N×N formula on every way, in values and gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad

from regard import reference
from regard.functional import _mix as mix_module
from regard.functional import gaussian_attention, gaussian_weights, plan_for
from regard.functional._taps import tail

BORDERS = ["native", "zeros", "reflect", "replicate", "circular"]
grids = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)
forms = st.sampled_from(["isotropic", "diagonal", "full"])


def heads_for(grid, form, *, heads=3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    axes = len(grid)
    center = torch.randn(heads, axes, generator=generator, dtype=dtype) * 2
    if form == "isotropic":
        sharpness = torch.rand(heads, generator=generator, dtype=dtype) * 3
    elif form == "diagonal":
        sharpness = torch.rand(heads, axes, generator=generator, dtype=dtype) * 3
    else:
        root = torch.randn(heads, axes, axes, generator=generator, dtype=dtype)
        sharpness = root @ root.mT
    return center.requires_grad_(), sharpness.requires_grad_()


def values_and_gradients(function, inputs, weight_seed=1):
    out = function(*inputs)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(weight_seed), dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), inputs)]


def assert_same(found, expected, tolerance=1e-10):
    for a, b in zip(found, expected, strict=True):
        scale = max(1.0, b.abs().max().item())
        torch.testing.assert_close(a, b, atol=tolerance * scale, rtol=0)


@given(grid=grids, form=forms, border=st.sampled_from(BORDERS), batch=st.integers(1, 2), data=st.data())
def test_equals_the_formula_on_any_grid(grid, form, border, batch, data):
    padding = None
    if border != "native":
        padding = tuple((data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))) for _ in grid)
    queries = None
    if data.draw(st.booleans()):
        queries = [torch.linspace(-2.0, n + 1.5, data.draw(st.integers(1, 5)), dtype=torch.float64) for n in grid]
    center, sharpness = heads_for(grid, form, seed=data.draw(st.integers(0, 99)))
    value = torch.randn(batch, 3, math.prod(grid), 2, dtype=torch.float64, requires_grad=True)
    kwargs = {"queries": queries, "border": border, "padding": padding}
    expected = values_and_gradients(
        lambda v, c, s: reference.gaussian_attention(v, c, s, grid, **kwargs)[0], (value, center, sharpness)
    )
    frozen = plan_for(center, sharpness, grid, torch.float64, queries=queries, border=border, padding=padding)
    for plan in ("auto", "dense", "separable", frozen):
        found = values_and_gradients(
            lambda v, c, s, plan=plan: gaussian_attention(v, c, s, grid, plan=plan, **kwargs),
            (value, center, sharpness),
        )
        assert_same(found, expected)


@settings(max_examples=12)
@given(
    grid=st.sampled_from([(90,), (70, 80), (9, 90), (5, 6, 70)]),
    border=st.sampled_from(["native", "zeros"]),
    seed=st.integers(0, 99),
)
def test_local_heads_are_banded_and_still_exact(grid, border, seed):
    center, sharpness = heads_for(grid, "diagonal", seed=seed)
    with torch.no_grad():
        center[0] *= 20  # far outside the grid
        sharpness += 2
    padding = None if border == "native" else tuple((1, 2) for _ in grid)
    plan = plan_for(center, sharpness, grid, torch.float64, border=border, padding=padding)
    assert "banded" in {head.way for head in plan.heads}
    value = torch.randn(1, 3, math.prod(grid), 2, dtype=torch.float64, requires_grad=True)
    inputs = (value, center, sharpness)
    run = {
        name: values_and_gradients(
            lambda v, c, s, p=p: gaussian_attention(v, c, s, grid, border=border, padding=padding, plan=p), inputs
        )
        for name, p in (("banded", plan), ("separable", "separable"))
    }
    assert_same(run["banded"], run["separable"])


@pytest.mark.parametrize("alpha", [0.0, 1e-38, 1e-12, 1e-3, 0.4999])
def test_the_leak_of_wide_heads_takes_no_time(alpha):
    """A sum with as many terms as the head is wide would not end here."""
    assert {head.way for head in plan_for(torch.zeros(1, 2), torch.tensor([alpha]), (8, 8)).heads} == {"dense"}
    terms = [math.exp(-alpha * r * r) for r in range(1, 300)]
    assert tail(alpha) >= 2 * sum(terms) * (1 - 1e-14)
    if alpha >= 1e-3:
        assert tail(alpha) <= 2 * sum(terms) * (1 + 1e-14)


def test_a_plan_can_mix_ways_and_keeps_the_heads_in_order():
    grid = (80, 80)
    center = torch.tensor([[0.0, 1.0], [2.0, -3.0], [1.5, 0.5]], dtype=torch.float64)
    sharpness = torch.tensor([4.0, 0.001, 8.0], dtype=torch.float64)
    plan = plan_for(center, sharpness, grid, torch.float64)
    assert [head.way for head in plan.heads] == ["banded", "separable", "banded"]
    value = torch.randn(2, 3, 6400, 2, dtype=torch.float64)
    torch.testing.assert_close(
        gaussian_attention(value, center, sharpness, grid, plan=plan),
        gaussian_attention(value, center, sharpness, grid),
    )


@given(
    grid=st.sampled_from([(5, 4), (40,), (70, 6), (3, 4, 5)]), plan=st.sampled_from(["dense", "separable", "frozen"])
)
def test_one_shared_value_equals_a_copy_for_every_head(grid, plan):
    center, sharpness = heads_for(grid, "isotropic")
    with torch.no_grad():
        sharpness += 1
    frozen = plan_for(center, sharpness, grid, torch.float64) if plan == "frozen" else plan
    value = torch.randn(2, 1, math.prod(grid), 3, dtype=torch.float64, requires_grad=True)
    shared = values_and_gradients(
        lambda v, c, s: gaussian_attention(v, c, s, grid, plan=frozen), (value, center, sharpness)
    )
    copied = values_and_gradients(
        lambda v, c, s: gaussian_attention(v.expand(-1, 3, -1, -1), c, s, grid, plan=frozen), (value, center, sharpness)
    )
    assert_same(shared, copied)


@pytest.mark.parametrize("grid", [(5, 4), (90,), (70, 8)])
def test_plain_operations_equal_the_tiled_way(grid, monkeypatch):
    """The CPU's hand-written passes and the operations that compilers see are one function."""
    center, sharpness = heads_for(grid, "diagonal")
    with torch.no_grad():
        sharpness[:2] += 1
    value = torch.randn(2, 3, math.prod(grid), 2, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(mix_module, "SMALL_ITEM_BYTES", 0)  # small grids would be plain anyway
    for plan in ("dense", "separable", plan_for(center, sharpness, grid, torch.float64)):
        run = lambda v, c, s, plan=plan: gaussian_attention(v, c, s, grid, plan=plan)  # noqa: E731
        tiled = values_and_gradients(run, (value, center, sharpness))
        with monkeypatch.context() as patch:
            patch.setattr(mix_module, "_can_tile", lambda *_: False)
            plain = values_and_gradients(run, (value, center, sharpness))
        assert_same(tiled, plain)


@pytest.mark.parametrize("tiled", [True, False])
def test_gradcheck_and_its_gradient(tiled, monkeypatch):
    if tiled:
        monkeypatch.setattr(mix_module, "SMALL_ITEM_BYTES", 0)
    center, sharpness = heads_for((3, 4), "diagonal", heads=2)
    value = torch.randn(1, 2, 12, 2, dtype=torch.float64, requires_grad=True)
    run = lambda v, c, s: gaussian_attention(v, c, s.square(), (3, 4))  # noqa: E731
    assert torch.autograd.gradcheck(run, (value, center, sharpness))
    assert torch.autograd.gradgradcheck(run, (value, center, sharpness))


@given(
    exponent=st.floats(-6, 6),
    far=st.sampled_from([0.0, 3.0, 1e2, 1e4, -1e6]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    plan=st.sampled_from(["dense", "separable", "frozen"]),
    form=forms,
)
def test_extreme_heads_never_give_nan_and_stay_within_rounding(exponent, far, dtype, plan, form):
    """The bound: float32 within 2e-5 and bfloat16 within 2e-2 of the float64 formula, for values of size one."""
    grid = (9, 70)
    center, sharpness = heads_for(grid, form, dtype=torch.float32)
    with torch.no_grad():
        center += far
        sharpness *= 10**exponent
    value = torch.rand(1, 3, 630, 2).to(dtype).requires_grad_()
    frozen = plan_for(center, sharpness, grid, dtype) if plan == "frozen" else plan
    out = gaussian_attention(value, center, sharpness, grid, plan=frozen)
    assert out.dtype == dtype
    exact = gaussian_attention(value.double(), center.double(), sharpness.double(), grid)
    tolerance = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype]
    # Targets are rounded in float32: far from the origin that moves a head by a fraction of a pixel.
    if abs(far) <= 100:
        torch.testing.assert_close(out.double(), exact, atol=tolerance, rtol=0)
    for gradient in torch.autograd.grad(out.float().sum(), (value, center, sharpness)):
        assert gradient.isfinite().all()


def test_rows_of_the_map_sum_to_one_and_the_map_gives_the_output():
    center, sharpness = heads_for((4, 6), "diagonal")
    weights = gaussian_weights(center, sharpness, (4, 6))
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 24, dtype=torch.float64))
    value = torch.randn(2, 3, 24, 5, dtype=torch.float64)
    torch.testing.assert_close(weights @ value, gaussian_attention(value, center, sharpness, (4, 6)))


def test_center_points_from_the_query_to_the_key_in_row_column_order():
    image = torch.arange(12.0).reshape(1, 1, 12, 1)
    out = gaussian_attention(image, torch.tensor([[1.0, 2.0]]), torch.tensor([60.0]), (3, 4))
    assert out.reshape(3, 4)[0, 0] == pytest.approx(image.reshape(3, 4)[1, 2].item())


def test_memory_kept_for_backward_is_the_value_and_the_axis_matrices():
    grid, saved = (48, 48), []
    center, sharpness = heads_for(grid, "isotropic")
    value = torch.randn(1, 3, 2304, 8, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        gaussian_attention(value, center, sharpness, grid, plan="separable")
    assert max(n for n in saved if n != value.numel()) <= 3 * 48 * 48
    assert saved.count(value.numel()) == 1


@pytest.mark.usefixtures("user_errors")
class TestBadInput:
    value, center, sharpness = torch.randn(1, 3, 12, 2), torch.zeros(3, 2), torch.ones(3)

    def run(self, **kwargs):
        arguments = {"value": self.value, "center": self.center, "sharpness": self.sharpness, "grid": (3, 4)}
        return gaussian_attention(**{**arguments, **kwargs})

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"grid": (3, 5)}, ValueError, r"value has 12 tokens but grid \(3, 5\) has 3 × 5 = 15"),
            ({"grid": (3, 2, 2)}, ValueError, r"center has shape \(3, 2\) but grid \(3, 2, 2\) has 3 axes"),
            ({"grid": 12}, TypeError, "grid must be a sequence of sizes"),
            ({"grid": (3.0, 4.0)}, TypeError, "grid must be whole numbers"),
            ({"grid": (0, 4)}, ValueError, "grid must have sizes of 1 or more"),
            ({"sharpness": -torch.ones(3)}, ValueError, "sharpness must be finite and 0 or more"),
            ({"sharpness": torch.ones(4)}, ValueError, r"sharpness has shape \(4,\); for 3 heads"),
            ({"sharpness": -torch.eye(2).expand(3, 2, 2)}, ValueError, "positive semi-definite"),
            ({"sharpness": torch.tensor([[1.0, 2.0], [0.0, 1.0]]).expand(3, 2, 2)}, ValueError, "symmetric"),
            ({"center": torch.full((3, 2), torch.nan)}, ValueError, "center must be finite"),
            ({"center": torch.zeros(3, 2, dtype=torch.long)}, TypeError, "center must be a floating-point tensor"),
            ({"value": torch.randn(1, 2, 12, 2)}, ValueError, "value has 2 heads but center has 3"),
            ({"value": torch.randn(3, 12, 2)}, ValueError, r"value has shape \(3, 12, 2\), 3 axes, but must have 4"),
            ({"border": "mirror"}, ValueError, "border must be one of"),
            ({"border": "zeros", "padding": 1}, TypeError, r"padding must be \(\(before, after\), …\).*got 1"),
            ({"border": "zeros", "padding": (1, 1)}, TypeError, r"padding must be .*got \(1, 1\)"),
            ({"queries": 3}, TypeError, "queries must be one 1-D tensor .*got 3"),
            ({"queries": [torch.zeros(0), torch.zeros(2)]}, ValueError, "queries must be .*at least one"),
            ({"queries": [torch.zeros(1), torch.full((2,), torch.nan)]}, ValueError, "queries must be finite"),
            ({"border": "zeros"}, ValueError, "border 'zeros' needs padding"),
            ({"border": "zeros", "padding": ((1, 1),)}, ValueError, "1 pairs, but grid"),
            ({"border": "zeros", "padding": ((1, -1), (0, 0))}, ValueError, "padding must be"),
            ({"padding": ((1, 1), (1, 1))}, ValueError, "takes no padding"),
            ({"queries": [torch.zeros(2)]}, ValueError, "queries must be one 1-D tensor"),
            ({"plan": "fastest"}, ValueError, "plan must be 'auto'"),
            ({"plan": "banded"}, ValueError, "make a plan with"),
        ],
    )
    def test_is_refused_with_what_would_fit(self, change, error, message):
        with pytest.raises(error, match=message):
            self.run(**change)

    def test_a_plan_for_other_heads_is_refused(self):
        plan = plan_for(torch.zeros(1, 1), torch.ones(1), (100,))
        value = torch.randn(1, 1, 100, 2)
        gaussian_attention(value, torch.zeros(1, 1), torch.ones(1), (100,), plan=plan)
        with pytest.raises(ValueError, match=r"center moved by 0\.5"):
            gaussian_attention(value, torch.full((1, 1), 0.5), torch.ones(1), (100,), plan=plan)
        with pytest.raises(ValueError, match="became softer"):
            gaussian_attention(value, torch.zeros(1, 1), torch.full((1,), 0.5), (100,), plan=plan)
        with pytest.raises(ValueError, match="plan was made for 1 heads, grid"):
            gaussian_attention(value[:, :, :50], torch.zeros(1, 1), torch.ones(1), (50,), plan=plan)
        some = plan_for(torch.zeros(1, 1), torch.ones(1), (100,), queries=[torch.arange(20.0)])
        gaussian_attention(value, torch.zeros(1, 1), torch.ones(1), (100,), queries=[torch.arange(20.0)], plan=some)
        with pytest.raises(ValueError, match="queries at other coordinates"):
            gaussian_attention(
                value, torch.zeros(1, 1), torch.ones(1), (100,), queries=[torch.arange(20.0) + 50], plan=some
            )
        with pytest.raises(ValueError, match="other queries"):
            gaussian_attention(
                value, torch.zeros(1, 1), torch.ones(1), (100,), queries=[torch.arange(100.0) + 50], plan=plan
            )
        slack = plan_for(torch.zeros(1, 1), torch.ones(1), (100,), slack=1.0)
        moved = gaussian_attention(value, torch.full((1, 1), 0.9), torch.ones(1), (100,), plan=slack)
        torch.testing.assert_close(moved, gaussian_attention(value, torch.full((1, 1), 0.9), torch.ones(1), (100,)))


@pytest.mark.parametrize("plan", ["auto", "dense", "separable"])
@pytest.mark.parametrize("value_heads", [1, 2])
def test_autocast_settles_the_dtype(value_heads, plan):
    value = torch.randn(2, value_heads, 256, 4, requires_grad=True)
    center, sharpness = torch.randn(2, 2, requires_grad=True), torch.rand(2, requires_grad=True)
    exact = gaussian_attention(value, center, sharpness, (16, 16), plan=plan)
    wanted = torch.autograd.grad(exact.square().sum(), (value, center, sharpness))
    with torch.autocast("cpu", torch.bfloat16):
        found = gaussian_attention(value, center, sharpness, (16, 16), plan=plan)
        assert found.dtype is torch.bfloat16
        torch.testing.assert_close(found.float(), exact, rtol=0.05, atol=0.05)
        late = gaussian_attention(value.detach().requires_grad_(), center, sharpness, (16, 16), plan=plan)
        late.float().square().sum().backward()
    outside = gaussian_attention(value, center, sharpness, (16, 16), plan=plan).square().sum()
    with torch.autocast("cpu", torch.bfloat16):  # a backward pass inside, of a forward pass outside
        gradients = torch.autograd.grad(outside, (value, center, sharpness))
    torch.testing.assert_close(gradients, wanted, rtol=0.05, atol=0.1)


def test_heads_of_many_networks_at_once():
    value, centers, sharpness = torch.randn(2, 3, 12, 4), torch.randn(5, 3, 2), torch.rand(5, 3)
    found = torch.func.vmap(lambda c, s: gaussian_attention(value, c, s, (3, 4)))(centers, sharpness)
    each = [gaussian_attention(value, c, s, (3, 4)) for c, s in zip(centers, sharpness, strict=True)]
    torch.testing.assert_close(found, torch.stack(each))


@pytest.mark.parametrize(("value_heads", "grid"), [(2, (64, 64)), (1, (4, 4))])
def test_forward_gradients(value_heads, grid):
    """Of dual numbers, without a transform around: hand-written passes have none."""
    value = torch.randn(1, value_heads, math.prod(grid), 16, dtype=torch.float64)
    center, sharpness = torch.randn(2, 2, dtype=torch.float64), 0.1 + torch.rand(2, dtype=torch.float64)
    attend = lambda *x: gaussian_attention(*x, grid)  # noqa: E731
    directions = [torch.randn_like(x) for x in (value, center, sharpness)]
    _, expected = torch.func.jvp(attend, (value, center, sharpness), tuple(directions))
    with forward_ad.dual_level():
        duals = map(forward_ad.make_dual, (value, center, sharpness), directions)
        found = forward_ad.unpack_dual(attend(*duals)).tangent
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("value_heads", [1, 2])
@pytest.mark.parametrize("plan", ["dense", "separable"])
def test_transforms_of_torch_func(value_heads, plan):
    values, center, sharpness = torch.randn(3, 2, value_heads, 16, 4), torch.randn(2, 2), torch.rand(2)

    def attend(value):
        return gaussian_attention(value, center, sharpness, (4, 4), plan=plan)

    torch.testing.assert_close(torch.func.vmap(attend)(values), torch.stack([attend(value) for value in values]))
    value = values[0].requires_grad_()
    (expected,) = torch.autograd.grad(attend(value).square().sum(), [value])
    torch.testing.assert_close(torch.func.grad(lambda x: attend(x).square().sum())(value.detach()), expected)


class TestLocalHeadsWithoutBeingAsked:
    """On the CPU, plan "auto" finds heads whose weights are local and bands them; results stay the same."""

    @pytest.mark.parametrize("border", ["native", "zeros"])
    def test_values_and_gradients(self, border):
        padding = None if border == "native" else ((2, 2), (1, 3))
        center = torch.tensor([[0.0, 1.0], [-2.3, 0.5], [200.0, -3.0]], dtype=torch.float64)
        sharpness = torch.tensor([3.0, 8.0, 0.001], dtype=torch.float64)
        value = torch.randn(1, 3, 128 * 96, 2, dtype=torch.float64)
        inputs = [x.requires_grad_() for x in (value, center, sharpness)]
        results = []
        for plan in ("auto", "separable"):
            out = gaussian_attention(*inputs, (128, 96), border=border, padding=padding, plan=plan)
            results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)

    def test_local_heads_are_banded_and_wide_ones_are_not(self):
        from regard.functional._call import resolve
        from regard.functional._plan import groups_for

        call = resolve(torch.zeros(3, 2), torch.tensor([2.0, 2.0, 1e-4]), (128, 128), None, "native", None)
        local, wide = groups_for(call, "auto", "cpu", torch.float32)
        assert local.heads == (0, 1)
        assert not any(axis.is_whole for axis in local.axes)
        assert wide.heads == (2,)
        assert all(axis.is_whole for axis in wide.axes)


def test_one_product_for_all_heads_of_a_small_plane_copies_no_values():
    """Torch turns both sides of a product with a matrix that needs a gradient, which took most of the layer's time."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Copies(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            found = function(*arguments, **(named or {}))
            if function in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default):
                self.elements += found.numel()
            return found

    value = torch.randn(16, 1, 64, 24, dtype=torch.float64, requires_grad=True)
    center, sharpness = torch.randn(3, 2, requires_grad=True), torch.ones(3, requires_grad=True)
    with Copies() as copies:
        out = gaussian_attention(value, center, sharpness, (8, 8), plan="dense")
    assert out.transpose(1, 2).is_contiguous()
    assert copies.elements < value.numel()
    above = torch.randn(16, 64, 3, 24, dtype=torch.float64).transpose(1, 2)
    with Copies() as copies:
        torch.autograd.grad(out, value, above)
    assert copies.elements < out.numel() + value.numel() + 3 * 64 * 64  # both turned once, for the gradient of the map


def test_a_plan_for_centers_in_float64_keeps_what_matters_in_float64():
    center, sharpness = torch.zeros(1, 1, dtype=torch.float64), torch.full((1,), 0.5, dtype=torch.float64)
    value, plan = torch.randn(1, 1, 200, 3, dtype=torch.float64), plan_for(center, sharpness, (200,))
    found, expected = (gaussian_attention(value, center, sharpness, (200,), plan=way) for way in (plan, "dense"))
    assert plan.heads[0].way == "banded"
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)
