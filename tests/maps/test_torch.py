"""Capture on torch's own attention: kernels, masks, modes, the fast path."""

import math
import warnings

import pytest
import torch
import torch.nn.attention.bias
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention as early_name

import regard
from regard import reference


class Fused(nn.Module):
    """Calls the kernel with whatever it is given, under a name that was imported early."""

    def forward(self, q, k, v, **options):
        return early_name(q, k, v, **options)


def heads(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype)


def capture_one(model, *args, **kwargs):
    plain = model(*args, **kwargs)
    with regard.capture(model) as maps:
        out = model(*args, **kwargs)
    assert not maps.missed
    assert torch.equal(*(x[0] if isinstance(x, tuple) else x for x in (plain, out)))
    return maps


@given(
    batch=st.integers(1, 2),
    shared=st.integers(1, 2),
    group=st.integers(1, 2),
    queries=st.integers(1, 5),
    keys=st.integers(1, 5),
    mask=st.sampled_from(["none", "keep", "bias", "causal", "broadcast"]),
    scale=st.sampled_from([None, 0.3]),
)
def test_map_of_a_fused_kernel_is_the_formula(batch, shared, group, queries, keys, mask, scale):
    q = heads(batch, shared * group, queries, 4, dtype=torch.float64)
    k, v = (heads(batch, shared, keys, 4, dtype=torch.float64) for _ in range(2))
    options, keep, bias = {}, None, None
    if mask == "keep":
        keep = options["attn_mask"] = torch.rand(batch, 1, queries, keys) > 0.4
    elif mask == "broadcast":
        keep = torch.rand(batch, 1, 1, keys) > 0.4
        options["attn_mask"] = keep
    elif mask == "bias":
        bias = options["attn_mask"] = heads(queries, keys, dtype=torch.float64)
    elif mask == "causal":
        options["is_causal"] = True
        keep = torch.ones(queries, keys, dtype=torch.bool).tril()  # torch aligns at the start
    maps = capture_one(Fused(), q, k, v, scale=scale, enable_gqa=group > 1, **options)
    wide = [x.repeat_interleave(group, 1) for x in (k, v)]
    expected = reference.attention(q, *wide, beta=scale, keep=keep, bias=bias)[1]
    torch.testing.assert_close(maps["Fused"].weights, expected, atol=1e-12, rtol=0)
    assert maps["Fused"].residual < 1e-12
    assert maps["Fused"].weights.dtype is torch.float64


def test_the_logsumexp_of_the_kernel_is_compared_too():
    q, k, v = (heads(2, 3, 5, 8) for _ in range(3))
    with torch.no_grad():
        found = capture_one(Fused(), q, k, v)["Fused"]
    assert found.kernel == "_scaled_dot_product_flash_attention_for_cpu"
    assert found.logsumexp_residual < 1e-5
    with torch.inference_mode():  # there the call arrives at the dispatcher in one piece
        assert capture_one(Fused(), q, k, v)["Fused"].logsumexp_residual < 1e-5


def test_a_wrong_map_has_a_large_residual_and_is_warned_of(spoiled):
    q, k, v = (heads(2, 3, 5, 8) for _ in range(3))
    model = Fused()
    with pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model) as maps:
        model(q, k, v)
    assert maps[0].residual > 0.1
    assert not maps[0].agrees
    assert "does not agree" in str(maps)


def test_a_row_with_nothing_to_attend_to_is_zero():
    keep = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    keep[..., 1, :] = False
    found = capture_one(Fused(), *(heads(1, 2, 3, 4) for _ in range(3)), attn_mask=keep)["Fused"]
    assert found.weights[:, :, 1].abs().max() == 0
    assert found.agrees


def test_dropout_does_not_enter_the_map_and_random_numbers_are_not_used_up():
    q, k, v = (heads(2, 3, 6, 8) for _ in range(3))
    model = Fused()
    torch.manual_seed(3)
    plain = model(q, k, v, dropout_p=0.5)
    after = torch.rand(1)
    torch.manual_seed(3)
    with regard.capture(model) as maps:
        out = model(q, k, v, dropout_p=0.5)
    assert torch.equal(out, plain)
    assert torch.equal(torch.rand(1), after)
    assert maps[0].residual < 1e-5
    assert "without dropout" in maps[0].against
    torch.testing.assert_close(maps[0].weights, (q @ k.mT / math.sqrt(8)).softmax(-1))


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 2, 3, 5, 8)])
def test_any_number_of_leading_axes(shape):
    found = capture_one(Fused(), *(heads(*shape) for _ in range(3)))["Fused"]
    assert found.weights.ndim == 4
    assert found.weights.shape[-2:] == (5, 5)
    assert found.agrees


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_multihead_attention_in_every_mode(training, need_weights, grad):
    module = nn.MultiheadAttention(16, 4, batch_first=True).train(training)
    x = heads(2, 5, 16)
    with torch.set_grad_enabled(grad):
        maps = capture_one(module, x, x, x, need_weights=need_weights, average_attn_weights=False)
        expected = module(x, x, x, average_attn_weights=False)[1]
    found = maps["MultiheadAttention"]
    torch.testing.assert_close(found.weights, expected.detach())
    assert found.against == ("layer" if not training and not grad else "product" if need_weights else "kernel")
    assert found.agrees


