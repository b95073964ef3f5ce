"""Models whose heads are removed step by step: attention keeps its name, and the last model is that of one step."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import regard
from regard.analysis import heads_in, importance, mask_heads


class Cross(nn.Module):
    """Attention of torch inside a model, with a mask for each head."""

    def __init__(self):
        super().__init__()
        self.pool = nn.MultiheadAttention(16, 4, batch_first=True)
        self.head = nn.Linear(16, 3)
        self.register_buffer("mask", (torch.rand(8, 5, 5) > 0.7) & ~torch.eye(5, dtype=torch.bool))

    def forward(self, x):
        return self.head(self.pool(x, x, x, attn_mask=self.mask, need_weights=False)[0].mean(1))


MODELS = {
    "torch, a mask for each head": (Cross, "pool"),
    "torch, a whole encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 4, 8, batch_first=True), 1, enable_nested_tensor=False
        ),
        "layers.0.self_attn",
    ),
    "regard": (lambda: nn.Sequential(regard.MultiHeadAttention(16, 4)), "0"),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", list(MODELS))
def test_pruning_again_is_pruning_more(kind):
    make, name = MODELS[kind]
    model, x = make().double().eval(), torch.randn(2, 5, 16, dtype=torch.float64)
    with mask_heads(model, {name: [0, 2]}):
        want = model(x)
    small = model
    for keep, left in (([1, 2, 3], 3), ([0, 2], 2)):
        small = regard.prune_heads(small, {name: keep})
        assert heads_in(small, lambda small=small: small(x)) == {name: left}
        with regard.capture(small) as maps:
            small(x)
        assert list(maps) == [name]
    torch.testing.assert_close(small(x), want)
    once = regard.prune_heads(model, {name: [1, 3]})
    assert once.state_dict().keys() == small.state_dict().keys()
    for one, other in zip(once.state_dict().values(), small.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_pooling_head_is_pruned_by_importance_again(transformers, images):
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4}
    config = transformers.SiglipVisionConfig(num_hidden_layers=1, image_size=32, patch_size=16, **sizes)
    model = nn.Sequential(transformers.SiglipVisionModel(config), Pooled()).eval()
    batches = [(images, torch.tensor([0, 1]))]
    first = importance(model, batches)
    small = regard.prune_heads(model, first, 6)
    second = importance(small, batches)
    assert list(second.scores) == list(first.scores)
    assert sum(map(len, regard.analysis.importance(regard.prune_heads(small, second, 3), batches).scores.values())) == 3


class Pooled(nn.Module):
    def forward(self, output):
        return output.pooler_output


class Louder(regard.MultiHeadAttention):
    def forward(self, x, **options):
        return 3 * super().forward(2 * x, **options)


class Adapted(nn.Linear):
    """As a low-rank adapter: its weight is only a part of what it computes."""

    def forward(self, x):
        return super().forward(x) + x.mean(-1, keepdim=True)


def adapted(name):
    layer = regard.MultiHeadAttention(16, 4)
    old = getattr(layer, name)
    setattr(layer, name, Adapted(old.in_features, old.out_features))
    return layer


def masked():
    layer = regard.MultiHeadAttention(16, 4)
    prune.random_unstructured(layer.qkv, "weight", 0.5)
    return layer


def patched(make):
    layer = make()
    original = layer.forward
    layer.forward = lambda *given, **options: original(*given, **options)
    return layer


CHANGED = {
    "a subclass": (lambda: Louder(16, 4), "is a Louder, which replaces forward"),
    "its own forward": (lambda: patched(lambda: regard.MultiHeadAttention(16, 4)), "replaces forward"),
    "a positional layer": (lambda: patched(lambda: regard.layers.GaussianAttention(16, 4, axes=1)), "replaces forward"),
    "torch's layer": (lambda: patched(lambda: nn.MultiheadAttention(16, 4)), "replaces forward"),
    "adapted values": (lambda: adapted("qkv"), r"qkv that is no plain nn\.Linear \(Adapted\)"),
    "adapted outputs": (lambda: adapted("output"), r"output that is no plain nn\.Linear \(Adapted\)"),
    "masked weights": (masked, r"qkv that is no plain nn\.Linear"),
}


@pytest.mark.parametrize("kind", list(CHANGED))
def test_a_layer_whose_computation_is_unknown_keeps_its_heads(kind):
    """Its weights do not say what it computes: smaller ones would compute something else without an error."""
    make, says = CHANGED[kind]
    model = nn.Sequential(make())
    with pytest.raises(ValueError, match=f"no head of '0' can be removed, because it .*{says}"):
        regard.prune_heads(model, {"0": [1, 2]})


@torch.no_grad()
@pytest.mark.parametrize("part", ["the attention", "its projection"])
def test_attention_of_transformers_that_was_changed_is_refused(transformers, tokens, part):
    model = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=40
        )
    )
    attention = model.encoder.layer[0].attention.self
    where = attention if part == "the attention" else attention.value
    original = where.forward
    where.forward = lambda *given, **options: original(*given, **options)
    with pytest.raises(KeyError, match="there is none"):
        regard.prune_heads(model, {"*": [1]})


class Listed(nn.Module):
    """Calls its layers from a list of its own, as well as having them as parts."""

    def __init__(self):
        super().__init__()
        self.attention = regard.MultiHeadAttention(16, 4)
        self.steps = [self.attention]

    def forward(self, x):
        for step in self.steps:
            x = x + step(x)
        return x


@torch.no_grad()
@pytest.mark.parametrize("make", [Listed, Cross])
def test_the_copy_calls_the_smaller_layer_and_its_hooks(make):
    model, x = make().double().eval(), torch.randn(2, 5, 16, dtype=torch.float64)
    name, layer = next(iter(model.named_children()))
    layer.register_forward_hook(lambda module, given, out: (2 * out[0], out[1]) if isinstance(out, tuple) else 2 * out)
    with mask_heads(model, {name: [0, 2]}):
        want = model(x)
    small = regard.prune_heads(model, {name: [1, 3]})
    torch.testing.assert_close(small(x), want)
    assert heads_in(small, lambda: small(x)) == {name: 2}


def test_a_hook_of_the_backward_pass_gets_the_gradients_of_the_smaller_layer():
    model, seen = Cross(), []
    model.pool.register_full_backward_hook(lambda module, given, out: seen.append((module, [x.shape for x in given])))
    small = regard.prune_heads(model, {"pool": [1, 3]})
    small(torch.randn(2, 5, 16, requires_grad=True)).sum().backward()
    assert seen == [(small.pool, [(2, 5, 16)] * 3)]


@torch.no_grad()
@pytest.mark.parametrize("keep", [{"0": [1, 2]}, {"2": [0]}, {"0": [1], "2": [0, 3]}])
def test_a_part_that_several_layers_use_is_pruned_in_each_alone(keep):
    one, other = regard.MultiHeadAttention(16, 4), regard.MultiHeadAttention(16, 4)
    other.qkv, other.output = one.qkv, one.output
    model, x = nn.Sequential(one, nn.Tanh(), other).double().eval(), torch.randn(2, 5, 16, dtype=torch.float64)
    with mask_heads(model, {name: [h for h in range(4) if h not in kept] for name, kept in keep.items()}):
        want = model(x)
    torch.testing.assert_close(regard.prune_heads(model, keep)(x), want)


@pytest.mark.parametrize(
    ("layer", "projection", "left"), [(1, "k_proj", 2), (0, "q_proj", 1)], ids=["two layers", "one"]
)
def test_a_projection_that_is_used_twice_is_not_pruned(transformers, layer, projection, left):
    """The keys of layer 0 are computed by the projection of another layer, or by that of its own queries."""
    sizes = {"vocab_size": 50, "num_hidden_layers": left + 1, "num_attention_heads": 4, "hidden_size": 32}
    model = transformers.LlamaModel(transformers.LlamaConfig(**sizes, intermediate_size=40))
    model.layers[0].self_attn.k_proj = getattr(model.layers[layer].self_attn, projection)
    with pytest.raises(KeyError, match=rf"can be pruned is \['layers\.{left}\.self_attn'\]"):
        regard.prune_heads(model, {"layers.0.self_attn": [1]})
