"""Our own layers and models tell capture what no kernel shows."""

import pytest
import torch
from torch import nn

import regard
from regard.analysis import importance, mask_heads
from regard.functional import gaussian_attention, gaussian_weights
from regard.layers import GatedPositionalAttention, GaussianAttention, MultiHeadAttention, RelativeAttention
from regard.models import Seq2SeqRNN, Transformer, VisionTransformer

GRID = (3, 4)


@pytest.fixture
def x():
    return torch.randn(2, 12, 8)


def test_a_gaussian_layer_builds_its_map_only_when_asked(x, monkeypatch):
    layer = GaussianAttention(8, 4)
    built = []
    monkeypatch.setattr(GaussianAttention, "weights", _counting(GaussianAttention.weights, built))
    plain = layer(x, grid=GRID)
    assert not built
    with regard.capture(layer) as maps:
        out = layer(x, grid=GRID)
    assert len(built) == 1
    assert torch.equal(out, plain)
    found = maps["GaussianAttention"]
    expected = gaussian_weights(layer.center, layer.sharpness, GRID).detach()
    assert found.weights.shape == (2, 4, 12, 12)
    torch.testing.assert_close(found.weights[1], expected)
    assert found.latest.stored.shape[0] == 1  # the same for the whole batch: kept once
    assert (found.kind, found.grid, found.prefix) == ("gaussian", GRID, 0)
    assert found.agrees


def _counting(function, built):
    def counted(self, *args, **kwargs):
        built.append(1)
        return function(self, *args, **kwargs)

    return counted


@pytest.mark.parametrize(
    "layer",
    [
        lambda: GaussianAttention(8, 4),
        lambda: RelativeAttention(8, 4, extent=(5, 5)),
        lambda: RelativeAttention(8, 4, extent=(5, 5), content=True),
        lambda: GatedPositionalAttention(8, 4),
    ],
    ids=["gaussian", "relative", "relative with content", "gated"],
)
@pytest.mark.parametrize("return_weights", [False, True])
def test_every_positional_layer_tells_one_map_and_it_is_right(layer, x, return_weights):
    layer = layer()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        with regard.capture(layer) as maps:
            layer(x, grid=GRID, return_weights=return_weights)
        expected = layer(x, grid=GRID, return_weights=True)[1]
    assert list(maps) == [type(layer).__name__]
    assert not maps.missed
    torch.testing.assert_close(maps[0].weights, expected.expand(2, -1, -1, -1), atol=1e-6, rtol=1e-5)
    assert maps[0].residual < 1e-5


@pytest.mark.parametrize("plan", ["dense", "separable"])
def test_the_function_is_seen_in_a_module_of_ones_own(plan):
    center, sharpness = torch.randn(4, 2), torch.rand(4) + 0.5

    class Own(nn.Module):
        def forward(self, value, **options):
            return regard.gaussian_attention(value, center, sharpness, GRID, plan=plan, **options)

    model, value = Own(), torch.randn(2, 4, 12, 3)
    code = gaussian_attention.__code__
    for options in ({}, {"queries": [torch.tensor([0.5, 1.0]), torch.tensor([2.0])]}):
        plain = model(value, **options)
        with regard.capture(model) as maps:
            out = model(value, **options)
        assert torch.equal(out, plain)
        torch.testing.assert_close(maps["Own"].weights[1], gaussian_weights(center, sharpness, GRID, **options))
        assert (maps[0].kind, maps[0].grid, maps[0].agrees) == ("gaussian", GRID, True)
    assert gaussian_attention.__code__ is code
    with mask_heads(model, {"Own": [0, 1, 2, 3]}):
        assert not model(value).any()


def test_a_wrong_map_of_a_gaussian_layer_is_noticed(x, spoiled):
    layer = GaussianAttention(8, 4)
    with pytest.warns(UserWarning, match="do not reproduce"), regard.capture(layer) as maps:
        layer(x, grid=GRID)
    assert maps[0].residual > 0.01


def test_what_is_part_of_a_larger_map_gives_its_room_back(x, tmp_path):
    layer = GatedPositionalAttention(8, 4)
    size = 2 * 4 * 12 * 12 * 4
    with regard.capture(layer, budget=size) as maps:
        layer(x, grid=GRID)
    assert not maps.missed
    with regard.capture(layer, stream=tmp_path / "maps"):
        layer(x, grid=GRID)
    assert len(list((tmp_path / "maps").glob("*.map"))) == 1


def test_what_is_part_of_a_larger_map_is_not_folded():
    layer = GatedPositionalAttention(8, 4)
    batches = [torch.randn(2, 12, 8) for _ in range(3)]

    def total(so_far, weights):
        if so_far is None:
            return weights.sum(0)
        return so_far.add_(weights.sum(0))  # in place: what was folded cannot be taken out again

    with torch.no_grad(), regard.capture(layer, reduce=total) as maps:
        for x in batches:
            layer(x, grid=GRID)
    with torch.no_grad():
        expected = sum(layer(x, grid=GRID, return_weights=True)[1].sum(0) for x in batches)
    torch.testing.assert_close(maps[0].reduced, expected)
    assert len(maps[0].calls) == 3


