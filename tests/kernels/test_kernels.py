"""The Triton kernels' logic, run by Triton's interpreter on the CPU. Speed and bfloat16 are for a GPU (test_gpu.py)."""

import math

import pytest
import torch

from regard.functional import gaussian_attention, kernels
from regard.layers import GaussianAttention


def heads(count, *, value_heads=None, grid=(5, 7), width=16, batch=2, axes=2):
    value = torch.randn(batch, value_heads or count, math.prod(grid), width)
    return value, 2 * torch.randn(count, axes), torch.rand(count, axes) + 0.2


def with_gradients(function, inputs, weight):
    """Output and gradients, each of them float64."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = function(*inputs)
    return [x.double() for x in (out, *torch.autograd.grad((out * weight.to(out)).sum(), inputs))]


def assert_same(function, inputs, count, grid, outputs=None):
    """In float32 by kernels as in float64 without."""
    tokens = math.prod(outputs or grid)
    weight = torch.randn(inputs[0].shape[0], count, tokens, inputs[0].shape[3], dtype=torch.float64)
    assert kernels.usable(inputs[0], outputs or grid, grid)
    assert not kernels.usable(inputs[0].double(), outputs or grid, grid)
    found = with_gradients(function, inputs, weight)
    expected = with_gradients(function, [x.double() for x in inputs], weight)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5 * max(1.0, b.abs().max().item()), rtol=2e-5)


@pytest.mark.parametrize(
    ("grid", "width", "value_heads"),
    [
        ((5, 7), 16, 3),  # the whole plane at once
        ((16, 16), 20, 3),
        ((1, 9), 16, 3),
        ((5, 7), 40, 1),  # one value for all heads
        ((17, 20), 24, 3),  # a pass per axis
        ((20, 5), 70, 1),
    ],
)
def test_values_and_gradients(grid, width, value_heads):
    inputs = heads(3, grid=grid, width=width, value_heads=value_heads)
    assert_same(lambda v, c, s: gaussian_attention(v, c, s, grid), inputs, 3, grid)


@pytest.mark.parametrize("value_heads", [3, 1])
def test_dropped_entries_of_axis_matrices(value_heads, monkeypatch):
    """A plane with dropout is one kernel, too, and drops what the whole map would."""
    grid, used = (5, 7), []
    inputs = heads(3, grid=grid, value_heads=value_heads)
    plain = kernels.mix_plane
    monkeypatch.setattr(kernels, "mix_plane", lambda *args: used.append(1) or plain(*args))

    def run(plan):
        def call(v, c, s):
            torch.manual_seed(3)
            return gaussian_attention(v, c, s, grid, plan=plan, dropout=0.4)

        return call

    weight = torch.randn(2, 3, 35, 16, dtype=torch.float64)
    found, expected = (with_gradients(run(plan), inputs, weight) for plan in ("auto", "dense"))
    assert used == [1]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5 * max(1.0, b.abs().max().item()), rtol=2e-5)


@pytest.mark.parametrize(
    ("grid", "width", "value_heads", "sharpness"),
    [
        ((40,), 16, 3, 0.5),
        ((400,), 20, 3, 8.0),  # bands, some of which touch no border
        ((150,), 16, 1, 0.001),  # everything matters
        ((33, 20), 16, 3, 0.5),
        ((140, 9), 24, 3, 30.0),  # larger than a plane was allowed to be
        ((20, 70), 16, 1, 1.0),
        ((5, 18, 7), 16, 3, 2.0),
    ],
)
def test_grids_of_any_size(grid, width, value_heads, sharpness):
    value, center, alpha = heads(3, grid=grid, width=width, value_heads=value_heads, axes=len(grid))
    center[0] += max(grid)  # one head looks outside
    weight = torch.randn(2, 3, math.prod(grid), width, dtype=torch.float64)

    def run(v, c, s):
        return gaussian_attention(v, c, s, grid)

    assert kernels.usable_on_grid(value, grid)
    inputs = value, center, alpha * sharpness
    expected = with_gradients(run, [x.double() for x in inputs], weight)
    for a, b in zip(with_gradients(run, inputs, weight), expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5 * max(1.0, b.abs().max().item()), rtol=2e-5)


@pytest.mark.parametrize("size", [100, 260])  # a window holds the whole axis, or not
def test_local_and_wide_heads_on_a_long_axis_share_a_backward_pass(size):
    """Half precision launches once for each kind, and each head is computed by one of them."""
    value, center, _ = heads(4, grid=(size, 2), batch=1)
    sharpness = torch.tensor([1e-5, 3.0, 0.001, 0.5])
    weight = torch.randn(1, 4, 2 * size, 16, dtype=torch.float64)

    def run(v, c, s):
        return gaussian_attention(v, c, s, (size, 2))

    inputs = value.half(), center, sharpness
    expected = with_gradients(run, [x.double() for x in inputs], weight)
    for a, b in zip(with_gradients(run, inputs, weight), expected, strict=True):
        torch.testing.assert_close(a, b, atol=5e-3 * max(1.0, b.abs().max().item()), rtol=5e-3)


def test_a_second_backward_pass_finds_what_the_first_overwrote():
    inputs = [x.requires_grad_() for x in heads(2, grid=(20, 18))]
    out = gaussian_attention(*inputs, (20, 18)).square().sum()
    first = torch.autograd.grad(out, inputs, retain_graph=True)
    second = torch.autograd.grad(out, inputs)
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))


def test_memory_of_a_plane_is_three_values():
    """Output, one tensor between the passes whose gradient takes its place, and the gradient of the value."""
    from regard.functional.kernels import _grid

    value, center, sharpness = heads(2, grid=(20, 18))
    _, between = _grid.forward(value, center, sharpness, (20, 18))
    assert [x.shape for x in between] == [value.shape]
    half, before = between[0], between[0].clone()
    _grid.backward(torch.randn_like(value), value, center, sharpness, between, (20, 18), True, True, True)
    assert not half.equal(before)


def test_memory_of_three_axes_is_three_values():
    """What stood between the passes is freed one by one, before the gradient of the value needs room."""
    from regard.functional.kernels import _grid

    value, center, sharpness = heads(2, grid=(3, 4, 5), axes=3, batch=1)
    _, between = _grid.forward(value, center, sharpness[:, 0], (3, 4, 5))
    assert [x.shape for x in between] == [value.shape] * 2
    _grid.backward(torch.randn_like(value), value, center, sharpness[:, 0], between, (3, 4, 5), True, True, True)
    assert not between


@pytest.mark.parametrize("size", [200, 256, 321])
def test_every_output_of_a_long_axis_belongs_to_one_program(size):
    """Border and interior row tiles, for any number of programs."""
    from regard.functional.kernels import _axes

    for stream in (_axes.STREAM_FORWARD[_axes.LONG], _axes.STREAM_BACKWARD[_axes.LONG]):
        for most in (1, 2, 7, 100):
            first, borders, inner, each, rest = _axes.row_shares(size, stream, 5, most)
            room = stream.window - stream.rows
            assert borders + inner == -(-size // stream.rows)
            assert (rest > 0) == (inner > 0)
            assert each >= 1
            assert borders * each + rest <= max(most, borders + 1)
            if inner:
                assert first * stream.rows >= room
                assert (first + inner) * stream.rows + room <= size


@pytest.mark.parametrize("border", ["zeros", "reflect", "replicate", "circular"])
def test_borders_take_matrices_made_elsewhere(border):
    padding = ((1, 1), (2, 0))

    def run(v, c, s):
        return gaussian_attention(v, c, s, (6, 5), border=border, padding=padding, plan="separable")

    assert_same(run, heads(2, grid=(6, 5)), 2, (6, 5))


def test_queries_off_the_grid():
    def run(v, c, s):
        queries = [torch.tensor([0.5, 2.0, 9.0]).to(v), torch.tensor([-3.0, 4.25]).to(v)]
        return gaussian_attention(v, c, s, (6, 20), queries=queries, plan="separable")

    assert_same(run, heads(2, grid=(6, 20)), 2, (6, 20), outputs=(3, 2))


@pytest.mark.parametrize("grid", [(4, 6), (4, 40)])
def test_a_layer_hands_its_values_over_as_they_lie_in_memory(grid):
    layer = GaussianAttention(12, 4, head_dim=8, init="grid")
    x = torch.randn(2, *grid, 12)
    found = layer(x)
    torch.testing.assert_close(found.double(), copy_in_double(layer)(x.double()), atol=1e-5, rtol=1e-5)


def copy_in_double(layer):
    other = GaussianAttention(12, 4, head_dim=8, init="grid").double()
    other.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
    return other


@pytest.mark.parametrize("sharpness", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("place", [0.0, 0.5, -1e6, 1e6])
def test_extreme_heads_are_never_nan(sharpness, place):
    value, center, _ = heads(1, grid=(4, 3))
    inputs = value, torch.full_like(center, place), torch.full((1,), sharpness)
    found = with_gradients(lambda v, c, s: gaussian_attention(v, c, s, (4, 3)), inputs, torch.ones(()))
    assert all(x.isfinite().all() for x in found)
    expected = gaussian_attention(*[x.double() for x in inputs], (4, 3))
    torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("grid", [(4, 5), (18, 3)])
def test_a_gradient_of_the_gradient_is_there_too(grid):
    """Also where values depend on centers: what comes through them counts once."""
    inputs = [x.requires_grad_() for x in heads(2, grid=grid)]

    def second(*inputs):
        value, center, sharpness = inputs
        out = gaussian_attention(value * center.sum(), center, sharpness, grid)
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), inputs)

    for a, b in zip(second(*inputs), second(*[x.detach().double().requires_grad_() for x in inputs]), strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-4 * max(1.0, b.abs().max().item()), rtol=1e-4)


def test_gradients_that_nobody_wants_are_left_out():
    value, center, sharpness = heads(2, grid=(20, 18))
    value.requires_grad_()
    (alone,) = torch.autograd.grad(gaussian_attention(value, center, sharpness, (20, 18)).sum(), [value])
    center.requires_grad_()
    both = torch.autograd.grad(gaussian_attention(value, center, sharpness, (20, 18)).sum(), [value, center])
    torch.testing.assert_close(alone, both[0])


def test_what_kernels_do_not_take_goes_the_plain_way(monkeypatch):
    value, _, _ = heads(2, grid=(6, 5))
    assert kernels.usable(value, (6, 5), (6, 5))
    assert not kernels.usable(value.double(), (6, 5), (6, 5))
    assert not kernels.usable(value, (30,), (30,))
    assert not kernels.usable(value, (129, 5), (129, 5))
    assert not kernels.usable(value.to("meta"), (6, 5), (6, 5))
    assert kernels.usable_on_grid(value, (30,))
    assert not kernels.usable_on_grid(value.double(), (30,))
    monkeypatch.setenv("REGARD_KERNELS", "0")
    assert not kernels.usable(value, (6, 5), (6, 5))
    assert not kernels.usable_on_grid(value, (30,))
    monkeypatch.delenv("REGARD_KERNELS")
    monkeypatch.delenv("TRITON_INTERPRET")
    assert not kernels.usable(value, (6, 5), (6, 5))


def test_functional_transforms_go_the_plain_way():
    value, center, sharpness = heads(2, grid=(4, 5))
    several = torch.stack([value, 2 * value])
    found = torch.func.vmap(lambda v: gaussian_attention(v, center, sharpness, (4, 5)))(several)
    torch.testing.assert_close(found[1], gaussian_attention(2 * value, center, sharpness, (4, 5)))
