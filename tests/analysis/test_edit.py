"""Edits of attention, against a layer that is written out by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regard


class ByHand(nn.Module):
    """Attention as its formula. ``hidden`` are the edges whose scores are −∞; ``weights`` replaces the map."""

    def __init__(self, dim=12, heads=3, kernel="hand", causal=False):
        super().__init__()
        self.heads, self.kernel, self.causal = heads, kernel, causal
        self.qkv, self.out_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.hidden, self.change = None, None

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = torch.ones(x.shape[1], x.shape[1]).tril().bool() if self.causal else None
        if self.kernel == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        elif self.kernel == "flex":
            from torch.nn.attention.flex_attention import flex_attention

            later = (lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf)) if self.causal else None
            mixed = flex_attention(q, k, v, score_mod=later)
        else:
            scores = q @ k.mT * q.shape[-1] ** -0.5
            scores = scores if seen is None else scores.masked_fill(~seen, -math.inf)
            if self.hidden is not None:
                scores = scores.masked_fill(self.hidden, -math.inf)
            weights = scores.softmax(-1)
            if self.hidden is not None:
                weights = weights.nan_to_num(0.0)
            if self.change is not None:
                weights = self.change(weights)
            mixed = weights @ v
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


def twins(kernel, causal, dtype):
    model, oracle = ByHand(kernel=kernel, causal=causal).to(dtype), ByHand(causal=causal).to(dtype)
    oracle.load_state_dict(model.state_dict())
    return model, oracle


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("kernel", ["hand", "sdpa", "flex"])
@given(
    queries=st.none() | st.sets(st.integers(-2, 4), min_size=1).map(sorted),
    keys=st.none() | st.sets(st.integers(0, 4), min_size=1).map(sorted),
    heads=st.none() | st.sets(st.integers(0, 2), min_size=1).map(sorted),
    causal=st.booleans(),
    double=st.booleans(),
)
@settings(max_examples=12)
@torch.no_grad()
def test_a_blocked_edge_is_a_score_of_minus_infinity(kernel, queries, keys, heads, causal, double):
    if queries is keys is heads is None:
        return
    dtype = torch.float64 if double else torch.float32
    model, oracle = twins(kernel, causal, dtype)
    x = torch.randn(2, 5, 12, dtype=dtype)
    oracle.hidden = torch.zeros(3, 5, 5, dtype=torch.bool)
    for q in range(5) if queries is None else queries:
        for k in range(5) if keys is None else keys:
            oracle.hidden[list(range(3)) if heads is None else heads, q, k] = True
    plain = model(x)
    with regard.edit(model, "ByHand", queries=queries, keys=keys, heads=heads):
        found = model(x)
    torch.testing.assert_close(found, oracle(x), atol=1e-6 if dtype is torch.float32 else 1e-12, rtol=1e-5)
    torch.testing.assert_close(model(x), plain)


class WithSink(nn.Module):
    """A learned sink takes a share of every row. Sigmoids share nothing."""

    def __init__(self, sigmoid=False):
        super().__init__()
        self.sigmoid, self.hidden = sigmoid, None

    def forward(self, x):
        scores = x @ x.mT
        if self.hidden is not None:
            scores = scores.masked_fill(self.hidden, -math.inf)
        if self.sigmoid:
            return scores.sigmoid() @ x
        sink = scores.new_full((*scores.shape[:-1], 1), 0.7)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ x


@torch.no_grad()
@pytest.mark.parametrize("sigmoid", [False, True])
def test_a_sink_keeps_its_place_in_the_softmax_and_sigmoids_share_nothing(sigmoid):
    model, x = WithSink(sigmoid), torch.randn(2, 3, 5, 4, dtype=torch.float64)
    with regard.edit(model, "*", keys=[1, 4], queries=slice(1, None)):
        found = model(x)
    model.hidden = torch.zeros(5, 5, dtype=torch.bool)
    model.hidden[1:, [1, 4]] = True
    torch.testing.assert_close(found, model(x))


class Composed(nn.Module):
    """A product of two maps, whose rows may have any sum."""

    hidden = None

    def forward(self, x):
        scores = x @ x.mT
        weights = scores.sigmoid() @ scores.softmax(-1)
        return (weights if self.hidden is None else weights.masked_fill(self.hidden, 0.0)) @ x


@torch.no_grad()
def test_what_is_left_of_a_product_of_maps_keeps_its_weights():
    model, x = Composed(), torch.randn(2, 3, 5, 4, dtype=torch.float64)
    with regard.capture(model) as maps:
        model(x)
    assert maps[0].kind == "composed"
    with regard.edit(model, "*", keys=[1, 4]):
        found = model(x)
    model.hidden = torch.tensor([False, True, False, False, True])
    torch.testing.assert_close(found, model(x))


def test_set_weights_are_those_of_the_formula():
    model, oracle = twins("sdpa", False, torch.float64)
    x, table = torch.randn(2, 5, 12, dtype=torch.float64), torch.rand(2, 2, 3, dtype=torch.float64) / 9

    def check(change, **options):
        oracle.change = change
        with regard.edit(model, "*", **options), regard.capture(model) as maps:
            found = model(x)
        torch.testing.assert_close(found, oracle(x))
        assert maps.residual < 1e-12  # the map inside the block is the edited one, and gives the output
        return maps[0].weights

    def one(weights):
        return weights.index_fill(-1, torch.tensor([1]), 0.25)

    def some(weights):
        weights = weights.clone()
        weights[:, [0, 2], 1:3, :3] = table[None, :, :, :].expand(2, -1, -1, -1)
        return weights

    check(one, keys=1, weights=0.25)
    # A number that float32 rounds is that number in double precision, as it is in the map.
    weights = check(lambda weights: weights.index_fill(-1, torch.tensor([1]), 0.7), keys=1, weights=0.7)
    assert weights[..., 1].unique().tolist() == [0.7]
    check(some, queries=slice(1, 3), keys=[0, 1, 2], heads=[0, 2], weights=table)
    check(lambda weights: weights.flip(-1), weights=lambda weights: weights.flip(-1))

    def rescaled(weights):
        others = weights.clone()
        others[..., 1] = 0
        others *= 0.75 / others.sum(-1, keepdim=True)
        others[..., 1] = 0.25
        return others

    weights = check(rescaled, keys=1, weights=0.25, renormalize=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 5, dtype=torch.float64))


@pytest.mark.parametrize("rows", [None, 2, [4, 1], slice(3, None)])
def test_a_function_sees_the_rows_that_its_edit_chose(rows):
    """All of them and no others, also if a capture wants some rows, and if another edit changes others."""
    model, oracle = twins("sdpa", False, torch.float64)
    x, shapes = torch.randn(2, 5, 12, dtype=torch.float64), []

    def turned(weights):
        shapes.append(tuple(weights.shape))
        return weights.flip(2)

    def change(weights):
        new = weights.clone()
        new[:, :, [1, 2]] = new[:, :, [2, 1]]
        new[:, :, 4] = torch.eye(5, dtype=torch.float64)[0]
        oracle.seen = new
        return new

    oracle.change = change
    first = torch.eye(5, dtype=torch.float64)[0]
    outer, inner = (
        regard.edit(model, "*", queries=slice(1, 3), weights=turned),
        regard.edit(model, "*", queries=4, weights=first),
    )
    with outer, inner, regard.capture(model, rows=rows) as maps:
        out = model(x)
    torch.testing.assert_close(out, oracle(x))
    chosen = slice(None) if rows is None else [rows] if isinstance(rows, int) else rows
    torch.testing.assert_close(maps[0].weights, oracle.seen[:, :, chosen])
    assert maps[0].agrees
    assert set(shapes) == {(2, 3, 2, 5)}


def test_the_map_of_another_run_takes_the_place_of_this_ones():
    model, oracle = twins("sdpa", False, torch.float64)
    x, other = torch.randn(2, 2, 5, 12, dtype=torch.float64)
    with regard.capture(model) as maps:
        model(other)
    oracle.change = lambda weights: torch.cat([maps[0].weights[:, :1], weights[:, 1:]], 1)
    with regard.edit(model, "*", heads=0, weights=maps):
        torch.testing.assert_close(model(x), oracle(x))
    with regard.capture(model, heads=[1]) as part:
        model(other)
    with pytest.raises(ValueError, match="no head 0"), regard.edit(model, "*", heads=0, weights=part):
        model(x)
    with pytest.raises(ValueError, match="not the one at position 5"), regard.edit(model, "*", weights=maps):
        model(torch.randn(2, 6, 12, dtype=torch.float64))


def test_gradients_flow_through_an_edited_map():
    model, oracle = twins("sdpa", True, torch.float64)
    x = torch.randn(1, 4, 12, dtype=torch.float64, requires_grad=True)
    oracle.hidden = torch.zeros(3, 4, 4, dtype=torch.bool)
    oracle.hidden[:, :, 1] = True
    with regard.edit(model, "*", keys=1):
        out = model(x)
    found, expected = torch.autograd.grad(out.sin().sum(), x)[0], torch.autograd.grad(oracle(x).sin().sum(), x)[0]
    torch.testing.assert_close(found, expected)


def test_nested_edits_apply_one_after_another():
    model, oracle = twins("sdpa", False, torch.float64)
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    oracle.hidden = torch.zeros(5, 5, dtype=torch.bool)
    oracle.hidden[:, 0] = oracle.hidden[2, :] = True
    with regard.edit(model, "*", keys=0), regard.edit(model, "*", queries=2):
        torch.testing.assert_close(model(x), oracle(x))


LAYERS = {
    "encoder": lambda: nn.TransformerEncoderLayer(12, 3, 16, batch_first=True),
    "own": lambda: regard.MultiHeadAttention(12, 3),
    "shared": lambda: regard.MultiHeadAttention(12, 4, key_value_heads=2, head_dim=3),
    "gaussian": lambda: regard.GaussianAttention(12, 4, axes=1),
}


@pytest.mark.parametrize("kind", list(LAYERS))
def test_any_layer_is_edited_and_its_map_shows_it(kind):
    model, x = LAYERS[kind]().double().eval(), torch.randn(2, 5, 12, dtype=torch.float64)
    with torch.no_grad():
        plain = model(x)
        with regard.edit(model, "*", keys=3) as edited, regard.capture(model) as maps:
            out = model(x)
        moved = x.clone()
        moved[:, 3] += 1
        with regard.edit(model, "*", keys=3):
            other = model(moved)
    kept = [0, 1, 2, 4]
    torch.testing.assert_close(out[:, kept], other[:, kept])  # nobody reads token 3
    assert not torch.allclose(out, plain)
    assert (maps[0].weights[..., 3] == 0).all()
    torch.testing.assert_close(maps[0].weights.sum(-1), torch.ones(1).double().expand(2, maps[0].shape[1], 5))
    assert maps.residual < 1e-12
    assert sum(edited.edges.values()) == maps[0].shape[1] * 5


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_positions_are_absolute_in_generate(transformers, implementation):
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, attn_implementation=implementation,
    )  # fmt: skip
    model, ids = transformers.LlamaForCausalLM(config).eval().double(), torch.randint(0, 50, (2, 6))
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with regard.edit(model, "*", queries=slice(7, None), keys=[2, 6]):
        cached = model.generate(ids, **options)
        whole = model.generate(ids, use_cache=False, **options)
        logits = model(cached[:, :-1]).logits
    assert torch.equal(cached, whole)
    assert torch.equal(cached[:, 6:], logits[:, 5:].argmax(-1))
    with torch.no_grad():
        moved = ids.clone()
        moved[:, 2] = (moved[:, 2] + 1) % 50
        with regard.edit(model, "*", keys=2):
            one, other = model(ids).logits, model(moved).logits
    torch.testing.assert_close(one[:, 3:], other[:, 3:])


def test_windows_are_edited_by_the_place_on_the_image(timm):
    model = timm.models.swin_transformer.SwinTransformer(
        16, 2, 3, 4, embed_dim=8, depths=(2,), num_heads=(2,), window_size=4
    )
    model, x = model.double().eval(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad(), regard.edit(model, "*", keys=[9, 20]), regard.capture(model) as maps:
        model(x)
    for found in maps.values():
        assert (found.weights[..., [9, 20]] == 0).all()
        assert found.residual < 1e-12


class Sparse(nn.Module):
    """Attention that capture does not understand."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            nearest = (self.q_proj(x) @ self.k_proj(x).mT).argmax(-1, keepdim=True)
            return self.v_proj(x).gather(1, nearest.expand_as(x))

    def __init__(self):
        super().__init__()
        self.attn = self.Attention()

    def forward(self, x):
        return self.attn(x)


