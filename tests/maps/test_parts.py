"""Attention that is computed in parts has one map, if what the model does with the parts' outputs proves it."""

from functools import partial

import einops
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import regard
from regard.maps.outputs import _outputs


def hand(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def kernel(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, scale=1.0)


def with_logsumexp(q, k, v):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=1.0)[:2]


def flex(q, k, v):
    return flex_attention(q, k, v, scale=1.0, return_lse=True)


def by_hand(q, k, v):
    scores = q @ k.mT
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def halves(k, v):
    return zip(k.split(3, 2), v.split(3, 2), strict=True)


def merged(attend, merge):
    def product(q, k, v):
        (first, a), (second, b) = (attend(q, *part) for part in halves(k, v))
        return merge(first, a.unsqueeze(-1), second, b.unsqueeze(-1))

    return product


def by_exponentials(first, a, second, b):
    whole = torch.logaddexp(a, b)
    return first * (a - whole).exp() + second * (b - whole).exp()


def divided_later(first, a, second, b):
    largest = torch.maximum(a, b)
    a, b = (a - largest).exp(), (b - largest).exp()
    return (a * first + b * second) / (a + b)


def by_sigmoid(first, a, second, b):
    share = torch.sigmoid(a - b)
    return share * first + (1 - share) * second


def stacked(first, a, second, b):
    return (torch.stack((first, second)) * torch.stack((a, b)).softmax(0)).sum(0)


def by_einsum(first, a, second, b):
    shares = torch.stack((a, b)).squeeze(-1).softmax(0)
    return torch.einsum("sbhnd,sbhn->bhnd", torch.stack((first, second)), shares)


def by_einsum_of_exponentials(first, a, second, b):
    shares = (torch.cat((a, b), -1) - torch.logaddexp(a, b)).exp()
    return torch.einsum("bhns,bhnsd->bhnd", shares, torch.stack((first, second), 3))


def split_weights(q, k, v):
    first, second = (q @ k.mT).softmax(-1).split([3, 2], -1)
    return first @ v[:, :, :3] + second @ v[:, :, 3:]


def causal_chunks(q, k, v):
    parts = [
        F.scaled_dot_product_attention(q[:, :, i : i + 2], k[:, :, : i + 2], v[:, :, : i + 2], scale=1.0)
        for i in (0, 2)
    ]
    return torch.cat(parts, 2)


def by_lerp(first, a, second, b):
    return torch.lerp(second, first, torch.sigmoid(a - b))


def by_difference(first, a, second, b):
    return first - torch.sigmoid(b - a) * (first - second)


def in_place(first, a, second, b):
    both = torch.logaddexp(a, b)
    return first.clone().mul_((a - both).exp()).add_(second * (b - both).exp())


def by_addcmul(first, a, second, b):
    both = torch.logaddexp(a, b)
    return torch.addcmul((a - both).exp() * first, second, (b - both).exp())


MERGES = (by_exponentials, divided_later, by_sigmoid, stacked, by_lerp, by_difference, in_place, by_addcmul)
MERGES = (*MERGES, by_einsum, by_einsum_of_exponentials)


def written(q, k, v, *, select, count, step=1):
    """The output of some queries, heads or samples at a time, written into one tensor."""
    out = torch.zeros_like(q)
    for start in range(0, count, step):
        index = select(slice(start, start + step) if step > 1 else start)
        out[index] = kernel(q[index], *((k, v) if index[:2] == (slice(None),) * 2 else (k[index], v[index])))
    return out


def sliced(q, k, v, *, step, join):
    """Some of the heads of all samples at a time, as in the sliced attention of diffusers."""
    folded = [x.flatten(0, 1) for x in (q, k, v)]
    out, parts = torch.zeros_like(folded[0]), []
    for start in range(0, len(out), step):
        parts.append(hand(*(x[start : start + step] for x in folded)))
        out[start : start + step] = parts[-1]
    return (torch.cat(parts) if join else out).unflatten(0, q.shape[:2])


