"""A model that changed between captures: what was learned about it before must not be used where it no longer holds."""

import copy
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.maps.repeats import _learning
from regard.maps.tokens._positions import InnerFunctions
from regard.maps.tokens._segments import image_tokens_of


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.num_heads = nn.Linear(8, 24), 2

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def capture(model, x):
    with regard.capture(model) as maps:
        model(x)
    return maps


class Alike(Attention):
    def __eq__(self, other):
        return isinstance(other, Alike)

    __hash__ = nn.Module.__hash__


def test_a_module_that_says_it_equals_the_one_before_is_another_one(x, seen):
    model = nn.Sequential(Alike()).eval()
    capture(model, x)
    seen.clear()
    capture(model, x)
    assert not seen
    model[0] = Alike().eval()
    capture(model, x)
    assert seen


def test_a_renamed_module_is_recorded_by_its_new_name(x):
    model = nn.Sequential(Attention()).eval()
    assert list(capture(model, x)) == list(capture(model, x)) == ["0"]
    model._modules["other"] = model._modules.pop("0")
    assert list(capture(model, x)) == list(capture(model, x)) == ["other"]


def test_a_model_that_was_moved_to_another_dtype_gives_the_maps_of_a_new_one(model, x, same):
    for changed in (model, model.double(), model.float(), model.train(), model.eval()):
        given = x.to(next(model.parameters()).dtype)
        expected = capture(copy.deepcopy(changed), given)
        for _ in range(3):
            same(capture(changed, given), expected)


def test_weights_that_changed_give_other_maps(model, x, same):
    with torch.no_grad():
        for _ in range(3):
            first = capture(model, x)
        for parameter in model.parameters():
            parameter.mul_(1.5)
        same(capture(model, x), capture(copy.deepcopy(model), x))
        model.blocks[0].qkv.weight = nn.Parameter(-model.blocks[0].qkv.weight)
        same(capture(model, x), capture(copy.deepcopy(model), x))
    assert not torch.equal(first[0].weights, capture(model, x)[0].weights)


def test_functions_that_were_patched_between_blocks_are_called(model, x, monkeypatch, same):
    kind, calls = type(model.blocks[0]), []
    usual = kind.forward

    def patched(self, x):
        calls.append(self)
        return usual(self, x)

    first = [capture(model, x) for _ in range(3)][-1]
    monkeypatch.setattr(kind, "forward", patched)
    for _ in range(3):
        same(capture(model, x), first)
    assert len(calls) == 9


def test_sites_that_are_known_from_an_earlier_block_are_kept_with_their_module(x, same):
    """Two layers of one form, of which the first block sees one: the other is recorded in full when it first runs."""

    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.chosen = nn.ModuleList([Attention(), Attention()]), [0]

        def forward(self, x):
            for i in self.chosen:
                x = self.layers[i](x)
            return x

    model = Either().eval()
    for chosen in ([0], [0], [0, 1], [1], [1, 0], [0, 1]):
        model.chosen = chosen
        expected = capture(copy.deepcopy(model), x)
        same(capture(model, x), expected)
        assert list(expected) == [f"layers.{i}" for i in chosen]


def test_a_forward_of_another_layer_in_the_place_of_its_own_is_recorded_as_in_full(x, monkeypatch, same):
    """The functions on the stack are the same, but ``self`` is another module."""
    model = nn.Sequential(Attention(), Attention(), Attention()).eval()
    with torch.no_grad():
        for _ in range(2):
            capture(model, x)
        with regard.capture(model) as maps:
            model(x)
            model[1].forward = model[0].forward
            model(x)
        monkeypatch.setattr(_learning.RepeatedCalls, "run", lambda *_: None)
        del model[1].forward
        with regard.capture(model) as expected:
            model(x)
            model[1].forward = model[0].forward
            model(x)
    same(maps, expected)
    assert [len(found.calls) for found in maps.values()] == [len(found.calls) for found in expected.values()]


class ByHand(Attention):
    def __init__(self, heads=2):
        super().__init__()
        self.qkv, self.num_heads, self.out = nn.Linear(8, 24), heads, nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


