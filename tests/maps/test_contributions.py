"""What heads contribute behind the layer's own projection, against the formula written out."""

import pytest
import torch
from torch import nn

import regard
from regard.support.reading import UnreadableError


def expected(weights, value, projection):
    """‖A_ij v_j W_h‖ and ‖Σ_j A_ij v_j W_h‖ from weights, values and the projection (out, heads · width)."""
    heads, width = value.shape[1], value.shape[3]
    by_head = projection.mT.reshape(heads, width, -1)
    moved = torch.einsum("bhjd,hdo->bhjo", value, by_head)
    parts = torch.einsum("bhij,bhjo->bhijo", weights, moved)
    return parts.norm(dim=-1), parts.sum(3).norm(dim=-1)


def check(model, run, projection, value):
    with torch.no_grad(), regard.capture(model, values=True) as maps:
        run()
    found = maps[0]
    edges, heads = expected(found.weights, value, projection)
    torch.testing.assert_close(found.contributions(), edges)
    torch.testing.assert_close(found.head_contributions(), heads)
    return maps


@pytest.mark.parametrize("path", ["fast", "slow", "tokens first", "weights"])
def test_torchs_layer(path):
    layer = nn.MultiheadAttention(12, 3, batch_first=path != "tokens first").double()
    layer.train(path != "fast")
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    value = (x @ layer.in_proj_weight[24:].mT + layer.in_proj_bias[24:]).unflatten(-1, (3, 4)).transpose(1, 2)
    given = x if path != "tokens first" else x.transpose(0, 1)
    with torch.no_grad():
        check(layer, lambda: layer(given, given, given, need_weights=path == "weights"), layer.out_proj.weight, value)


def test_heads_that_share_values():
    layer = regard.MultiHeadAttention(12, 4, key_value_heads=2, head_dim=3).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    _, _, weight = layer.input_weights()
    _, _, bias = layer.input_biases()
    value = (x @ weight.mT + bias).unflatten(-1, (2, 3)).transpose(1, 2).repeat_interleave(2, 1)
    maps = check(layer, lambda: layer(x), layer.output.weight, value)
    with torch.no_grad(), regard.capture(layer, values=True, heads=[3], rows=[1, 4]) as part:
        layer(x)
    torch.testing.assert_close(part[0].contributions(), maps[0].contributions()[:, [3]][:, :, [1, 4]])
    torch.testing.assert_close(part[0].head_contributions(), maps[0].head_contributions()[:, [3]][:, :, [1, 4]])


