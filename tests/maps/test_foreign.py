"""flex_attention, and stand-ins for flash_attn and xformers, which need other hardware than tests run on.

The stand-ins have the packages' module names and signatures and compute by the packages' documented formulas; what is
tested is that calls are seen, also through a reference that was taken early, and that maps follow those formulas.
"""

import inspect
import math
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import regard

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


class Calls(nn.Module):
    def __init__(self, function, **options):
        super().__init__()
        self.function, self.options = function, options

    def forward(self, *tensors):
        return self.function(*tensors, **self.options)


def causal(b, h, q, k):
    return q >= k


@pytest.mark.parametrize("kind", ["plain", "scores", "mask", "grouped", "lse"])
def test_flex_attention(kind):
    q, k, v = (torch.randn(2, 2 if kind == "grouped" and i else 4, 16, 8) for i in range(3))
    options, slopes = {}, torch.rand(4)
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / math.sqrt(8)
    if kind == "scores":
        options["score_mod"] = lambda score, b, h, i, j: score - slopes[h] * (i - j).abs()
        offset = torch.arange(16)[:, None] - torch.arange(16)
        scores = scores - slopes[:, None, None] * offset.abs()
    if kind == "mask":
        options["block_mask"] = create_block_mask(causal, None, None, 16, 16, device="cpu")
        scores = scores.masked_fill(torch.ones(16, 16).triu(1).bool(), -math.inf)
    if kind == "grouped":
        options["enable_gqa"] = True
    if kind == "lse":
        options["return_aux"] = flex_module.AuxRequest(lse=True)
    model = Calls(flex_attention, **options)
    with torch.no_grad():
        plain = model(q, k, v)
        with regard.capture(model) as maps:
            out = model(q, k, v)
    first = [x[0] if kind == "lse" else x for x in (plain, out)]
    assert torch.equal(*first)
    found = maps["Calls"]
    torch.testing.assert_close(found.weights, scores.softmax(-1), atol=1e-6, rtol=1e-5)
    assert (found.kernel, found.against) == ("flex_attention", "kernel")
    assert found.residual < 1e-5
    assert (found.logsumexp_residual is None) == (kind != "lse")
    assert found.logsumexp_residual is None or found.logsumexp_residual < 1e-4


def test_a_wrong_map_of_flex_attention_is_noticed(spoiled):
    model = Calls(flex_attention)
    with torch.no_grad(), pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model) as maps:
        model(*(torch.randn(1, 2, 16, 8) for _ in range(3)))
    assert maps[0].residual > 0.01


def test_flex_attention_is_itself_again_afterwards():
    before = flex_attention.__code__
    signature = inspect.signature(flex_attention)
    model = Calls(flex_attention)
    with torch.no_grad(), regard.capture(model):
        assert inspect.signature(flex_attention) == signature  # others ask it what it can do
        with pytest.raises(ValueError, match="Expect"):
            model(*(torch.randn(1, n, 4, 8) for n in (2, 3, 3)))
        model(*(torch.randn(1, 2, 4, 8) for _ in range(3)))
    assert flex_attention.__code__ is before
    assert "__signature__" not in vars(flex_attention)


def dense(q, k, v, scale, bias):
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * scale + bias
    empty = (scores == -math.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    return weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1), weights, scores.logsumexp(-1)


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False,
):  # fmt: skip
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    offset = torch.arange(k.shape[2]) - (torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2])
    bias = torch.zeros(q.shape[1], *offset.shape)
    if alibi_slopes is not None:
        bias = bias - alibi_slopes[:, None, None] * offset.abs()
    left, right = window_size
    right = 0 if causal else right
    if left >= 0:
        bias = bias.masked_fill(offset < -left, -math.inf)
    if right >= 0:
        bias = bias.masked_fill(offset > right, -math.inf)
    scale = softmax_scale or q.shape[-1] ** -0.5
    if softcap:
        raised = torch.tanh(q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * scale / softcap) * softcap + bias
        weights = raised.softmax(-1)
        out, lse = weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1), raised.logsumexp(-1)
    else:
        out, weights, lse = dense(q, k, v, scale, bias)
    if dropout_p:
        out = nn.functional.dropout(weights, dropout_p) @ v
    out = out.transpose(1, 2)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False):
    return flash_attn_func(*qkv.unbind(2), dropout_p, softmax_scale, causal)


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False
):
    parts = []
    for i in range(len(cu_seqlens_q) - 1):
        own, other = slice(*cu_seqlens_q[i : i + 2].tolist()), slice(*cu_seqlens_k[i : i + 2].tolist())
        parts.append(flash_attn_func(q[None, own], k[None, other], v[None, other], causal=causal)[0])
    return torch.cat(parts)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None):
    return flash_attn_func(q, k_cache, v_cache)


