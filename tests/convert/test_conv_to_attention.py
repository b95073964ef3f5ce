"""Every convolution as attention: same shapes, error under the bound, whatever the convolution."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regard
from regard import reference
from regard.convert import conv_to_attention
from regard.convert._bounds import sharpness_for
from regard.functional._taps import shift_leak, tail

MODES = ["zeros", "reflect", "replicate", "circular"]
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


@st.composite
def convolutions(draw):
    axes = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    kernel = draw(st.lists(st.integers(1, 4), min_size=axes, max_size=axes))
    dilation = draw(st.lists(st.integers(1, 2), min_size=axes, max_size=axes))
    mode = draw(st.sampled_from(MODES))
    if draw(st.booleans()):
        padding, stride = draw(st.sampled_from(["same", "valid"])), [1] * axes
    else:
        padding = draw(st.lists(st.integers(0, 4), min_size=axes, max_size=axes))
        stride = draw(st.lists(st.integers(1, 3), min_size=axes, max_size=axes))
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    pads = [(r + 1) // 2 for r in reach] if padding == "same" else [0] * axes if padding == "valid" else padding
    # torch itself refuses a kernel beyond the padded input, reflection by a whole axis and wrapping by more than one.
    mirrored = {"reflect": 1, "circular": 0}
    least = [
        max(1, r + 1 - 2 * p if padding != "same" else 1, p + mirrored[mode] if mode in mirrored else 1)
        for r, p in zip(reach, pads, strict=True)
    ]
    size = [draw(st.integers(n, n + 5)) for n in least]
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    conv = kind(
        2 * groups, 3 * groups, kernel, stride, padding, dilation, groups, bias=draw(st.booleans()), padding_mode=mode
    )
    return conv.double(), size


@settings(max_examples=120)
@given(made=convolutions(), exponent=st.integers(-9, -2), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_output_is_the_convolutions_within_the_bound(made, exponent, dtype):
    conv, size = made
    conv = conv.to(dtype)
    attention = conv_to_attention(conv, tolerance=10.0**exponent)
    x = torch.randn(2, conv.in_channels, *size, dtype=dtype)
    expected, found = conv(x), attention(x)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert attention.leak <= 10.0**exponent
    assert (found - expected).abs().max().item() <= attention.error_bound(x)
    torch.testing.assert_close(attention(x[0]), found[0])  # without a batch, as torch takes it


def test_the_bound_is_not_idle():
    """A head moved by one pixel, or much softer than it says, breaks the bound."""
    conv = nn.Conv2d(3, 4, 3, padding=1).double()
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    soft = conv_to_attention(conv, tolerance=1e-8)
    soft.alpha = 2.0
    bound = conv_to_attention(conv, tolerance=1e-8).error_bound(x)
    assert (soft(x) - conv(x)).abs().max().item() > bound
    moved = conv_to_attention(conv, tolerance=1e-8)
    moved.pads = ((0, 2), (1, 1))
    assert (moved(x) - conv(x)).abs().max().item() > bound


@given(alpha=st.floats(0.2, 40.0), fraction=st.integers(0, 4), size=st.integers(1, 12), border=st.sampled_from(MODES))
def test_a_row_leaks_at_most_what_the_formula_says(alpha, fraction, size, border):
    from regard.functional import axis_matrix

    pads = (fraction, 4 - fraction)
    places = torch.arange(-pads[0], size + pads[1], dtype=torch.float64)[None]
    sharpness = torch.tensor([alpha], dtype=torch.float64)
    rows = axis_matrix(places, sharpness, size, border=border, padding=pads)
    hard = axis_matrix(places, sharpness * 0 + 1e6, size, border=border, padding=pads)
    leaked = (rows - hard).abs().sum(-1).max().item()
    assert leaked <= 2 * tail(alpha) / (1 + tail(alpha)) + 1e-12
    assert shift_leak([alpha]) == pytest.approx(2 * tail(alpha) / (1 + tail(alpha)))


@given(exponent=st.floats(-12, -0.5), axes=st.integers(1, 3))
def test_sharpness_is_the_smallest_that_keeps_the_tolerance(exponent, axes):
    alpha = sharpness_for(10**exponent, axes)
    assert shift_leak([alpha] * axes) <= 10**exponent
    assert shift_leak([0.97 * alpha] * axes) > 10**exponent


def test_gradients_are_the_convolutions():
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2).double()
    attention = conv_to_attention(conv, tolerance=1e-13)
    x = torch.randn(2, 4, 7, 6, dtype=torch.float64, requires_grad=True)
    theirs = torch.autograd.grad(conv(x).square().sum(), [x, *conv.parameters()])
    ours = torch.autograd.grad(attention(x).square().sum(), [x, *attention.parameters()])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


def test_it_is_really_attention():
    """The map it reports has one row per output and head, rows sum to one inside, and gives the output."""
    conv = nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate", bias=False).double()
    attention = conv_to_attention(conv)
    x = torch.randn(1, 2, 5, 4, dtype=torch.float64)
    weights = attention.weights((5, 4))
    assert weights.shape == (1, 9, 20, 20)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 9, 20, dtype=torch.float64))
    heads = weights @ x.flatten(2).mT[:, None]  # (1, 9, 20, 2)
    taps = conv.weight.flatten(2)  # (3, 2, 9)
    torch.testing.assert_close(torch.einsum("bhnc,och->bon", heads, taps).reshape(1, 3, 5, 4), attention(x))
    value = x.flatten(2).mT[:, None].expand(-1, 9, -1, -1)
    formula, theirs = reference.gaussian_attention(
        value,
        attention.center.double(),
        attention.sharpness.double(),
        (5, 4),
        border="replicate",
        padding=((1, 1), (1, 1)),
    )
    torch.testing.assert_close(weights[0], theirs, atol=1e-7, rtol=0)
    torch.testing.assert_close(heads, formula, atol=1e-6, rtol=0)


def test_groups_stay_grouped_and_the_convolution_is_left_alone():
    conv = nn.Conv2d(8, 8, 3, groups=8, padding=1)
    before = {name: value.clone() for name, value in conv.state_dict().items()}
    attention = conv_to_attention(conv)
    assert attention.weight.shape == conv.weight.shape
    with torch.no_grad():
        attention.weight.zero_()
    assert all(torch.equal(conv.state_dict()[name], value) for name, value in before.items())
    depthwise, dense = (
        attention.multiply_adds((16, 16)),
        conv_to_attention(nn.Conv2d(8, 8, 3, padding=1)).multiply_adds((16, 16)),
    )
    assert dense - depthwise == (8 - 1) * 8 * 9 * 256


def test_back_again_is_the_same_convolution():
    conv = nn.Conv1d(4, 6, 5, stride=2, padding=3, dilation=2, groups=2, padding_mode="circular").eval()
    back = conv_to_attention(conv).to_conv()
    assert repr(back) == repr(conv)
    assert back.training is False
    assert all(torch.equal(a, b) for a, b in zip(back.state_dict().values(), conv.state_dict().values(), strict=True))


@pytest.mark.usefixtures("user_errors")
@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (lambda: conv_to_attention(nn.ConvTranspose2d(3, 3, 3)), TypeError, "spreads inputs over outputs"),
        (lambda: conv_to_attention(nn.LazyConv2d(3, 3)), TypeError, "call it once"),
        (
            lambda: conv_to_attention(nn.Linear(3, 3)),
            TypeError,
            r"a Linear; nn\.Conv1d, nn\.Conv2d or nn\.Conv3d would fit",
        ),
        (lambda: conv_to_attention("conv"), TypeError, "'conv' \\(str\\)"),
        (
            lambda: conv_to_attention(nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 3, 3))),
            TypeError,
            "parametrized",
        ),
        (
            lambda: conv_to_attention(nn.Conv1d(3, 3, 3), tolerance=0),
            ValueError,
            "tolerance must be a number between 0 and 1",
        ),
        (lambda: conv_to_attention(nn.Conv1d(3, 3, 3))(torch.randn(1, 2, 8)), ValueError, "input has 2 channels"),
        (lambda: conv_to_attention(nn.Conv1d(3, 3, 3))(torch.randn(1, 3, 2)), ValueError, "smaller than the kernel"),
        (lambda: conv_to_attention(nn.Conv1d(3, 3, 3))(torch.randn(1, 3, 8, 8)), ValueError, "input has shape"),
    ],
)
def test_what_cannot_be_expressed_is_refused(action, error, message):
    with pytest.raises(error, match=message):
        action()


def test_a_subclass_with_its_own_forward_is_refused(user_errors):
    class Doubling(nn.Conv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(TypeError, match="overrides Conv2d's forward"):
        conv_to_attention(Doubling(3, 3, 3))
    patched = nn.Conv2d(3, 3, 3)
    patched.forward = lambda x: 2 * x
    with pytest.raises(TypeError, match="this Conv2d has its own forward"):
        conv_to_attention(patched)


@pytest.mark.parametrize(
    "register", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"]
)
def test_hooks_are_refused_and_not_lost(register, user_errors):
    conv = nn.Conv2d(3, 3, 3)
    handle = getattr(conv, f"register_{register}")(lambda *_: None)
    with pytest.raises(TypeError, match="has hooks, which would be lost"):
        conv_to_attention(conv)
    handle.remove()
    conv_to_attention(conv)


@given(axes=st.integers(1, 3), groups=st.integers(1, 2), mode=st.sampled_from(MODES))
@settings(max_examples=12)
def test_an_empty_batch_comes_out_empty(axes, groups, mode):
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    conv = kind(2 * groups, 3 * groups, 3, padding=1, stride=2, groups=groups, padding_mode=mode)
    x = torch.randn(0, 2 * groups, *[5] * axes)
    assert conv_to_attention(conv)(x).shape == conv(x).shape
    assert conv_to_attention(conv).error_bound(x) == 0


def test_it_is_called_as_the_convolution_is():
    conv = nn.Conv1d(2, 3, 3)
    x = torch.randn(1, 2, 6)
    torch.testing.assert_close(conv_to_attention(conv)(input=x), conv(input=x), atol=1e-5, rtol=1e-5)


def test_leak_falls_like_the_exponential_of_the_sharpness():
    """log leak is a straight line in α with slope −1: one neighbor at distance one dominates."""
    leaks = [math.log(shift_leak([alpha])) for alpha in (10.0, 11.0, 12.0)]
    assert leaks[1] - leaks[0] == pytest.approx(-1, abs=1e-3)
    assert leaks[2] - leaks[1] == pytest.approx(-1, abs=1e-3)


class TestTaps:
    """Sharp heads computed as the shifts that they are."""

    @pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
    @pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (4, 1, "same"), (3, 2, 2), (2, 1, "valid")])
    def test_the_convolution_itself(self, mode, kernel, stride, padding):
        conv = nn.Conv2d(4, 6, kernel, stride=stride, padding=padding, padding_mode=mode, groups=2, dilation=2)
        layer, x = conv_to_attention(conv, plan="taps"), torch.randn(2, 4, 13, 12)
        torch.testing.assert_close(layer(x), conv(x))
        torch.testing.assert_close(layer(x[0]), conv(x[0]))
        assert "plan=taps" in repr(layer)

    @pytest.mark.parametrize(
        ("tolerance", "dtype", "plan"),
        [
            (1e-6, torch.float32, "attention"),
            (1e-6, torch.bfloat16, "taps"),
            (1e-8, torch.float32, "taps"),
            (1e-8, torch.float64, "attention"),
        ],
    )
    def test_taken_where_no_result_can_tell(self, tolerance, dtype, plan):
        layer = conv_to_attention(nn.Conv1d(2, 3, 3).to(dtype), tolerance=tolerance)
        assert layer.chosen_plan(torch.zeros(1, 2, 9, dtype=dtype)) == plan

    def test_a_captured_call_still_shows_its_maps(self):
        layer = conv_to_attention(nn.Conv2d(2, 3, 3, padding=1), plan="taps")
        x = torch.randn(1, 2, 5, 6)
        expected = layer(x)
        with regard.capture(layer) as maps:
            torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)
        assert maps[-1].weights.shape == (1, 9, 30, 30)

    def test_gradients_are_the_convolutions(self):
        conv = nn.Conv1d(2, 3, 3, padding=1).double()
        layer, x = conv_to_attention(conv, plan="taps"), torch.randn(2, 2, 7, dtype=torch.float64, requires_grad=True)
        found = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
        expected = torch.autograd.grad(conv(x).square().sum(), [x, *conv.parameters()])
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)

    def test_axis_matrices_are_made_once(self):
        layer = conv_to_attention(nn.Conv2d(2, 3, 3, padding=1), plan="attention")
        first, second = (layer.axis_matrices((6, 7), torch.zeros(1)) for _ in range(2))
        assert all(a is b for a, b in zip(first, second, strict=True))
        with torch.inference_mode():
            layer(torch.randn(1, 2, 9, 8))
        layer(torch.randn(1, 2, 9, 8, requires_grad=True)).sum().backward()

    @pytest.mark.usefixtures("user_errors")
    def test_an_unknown_plan_is_refused(self):
        with pytest.raises(ValueError, match="plan must be one of 'auto', 'attention', 'taps'"):
            conv_to_attention(nn.Conv1d(2, 3, 3), plan="fast")


def test_a_complex_convolution_and_a_plan_that_is_none_are_refused():
    with pytest.raises(TypeError, match=r"its weight is a complex64 tensor .*, but attention averages real numbers"):
        conv_to_attention(nn.Conv2d(2, 3, 3, dtype=torch.complex64))
    layer = conv_to_attention(nn.Conv2d(2, 3, 3))
    layer.plan = "tap"
    with pytest.raises(ValueError, match="plan must be one of 'auto', 'attention', 'taps', got 'tap'"):
        layer(torch.randn(1, 2, 5, 5))


@pytest.mark.parametrize("options", [{"plan": "attention"}, {"plan": "taps"}, {"trainable": True}], ids=str)
@pytest.mark.parametrize(
    ("conv", "size", "match"),
    [
        (nn.Conv1d(2, 2, 4, dilation=3, padding=1), (4,), r"input of size \(4,\), padded by .* smaller than the kernel \(4,\)"),
        (nn.Conv2d(2, 2, 5, padding=2, padding_mode="reflect"), (2, 9), r"size \(2, 9\) is too small .*'reflect'"),
        (nn.Conv1d(2, 2, 9, padding=4, padding_mode="circular"), (3,), r"size \(3,\) is too small to be padded by .*'circular'"),
    ],
    ids=["kernel", "reflect", "circular"],
)  # fmt: skip
def test_inputs_that_the_convolution_refuses_are_refused_by_every_plan(conv, size, match, options):
    x = torch.randn(1, 2, *size)
    with pytest.raises(RuntimeError):
        conv(x)
    with pytest.raises(ValueError, match=match):
        conv_to_attention(conv, **options)(x)


@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate"])
def test_the_widest_padding_of_a_mode_is_taken(mode):
    size = 5 if mode == "reflect" else 4
    conv, x = nn.Conv1d(2, 2, 9, padding=4, padding_mode=mode), torch.randn(1, 2, size)
    torch.testing.assert_close(conv_to_attention(conv)(x), conv(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{"tolerance": 1e-8}, {"plan": "taps"}])
def test_what_trainable_heads_cannot_keep_is_refused(options):
    """They start soft: a tolerance was ignored."""
    with pytest.raises(ValueError, match="leave out tolerance and plan, got tolerance="):
        conv_to_attention(nn.Conv1d(2, 2, 3), trainable=True, **options)
