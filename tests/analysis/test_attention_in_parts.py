"""Analyses of attention that a model computes in parts: head by head, in chunks of queries, or twice with the same map."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.analysis import heads_in, importance, mask_heads, pruning_curve

WAYS = ["whole", "heads", "queries", "values", "modules"]


class Head(nn.Module):
    """One head, as lectures write it."""

    def __init__(self, layer, number):
        super().__init__()
        self.layer, self.number = [layer], number  # not a child of this module

    def forward(self, x):
        query, key, value = (part[:, self.number] for part in self.layer[0].project(x))
        return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value


class Layer(nn.Module):
    """Multi-head attention, computed in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.way, self.num_heads = way, 2
        self.qkv, self.output = nn.Linear(8, 24), nn.Linear(8, 8)
        if way == "modules":
            self.heads = nn.ModuleList(Head(self, number) for number in range(2))

    def project(self, x):
        return self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        query, key, value = self.project(x)
        if self.way == "modules":
            return self.output(torch.cat([head(x) for head in self.heads], -1))
        if self.way == "heads":
            parts = [F.scaled_dot_product_attention(query[:, h], key[:, h], value[:, h]) for h in range(2)]
            return self.output(torch.cat(parts, -1))
        if self.way == "queries":
            mixed = torch.cat([F.scaled_dot_product_attention(part, key, value) for part in query.split(3, 2)], 2)
        elif self.way == "sliced":  # three of the heads of all samples at a time, as in diffusers
            query, key, value = (part.flatten(0, 1) for part in (query, key, value))
            mixed = torch.zeros_like(query)
            for some in (slice(0, 3), slice(3, None)):
                mixed[some] = F.scaled_dot_product_attention(query[some], key[some], value[some])
            mixed = mixed.unflatten(0, (-1, 2))
        elif self.way == "values":
            mixed = torch.cat([F.scaled_dot_product_attention(query, key, part) for part in value.split(2, 3)], 3)
        else:
            mixed = F.scaled_dot_product_attention(query, key, value)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Network(nn.Module):
    def __init__(self, way="whole"):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Layer(way) for _ in range(2)), nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(1))


@pytest.fixture
def x():
    return torch.randn(2, 6, 8, dtype=torch.float64)


def network(way):
    torch.manual_seed(1)
    return Network(way).double().eval()


@pytest.mark.parametrize("way", [*WAYS, "sliced"])
def test_rollout_and_relevance_do_not_depend_on_the_way(way, x):
    maps = []
    for model in (network("whole"), network(way)):
        with torch.no_grad(), regard.capture(model) as captured:
            model(x)
        maps.append(captured)
    torch.testing.assert_close(regard.rollout(maps[1]), regard.rollout(maps[0]))
    want = regard.relevance(network("whole"), x, 1)
    torch.testing.assert_close(regard.relevance(network(way), x, 1), want)
    only = regard.relevance(network("whole"), x, 1, only="blocks.1")
    torch.testing.assert_close(regard.relevance(network(way), x, 1, only=["blocks.1", "blocks.1.heads.*"]), only)


@pytest.mark.parametrize("way", ["heads", "queries", "values", "sliced"])
def test_a_map_that_is_chosen_by_its_name_is_whole(way, x):
    model = network(way)
    with torch.no_grad(), regard.capture(model, only="blocks.1") as maps:
        model(x)
    model_whole = network("whole")
    with torch.no_grad(), regard.capture(model_whole, only="blocks.1") as want:
        model_whole(x)
    assert list(maps) == list(want)
    torch.testing.assert_close(maps[0].weights, want[0].weights)


def test_an_edit_of_a_part_is_not_taken_for_one_of_the_map(x):
    whole = network("whole")
    with regard.capture(whole) as maps:
        whole(x)
    for way, options in (
        ("heads", {"keys": 0}), ("heads", {"heads": 1, "keys": 0, "where": "blocks.0*"}), ("queries", {"keys": 0}),
        ("queries", {"queries": 4, "where": "blocks.0*"}), ("queries", {"weights": maps, "where": "blocks.0"}),
    ):  # fmt: skip
        with (
            pytest.raises(ValueError, match=r"computed in parts|has 1 heads"),
            regard.edit(network(way), **{"where": "blocks.0", **options}) as edited,
        ):
            edited.model(x)
    for way, options, same in (
        ("heads", {"where": "blocks.0", "heads": 0, "keys": 2}, {"heads": 0, "keys": 2}),
        ("heads", {"where": "blocks.0#2", "keys": 2}, {"heads": 1, "keys": 2}),
        ("heads", {"where": "blocks.0*", "keys": 2, "queries": 1}, {"keys": 2, "queries": 1}),
        ("queries", {"where": "blocks.0*", "heads": 1, "weights": torch.square}, {"heads": 1, "weights": torch.square}),
        ("queries", {"where": "blocks.0#2", "queries": 1, "keys": 2}, {"queries": 4, "keys": 2}),
    ):
        with regard.edit(network(way), **options) as edited:
            out = edited.model(x)
        with regard.edit(network("whole"), "blocks.0", **same) as edited:
            torch.testing.assert_close(out, edited.model(x))


