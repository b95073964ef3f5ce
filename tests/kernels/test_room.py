"""What happens on a card that has no room for a kernel as it was setup. Triton raises before anything has run; here the
kernels raise, and the interpreter runs what is tried instead."""

import math

import pytest
import torch

from regard.functional import gaussian_attention

PLANES = ("plane_forward", "plane_backward", "map_gradient")
PASSES = ("pass_forward", "pass_backward")


class Crowded:
    """A kernel on a card that takes it only where ``fits`` says so of its constants."""

    def __init__(self, kernel, fits):
        self.kernel, self.fits = kernel, fits
        self.refused, self.ran = [], []

    def __getitem__(self, grid):
        from triton.runtime.errors import OutOfResources

        def start(*tensors, **constants):
            if not self.fits(constants):
                self.refused.append(constants)
                raise OutOfResources(300_000, 100_000, "shared memory")
            self.ran.append(constants)
            return self.kernel[grid](*tensors, **constants)

        return start


def one_stage(constants):
    return constants["num_stages"] == 1


def small_tiles(constants):
    across = constants["BE"] if "BE" in constants else constants["BLOCK_WIDTH"] * constants.get("BLOCK_OTHER", 1)
    return one_stage(constants) and across <= 16 and constants.get("BLOCK_OUTPUTS", 16) <= 32


def nowhere(_):
    return False


@pytest.fixture
def crowd(monkeypatch):
    """Put kernels on a crowded card, whose memory of what fits begins and ends empty."""
    from regard.functional.kernels import _launch, _setups

    def forget():
        for setups in (_setups.pass_setups, _setups.plane_setups, _setups.map_setups):
            setups.cache_clear()

    def put(fits, names=PLANES + PASSES):
        crowded = {name: Crowded(getattr(_launch, name), fits) for name in names}
        for name, kernel in crowded.items():
            monkeypatch.setattr(_launch, name, kernel)
        return crowded

    forget()
    yield put
    forget()


@pytest.fixture
def crowd_axes(monkeypatch):
    from regard.functional.kernels import _axes, _grid_plan

    def forget():
        _grid_plan.forward_plan.cache_clear()

    def put(fits, ways=("forward", "backward")):
        names = [f"{kind}_{way}" for kind in ("axis", "stream") for way in ways]
        names += ["wide_mix", "wide_pairs"]
        crowded = {name: Crowded(getattr(_axes, name), fits) for name in names}
        for name, kernel in crowded.items():
            monkeypatch.setattr(_axes, name, kernel)
        return crowded

    forget()
    yield put
    forget()


def attend_on(grid):
    """A small plane by its own kernels; a larger one by matrices made elsewhere, as borders have them."""
    if max(grid) <= 16:
        return lambda v, c, s: gaussian_attention(v, c, s, grid)
    none = ((0, 0), (0, 0))
    return lambda v, c, s: gaussian_attention(v, c, s, grid, border="zeros", padding=none, plan="separable")


def heads(grid, value_heads, width=20, dtype=torch.float32):
    value = torch.randn(2, value_heads, math.prod(grid), width, dtype=dtype)
    return value, 2 * torch.randn(3, 2), torch.rand(3, 2) + 0.2


def with_gradients(function, inputs, weight):
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad((out * weight.to(out)).sum(), inputs)]


def assert_as_in_float64(function, inputs):
    near = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}[inputs[0].dtype]
    weight = torch.randn(function(*inputs).shape, dtype=torch.float64)
    found = with_gradients(function, inputs, weight)
    expected = with_gradients(function, [x.double() for x in inputs], weight)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=near * max(1.0, b.abs().max().item()), rtol=near)
    return found, weight