def test_cross_attention_with_every_extra_of_multihead_attention():
    module = nn.MultiheadAttention(16, 4, kdim=6, vdim=10, add_bias_kv=True, add_zero_attn=True, dropout=0.3)
    q, k, v = heads(5, 2, 16), heads(7, 2, 6), heads(7, 2, 10)
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    module.eval()
    maps = capture_one(module, q, k, v, key_padding_mask=padding, average_attn_weights=False)
    assert maps[0].weights.shape == (2, 4, 5, 9)
    torch.testing.assert_close(
        maps[0].weights, module(q, k, v, key_padding_mask=padding, average_attn_weights=False)[1].detach()
    )
    module.train()
    torch.manual_seed(1)
    with regard.capture(module) as maps:
        _, dropped = module(q, k, v, average_attn_weights=False)
    assert (dropped == 0).any()  # torch returns what dropout left
    torch.testing.assert_close(maps[0].weights.sum(-1), torch.ones(2, 4, 5))
    assert maps[0].agrees


def encoder(norm_first=False, activation="relu"):
    layer = nn.TransformerEncoderLayer(
        16, 4, 24, dropout=0.1, batch_first=True, norm_first=norm_first, activation=activation
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)


MASKS = {
    "none": {},
    "causal": {"mask": nn.Transformer.generate_square_subsequent_mask(5), "is_causal": True},
    "padding": {"src_key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize(("norm_first", "activation"), [(False, "relu"), (True, "gelu")])
def test_the_fast_path_is_kept_and_checked_against_the_layer(mask, norm_first, activation):
    model, x = encoder(norm_first, activation).eval(), heads(2, 5, 16)
    with torch.no_grad():
        maps = capture_one(model, x, **MASKS[mask])
    assert list(maps) == ["layers.0.self_attn", "layers.1.self_attn"]
    for found in maps.values():
        assert found.against == "layer"
        assert found.kernel == "_transformer_encoder_layer_fwd"
        assert found.residual < 1e-5
    # The slow path computes the same maps, up to rounding.
    with regard.capture(model) as slow:
        model(x, **MASKS[mask])
    exists = slow.stack().sum(-1, keepdim=True) > 0
    if mask == "padding":
        exists = ~MASKS[mask]["src_key_padding_mask"][None, :, None, :, None].expand_as(exists)
    torch.testing.assert_close(maps.stack() * exists, slow.stack() * exists, atol=1e-5, rtol=1e-4)
    assert slow[0].against == "kernel"


@pytest.mark.parametrize("way", ["inference", "autocast", "bfloat16", "float64"])
def test_the_fast_path_in_every_type_and_in_inference_mode(way):
    dtype = {"bfloat16": torch.bfloat16, "float64": torch.float64}.get(way, torch.float32)
    model, x = encoder().eval().to(dtype), heads(2, 5, 16, dtype=dtype)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        maps = capture_one(model, x)
    assert [found.kernel for found in maps.values()] == ["_transformer_encoder_layer_fwd"] * 2
    assert all(found.agrees for found in maps.values())
    weights = maps.stack()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    first = model.layers[0].self_attn
    expected = first(x, x, x, average_attn_weights=False)[1]
    tolerance = {"float64": 1e-12, "inference": 1e-6}.get(way, 0.02)
    torch.testing.assert_close(maps[0].weights, expected.to(weights.dtype), atol=tolerance, rtol=0)


@pytest.mark.parametrize("queries", [3, 5])
@pytest.mark.parametrize("corner", ["causal_upper_left", "causal_lower_right"])
def test_a_mask_that_is_only_described(corner, queries):
    mask = getattr(torch.nn.attention.bias, corner)(queries, 5)
    q, k, v = heads(2, 3, queries, 8), heads(2, 3, 5, 8), heads(2, 3, 5, 8)
    found = capture_one(Fused(), q, k, v, attn_mask=mask)["Fused"]
    model = Fused()
    with torch.no_grad(), regard.capture(model) as dropped:
        model(q, k, v, attn_mask=mask, dropout_p=0.5)
    behind = 0 if corner == "causal_upper_left" else 5 - queries
    keep = torch.ones(queries, 5, dtype=torch.bool).tril(behind)
    weights = reference.attention(q, k, v, keep=keep)[1]
    for one in (found, dropped[0]):
        torch.testing.assert_close(one.weights, weights)
        assert one.agrees
    for _ in range(2):  # the first capture learns that the model is usual
        with torch.no_grad(), regard.capture(model, overview=128, keep_keys=True) as maps:
            model(q, k, v, attn_mask=mask)
        away = (torch.arange(5) - torch.arange(queries)[:, None] - behind).abs()
        torch.testing.assert_close(maps[0].per_query.distance, (weights * away).sum(-1))
        assert maps[0].latest.scores.keep is None  # a mask of all queries and keys is not formed


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_wrong_map_in_the_fast_path_is_noticed(spoiled):
    model = encoder().eval()
    for mask in MASKS.values():
        with torch.no_grad(), pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model) as maps:
            model(heads(2, 5, 16), **mask)
        assert maps[0].residual > 1e-3
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = heads(2, 5, 16)
    with torch.no_grad(), pytest.warns(UserWarning, match="do not reproduce"), regard.capture(layer, heads=[1]) as maps:
        layer(x, x, x)
    assert maps[0].residual > 1e-3


def test_training_the_encoder_keeps_its_random_numbers():
    model, x = encoder().train(), heads(2, 5, 16)
    torch.manual_seed(5)
    plain = model(x)
    torch.manual_seed(5)
    with regard.capture(model) as maps:
        out = model(x)
    assert torch.equal(out, plain)
    assert maps[0].agrees
    grads = [torch.autograd.grad(y.sum(), model.layers[0].linear1.weight)[0] for y in (plain, out)]
    assert torch.equal(*grads)


def test_the_decoder_attends_twice_in_each_layer():
    model = nn.Transformer(16, 2, 1, 1, 24, batch_first=True)
    with regard.capture(model) as maps:
        model(heads(1, 4, 16), heads(1, 3, 16))
    shapes = {name: found.shape for name, found in maps.items()}
    assert shapes == {
        "encoder.layers.0.self_attn": (1, 2, 4, 4),
        "decoder.layers.0.self_attn": (1, 2, 3, 3),
        "decoder.layers.0.multihead_attn": (1, 2, 3, 4),
    }


def test_autocast_is_compared_in_the_type_that_ran():
    q, k, v = (heads(1, 2, 6, 8) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        found = capture_one(Fused(), q, k, v)["Fused"]
    assert found.weights.dtype is torch.float32
    assert found.agrees
    assert found.residual < 0.05


def test_a_model_in_half_precision_gives_maps_in_float32():
    q, k, v = (heads(1, 2, 6, 8, dtype=torch.bfloat16) for _ in range(3))
    found = capture_one(Fused(), q, k, v)["Fused"]
    torch.testing.assert_close(found.weights, (q.float() @ k.float().mT / math.sqrt(8)).softmax(-1))
    assert found.agrees


def test_a_call_of_the_operator_itself_is_seen():
    class Direct(nn.Module):
        def forward(self, q):
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0]

    model, q = Direct(), heads(2, 3, 4, 8)
    with regard.capture(model) as maps:
        model(q)
    assert maps["Direct"].agrees
    assert maps["Direct"].logsumexp_residual < 1e-5
    torch.testing.assert_close(maps["Direct"].weights, (q @ q.mT * 8**-0.5).softmax(-1))


def test_what_has_no_values_is_missed_with_the_reason():
    model, q = Fused(), torch.randn(1, 2, 3, 4, device="meta")
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        model(q, q, q)
    assert "no values" in maps.missed[0].reason
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        torch.func.vmap(model)(*(heads(3, 2, 3, 4) for _ in range(3)))
    assert "vmap" in maps.missed[0].reason


def test_nested_tensors_outside_of_the_fast_path_are_missed_with_the_reason():
    model = Fused()
    ragged = torch.nested.nested_tensor([torch.randn(3, 2, 4), torch.randn(5, 2, 4)], layout=torch.jagged)
    q = ragged.transpose(1, 2)
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        model(q, q, q)
    assert "nested" in maps.missed[0].reason


class HeadsBeforeWindows(nn.Module):
    """Attention within windows, the heads before them: (batch, heads, windows, tokens, width), as Hiera and NesT do."""

    def __init__(self, heads, by_hand):
        super().__init__()
        self.num_heads, self.by_hand = heads, by_hand
        self.projection = nn.Linear(12, 3 * 12)

    def parts(self, x):
        batch, windows, tokens, _ = x.shape
        return self.projection(x).reshape(batch, windows, tokens, 3, self.num_heads, -1).permute(3, 0, 4, 1, 2, 5)

    def forward(self, x, keep=None):
        query, key, value = self.parts(x)
        if self.by_hand:
            out = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
        else:
            out = early_name(query, key, value, attn_mask=keep)
        return out.permute(0, 2, 3, 1, 4).flatten(3)


@pytest.mark.parametrize(
    ("heads", "by_hand", "masked"), [(1, False, False), (3, False, False), (3, False, True), (3, True, False)]
)
def test_heads_before_windows_are_heads_and_windows_count_to_the_batch(heads, by_hand, masked):
    model, x = HeadsBeforeWindows(heads, by_hand).eval(), torch.randn(2, 5, 4, 12)
    keep = torch.rand(1, 1, 5, 4, 4).gt(0.3) | torch.eye(4).bool() if masked else None
    arguments = (x,) if keep is None else (x, keep)
    with torch.no_grad():
        plain = model(*arguments)
        with regard.capture(model) as maps:
            assert torch.equal(model(*arguments), plain)
        query, key, _ = model.parts(x)
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = scores if keep is None else scores.masked_fill(~keep, -torch.inf)
        expected = scores.softmax(-1).transpose(1, 2).flatten(0, 1)  # (batch · windows, heads, tokens, tokens)
    assert maps[0].weights.shape == (10, heads, 4, 4)
    torch.testing.assert_close(maps[0].weights, expected)
    assert maps[0].residual < 1e-5


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("method", ["gate", "leave_out"])
def test_a_head_before_windows_is_changed_as_that_head(by_hand, method):
    model, x = HeadsBeforeWindows(3, by_hand).eval(), torch.randn(2, 5, 4, 12)

    def of_the_second(output, labels):
        return output[..., 4:8].square().flatten(1).sum(1)

    found = regard.analysis.importance(model, [(x, torch.zeros(2).long())], method=method, loss=of_the_second)
    (scores,) = found.scores.values()
    assert scores.shape == (3,)
    assert scores[1].abs() > 0.1
    assert (scores[[0, 2]] == 0).all()


@pytest.mark.parametrize("divided", [False, True])
def test_a_learned_sink_by_logsumexp_belongs_to_the_map(divided):
    class Sink(nn.Module):
        sink = torch.tensor([0.3, -1.0])[:, None]

        def forward(self, query, key, value):
            out, logsumexp = flex_attention(query, key, value, return_lse=True)
            if divided:
                return out / (1 + (self.sink - logsumexp).exp())[..., None]
            return out * (logsumexp - self.sink).sigmoid()[..., None]

    q, k, v = (torch.randn(2, 2, 16, 16) for _ in range(3))
    network = Sink()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with regard.capture(network) as maps:
            out = network(q, k, v)
        with regard.capture(network, rows=[3], heads=[1]) as part:
            network(q, k, v)
    scores = torch.cat([q @ k.mT / 4, network.sink[None, :, :, None].expand(2, 2, 16, 1)], -1)
    expected = scores.softmax(-1)[..., :-1]
    torch.testing.assert_close(maps["Sink"].weights, expected)
    torch.testing.assert_close(maps["Sink"].weights @ v, out)
    torch.testing.assert_close(part["Sink"].weights, expected[:, 1:, 3:4])


@pytest.mark.parametrize("heads", [[1, 0], [0, 0], [1], slice(None)])
def test_heads_in_any_order_agree_on_the_fast_path(heads):
    torch.manual_seed(0)
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 6, 8)
    with torch.no_grad(), regard.capture(layer) as whole:
        layer(x, x, x)
    with torch.no_grad(), regard.capture(layer, heads=heads) as maps:  # a warning would be an error here
        layer(x, x, x)
    assert maps[0].kind == "fast path"
    assert maps[0].agrees
    torch.testing.assert_close(maps[0].weights, whole[0].weights[:, heads])


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_sample_of_padding_alone_does_not_hide_the_heads_of_the_others(batch_first):
    """Torch computes NaN for it, and numbers for the others."""
    torch.manual_seed(0)
    layer, x = nn.MultiheadAttention(8, 2, batch_first=batch_first), torch.randn(3, 5, 8)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1], padding[2, 3:] = True, True
    given = x if batch_first else x.transpose(0, 1)
    with torch.no_grad(), pytest.warns(UserWarning, match="do not reproduce"), regard.capture(layer) as maps:
        _, weights = layer(given, given, given, key_padding_mask=padding, average_attn_weights=False)
    assert maps[0].axes == "known"
    assert weights[1].isnan().all()
    torch.testing.assert_close(maps[0].weights, weights, equal_nan=True)