def test_silencing_a_part_is_not_taken_for_silencing_the_head(x):
    want = network("whole")
    with mask_heads(want, {"blocks.0": [1]}):
        out = want(x)
    model = network("queries")
    with mask_heads(model, {"blocks.0": [1], "blocks.0#2": [1]}):
        torch.testing.assert_close(model(x), out)
    with (
        pytest.raises(ValueError, match=r"in parts: name all of them \(blocks.0, blocks.0#2\)"),
        mask_heads(model, {"blocks.0": [1]}),
    ):
        model(x)


def test_heads_of_some_samples_are_not_taken_for_heads(x):
    model, batches = network("sliced"), [(x, torch.tensor([0, 2]))]
    with pytest.raises(ValueError, match="some heads of some samples at a time"), mask_heads(model, {"blocks.0": [0]}):
        model(x)
    for method in ("gate", "leave_out"):
        with pytest.raises(ValueError, match="some heads of some samples at a time"):
            importance(model, batches, method=method)
    with pytest.raises(ValueError, match="ambiguous; edit all heads"), regard.edit(model, "blocks.0*", heads=0, keys=0):
        model(x)
    with regard.edit(model, "blocks.0*", keys=0) as edited, regard.edit(network("whole"), "blocks.0", keys=0) as want:
        torch.testing.assert_close(edited.model(x), want.model(x))


def test_heads_that_only_the_map_has_are_refused_with_those_of_the_model(x):
    """The second head of the map is the only one of ``blocks.0#2``."""
    model = network("heads")
    assert heads_in(model, lambda: model(x)) == {f"blocks.{i}{part}": 1 for i in range(2) for part in ("", "#2")}
    with regard.capture(model) as maps:
        model(x)
    last = max(regard.find_heads(maps["blocks.0*"], "first"), key=lambda found: found.head)
    with (
        pytest.raises(
            ValueError, match=r"below 1, got \[1\]. They are counted as the model computes them.*heads_in names"
        ),
        mask_heads(model, {last.name: [last.head]}),
    ):
        model(x)
    batches = [(x, torch.tensor([0, 2]))]
    curve = pruning_curve(model, batches, [(last.name, last.head)], points=2)
    assert curve[1:] == pruning_curve(model, batches, [("blocks.0#2", 0)], points=2)[1:]


@pytest.mark.parametrize("way", WAYS[:-1])
@pytest.mark.parametrize("method", ["gate", "leave_out"])
def test_importance_is_that_of_the_heads_of_the_maps(way, method, x):
    batches = [(x, torch.tensor([0, 2]))]
    want = importance(network("whole"), batches, method=method)
    found = importance(network(way), batches, method=method)
    assert list(found.scores) == ["blocks.0", "blocks.1"]
    for name, scores in want.scores.items():
        torch.testing.assert_close(found.scores[name], scores)
    assert pruning_curve(network(way), batches, found) == pruning_curve(network("whole"), batches, want)


@pytest.mark.parametrize("lengths", [(6, 3), (3, 6), (9, 2, 6)])
@pytest.mark.parametrize("method", ["gate", "leave_out"])
def test_batches_may_have_maps_of_other_parts(lengths, method):
    """Chunks of three queries: shorter texts have fewer."""
    batches = [(torch.randn(2, n, 8, dtype=torch.float64), torch.tensor([0, 2])) for n in lengths]
    want = importance(network("whole"), batches, method=method)
    found = importance(network("queries"), batches, method=method)
    assert list(found.scores) == ["blocks.0", "blocks.1"]
    for name, scores in want.scores.items():
        torch.testing.assert_close(found.scores[name], scores)
    assert pruning_curve(network("queries"), batches, found) == pruning_curve(network("whole"), batches, want)
    with pytest.raises(KeyError, match="no attention is named"):
        pruning_curve(network("queries"), batches, [("blocks.0#9", 0)], points=2)


def test_replacing_heads_of_a_part_is_refused(x):
    whole, model = network("whole"), network("queries")
    with torch.no_grad(), regard.capture(whole) as maps:
        whole(x)
    found = regard.locality(maps, grid=(6,))
    with pytest.raises(ValueError, match="parts"), torch.no_grad():
        regard.replace_heads(model, found)(x)


def test_relevance_refuses_differences_and_sums(x):
    class Difference(Layer):
        def forward(self, x):
            query, key, value = self.project(x)
            one = F.scaled_dot_product_attention(query, key, value)
            two = F.scaled_dot_product_attention(key, query, value)
            return self.output((one - 0.3 * two).transpose(1, 2).flatten(2))

    model = network("whole")
    model.blocks[1] = Difference("whole").double()
    with pytest.raises(
        ValueError, match=r"'blocks.1' is a sum or a difference of several attentions .*: leave it out with only="
    ):
        regard.relevance(model, x, 1)
    assert regard.relevance(model, x, 1, only="blocks.0").shape == (2, 6, 6)
