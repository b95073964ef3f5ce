"""Converted convolutions in half precision by kernels, in float16 (the interpreter has no products in bfloat16)."""

import pytest
import torch

from regard import capture, conv_to_attention
from regard.convert import _from_conv, _prepared_taps
from regard.functional import kernels
from regard.functional.kernels._start import Launch

CASES = {
    "padded": (torch.nn.Conv2d(5, 4, 3, padding=1), (2, 5, 6, 20)),
    "reflected": (torch.nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect", bias=False), (1, 3, 7, 5)),
    "strided": (torch.nn.Conv2d(6, 4, (3, 2), stride=2, padding=1, groups=2), (2, 6, 9, 8)),
    "strided, one group": (torch.nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 3, 9, 8)),
    "line": (torch.nn.Conv1d(3, 9, 5, dilation=2, padding="same"), (2, 3, 19)),
    "volume": (torch.nn.Conv3d(3, 2, 2, padding=1), (1, 3, 3, 4, 5)),
    "one tap": (torch.nn.Conv2d(6, 4, 1), (2, 6, 5, 7)),
    "one tap of the last axis": (torch.nn.Conv2d(6, 4, (3, 1)), (2, 6, 5, 7)),
    "one tap, line": (torch.nn.Conv1d(6, 4, 1), (2, 6, 9)),
    "one tap, volume": (torch.nn.Conv3d(6, 4, 1), (2, 6, 2, 3, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_attention(name, monkeypatch):
    conv, shape = CASES[name]
    generator, results, launched = torch.Generator().manual_seed(0), [], []
    x, conv = torch.randn(shape, generator=generator).half(), conv.half()
    start = Launch.__call__
    monkeypatch.setattr(Launch, "__call__", lambda *a, **k: (launched.append(1), start(*a, **k)))
    for dtype in (torch.float16, torch.float64):
        layer = conv_to_attention(conv, plan="attention").to(dtype)
        image = x.to(dtype).requires_grad_()
        out = layer(image)
        above = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        results.append([out, *torch.autograd.grad(out, [image, *layer.parameters()], above)])
    assert launched
    for found, expected in zip(*results, strict=True):
        assert ((found.double() - expected).norm() / expected.norm()).item() < 2e-3


def test_items_are_taken_a_few_at_a_time_and_nothing_is_made_for_each_of_them(monkeypatch):
    """One part or several, the results are alike; a gradient of the weight for each item would be larger than all else."""
    from regard.convert import _tap_products

    x, results, sizes = torch.randn(5, 16, 4, 4, generator=torch.Generator().manual_seed(0)).half(), [], []
    layer = conv_to_attention(torch.nn.Conv2d(16, 16, 3, padding=1), plan="attention").half()
    add = _tap_products.WeightSum.add
    monkeypatch.setattr(
        _tap_products.WeightSum,
        "add",
        lambda self, *sides: (sizes.append((sides[0] @ sides[1].mT).numel()), add(self, *sides)),
    )
    for room in (10_000, 1 << 13, 1 << 27):
        monkeypatch.setitem(_tap_products.CHUNK_BYTES, "cpu", room)
        out = layer(x)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), list(layer.parameters()))])
    assert sizes == [layer.weight.numel()] * 5  # of three and two items, of two, two and one; of all there is no sum
    for one, other, whole in zip(*results, strict=True):
        for found in (one, other):
            assert (found - whole).float().norm() < 2e-3 * whole.float().norm()


@pytest.fixture
def short_way(monkeypatch):
    """The short way open on the CPU, too. Returns how many calls have gone the long way."""
    long, prepare = [], _from_conv.prepare
    monkeypatch.setattr(kernels, "is_on_current_gpu", lambda x: True)
    monkeypatch.setattr(_from_conv, "prepare", lambda *given: (long.append(given), prepare(*given))[1])
    _prepared_taps._known.clear()
    yield long
    _prepared_taps._known.clear()


def results_of(layer, x):
    image = x.detach().requires_grad_()
    out = layer(image)
    return [out, *torch.autograd.grad(out.float().square().sum(), [image, *layer.parameters()])]


@pytest.mark.parametrize("options", [{}, {"padding_mode": "reflect", "bias": False}, {"stride": 2}])
def test_a_second_call_goes_the_short_way_and_gives_the_same(options, short_way):
    layer = conv_to_attention(torch.nn.Conv2d(6, 5, 3, padding=1, **options), plan="attention").half()
    x = torch.randn(2, 6, 7, 8).half()
    first, second = results_of(layer, x), results_of(layer, x)
    assert len(short_way) == 1
    for one, other in zip(first, second, strict=True):
        assert one.equal(other)
    other, by_weight = torch.randn_like(x), [torch.randn_like(layer.weight)]
    layer.weight.data.copy_(by_weight[0])
    again = results_of(layer, other)
    assert len(short_way) == 1
    exact = results_of(conv_to_attention(layer.to_conv(), plan="attention").double(), other.double())
    for found, expected in zip(again, exact, strict=True):
        assert (found - expected).norm() < 3e-3 * expected.norm()


