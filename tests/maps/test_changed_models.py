"""A model that changed between captures: what was learned about it before must not be used where it no longer holds."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.maps._segments import image_tokens_of


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
