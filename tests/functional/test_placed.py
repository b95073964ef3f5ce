"""Content and place on the fused kernel: as the score's own formula, with class tokens, masks and causality."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import reference
from regard.functional import _place_columns, _place_moments, _placed, attention, gaussian_attention, placed_attention
from regard.functional._place_columns import largest_score, position_columns
from regard.functional._place_moments import coordinates
from regard.layers import MultiHeadAttention, PlacedAttention


def problem(grid, prefix, seed, dtype=torch.float64, heads=2, width=4, batch=2):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    tokens, axes = prefix + math.prod(grid), len(grid)
    root = draw(heads, axes, axes)
    inputs = [*(draw(batch, heads, tokens, width) for _ in range(3)), draw(heads, axes)]
    keep = torch.rand(batch, tokens, generator=generator) > 0.3
    return inputs, root @ root.mT, keep


def by_formula(query, key, value, center, sharpness, grid, prefix, keep, causal):
    """The score written out: content, and minus the squared distance for pairs that both have a position."""
    bias = torch.zeros(center.shape[0], query.shape[2], query.shape[2], dtype=query.dtype)
    bias[:, prefix:, prefix:] = reference.gaussian_scores(center, sharpness, grid)
    hidden = None if keep is None else keep[:, None, None, :].expand(-1, center.shape[0], query.shape[2], -1)
    return attention(query, key, value, bias=bias[None], keep=hidden, causal=causal)


@pytest.fixture
def in_own_dtype(monkeypatch):
    """Compute in the dtype of the inputs, as on a GPU, where a CPU would take float64."""
    monkeypatch.setattr(_placed, "LARGEST_SCORE", {})


any_problem = given(
    grid=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    prefix=st.integers(0, 2),
    masked=st.booleans(),
    causal=st.booleans(),
    seed=st.integers(0, 999),
)


@settings(max_examples=25)
@any_problem
def test_equals_the_formula_values_and_gradients(grid, prefix, masked, causal, seed):
    inputs, sharpness, keep = problem(grid, prefix, seed)
    if masked:
        keep[0] = False  # nothing to attend to
    keep = keep if masked else None
    inputs = [x.requires_grad_() for x in (*inputs, sharpness)]
    found = placed_attention(*inputs, grid, prefix=prefix, keep=keep, causal=causal)
    expected = by_formula(*inputs, grid, prefix, keep, causal)
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-6)
    with_map, weights = placed_attention(*inputs, grid, prefix=prefix, keep=keep, causal=causal, return_weights=True)
    torch.testing.assert_close(with_map, expected, atol=1e-8, rtol=1e-6)
    assert weights.shape == (2, 2, found.shape[2], found.shape[2])
    ours, theirs = (torch.autograd.grad(x.square().sum(), inputs, allow_unused=True) for x in (found, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    if masked:
        assert (found[0] == 0).all()


@pytest.mark.usefixtures("in_own_dtype")
@pytest.mark.parametrize("sharpness", [0.01, 0.3, 10.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_as_content_alone(sharpness, dtype):
    """Against float64 on the same inputs, beside the same kernel without a position."""
    grid = (24, 24)
    (query, key, value, center), _, _ = problem(grid, 0, 3, torch.float32, width=64)
    half = [x.to(dtype) for x in (query, key, value)]
    exact = [x.double() for x in half]
    matrix = sharpness * torch.eye(2).expand(2, -1, -1)
    found = placed_attention(*half, center, matrix, grid)
    expected = placed_attention(*exact, center.double(), matrix.double(), grid)
    error = ((found.double() - expected).norm() / expected.norm()).item()
    plain = attention(*exact)
    without = ((attention(*half).double() - plain).norm() / plain.norm()).item()
    assert error <= 1.2 * without


@settings(max_examples=25)
@given(
    grid=st.sampled_from([(8, 8), (24, 24), (4, 5, 6), (60,), (300,), (2, 601), (1500,)]),
    strength=st.sampled_from([1e-3, 0.01, 0.1, 1.0, 10.0]),
    far=st.sampled_from([0.0, 1.0, 500.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 999),
)
def test_on_a_cpu_every_dtype_is_as_near_as_content_alone(grid, strength, far, dtype, seed):
    """However sharp, long or far away: float32 sums of large terms were off by a hundredth, in float32 too."""
    (query, key, value, center), _, _ = problem(grid, 0, seed, torch.float32, width=32, batch=1)
    contents, center = [x.to(dtype) for x in (query, key, value)], far * center
    matrix = strength * torch.eye(len(grid)).expand(2, -1, -1)
    exact = [x.double() for x in contents]

    def error(found, expected):
        assert found.dtype is dtype
        return ((found.double() - expected).norm() / expected.norm()).item()

    expected = placed_attention(*exact, center.double(), matrix.double(), grid, return_weights=True)[0]
    found = error(placed_attention(*contents, center, matrix, grid), expected)
    # A few tenths of an ulp more where content alone happens to be rounded well.
    assert found <= 1.2 * error(attention(*contents), attention(*exact)) + 0.3 * torch.finfo(dtype).eps


@pytest.mark.parametrize("sharpness", [0.01, 1.0, 10.0])
def test_gradients_on_a_long_axis_are_those_of_float64(sharpness):
    grid, generator = (300,), torch.Generator().manual_seed(0)
    *contents, above = (torch.randn(1, 2, 300, 16, generator=generator) for _ in range(4))
    places = torch.randn(2, 1, generator=generator), torch.full((2,), sharpness)
    results = []
    for dtype in (torch.float32, torch.float64):
        inputs = [x.to(dtype).requires_grad_() for x in (*contents, *places)]
        results.append(torch.autograd.grad(placed_attention(*inputs, grid), inputs, above.to(dtype)))
    for found, expected in zip(*results, strict=True):
        assert found.dtype is torch.float32
        assert (found.double() - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_hidden_keys_stay_hidden_where_scores_of_positions_are_large(dtype, causal, own, monkeypatch):
    """Beyond 2²⁴ a hidden key beside the query won over the only visible one, which is far away."""
    if own:
        monkeypatch.setattr(_placed, "LARGEST_SCORE", {})
    (*contents, center), _, keep = problem((3000,), 0, 0, torch.float32, heads=1, width=8, batch=1)
    query, key, value = (x.to(dtype) for x in contents)
    keep.fill_(False)[0, 3] = True
    out = placed_attention(query, key, value, center, torch.tensor([10.0]), (3000,), keep=keep, causal=causal)
    assert torch.equal(out[:, :, 3:], value[:, :, 3:4].expand(-1, -1, 2997, -1))


HALVES = [torch.bfloat16, torch.float16]


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 3), min_size=0, max_size=2),
    long=st.integers(200, 3000),
    place=st.integers(0, 2),
    prefix=st.integers(0, 1),
    strength=st.sampled_from([1e-3, 0.1, 1.0]),
    beta=st.sampled_from([0.05, 0.125, 1.0, 30.0]),
    dtype=st.sampled_from(HALVES),
    seed=st.integers(0, 999),
)
def test_columns_of_long_axes_hold_the_scores(sizes, long, place, prefix, strength, beta, dtype, seed):
    """A few queries against every key: as near as float32, in which the kernel adds them up, could tell."""
    grid = (*sizes[:place], long, *sizes[place:])
    (_, _, _, center), sharpness, _ = problem(grid, 0, seed, heads=1, width=1, batch=1)
    sharpness = strength * sharpness
    ours, theirs = position_columns(center, sharpness, grid, prefix, beta, dtype)
    assert ours.dtype is theirs.dtype is dtype
    rows = torch.randint(0, math.prod(grid), (20,), generator=torch.Generator().manual_seed(seed))
    found = beta * ours[0, 0, prefix + rows].double() @ theirs[0, 0, prefix:].double().mT
    place = coordinates(grid, center)
    target = place[rows] + center
    distance = place - target[:, None]
    expected = -torch.einsum("qka,ab,qkb->qk", distance, sharpness[0], distance)
    if not prefix:
        expected += torch.einsum("qa,ab,qb->q", target, sharpness[0], target)[:, None]
    largest = largest_score(center, sharpness, grid).item()
    assert (found - expected).abs().max() <= 2.0**-21 * largest


@pytest.mark.usefixtures("in_own_dtype")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("grid", "prefix", "masked", "strength"),
    [((700,), 0, False, 0.3), ((2, 601), 1, True, 0.3), ((3000,), 0, True, 0.01)],
)
def test_half_precision_on_long_axes(grid, prefix, masked, strength, dtype):
    """The output and all gradients, against float64 on the same inputs."""
    (*contents, center), sharpness, keep = problem(grid, prefix, 0, torch.float32, heads=1, width=8, batch=1)
    contents, keep = [x.to(dtype) for x in contents], keep if masked else None
    above = torch.randn(contents[0].shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    results = []
    for wide in (None, torch.float64):
        inputs = [x.to(wide or dtype).requires_grad_() for x in contents]
        inputs += [x.to(wide or torch.float32).detach().requires_grad_() for x in (center, strength * sharpness)]
        out = placed_attention(*inputs, grid, prefix=prefix, keep=keep)
        results.append([out, *torch.autograd.grad(out, inputs, above.to(out.dtype))])
    for found, expected in zip(*results, strict=True):
        assert (found.double() - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_through_columns_of_several_digits(dtype):
    """The road of dropout and export: each digit of a coordinate returns its share to the coefficient."""
    grid, picked = (5000, 2), torch.tensor([0, 1, 777, 5000, 9000, 9999])
    (_, _, _, center), sharpness, _ = problem(grid, 0, 2, heads=1, width=1, batch=1)
    weight = torch.randn(6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    gradients = []
    for way in ("columns", "formula"):
        places = [x.detach().requires_grad_() for x in (center, 1e-3 * sharpness)]
        ours, theirs = position_columns(*places, grid, 1, 0.5, dtype)
        scores = 0.5 * ours[0, 0, 1 + picked].double() @ theirs[0, 0, 1 + picked].double().mT
        if way == "formula":
            place = coordinates(grid, center)[picked]
            away = place[None] - place[:, None] - places[0][:, None, None]
            scores = -torch.einsum("hqka,hab,hqkb->hqk", away, places[1], away)[0]
        gradients.append(torch.autograd.grad((scores * weight).sum(), places))
    for found, expected in zip(*gradients, strict=True):
        assert (found - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.usefixtures("in_own_dtype")
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("causal", [False, True])
def test_one_key_that_is_left_is_seen_from_everywhere(dtype, causal):
    """However far away it is, and however well a hidden one would fit; without a key to see there is nothing, and no NaN."""
    (query, key, value, center), _, keep = problem((40, 40), 0, 0, torch.float32, width=8, batch=1)
    contents = [(8 * x).to(dtype).requires_grad_() for x in (query, key)] + [value.to(dtype).requires_grad_()]
    keep.fill_(False)[0, 3] = True
    out = placed_attention(*contents, center, 3.0 * torch.ones(2), (40, 40), keep=keep, causal=causal)
    torch.testing.assert_close(out[:, :, 3:], value[:, :, 3:4].to(dtype).expand_as(out[:, :, 3:]), atol=0.0, rtol=0.0)
    assert causal == bool((out[:, :, :3] == 0).all())
    gradients = torch.autograd.grad(out.square().sum(), contents)
    assert all(x.isfinite().all() for x in gradients)


@pytest.mark.usefixtures("in_own_dtype")
def test_scores_that_float16_cannot_hold_are_refused():
    (query, key, value, center), _, _ = problem((3000,), 0, 0, torch.float16, heads=1, batch=1)
    with pytest.raises(
        ValueError, match=r"scores on grid \(3000,\) that float16 cannot hold with beta 0.5: use bfloat16"
    ):
        placed_attention(query, key, value, center.float(), torch.tensor([100.0]), (3000,))


@pytest.mark.usefixtures("in_own_dtype")
@pytest.mark.parametrize("sharpness", [0.01, 0.3, 10.0])
def test_half_precision_learns_positions_to_a_hundredth(sharpness, monkeypatch):
    """Through the columns the kernel's rounded gradient of scores meets absolute coordinates, and little of it is left."""
    grid = (24, 24)
    (query, key, value, center), _, _ = problem(grid, 0, 4, torch.float32, width=64, batch=1)
    half = [x.bfloat16() for x in (query, key, value)]
    above = torch.randn(value.shape, generator=torch.Generator().manual_seed(5)).bfloat16()

    def gradients(*contents, exact=False):
        matrix = sharpness * torch.eye(2).repeat(2, 1, 1)
        places = [(x.double() if exact else x).detach().requires_grad_() for x in (center, matrix)]
        out = placed_attention(*contents, *places, grid)
        return [x.double() for x in torch.autograd.grad(out, places, above.to(out.dtype))]

    def errors(found):
        return [((a - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True)]

    expected = gradients(*(x.double() for x in half), exact=True)
    assert max(errors(gradients(*half))) < 1e-3
    monkeypatch.setattr(_placed, "has_own_gradient", lambda *_: False)
    assert max(errors(gradients(*half))) > 1e-2


@pytest.mark.usefixtures("in_own_dtype")
@pytest.mark.parametrize("options", [{}, {"prefix": 2}, {"causal": True}])
def test_float32_learns_positions_on_a_long_axis(options, monkeypatch):
    """The fused kernel's own gradient of the sharpness is mostly rounding here, but for some widths and lengths."""
    grid, prefix = (128,), options.get("prefix", 0)
    generator = torch.Generator().manual_seed(0)
    query, key, value, above = (torch.randn(2, 2, prefix + 128, 8, generator=generator) for _ in range(4))
    places = torch.randn(2, 1, generator=generator), torch.rand(2, generator=generator) + 0.1

    def gradients(dtype):
        center, sharpness = (x.to(dtype).requires_grad_() for x in places)
        contents = [x.to(dtype) for x in (query, key, value)]
        out = placed_attention(*contents, center, sharpness, grid, **options)
        return torch.autograd.grad(out, (center, sharpness), above.to(dtype))

    def error():
        pairs = zip(gradients(torch.float32), gradients(torch.float64), strict=True)
        return max(((found - exact).norm() / exact.norm()).item() for found, exact in pairs)

    assert error() < 1e-5
    monkeypatch.setattr(_placed, "has_own_gradient", lambda *_: False)
    assert error() > 1e-4


@pytest.mark.usefixtures("in_own_dtype")
def test_gradients_of_positions_are_taken_beside_a_kernel_that_rounds_float32(monkeypatch):
    """As TF32 does: there the kernel's own gradient of the sharpness was off by several times."""
    (*contents, center), sharpness, _ = problem((5, 6), 1, 0)
    above = torch.randn(contents[2].shape, dtype=torch.float64)
    results, asked = [], []

    def rounded(query):
        asked.append(query.dtype)
        return query.dtype is torch.float32

    for module in (_placed, _place_columns):
        monkeypatch.setattr(module, "products_are_rounded", rounded)
    for dtype in (torch.float32, torch.float64):
        inputs = [x.to(dtype).detach().requires_grad_() for x in (*contents, center, sharpness)]
        out = placed_attention(*inputs, (5, 6), prefix=1)
        assert ("PlaceGradient" in type(out.grad_fn).__name__) is (dtype is torch.float32)
        results.append(torch.autograd.grad(out, inputs, above.to(dtype)))
    assert torch.float32 in asked
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=1e-3)


