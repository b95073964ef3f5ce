"""Rollout, relevance, entropy and distance."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard.analysis import distance, entropy
from regard.maps import AttentionRecord, Layout, Map, Maps


def maps_of(*tensors, **more):
    return Maps([Map(f"layer.{i}", [AttentionRecord.given(w, **more)]) for i, w in enumerate(tensors)])


@given(
    layers=st.integers(1, 4),
    batch=st.integers(1, 2),
    tokens=st.integers(1, 6),
    fusion=st.sampled_from(["mean", "max", "min"]),
    discard=st.sampled_from([0.0, 0.3, 0.9]),
    identity=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_rollout_is_row_stochastic_and_is_the_product(layers, batch, tokens, fusion, discard, identity):
    weights = [torch.randn(batch, 3, tokens, tokens, dtype=torch.float64).softmax(-1) for _ in range(layers)]
    found = regard.rollout(maps_of(*weights), fusion=fusion, discard=discard, identity=identity)
    assert found.shape == (batch, tokens, tokens)
    torch.testing.assert_close(found.sum(-1), torch.ones(batch, tokens, dtype=torch.float64))
    assert found.min() >= 0
    expected = torch.eye(tokens, dtype=torch.float64)
    for w in weights:
        fused = {"mean": w.mean(1), "max": w.amax(1), "min": w.amin(1)}[fusion]
        smallest = fused.sort(-1).indices[..., : int(tokens * discard)]
        fused = fused.scatter(-1, smallest, 0.0)
        fused = fused / fused.sum(-1, keepdim=True)
        expected = (identity * torch.eye(tokens, dtype=torch.float64) + (1 - identity) * fused) @ expected
    torch.testing.assert_close(found, expected.expand_as(found), atol=1e-14, rtol=1e-13)


@pytest.mark.parametrize(
    ("tokens", "discard", "count"), [(100, 0.29, 29), (200, 0.58, 116), (10, 0.25, 2), (10, 0.99, 9)]
)
def test_rollout_discards_the_stated_share(tokens, discard, count):
    """0.29 · 100 is a little less than 29 in floating point."""
    weights = torch.randn(1, 1, tokens, tokens, dtype=torch.float64).softmax(-1)
    found = regard.rollout([weights], discard=discard, identity=0.0)
    assert (found == 0).sum(-1).unique().tolist() == [count]


def test_rollout_carries_a_row_without_attention_by_the_skip_connection():
    weights = torch.full((1, 1, 2, 2), 0.5)
    weights[:, :, 1] = 0
    torch.testing.assert_close(regard.rollout([weights])[0, 1], torch.tensor([0.0, 1.0]))


def test_rollout_refuses_what_cannot_be_rolled_out():
    square, cross, other = torch.rand(1, 1, 3, 3), torch.rand(1, 1, 3, 4), torch.rand(1, 1, 4, 4)
    with pytest.raises(ValueError, match=r"'layer\.1' has 3 queries and 4 keys"):
        regard.rollout(maps_of(square, cross))
    with pytest.raises(ValueError, match="same tokens in every layer"):
        regard.rollout(maps_of(square.softmax(-1), other.softmax(-1)))
    with pytest.raises(ValueError, match="empty"):
        regard.rollout(Maps())
    with pytest.raises(ArithmeticError, match="not row-stochastic"):
        regard.rollout([torch.full((1, 1, 2, 2), math.nan)])


def by_name(**weights):
    return Maps(Map(name.replace("__", "."), [AttentionRecord.given(w)]) for name, w in weights.items())


@pytest.mark.parametrize("source", [3, 4])  # as long as the target, and not
def test_rollout_of_an_encoder_decoder_is_in_its_order(source):
    torch.manual_seed(0)
    maps = by_name(
        encoder__0__self_attn=torch.rand(2, 2, source, source),
        encoder__1__self_attn=torch.rand(2, 2, source, source),
        decoder__0__self_attn=torch.rand(2, 2, 3, 3).tril(),
        decoder__0__encoder_attn=torch.rand(2, 2, 3, source),
        decoder__1__self_attn=torch.rand(2, 2, 3, 3).tril(),
        decoder__1__encoder_attn=torch.rand(2, 2, 3, source),
    )
    one, two, own, cross, own2, cross2 = (
        w / w.sum(-1, keepdim=True) for w in (found.weights.mean(1) for found in maps.values())
    )
    half, eye, target = 0.5, torch.eye(source), torch.eye(3)
    encoded = (half * eye + half * two) @ (half * eye + half * one)
    text, read = target.expand(2, 3, 3), torch.zeros(2, 3, source)
    for a, c in ((own, cross), (own2, cross2)):
        text, read = (half * target + half * a) @ text, (half * target + half * a) @ read
        text, read = half * text, half * read + half * c @ encoded
    found = regard.rollout(maps)
    torch.testing.assert_close(found, torch.cat([read, text], 2))
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 3))
    with pytest.raises(ValueError, match="is cross-attention"):
        regard.rollout(maps["decoder*"] if source == 3 else maps["decoder.0.enc*"])


def test_rollout_never_multiplies_two_towers():
    weights = torch.full((1, 2, 3, 3), 1 / 3)
    towers = by_name(vision__layers__0__attn=weights, text__layers__0__attn=weights)
    with pytest.raises(ValueError, match=r"2 stacks .* maps\[\"vision\.layers\.\*\"\]"):
        regard.rollout(towers)
    assert not regard.show(towers).payload.meta["rollout"]
    torch.testing.assert_close(regard.rollout(towers["text.*"]), regard.rollout([weights]))


class Shared(nn.Module):
    """One layer, used several times, as in ALBERT."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([regard.MultiHeadAttention(8, 2), regard.MultiHeadAttention(8, 2)])

    def forward(self, x):
        for _ in range(3):
            for layer in self.layers:
                x = x + layer(x)
        return x