WHOLE = {
    "heads": lambda q, k, v: torch.stack([hand(q[:, i], k[:, i], v[:, i]) for i in range(3)], 1),
    "heads, concatenated": lambda q, k, v: torch.cat(
        [kernel(*(x[:, i : i + 1] for x in (q, k, v))) for i in range(3)], 1
    ),
    "merged heads": lambda q, k, v: (
        torch.cat([hand(q[:, i], k[:, i], v[:, i]) for i in range(3)], -1).unflatten(-1, (3, 4)).transpose(1, 2)
    ),
    "samples": lambda q, k, v: torch.stack([hand(q[i], k[i], v[i]) for i in range(2)]),
    "samples of heads": lambda q, k, v: torch.stack(
        [torch.stack([hand(q[i, j], k[i, j], v[i, j]) for j in range(3)]) for i in range(2)]
    ),
    "queries": lambda q, k, v: torch.cat([hand(part, k, v) for part in q.split(1, 2)], 2),
    "chunks of queries": lambda q, k, v: torch.cat([kernel(part, k, v) for part in q.split(2, 2)], 2),
    "tokens before heads": lambda q, k, v: torch.cat(
        [kernel(part, k, v).transpose(1, 2).contiguous() for part in q.split(2, 2)], 1
    ).transpose(1, 2),
    "weights that are split": split_weights,
    "queries, written": partial(written, select=lambda i: (slice(None), slice(None), i), count=5, step=2),
    "heads, written": partial(written, select=lambda i: (slice(None), i), count=3),
    "samples, written": partial(written, select=lambda i: (i,), count=2),
    **{f"sliced by {n}": partial(sliced, step=n, join=False) for n in (1, 2, 3, 4)},
    **{f"sliced by {n}, concatenated": partial(sliced, step=n, join=True) for n in (1, 2, 3, 4)},
    **{
        f"{attend.__name__}, {merge.__name__}": merged(attend, merge)
        for attend in (with_logsumexp, by_hand)
        for merge in MERGES
    },
    "flex, divided_later": merged(flex, divided_later),
}


class Layer(nn.Module):
    def __init__(self, product):
        super().__init__()
        self.product, self.num_heads = product, 3
        self.qkv, self.proj = nn.Linear(12, 36), nn.Linear(12, 12)

    def split(self, x):
        return self.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        return self.proj(self.product(*self.split(x)).transpose(1, 2).flatten(2))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("name", WHOLE)
def test_parts_of_one_attention_have_one_map(name):
    torch.manual_seed(0)
    layer, x = Layer(WHOLE[name]), torch.randn(2, 5, 12)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    q, k, _ = layer.split(x)
    assert list(maps) == ["Layer"]
    assert not maps.missed
    assert maps[0].agrees
    torch.testing.assert_close(maps[0].weights, (q @ k.mT).softmax(-1))


@pytest.mark.parametrize("step", [1, 2, 4])
def test_heads_of_all_samples_in_parts_are_heads(step):
    """Also if the heads come first: the next step of the model shows it."""

    class HeadsFirst(Layer):
        def forward(self, x):
            q, k, v = (y.transpose(0, 1) for y in self.split(x))
            out = sliced(q, k, v, step=step, join=False)
            return self.proj(out.permute(1, 2, 0, 3).flatten(2))

    for kind in (Layer, HeadsFirst):
        layer, x = kind(partial(sliced, step=step, join=False)), torch.randn(2, 5, 12)
        with torch.no_grad(), regard.capture(layer) as maps:
            layer(x)
        q, k, _ = layer.split(x)
        torch.testing.assert_close(maps[0].weights, (q @ k.mT).softmax(-1))
        assert maps[0].axes == "known"
    with torch.no_grad(), regard.capture(layer, rows=0) as maps:
        layer(x)
    assert "which are joined to one map only without rows=" in str(maps)
    assert all(found.axes != "known" for found in maps.values() if found.shape[0] > 1)


def test_a_tensor_that_is_filled_by_something_else_joins_nothing():
    def product(q, k, v):
        out = torch.zeros_like(q)
        out[:, :, :2] = kernel(q[:, :, :2], k, v)
        out[:, :, 2:] = 0.5
        return out + kernel(q, k, v)

    layer, x = Layer(product), torch.randn(2, 5, 12)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    assert [found.shape[2] for found in maps.values()] == [2, 5]