@settings(max_examples=15)
@any_problem
def test_gradients_beside_the_kernel_are_those_of_the_formula(grid, prefix, masked, causal, seed):
    """In float64, a few queries at a time."""
    grid, (contents, sharpness, keep) = tuple(grid), problem(grid, prefix, seed)
    *contents, center = contents
    places = [x.requires_grad_() for x in (center, sharpness)]
    keep[0] &= not masked
    keep = keep if masked else None
    expected = by_formula(*contents, *places, grid, prefix, keep, causal)
    above = torch.randn_like(expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_place_moments.CHUNK_BYTES, "cpu", 8 * 8 * 2 * 2 * expected.shape[2] * 3)
        out = _placed.PlaceGradient.apply(
            torch.zeros_like(expected), *places, *contents, keep, None, grid, prefix, 0.5, causal, None, None
        )
        found = torch.autograd.grad(out, places, above)
    for a, b in zip(found, torch.autograd.grad(expected, places, above), strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-6)


def test_class_tokens_are_weighed_against_the_grid():
    """Without the row's own term a key that has no position would win or lose everything."""
    (query, key, value, center), sharpness, _ = problem((5, 6), 1, 0)
    _, weights = placed_attention(query, key, value, center, sharpness, (5, 6), prefix=1, return_weights=True)
    out = placed_attention(query, key, value, center, sharpness, (5, 6), prefix=1)
    torch.testing.assert_close(out, weights @ value)
    assert 0.01 < weights[..., 1:, 0].mean().item() < 0.9


