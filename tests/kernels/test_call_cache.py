"""Calls like an earlier one take the short way, and give what the long way gives."""

import pytest
import torch

from regard import capture
from regard.functional import _gaussian, gaussian_attention, kernels
from regard.functional.kernels import _call_cache

GRID = (20, 18)


@pytest.fixture
def short_way(monkeypatch):
    """The short way open on the CPU, too. Returns how many calls have gone the long way."""
    long = []
    resolve = _gaussian.resolve

    def noted(*arguments):
        long.append(arguments)
        return resolve(*arguments)

    monkeypatch.setattr(_call_cache, "is_on_current_gpu", lambda value: True)
    monkeypatch.setattr(_gaussian, "resolve", noted)
    _call_cache.forget()
    yield long
    _call_cache.forget()


def heads(dtype=torch.float32, width=16):
    value = torch.randn(2, 3, GRID[0] * GRID[1], width)
    return value.requires_grad_(), torch.randn(3, 2).to(dtype).requires_grad_(), torch.rand(3).add(0.2).requires_grad_()


def gradients(inputs, **options):
    out = gaussian_attention(*inputs, GRID, **options)
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]


def test_a_second_call_goes_the_short_way_and_gives_the_same(short_way):
    inputs = heads()
    first = gradients(inputs)
    assert len(short_way) == 1
    second = gradients(inputs)
    assert len(short_way) == 1
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("other", ["dtype", "strides", "plan", "width", "observed", "mode", "off"])
def test_a_call_of_another_kind_goes_the_long_way(other, short_way, monkeypatch):
    value, center, sharpness = inputs = heads()
    gradients(inputs)
    if other == "dtype":
        # Kernels are compiled for it: 16 bits read as 32 would be other heads.
        center = center.detach().bfloat16()
        found = gaussian_attention(value, center, sharpness, GRID)
        torch.testing.assert_close(found, gaussian_attention(value, center.float(), sharpness, GRID))
    elif other == "strides":
        gaussian_attention(value.transpose(1, 2).contiguous().transpose(1, 2), center, sharpness, GRID)
    elif other == "plan":
        gaussian_attention(value, center, sharpness, GRID, plan="separable")
    elif other == "width":
        gaussian_attention(value[..., :8], center, sharpness, GRID)
    elif other == "observed":
        layer = torch.nn.Module()
        layer.forward = lambda: gaussian_attention(value, center, sharpness, GRID)
        with capture(layer) as maps:
            layer()
        assert len(maps) == 1
    elif other == "mode":
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False):
            gaussian_attention(value, center, sharpness, GRID)
    else:
        monkeypatch.setenv("REGARD_KERNELS", "0")
        gaussian_attention(value, center, sharpness, GRID)
    assert len(short_way) >= 2


def test_plans_are_told_apart_by_the_dtype_of_the_heads():
    from regard.functional.kernels._grid_plan import plan_of

    value, center, sharpness = (x.detach() for x in heads())
    assert plan_of(value, center, sharpness, GRID) is plan_of(value, center + 1, sharpness, GRID)
    assert plan_of(value, center, sharpness, GRID) is not plan_of(value, center.half(), sharpness, GRID)
    assert plan_of(value, center, sharpness, GRID) is not plan_of(value, center, sharpness.half(), GRID)


def test_autocast_is_heeded_on_the_short_way(short_way):
    inputs = [x.detach() for x in heads()]
    with torch.autocast("cpu", torch.bfloat16):
        first, second = (gaussian_attention(*inputs, GRID) for _ in range(2))
    assert first.dtype == second.dtype == torch.bfloat16
    assert len(short_way) == 1
    assert kernels.cached_gaussian_grid(*inputs, GRID) is None
