"""Layers that attend by place: Gaussian, relative and gated, each equal to its formula."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from regard import reference
from regard.layers import GatedPositionalAttention, GaussianAttention, GaussianHeads, RelativeAttention
from regard.layers._gaussian_heads import shift_grid

grids = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


@given(
    grid=grids,
    covariance=st.sampled_from(["isotropic", "diagonal", "full"]),
    full_width=st.booleans(),
    flat=st.booleans(),
)
def test_gaussian_layer_equals_its_formula(grid, covariance, full_width, flat):
    layer = GaussianAttention(6, 3, axes=len(grid), covariance=covariance, full_width=full_width, out_dim=4).double()
    x = torch.randn(2, *grid, 6, dtype=torch.float64, requires_grad=True)
    tokens = x.flatten(1, -2)
    value = tokens if full_width else layer.value(tokens)
    heads = [value] * 3 if full_width else value.chunk(3, -1)
    mixed, weights = reference.gaussian_attention(torch.stack(heads, 1), layer.center, layer.sharpness, grid)
    expected = layer.output(torch.cat(list(mixed.unbind(1)), -1))
    out, found = layer(tokens, grid, return_weights=True) if flat else layer(x, return_weights=True)
    out = out if flat else out.flatten(1, -2)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(found[0], weights)
    wanted = [x, *layer.parameters()]
    for a, b in zip(
        torch.autograd.grad(out.square().sum(), wanted),
        torch.autograd.grad(expected.square().sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kernel", [1, 3, 4])
def test_a_sharp_grid_layer_is_a_convolution(kernel):
    """Heads on the grid of shifts, sharp: the output layer's blocks are the taps of a K × K convolution."""
    layer = GaussianAttention(5, kernel**2, full_width=True, init="grid", sharpness=60.0, out_dim=7).double()
    image = torch.randn(2, 9, 8, 5, dtype=torch.float64)
    taps = layer.output.weight.reshape(7, kernel, kernel, 5).permute(0, 3, 1, 2)
    before = (kernel - 1) // 2
    padded = F.pad(image.permute(0, 3, 1, 2), (before, kernel - 1 - before) * 2, mode="replicate")
    expected = F.conv2d(padded, taps, layer.output.bias).permute(0, 2, 3, 1)
    torch.testing.assert_close(layer(image), expected)