def test_what_cannot_be_edited_says_so(user_errors):
    class Linear(nn.Module):
        def forward(self, q, k, v):
            return q.softmax(-1) @ (k.softmax(-2).mT @ v)

    with pytest.raises(ValueError, match="linear attention"), regard.edit(Linear(), "*", keys=0) as edited:
        edited.model(*torch.randn(3, 2, 2, 5, 4))
    with pytest.raises(ValueError, match=r"not edited: attn: .*no map"), regard.edit(Sparse(), "*", keys=0) as edited:
        edited.model(torch.randn(1, 3, 8))
    model, message = ByHand(kernel="sdpa"), "where='encoder' names no attention; there are ByHand"
    with pytest.raises(ValueError, match=message), regard.edit(model, "encoder", keys=0):
        model(torch.randn(1, 5, 12))


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_positions_are_those_of_the_sequence_in_any_cache(transformers, cache):
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    model, ids = transformers.GPT2LMHeadModel(config).eval().double(), torch.randint(0, 50, (2, 6))
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad(), regard.edit(model, "*", queries=slice(5, None), keys=[1, 6], heads=[0, 3]) as edited:
        cached = model.generate(ids, cache_implementation=cache, **options)
    with regard.edit(model, "*", queries=slice(5, None), keys=[1, 6], heads=[0, 3]):
        assert torch.equal(cached, model.generate(ids, use_cache=False, **options))
    assert set(edited.edges) == {"transformer.h.0.attn", "transformer.h.1.attn"}