def test_chunks_of_queries_that_see_the_keys_before_them():
    layer, x = Layer(causal_chunks), torch.randn(2, 4, 12)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    q, k, _ = layer.split(x)
    hidden = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]).bool()
    torch.testing.assert_close(maps["Layer"].weights, (q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1))


def test_windows_that_are_concatenated_are_zero_between():
    def windows(q, k, v):
        return torch.cat([kernel(*part) for part in zip(*(x.split(3, 2) for x in (q, k, v)), strict=True)], 2)

    layer, x = Layer(windows), torch.randn(2, 6, 12)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    q, k, _ = layer.split(x)
    apart = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)) == 0
    torch.testing.assert_close(maps["Layer"].weights, (q @ k.mT).masked_fill(apart, -torch.inf).softmax(-1))


@pytest.mark.parametrize(
    ("product", "count"),
    [
        (lambda q, k, v: kernel(q, k, v) + kernel(k, q, v[:, :, :].clone()), 2),  # each is whole
        (lambda q, k, v: torch.cat((kernel(q, k, v), kernel(k, q, v)), -1)[..., :4], 2),  # widths, not heads
        (lambda q, k, v: 0.25 * kernel(q, k, v) + 0.75 * kernel(k, q, v), 1),  # an average over the same keys
    ],
)
def test_sums_and_other_joins_of_whole_maps(product, count):
    layer, x = Layer(product), torch.randn(2, 5, 12)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    q, k, _ = layer.split(x)
    first, second = (q @ k.mT).softmax(-1), (k @ q.mT).softmax(-1)
    assert len(maps) == count
    torch.testing.assert_close(maps[0].weights, first if count == 2 else 0.25 * first + 0.75 * second)


def test_kernels_that_are_merged_in_another_way_are_announced():
    def merge(first, a, second, b):
        shares = torch.stack((a, b), -1).log_softmax(-1).exp()
        return torch.einsum("bhqwp,bhqdp->bhqd", shares, torch.stack((first, second), -1))

    layer = Layer(merged(with_logsumexp, merge))
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(torch.randn(2, 5, 12))
    assert [missed.name for missed in maps.missed if "alone" in missed.reason] == list(maps) == ["Layer", "Layer#2"]


LAMBDA = torch.tensor(0.3)


def _subtract_halves(first, second):
    return first - LAMBDA * second


def _mixed(first, second):
    return torch.stack((first, second), 2).flatten(1, 2)


def _every_other(out):
    return out[:, ::2] - LAMBDA * out[:, 1::2]


def _side_by_side(q, k, v):
    return torch.cat([kernel(q, k, half) for half in v.chunk(2, -1)], -1)


DIFFERENCES = {
    "a factor": lambda q, k, v: kernel(q, k, v) - LAMBDA * kernel(k, q, v),
    "by hand": lambda q, k, v: (q @ k.mT).softmax(-1) @ v - LAMBDA * ((k @ q.mT).softmax(-1) @ v),
    "in the values": lambda q, k, v: kernel(q, k, v) - kernel(k, q, LAMBDA * v),
    "in the values, by hand": lambda q, k, v: (q @ k.mT).softmax(-1) @ v - (k @ q.mT).softmax(-1) @ (v * LAMBDA),
    "alpha": lambda q, k, v: torch.sub(kernel(q, k, v), kernel(k, q, v), alpha=0.3),
    "a sum": lambda q, k, v: kernel(q, k, v) + (-LAMBDA) * kernel(k, q, v),
    "halves of the heads": lambda q, k, v: _subtract_halves(
        *kernel(torch.cat((q, k), 1), torch.cat((k, q), 1), torch.cat((v, v), 1)).chunk(2, 1)
    ),
    "every other head, values in two parts": lambda q, k, v: _every_other(
        torch.cat([kernel(_mixed(q, k), _mixed(k, q), _mixed(x, x)) for x in v.chunk(2, -1)], -1)
    ),
    "values in two parts": lambda q, k, v: _side_by_side(q, k, v) - LAMBDA * _side_by_side(k, q, v),
    "values in two parts, a sum": lambda q, k, v: _side_by_side(q, k, v) + -LAMBDA * _side_by_side(k, q, v),
    "a factor for each head": lambda q, k, v: kernel(q, k, v) - LAMBDA.expand(3, 1, 1) * kernel(k, q, v),
}


