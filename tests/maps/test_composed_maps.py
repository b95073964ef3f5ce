"""Maps that a model multiplies with each other before it multiplies them with values: the product is the map."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard

# Two maps -> the map that is multiplied with the values.
COMPOSITIONS = {
    "two steps": lambda first, second: first @ first,
    "one after the other": lambda first, second: first @ second,
    "a walk": lambda first, second: 0.5 * first + 0.3 * (first @ first) + 0.2 * (first @ first @ first),
    "bmm": lambda first, second: torch.bmm(first.flatten(0, 1), second.flatten(0, 1)).view_as(first),
    "einsum": lambda first, second: torch.einsum("bhij,bhjk->bhik", first, second),
    "an inverse": lambda first, second: first @ torch.linalg.inv(second + torch.eye(6)),
    "similarity of rows": lambda first, second: first @ first.mT,
}


class Composed(nn.Module):
    num_heads = 3

    def __init__(self, compose):
        super().__init__()
        self.compose = compose

    def forward(self, q, k, v):
        return self.compose((q @ k.mT).softmax(-1), (k @ q.mT).softmax(-1)) @ v


def tensors(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(2, 3, 6, 4, dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in COMPOSITIONS),
        *((name, torch.bfloat16) for name in COMPOSITIONS if name != "an inverse"),  # torch inverts none in bfloat16
    ],
)
def test_the_product_of_maps_is_the_map(name, dtype):
    model, (q, k, v) = Composed(COMPOSITIONS[name]), tensors(dtype)
    with regard.capture(model) as maps:
        model(q, k, v)
    expected = model.compose((q @ k.mT).softmax(-1), (k @ q.mT).softmax(-1))
    assert list(maps) == ["Composed"]
    assert not maps.missed
    assert maps[0].agrees
    torch.testing.assert_close(maps[0].weights, expected.float())


def test_a_wrong_product_of_maps_is_noticed(spoiled):
    model = Composed(COMPOSITIONS["two steps"])
    with pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model) as maps:
        model(*tensors())
    assert maps[0].residual > 0.01


def test_dropout_enters_no_product_of_maps():
    model, (q, k, v) = Composed(lambda first, second: F.dropout(first, 0.3) @ second), tensors()
    with regard.capture(model) as maps:
        model(q, k, v)
    torch.testing.assert_close(maps[0].weights, (q @ k.mT).softmax(-1) @ (k @ q.mT).softmax(-1))
    assert maps[0].agrees


def test_a_product_of_maps_that_no_values_follow_is_no_map():
    """A model may multiply the maps of its layers for itself, as attention rollout does."""

    class Rolling(nn.Module):
        num_heads = 3

        def forward(self, q, k, v):
            first = (q @ k.mT).softmax(-1)
            second = (k @ q.mT).softmax(-1)
            self.flow = first @ second
            return first @ v + second @ v

    model, (q, k, v) = Rolling(), tensors()
    with regard.capture(model) as maps:
        model(q, k, v)
    assert [tuple(found.shape) for found in maps.values()] == [(2, 3, 6, 6)] * 2
    torch.testing.assert_close(maps[1].weights, (k @ q.mT).softmax(-1))
    assert not maps.missed


def test_a_product_of_maps_without_values_is_missed():
    class Comparing(nn.Module):
        num_heads = 3

        def forward(self, q, k):
            return ((q @ k.mT).softmax(-1) @ (k @ q.mT).softmax(-1)).amax(-1)

    model, (q, k, _) = Comparing(), tensors()
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        model(q, k)
    assert [missed.name for missed in maps.missed] == ["Comparing"]


def test_probabilities_are_values():
    """Labels that spread to similar tokens: their softmax is not over keys."""

    class Spreading(nn.Module):
        num_heads = 3

        def forward(self, q, k, v):
            return (q @ k.mT).softmax(-1) @ v.softmax(-1)

    model, (q, k, v) = Spreading(), tensors()
    with regard.capture(model) as maps:
        model(q, k, v)
    torch.testing.assert_close(maps[0].weights, (q @ k.mT).softmax(-1))


class Nystrom(nn.Module):
    """Attention by three landmarks of two tokens each, with an approximate inverse of the map between landmarks."""

    def __init__(self, at_once):
        super().__init__()
        self.num_heads, self.at_once, self.qkv = 3, at_once, nn.Linear(12, 36)

    def maps(self, q, k):
        few_q, few_k = (x.unflatten(2, (3, 2)).mean(3) for x in (q, k))
        one, two, three = ((x @ y.mT).softmax(-1) for x, y in ((q, few_k), (few_q, few_k), (few_q, k)))
        inverse = two.mT / (two.sum(-1).amax() * two.sum(-2).amax())
        for _ in range(6):
            both = two @ inverse
            inverse = (
                0.25 * inverse @ (13 * torch.eye(3) - both @ (15 * torch.eye(3) - both @ (7 * torch.eye(3) - both)))
            )
        return one @ inverse, three

    def split(self, x):
        return (y.unflatten(-1, (3, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))

    def forward(self, x):
        q, k, v = self.split(x)
        first, second = self.maps(q, k)
        out = (first @ second) @ v if self.at_once else first @ (second @ v)
        return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("at_once", [True, False])
def test_attention_by_landmarks_has_one_map_or_two(at_once):
    """Tokens look at landmarks, and these at tokens: the steps of the inverse between them are no attention."""
    torch.manual_seed(0)
    layer, x = Nystrom(at_once), torch.randn(2, 6, 12)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    with torch.no_grad():
        q, k, _ = layer.split(x)
        first, second = layer.maps(q, k)
    expected = [first @ second] if at_once else [second, first]
    assert not maps.missed
    assert len(maps) == len(expected)
    for found, weights in zip(maps.values(), expected, strict=True):
        assert found.agrees
        torch.testing.assert_close(found.weights, weights, atol=1e-4, rtol=1e-4)