def test_grid_shifts_are_those_of_torchs_same_convolution():
    for size in range(1, 6):
        shifts = shift_grid(size**2, 2)
        assert shifts.unique(dim=0).shape[0] == size**2
        assert shifts.min() == -((size - 1) // 2)
        assert shifts.max() == size // 2


def test_heads_can_be_put_anywhere():
    for covariance, shape in (("isotropic", (4,)), ("diagonal", (4, 2)), ("full", (4, 2, 2))):
        heads = GaussianHeads(4, covariance=covariance).double()
        center, sharpness = torch.randn(4, 2, dtype=torch.float64), torch.rand(shape, dtype=torch.float64) + 0.1
        if covariance == "full":
            sharpness = sharpness @ sharpness.mT
        heads.set(center, sharpness)
        torch.testing.assert_close(heads.center.detach(), center)
        torch.testing.assert_close(heads.sharpness.detach(), sharpness)


@pytest.mark.parametrize("plan", ["dense", "separable"])
def test_dropout_keeps_the_stated_share_and_the_mean(plan):
    """A weight of the map is kept with probability 1 − p: a binomial test at about five standard deviations."""
    layer = GaussianAttention(4, 64, full_width=True, dropout=0.3)
    with torch.no_grad():
        layer.center.zero_()
        layer.positions.log_sharpness.fill_(math.log(1e-9))  # uniform attention: every weight is 1/16
    layer.plan = plan
    value = torch.eye(16).reshape(1, 1, 16, 16)  # the output is the map
    maps = torch.cat([layer.attend(value, (4, 4)) for _ in range(40)])
    kept = (maps != 0).float()
    # Within a draw weights share factors; the 2560 draws of heads are independent.
    for share in kept.mean(0).mean(0).flatten():
        assert abs(share.item() - 0.7) < 5 * math.sqrt(0.3 * 0.7 / 2560)
    assert abs(maps.mean().item() * 16 - 1) < 0.02
    layer.eval()
    assert (layer.attend(value, (4, 4)) != 0).all()


def test_a_frozen_plan_gives_the_same_output():
    layer = GaussianAttention(8, 4, init="grid").double()
    image = torch.randn(1, 70, 80, 8, dtype=torch.float64)
    before = layer(image)
    plan = layer.freeze_plan((70, 80), torch.float64)
    assert {head.way for head in plan.heads} == {"banded"}
    torch.testing.assert_close(layer(image), before)


@given(grid=st.sampled_from([(4,), (3, 4), (2, 3, 2)]), extra=st.integers(0, 2))
def test_relative_attention_equals_the_four_terms(grid, extra):
    layer = RelativeAttention(12, 2, [n + extra for n in grid], content=True).double()
    with torch.no_grad():
        layer.u.normal_()
        layer.v.normal_()
    x = torch.randn(2, math.prod(grid), 12, dtype=torch.float64, requires_grad=True)
    w_query, w_key, w_value = layer.qkv.weight.chunk(3)
    b_query, b_key, b_value = layer.qkv.bias.chunk(3)
    encoding = layer.encoding.pairs(grid)
    outputs, maps = [], []
    for head in range(2):
        part = slice(6 * head, 6 * head + 6)
        query, key = x @ w_query[part].mT + b_query[part], x @ w_key[part].mT + b_key[part]
        position = encoding @ layer.position.weight[part].mT  # W̃ r
        content_content = query @ key.mT
        content_position = torch.einsum("bqd,qkd->bqk", query, position)
        scores = content_content + content_position + (key @ layer.u[head])[:, None] + position @ layer.v[head]
        maps.append((scores / math.sqrt(6)).softmax(-1))
        outputs.append(maps[-1] @ (x @ w_value[part].mT + b_value[part]))
    expected = layer.output(torch.cat(outputs, -1))
    out, weights = layer(x, grid, return_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(weights, torch.stack(maps, 1))
    torch.testing.assert_close(layer(x, grid), expected)
    wanted = [x, *layer.parameters()]
    for a, b in zip(
        torch.autograd.grad(layer(x, grid).square().sum(), wanted),
        torch.autograd.grad(expected.square().sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@given(grid=st.sampled_from([(5,), (3, 4), (2, 3, 2)]), full_width=st.booleans())
def test_relative_attention_by_position_alone_factorizes(grid, full_width):
    layer = RelativeAttention(12, 3, grid, content=False, full_width=full_width).double()
    x = torch.randn(2, math.prod(grid), 12, dtype=torch.float64)
    scores = torch.einsum("qkw,hw->hqk", layer.encoding.pairs(grid), layer.position.weight)
    weights = scores.softmax(-1)  # over the whole grid at once, nothing factorized
    value = x if full_width else layer.value(x)
    heads = [value] * 3 if full_width else value.chunk(3, -1)
    expected = layer.output(torch.cat([weights[h] @ heads[h] for h in range(3)], -1))
    out, found = layer(x, grid, return_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(found[0], weights)


def test_gate_slides_between_content_and_position():
    layer = GatedPositionalAttention(12, 4, init="grid").double()
    x = torch.randn(2, 3, 4, 12, dtype=torch.float64)
    value = layer.qkv(x.flatten(1, 2))[..., 24:].unflatten(-1, (4, 3)).transpose(1, 2)
    out, weights = layer(x, return_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 12, dtype=torch.float64))
    expected = layer.output((weights @ value).transpose(1, 2).flatten(2)).unflatten(1, (3, 4))
    torch.testing.assert_close(out, expected)
    by_position = reference.gaussian_attention(value, layer.center, layer.sharpness, (3, 4))[1]
    with torch.no_grad():
        layer.gate.fill_(40.0)
    torch.testing.assert_close(layer(x, return_weights=True)[1], by_position.expand(2, -1, -1, -1))
    with torch.no_grad():
        layer.gate.fill_(-40.0)
    content = layer(x, return_weights=True)[1]
    assert not torch.allclose(content[0], content[1])  # content differs from item to item


@pytest.mark.parametrize(
    "build",
    [
        lambda: GaussianAttention(12, 4),
        lambda: GaussianAttention(12, 4, full_width=True, covariance="full"),
        lambda: RelativeAttention(12, 4, (8, 8)),
        lambda: RelativeAttention(12, 4, (8, 8), content=False),
        lambda: GatedPositionalAttention(12, 4),
    ],
)
def test_every_parameter_learns_and_any_size_fits(build):
    layer = build()
    for grid in ((8, 8), (3, 5), (1, 1)):
        assert layer(torch.randn(2, *grid, 12)).shape == (2, *grid, 12)
    layer(torch.randn(2, 6, 7, 12)).square().mean().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.usefixtures("user_errors")
@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (lambda: GaussianAttention(10, 4), ValueError, "dim 10 is not divisible by heads 4"),
        (lambda: GaussianAttention(12, 4, head_dim=3, full_width=True), ValueError, "head_dim is 3"),
        (
            lambda: GaussianAttention(12, 6, init="grid"),
            ValueError,
            "heads is 6 and axes is 2: heads must be such a number",
        ),
        (lambda: GaussianAttention(16, 0), ValueError, "heads must be"),
        (lambda: GaussianAttention(16, 2.0), TypeError, "heads must be a whole number"),
        (lambda: GaussianAttention(16, 4, out_dim=0), ValueError, "out_dim must be"),
        (lambda: GaussianAttention(12, 4)(torch.randn(2, 4, 5, 12).double()), TypeError, "x is a float64 tensor"),
        (lambda: GatedPositionalAttention(12, 4)(torch.randn(2, 4, 5, 12).double()), TypeError, "x is a float64"),
        (lambda: RelativeAttention(12, 4, (4, 5))(torch.randn(2, 4, 5, 12).double()), TypeError, "x is a float64"),
        (lambda: GaussianAttention(12, 4, covariance="round"), ValueError, "covariance must be one of"),
        (lambda: GaussianAttention(12, 4, sharpness=-1.0), ValueError, "sharpness must be a positive number"),
        (lambda: GaussianAttention(12, 4, dropout=1.5), ValueError, "dropout must lie in"),
        (lambda: GaussianAttention(12, 4)(torch.randn(2, 20, 12)), ValueError, "pass grid"),
        (lambda: GaussianAttention(12, 4)(torch.randn(2, 20, 12), (4, 4)), ValueError, "x has 20 tokens but grid"),
        (lambda: GaussianAttention(12, 4)(torch.randn(2, 4, 5, 11)), ValueError, "x has"),
        (lambda: RelativeAttention(12, 4, (4, 4))(torch.randn(1, 5, 4, 12)), ValueError, "does not fit into extent"),
        (
            lambda: RelativeAttention(12, 4, (4, 4), full_width=True),
            ValueError,
            "full_width is True, which reads the whole",
        ),
        (lambda: GatedPositionalAttention(10, 4), ValueError, "dim 10 is not divisible by heads 4"),
        (lambda: GaussianHeads(2).set(torch.zeros(2, 2), torch.zeros(2)), ValueError, "sharpness must be positive"),
    ],
)
def test_bad_input_is_refused_with_what_would_fit(action, error, message):
    with pytest.raises(error, match=message):
        action()
