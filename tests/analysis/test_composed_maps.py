"""Changes of attention whose map consists of several attentions: halves of the values, differences, parts of the keys."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.analysis import importance, mask_heads

FACTOR = 0.3


class Layer(nn.Module):
    """Two heads whose map consists of several attentions."""

    def __init__(self, way):
        super().__init__()
        self.way, self.num_heads = way, 4 if way == "heads" else 2
        self.qkv, self.output = nn.Linear(8, 48), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        if self.way == "values":
            q, k, v = q[:, :2], k[:, :2], v[:, :2]
            mixed = torch.cat([F.scaled_dot_product_attention(q, k, half) for half in v.chunk(2, -1)], -1)
        elif self.way == "terms":
            one, two = (F.scaled_dot_product_attention(q[:, i], k[:, i], v[:, :2]) for i in (slice(2), slice(2, 4)))
            mixed = one - FACTOR * two
        elif self.way == "heads":
            both = F.scaled_dot_product_attention(q, k, v[:, [0, 1, 0, 1]])
            one, two = both.chunk(2, 1)
            mixed = one - FACTOR * two
        else:
            raise ValueError(self.way)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Network(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.block, self.head = Layer(way), nn.Linear(8, 3)

    def forward(self, x):
        return self.head((x + self.block(x)).mean(1))


def network(way):
    torch.manual_seed(1)
    return Network(way).double().eval()


def by_hand(way, x, gates=(1.0, 1.0), blocked=()):
    """The formula, with a factor for each head of the map, and keys that no query reads, by head."""
    model = network(way)
    q, k, v = model.block.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / 2
    for head, key in blocked:
        scores[:, head::2, :, key] = -torch.inf
    weights = scores.softmax(-1)
    maps = weights[:, :2] if way == "values" else weights[:, :2] - FACTOR * weights[:, 2:]
    mixed = maps @ v[:, :2] * torch.tensor(gates, dtype=x.dtype)[:, None, None]
    return model.head((x + model.block.output(mixed.transpose(1, 2).flatten(2))).mean(1))


@pytest.fixture
def x():
    return torch.randn(2, 6, 8, dtype=torch.float64)


@pytest.mark.parametrize("way", ["values", "terms", "heads"])
def test_a_head_of_the_map_is_silenced_in_all_of_its_attentions_or_not_at_all(way, x):
    model = network(way)
    with regard.capture(model) as maps:
        torch.testing.assert_close(model(x), by_hand(way, x))
    assert maps["block"] is maps[-1]
    assert maps[0].shape[1] == 2
    said = r"name all of them \(block, block#2\)|difference of its heads 1 and 3"
    with pytest.raises(ValueError, match=said), mask_heads(model, {"block": [1]}):
        model(x)
    every = {"block": [1, 3]} if way == "heads" else {"block": [1], "block#2": [1]}
    with mask_heads(model, every):
        torch.testing.assert_close(model(x), by_hand(way, x, (1.0, 0.0)))
    if way != "heads":
        with mask_heads(model, {"block#2": [1]}):  # a part by its own name
            assert not torch.allclose(model(x), by_hand(way, x))


@pytest.mark.parametrize("way", ["values", "terms", "heads"])
def test_a_key_is_blocked_in_all_attentions_of_the_map_or_not_at_all(way, x):
    model = network(way)
    where, heads = ("block", [1, 3]) if way == "heads" else ("block*", 1)
    with regard.edit(model, where, keys=2, heads=heads):
        torch.testing.assert_close(model(x), by_hand(way, x, blocked=[(1, 2)]))
    with regard.edit(model, "block*", keys=2):
        torch.testing.assert_close(model(x), by_hand(way, x, blocked=[(0, 2), (1, 2)]))
    said = r"name all of them in where|difference of heads 1 and 3: name both"
    with pytest.raises(ValueError, match=said), regard.edit(model, "block", keys=2, heads=1):
        model(x)
    if way != "values":
        for weights in (0.5, torch.rand(6, 6)):
            with (
                pytest.raises(ValueError, match="its map is the difference"),
                regard.edit(model, "block*", weights=weights),
            ):
                model(x)


@pytest.mark.parametrize("way", ["values", "terms", "heads"])
def test_importance_is_that_of_the_heads_of_the_map(way, x):
    labels = torch.tensor([0, 2])
    loss = lambda gates: F.cross_entropy(by_hand(way, x, gates), labels, reduction="none").detach()  # noqa: E731
    step = 1e-6
    gate, left = (importance(network(way), [(x, labels)], method=method).scores for method in ("gate", "leave_out"))
    assert [(name, len(heads)) for found in (gate, left) for name, heads in found.items()] == [("block", 2)] * 2
    for head in range(2):
        scaled = [[1 + sign * step * (i == head) for i in range(2)] for sign in (1, -1)]
        slope = ((loss(scaled[0]) - loss(scaled[1])) / (2 * step)).abs().mean()
        torch.testing.assert_close(gate["block"][head], slope, rtol=1e-5, atol=1e-9)
        without = loss([float(i != head) for i in range(2)]).mean() - loss((1.0, 1.0)).mean()
        torch.testing.assert_close(left["block"][head], without)


def test_heads_of_a_difference_are_not_replaced_in_one_term(x):
    for way in ("values", "terms", "heads"):
        model = network(way)
        with torch.no_grad(), regard.capture(model) as maps:
            model(x)
        with torch.no_grad(), pytest.raises(ValueError, match="in parts"):
            regard.replace_heads(model, regard.locality(maps, grid=(6,)))(x)


def test_attentions_with_maps_of_their_own_are_changed_alone(x):
    class Beside(Layer):
        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
            parts = [F.scaled_dot_product_attention(q[:, i], k[:, i], v[:, i]) for i in (slice(2), slice(2, 4))]
            return torch.cat(parts, -1).transpose(1, 2).flatten(2) if self.way == "side" else sum(parts)

    for way in ("side", "sum"):
        layer = Beside(way).double()
        with torch.no_grad(), regard.capture(layer) as maps:
            layer(x)
        assert len(maps) == 2
        with torch.no_grad(), mask_heads(layer, {maps[0].name: [0]}), regard.edit(layer, maps[0].name, keys=0):
            layer(x)


def exponentials(first, a, second, b):
    whole = torch.logaddexp(a, b)
    return first * (a - whole).exp() + second * (b - whole).exp()


def sigmoid(first, a, second, b):
    return torch.lerp(second, first, torch.sigmoid(a - b))


def stacked(first, a, second, b):
    return (torch.stack((first, second)) * torch.stack((a, b)).softmax(0)).sum(0)


def by_einsum(first, a, second, b):
    return torch.einsum("sbhnd,sbhn->bhnd", torch.stack((first, second)), torch.stack((a, b)).squeeze(-1).softmax(0))


@pytest.mark.filterwarnings("ignore:.*rescales the output")
@pytest.mark.parametrize("merge", [exponentials, sigmoid, stacked, by_einsum])
@pytest.mark.parametrize("fused", [False, True])
def test_parts_of_the_keys_are_changed_together(merge, fused, x):
    class Merged(Layer):
        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
            parts = []
            for key, value in zip(k[:, :2].split(3, 2), v[:, :2].split(3, 2), strict=True):
                if fused:
                    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q[:, :2], key, value, scale=1.0)
                    parts += [found[0], found[1].unsqueeze(-1)]
                else:
                    scores = q[:, :2] @ key.mT
                    parts += [scores.softmax(-1) @ value, scores.logsumexp(-1, keepdim=True)]
            return self.output(merge(*parts).transpose(1, 2).flatten(2))

    layer = Merged("values").double()
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
        assert [found.shape for found in maps.values()] == [(2, 2, 6, 6)]
        with mask_heads(layer, {"Merged": [0, 1], "Merged#2": [0, 1]}):
            torch.testing.assert_close(layer(x), layer.output.bias.expand(2, 6, 8))
        with regard.edit(layer, "Merged*", queries=2):
            torch.testing.assert_close(layer(x)[:, 2], layer.output.bias.expand(2, 8))
    for where, heads in (("Merged", [0]), ("Merged*", [0])):
        with (
            torch.no_grad(),
            pytest.raises(ValueError, match="in parts"),
            regard.edit(layer, where, keys=0, heads=heads),
        ):
            layer(x)
    with torch.no_grad(), pytest.raises(ValueError, match="in parts"), mask_heads(layer, {"Merged": [0]}):
        layer(x)


def test_differential_attention_of_transformers(transformers):
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.DiffLlamaConfig(vocab_size=50, num_hidden_layers=1, max_position_embeddings=64, **sizes)
    model, ids = transformers.DiffLlamaForCausalLM(config).double().eval(), torch.randint(0, 50, (2, 7))
    name, seen = "model.layers.0.self_attn", []
    for heads in ({name: [0]}, {name: [0], f"{name}#2": [0]}, {name: [0, 2]}):
        with pytest.raises(ValueError, match="not changed as asked"), torch.no_grad(), mask_heads(model, heads):
            model(ids)
    keep = model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(lambda layer, args: seen.append(args[0]))
    with torch.no_grad(), mask_heads(model, {name: [0, 2], f"{name}#2": [0, 2]}):
        model(ids)
    keep.remove()
    first, second = seen[0].chunk(2, -1)  # the two heads of the map
    assert not first.any()
    assert second.any()
