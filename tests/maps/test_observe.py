"""Layers of users that declare their attention with ``regard.maps.observe``."""

import pytest
import torch
from torch import nn

import regard
from regard.analysis import mask_heads
from regard.functional import gaussian_attention
from regard.maps import observe, on_grid, unobserved


class Blended(nn.Module):
    """The mean of two attentions that capture would recognize: two maps, unless the layer declares one."""

    def __init__(self, declared=True, right=True):
        super().__init__()
        self.declared, self.right = declared, right

    def weights(self, x):
        first, second = (x @ x.mT).softmax(-1), (-x @ x.mT).softmax(-1)
        return (first + second) / 2 if self.right else first

    def forward(self, x):  # (batch, heads, tokens, width)
        def output():
            return ((x @ x.mT).softmax(-1) @ x + (-x @ x.mT).softmax(-1) @ x) / 2

        return observe(self, output, lambda: self.weights(x), value=x, kind="blend") if self.declared else output()


@pytest.fixture
def x():
    return torch.randn(2, 3, 5, 4)


def test_one_map_is_captured_and_its_parts_are_not(x):
    layer = Blended()
    plain = layer(x)
    with regard.capture(layer) as maps:
        assert torch.equal(layer(x), plain)
    assert list(maps) == ["Blended"]
    assert (maps[0].kind, maps[0].against, len(maps[0].calls)) == ("blend", "layer's heads", 1)
    torch.testing.assert_close(maps[0].weights, layer.weights(x))
    assert maps[0].agrees
    assert not maps.missed
    undeclared = Blended(declared=False)
    with regard.capture(undeclared) as found:
        undeclared(x)
    assert list(found) == ["Blended"]  # two attentions whose outputs are averaged: their maps are, too
    assert found[0].kind != "blend"
    torch.testing.assert_close(found[0].weights, layer.weights(x))


def test_parts_are_not_folded_either(x):
    layer = Blended()
    with regard.capture(layer, reduce=lambda total, weights: (0 if total is None else total) + weights.sum()) as maps:
        layer(x)
        layer(x)
    torch.testing.assert_close(maps[0].reduced, torch.tensor(2.0 * 2 * 3 * 5))


def test_a_wrong_declaration_is_noticed(x):
    layer = Blended(right=False)
    with pytest.warns(UserWarning, match="do not reproduce"), regard.capture(layer) as maps:
        layer(x)
    assert not maps[0].agrees


def test_the_map_is_not_built_unless_somebody_wants_it(x):
    layer = Blended()
    layer.weights = None  # calling it would be an error
    layer(x)
    with pytest.warns(UserWarning, match="matches none of Blended"), regard.capture(layer, only="other"):
        layer(x)
    with mask_heads(layer, {"Blended": [1]}):
        assert not layer(x)[:, 1].any()


def test_an_error_in_a_declaration_is_missed_and_the_model_runs(x):
    class Broken(nn.Module):
        def forward(self, x):
            return observe(self, x, lambda: torch.ones(2, 3, 5, 7), value=x)

    layer = Broken()
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(layer) as maps:
        assert torch.equal(layer(x), x)
    assert "could not be computed" in maps.missed[0].reason


def test_a_single_head_and_an_output_that_is_no_product():
    class Single(nn.Module):
        def forward(self, x):
            return observe(self, lambda: x.tanh(), lambda: torch.eye(x.shape[1])[None], kind="identity")

    layer, x = Single(), torch.randn(2, 5, 4)
    with regard.capture(layer) as maps:
        layer(x)
    assert maps[0].weights.shape == (2, 1, 5, 5)
    assert maps[0].against.startswith("nothing")


def test_a_model_declares_the_grid_of_its_tokens():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, grid):
            return on_grid(grid, self.block, x, x, x, need_weights=False)[0]

    model = Model()
    for grid in ((3, 4), (2, 6)):
        with regard.capture(model) as maps:
            model(torch.randn(1, 12, 8), grid)
        assert (maps[0].grid, maps[0].prefix) == (grid, 0)
    with regard.capture(model) as maps:
        model(torch.randn(1, 13, 8), (3, 4))  # another number of tokens: the declaration is not about these
    with pytest.raises(ValueError, match="not known"):
        maps[0].layout()


def test_what_is_unobserved_is_no_attention(x):
    class Hidden(nn.Module):
        def forward(self, x):
            return unobserved(lambda: (x @ x.mT).softmax(-1) @ x)

    layer = Hidden()
    with pytest.warns(UserWarning, match="no attention was seen"), regard.capture(layer) as maps:
        layer(x)
    assert not maps.missed


def test_declarations_outside_of_the_model_are_missed(x):
    layer, other = Blended(), nn.Linear(4, 4)
    with pytest.warns(UserWarning, match="outside of the model"), regard.capture(other) as maps:  # noqa: PT031
        layer(x)
        gaussian_attention(torch.randn(1, 1, 4, 2), torch.zeros(1, 2), torch.ones(1), (2, 2))
    assert [missed.name for missed in maps.missed] == ["(outside the model)"] * 2
