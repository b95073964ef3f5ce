"""Values that differ from query to query: heads are not taken for queries, however the product is written."""

import pytest
import torch
from torch import nn

import regard

HEADS, WIDTH = 4, 3


def multiplied(a, values, heads_last=False):
    if heads_last:
        return (a.permute(0, 2, 3, 1).unsqueeze(-1) * values.unsqueeze(3)).sum(2).transpose(1, 2)
    return (a.unsqueeze(-1) * values.unsqueeze(1)).sum(3)


def folded(a, values):
    """Relative positions as in Shaw et al.: one product for the heads of all samples."""
    batch, heads, queries, keys = a.shape
    out = a.permute(2, 0, 1, 3).reshape(queries, batch * heads, keys) @ values
    return out.reshape(queries, batch, heads, -1).permute(1, 2, 0, 3)


def turned(a):
    return a.transpose(1, 2)


def copied(a):
    return a.transpose(1, 2).contiguous()


def pairs(a):
    return torch.randn(a.shape[0], *a.shape[2:], WIDTH)


def positions(a):
    return torch.randn(*a.shape[2:], WIDTH)


# Weights (batch, heads, queries, keys) -> the output in the same order.
PRODUCTS = {
    "matmul": lambda a: (turned(a) @ pairs(a)).transpose(1, 2),
    "matmul of a copy": lambda a: (copied(a) @ pairs(a)).transpose(1, 2),
    "matmul, positions": lambda a: (turned(a) @ positions(a)).transpose(1, 2),
    "matmul, folded": lambda a: folded(a, positions(a)),
    "sum": lambda a: multiplied(a, pairs(a)),
    "sum, heads last": lambda a: multiplied(a, pairs(a), heads_last=True),
    "sum, positions": lambda a: multiplied(a, positions(a)[None]),
    "einsum": lambda a: torch.einsum("bhij,bijc->bhic", a, pairs(a)),
    "einsum, queries first": lambda a: torch.einsum("bihj,bijc->bhic", turned(a), pairs(a)),
    "einsum, positions": lambda a: torch.einsum("bhij,ijc->bhic", a, positions(a)),
    "einsum, positions, queries first": lambda a: torch.einsum("bihj,ijc->bhic", turned(a), positions(a)),
}


class Layer(nn.Module):
    num_heads = HEADS

    def __init__(self, product):
        super().__init__()
        self.product, self.qk, self.proj = product, nn.Linear(16, 2 * HEADS * WIDTH), nn.Linear(HEADS * WIDTH, 16)

    def forward(self, x):
        q, k = self.qk(x).unflatten(-1, (2, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        self.map = (q @ k.mT).softmax(-1)
        self.out = self.product(self.map)
        return self.proj(self.out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(("batch", "tokens"), [(2, 7), (HEADS, 7), (7, 7), (1, 7), (2, HEADS), (HEADS, HEADS)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_heads_do_not_become_queries(name, batch, tokens, dropout):
    torch.manual_seed(0)

    def product(a):
        return PRODUCTS[name](nn.functional.dropout(a, 0.5) if dropout else a)

    layer, x = Layer(product), torch.randn(batch, tokens, 16)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    assert maps[0].agrees
    if tokens == HEADS:  # nothing tells queries from heads
        assert maps[0].axes == "ambiguous"
    else:
        assert maps[0].axes != "ambiguous"
        torch.testing.assert_close(maps[0].weights, layer.map)


@pytest.mark.parametrize("name", PRODUCTS)
def test_an_output_goes_back_to_its_place(name):
    """Replacing the output of some heads changes these heads."""
    torch.manual_seed(0)
    layer, x = Layer(PRODUCTS[name]), torch.randn(2, 7, 16)
    seen = []

    class Doubling(regard.maps.RecordListener):
        def attended(self, record):
            seen.append(record.running.output)
            return 2 * record.running.output

    with torch.no_grad(), regard.maps.intercept(layer, Doubling()):
        torch.manual_seed(1)
        layer(x)
    doubled = layer.out
    with torch.no_grad():
        torch.manual_seed(1)
        layer(x)
    torch.testing.assert_close(seen[0], layer.out)
    torch.testing.assert_close(doubled, 2 * layer.out)


def test_as_many_heads_as_tokens_remain_heads_if_values_are_theirs():
    class Standard(Layer):
        def forward(self, x):
            self.values = self.qk(x).unflatten(-1, (2, HEADS, WIDTH))[:, :, 0].transpose(1, 2)
            return super().forward(x)

    for batch in (2, HEADS):
        layer = Standard(lambda a: a @ layer.values)  # noqa: B023
        with torch.no_grad(), regard.capture(layer) as maps:
            layer(torch.randn(batch, HEADS, 16))
        assert (maps[0].axes, maps[0].over) == ("known", "tokens")
        torch.testing.assert_close(maps[0].weights, layer.map)


# Scores (batch, heads, queries, 1, keys) and values (batch, heads, queries, keys, width) of each query -> the output.
RESHAPED = {
    "five axes": lambda s, v: s.squeeze(-2).softmax(-1).unsqueeze(-2) @ v,
    "three axes": lambda s, v: s.squeeze(-2).softmax(-1).reshape(-1, 1, 3) @ v.reshape(-1, 3, WIDTH),
    "four axes": lambda s, v: s.squeeze(-2).softmax(-1).flatten(0, 1).unsqueeze(-2) @ v.flatten(0, 1),
    "values that heads share": lambda s, v: s.squeeze(-2).softmax(-1).unsqueeze(-2) @ v[:, :1],
    "values that heads share, no reshape": lambda s, v: s.softmax(-1) @ v[:, :1],
}


@pytest.mark.parametrize("name", RESHAPED)
def test_keys_of_each_query_in_a_map_that_was_reshaped_for_the_product(name):
    class Nearest(Layer):
        """Each query attends to three keys of its own."""

        def forward(self, x):
            q, k = self.qk(x).unflatten(-1, (2, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
            near = torch.nn.functional.pad(k, (0, 0, 1, 1)).unfold(2, 3, 1).mT
            self.scores = q.unsqueeze(-2) @ near.mT
            return self.proj(self.product(self.scores, near).view(q.shape).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    layer = Nearest(RESHAPED[name])
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(torch.randn(2, 7, 16))
    assert not maps.missed
    torch.testing.assert_close(maps[0].weights, layer.scores.squeeze(-2).softmax(-1))
    assert (maps[0].over, maps[0].agrees) == ("samples", True)