def test_full_covariance_takes_this_road_where_maps_would_not_fit(monkeypatch):
    (_, _, value, center), sharpness, _ = problem((7, 9), 0, 1)
    inputs = [x.requires_grad_() for x in (value, center, sharpness)]
    expected = gaussian_attention(*inputs, (7, 9))
    monkeypatch.setattr(_placed, "LARGE_MAPS", 1)
    found = gaussian_attention(*inputs, (7, 9))
    assert not found.equal(expected)  # another road
    torch.testing.assert_close(found, expected)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), inputs) for x in (found, expected)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


class TestLayer:
    def test_exchange_with_multi_head_attention(self):
        content = MultiHeadAttention(16, 4).eval()
        layer, x = PlacedAttention.from_multi_head(content, sharpness=1e-9), torch.randn(2, 21, 16)
        torch.testing.assert_close(layer(x, (4, 5), prefix=1), content(x), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(layer.to_multi_head()(x), content(x))

    def test_exchange_keeps_every_digit_and_what_is_frozen(self):
        content = MultiHeadAttention(16, 4).double()
        content.qkv.requires_grad_(False)
        there = PlacedAttention.from_multi_head(content)
        back = there.to_multi_head()
        for name, value in content.named_parameters():
            for made in (there, back):
                assert torch.equal(made.get_parameter(name), value)
                assert made.get_parameter(name).requires_grad == value.requires_grad

    def test_capture_sees_the_map(self):
        layer, x = PlacedAttention(16, 4, sharpness=0.5).eval(), torch.randn(2, 21, 16)
        out, weights = layer(x, (4, 5), prefix=1, return_weights=True)
        with regard.capture(layer) as maps:
            torch.testing.assert_close(layer(x, (4, 5), prefix=1), out, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(maps[-1].weights.float(), weights, atol=1e-5, rtol=1e-5)

    def test_every_parameter_learns(self):
        layer = PlacedAttention(16, 4)
        layer(torch.randn(2, 12, 16), (3, 4)).square().mean().backward()
        assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in layer.parameters())

    @pytest.mark.usefixtures("user_errors")
    def test_what_cannot_be_exchanged_is_refused(self):
        with pytest.raises(ValueError, match="layer must be self-attention"):
            PlacedAttention.from_multi_head(MultiHeadAttention(16, 4, key_value_heads=2))
        with pytest.raises(TypeError, match=r"layer must be a regard.MultiHeadAttention .*, got a MultiheadAttention"):
            PlacedAttention.from_multi_head(torch.nn.MultiheadAttention(16, 4))
        with pytest.raises(
            ValueError, match=r"query and key have 12 and 12 tokens, but prefix 1 and grid \(3, 4\) need 13"
        ):
            PlacedAttention(16, 4)(torch.randn(2, 12, 16), (3, 4), prefix=1)


@pytest.mark.parametrize("shape", [(1, 2, 12, 6), (2, 2, 12, 8), (1, 2, 12, 9)])
def test_a_key_of_another_shape_than_the_query_is_refused(shape):
    """Padded to one width, the columns of a narrower key would meet those of the query at other places."""
    query, value = torch.randn(1, 2, 12, 8), torch.randn(1, 2, 12, 4)
    with pytest.raises(ValueError, match=r"key must have query's shape \(1, 2, 12, 8\)"):
        _placed.check_placed(query, torch.randn(shape), value, torch.zeros(2, 2), (3, 4), 0, None, None)


@pytest.mark.usefixtures("user_errors")
@pytest.mark.parametrize("sharpness", [1e-3, 10.0])
def test_tensors_of_different_dtypes_are_refused(sharpness):
    query, value = torch.randn(1, 2, 12, 8), torch.randn(1, 2, 12, 8, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"query is torch.float32, but must be torch.float64 like value"):
        placed_attention(query, query, value, torch.zeros(2, 2), torch.full((2,), sharpness), (3, 4))


@pytest.mark.usefixtures("user_errors")
@pytest.mark.parametrize("shape", [(1, 2, 5, 4), (1, 1, 12, 4), (2, 2, 12, 4)])
def test_values_that_are_not_one_for_each_key_are_named_as_they_were_passed(shape):
    query = torch.randn(1, 2, 12, 8)
    with pytest.raises(
        ValueError, match=rf"value must be .* starting with \(1, 2, 12\) like key, got {re.escape(str(shape))}"
    ):
        placed_attention(query, query, torch.randn(shape), torch.zeros(2, 2), torch.ones(2), (3, 4))


@pytest.mark.parametrize("autocast", [False, True])
def test_the_map_in_half_precision_is_that_of_exact_scores(autocast):
    """Scores of positions that are all far from the center are large, and differ by less than half precision would leave."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 1, 64, 4, generator=generator).bfloat16() for _ in range(3))
    center, sharpness, grid = torch.tensor([[9.0, -5.0]]), torch.tensor([0.3]), (8, 8)
    exact = placed_attention(query.double(), key.double(), value.double(), center, sharpness, grid, return_weights=True)
    given = (query.float(), key.float(), value.float()) if autocast else (query, key, value)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = placed_attention(*given, center, sharpness, grid, return_weights=True)
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.dtype is torch.bfloat16
        torch.testing.assert_close(ours.double(), theirs, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("held", [math.nan, math.inf, 1e30, -1e9])
@pytest.mark.parametrize("prefix", [0, 2])
def test_what_hidden_keys_hold_has_no_effect(prefix, held):
    """Content beyond the number that lowers hidden keys took all the weight, and infinite content made every row NaN."""
    (query, key, value, center), sharpness, keep = problem((3, 4), prefix, 0, width=4)
    expected = placed_attention(query, key, value, center, sharpness, (3, 4), prefix=prefix, keep=keep)
    key, value = (x.masked_fill(~keep[:, None, :, None], held).requires_grad_() for x in (key, value))
    found = placed_attention(query, key, value, center, sharpness, (3, 4), prefix=prefix, keep=keep)
    torch.testing.assert_close(found, expected)
    for gradient in torch.autograd.grad(found.square().sum(), (key, value)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_the_map_of_centers_far_outside_is_that_of_exact_scores(causal, masked):
    """Scores of 40,000 differ by less than their own rounding in float32: weights were off by a hundredth."""
    inputs, _, keep = problem((8, 8), 0, 0, torch.float32, width=8)
    center, sharpness = torch.tensor([[200.0, 3.0], [-90.0, 180.0]]), torch.tensor([1.0, 0.05])
    options = {"keep": keep if masked else None, "causal": causal, "return_weights": True}
    found = placed_attention(*inputs[:3], center, sharpness, (8, 8), **options)
    exact = placed_attention(*(x.double() for x in inputs[:3]), center.double(), sharpness.double(), (8, 8), **options)
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize(("causal", "items"), [(False, 2), (True, 2), (True, 1)])
def test_captured_rows_that_see_nothing_are_zero(causal, items):
    """As the layer's own map has them: the kernel's has weights there, which zeros replace afterwards. If causal, also where
    only the first keys are hidden."""
    layer, x = PlacedAttention(16, 4).eval(), torch.randn(items, 13, 16)
    keep = torch.ones(items, 13, dtype=torch.bool)
    keep[0, :3], keep[1:] = False, False
    with torch.no_grad(), regard.capture(layer) as maps, regard.capture(layer, overview=4) as short:
        out = layer(x, (3, 4), prefix=1, keep=keep, causal=causal)
    expected, weights = layer(x, (3, 4), prefix=1, keep=keep, causal=causal, return_weights=True)
    torch.testing.assert_close(maps[0].weights, weights)
    torch.testing.assert_close(out, expected)
    assert not weights[1:].any()
    assert maps[0].agrees
    assert maps[0].grid == (3, 4)
    torch.testing.assert_close(short[0].per_key.received, weights.sum(2))
