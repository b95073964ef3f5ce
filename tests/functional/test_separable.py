"""Attention whose score is a sum over axes: as its formula, whatever the profiles, the grid and the plan."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import reference
from regard.functional import DecayProfile, GaussianProfile, TableProfile, gaussian_attention, separable_attention
from regard.layers import SeparableAttention

SIDES = ["both", "before", "after"]


def hide(scores, offset, side):
    if side == "both":
        return scores
    return scores.masked_fill(offset > 0 if side == "before" else offset < 0, -math.inf)


def profile_and_formula(kind, side, size, heads, generator):
    """A profile with its parameters, and its score as a function of the offset."""

    def draw(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    if kind == "gaussian":
        center, sharpness = draw(heads), draw(heads)
        return (
            GaussianProfile(center, sharpness),
            lambda d: -sharpness[:, None, None] * (d - center[:, None, None]) ** 2,
            [center, sharpness],
        )
    if kind == "decay":
        rate = draw(heads)
        return DecayProfile(rate, side), lambda d: hide(-rate[:, None, None] * d.abs(), d, side), [rate]
    table = draw(heads, 2 * size + 1)
    return TableProfile(table, side), lambda d: hide(table[:, d.long() + size], d, side), [table]


@settings(max_examples=25)
@given(
    grid=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    kinds=st.lists(st.sampled_from(["gaussian", "decay", "table"]), min_size=3, max_size=3),
    side=st.sampled_from(SIDES),
    plan=st.sampled_from(["auto", "matrices", "scans"]),
    seed=st.integers(0, 999),
)
def test_equals_the_reference_values_and_gradients(grid, kinds, side, plan, seed):
    generator = torch.Generator().manual_seed(seed)
    made = [profile_and_formula(kind, side, n, 2, generator) for kind, n in zip(kinds, grid, strict=False)]
    value = torch.randn(2, 2, math.prod(grid), 3, generator=generator, dtype=torch.float64).requires_grad_()
    inputs = [value, *(x for _, _, parameters in made for x in parameters)]
    found = separable_attention(value, [profile for profile, _, _ in made], grid, plan=plan)
    expected, _ = reference.separable_attention(value, [formula for _, formula, _ in made], grid)
    torch.testing.assert_close(found, expected)
    by_us, by_reference = (torch.autograd.grad(x.square().sum(), inputs) for x in (found, expected))
    for a, b in zip(by_us, by_reference, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


def test_gaussian_attention_is_a_case():
    value, center, sharpness = torch.randn(1, 3, 20, 4), torch.randn(3, 2), torch.rand(3, 2)
    profiles = [GaussianProfile(center[:, a], sharpness[:, a]) for a in range(2)]
    expected = gaussian_attention(value, center, sharpness, (4, 5))
    torch.testing.assert_close(regard.separable_attention(value, profiles, (4, 5)), expected)


@pytest.mark.parametrize("rate", [0.0, 1e-6, 0.03, 5.0, 1e4])
@pytest.mark.parametrize("side", SIDES)
def test_scans_stay_stable_on_long_axes(rate, side):
    """A hundred thousand tokens in float32: as near to float64 as rounding allows, with finite gradients."""
    value = torch.rand(1, 1, 100_000, 1)
    decay = torch.tensor([rate], requires_grad=True)
    found = separable_attention(value, [DecayProfile(decay, side)], (100_000,))
    exact = separable_attention(value.double(), [DecayProfile(decay.double(), side)], (100_000,), plan="scans")
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)
    assert torch.autograd.grad(found.square().sum(), decay)[0].isfinite().all()


@pytest.mark.parametrize("plan", ["scans", "matrices"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_decay_of_any_speed_leaves_the_query_itself(plan, dtype):
    """The rate times the length of a chunk was infinite, and 0 · ∞ gave NaN."""
    value = torch.randn(1, 1, 700, 2, dtype=dtype, requires_grad=True)
    rate = torch.tensor([torch.finfo(dtype).max / 2], dtype=dtype, requires_grad=True)
    out = separable_attention(value, [DecayProfile(rate)], (700,), plan=plan)
    torch.testing.assert_close(out, value)
    out.square().sum().backward()
    assert rate.grad.tolist() == [0.0]


@pytest.mark.parametrize("plan", ["scans", "matrices"])
@pytest.mark.parametrize("kind", ["decay", "table", "both"])
def test_weights_are_as_exact_as_the_values(plan, kind):
    """Profiles in float32, values in float64: the matrices were built in float32, the scans in float64."""
    decay, table = DecayProfile(torch.tensor([0.3, 0.01])), TableProfile(torch.randn(2, 79))
    profiles = {"decay": [decay], "table": [table], "both": [decay, table]}[kind]
    value = torch.randn(1, 2, 40 ** len(profiles), 3, dtype=torch.float64)
    exact = [type(profile)(profile[0].double(), profile.side) for profile in profiles]
    expected = regard.functional.separable_weights(exact, (40,) * len(profiles)) @ value
    found = separable_attention(value, profiles, (40,) * len(profiles), plan=plan)
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=1e-13)


def test_one_sided_decay_is_causal_attention_with_alibi():
    """softmax(−λ (q − k)) over keys up to the query, as ALiBi biases causal attention without content."""
    value, rate = torch.randn(1, 4, 33, 5), 2.0 ** (-8 * torch.arange(1, 5) / 4)
    place = torch.arange(33.0)
    bias = -rate[:, None, None] * (place[:, None] - place).clamp_min(0)
    expected = regard.attention(torch.zeros(1, 4, 33, 1), torch.zeros(1, 4, 33, 1), value, bias=bias[None], causal=True)
    found = separable_attention(value, [DecayProfile(rate, "before")], (33,))
    torch.testing.assert_close(found, expected)


def test_one_sided_on_a_plane_is_a_quadrant():
    zeros = torch.zeros(1)
    weights = regard.functional.separable_weights([DecayProfile(zeros, "before")] * 2, (3, 3))
    assert (weights[0, 4].reshape(3, 3) > 0).tolist() == [[True, True, False], [True, True, False], [False] * 3]


@pytest.mark.parametrize(("axes", "grid"), [(1, (11,)), (2, (4, 5))])
@pytest.mark.parametrize("tables", [False, True])
def test_the_layer_shows_the_map_it_computes(axes, grid, tables):
    layer = SeparableAttention(8, 4, axes=axes, extent=grid if tables else None)
    x = torch.randn(2, *grid, 8)
    out, weights = layer(x, return_weights=True)
    with regard.capture(layer) as maps:
        torch.testing.assert_close(layer(x), out)
    torch.testing.assert_close(maps[-1].weights[0].float(), weights[0])
    out.square().mean().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.usefixtures("user_errors")
@pytest.mark.parametrize(
    ("profiles", "grid", "message"),
    [
        ([DecayProfile(torch.ones(2))], (2, 3), "1 entries, but grid"),
        ([DecayProfile(-torch.ones(2))], (6,), "rate must be finite and 0 or more"),
        ([DecayProfile(torch.tensor([1.0, math.inf]))], (6,), r"rate must be finite .* go from 1 to inf"),
        ([DecayProfile(torch.ones(2), "left")], (6,), "side must be one of"),
        ([DecayProfile(torch.ones(0))], (6,), "there must be at least one head"),
        ([DecayProfile(torch.ones(2, device="meta"))], (6,), "value is on cpu but must be on meta"),
        (
            [GaussianProfile(torch.full((2,), math.nan), torch.ones(2)), DecayProfile(torch.ones(2))],
            (2, 3),
            "center must be",
        ),
        (
            [DecayProfile(torch.ones(2)), GaussianProfile(torch.ones(2), -torch.ones(2))],
            (2, 3),
            r"\[1\].sharpness must be",
        ),
        ([TableProfile(torch.ones(2, 9))], (6,), "reaches offsets of 4, but its axis has 6 tokens"),
        ([TableProfile(torch.full((2, 11), math.nan))], (6,), "scores must be finite, or −∞"),
        ([TableProfile(torch.full((2, 11), math.inf))], (6,), "scores must be finite, or −∞"),
        ([DecayProfile(torch.ones(3))], (6,), "value has 2 heads but the profiles have 3"),
        ([DecayProfile(torch.ones(2))], (5,), "value has 6 tokens but grid"),
    ],
)
def test_what_does_not_fit_is_named(profiles, grid, message):
    with pytest.raises(ValueError, match=message):
        separable_attention(torch.zeros(1, 2, 6, 3), profiles, grid)


def test_a_query_whose_offsets_are_all_hidden_gives_zeros():
    """Strictly before the query: the first row and the first column see nothing, and no gradient is lost to NaN."""
    scores = torch.zeros(1, 5, requires_grad=True)
    before = scores.masked_fill(torch.arange(5) >= 2, -math.inf)
    value = torch.randn(1, 1, 9, 2, requires_grad=True)
    out = separable_attention(value, [TableProfile(before), TableProfile(before)], (3, 3)).reshape(3, 3, 2)
    torch.testing.assert_close(out[2, 2], value.reshape(3, 3, 2)[:2, :2].mean((0, 1)))
    assert not out[0].any()
    assert not out[:, 0].any()
    out.square().sum().backward()
    assert scores.grad.isfinite().all()
    assert value.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("side", ["both", "before"])
@pytest.mark.parametrize("plan", ["scans", "matrices"])
def test_autocast_gives_its_dtype_by_either_plan(plan, side, dtype):
    """Sums of a scan were rounded to autocast's dtype, and its result had another dtype than that of the matrices."""
    value = 100 + torch.randn(1, 1, 5000 if plan == "scans" else 64, 1)  # sums beyond the largest float16
    profile = DecayProfile(torch.zeros(1), side)
    exact = separable_attention(value.double(), [profile], value.shape[2:3])
    with torch.autocast("cpu", dtype):
        found = separable_attention(value, [profile], value.shape[2:3], plan=plan)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("other", ["decay", "table"])
