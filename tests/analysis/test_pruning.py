"""Importance of heads, silencing them, and removing them for real."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard.analysis import accuracy, importance, mask_heads, pruning_curve
from regard.layers import GatedPositionalAttention, GaussianAttention, RelativeAttention


def double(module):
    return module.double().eval()


class Small(nn.Module):
    def __init__(self, **extra):
        super().__init__()
        self.layers = nn.ModuleList(regard.MultiHeadAttention(12, 4, **extra) for _ in range(2))
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.tanh().mean(1))


@given(
    kept=st.sets(st.integers(0, 3), min_size=1),
    shared=st.sampled_from([1, 2, 4]),
    widths=st.sampled_from([{}, {"context_dim": 6}, {"head_dim": 5, "out_dim": 7}]),
    bias=st.booleans(),
)
def test_pruning_our_layer_is_masking_it(kept, shared, widths, bias):
    layer = double(regard.MultiHeadAttention(12, 4, key_value_heads=shared, bias=bias, **widths))
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    given = [x] if "context_dim" not in widths else [x, torch.randn(2, 3, 6, dtype=torch.float64)]
    small = regard.prune_heads(layer, {"MultiHeadAttention": sorted(kept)})
    silent = [head for head in range(4) if head not in kept]
    with mask_heads(layer, {"MultiHeadAttention": silent}):
        expected = layer(*given)
    torch.testing.assert_close(small(*given), expected)
    assert small.heads == len(kept)
    if silent:
        assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in layer.parameters())
    assert layer.heads == 4


POSITIONAL = {
    "gaussian": lambda: GaussianAttention(12, 4),
    "gaussian, full width": lambda: GaussianAttention(12, 4, full_width=True, covariance="diagonal", bias=False),
    "gaussian, full covariance": lambda: GaussianAttention(12, 4, covariance="full", init="grid", out_dim=5),
    "relative": lambda: RelativeAttention(12, 4, (5, 5), content=False),
    "relative, full width": lambda: RelativeAttention(12, 4, (5, 5), content=False, full_width=True),
    "relative, content": lambda: RelativeAttention(12, 4, (5, 5)),
    "gated": lambda: GatedPositionalAttention(12, 4),
}


@pytest.mark.parametrize("kind", list(POSITIONAL))
@pytest.mark.parametrize("kept", [[2], [0, 3], [0, 1, 3]])
def test_pruning_a_positional_layer_is_masking_it(kind, kept):
    layer, x = double(POSITIONAL[kind]()), torch.randn(2, 3, 4, 12, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    if kind == "gaussian":
        layer.freeze_plan((3, 4), torch.float64)
    layer.output.weight.requires_grad_(False)
    name = type(layer).__name__
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    small = regard.prune_heads(layer, {name: kept})
    with mask_heads(layer, {name: [head for head in range(4) if head not in kept]}):
        expected = layer(x)
    torch.testing.assert_close(small(x), expected)
    assert small.heads == len(kept)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in layer.parameters())
    assert {p.shape[0] for p in (getattr(small, "center", None), getattr(small, "gate", None)) if p is not None} <= {
        len(kept)
    }
    assert not small.output.weight.requires_grad
    small(x).sum().backward()
    assert all(p.grad is not None for p in small.parameters() if p.requires_grad)
    assert all(torch.equal(before[key], value) for key, value in layer.state_dict().items())
    with regard.capture(small) as maps:
        small(x)
    assert maps[0].shape == (2, len(kept), 12, 12)


def test_a_whole_image_encoder_is_pruned_by_importance():
    model = regard.models.ImageEncoder(16, 4, 3, dim=18, depth=2, heads=9).double().eval()
    x, labels = torch.randn(4, 3, 16, 16, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    found = importance(model, [(x, labels)])
    small = regard.prune_heads(model, found, 5)
    silent = {name: [h for h in range(9) if h not in kept] for name, kept in found.keep(5).items()}
    with mask_heads(model, silent):
        expected = model(x)
    torch.testing.assert_close(small(x), expected)
    assert sum(block.attention.heads for block in small.blocks) == 5


def test_attention_that_cannot_be_pruned_may_keep_its_heads():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = regard.MultiHeadAttention(12, 2), SingleHead(), nn.Linear(12, 3)

        def forward(self, x):
            return self.head(self.second(self.first(x)).mean(1))

    class SingleHead(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    model, batch = Both(), (torch.randn(2, 5, 12), torch.tensor([0, 1]))
    small = regard.prune_heads(model, importance(model, [batch]), 2)
    assert small.first.heads == 1


MASKS = {
    "none": {},
    "causal": {"attn_mask": torch.ones(5, 5).triu(1).bool()},
    "float": {"attn_mask": torch.randn(5, 5, dtype=torch.float64)},
    "padding": {"key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
    "per head": {"attn_mask": (torch.rand(8, 5, 5) > 0.8) & ~torch.eye(5).bool()},  # no row hides every key
}


@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("batch_first", [True, False])
def test_pruning_torchs_layer_is_masking_it(mask, batch_first):
    layer = double(nn.MultiheadAttention(16, 4, batch_first=batch_first))
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    x = x if batch_first else x.transpose(0, 1)
    small = regard.prune_heads(layer, {"MultiheadAttention": [0, 3]})
    with mask_heads(layer, {"MultiheadAttention": [1, 2]}):
        expected, weights = layer(x, x, x, average_attn_weights=False, **MASKS[mask])
    out, found = small(x, x, x, average_attn_weights=False, **MASKS[mask])
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(found, weights[:, [0, 3]])
    assert small(x, x, x, need_weights=False)[1] is None
    assert small(x, x, x)[1].shape == (2, 5, 5)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in layer.parameters())


def test_pruning_takes_unbatched_and_cross_attention_too():
    layer = double(nn.MultiheadAttention(16, 4, kdim=6, vdim=10, batch_first=True))
    q, k, v = (torch.randn(5, n, dtype=torch.float64) for n in (16, 6, 10))
    small = regard.prune_heads(layer, {"*": [2]})
    with mask_heads(layer, {"MultiheadAttention": [0, 1, 3]}):
        expected = layer(q, k, v)[0]
    torch.testing.assert_close(small(q, k, v)[0], expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("padding", [True, False])
def test_a_whole_encoder_is_pruned_and_runs_as_before(padding):
    encoder = double(nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 8, batch_first=True), 2))
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    mask = {"src_key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])} if padding else {}
    small = regard.prune_heads(encoder, {"layers.0.self_attn": [1, 2], "layers.1.*": [0]})
    with torch.no_grad():
        with mask_heads(encoder, {"layers.0.self_attn": [0, 3], "layers.1.self_attn": [1, 2, 3]}):
            expected = encoder(x, **mask)
        torch.testing.assert_close(small(x, **mask), expected)
        with regard.capture(small) as maps:
            small(x, **mask)
    assert [found.shape[1] for found in maps.values()] == [2, 1]
    assert maps.residual < 1e-10
    assert encoder.layers[0].self_attn.num_heads == 4


def test_a_shared_layer_is_pruned_wherever_it_is():
    layer = double(regard.MultiHeadAttention(12, 4))
    model = nn.Sequential(layer, nn.Tanh(), layer)
    small = regard.prune_heads(model, {"0": [1, 3]})
    assert small[0] is small[2]
    assert small[0].heads == 2
    x = torch.randn(1, 3, 12, dtype=torch.float64)
    with mask_heads(model, {"0": [0, 2]}):
        expected = model(x)
    torch.testing.assert_close(small(x), expected)


def test_gates_give_the_gradient_of_the_loss_by_each_head():
    model, x, labels = double(Small()), torch.randn(6, 5, 12, dtype=torch.float64), torch.randint(0, 3, (6,))
    found = importance(model, [(x[:4], labels[:4]), (x[4:], labels[4:])])
    step = 1e-6
    for name, head in (("layers.0", 2), ("layers.1", 0)):
        losses = []
        for scale in (1 + step, 1 - step):
            changed = double(Small())
            changed.load_state_dict(model.state_dict())
            with torch.no_grad():  # scaling the columns of the output projection scales the head
                changed.get_submodule(name).output.weight[:, 3 * head : 3 * head + 3] *= scale
                losses.append(F.cross_entropy(changed(x), labels, reduction="none"))
        expected = ((losses[0] - losses[1]) / (2 * step)).abs().mean()
        torch.testing.assert_close(found.scores[name][head], expected, rtol=1e-3, atol=1e-7)


def test_a_layer_that_is_called_several_times_has_one_gate():
    class Recurrent(Small):
        def forward(self, x):
            for _ in range(3):
                x = x + self.layers[0](x)
            return self.head(x.tanh().mean(1))

    model, x, labels = double(Recurrent()), torch.randn(6, 5, 12, dtype=torch.float64), torch.randint(0, 3, (6,))
    found = importance(model, [(x[:4], labels[:4]), (x[4:], labels[4:])])
    step = 1e-6
    for head in range(4):
        losses = []
        for scale in (1 + step, 1 - step):
            changed = double(Recurrent())
            changed.load_state_dict(model.state_dict())
            with torch.no_grad():
                changed.layers[0].output.weight[:, 3 * head : 3 * head + 3] *= scale
                losses.append(F.cross_entropy(changed(x), labels, reduction="none"))
        expected = ((losses[0] - losses[1]) / (2 * step)).abs().mean()
        torch.testing.assert_close(found.scores["layers.0"][head], expected, rtol=1e-3, atol=1e-7)


def test_leaving_out_gives_the_loss_without_each_head():
    model, x, labels = double(Small()), torch.randn(6, 5, 12, dtype=torch.float64), torch.randint(0, 3, (6,))
    with torch.no_grad():
        found = importance(model, [(x, labels)], method="leave_out")
        plain = F.cross_entropy(model(x), labels)
        with mask_heads(model, {"layers.1": [3]}):
            without = F.cross_entropy(model(x), labels)
    torch.testing.assert_close(found.scores["layers.1"][3], without - plain)


def test_a_head_that_does_nothing_is_the_least_important_and_goes_first():
    model, x = double(Small()), torch.randn(8, 5, 12, dtype=torch.float64)
    labels = model(x).argmax(-1)
    with torch.no_grad():
        model.layers[1].output.weight[:, 3:6] = 0
    for method in ("gate", "leave_out"):
        found = importance(model, [(x, labels)], method=method)
        assert found.scores["layers.1"][1].abs() < 1e-12
        if method == "gate":
            assert found.order()[0] == ("layers.1", 1)
    keep = found.keep(7) if found.order()[0] == ("layers.1", 1) else {"layers.1": [0, 2, 3]}
    torch.testing.assert_close(regard.prune_heads(model, keep)(x), model(x))


def test_the_number_of_heads_that_stay_is_kept_to():
    model, x, labels = double(Small()), torch.randn(6, 5, 12, dtype=torch.float64), torch.randint(0, 3, (6,))
    found = importance(model, [(x, labels)])
    for count in (2, 5, 8):
        small = regard.prune_heads(model, found, count)
        assert sum(layer.heads for layer in small.layers) == count
    for count in (1, 9):
        with pytest.raises(ValueError, match="between 2"):
            regard.prune_heads(model, found, count)
    assert "importance of each head (gate)" in str(found)


def test_the_curve_goes_from_all_heads_to_none():
    model, x = Small().eval(), torch.randn(20, 5, 12)
    labels = model(x).argmax(-1)
    found = importance(model, [(x, labels)])
    curve = pruning_curve(model, [(x, labels)], found, points=5)
    assert [point.heads for point in curve] == [8, 6, 4, 2, 0]
    assert curve[0].accuracy == 1.0
    small = regard.prune_heads(model, found, 6)
    assert curve[1].accuracy == pytest.approx(accuracy(small, [(x, labels)]))
    without = model.head(x.tanh().mean(1)).argmax(-1)  # attention silenced altogether leaves the output's bias: zero
    assert curve[-1].accuracy == pytest.approx(float((without == labels).double().mean()))


def test_modes_and_gradients_are_left_as_they_were():
    model, x, labels = Small().train(), torch.randn(4, 5, 12), torch.randint(0, 3, (4,))
    model.layers[0].eval()
    model.layers[1].requires_grad_(False)
    importance(model, [(x, labels)])
    assert [module.training for module in model.layers] == [False, True]
    assert all(parameter.grad is None for parameter in model.parameters())
    small = regard.prune_heads(model, {"layers.*": [0, 1]})
    assert [module.training for module in small.layers] == [False, True]
    assert [module.output.weight.requires_grad for module in small.layers] == [True, False]


@pytest.mark.usefixtures("user_errors")
def test_wrong_requests_are_refused_with_what_would_fit():
    model, x = Small(), torch.randn(2, 5, 12)
    with pytest.raises(KeyError, match=r"can be pruned is \['layers.0', 'layers.1'\]"):
        regard.prune_heads(model, {"blocks.*": [0]})
    with pytest.raises(KeyError, match="there is none"):
        regard.prune_heads(nn.Linear(2, 2), {"blocks.*": [0]})
    for heads in ([4], [0, 0], [-1]):
        with pytest.raises(ValueError, match="different numbers below 4"):
            regard.prune_heads(model, {"layers.0": heads})
    with pytest.raises(TypeError, match=r"keep must be a mapping .*, got 3 \(int\)"):
        regard.prune_heads(model, 3)
    with pytest.raises(TypeError, match=r"heads of 'layers\.0' must be several numbers below 4, got 0 \(int\)"):
        regard.prune_heads(model, {"layers.0": 0})
    with pytest.raises(TypeError, match=r"heads must be a mapping .*, got 3 \(int\)"), mask_heads(model, 3):
        pass
    with pytest.raises(ValueError, match="at least one of its"):
        regard.prune_heads(model, {"layers.0": []})
    with pytest.raises(ValueError, match="slice_heads"):
        regard.prune_heads(Small(slice_heads=True), {"layers.0": [0]})
    with pytest.raises(ValueError, match="count is needed"):
        regard.prune_heads(model, importance(model, [(x, torch.zeros(2).long())]))
    with pytest.raises(ValueError, match=r"count is 3 .*it is for an importance"):
        regard.prune_heads(model, {"layers.0": [0]}, 3)
    with pytest.raises(ValueError, match="batches is empty"):
        importance(model, [])
    with pytest.raises(ValueError, match="one number per sample"):
        importance(model, [(x, torch.zeros(2).long())], loss=lambda output, labels: output.sum())
    with pytest.raises(ValueError, match="Linear computed no attention"):
        importance(nn.Linear(12, 3), [(x[:, 0], torch.zeros(2).long())])
    with pytest.raises(KeyError, match="no attention is named"):
        silenced(model, x)


def silenced(model, x):
    with mask_heads(model, {"nowhere": [0]}):
        model(x)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
FAMILIES = {
    "Bert": {"vocab_size": 50, **SMALL},
    "ViT": {**SMALL, "image_size": 32, "patch_size": 8},
    "Dinov2": {**SMALL, "image_size": 32, "patch_size": 8},
    "GPT2": {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "Llama": {"vocab_size": 50, **SMALL, "num_key_value_heads": 2},
    "Qwen3": {"vocab_size": 50, **SMALL, "num_key_value_heads": 2, "head_dim": 8},
    "Bart": {"vocab_size": 50, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
    # Queries, keys and values in one projection, head by head; with ALiBi, and with heads that share keys.
    "GPTNeoX": {"vocab_size": 50, **SMALL},
    "Bloom": {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "Falcon": {"vocab_size": 50, **SMALL, "new_decoder_architecture": True, "num_kv_heads": 2, "num_hidden_layers": 3},
    "Falcon, one key": {"vocab_size": 50, **SMALL},
    "Falcon, ALiBi": {"vocab_size": 50, **SMALL, "multi_query": False, "alibi": True},
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("family", list(FAMILIES))
def test_pruning_transformers_is_masking_them(transformers, family, tokens, images):
    name = family.partition(",")[0]
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**FAMILIES[family]))
    model, vision = model.double().eval(), "image_size" in FAMILIES[family]
    given = {"pixel_values": images.double()} if vision else {"input_ids": tokens}
    with regard.capture(model) as maps:
        model(**given)
    kept = {name: [[0, 3], [1], [0, 1, 2]][i % 3] for i, name in enumerate(maps)}
    small = regard.prune_heads(model, kept)
    with mask_heads(model, {name: [h for h in range(4) if h not in heads] for name, heads in kept.items()}):
        expected = model(**given)[0]
    torch.testing.assert_close(small(**given)[0], expected)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    with regard.capture(small) as after:
        small(**given)
    assert [found.shape[1] for found in after.values()] == [len(heads) for heads in kept.values()]
    if family in ("GPT2", "Llama", "Bloom"):
        small = regard.prune_heads(
            transformers.AutoModelForCausalLM.from_config(model.config).eval(), {"*att*n": [0, 2]}
        )
        options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        assert torch.equal(small.generate(tokens, **options), small.generate(tokens, use_cache=False, **options))


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"class_token": False, "global_pool": "avg"}])
def test_pruning_timm_is_masking_it(timm, options, images):
    model = timm.models.vision_transformer.VisionTransformer(
        32, 8, num_classes=3, embed_dim=24, depth=2, num_heads=3, **options
    )
    model, x = model.double().eval(), images.double()
    small = regard.prune_heads(model, {"blocks.0.attn": [1], "blocks.1.attn": [0, 2]})
    with mask_heads(model, {"blocks.0.attn": [0, 2], "blocks.1.attn": [1]}):
        expected = model(x)
    torch.testing.assert_close(small(x), expected)
    assert (small.blocks[0].attn.qkv.out_features, small.blocks[1].attn.proj.in_features) == (24, 16)
    assert model.blocks[0].attn.num_heads == 3


def test_attention_with_other_parameters_is_refused(timm, transformers):
    swin = timm.models.swin_transformer.SwinTransformer(
        16, 2, 3, 4, embed_dim=8, depths=(2,), num_heads=(2,), window_size=4
    )
    config = transformers.T5Config(vocab_size=9, d_model=16, d_kv=4, d_ff=8, num_layers=1, num_heads=4)
    for model in (swin, transformers.T5Model(config)):
        with pytest.raises(KeyError, match="there is none: prune_heads works on"):
            regard.prune_heads(model, {"*": [0]})