@pytest.mark.parametrize(
    ("grid", "value_heads", "dtype"),
    [
        ((5, 7), 3, torch.float16),  # in float32 it is setup as small as can be from the start
        ((5, 7), 1, torch.float32),
        ((17, 2), 3, torch.float32),
        ((3, 20), 1, torch.float32),
    ],
)
@pytest.mark.parametrize("fits", [one_stage, small_tiles])
def test_smaller_cuts_compute_the_same_and_are_found_once(grid, value_heads, dtype, fits, crowd):
    crowded = crowd(fits)

    run = attend_on(grid)
    inputs = heads(grid, value_heads, dtype=dtype)
    found, weight = assert_as_in_float64(run, inputs)
    ran = [kernel for kernel in crowded.values() if kernel.ran]
    assert {name for name, kernel in crowded.items() if kernel.ran} <= set(PLANES if max(grid) <= 16 else PASSES)
    assert any(kernel.refused for kernel in ran)
    refusals = [len(kernel.refused) for kernel in ran]
    again = with_gradients(run, inputs, weight)
    assert [len(kernel.refused) for kernel in ran] == refusals
    assert all(a.equal(b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("value_heads", [3, 1])
def test_two_passes_take_the_place_of_a_plane_that_does_not_fit(value_heads, crowd):
    crowd(nowhere, PLANES)
    passes = crowd(lambda _: True, PASSES)
    assert_as_in_float64(lambda v, c, s: gaussian_attention(v, c, s, (5, 7)), heads((5, 7), value_heads))
    assert all(kernel.ran for kernel in passes.values())


@pytest.mark.parametrize(("grid", "value_heads"), [((5, 7), 3), ((5, 7), 1), ((17, 2), 3), ((3, 20), 1)])
def test_torch_takes_over_where_nothing_fits(grid, value_heads, crowd):
    crowded = crowd(nowhere)
    assert_as_in_float64(attend_on(grid), heads(grid, value_heads))
    assert all(crowded[name].refused for name in PASSES)
    assert not any(kernel.ran for kernel in crowded.values())


@pytest.mark.parametrize("outputs", [([0.5, 2.0, 9.0], [-3.0, 4.25]), ([1.0] * 40, [2.0])])
def test_torch_takes_over_for_outputs_that_are_not_the_inputs(outputs, crowd):
    def run(v, c, s):
        queries = [torch.tensor(axis).to(v) for axis in outputs]
        return gaussian_attention(v, c, s, (6, 1), queries=queries, plan="separable")

    crowd(nowhere)
    assert_as_in_float64(run, heads((6, 1), 3, width=16))


@pytest.mark.parametrize("learned", ["value", "heads"])
@pytest.mark.parametrize("value_heads", [3, 1])
def test_gradients_that_nobody_wants_are_left_out(learned, value_heads, crowd):
    crowd(nowhere)
    value, center, sharpness = heads((5, 7), value_heads)

    def gradients(v, c, s):
        inputs = [v.requires_grad_()] if learned == "value" else [c.requires_grad_(), s.requires_grad_()]
        return torch.autograd.grad(gaussian_attention(v, c, s, (5, 7)).square().sum(), inputs)

    expected = gradients(*[x.double() for x in (value, center, sharpness)])
    for a, b in zip(gradients(value, center, sharpness), expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-5 * max(1.0, b.abs().max().item()), rtol=2e-5)


def test_under_autocast_torch_takes_over_too(crowd_axes):
    crowd_axes(nowhere)
    inputs = heads((17, 6), 3, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert_as_in_float64(lambda v, c, s: gaussian_attention(v, c, s, (17, 6)), inputs)


def test_a_matrix_gradient_is_summed_in_float32_whatever_the_values_are_in():
    from regard.functional.kernels import _plain

    x, grad = torch.randn(2, 3, 17, 6, 40).bfloat16(), torch.randn(2, 3, 5, 6, 40).bfloat16()
    expected = torch.einsum("bhmoe,bhkoe->hmk", grad.double(), x.double())
    with torch.autocast("cpu", torch.bfloat16):  # which would round it
        (found,) = _plain.matrix_gradient(x, grad)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("grid", "value_heads"), [((4, 5), 1), ((4, 20), 2)])
def test_operators_fall_back_as_eager_calls_do(grid, value_heads, crowd):
    from regard.functional.kernels import _ops

    crowd(nowhere)
    value = torch.randn(2, value_heads, math.prod(grid), 16, requires_grad=True)
    center, sharpness = torch.randn(2, 2, requires_grad=True), torch.rand(2, 2, requires_grad=True)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(_ops.gaussian_plane, (value, center, sharpness, *grid), test_utils=checks)
    inputs = [value, center, sharpness]
    found = _ops.gaussian_plane(*inputs, *grid)[0]
    expected = gaussian_attention(*[x.double() for x in inputs], grid)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)
    pairs = zip(
        torch.autograd.grad(found.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b, atol=2e-5 * max(1.0, b.abs().max().item()), rtol=2e-5)


@pytest.mark.parametrize(
    ("grid", "value_heads", "dtype"),
    [
        ((20, 18), 3, torch.float32),
        ((20, 18), 1, torch.float32),
        ((140, 2), 3, torch.float16),
    ],
)
def test_larger_grids_are_cut_smaller_and_alike_every_time(grid, value_heads, dtype, crowd_axes):
    crowded = crowd_axes(one_stage)
    inputs = heads(grid, value_heads, dtype=dtype)

    def run(v, c, s):
        return gaussian_attention(v, c, s, grid)

    found, weight = assert_as_in_float64(run, inputs)
    refusals = [len(kernel.refused) for kernel in crowded.values()]
    assert any(refusals)
    assert [n > 0 for n in refusals] == [bool(kernel.ran) for kernel in crowded.values()]
    again = with_gradients(run, inputs, weight)
    assert [len(kernel.refused) for kernel in crowded.values()] == refusals
    assert all(a.equal(b) for a, b in zip(found, again, strict=True))


def test_torch_takes_over_where_only_the_backward_pass_has_no_room(crowd_axes):
    crowded = crowd_axes(nowhere, ["backward"])
    assert_as_in_float64(lambda v, c, s: gaussian_attention(v, c, s, (20, 18)), heads((20, 18), 3))
    assert crowded["stream_backward"].refused


def test_torch_takes_over_on_larger_grids(crowd_axes):
    crowded = crowd_axes(nowhere)
    assert_as_in_float64(lambda v, c, s: gaussian_attention(v, c, s, (20, 18)), heads((20, 18), 3))
    assert not any(kernel.ran for kernel in crowded.values())