CHANGES = [
    "batch",
    "strides",
    "dtype",
    "settings",
    "plan",
    "no batch",
    "observed",
    "mode",
    "transform",
    "forward",
    "off",
]


@pytest.mark.parametrize("other", CHANGES)
def test_a_call_of_another_kind_goes_the_long_way(other, short_way, monkeypatch):
    layer = conv_to_attention(torch.nn.Conv2d(4, 4, 3, padding=1), plan="attention").half()
    x = torch.randn(2, 4, 6, 6).half()
    expected = layer(x)
    layer(x)
    assert len(short_way) == 1
    monkeypatch.setattr(_prepared_taps, "_apply", None)  # the short way
    if other == "batch":
        found, expected = layer(x[:1]), expected[:1]
    elif other == "strides":
        found = layer(x.to(memory_format=torch.channels_last))
    elif other == "dtype":
        found = layer.float()(x.float())
    elif other == "settings":
        layer.pads = ((2, 0), (1, 1))
        found, expected = layer(x)[:, :, 1:], expected[:, :, :-1]
    elif other == "plan":
        layer.plan = "taps"
        found = layer(x)
    elif other == "no batch":
        found, expected = layer(x[0]), expected[0]
    elif other == "observed":
        with capture(layer) as maps:
            found = layer(x)
        assert len(maps) == 1
    elif other == "mode":
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            found = layer(x)
        assert counter.get_total_flops() > 0
    elif other == "transform":
        found = torch.func.vmap(lambda image: layer(image[None])[0])(x)
    elif other == "forward":
        found, _ = torch.func.jvp(layer, (x,), (x,))
    else:
        monkeypatch.setenv("REGARD_KERNELS", "0")
        found = layer(x)
    assert (found - expected).float().norm() < 3e-3 * expected.float().norm()


def test_launches_are_told_apart_by_the_dtype_of_the_bias():
    """Kernels are compiled for it: 32 bits read as 16 would be another bias."""
    x = torch.zeros(2, 3, 4, 5, 6).half()
    at = x.shape, x[:, :1].shape, x.stride(), x.stride(), (36, 6, 1), False
    launches = [kernels.tap_launch(x.dtype, -1, *at, bias) for bias in (torch.float16, torch.float32, None)]
    assert len(set(map(id, launches))) == 3
    assert kernels.tap_launch(x.dtype, -1, *at, torch.float16) is launches[0]
    layer = conv_to_attention(torch.nn.Conv2d(4, 4, 3, padding=1), plan="attention").half()
    image = torch.randn(2, 4, 6, 6).half()
    expected = layer(image)
    layer.bias.data = layer.bias.data.float()
    assert (layer(image) - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("groups", [1, 2])
def test_a_bias_may_lie_in_memory_as_it_likes(groups, short_way):
    layer = conv_to_attention(torch.nn.Conv2d(4, 4, 3, padding=1, groups=groups), plan="attention").half()
    image, bias = torch.randn(2, 4, 6, 6).half(), torch.randn(8).half()[::2]
    layer.bias = torch.nn.Parameter(bias.clone())
    expected = layer(image)
    layer.bias = torch.nn.Parameter(bias)
    assert layer.bias.stride() == (2,)
    for _ in range(2):
        assert layer(image).equal(expected)


@pytest.mark.parametrize(("name", "shape"), [("weight", (5, 6, 5, 5)), ("bias", (1,)), ("bias", (9,))])
def test_parameters_of_other_shapes_are_refused(name, shape, short_way):
    """Kernels would read beside them, or only some of their numbers."""
    layer = conv_to_attention(torch.nn.Conv2d(6, 5, 3, padding=1), plan="attention").half()
    x = torch.randn(2, 6, 7, 8).half()
    layer(x)
    setattr(layer, name, torch.nn.Parameter(torch.zeros(shape).half()))
    with pytest.raises(ValueError, match=f"{name} has shape"):
        layer(x)


def test_a_stride_may_be_a_list(short_way):
    conv = torch.nn.Conv2d(6, 5, 3, padding=1)
    conv.stride = conv.dilation = [1, 1]
    x = torch.randn(2, 6, 7, 8).half()
    assert conv_to_attention(conv, plan="attention").half()(x).shape == (2, 5, 7, 8)