@pytest.mark.parametrize("options", [{}, {"return_weights": True}, {"causal": True}])
def test_multi_head_attention_by_kernel_or_by_hand(options, x):
    layer = MultiHeadAttention(8, 4)
    with regard.capture(layer) as maps:
        layer(x, **options)
    expected = layer(x, **{**options, "return_weights": True})[1].detach()
    torch.testing.assert_close(maps["MultiHeadAttention"].weights, expected)
    assert maps[0].against == ("product" if "return_weights" in options else "kernel")


def test_hard_attention_is_seen_too(x):
    layer = MultiHeadAttention(8, 4, beta=float("inf"))
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    assert set(maps[0].weights.unique().tolist()) == {0.0, 1.0}
    assert maps[0].agrees


def test_our_vision_transformer_says_its_grid_and_prefix():
    model = VisionTransformer(32, 8, 5, dim=16, depth=2, heads=2, registers=2)
    for size in ((32, 32), (16, 40)):
        with torch.no_grad(), regard.capture(model.eval()) as maps:
            model(torch.randn(1, 3, *size))
        assert (maps[0].grid, maps[0].prefix) == ((size[0] // 8, size[1] // 8), 3)
    assert regard.rollout(maps).shape == (1, 13, 13)
    found = regard.locality(maps)
    assert len(found) == 4


def test_heads_of_gaussian_layers_can_be_silenced_and_weighed(x):
    class Model(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer, self.head = layer, nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.layer(x, grid=GRID).tanh().mean(1))

    for layer in (GaussianAttention(8, 4), GatedPositionalAttention(8, 4)):
        model, labels = Model(layer), torch.tensor([0, 1])
        found = importance(model, [(x, labels)])
        assert found.scores["layer"].shape == (4,)
        assert (found.scores["layer"] > 0).all()
        with torch.no_grad(), mask_heads(model, {"layer": [0, 1, 2, 3]}):
            silent = model(x)
        torch.testing.assert_close(silent[0], silent[1])  # nothing of the input is left


def test_a_gaussian_layer_is_replaced_by_itself(x):
    layer = GaussianAttention(8, 4)
    with torch.no_grad():
        plain = layer(x, grid=GRID)
        with regard.capture(layer) as maps:
            layer(x, grid=GRID)
        found = regard.locality(maps)
        with regard.replace_heads(layer, found):
            torch.testing.assert_close(layer(x, grid=GRID), plain, atol=1e-3, rtol=1e-2)
    assert min(head.fit for head in found) > 0.99


@pytest.mark.parametrize("kind", ["additive", "dot"])
@pytest.mark.parametrize("return_weights", [True, False])
def test_alignments_of_a_recurrent_translator_are_seen_once(kind, return_weights):
    model = Seq2SeqRNN(11, dim=8, hidden=8, attention=kind).eval()
    source, target = torch.randint(0, 11, (2, 5)), torch.randint(0, 11, (2, 4))
    keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    with torch.no_grad():
        _, expected = model(source, target, source_keep=keep, return_weights=True)
        with regard.capture(model) as maps:
            model(source, target, source_keep=keep, return_weights=return_weights)
    assert list(maps) == ["attention"]
    assert len(maps[0].calls) == 1
    torch.testing.assert_close(maps[0].weights[:, 0], expected)
    assert maps[0].agrees


def test_our_transformer_attends_to_itself_and_across():
    model = Transformer(13, dim=16, depth=1, heads=2, hidden=16).eval()
    source, target = torch.randint(0, 13, (2, 5)), torch.randint(0, 13, (2, 4))
    with torch.no_grad(), regard.capture(model) as maps:
        model(source, target)
    assert sorted(found.shape[2:] for found in maps.values()) == [(4, 4), (4, 5), (5, 5)]
    assert maps.residual < 1e-5


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(
    "make",
    [
        lambda **options: GaussianAttention(8, 2, **options),
        lambda **options: GaussianAttention(8, 2, covariance="full", **options),
        lambda **options: GatedPositionalAttention(8, 4, **options),
        lambda **options: RelativeAttention(8, 2, (3, 4), content=False, **options),
    ],
)
def test_dropout_in_training_enters_neither_the_map_nor_its_check(make, dropout):
    layer, x = make(dropout=dropout), torch.randn(2, 3, 4, 8)
    torch.manual_seed(0)
    expected = layer(x)
    torch.manual_seed(0)
    with regard.capture(layer) as maps:
        out = layer(x)
    torch.testing.assert_close(out, expected)  # the same entries were dropped
    assert maps[0].agrees
    assert ("without dropout" in maps[0].against) == bool(dropout)
    with regard.capture(layer.eval()) as without:
        layer(x)
    torch.testing.assert_close(maps[0].weights, without[0].weights)