@pytest.mark.parametrize("name", list(DIFFERENCES))
def test_differential_attention_has_one_map_however_it_is_written(name):
    layer, x = Layer(DIFFERENCES[name]), torch.randn(2, 5, 12)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    q, k, _ = layer.split(x)
    assert list(maps) == ["Layer"]
    torch.testing.assert_close(maps[0].weights, (q @ k.mT).softmax(-1) - LAMBDA * (k @ q.mT).softmax(-1))


IN_ONE_KERNEL = ("halves of the heads", "every other head, values in two parts")


@pytest.mark.parametrize("options", [{"rows": [3, 0]}, {"heads": [2, 0]}, {"rows": 4, "heads": [1]}])
@pytest.mark.parametrize("name", list(DIFFERENCES))
def test_rows_and_heads_of_differential_attention_are_those_of_its_map(name, options):
    layer, x = Layer(DIFFERENCES[name]), torch.randn(2, 5, 12)
    with torch.no_grad(), regard.capture(layer, **options) as maps:
        layer(x)
    if name in IN_ONE_KERNEL and "heads" in options:  # heads of the kernel: each is one of a pair
        assert any("some of its heads are subtracted from others" in missed.reason for missed in maps.missed)
        return
    q, k, _ = layer.split(x)
    expected = (q @ k.mT).softmax(-1) - LAMBDA * (k @ q.mT).softmax(-1)
    rows = [options["rows"]] if options.get("rows") == 4 else options.get("rows", range(5))
    assert list(maps) == ["Layer"]
    torch.testing.assert_close(maps[0].weights, expected[:, list(options.get("heads", range(3)))][:, :, list(rows)])


FOLDED = {
    "reduce": {"reduce": lambda total, weights: weights.sum(0)},
    "reduce, some rows": {"reduce": lambda total, weights, rows: weights.sum(0)},
    "overview": {"overview": 2},
}


@pytest.mark.parametrize("folded", FOLDED)
@pytest.mark.parametrize("name", list(DIFFERENCES))
def test_differential_attention_that_was_folded_is_announced(name, folded):
    layer = Layer(DIFFERENCES[name])
    with torch.no_grad(), regard.capture(layer, **FOLDED[folded]) as maps:
        layer(torch.randn(2, 5, 12))
    assert any("subtracted" in missed.reason for missed in maps.missed)


@pytest.mark.parametrize("folded", FOLDED)
def test_values_in_two_parts_alone_announce_no_difference(folded):
    layer = Layer(lambda q, k, v: _side_by_side(q, k, v) + LAMBDA * _side_by_side(k, q, v))
    with torch.no_grad(), regard.capture(layer, **FOLDED[folded]) as maps:
        layer(torch.randn(2, 5, 12))
    assert not maps.missed


@pytest.mark.parametrize("name", list(DIFFERENCES))
def test_differential_attention_in_a_folder_is_its_map(name, tmp_path):
    layer, x = Layer(DIFFERENCES[name]), torch.randn(2, 5, 12)
    with torch.no_grad(), regard.capture(layer, stream=tmp_path) as maps:
        layer(x)
    q, k, _ = layer.split(x)
    expected = (q @ k.mT).softmax(-1) - LAMBDA * (k @ q.mT).softmax(-1)
    for found in (maps, regard.maps.Maps.load(tmp_path)):
        assert list(found) == ["Layer"]
        torch.testing.assert_close(found[0].weights, expected)


SINK = torch.tensor([0.5, -0.2, 1.0]).view(3, 1, 1)


def _tokens_first(out, share):
    return (out.transpose(1, 2) * share.transpose(1, 2)).transpose(1, 2)


