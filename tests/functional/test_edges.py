"""Attention and softargmax at the edge of their dtypes: documented results, never NaN, the same with and without the map."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard import attention, gaussian_attention, softargmax
from regard.functional import axis_matrix, kronecker, shift_leak

HALF = torch.float16


def both(*inputs, **options):
    """With and without the map, which agree."""
    fused = attention(*inputs, **options)
    by_hand, weights = attention(*inputs, **options, return_weights=True)
    torch.testing.assert_close(fused, by_hand, atol=2e-3, rtol=2e-3)
    assert not weights.isnan().any()
    return fused


def test_without_keys_large_float16_queries_give_zeros():
    query = torch.full((1, 2, 3, 4), 6e4, dtype=HALF)
    key, value = torch.zeros(1, 2, 0, 4, dtype=HALF), torch.zeros(1, 2, 0, 5, dtype=HALF)
    for beta in (None, 1e6, torch.full((1,), 100.0)):
        assert (both(query, key, value, beta=beta) == 0).all()


@pytest.mark.parametrize(("size", "beta"), [(600.0, 500.0), (1.0, 9e4), (6e4, 6e4)])
def test_tensor_temperatures_may_overflow_float16(size, beta):
    query, key, value = (torch.randn(2, 3, 5, 4) for _ in range(3))
    query = query.clamp(-1, 1) * size
    found = both(query.to(HALF), key.to(HALF), value.to(HALF), beta=torch.full((3, 1, 1), beta))
    expected = attention(query.to(HALF).double(), key.to(HALF).double(), value.to(HALF).double(), beta=beta)
    torch.testing.assert_close(found.double(), expected, atol=2e-2, rtol=2e-2)


def test_temperature_zero_ignores_infinite_scores():
    query, key, value = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4)
    query[0, 0, 0, 0] = key[0, 0, 1, 2] = math.inf
    for beta in (0.0, torch.zeros(1)):
        torch.testing.assert_close(both(query, key, value, beta=beta), value.mean(-2, keepdim=True).expand(1, 1, 2, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_beyond_the_range(dtype):
    """The largest score wins, as in exact arithmetic."""
    large = torch.finfo(dtype).max ** 0.75
    query, key, value = (torch.randn(2, 2, 5, 4, dtype=dtype) for _ in range(3))
    expected = attention(query, key, value, beta=math.inf)
    torch.testing.assert_close(both(query * large, key * large, value), expected)


def test_infinite_entries_count_as_the_largest_number():
    query, key, value = torch.ones(1, 2), torch.tensor([[1.0, 0.0], [math.inf, 0.0], [2.0, 0.0]]), torch.eye(3)
    assert both(query, key, value).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("by", ["keep", "bias"])
@pytest.mark.parametrize("width", [8, 0])  # of queries and keys: 0 for attention by a bias alone
def test_what_hidden_keys_hold_has_no_effect(bad, by, width):
    query, key, value = (torch.randn(2, 3, 4, n, dtype=torch.float64) for n in (width, width, 8))
    keep = torch.ones(4, 4, dtype=torch.bool)
    keep[:, 1] = False
    mask = {"keep": keep} if by == "keep" else {"bias": torch.zeros(4, 4).double().masked_fill(~keep, -math.inf)}
    expected = attention(query, key, value, **mask)
    key[:, :, 1], value[:, :, 1] = bad, bad
    inputs = [x.requires_grad_() for x in (query, key, value)]
    found = both(*inputs, **mask)
    torch.testing.assert_close(found, expected)
    assert all(x[:, :, [0, 2, 3]].isfinite().all() for x in torch.autograd.grad(found.sum(), inputs))


def test_a_value_reaches_those_who_look_at_it_alone():
    query, key, value = torch.randn(2, 4), torch.randn(3, 4), torch.randn(3, 4)
    value[1] = math.nan
    keep = torch.tensor([[True, True, True], [True, False, True]])
    found = attention(query, key, value, keep=keep)
    assert found[0].isnan().all()
    assert found[1].isfinite().all()


def test_a_bias_of_infinity_takes_all_the_weight():
    bias = torch.tensor([[0.0, math.inf, math.inf]])
    assert both(torch.randn(1, 4), torch.randn(3, 4), torch.eye(3), bias=bias).tolist() == [[0.0, 0.5, 0.5]]


@pytest.mark.usefixtures("user_errors")  # signatures say float
@pytest.mark.parametrize("beta", [10**30, 10**400])
def test_integers_beyond_float_are_numbers_too(beta):
    query, key, value = (torch.randn(5, 4) for _ in range(3))
    torch.testing.assert_close(both(query, key, value, beta=beta), attention(query, key, value, beta=math.inf))
    assert softargmax(torch.tensor([1.0, 3.0, 2.0]), beta).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.usefixtures("user_errors")
def test_a_negative_integer_without_a_text():
    with pytest.raises(ValueError, match=r"beta must lie in \[0, ∞\]"):
        softargmax(torch.zeros(2), -(10**5000))


def test_empty_sequences_with_sliced_heads():
    full, empty, nobody = (
        torch.randn(2, 6, 5, 4)[:, ::2],
        torch.randn(2, 6, 0, 4)[:, ::2],
        torch.randn(0, 6, 5, 4)[:, ::2],
    )
    assert both(empty, full, full).shape == (2, 3, 0, 4)
    assert (both(full, empty, empty) == 0).all()
    assert both(nobody, nobody, nobody).shape == (0, 3, 5, 4)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0, math.inf, 1e30, torch.tensor([3e38]), torch.tensor([math.inf])])
def test_infinite_scores_share_the_weight(beta):
    scores = torch.tensor([1.0, math.inf, 2.0, math.inf], requires_grad=True)
    found = softargmax(scores, beta)
    assert found.tolist() == [0.0, 0.5, 0.0, 0.5]
    assert torch.autograd.grad(found.square().sum(), scores)[0].isfinite().all()


@pytest.mark.parametrize("beta", [0.0, torch.tensor([0.0])])
def test_temperature_zero_ignores_them(beta):
    assert softargmax(torch.tensor([1.0, math.inf]), beta).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hard_attention_with_an_infinite_bias(dtype, return_weights):
    """Of the best scores, those with a bias of +∞ share the weight; a worse score stays out whatever its bias is."""
    query = torch.ones(1, 1, 1, 2, dtype=dtype)
    key = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [0.0, 0.0]], dtype=dtype)[None, None]
    value = torch.eye(4, dtype=dtype)[None, None]
    bias = torch.tensor([math.inf, 0.0, math.inf, math.inf], dtype=dtype).view(1, 1, 1, 4)
    found = attention(query, key, value, beta=math.inf, bias=bias, return_weights=return_weights)
    found = found[0] if return_weights else found
    assert found.flatten().tolist() == [0.5, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_temperature_for_each_slice_is_that_temperature_however_far_scores_lie_apart(dtype):
    """Differences of scores leave the range, where β = 0 would make them NaN and a small β infinite."""
    most = torch.finfo(dtype).max
    scores = torch.tensor([[-most, 0.0, most / 2, most]], dtype=torch.float64).to(dtype)
    for beta in (0.0, 1 / most, 2 / most, 0.5, 1.0, 3.0, most, math.inf):
        found = softargmax(scores, torch.full((1, 1), beta, dtype=torch.float64).requires_grad_())
        torch.testing.assert_close(found.detach(), softargmax(scores, beta), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("small", [0.0, 1e-38])
def test_temperatures_may_take_queries_out_of_the_range_where_keys_are_small(dtype, small):
    query = torch.full((1, 2, 3, 4), torch.finfo(dtype).max, dtype=dtype)
    key, value = torch.full((1, 2, 5, 4), small, dtype=dtype), torch.randn(1, 2, 5, 4).to(dtype)
    found = both(query, key, value, beta=torch.full((2, 1, 1), 3.0))
    torch.testing.assert_close(found, value.mean(-2, keepdim=True).expand(found.shape), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_bias_may_fill_the_range_beside_large_scores(sign):
    most = torch.finfo(torch.float32).max
    query, key = torch.full((1, 1, 1, 1), sign * 1e-3), torch.full((1, 1, 3, 1), most / 2)
    value, bias = torch.randn(1, 1, 3, 4), torch.full((1, 1, 1, 3), sign * most)
    found = both(query, key, value, bias=bias)
    torch.testing.assert_close(found, value.mean(-2, keepdim=True))


def test_a_bias_that_is_learned_goes_through_vmap():
    query, key, value = torch.randn(3, 4, 2, 3, 5, 4).unbind()  # four items of two batches
    bias = torch.randn(3, 5, 5, requires_grad=True)
    call = lambda query, key, value: attention(query, key, value, bias=bias.expand(2, -1, -1, -1))  # noqa: E731
    found = torch.vmap(call)(query, key, value)
    expected = torch.stack([call(*item) for item in zip(query, key, value, strict=True)])
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(out.square().sum(), bias)[0] for out in (found, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("function", [regard.attention, regard.reference.attention])
def test_a_mask_of_padding_is_told_what_to_pass(function):
    """``(batch, keys)`` is not ``(queries, keys)``: the error names the axes to add."""
    x, keep = torch.randn(2, 3, 5, 4), torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"keep has shape \(2, 5\).*padding, pass keep\[:, None, None, :\]"):
        function(x, x, x, keep=keep)
    keep[1, 3:] = False
    hidden = x.clone()
    hidden[1, :, 3:] = 100.0  # what padding holds has no effect
    found = [function(x, y, y, keep=keep[:, None, None, :]) for y in (x, hidden)]
    outs = [each[0] if isinstance(each, tuple) else each for each in found]
    torch.testing.assert_close(*outs)
    with pytest.raises(ValueError, match=r"or 1$"):
        function(x, x, x, keep=torch.ones(3, 5, dtype=torch.bool))
    additive = regard.layers.AdditiveAttention(4, 4, 4)
    with pytest.raises(ValueError, match=r"padding, pass keep\[:, None, :\]"):
        additive(x[:, 0], x[:, 1], keep=keep)


@pytest.mark.parametrize("sharpness", [0.0, 1e-6, 1.0, 3e38])
@pytest.mark.parametrize("center", [1e30, -1e36, 3e38])
def test_centers_of_any_size_give_no_nan(center, sharpness):
    """A target so far away that its distance times a step is infinite: with sharpness 0, that was 0 · ∞."""
    place, alpha = torch.tensor([[center]], requires_grad=True), torch.tensor([sharpness], requires_grad=True)
    out = gaussian_attention(torch.arange(2000.0).reshape(1, 1, 2000, 1), place, alpha, (2000,))
    expected = torch.full_like(out, 999.5 if not sharpness else 1999.0 if center > 0 else 0.0)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    assert place.grad.isfinite().all()
    assert not alpha.grad.isnan().any()  # at sharpness 0 it is beyond the largest float32


@pytest.mark.parametrize("beta", [1e6, torch.tensor([1e6])])
def test_temperatures_beyond_float16_are_not_cut_to_its_largest_number(beta):
    """Scores that differ by 5e-5, times 10⁶: the larger one takes all the weight. Times 65,504 it took 0.97."""
    scores = torch.tensor([1e-4, 5e-5], dtype=HALF, requires_grad=True)
    weights = softargmax(scores, beta)
    assert weights.tolist() == [1.0, 0.0]
    assert torch.autograd.grad(weights[0], scores)[0].isfinite().all()


def test_a_mask_of_items_and_keys_is_refused_with_advice():
    query, key = torch.randn(3, 2, 4, 8), torch.randn(3, 2, 5, 8)
    with pytest.raises(ValueError, match=r"scores of shape \(4, 5\).* two axes are .*pass keep\[:, None, None, :\]"):
        attention(query, key, key, keep=torch.ones(3, 5, dtype=torch.bool))


@pytest.mark.parametrize("sharpness", [1e-5, 2.0])
def test_no_intermediate_of_narrow_heads_is_much_larger_than_their_values(sharpness):
    """The backward pass formed one matrix of an axis for each row of a tile, before it added them up."""
    value, center, sharpness = torch.randn(1, 1, 160 * 160, 1), torch.randn(1, 2), torch.full((1,), sharpness)
    inputs, sizes = [x.requires_grad_() for x in (value, center, sharpness)], []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            sizes.append(out.untyped_storage().nbytes() if isinstance(out, torch.Tensor) else 0)
            return out

    out = gaussian_attention(*inputs, (160, 160))
    with Sizes():
        torch.autograd.grad(out, inputs, torch.ones_like(out))
    assert 0 < max(sizes) <= 2 * value.nbytes


@pytest.mark.usefixtures("user_errors")
@pytest.mark.parametrize("alphas", [[math.nan], [1.0, -1.0], [None], [[1.0]], None, 1.0, "x", torch.ones(2)])
def test_shift_leak_names_what_is_no_sharpness(alphas):
    """Of NaN, the sum never ended."""
    with pytest.raises((TypeError, ValueError), match="alphas must be numbers of 0 or more, one for each axis, got"):
        shift_leak(alphas)


@pytest.mark.usefixtures("user_errors")
@pytest.mark.parametrize(
    "matrices", [[], None, torch.ones(1, 2, 2), [1.0], [torch.ones(2, 2)], [torch.ones(1, 2, 2), torch.ones(3, 2, 2)]]
)
def test_kronecker_names_what_are_no_axis_matrices(matrices):
    with pytest.raises((TypeError, ValueError), match=r"matrices must be \(heads, outputs, inputs\) for each axis"):
        kronecker(matrices)


@pytest.mark.usefixtures("user_errors")
def test_axis_matrix_names_targets_that_do_not_fit():
    for target in (math.nan, math.inf):
        with pytest.raises(ValueError, match="targets must be finite"):
            axis_matrix(torch.tensor([[target]]), torch.ones(1), 3)
    with pytest.raises(ValueError, match="sharpness is on meta but targets is on cpu"):
        axis_matrix(torch.ones(1, 1), torch.ones(1, device="meta"), 3)
