"""Sharp heads with whole centers: named taps by the plan, and computed as shifts, or all together as a convolution."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import GaussianAttention, plan_for
from regard.functional import gaussian_attention
from regard.layers._composed import composed_convolution


@settings(max_examples=12)
@given(data=st.data())
def test_taps_are_the_attention_of_sharp_heads(data):
    axes, heads = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    grid = data.draw(st.tuples(*[st.integers(1, 5)] * axes))
    center = torch.tensor(data.draw(st.lists(st.tuples(*[st.integers(-6, 6)] * axes), min_size=heads, max_size=heads)))
    center, sharpness = center.double(), torch.full((heads,), 45.0).double()
    value = torch.randn(2, data.draw(st.sampled_from([1, heads])), torch.tensor(grid).prod(), 3, dtype=torch.float64)
    value.requires_grad_()
    plan = plan_for(center, sharpness, grid, torch.float64)
    assert {head.way for head in plan.heads} == {"taps"}
    assert 0 < plan.leak <= torch.finfo(torch.float64).eps / 2
    found = []
    for way in ("separable", plan):
        out = gaussian_attention(value, center, sharpness, grid, plan=way)
        found.append((out, *torch.autograd.grad(out.sin().sum(), value)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    # With the gradient of the centers the heads are computed as heads.
    center.requires_grad_()
    (exact,), (by_plan,) = (
        torch.autograd.grad(gaussian_attention(value, center, sharpness, grid, plan=way).sum(), center)
        for way in ("separable", plan)
    )
    torch.testing.assert_close(by_plan, exact)


@pytest.mark.parametrize(
    ("center", "sharpness", "options", "ways"),
    [
        (0.0, 20.0, {}, {"taps"}),
        (0.0, 12.0, {}, {"banded"}),
        (0.0, 12.0, {"tolerance": 1e-4}, {"taps"}),
        (0.0, 8.5, {"dtype": torch.bfloat16}, {"taps"}),
        (0.5, 40.0, {}, {"banded"}),
        (0.0, 40.0, {"slack": 1.0}, {"banded"}),
        (0.0, 40.0, {"border": "zeros", "padding": ((1, 1), (1, 1))}, {"banded"}),
    ],
)
def test_the_plan_names_taps_where_no_result_can_tell_or_the_caller_accepts_it(center, sharpness, options, ways):
    plan = plan_for(torch.full((2, 2), center), torch.full((2,), sharpness), (64, 64), **options)
    assert {head.way for head in plan.heads} == ways
    assert ("taps" in str(plan)) == (ways == {"taps"}) == (plan.leak > 0)
    assert plan.leak <= max(options.get("tolerance", 0.0), torch.finfo(options.get("dtype", torch.float32)).eps / 2)


def test_a_plan_of_taps_is_refused_once_heads_move():
    center, sharpness, value = torch.zeros(1, 2), torch.tensor([40.0]), torch.randn(1, 1, 9, 2)
    plan = plan_for(center, sharpness, (3, 3))
    for moved, softer in ((center + 0.1, sharpness), (center, sharpness / 2)):
        with pytest.raises(ValueError, match="plan no longer holds: a taps head"):
            gaussian_attention(value, moved, softer, (3, 3), plan=plan)
    with pytest.raises(ValueError, match="tolerance must be a number of 0 or more, below 1"):
        plan_for(center, sharpness, (3, 3), tolerance=1.0)


@pytest.mark.parametrize("center", ["grid", "scattered"])
def test_a_full_width_layer_of_taps_is_a_convolution(center):
    layer = GaussianAttention(3, 4, full_width=True, out_dim=5, init="grid", sharpness=40.0).double().eval()
    if center == "scattered":
        with torch.no_grad():
            layer.positions.center.copy_(torch.tensor([[0, 1], [-1, 0], [0, 1], [1, 0]]))
    layer.positions.requires_grad_(False)
    x = torch.randn(2, 5, 6, 3, dtype=torch.float64, requires_grad=True)
    inputs = [x, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
    found = []
    for frozen in (False, True):
        if frozen:
            layer.freeze_plan((5, 6), torch.float64)
        with FlopCounterMode(display=False) as counter:
            out = layer(x)
        found.append([out, *torch.autograd.grad(out.sin().sum(), inputs)])
    assert "convolution" in str(counter.get_flop_counts()["Global"])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    with regard.capture(layer) as maps:
        torch.testing.assert_close(layer(x), out)
    assert maps[-1].weights.shape[1:] == (4, 30, 30)
    layer.positions.requires_grad_(True)
    (moved,) = torch.autograd.grad(layer(x).sum(), layer.positions.center)
    assert moved.isfinite().all()


def test_taps_have_forward_gradients_of_centers_too():
    """They were zero, while those of the backward pass were right: a shift does not depend on its center."""
    layer = GaussianAttention(3, 4, full_width=True, init="grid", sharpness=2.0).double().eval().requires_grad_(False)
    x, parameters = torch.randn(1, 5, 5, 3, dtype=torch.float64), dict(layer.named_parameters())

    def whole(center):
        return torch.func.functional_call(layer, parameters | {"positions.center": center}, (x,))

    def heads(center):
        return gaussian_attention(x.reshape(1, 1, 25, 3), center, layer.sharpness, (5, 5), plan=layer.plan)

    tangent = torch.randn(4, 2, dtype=torch.float64)
    expected = [torch.func.jvp(function, (layer.center,), (tangent,))[1] for function in (whole, heads)]
    assert layer.freeze_plan((5, 5), torch.float64, tolerance=0.9).shifts is not None
    for function, slope in zip((whole, heads), expected, strict=True):
        torch.testing.assert_close(torch.func.jvp(function, (layer.center,), (tangent,))[1], slope)
        with torch.autograd.forward_ad.dual_level():
            dual = function(torch.autograd.forward_ad.make_dual(layer.center, tangent))
            torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, slope)
        assert slope.abs().max() > 0.01


def test_a_shift_that_no_head_has_has_no_weight():
    x, weight = torch.randn(1, 5, 2), torch.randn(3, 4)
    out = composed_convolution(x, (5,), [(2,), (2,)], weight, None)
    torch.testing.assert_close(out, x[:, [2, 3, 4, 4, 4]] @ (weight[:, :2] + weight[:, 2:]).T)
