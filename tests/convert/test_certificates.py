"""Certified bounds are attacked: sharp heads, long axes, fractional centers, the inputs that hurt most, every dtype."""

import copy
import math
from operator import attrgetter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.convert import attention_to_conv, conv_to_attention
from regard.layers import GaussianAttention

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
HALF = {torch.bfloat16, torch.float16}


def attacked(axes, heads, covariance, full_width, dtype, sharpest, place, seed):
    """A layer with heads up to that sharpness, centers at whole, half or any offsets."""
    generator = torch.Generator().manual_seed(seed)
    dim = 2 if full_width else 2 * heads
    layer = GaussianAttention(dim, heads, axes=axes, covariance=covariance, full_width=full_width, out_dim=3)
    center = 2 * torch.randn(heads, axes, generator=generator)
    center = {"whole": center.round(), "half": center.round() + 0.5, "any": center}[place]
    if covariance == "full":
        root = 0.3 * math.sqrt(sharpest) * torch.randn(heads, axes, axes, generator=generator)
        sharpness = root @ root.mT + 0.5 * torch.eye(axes)
    else:
        sharpness = 0.5 * (2 * sharpest) ** torch.rand(layer.sharpness.shape, generator=generator)
    layer.positions.set(center, sharpness)
    return layer.to(dtype)


