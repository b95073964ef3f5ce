"""attention: equal to its formula on both paths, values and gradients, for every β, mask, bias and kind of head."""

import math
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import reference
from regard.functional import _attention, attention
from regard.functional._attention import causal_keep

BETAS = (None, 0.0, 0.3, 5.0, math.inf, "tensor")


def random(*shape, dtype=torch.float64, grad=True):
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_(grad)


def repeated(x, heads):
    """Key or value heads, one for each query head."""
    return x if x.ndim < 3 or x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], -3)


@st.composite
def problems(draw):
    """Everything that attention takes, in float64 and differentiable."""
    ndim, queries, keys = draw(st.integers(2, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    shared, group = (draw(st.integers(1, 2)), draw(st.integers(1, 3))) if ndim > 2 else (1, 1)
    batch = (2,) if ndim == 4 else ()
    lead, lead_key = ((), ()) if ndim == 2 else ((*batch, shared * group), (*batch, shared))
    tensors = {
        "query": random(*lead, queries, 3),
        "key": random(*lead_key, keys, 3),
        "value": random(*lead_key, keys, draw(st.sampled_from([3, 4]))),
    }
    scores = (*lead, queries, keys)

    def mask_shape():
        whole = scores[-2:] if draw(st.booleans()) else scores
        return [size if draw(st.integers(0, 3)) else 1 for size in whole]

    options = {"causal": draw(st.booleans()), "beta": draw(st.sampled_from(BETAS))}
    if options["beta"] == "tensor":
        sizes = [n if draw(st.booleans()) else 1 for n in (*scores[:-1], 1)]
        options["beta"] = tensors["beta"] = torch.rand(sizes, dtype=torch.float64, requires_grad=True)
    if draw(st.booleans()):
        tensors["bias"] = random(*mask_shape(), grad=False)
        if draw(st.booleans()):
            tensors["bias"][torch.rand(tensors["bias"].shape) < 0.2] = -math.inf
        options["bias"] = tensors["bias"].requires_grad_()
    if draw(st.booleans()):
        options["keep"] = torch.rand(mask_shape()) < 0.7
    return tensors, options


@given(problems())
@settings(max_examples=150)
def test_both_paths_equal_the_reference_values_and_gradients(problem):
    tensors, options = problem
    query, key, value = (tensors[name] for name in ("query", "key", "value"))
    heads = query.shape[-3] if query.ndim > 2 else 1
    formula, formula_weights = reference.attention(query, repeated(key, heads), repeated(value, heads), **options)
    output, weights = attention(query, key, value, **options, return_weights=True)
    fused = attention(query, key, value, **options)
    torch.testing.assert_close(weights, formula_weights)
    torch.testing.assert_close(output, formula)
    torch.testing.assert_close(fused, formula)

    inputs, upstream = list(tensors.values()), torch.randn_like(formula)
    expected = torch.autograd.grad(formula, inputs, upstream)
    torch.testing.assert_close(torch.autograd.grad(output, inputs, upstream), expected)
    torch.testing.assert_close(torch.autograd.grad(fused, inputs, upstream), expected)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2), (torch.float16, 5e-3)])
@pytest.mark.parametrize("beta", [None, 0.0, math.inf, torch.tensor([[0.5]])])
@pytest.mark.parametrize("masked", [True, False])
def test_lower_precision_is_close_and_keeps_its_dtype(dtype, close, beta, masked):
    query, key, value = (
        random(2, 4, 6, 8, dtype=dtype),
        random(2, 2, 7, 8, dtype=dtype),
        random(2, 2, 7, 8, dtype=dtype),
    )
    options = {"bias": random(6, 7, dtype=dtype), "keep": torch.rand(6, 7) < 0.8} if masked else {}
    wide = {name: x.double() if name == "bias" else x for name, x in options.items()}
    formula, _ = reference.attention(
        query.double(), repeated(key.double(), 4), repeated(value.double(), 4), beta=beta, **wide
    )
    output, weights = attention(query, key, value, beta=beta, **options, return_weights=True)
    fused = attention(query, key, value, beta=beta, **options)
    for result in (output, fused):
        assert result.dtype == weights.dtype == dtype
        torch.testing.assert_close(result.double(), formula, atol=close, rtol=close)
    gradients = torch.autograd.grad(fused.sum(), (query, key, value))
    assert all(gradient.dtype == dtype for gradient in gradients)


