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


NEIGHBORS = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
SIGNED = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def _scores(q, k):
    return (q @ k.mT).softmax(-1)


# Weights -> the map, a product with a matrix that is no map itself.
MATRICES = {
    "neighbors": lambda w: w @ NEIGHBORS,
    "a matrix for each sample": lambda w: w @ NEIGHBORS.expand(2, 1, 6, 6).contiguous(),
    "einsum": lambda w: torch.einsum("bhqm,mk->bhqk", w, NEIGHBORS),
    "of either sign": lambda w: w @ (NEIGHBORS - 0.5),
    "divided by sums": lambda w: (y := w @ NEIGHBORS.softmax(-1)) / y.sum(-1, keepdim=True),
    "of queries": lambda w: NEIGHBORS @ w,
    "fewer queries": lambda w: NEIGHBORS[:3] @ w,
}


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("options", ["kept", "reduce", "reduce, some rows"])
@pytest.mark.parametrize("name", MATRICES)
def test_the_product_of_a_map_and_a_matrix_is_the_map(name, options, dropout):
    folds = {
        "reduce": {"reduce": lambda total, weights: weights},
        "reduce, some rows": {"reduce": lambda total, weights, rows: weights},
    }

    class Smoothed(nn.Module):
        num_heads = 3

        def forward(self, q, k, v):
            return MATRICES[name](nn.functional.dropout(_scores(q, k), dropout)) @ v

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 6, 4).unbind(0)
    network = Smoothed()
    with torch.no_grad(), regard.capture(network, **folds.get(options, {})) as maps:
        network(q, k, v)
    assert list(maps) == ["Smoothed"]
    assert not maps.missed
    found = maps[0].weights if options == "kept" else maps[0].reduced
    torch.testing.assert_close(found, MATRICES[name](_scores(q, k)))
    assert maps[0].agrees


def test_heads_in_a_loop_are_joined_after_a_product_with_a_matrix():
    class Loop(nn.Module):
        num_heads = 3

        def forward(self, q, k, v):
            return torch.stack([(_scores(q[:, i], k[:, i]) @ NEIGHBORS) @ v[:, i] for i in range(3)], 1)

    q, k, v = torch.randn(3, 2, 3, 6, 4).unbind(0)
    network = Loop()
    with torch.no_grad(), regard.capture(network) as maps:
        network(q, k, v)
    assert list(maps) == ["Loop"]
    torch.testing.assert_close(maps[0].weights, _scores(q, k) @ NEIGHBORS)


def test_a_matrix_that_may_be_values_is_announced():
    """A matrix of either sign for each sample looks like values, and what follows like the keys of another attention."""

    class Unclear(nn.Module):
        def forward(self, q, k, v):
            return (_scores(q, k) @ SIGNED) @ v

    network = Unclear()
    with torch.no_grad(), regard.capture(network) as maps:
        network(*torch.randn(3, 2, 3, 6, 4).unbind(0))
    assert [missed.name for missed in maps.missed] == ["Unclear"]


def test_as_many_channels_as_keys_are_values():
    """An output that is compared with its own values, or projected, is no map."""

    class Retrieval(nn.Module):
        num_heads = 3

        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(6, 6)

        def forward(self, q, k):
            found = _scores(q, k) @ k
            return self.proj((_scores(found, k) @ k).transpose(1, 2))

    q, k = torch.randn(2, 2, 3, 6, 6).unbind(0)
    network = Retrieval()
    with torch.no_grad(), regard.capture(network) as maps:
        network(q, k)
    assert list(maps) == ["Retrieval", "Retrieval#2"]
    assert not maps.missed
    torch.testing.assert_close(maps[0].weights, _scores(q, k))
