"""Maps and overviews by the kernels, on a GPU. CI has none; run with REGARD_TYPECHECK=0 where beartype is absent."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard

pytestmark = pytest.mark.gpu


class Attention(nn.Module):
    """Attention by torch's fused kernel; ``options`` are its own."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **self.options)


def dense(query, key, **options):
    """The weights in float64, on the CPU."""
    query, key = query.cpu().double(), key.cpu().double().repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = options.get("scale", query.shape[-1] ** -0.5) * query @ key.mT
    if options.get("is_causal"):
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    if "attn_mask" in options:
        scores = scores.masked_fill(~options["attn_mask"].cpu(), -torch.inf)
    return scores.softmax(-1)


def tensors(dtype, tokens=(70, 70), heads=4, shared=4, width=40):
    shapes = (2, heads, tokens[0], width), (2, shared, tokens[1], width), (2, shared, tokens[1], width)
    return [torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes]


CASES = {
    "plain": ({}, {}),
    "causal": ({"is_causal": True}, {}),
    "more keys than queries": ({}, {"tokens": (33, 300)}),
    "a scale, and keys that heads share": ({"scale": 0.3, "enable_gqa": True}, {"shared": 2}),
    "padding": ({"attn_mask": torch.arange(70) < torch.tensor([40, 70])[:, None, None, None]}, {}),
    "wide heads": ({"is_causal": True}, {"width": 128}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_weights(case, dtype):
    options, shapes = CASES[case]
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    inputs = tensors(dtype, **shapes)
    layer = Attention(**options)
    with torch.no_grad(), regard.capture(layer, dtype=dtype) as maps:
        layer(*inputs)
    (found,) = maps.values()
    assert found.agrees
    assert not maps.records[0].remarks
    atol = {torch.float32: 2e-3, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]  # float32 products may be TF32
    torch.testing.assert_close(found.weights.cpu().double(), dense(*inputs[:2], **options), atol=atol, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_overview(case, dtype):
    options, shapes = CASES[case]
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    inputs = tensors(dtype, **shapes)
    layer = Attention(**options)
    with torch.no_grad(), regard.capture(layer, overview=8) as maps:
        layer(*inputs)
    (found,) = maps.values()
    assert found.agrees
    assert not maps.records[0].remarks
    weights = dense(*inputs[:2], **options)
    overview = maps.records[0].overview
    height, width = overview.cell
    pad = (0, -weights.shape[3] % width, 0, -weights.shape[2] % height)
    cells = F.pad(weights, pad).unflatten(3, (-1, width)).unflatten(2, (-1, height))
    atol = 1e-3 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(overview.mass.cpu().double(), cells.sum((3, 5)), atol=height * atol, rtol=2e-2)
    torch.testing.assert_close(overview.largest.cpu().double(), cells.amax((3, 5)), atol=atol, rtol=2e-2)
    received = overview.per_key.received.cpu().double()
    torch.testing.assert_close(received, weights.sum(2), atol=70 * atol, rtol=2e-2)
    entropy = overview.per_query.entropy.cpu().double()
    torch.testing.assert_close(entropy, torch.special.entr(weights).sum(-1), atol=20 * atol, rtol=2e-2)


@pytest.mark.parametrize("rows", [None, -1, slice(3, 40), [0, 7]])
@pytest.mark.parametrize("tokens", [64, 70])
def test_calls_like_earlier_ones(rows, tokens, monkeypatch):
    """From the second pass on a call is recognized, and its map is written in short: the same map, residual and row. Its kernel
    computes the logsumexp itself, so weights differ by rounding."""
    took = []
    quick = regard.maps.repeats._quick_calls.QuickCalls
    original = quick.take
    monkeypatch.setattr(quick, "take", lambda self, *call: took.append(original(self, *call)) or took[-1])
    layer = regard.MultiHeadAttention(64, 4).cuda().bfloat16()
    inputs = [torch.randn(2, tokens, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    passes = []
    for x in inputs:
        with torch.no_grad(), regard.capture(layer, rows=rows) as maps:
            layer(x)
        (found,) = maps.values()
        assert found.agrees
        passes.append((found.weights, found.residual, maps.records[0].rows))
    assert any(took) == (not isinstance(rows, list))  # rows with gaps are taken the whole way
    plans = [plan for plan in regard.maps.repeats._quick_calls._plans.values() if plan.shape[3] == tokens]
    assert isinstance(rows, list) or any(plan.alone and plan.kernels for plan in plans)
    monkeypatch.setattr(quick, "take", lambda self, *call: False)
    monkeypatch.setattr(quick, "kernels_without_logsumexp", lambda self, *call: None)
    for x, (weights, residual, chosen) in zip(inputs, passes, strict=True):
        with torch.no_grad(), regard.capture(layer, rows=rows) as maps:
            layer(x)
        (found,) = maps.values()
        torch.testing.assert_close(found.weights, weights, atol=1e-5, rtol=1e-3)
        assert found.residual == pytest.approx(residual, abs=1e-3)
        assert maps.records[0].rows == chosen