@pytest.mark.parametrize("beta", [None, 0.0, math.inf])
@pytest.mark.parametrize("by", ["keep", "bias", "keep and bias", "causal"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("return_weights", [True, False])
def test_a_row_with_nothing_to_attend_gives_zeros_and_finite_gradients(beta, by, dtype, return_weights):
    query, key, value = (random(2, 2, n, 4, dtype=dtype) for n in (5, 3, 3))
    inputs, options = [query, key, value], {}
    if "keep" in by:
        options["keep"] = torch.ones(5, 3, dtype=torch.bool)
        options["keep"][0] = False
    if "bias" in by:
        bias = random(2, 1, 5, 3, dtype=dtype, grad=False)
        if by == "bias":
            bias[:, :, 0] = -math.inf
        options["bias"] = bias.requires_grad_()
        inputs.append(options["bias"])
    if by == "causal":
        options["causal"] = True  # the first two of five queries come before all three keys
    result = attention(query, key, value, beta=beta, **options, return_weights=return_weights)
    output, weights = result if return_weights else (result, None)
    assert (output[:, :, 0] == 0).all()
    assert (output[:, :, 2] != 0).any()
    if weights is not None:
        assert (weights[:, :, 0] == 0).all()
    gradients = torch.autograd.grad(output.square().sum(), inputs)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][:, :, 0] == 0).all()


@given(queries=st.integers(1, 5), keys=st.integers(1, 5), cached=st.integers(0, 4))
def test_causal_attention_with_a_cache_is_the_last_rows_of_the_whole(queries, keys, cached):
    tokens = queries + cached
    query, key, value = (random(1, 2, tokens, 3, grad=False) for _ in range(3))
    whole = attention(query, key, value, causal=True)
    torch.testing.assert_close(attention(query[:, :, cached:], key, value, causal=True), whole[:, :, cached:])
    assert torch.equal(causal_keep(queries, keys), reference.causal_keep(queries, keys))


def test_torch_is_met_where_both_align_and_not_where_its_causal_flag_aligns_at_the_start():
    query, key, value = random(2, 2, 3, 4), random(2, 2, 5, 4), random(2, 2, 5, 4)
    torch.testing.assert_close(attention(query, key, value), F.scaled_dot_product_attention(query, key, value))
    ours, theirs = (
        attention(query, key, value, causal=True),
        F.scaled_dot_product_attention(query, key, value, is_causal=True),
    )
    torch.testing.assert_close(theirs[:, :, 0], value[:, :, 0])  # torch: the first query sees the first key alone
    assert not torch.allclose(ours, theirs)
    torch.testing.assert_close(ours[:, :, -1], attention(query, key, value)[:, :, -1])  # ours: the last sees them all
    query = random(2, 2, 5, 4)
    torch.testing.assert_close(
        attention(query, key, value, causal=True), F.scaled_dot_product_attention(query, key, value, is_causal=True)
    )


class Attending(torch.nn.Module):
    def forward(self, query, key, value, **options):
        return attention(query, key, value, **options)