# How a model multiplies (batch, heads, queries, width) with (batch, heads, queries, 1).
ROW_BY_ROW = {
    "a product": lambda out, share: out * share,
    "einsum": lambda out, share: torch.einsum("bhnd,bhn->bhnd", out, share[..., 0]),
    "einsum, otherwise": lambda out, share: torch.einsum("qpr,pqrz->pqrz", share[..., 0].transpose(0, 1), out),
    "einsum, tokens first": lambda out, share: torch.einsum("bhnd,bhn->bnhd", out, share[..., 0]).transpose(1, 2),
    "einsum, dots": lambda out, share: torch.einsum("...d,...->...d", out, share[..., 0]),
    "einsum, numbers": lambda out, share: torch.einsum(out, [0, 1, 2, 3], share[..., 0], [0, 1, 2], [0, 1, 2, 3]),
    "einops": lambda out, share: einops.einsum(out, share[..., 0], "b h n d, b h n -> b h n d"),
    "mul, out": lambda out, share: torch.mul(out, share, out=torch.empty_like(out)),
    "named": lambda out, share: torch.mul(input=out, other=share),
    "in place": lambda out, share: out.multiply_(share),
    "divided": lambda out, share: torch.div(out, 1 / share),
    "expanded": lambda out, share: torch.multiply(share.expand_as(out), out),
    "in two steps": lambda out, share: out * (1 + share) / ((1 + share) / share),
    "tokens first": _tokens_first,
}


def _steps_of_logsumexp(scores):
    largest = scores.amax(-1, keepdim=True)
    return largest + (scores - largest).exp().sum(-1, keepdim=True).log()


LOGSUMEXPS = {
    "at once": lambda scores: scores.logsumexp(-1, keepdim=True),
    "in steps": _steps_of_logsumexp,
    "without the largest": lambda scores: torch.log(torch.sum(torch.exp(scores), -1, keepdim=True)),
}