def test_rollout_takes_all_calls_of_a_shared_layer_and_only_the_last_run(tmp_path):
    model = Shared()

    def run(model, x):  # takes the model as its first argument, but is no method of it
        for sample in x:
            model(sample)

    with torch.no_grad(), regard.capture(model) as maps:
        run(model, torch.randn(2, 1, 5, 8))
    calls = [maps[name].calls[3 + i].weights for i in range(3) for name in ("layers.0", "layers.1")]
    torch.testing.assert_close(regard.rollout(maps), regard.rollout(calls))
    maps.save(tmp_path / "maps.safetensors")
    torch.testing.assert_close(regard.rollout(Maps.load(tmp_path / "maps.safetensors")), regard.rollout(calls))
    assert not regard.show(maps).payload.meta["rollout"]


def test_some_maps_may_be_passed_as_a_list():
    torch.manual_seed(0)
    each = [Map(name, [AttentionRecord.given(torch.rand(1, 2, 6, 6).softmax(-1), name)]) for name in ("a", "b", "c")]
    some, listed = Maps(each[:2]), each[:2]
    assert torch.equal(regard.rollout(listed), regard.rollout(some))
    segments = [("text", 2), ("image", (2, 2))]
    assert [part.shape for part in regard.rollout(listed, segments=segments)] == [(1, 6, 2), (1, 6, 2, 2)]
    assert str(regard.find_heads(listed, "first")) == str(regard.find_heads(some, "first"))
    assert entropy(listed).keys() == {"a", "b"}
    assert regard.show(listed, tokens=list("abcdef")).view == "tokens"
    with pytest.raises(ValueError, match="two of the maps are named 'a'"):
        regard.rollout([each[0], Map("a", each[1].calls)])


@pytest.mark.usefixtures("user_errors")
def test_rollout_refuses_wrong_options():
    square = torch.rand(1, 1, 3, 3)
    with pytest.raises(ValueError, match="fusion must be one of"):
        regard.rollout([square], fusion="median")
    with pytest.raises(ValueError, match="discard must lie in"):
        regard.rollout([square], discard=1.0)
    with pytest.raises(ValueError, match="map 0 must be"):
        regard.rollout([square[0]])
    with pytest.raises(TypeError, match="got the single 'a'"):
        regard.rollout(Map("a", [AttentionRecord.given(square, "a")]))
    with pytest.raises(TypeError, match=r"maps must be what regard\.capture gives, or several tensors, got 3"):
        regard.rollout(3)


@pytest.mark.usefixtures("user_errors")
def test_statistics_refuse_what_are_no_maps():
    square = torch.rand(1, 1, 3, 3)
    for function in (entropy, distance, regard.locality):
        with pytest.raises(TypeError, match=r"maps must be what regard\.capture gives, got a list"):
            function([square])
        with pytest.raises(TypeError, match=r"maps must be several maps, .* got the single 'layer\.0'"):
            function(maps_of(square)[0])