@settings(max_examples=25)
@given(
    lead=st.sampled_from([(), (3,), (2, 3)]),
    causal=st.booleans(),
    by=st.sampled_from(["keep", "bias", "both"]),
    shared=st.booleans(),
    dropout=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 999),
)
def test_rows_with_nothing_to_attend_are_zero_in_captured_maps_of_every_device(lead, causal, by, shared, dropout, seed):
    """Where a kernel may not give zeros, such rows see all keys, and captured maps showed even weights there."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(*lead, 5, 4, generator=generator, requires_grad=True) for _ in range(3))
    hidden = torch.rand((5, 5) if shared else (*lead, 5, 5), generator=generator) < 0.5
    hidden[..., 1, :], hidden[..., 3, :2] = True, False
    options = {"causal": causal}
    if by != "bias":
        options["keep"] = ~hidden
    if by != "keep":
        options["bias"] = torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)
    expected, weights = attention(query, key, value, **options, return_weights=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_attention, "_gives_zeros_without_keys", lambda _: False)
        model = Attending()
        with regard.capture(model) as maps:
            torch.manual_seed(seed)
            out = model(query, key, value, **options, dropout=dropout)
        torch.manual_seed(seed)
        torch.testing.assert_close(out, attention(query, key, value, **options, dropout=dropout))
    shown = maps[0].weights
    torch.testing.assert_close(shown.reshape(weights.shape), weights)
    assert not shown[..., 1, :].any()
    assert maps[0].agrees
    if not dropout:
        torch.testing.assert_close(out, expected)
        found, exact = (torch.autograd.grad(x.square().sum(), (query, key, value)) for x in (out, expected))
        for a, b in zip(found, exact, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.5, math.inf, None])
def test_no_keys_at_all_give_zeros(beta):
    query, key, value = random(1, 2, 3, 4), random(1, 2, 0, 4), random(1, 2, 0, 5)
    output, weights = attention(query, key, value, beta=beta, return_weights=True)
    assert (output == 0).all()
    assert weights.shape == (1, 2, 3, 0)
    assert (attention(query, key, value, beta=beta) == 0).all()


def test_the_worked_example_gives_the_numbers_computed_by_hand():
    example = reference.worked_example()
    query, key, value = (example.hidden @ w.T for w in (example.w_query, example.w_key, example.w_value))
    output, weights = attention(query, key, value, beta=math.inf, return_weights=True)
    assert (query @ key.T)[1].tolist() == [1054, 852, -396]
    assert output[1].tolist() == [23, 46]
    assert weights[1].tolist() == [1, 0, 0]
    assert attention(query, key, value, beta=math.inf)[1].tolist() == [23, 46]
    torch.testing.assert_close(attention(query, key, value, beta=1.0)[1], example.soft)


@pytest.mark.parametrize("return_weights", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_dropout_drops_its_share_of_weights_and_keeps_the_mean(return_weights, masked):
    # With unit vectors as values the output is the map itself, after dropout.
    query, key = random(4, 8, 16, 8, grad=False), random(4, 8, 32, 8, grad=False)
    value = torch.eye(32, dtype=torch.float64).expand(4, 8, 32, 32)
    bias = random(16, 32, grad=False) if masked else None
    options = {"beta": 0.1, "bias": bias}
    plain = attention(query, key, value, **options)
    result = attention(query, key, value, **options, dropout=0.25, return_weights=return_weights)
    output = result
    if return_weights:
        output, weights = result
        torch.testing.assert_close(weights, plain)  # the map is the one before dropout
    dropped = output == 0
    assert dropped.double().mean().item() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(output[~dropped], plain[~dropped] / 0.75)
    torch.manual_seed(1)
    again = attention(query, key, value, **options, dropout=0.25)
    torch.manual_seed(1)
    assert torch.equal(attention(query, key, value, **options, dropout=0.25), again)
    assert not torch.equal(attention(query, key, value, **options, dropout=0.25), again)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("beta", [2e4, 1e20, 1e38, 1e40])
def test_a_finite_beta_however_large_is_never_nan(beta, causal):
    query, key, value = random(2, 2, 5, 8), random(2, 2, 5, 8), random(2, 2, 5, 3)
    hard = attention(query, key, value, beta=math.inf, causal=causal)
    single = [x.float() for x in (query, key, value)]
    weighted, weights = attention(*single, beta=beta, causal=causal, return_weights=True)
    torch.testing.assert_close(attention(*single, beta=beta, causal=causal), hard.float())
    torch.testing.assert_close(weighted, hard.float())
    assert torch.equal(weights.sum(-1), torch.ones(2, 2, 5))
    given = torch.tensor(beta, dtype=torch.float64)
    torch.testing.assert_close(attention(*single, beta=given, causal=causal), hard.float())


@pytest.mark.parametrize("masked", ["keep", "bias"])
def test_a_large_beta_asks_for_the_best_of_what_may_be_attended(masked):
    query, key, value = torch.tensor([[1.0]]), torch.tensor([[9.0], [2.0], [1.0]]), torch.eye(3)
    keep = torch.tensor([[False, True, True]])
    mask = {"keep": keep} if masked == "keep" else {"bias": torch.zeros(1, 3).masked_fill(~keep, -math.inf)}
    assert attention(query, key, value, beta=1e39, **mask).tolist() == [[0.0, 1.0, 0.0]]


def test_a_beta_that_rounds_to_nothing_ignores_the_scores():
    query, key, value = random(1, 2, 4, 3).float(), random(1, 2, 4, 3).float(), random(1, 2, 4, 3).float()
    found = attention(query, key, value, beta=1e-50, causal=True)
    torch.testing.assert_close(found, attention(query, key, value, beta=0.0, causal=True))


def test_maps_in_float16_have_the_room_that_the_fused_kernel_has():
    x = (100 * random(1, 1, 8, 64)).half()
    output, weights = attention(x, x, x, return_weights=True)
    torch.testing.assert_close(output, attention(x, x, x))
    assert weights.dtype is torch.float16
    assert attention(x, x, x, beta=math.inf).isfinite().all()
    with torch.autocast("cpu", torch.float16):
        assert attention(x.float(), x.float(), x.float(), return_weights=True)[1].isfinite().all()


def test_gradients_forward_and_of_gradients():
    query, key, value = (random(1, 2, 3, 4).detach() for _ in range(3))

    def by_kernel(query):
        return attention(query, key, value, causal=True).square().sum()

    def by_hand(query):
        return attention(query, key, value, causal=True, return_weights=True)[0].square().sum()

    torch.testing.assert_close(torch.func.hessian(by_kernel)(query), torch.func.hessian(by_hand)(query))
    slope = torch.func.jvp(by_kernel, (query,), (key,))[1]
    torch.testing.assert_close(slope, (torch.func.grad(by_hand)(query) * key).sum())
    with torch.autograd.forward_ad.dual_level():
        dual = by_kernel(torch.autograd.forward_ad.make_dual(query, key))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, slope)


def test_a_temperature_per_member_of_a_batch_of_functions():
    query, key, value = (random(2, 3, 4).detach() for _ in range(3))
    beta = torch.rand(5, dtype=query.dtype)
    found = torch.func.vmap(lambda b: attention(query, key, value, beta=b, return_weights=True)[0])(beta)
    torch.testing.assert_close(found, torch.stack([attention(query, key, value, beta=b) for b in beta]))


def test_compiles_for_widths_that_change(user_errors):
    compiled = torch.compile(lambda q, k, v: attention(q, k, v), fullgraph=True, dynamic=True, backend="aot_eager")
    for width in (8, 12):
        query, key, value = random(2, 4, 5, width), random(2, 2, 5, width), random(2, 2, 5, width)
        torch.testing.assert_close(compiled(query, key, value), attention(query, key, value))


def test_compiles_as_one_graph(user_errors):
    query, key, value, bias = random(1, 4, 3, 4), random(1, 2, 5, 4), random(1, 2, 5, 4), random(3, 5)
    keep = torch.rand(3, 5) < 0.7
    keep[0] = False

    def everything(query, key, value, bias):
        fused = attention(query, key, value, bias=bias, keep=keep, causal=True)
        output, weights = attention(query, key, value, bias=bias, keep=keep, causal=True, return_weights=True)
        hard = attention(query, key, value, beta=math.inf, keep=keep)
        uniform = attention(query, key, value, beta=0.0, causal=True)
        return fused, output, weights, hard, uniform

    inputs = (query, key, value, bias)
    compiled, eager = torch.compile(everything, fullgraph=True, backend="aot_eager")(*inputs), everything(*inputs)
    torch.testing.assert_close(compiled, eager)
    torch.testing.assert_close(
        torch.autograd.grad(compiled[0].square().sum(), inputs), torch.autograd.grad(eager[0].square().sum(), inputs)
    )


def test_exports_for_any_batch_and_length(user_errors):
    class Attend(torch.nn.Module):
        def forward(self, query, key, value, keep):
            return attention(query, key, value, keep=keep), attention(query, key, value, keep=keep, return_weights=True)

    batch, queries, keys = (torch.export.Dim(name, min=2, max=64) for name in ("batch", "queries", "keys"))
    example = (*(random(3, 2, n, 4, grad=False) for n in (5, 6, 6)), torch.ones(3, 1, 5, 6, dtype=torch.bool))
    program = torch.export.export(
        Attend(),
        example,
        dynamic_shapes=(
            {0: batch, 2: queries},
            {0: batch, 2: keys},
            {0: batch, 2: keys},
            {0: batch, 2: queries, 3: keys},
        ),
    )
    other = (*(random(2, 2, n, 4, grad=False) for n in (7, 4, 4)), torch.rand(2, 1, 7, 4) < 0.5)
    torch.testing.assert_close(program.module()(*other), Attend()(*other))


AUTOCAST = """
import torch
from regard.functional import attention
torch.manual_seed(0)
query, key, value = (torch.randn(2, 2, 5, 8, requires_grad=True) for _ in range(3))
bias = torch.randn(5, 5, requires_grad=True)
keep = torch.ones(5, 5, dtype=torch.bool)
keep[0] = False
with torch.no_grad():
    expected = attention(query, key, value, bias=bias, keep=keep)
