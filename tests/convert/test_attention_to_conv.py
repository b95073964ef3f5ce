"""Gaussian layers as convolutions: the certified error holds in the interior, and cheaper forms are chosen."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regard
from regard.convert import attention_to_conv
from regard.layers import GatedPositionalAttention, GaussianAttention, MultiHeadAttention, RelativeAttention


def layer_with(axes, heads, covariance, full_width, seed, *, low=0.6, high=60.0, integer=False, bias=True):
    generator = torch.Generator().manual_seed(seed)
    layer = GaussianAttention(
        2 * heads, heads, axes=axes, covariance=covariance, full_width=full_width, out_dim=5, bias=bias
    ).double()
    center = torch.randn(heads, axes, generator=generator, dtype=torch.float64) * 1.5
    center = center.round() if integer else center
    shape = layer.sharpness.shape
    if covariance == "full":
        root = torch.randn(shape, generator=generator, dtype=torch.float64)
        sharpness = root @ root.mT + low * torch.eye(axes, dtype=torch.float64)
    else:
        span = torch.rand(shape, generator=generator, dtype=torch.float64)
        sharpness = low * (high / low) ** span
    layer.positions.set(center, sharpness)
    return layer


@settings(max_examples=40)
@given(
    axes=st.integers(1, 3),
    covariance=st.sampled_from(["isotropic", "diagonal", "full"]),
    full_width=st.booleans(),
    bias=st.booleans(),
    exponent=st.integers(-6, -1),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 999),
)
def test_the_certified_error_holds_in_the_interior(axes, covariance, full_width, bias, exponent, dtype, seed):
    layer = layer_with(axes, 3, covariance, full_width, seed, bias=bias).to(dtype)
    conv = attention_to_conv(layer, tolerance=10.0**exponent)
    assert conv.leak <= 10.0**exponent
    more = 4 if axes < 3 else 2
    grid = [max(high, 0) - min(low, 0) + more for low, high in conv.reach]  # all heads may look to one side
    if torch.tensor(grid).prod() > 4000:
        return
    x = torch.randn(2, *grid, layer.dim, dtype=dtype)
    inside = (slice(None), *conv.interior(grid))
    ours, theirs = conv(x, grid), layer(x, grid)
    assert ours.shape == theirs.shape
    assert ours[inside].numel() > 0
    assert (ours - theirs)[inside].abs().max().item() <= conv.error_bound(x)
    flat = conv(x.flatten(1, -2), grid)
    torch.testing.assert_close(flat, ours.flatten(1, -2))


def test_sharp_heads_become_the_taps_of_one_kernel():
    layer = GaussianAttention(6, 9, full_width=True, init="grid", sharpness=40.0).double()
    conv = attention_to_conv(layer)
    assert conv.dense_heads == list(range(9))
    assert conv.chain_heads == []
    assert conv.kernel.shape == (6, 6, 3, 3)
    blocks = layer.output.weight.unflatten(1, (9, 6)).permute(0, 2, 1).unflatten(2, (3, 3))
    torch.testing.assert_close(conv.kernel, blocks.detach())


def test_wide_soft_heads_become_chains_and_narrow_ones_taps():
    soft = layer_with(2, 4, "isotropic", False, 0, low=0.1, high=0.12)
    conv = attention_to_conv(soft)
    assert conv.dense_heads == []
    assert len(conv.blurs) == 2
    sharp = layer_with(2, 4, "isotropic", False, 0, low=50.0, high=60.0, integer=True)
    assert attention_to_conv(sharp).chain_heads == []


def test_the_choice_is_the_cheapest_of_all_splits():
    layer = layer_with(2, 6, "isotropic", False, 3, low=0.2, high=30.0)
    conv = attention_to_conv(layer)
    chosen = conv.multiply_adds((1, 1))
    order = sorted(range(6), key=lambda h: conv.kernels[h].taps.numel())
    for count in range(7):
        rest = [conv.kernels[h] for h in order[count:]]
        if all(kernel.taps.numel() > 1 for kernel in rest):
            assert chosen <= conv._cost([conv.kernels[h] for h in order[:count]], rest, False)


def test_the_border_is_reported():
    """At the border the layer attends to what exists and the convolution repeats the edge: a measured difference."""
    layer = layer_with(2, 4, "isotropic", True, 5, low=0.5, high=0.6)
    conv = attention_to_conv(layer, tolerance=1e-6)
    grid = (20, 20)
    assert conv.border_leak(grid) > 100 * conv.leak
    sharp = GaussianAttention(4, 9, full_width=True, init="grid", sharpness=40.0).double()
    assert attention_to_conv(sharp).border_leak((6, 7)) < 1e-12  # sharp with integer centers: replicate padding


def test_converted_layers_can_be_trained_on():
    layer = GaussianAttention(8, 4)
    layer.positions.set(
        torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.3, 0.2], [0.0, -0.6]]), torch.tensor([20.0, 20.0, 0.1, 0.2])
    )
    conv = attention_to_conv(layer)
    assert conv.dense_heads
    assert conv.chain_heads
    conv(torch.randn(1, 16, 16, 8)).square().mean().backward()
    for name, parameter in conv.named_parameters():
        assert parameter.grad is not None, name


@pytest.mark.usefixtures("user_errors")
class TestRefused:
    def test_a_very_soft_head_has_no_interior(self):
        layer = GaussianAttention(8, 4)
        layer.positions.set(torch.zeros(4, 2), torch.tensor([1.0, 1.0, 1.0, 1e-6]))
        with pytest.raises(ValueError, match="no interior: head 3 is so soft"):
            attention_to_conv(layer)

    def test_a_grid_smaller_than_the_window_has_no_interior(self):
        layer = GaussianAttention(8, 4, sharpness=0.1)
        with pytest.raises(ValueError, match=r"no interior on grid \(8, 8\)"):
            attention_to_conv(layer, grid=(8, 8))
        assert all(s.stop <= s.start for s in attention_to_conv(layer).interior((8, 8)))

    @pytest.mark.parametrize(
        ("layer", "reason"),
        [
            (MultiHeadAttention(8, 2), "attends by content"),
            (nn.MultiheadAttention(8, 2), "attends by content"),
            (GatedPositionalAttention(8, 4), "attends by content"),
            (RelativeAttention(8, 4, (4, 4)), "attends by content"),
            (RelativeAttention(8, 4, (4, 4), content=False), "need not fade with distance"),
            (nn.Linear(3, 3), "it is a Linear; a GaussianAttention would fit"),
            (regard.conv_to_attention(nn.Conv2d(3, 3, 3)), r"made from a convolution: its to_conv\(\) returns"),
        ],
    )
    def test_what_is_not_a_convolution_is_refused_with_the_reason(self, layer, reason):
        with pytest.raises(TypeError, match=reason):
            attention_to_conv(layer)

    @pytest.mark.parametrize("method", ["forward", "attend"])
    def test_a_subclass_that_computes_otherwise(self, method):
        own = {method: lambda self, *inputs: 2 * getattr(GaussianAttention, method)(self, *inputs)}
        doubling = type("Doubling", (GaussianAttention,), own)
        with pytest.raises(TypeError, match=f"Doubling overrides GaussianAttention's {method}"):
            attention_to_conv(doubling(8, 4))
        attention_to_conv(type("Renamed", (GaussianAttention,), {})(8, 4))

    @pytest.mark.parametrize(("part", "says"), [("", "it has hooks"), ("output", "its output has hooks")])
    def test_hooks(self, part, says):
        layer = GaussianAttention(8, 4)
        layer.get_submodule(part).register_forward_hook(lambda module, inputs, output: 2 * output)
        with pytest.raises(TypeError, match=says):
            attention_to_conv(layer)

    def test_tolerance_must_be_a_share(self):
        with pytest.raises(ValueError, match="tolerance must be a number between 0 and 1"):
            attention_to_conv(GaussianAttention(8, 4), tolerance=2)


@pytest.mark.parametrize("sharpness", [9.0, 0.7])  # taps, and chains of blurs
def test_no_bound_is_given_for_weights_that_were_trained_on(sharpness):
    layer = GaussianAttention(8, 4, axes=1, sharpness=sharpness)
    conv, x = attention_to_conv(layer, tolerance=0.1), torch.randn(1, 60, 8)
    bound = conv.error_bound(x)
    again = attention_to_conv(layer, tolerance=0.1)
    again.load_state_dict(conv.state_dict())
    assert copy.deepcopy(again).error_bound(x) == bound
    for parameter in again.parameters():
        changed = attention_to_conv(layer, tolerance=0.1)
        state = {
            name: value + 0.1 if value.data_ptr() == parameter.data_ptr() else value
            for name, value in again.state_dict().items()
        }
        changed.load_state_dict(state)
        with pytest.raises(ValueError, match="error_bound does not apply to other weights than the conversion made"):
            changed.error_bound(x)


@pytest.mark.parametrize("made", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("moved", [torch.float64, torch.float32, torch.float16])
def test_no_bound_is_given_in_another_dtype(made, moved):
    """Its weights were rounded to the dtype in which it was made, and the layer rounds its own to other numbers."""
    layer = GaussianAttention(8, 4, axes=1, sharpness=9.0).to(made)
    conv, x = attention_to_conv(layer), torch.randn(1, 60, 8, dtype=made)
    bound = conv.error_bound(x)
    conv, layer, x = conv.to(moved), layer.to(moved), x.to(moved)
    if moved is made:
        assert conv.error_bound(x) == bound
        return
    with pytest.raises(
        ValueError, match=f"moved to another dtype since. To have a bound in {moved}, convert the layer in"
    ):
        conv.error_bound(x)
    again = attention_to_conv(layer)
    error = (again(x, (60,)).double() - layer(x, (60,)).double())[:, again.interior((60,))[0]].abs().max()
    assert error <= again.error_bound(x)


@pytest.mark.parametrize("dim", [1, 4])
@pytest.mark.parametrize("sharpness", [0.3, 9.0])
def test_autocast_gives_the_dtype_that_the_layer_gives(dim, sharpness):
    """The bias in float32 raised the result of chains and taps to float32."""
    layer = GaussianAttention(dim, 1, sharpness=sharpness)
    conv, x = attention_to_conv(layer), torch.randn(1, 12, 12, dim)
    with torch.autocast("cpu", torch.bfloat16):
        assert conv(x, (12, 12)).dtype is layer(x, (12, 12)).dtype is torch.bfloat16


@pytest.mark.usefixtures("user_errors")
def test_a_layer_without_values_is_named():
    with pytest.raises(ValueError, match="layer must have values"):
        attention_to_conv(GaussianAttention(4, 2).to("meta"))


@pytest.mark.usefixtures("user_errors")
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("center", torch.nan, "layer must have finite centers"),
        ("center", 1e30, r"a head looks 1e\+30 tokens away; centers of up to 16,777,216 would fit"),
        ("log_sharpness", torch.nan, "layer must have finite sharpness"),
        ("log_sharpness", 1e3, "layer must have finite sharpness"),  # its exponential is infinite
    ],
)
def test_heads_without_a_kernel_are_named(name, value, says):
    layer = GaussianAttention(4, 2)
    getattr(layer.positions, name).data[0] = value
    with pytest.raises(ValueError, match=says):
        attention_to_conv(layer)
    _, report = regard.convert_network(nn.Sequential(layer), to="convolution")
    assert [row.after for row in report.rows] == ["kept"]