def attacks(conv, layer, shape, inside, dtype):
    """Random and constant inputs, and for one output those that maximize its error and its size: both are linear."""
    yield torch.randn(shape)
    yield torch.full(shape, 0.7)
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    exact = copy.deepcopy(layer).double()(x, shape[1:-1])[inside]
    error = copy.deepcopy(conv).double()(x, shape[1:-1])[inside] - exact
    for result in (error, exact):
        (gradient,) = torch.autograd.grad(result.flatten()[result.numel() // 2], x, retain_graph=True)
        yield 0.9 * gradient.sign()


def worst_ratio(layer, tolerance, extra=0, autocast=False):
    """The largest error found, relative to its bound."""
    try:
        conv = attention_to_conv(layer, tolerance=tolerance)
    except ValueError:
        return 0.0  # too soft for a convolution
    grid = [high - low + 2 for low, high in conv.reach]
    grid[0] += extra
    inside = (slice(None), *conv.interior(grid))
    if math.prod(grid) > (400 if layer.sharpness.ndim == 3 else 6000) or not torch.zeros(1, *grid)[inside].numel():
        return 0.0
    ratio, dtype = 0.0, layer.output.weight.dtype
    for x in attacks(conv, layer, (1, *grid, layer.dim), inside, dtype):
        x = x.to(dtype)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            bound = conv.error_bound(x)
            error = (conv(x, grid).double() - layer(x, grid).double())[inside].abs().max().item()
        assert error <= bound, (error, bound, layer.center, layer.sharpness)
        ratio = max(ratio, error / bound)
    return ratio


@settings(max_examples=25)
@given(
    axes=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 4]),
    covariance=st.sampled_from(["isotropic", "diagonal", "full"]),
    full_width=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    sharpest=st.sampled_from([1.0, 20.0, 1e3, 1e5]),
    place=st.sampled_from(["whole", "half", "any"]),
    exponent=st.integers(-9, -1),
    autocast=st.booleans(),
    seed=st.integers(0, 9999),
)
def test_no_attack_breaks_the_bound(
    axes, heads, covariance, full_width, dtype, sharpest, place, exponent, autocast, seed
):
    layer = attacked(axes, heads, covariance, full_width, dtype, sharpest, place, seed)
    worst_ratio(layer, 10.0**exponent, autocast=autocast and dtype == torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sharpest", [16.0, 1e4])
@pytest.mark.parametrize("extra", [12, 1500])
def test_sharp_heads_on_long_axes(dtype, sharpest, extra):
    """The bound was false here when coordinates and centers were added in the layer's dtype."""
    for seed in range(3):
        worst_ratio(attacked(1, 2, "isotropic", True, dtype, sharpest, "half", seed), 1e-6, extra)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bound_is_within_ten_times_of_the_worst_error(dtype):
    """Where rounding decides; a leak is reached exactly."""
    layers = (attacked(1, 1, "isotropic", True, dtype, 30.0, "any", seed) for seed in range(40))
    assert any(worst_ratio(layer, 1e-9, extra=60) >= 0.1 for layer in layers)


@pytest.mark.parametrize("sharpness", [5.0, 50.0])
def test_long_axes_lose_no_digits(sharpness):
    """In float32, 4,096 tokens along one axis: as near to float64 as on a short axis."""
    from regard.functional import gaussian_attention

    center, alpha = torch.tensor([[0.3], [-7.49]]), torch.full((2,), sharpness)
    value = torch.randn(1, 2, 4096, 3)
    found = gaussian_attention(value, center, alpha, (4096,))
    exact = gaussian_attention(value.double(), center.double(), alpha.double(), (4096,))
    assert (found - exact).abs().max().item() < 5e-6


@settings(max_examples=25)
@given(
    axes=st.integers(1, 2),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 2),
    mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    dtype=st.sampled_from(DTYPES),
    autocast=st.booleans(),
    exponent=st.integers(-9, -1),
    plan=st.sampled_from(["attention", "taps"]),
    seed=st.integers(0, 999),
)
def test_no_attack_breaks_a_converted_convolution(axes, kernel, stride, mode, dtype, autocast, exponent, plan, seed):
    torch.manual_seed(seed)
    make = {1: nn.Conv1d, 2: nn.Conv2d}[axes]
    conv = make(3, 4, kernel, stride=stride, padding=kernel // 2, padding_mode=mode).to(dtype)
    attention = conv_to_attention(conv, tolerance=10.0**exponent, plan=plan)
    shape = (2, 3, *[kernel + 6] * axes)
    for x in (torch.randn(shape), torch.full(shape, 0.7), torch.randn(shape).sign()):
        x = x.to(dtype)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast and dtype == torch.float32):
            error = (attention(x).double() - conv(x).double()).abs().max().item()
            assert error <= attention.error_bound(x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bound_of_a_converted_convolution_is_within_ten_times(dtype):
    """On short axes, where torch's convolution adds up products in another order than the heads do."""
    worst = 0.0
    for seed in range(20):
        torch.manual_seed(seed)
        conv = nn.Conv1d(1, 4, 2, padding=1).to(dtype)
        attention, x = conv_to_attention(conv, tolerance=1e-9, plan="attention"), torch.rand(1, 1, 20).to(dtype)
        with torch.no_grad():
            error = (attention(x).double() - conv(x).double()).abs().max().item()
        worst = max(worst, error / attention.error_bound(x))
    assert worst >= 0.1


@pytest.mark.parametrize(
    ("options", "flat", "most"),
    [({"sharpness": 9.0}, False, 30), ({"sharpness": 2.0}, False, 80), ({"sharpness": 9.0}, True, 120)],
)
def test_bounds_of_wide_layers_mean_something_in_bfloat16(options, flat, most):
    """They were 450 to 1,100 times the error when every rounding was taken relative to the sum of all absolute terms."""
    layer = GaussianAttention(64, 16, init="grid", **options).bfloat16()
    conv, x = attention_to_conv(layer), torch.randn(1, 16, 15, 64).bfloat16()
    inside = (slice(None), *conv.interior((16, 15)))
    with torch.no_grad():
        error = (conv(x).double() - layer(x).double())[inside].abs().max().item()
    assert error <= conv.error_bound(x.flatten(1, 2) if flat else x) <= most * error


def test_the_bound_of_a_wide_convolution_means_something_in_bfloat16():
    conv, x = nn.Conv2d(64, 64, 3, padding=1).bfloat16(), torch.randn(2, 64, 9, 9).bfloat16()
    attention = conv_to_attention(conv, plan="attention")
    with torch.no_grad():
        error = (attention(x).double() - conv(x).double()).abs().max().item()
    assert error <= attention.error_bound(x) <= 6 * error


class OnGpu(torch.Tensor):
    """A tensor that says that it lies on a GPU, for machines without one."""

    device = torch.device("cuda", 0)


@pytest.mark.usefixtures("user_errors")
class TestWhereTheBoundDoesNotApply:
    def layers(self):
        return attention_to_conv(GaussianAttention(8, 4, sharpness=3.0)), conv_to_attention(nn.Conv2d(8, 4, 3))

    def test_off_the_cpu(self):
        for layer, shape in zip(self.layers(), ((1, 9, 9, 8), (1, 8, 9, 9)), strict=True):
            with pytest.raises(ValueError, match="error_bound does not apply on cuda:0: the rounding of its"):
                layer.error_bound(torch.zeros(shape).as_subclass(OnGpu))

    def test_without_values(self):
        for layer, shape in zip(self.layers(), ((1, 9, 9, 8), (1, 8, 9, 9)), strict=True):
            with pytest.raises(ValueError, match="x has no values: it is on meta"):
                layer.error_bound(torch.zeros(shape, device="meta"))

    def test_with_products_in_less_than_float32(self):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            for layer, shape in zip(self.layers(), ((1, 9, 9, 8), (1, 8, 9, 9)), strict=True):
                with pytest.raises(ValueError, match="does not apply if float32 products"):
                    layer.error_bound(torch.zeros(shape))
                assert layer.error_bound(torch.zeros(shape, dtype=torch.float64)) >= 0
        finally:
            torch.set_float32_matmul_precision(before)

    @pytest.mark.parametrize("place", ["", "mkldnn", "mkldnn.matmul", "mkldnn.conv"])
    def test_a_precision_set_for_a_backend_is_seen(self, place):
        layer, backend = conv_to_attention(nn.Conv2d(2, 2, 3)), attrgetter(f"backends.{place}".strip("."))(torch)
        if not hasattr(backend, "fp32_precision"):
            pytest.skip("this torch has no such setting")
        backend.fp32_precision = "bf16" if place else "tf32"
        try:
            with pytest.raises(ValueError, match="does not apply if float32 products may be computed in lower"):
                layer.error_bound(torch.zeros(1, 2, 5, 5))
        finally:
            backend.fp32_precision = "none"


@pytest.mark.parametrize("lowered", ["autocast", "half"])
def test_full_covariance_keeps_its_precision(lowered):
    """Parameters of positions are computed in float32 or better: heads look where they did, to the values' precision."""
    for seed in range(4):
        torch.manual_seed(seed)
        layer = GaussianAttention(8, 4, covariance="full", bias=False)
        torch.nn.init.normal_(layer.positions.root, std=2.0)
        x = torch.randn(1, 9, 9, 8)
        if lowered == "half":
            layer = layer.bfloat16()
        exact = copy.deepcopy(layer).double().weights((9, 9))
        with torch.autocast("cpu", torch.bfloat16, enabled=lowered == "autocast"):
            assert layer.sharpness.dtype == torch.float32
            assert layer(x if lowered == "autocast" else x.bfloat16()).isfinite().all()
            assert (layer.weights((9, 9)).double() - exact).abs().max().item() < 5e-3


@pytest.mark.parametrize("tolerance", [1e-17, 1e-200, 5e-324])
def test_tolerances_below_any_rounding_are_kept(tolerance):
    """A share of one in 10¹⁷ was taken for none, and the logarithm of its reciprocal failed."""
    layer = GaussianAttention(4, 4, init="grid", sharpness=9.0)
    assert attention_to_conv(layer, tolerance=tolerance).leak <= max(tolerance, 1e-300)
    assert conv_to_attention(nn.Conv1d(2, 2, 3, padding=1), tolerance=tolerance).leak <= tolerance


def test_a_bias_may_begin_the_sum():
    """Each step of the sum then rounds a number of the bias's size. The bound was 1.5 times too small when it did not count
    this: the inputs are small beside the bias."""
    worst = 0.0
    for seed in range(60):
        torch.manual_seed(seed)
        conv, x = nn.Conv1d(1, 4, 4, padding=2), 0.01 * torch.randn(1, 1, 9)
        attention = conv_to_attention(conv, tolerance=1e-10, plan="attention")
        with torch.no_grad():
            error = (attention(x).double() - conv(x).double()).abs().max().item()
            worst = max(worst, error / attention.error_bound(x))
    assert 0.1 <= worst <= 1


def test_a_bound_is_infinite_where_autocast_overflows():
    conv, layer = nn.Conv1d(1, 1, 2, bias=False), GaussianAttention(2, 2, axes=1, sharpness=9.0, bias=False)
    x = torch.full((1, 1, 9), 1e6)
    with torch.no_grad():
        conv.weight.fill_(1e-6)
        for parameter in (layer.value.weight, layer.output.weight):
            parameter.fill_(1e-4)
    converted, smaller = conv_to_attention(conv), attention_to_conv(layer)
    assert max(converted.error_bound(x), smaller.error_bound(x.expand(-1, 2, -1).mT)) < 1e-2
    with torch.autocast("cpu", torch.float16), torch.no_grad():
        assert not (converted(x) - conv(x)).isfinite().all()  # float16 has no number for 10⁶
        assert converted.error_bound(x) == smaller.error_bound(x.expand(-1, 2, -1).mT) == math.inf
        conv.weight.fill_(1e6)
        assert conv_to_attention(conv).error_bound(x / 1e12) == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("flush", [False, True])
def test_bounds_hold_for_numbers_that_underflow(dtype, flush):
    """Products of bfloat16 may take numbers below the smallest normal one as zero; so may others, if torch is told to."""
    generator = torch.Generator().manual_seed(0)
    conv = nn.Conv2d(3, 2, 3, padding=1).to(dtype)
    layer = GaussianAttention(4, 2, sharpness=3.0, bias=False).to(dtype)
    torch.set_flush_denormal(flush)
    try:
        for size in (0.01, 1.0, 30.0):
            x = (size * torch.finfo(dtype).tiny * torch.randn(1, 3, 9, 9, generator=generator).double()).to(dtype)
            for trainable in (False, True):
                ours = (
                    conv_to_attention(conv, trainable=True) if trainable else conv_to_attention(conv, plan="attention")
                )
                assert (ours(x) - conv(x)).abs().max().item() <= ours.error_bound(x)
            tokens = (size * torch.finfo(dtype).tiny * torch.randn(1, 30, 30, 4, generator=generator).double()).to(
                dtype
            )
            back = attention_to_conv(layer, tolerance=1e-6)
            inside = (slice(None), *back.interior((30, 30)))
            assert (back(tokens) - layer(tokens))[inside].abs().max().item() <= back.error_bound(tokens)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["layer", "convolution", "trainable"])
def test_autocast_rounds_parameters_also_if_the_input_has_its_dtype(kind, dtype):
    """As inside a network, where the layer before returned autocast's dtype: the same numbers, the same rounding."""
    if kind == "layer":
        converted, x = attention_to_conv(GaussianAttention(4, 2, sharpness=3.0)), torch.randn(1, 20, 20, 4)
    else:
        converted, x = conv_to_attention(nn.Conv2d(4, 3, 3), trainable=kind == "trainable"), torch.randn(1, 4, 9, 9)
    x = x.to(dtype)
    with torch.autocast("cpu", dtype):
        assert converted.error_bound(x) == converted.error_bound(x.float())