def test_rollout_of_a_captured_model_stays_in_its_batch(timm, images):
    model = timm.models.vision_transformer.VisionTransformer(32, 8, embed_dim=16, depth=2, num_heads=2).eval()
    with torch.no_grad(), regard.capture(model) as maps:
        model(images)
    found = regard.rollout(maps)
    with torch.no_grad(), regard.capture(model) as alone:
        model(images[1:])
    torch.testing.assert_close(found[1:], regard.rollout(alone))


class Classifier(nn.Module):
    """Two layers of attention and a class score at the first token; fused, or with its maps in the graph."""

    def __init__(self, fused):
        super().__init__()
        self.fused, self.num_heads = fused, 2
        self.layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
        self.head = nn.Linear(8, 3)
        self.maps = []

    def forward(self, x):
        self.maps.clear()
        for layer in self.layers:
            q, k, v = layer(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            if self.fused:
                out = F.scaled_dot_product_attention(q, k, v)
            else:
                self.maps.append((q @ k.mT / 2).softmax(-1))
                out = self.maps[-1] @ v
            x = x + out.transpose(1, 2).flatten(2)
        return self.head(x[:, 0])


def test_relevance_through_a_fused_kernel_is_that_of_maps_in_the_graph():
    fused, plain = Classifier(True).double(), Classifier(False).double()
    plain.load_state_dict(fused.state_dict())
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    logits = plain(x)
    in_graph = list(plain.maps)
    for target, picked in ((2, logits[:, 2]), (None, logits.amax(-1)), ([0, 1], logits[[0, 1], [0, 1]])):
        gradients = torch.autograd.grad(picked.sum(), in_graph, retain_graph=True)
        expected = torch.eye(5, dtype=torch.float64).expand(2, 5, 5)
        for weights, gradient in zip(in_graph, gradients, strict=True):
            expected = expected + (weights * gradient).clamp_min(0).mean(1) @ expected
        for model in (fused, plain):
            torch.testing.assert_close(regard.relevance(model, x, target), expected.detach())
    assert all(parameter.grad is None for parameter in fused.parameters())


def test_relevance_needs_no_gradients_of_weights_and_may_explain_anything():
    model, x = Classifier(True), torch.randn(2, 5, 8)
    expected = regard.relevance(model, x, 1)
    torch.testing.assert_close(regard.relevance(model, x, lambda output: output[:, 1]), expected)
    model.requires_grad_(False)
    with torch.no_grad():
        torch.testing.assert_close(regard.relevance(model, x, 1), expected)


def test_relevance_of_one_sample_does_not_depend_on_the_others():
    model, x = Classifier(True), torch.randn(3, 5, 8)
    torch.testing.assert_close(regard.relevance(model, x, 0)[2:], regard.relevance(model, x[2:], 0))


def test_relevance_on_real_models(timm, transformers, images, tokens):
    vit = timm.models.vision_transformer.VisionTransformer(32, 8, embed_dim=16, depth=2, num_heads=2).eval()
    found = regard.relevance(vit, images)
    assert found.shape == (2, 17, 17)
    assert (found[:, 0, 1:] > 0).any()
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    bert = transformers.BertForSequenceClassification(config).eval()
    assert regard.relevance(bert, {"input_ids": tokens}, 1).shape == (2, 7, 7)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2).eval()
    scores = regard.relevance(encoder.requires_grad_(False), torch.randn(1, 4, 8), lambda out: out[:, 0, 0])
    assert scores.shape == (1, 4, 4)