class LowerTriangularMask:
    def materialize(self, shape, dtype=torch.float32, device="cpu"):
        return torch.full(shape, -math.inf, dtype=dtype, device=device).triu(1)


def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None):
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    bias = 0.0 if attn_bias is None else attn_bias
    if isinstance(attn_bias, LowerTriangularMask):
        bias = attn_bias.materialize((*q.shape[:3], k.shape[2]))
    return dense(q, k, v, scale or q.shape[-1] ** -0.5, bias)[0].transpose(1, 2)


def copies(*functions):
    """Fresh functions, so that what a capture does to them is not done to these."""
    return {
        f.__name__: types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
        for f in functions
    }


@pytest.fixture
def flash(monkeypatch):
    package, module = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.flash_attn_interface")
    made = copies(flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func, flash_attn_with_kvcache)
    vars(module).update(made)
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.flash_attn_interface", module)
    return types.SimpleNamespace(**made)


@pytest.fixture
def xformers(monkeypatch):
    made = copies(memory_efficient_attention)
    made["memory_efficient_attention"].__kwdefaults__ = {"op": None, "output_dtype": None}
    for name in ("xformers", "xformers.ops", "xformers.ops.fmha"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    vars(sys.modules["xformers.ops.fmha"]).update(made)
    return types.SimpleNamespace(**made)


FLASH = {
    "plain": {},
    "scale": {"softmax_scale": 0.3},
    "causal": {"causal": True},
    "window": {"window_size": (1, 2)},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": torch.rand(4)},
    "lse": {"return_attn_probs": True},
}


@pytest.mark.parametrize("name", list(FLASH))
def test_flash_attention_stand_in(flash, name):
    q, k, v = torch.randn(2, 5, 4, 8), torch.randn(2, 6, 2, 8), torch.randn(2, 6, 2, 8)
    model = Calls(flash.flash_attn_func, **FLASH[name])
    plain = model(q, k, v)
    with regard.capture(model) as maps:
        out = model(q, k, v)
    assert torch.equal(*(x[0] if isinstance(x, tuple) else x for x in (plain, out)))
    found = maps[0]
    assert (found.kind, found.shape) == ("flash_attn", (2, 4, 5, 6))
    assert found.residual < 1e-5
    assert (found.logsumexp_residual is not None) == (name == "lse")
    assert found.agrees
    assert "flash_attn_func" in str(maps)


def test_flash_attention_stand_in_packed_and_of_several_lengths(flash):
    model = Calls(flash.flash_attn_qkvpacked_func, causal=True)
    with regard.capture(model) as maps:
        model(torch.randn(2, 5, 3, 4, 8))
    assert maps[0].shape == (2, 4, 5, 5)
    assert maps[0].agrees
    assert maps[0].weights.triu(1).abs().max() == 0

    model = Calls(flash.flash_attn_varlen_func, max_seqlen_q=4, max_seqlen_k=5, causal=True)
    lengths_q, lengths_k = torch.tensor([0, 4, 6]), torch.tensor([0, 5, 8])
    with regard.capture(model) as maps:
        model(torch.randn(6, 2, 8), torch.randn(8, 2, 8), torch.randn(8, 2, 8), lengths_q, lengths_k)
    assert maps[0].shape == (2, 2, 4, 5)
    assert maps[0].residual < 1e-5
    torch.testing.assert_close(
        maps[0].weights.sum(-1), torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])[:, None].repeat(1, 2, 1)
    )