def test_cross_attention_is_edited_by_the_places_of_both_sequences(transformers):
    config = transformers.BartConfig(
        vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=32, forced_eos_token_id=None,
    )  # fmt: skip
    model, ids = transformers.BartForConditionalGeneration(config).eval().double(), torch.randint(5, 50, (2, 7))
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad(), regard.edit(model, "*encoder_attn", queries=slice(2, None), keys=[0, 5]):
        cached = model.generate(ids, **options)
        assert torch.equal(cached, model.generate(ids, use_cache=False, **options))
        one = model(ids, decoder_input_ids=cached[:, :4]).logits
        with regard.capture(model, only="*encoder_attn") as maps:
            model(ids, decoder_input_ids=cached[:, :4])
    assert (maps[0].weights[:, :, 2:, [0, 5]] == 0).all()
    assert (maps[0].weights[:, :, :2, [0, 5]] > 0).all()
    assert one.shape[:2] == (2, 4)


def test_the_map_of_a_whole_generation_steers_another_one(transformers):
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    model, ids = transformers.GPT2LMHeadModel(config).eval().double(), torch.randint(0, 50, (1, 6))
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad(), regard.capture(model) as maps:
        text = model.generate(ids, **options)
    whole = maps.generation(text)
    with torch.no_grad(), regard.edit(model, "*", weights=whole), regard.capture(model) as after:
        assert torch.equal(model.generate(ids, **options), text)
    torch.testing.assert_close(after.generation(text)[0].weights, whole[0].weights)