with torch.autocast("cpu", dtype=torch.bfloat16):
    for half in (query, query.to(torch.bfloat16)):  # as after a linear layer, while a normalized key stays float32
        fused = attention(half, key, value, bias=bias, keep=keep)
        output, weights = attention(half, key, value, bias=bias, keep=keep, return_weights=True)
        for result in (fused, output):
            torch.testing.assert_close(result.float(), expected, atol=5e-2, rtol=5e-2)
            gradients = torch.autograd.grad(result.float().square().sum(), (query, key, value, bias), retain_graph=True)
            assert all(gradient.isfinite().all() for gradient in gradients)
            assert (result[:, :, 0] == 0).all()
print("done", fused.dtype, output.dtype)
"""


def test_autocast():
    # In a process of its own: oneDNN reads the limit once, and without it bfloat16 kills some processors.
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", AUTOCAST], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "done torch.bfloat16 torch.bfloat16", done.stderr


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"query": [1.0]}, TypeError, r"query must be a tensor, got \[1.0\]"),
        ({"key": torch.ones(2, 4, 5, 3).long()}, TypeError, "key must be a floating-point tensor, got a int64"),
        ({"query": torch.ones(3)}, ValueError, r"query has shape \(3,\)"),
        ({"value": torch.ones(4, 5, 3)}, ValueError, r"value has shape \(4, 5, 3\); query, key and value must all be"),
        ({"key": torch.ones(2, 4, 5, 2)}, ValueError, "key has width 2 but query has width 3"),
        (
            {"key": torch.ones(2, 4, 6, 3)},
            ValueError,
            r"value has shape .* but key has shape \(2, 4, 6, 3\)",
        ),
        ({"query": torch.ones(3, 4, 6, 3)}, ValueError, "key has batch size 2 but query has 3"),
        ({"query": torch.ones(2, 6, 6, 3)}, ValueError, "key has 4 heads, which do not divide query's 6"),
        ({"key": torch.ones(2, 4, 5, 3).double()}, TypeError, "key is torch.float64 .* query is torch.float32"),
        ({"beta": -1.0}, ValueError, r"beta must lie in \[0, ∞\], got -1.0"),
        ({"beta": "1"}, TypeError, "beta must be a number in .* got '1'"),
        ({"beta": torch.tensor(math.inf)}, ValueError, "beta as a tensor must be finite"),
        ({"beta": torch.ones(4)}, ValueError, r"beta has shape \(4,\).*\(2, 4, 6, 1\)"),
        ({"keep": torch.ones(6, 5)}, TypeError, r"keep must be a boolean tensor \(True = attend\), got a float32"),
        ({"keep": torch.ones(2, 5, dtype=torch.bool)}, ValueError, r"keep has shape \(2, 5\).*shape \(6, 5\)"),
        ({"keep": torch.ones(4, 6, 5, dtype=torch.bool)}, ValueError, r"keep has shape \(4, 6, 5\).*it needs 4 axes"),
        ({"keep": torch.ones(2, 2, 6, 5, dtype=torch.bool)}, ValueError, r"keep has shape \(2, 2, 6, 5\)"),
        ({"keep": "causal"}, TypeError, "keep must be a tensor, got 'causal'"),
        (
            {"bias": torch.ones(5, 6)},
            ValueError,
            r"bias has shape \(5, 6\), .* scores of shape \(6, 5\)",
        ),
        ({"bias": torch.ones(6, 5, dtype=torch.bool)}, TypeError, "bias must be a floating-point tensor, got a bool"),
        ({"bias": torch.ones(6, 5).double()}, TypeError, r"bias is a float64 tensor.*pass bias.to\(query.dtype\)"),
        ({"dropout": 1.0}, ValueError, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"dropout": "none"}, TypeError, r"dropout must be a number in \[0, 1\), got 'none'"),
        ({"causal": "yes"}, TypeError, "causal must be True or False, got 'yes'"),
    ],
)
@pytest.mark.usefixtures("user_errors")
def test_bad_input_is_named(arguments, error, says):
    good = {"query": torch.ones(2, 4, 6, 3), "key": torch.ones(2, 4, 5, 3), "value": torch.ones(2, 4, 5, 3)}
    with pytest.raises(error, match=says):
        attention(**(good | arguments))