@pytest.mark.parametrize("size", [700, 1500])
def test_a_long_gaussian_axis_beside_others_needs_no_whole_matrix(other, size, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    made = [profile_and_formula(kind, "both", n, 2, generator) for kind, n in ((other, 2), ("gaussian", size))]
    inputs = [torch.randn(2, 2, 2 * size, 3, dtype=torch.float64).requires_grad_(), *made[0][2], *made[1][2]]
    expected = separable_attention(inputs[0], [profile for profile, *_ in made], (2, size), plan="matrices")
    monkeypatch.setattr(GaussianProfile, "matrix", None)
    found = separable_attention(inputs[0], [profile for profile, *_ in made], (2, size))
    torch.testing.assert_close(found, expected)
    by_us, by_matrices = (torch.autograd.grad(x.square().sum(), inputs) for x in (found, expected))
    for a, b in zip(by_us, by_matrices, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("shape", [(0, 2, 6, 3), (1, 2, 6, 0), (0, 1, 6, 0)])
@pytest.mark.parametrize("plan", ["scans", "matrices"])
def test_nothing_gives_nothing(plan, shape):
    profiles = [DecayProfile(torch.ones(2)), TableProfile(torch.zeros(2, 5))]
    value = torch.zeros(shape, requires_grad=True)
    out = separable_attention(value, profiles, (2, 3), plan=plan)
    assert out.shape == (shape[0], 2, *shape[2:])
    out.sum().backward()