@pytest.mark.usefixtures("user_errors")
def test_relevance_says_what_it_needs():
    model, x = Classifier(True), torch.randn(2, 5, 8)
    with pytest.raises(ValueError, match="one class below 3"):
        regard.relevance(model, x, 3)
    with pytest.raises(TypeError, match="class numbers"):
        regard.relevance(model, x, torch.tensor([0.5, 0.5]))
    with pytest.raises(TypeError, match=r"target must be class numbers, got 'a' \(str\)"):
        regard.relevance(model, x, "a")
    with pytest.raises(TypeError, match=r"only must be a pattern such as .*, got 3 \(int\)"):
        regard.relevance(model, x, only=3)
    with pytest.raises(ValueError, match="Linear computed no attention"):
        regard.relevance(nn.Linear(8, 3), x[:, 0], 0)
    with pytest.raises(ValueError, match="pass a function of the output"):
        regard.relevance(nn.Identity(), x, 0)
    with pytest.raises(TypeError, match="x must be a tensor"):
        regard.relevance(model, 3.0, 0)
    cross = nn.Transformer(8, 2, 1, 1, 8, batch_first=True)
    for length in (3, 4):  # also if both sequences are equally long
        both = (torch.randn(1, 4, 8), torch.randn(1, length, 8))
        with pytest.raises(ValueError, match=r'one stack of layers, but there are 2.*only="encoder\.layers\.\*"'):
            regard.relevance(cross, both, lambda out: out.sum())
        with pytest.raises(ValueError, match="is cross-attention"):
            regard.relevance(cross, both, lambda out: out.sum(), only="decoder.*")


def test_entropy_and_distance_are_their_formulas():
    uniform, shifted = torch.full((1, 1, 9, 9), 1 / 9), torch.zeros(1, 1, 9, 9)
    for q in range(9):
        shifted[..., q, q // 3 * 3 + (q % 3 + 1) % 3] = 1
    both = torch.cat([uniform, shifted], 1)
    maps = maps_of(both, layout=Layout((3, 3), 0))
    torch.testing.assert_close(entropy(maps)["layer.0"], torch.tensor([math.log(9), 0.0]))
    places = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0))
    torch.testing.assert_close(
        distance(maps)["layer.0"], torch.stack([torch.cdist(places, places).mean(), torch.tensor(4 / 3)])
    )


def test_distance_leaves_prefix_tokens_out():
    weights = torch.full((1, 1, 5, 5), 0.2)
    found = distance(maps_of(weights), grid=(2, 2), prefix=1)["layer.0"]
    torch.testing.assert_close(found, torch.tensor([(0 + 1 + 1 + math.sqrt(2)) / 4]))
    with pytest.raises(ValueError, match="distances need self-attention"):
        distance(maps_of(torch.rand(1, 1, 2, 4)), grid=(2, 2))


def test_rows_that_attend_to_nothing_do_not_count_in_the_entropy():
    weights = torch.zeros(1, 1, 2, 2)
    weights[..., 0, :] = 0.5
    torch.testing.assert_close(entropy(maps_of(weights))["layer.0"], torch.tensor([math.log(2)]))


def test_entropy_is_of_the_shares_of_a_row():
    weights = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    shares = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(entropy(maps_of(weights))["layer.0"], entropy(maps_of(shares))["layer.0"])
    torch.testing.assert_close(entropy(maps_of(torch.full((1, 1, 2, 4), 0.7)))["layer.0"].exp(), torch.tensor([4.0]))


def test_rows_in_another_order_are_refused():
    """As many rows as keys look like a whole map, but their numbers tell."""
    weights = torch.rand(1, 1, 4, 4).softmax(-1)
    turned = Maps([Map("layer.0", [AttentionRecord.given(weights, "layer.0", rows=(3, 0, 1, 2))])])
    for analysis in (regard.rollout, partial(distance, grid=(2, 2)), partial(regard.locality, grid=(2, 2))):
        with pytest.raises(ValueError, match=r"has the rows 3, 0, 1, 2: .* all rows, in their order"):
            analysis(turned)
    in_order = Maps([Map("layer.0", [AttentionRecord.given(weights, "layer.0", rows=(0, 1, 2, 3))])])
    torch.testing.assert_close(regard.rollout(in_order), regard.rollout([weights]))


def test_rows_that_attend_to_nothing_do_not_count_in_the_distance():
    weights = torch.zeros(2, 1, 5, 5)
    weights[0, :, 1:] = torch.eye(5)[:4]  # the token before
    assert distance(maps_of(weights), grid=(5,))["layer.0"].tolist() == [1.0]
    [head] = regard.locality(maps_of(weights), grid=(5,))
    assert (head.distance, head.overlap) == (1.0, pytest.approx(1.0))
    weights[0, :, 1:] = torch.tensor([0.25, 0.75, 0, 0, 0])
    [head] = regard.locality(maps_of(weights), grid=(4,), prefix=1)
    assert head.prefix == (0.25,)