def test_a_stand_in_of_another_version_with_its_arguments_in_another_order(monkeypatch):
    def newer(q, k, v, softmax_scale=None, causal=False, qv=None, window_size=(-1, -1)):
        return flash_attn_func(q, k, v, 0.0, softmax_scale, causal, window_size)

    newer.__name__ = "flash_attn_func"
    module = types.ModuleType("flash_attn_interface")
    module.flash_attn_func = newer
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    q, model = torch.randn(1, 5, 2, 8), Calls(newer)
    with regard.capture(model) as maps:
        model(q, q, q, 0.3, True)
    assert maps[0].residual < 1e-5
    assert maps[0].weights.triu(1).abs().max() == 0
    strange = Calls(newer, qv=q)
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(strange) as maps:
        strange(q, q, q)
    assert "called with qv" in maps.missed[0].reason


def test_a_function_with_free_variables_is_handed_over_too(flash, monkeypatch):
    calls = []

    def counted(q, k, v, causal=False):
        calls.append(causal)
        return flash_attn_func(q, k, v, causal=causal)

    monkeypatch.setattr(sys.modules["flash_attn.flash_attn_interface"], "flash_attn_func", counted)
    q, model = torch.randn(1, 5, 2, 8), Calls(counted, causal=True)
    code = counted.__code__
    with regard.capture(model) as maps:
        model(q, q, q)
    assert calls == [True]
    assert maps[0].agrees
    assert counted.__code__ is code
    model(q, q, q)
    assert calls == [True, True]


def test_dropout_of_the_flash_attention_stand_in_stays_out_of_the_map(flash):
    q = torch.randn(1, 5, 2, 8)
    model = Calls(flash.flash_attn_func, dropout_p=0.5)
    with regard.capture(model) as maps:
        model(q, q, q)
    assert maps[0].agrees
    assert "without dropout" in maps[0].against


def test_a_wrong_map_of_a_stand_in_is_noticed(flash, xformers, spoiled):
    q = torch.randn(1, 5, 2, 8)
    for function in (flash.flash_attn_func, xformers.memory_efficient_attention):
        model = Calls(function)
        with pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model) as maps:
            model(q, q, q)
        assert maps[0].residual > 0.01


def test_what_is_not_understood_is_missed_with_the_reason(flash):
    q = torch.randn(1, 5, 2, 8)
    model = Calls(flash.flash_attn_with_kvcache)
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        model(q, q, q)
    assert not maps
    assert "flash_attn_with_kvcache is not supported" in maps.missed[0].reason


@pytest.mark.parametrize("bias", [None, "tensor", "object"])
def test_xformers_stand_in(xformers, bias):
    q, k, v = torch.randn(2, 5, 4, 8), torch.randn(2, 6, 4, 8), torch.randn(2, 6, 4, 8)
    given = {"tensor": torch.randn(2, 4, 5, 6), "object": LowerTriangularMask()}.get(bias)
    model = Calls(xformers.memory_efficient_attention, attn_bias=given, scale=0.4)
    plain = model(q, k, v)
    with regard.capture(model) as maps:
        out = model(q, k, v)
    assert torch.equal(plain, out)
    assert (maps[0].kind, maps[0].shape) == ("xformers", (2, 4, 5, 6))
    assert maps[0].residual < 1e-5


def test_nested_captures_both_see_a_foreign_call(flash):
    q = torch.randn(1, 5, 2, 8)
    model = Calls(flash.flash_attn_func)
    with regard.capture(model) as outer, regard.capture(model) as inner:
        model(q, q, q)
    assert torch.equal(outer[0].weights, inner[0].weights)


@pytest.mark.slow
def test_compiled_flex_attention_keeps_its_kernel():
    compiled = torch.compile(flex_attention)
    model = Calls(compiled, block_mask=create_block_mask(causal, None, None, 16, 16, device="cpu"))
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    with torch.no_grad():
        plain = model(q, k, v)
        with torch.compiler.set_stance("fail_on_recompile"), regard.capture(model) as maps:
            out = model(q, k, v)
    assert torch.equal(out, plain)
    assert maps[0].residual < 1e-5
    assert not maps.notes