@pytest.mark.parametrize(
    ("name", "first", "steps"),
    [
        *((name, True, "at once") for name in ROW_BY_ROW),
        ("a product", False, "at once"),
        *(("a product", first, steps) for first in (True, False) for steps in ("in steps", "without the largest")),
    ],
)
def test_a_sink_by_the_logsumexp_of_scores_belongs_to_the_map(name, first, steps):
    def with_sink(q, k, v):
        scores = q @ k.mT
        known = LOGSUMEXPS[steps](scores) if first else None
        out = scores.softmax(-1) @ v
        known = LOGSUMEXPS[steps](scores) if known is None else known
        return ROW_BY_ROW[name](out, torch.sigmoid(known - SINK))

    layer, x = Layer(with_sink), torch.randn(2, 5, 12)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    q, k, _ = layer.split(x)
    expected = torch.cat((q @ k.mT, SINK.expand(2, 3, 5, 1)), -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(maps[0].weights, expected)
    assert not maps.missed


@pytest.mark.parametrize("attend", [by_hand, with_logsumexp])
def test_a_gate_belongs_to_the_map_only_if_it_is_computed_from_the_logsumexp(attend):
    def gated(q, k, v):
        out, known = attend(q, k, v)
        layer.loss = known.square().mean()
        return out * torch.sigmoid(q.sum(-1, keepdim=True))

    layer, x = Layer(gated), torch.randn(2, 5, 12)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    q, k, _ = layer.split(x)
    torch.testing.assert_close(maps[0].weights, (q @ k.mT).softmax(-1))
    assert not maps.missed


def test_a_factor_by_the_logsumexp_that_is_not_followed_is_announced():
    def folded(q, k, v):
        out, known = with_logsumexp(q, k, v)
        return (out.flatten(0, 2) * torch.sigmoid(known.flatten() - 1)[:, None]).view(out.shape)

    layer = Layer(folded)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(torch.randn(2, 5, 12))
    assert (
        [missed.name for missed in maps.missed if "a factor that the model" in missed.reason] == list(maps) == ["Layer"]
    )


def test_a_sink_after_a_merge_belongs_to_the_map():
    def product(q, k, v):
        (first, a), (second, b) = (with_logsumexp(q, *part) for part in halves(k, v))
        whole = torch.logaddexp(a, b).unsqueeze(-1)
        return by_exponentials(first, a.unsqueeze(-1), second, b.unsqueeze(-1)) * torch.sigmoid(whole - SINK)

    layer, x = Layer(product), torch.randn(2, 5, 12)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    q, k, _ = layer.split(x)
    expected = torch.cat((q @ k.mT, SINK.expand(2, 3, 5, 1)), -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(maps["Layer"].weights, expected)


def test_the_budget_holds_for_parts_that_are_joined():
    layer, x = Layer(WHOLE["chunks of queries"]), torch.randn(2, 5, 12)
    with torch.no_grad(), regard.capture(layer, budget=4 * 2 * 3 * 5 * 5) as maps:
        layer(x)
    assert list(maps) == ["Layer"]


INDICES = {
    "a new axis": lambda y: y[:, None],
    "a new last axis": lambda y: y[..., None],
    "a new first axis": lambda y: y[None],
    "one of the first axis": lambda y: y[0],
    "none of the second": lambda y: y[:, 0:0],
    "a list": lambda y: y[:, [0]],
    "a tensor": lambda y: y[torch.tensor([1, 0])],
    "a mask": lambda y: y[torch.tensor([True, False])],
    "chunks by name": lambda y: torch.chunk(input=y, chunks=2, dim=1)[0],
    "unequal parts": lambda y: y.tensor_split((1,), dim=-1)[0],
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("shape", [(2, 6, 8), (2, 2, 6, 8)], ids=["3 axes", "4 axes"])
def test_a_model_may_index_a_combination_of_outputs_in_any_way(index, shape):
    class Differential(nn.Module):
        def forward(self, x):
            first = F.scaled_dot_product_attention(x, x, x)
            return index(first - 0.3 * F.scaled_dot_product_attention(x, x.flip(-2), x))

    model, x = Differential(), torch.randn(shape)
    expected = model(x)
    with torch.no_grad(), regard.capture(model) as maps:
        found = model(x)
    assert torch.equal(found, expected)
    [captured] = maps.values()
    assert captured.agrees
    assert not maps.missed


def test_a_model_does_not_fail_where_its_outputs_cannot_be_followed(monkeypatch):
    def fails(*_):
        raise IndexError("out of range")

    class Differential(nn.Module):
        def forward(self, x):
            first, second = F.scaled_dot_product_attention(x, x, x).chunk(2, 1)
            return first - 0.3 * second

    model, x = Differential(), torch.randn(1, 4, 6, 8)
    monkeypatch.setattr(_outputs, "some_heads", fails)
    with torch.no_grad(), regard.capture(model) as maps:
        found = model(x)
    assert torch.equal(found, model(x))
    [note] = maps.notes
    assert "could not be followed" in note
    assert "out of range" in note


class SomeHeadsAtATime(nn.Module):
    """Four heads, of which each kernel computes one or two."""

    def __init__(self, at_a_time, attend):
        super().__init__()
        self.num_heads, self.at_a_time, self.attend = 4, at_a_time, attend
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)

    def split(self, x):
        return [y.unflatten(-1, (4, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)]

    def forward(self, x):
        parts = zip(*(y.contiguous().split(self.at_a_time, 1) for y in self.split(x)), strict=True)
        out = torch.cat([self.attend(*(y.contiguous() for y in part)) for part in parts], 1)
        return self.proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("attend", [hand, kernel])
@pytest.mark.parametrize("at_a_time", [1, 2])
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_some_heads_at_a_time_are_heads_for_any_number_of_samples_and_tokens(batch, tokens, at_a_time, attend):
    """As many samples as heads are not taken for heads, and single queries of heads not for queries."""
    torch.manual_seed(0)
    layer, x = SomeHeadsAtATime(at_a_time, attend), torch.randn(batch, tokens, 16)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
        q, k, _ = layer.split(x)
    assert list(maps) == ["SomeHeadsAtATime"]
    torch.testing.assert_close(maps[0].weights, (q @ k.mT).softmax(-1))