CHANGES = {
    "heads": lambda model: setattr(model[0], "num_heads", 4),
    "no heads": lambda model: delattr(model[0], "num_heads"),
    "module": lambda model: setattr(model, "0", ByHand(1)),
    "name": lambda model: model._modules.update({"other": model._modules.pop("0")}),
    "exchanged": lambda model: model._modules.update({"0": model[1], "1": model[0]}),
    "class": lambda model: setattr(model[1], "__class__", Attention),
    "projection": lambda model: setattr(model[0], "out", nn.Linear(8, 16)),
    "added": lambda model: model.insert(0, ByHand(4)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_known_of_attention_by_hand_is_that_of_the_model_as_it_is(x, same, monkeypatch, change):
    """Such models are learned as well, though each capture sees every function."""
    torch.manual_seed(0)
    monkeypatch.setattr(ByHand, "num_heads", 2, raising=False)
    model, compared = nn.Sequential(ByHand(), ByHand()).eval(), []
    form_of = _learning.form_of
    monkeypatch.setattr(_learning, "form_of", lambda *args: compared.append(args) or form_of(*args))
    with torch.no_grad():
        same(capture(model, x), capture(model, x))
        assert len(compared) == 1  # the second time, the model was the same
        CHANGES[change](model)
        model.eval()
        fresh = copy.deepcopy(model)
        if change == "projection":
            fresh[1].qkv, model[1].qkv = (nn.Linear(16, 24) for _ in range(2))
            model[1].qkv.load_state_dict(fresh[1].qkv.state_dict())
        for _ in range(2):
            same(capture(fresh, x), capture(model, x))
    assert len(compared) == 3


class OfImages(nn.Module):
    """States how its 16 tokens lie on an image, in a tuple and in a configuration."""

    def __init__(self, layer, configured):
        super().__init__()
        self.layer, self.patch_embed = layer, nn.Identity()
        if configured:
            self.config = SimpleNamespace(model_type="ijepa", image_size=(8, 8), patch_size=2)
        else:
            self.num_prefix_tokens, self.grid_size = 0, (4, 4)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("configured", [False, True])
@pytest.mark.parametrize("layer", [Attention, ByHand])
def test_a_grid_of_as_many_tokens_that_replaces_another_is_that_of_later_maps(layer, configured):
    model, x = OfImages(layer(), configured).eval(), torch.randn(1, 16, 8)
    with torch.no_grad():
        assert [capture(model, x).records[0].layout.grid for _ in range(2)] == [(4, 4)] * 2
        if configured:
            model.config.image_size = (4, 16)
        else:
            model.grid_size = (2, 8)
        assert [capture(model, x).records[0].layout.grid for _ in range(2)] == [(2, 8)] * 2
        model.added, model.grid_size = (1, 2), (2, 8)
        capture(model, x)
        model.added = torch.ones(2), torch.ones(2)  # cannot be compared with numbers
        assert capture(model, x).records[0].layout.grid == (2, 8)


def test_functions_that_are_made_anew_are_not_taken_for_freed_ones():
    names = ("cache", "other", "encoder_hidden_states", "layer_idx")
    for number in range(200):
        scope, name = {"here": sys._getframe}, names[number % 4]
        exec(f"def function(first, {name}=1): return here()", scope)
        found = InnerFunctions.of([scope.pop("function")(0)])
        assert [place[1] for place in (*found.caches, *found.others, *found.layers)] == [name] * (name != "other")
        assert found.first == ((0, "first"),)


class OfArgument(Attention):
    def forward(self, x, past_key_values=None, *, kv_cache=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Assigned(Attention):
    def forward(self, x, past_key_values=None, *, kv_cache=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, 4)).permute(2, 0, 3, 1, 4)
        past_key_values = past_key_values or kv_cache
        past_key_values = past_key_values and Cache(past_key_values.length + 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Cache:
    def __init__(self, length):
        self.length = length

    def get_seq_length(self):
        return self.length


@pytest.mark.parametrize("kind", [OfArgument, Assigned])
def test_caches_are_found_in_arguments_and_in_variables(kind, x):
    model, tokens = kind().eval(), x.shape[1]
    calls = [
        lambda: model(x),
        lambda: model(x, Cache(tokens + 3)),
        lambda: model(x, past_key_values=Cache(tokens + 4)),
        lambda: model(x, kv_cache=Cache(tokens + 5)),
        lambda: model(x, None, kv_cache=Cache(tokens + 6)),
    ]
    for _ in range(3):
        with torch.no_grad(), regard.capture(model) as maps:
            for call in calls:
                call()
    lengths = [record.positions.length for record in maps.records]
    more = kind is Assigned
    assert lengths == [tokens, *(tokens + n + more for n in (3, 4, 5, 6))]


@pytest.mark.parametrize(
    ("config", "token"),
    [
        (SimpleNamespace(), None),
        (SimpleNamespace(image_token_id=3), 3),
        (type("OfClass", (), {"image_token_index": 4})(), 4),
        (type("Inherited", (type("OfClass", (), {"image_token_index": 4}),), {}), 4),
        (type("Made", (), {"__getattr__": lambda self, name: 5})(), 5),
        (type("Property", (), {"image_token_id": property(lambda self: 6)})(), 6),
        ({"image_token_id": 7}, None),
        (None, None),
    ],
)
def test_image_tokens_are_found_wherever_a_configuration_states_them(config, token):
    model = nn.Identity()
    model.config = config
    found = image_tokens_of(model)
    assert (found and found.token) == token