FAMILIES = {
    "GPT2": ({"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4}, lambda m: m.h[0].attn.c_proj.weight.mT),
    "Llama": (
        {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 48},
        lambda m: m.layers[0].self_attn.o_proj.weight,
    ),
    "Bert": (
        {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
        lambda m: m.encoder.layer[0].attention.output.dense.weight,
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_projection_of_transformers_is_found(transformers, family, implementation, tokens):
    options, projection = FAMILIES[family]
    config = getattr(transformers, f"{family}Config")(**options, attn_implementation=implementation)
    model = getattr(transformers, f"{family}Model")(config).double().eval()
    seen = []

    class Listener(regard.maps.RecordListener):
        def attended(self, record):
            seen.append(regard.maps.shared_heads(record.running.value, slice(None), 4))

    with torch.no_grad(), regard.maps.intercept(model, Listener()):
        model(tokens)
    maps = check(model, lambda: model(tokens), projection(model), seen[0])
    assert all(found.latest.norms is not None for found in maps.values())


def test_a_sink_shrinks_to_what_it_contributes():
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(1, 6, 8)
    with torch.no_grad():
        layer.in_proj_weight[8:16] = 0  # all keys are alike …
        layer.in_proj_bias.zero_()
        x[:, 0] = 1e-4 * x[:, 0]  # … and the first value is almost zero
        with regard.capture(layer, values=True) as maps:
            layer(x, x, x)
    assert (maps[0].weights[..., 0] - 1 / 6).abs().max() < 1e-6
    shares = maps[0].contributions() / maps[0].contributions().sum(-1, keepdim=True)
    assert shares[..., 0].max() < 1e-3
    shown = maps.contributions()
    torch.testing.assert_close(shown[0].weights, maps[0].contributions())
    assert regard.show(shown).view == "tokens"


def test_windows_go_back_onto_the_image(timm, tmp_path):
    model = timm.models.swin_transformer.SwinTransformer(
        16, 2, 3, 4, embed_dim=8, depths=(2,), num_heads=(2,), window_size=4
    )
    with torch.no_grad(), regard.capture(model.eval(), values=True) as maps:
        model(torch.randn(2, 3, 16, 16))
    for found in maps.values():
        assert found.contributions().shape == found.weights.shape == (2, 2, 64, 64)
        assert found.head_contributions().shape == (2, 2, 64)
    again = regard.maps.Maps.load(maps.save(tmp_path / "maps"))
    for name, found in maps.items():
        torch.testing.assert_close(again[name].contributions(), found.contributions())
        torch.testing.assert_close(again[name].head_contributions(), found.head_contributions())


def test_saved_norms_that_do_not_fit_are_refused(tmp_path):
    layer, x = regard.MultiHeadAttention(8, 2), torch.randn(1, 6, 8)
    with torch.no_grad(), regard.capture(layer, values=True, heads=[1], rows=[0, 2]) as maps:
        layer(x)
    again = regard.maps.Maps.load(maps.save(tmp_path / "part"))
    torch.testing.assert_close(again[0].contributions(), maps[0].contributions())
    maps[0].latest.norms.keys = torch.ones(1, 1, 7)
    with pytest.raises(UnreadableError, match="norms of"):
        regard.maps.Maps.load(maps.save(tmp_path / "wrong"))


def test_unknown_contributions_say_so():
    class Bare(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    model = Bare()
    for values, x in ((True, torch.randn(1, 2, 3, 4)), (False, torch.randn(1, 2, 3, 4))):
        with regard.capture(model, values=values) as maps:
            model(x)
        for ask in (maps[0].contributions, maps[0].head_contributions, maps.contributions):
            with pytest.raises(ValueError, match="output projection was not found, or it was captured without"):
                ask()


class ByHand(nn.Module):
    """Attention with dropout, by a kernel or written out."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel, self.num_heads = kernel, 2
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        if self.kernel:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        else:
            mixed = nn.functional.dropout((q @ k.mT / 2).softmax(-1), 0.5) @ v
        return self.proj(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("kernel", [True, False])
def test_contributions_contain_no_dropout(kernel):
    torch.manual_seed(0)
    model, x = ByHand(kernel).double(), torch.randn(2, 5, 8, dtype=torch.float64)
    value = model.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)[2]
    with torch.no_grad():
        maps = check(model, lambda: model(x), model.proj.weight, value)
    assert maps[0].agrees


def test_contributions_say_what_of_the_weights_was_kept():
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(1, 5, 8)
    for options, match in (
        ({"overview": 2}, "only an overview of its weights was kept"),
        ({"reduce": lambda total, weights: weights.sum()}, "its weights were folded by reduce="),
    ):
        with torch.no_grad(), regard.capture(attention, values=True, **options) as maps:
            attention(x, x, x, need_weights=False)
        with pytest.raises(ValueError, match=match):
            maps[0].contributions()
        assert maps[0].head_contributions().shape == (1, 2, 5)


def test_contributions_keep_the_order_of_the_calls_and_what_is_an_image():
    """A layer that is called several times counts as often in a rollout, of the latest run alone."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = regard.MultiHeadAttention(12, 3)

        def forward(self, x):
            for _ in range(3):
                x = x + self.layer(x)
            return x

    model = Recurrent().double()
    with torch.no_grad(), regard.capture(model, values=True) as maps:
        model(torch.randn(2, 4, 12, dtype=torch.float64))
        model(torch.randn(2, 5, 12, dtype=torch.float64))
    maps.image_tokens = regard.maps.ImageTokens(7)
    sizes = maps.contributions()
    want = regard.rollout([call.contributions for call in maps[0].calls[3:]])
    torch.testing.assert_close(regard.rollout(sizes), want)
    assert sizes.image_tokens is maps.image_tokens
