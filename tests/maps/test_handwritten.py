"""Attention written by hand: a softmax and a product, in every spelling."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.analysis import mask_heads


def spelled_out(scores):
    growth = (scores - scores.amax(-1, keepdim=True)).exp()
    return growth / growth.sum(-1, keepdim=True)


# name -> (weights of scores, output of weights and values); q, k, v are (batch, heads, tokens, width)
SPELLINGS = {
    "operators": lambda q, k, v: (q @ k.mT / 2).softmax(-1) @ v,
    "functions": lambda q, k, v: torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)), dim=-1), v),
    "einsum": lambda q, k, v: torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v),
    "einsum, tokens first": lambda q, k, v: torch.einsum(
        "bhqk,bkhd->bqhd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v.transpose(1, 2)
    ).transpose(1, 2),
    "einsum with dots": lambda q, k, v: torch.einsum("...ij,...jd->...id", (q @ k.mT).softmax(-1), v),
    "einsum, values first": lambda q, k, v: torch.einsum("bhjd,bhij->bhid", v, (q @ k.mT).softmax(-1)),
    "bmm": lambda q, k, v: torch.bmm(
        F.softmax(torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT), -1), v.flatten(0, 1)
    ).unflatten(0, q.shape[:2]),
    "transposed": lambda q, k, v: (v.mT @ (q @ k.mT).softmax(-1).mT).mT,
    "special": lambda q, k, v: torch.special.softmax(q @ k.mT, -1) @ v,
    "special logarithm": lambda q, k, v: torch.special.log_softmax(q @ k.mT, -1).exp() @ v,
    "over columns": lambda q, k, v: ((k @ q.mT).softmax(-2)).mT @ v,
    "into a tensor": lambda q, k, v: torch.matmul((q @ k.mT).softmax(-1), v, out=torch.empty_like(v)),
    "module": lambda q, k, v: nn.Softmax(dim=-1)(q @ k.mT) @ v,
    "cast": lambda q, k, v: (q @ k.mT).double().softmax(-1).type_as(v) @ v,
    "cast like its scores": lambda q, k, v: (scores := q @ k.mT).softmax(-1).type_as(scores) @ v,
    "moved and shaped like its scores": lambda q, k, v: (scores := q @ k.mT).softmax(-1).to(scores).view_as(scores) @ v,
    "masked": lambda q, k, v: (q @ k.mT + torch.ones(5, 5).triu(1) * -1e9).softmax(-1).contiguous() @ v,
    "in place": lambda q, k, v: (q @ k.mT).softmax(-1).mul_(1.0) @ v,
    "a sum of terms": lambda q, k, v: ((q @ k.mT).softmax(-1).unsqueeze(-1) * v.unsqueeze(2)).sum(-2),
    "spelled out": lambda q, k, v: spelled_out(q @ k.mT) @ v,
    "its logarithm": lambda q, k, v: F.log_softmax(q @ k.mT, -1).exp() @ v,
    "the formula": lambda q, k, v: regard.reference.attention(q, k, v)[0],
    "a sink that is cut off": lambda q, k, v: (
        torch.cat([q @ k.mT, torch.zeros(2, 3, 5, 1)], -1).softmax(-1)[..., :-1] @ v
    ),
}


class ByHand(nn.Module):
    num_heads = 3

    def __init__(self, spelling):
        super().__init__()
        self.spelling = spelling

    def forward(self, q, k, v):
        return self.spelling(q, k, v)


@pytest.mark.parametrize("name", list(SPELLINGS))
def test_every_spelling_is_recognized(name):
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    model = ByHand(SPELLINGS[name])
    with regard.capture(model) as maps:
        out = model(q, k, v)
    assert not maps.missed
    assert list(maps) == ["ByHand"]
    found = maps[0]
    assert found.weights.shape == (2, 3, 5, 5)
    torch.testing.assert_close(found.weights @ v, out, atol=1e-6, rtol=1e-5)
    if "sink" not in name:
        torch.testing.assert_close(found.weights.sum(-1), torch.ones(2, 3, 5))
    assert found.against == "product"
    assert found.agrees


@pytest.mark.parametrize("name", list(SPELLINGS))
def test_a_wrong_map_is_noticed_in_every_spelling(name, spoiled):
    model = ByHand(SPELLINGS[name])
    with pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model) as maps:
        model(*(torch.randn(2, 3, 5, 4) for _ in range(3)))
    assert maps[0].residual > 0.01


@pytest.mark.parametrize("inplace", [True, False])
def test_the_map_is_what_entered_dropout(inplace):
    class Dropping(nn.Module):
        def forward(self, q, k, v):
            weights = F.dropout((q @ k.mT).softmax(-1), 0.5, inplace=inplace)
            return weights.to(v.dtype).reshape(6, 5, 5).view(2, 3, 5, 5) @ v

    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    model = Dropping()
    torch.manual_seed(1)
    plain = model(q, k, v)
    torch.manual_seed(1)
    with regard.capture(model) as maps:
        out = model(q, k, v)
    assert torch.equal(out, plain)
    torch.testing.assert_close(maps[0].weights, (q @ k.mT).softmax(-1))
    assert maps[0].agrees


def test_a_map_that_is_not_what_dropout_saw_is_noticed(spoiled):
    class Dropping(nn.Module):
        def forward(self, q, k, v):
            return F.dropout((q @ k.mT).softmax(-1), 0.5) @ v

    model = Dropping()
    with pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model) as maps:
        model(*(torch.randn(2, 3, 5, 4) for _ in range(3)))
    assert maps[0].residual > 0.01


def test_grouped_heads_folded_into_the_queries_have_the_shape_before():
    layer = regard.MultiHeadAttention(16, 4, key_value_heads=2)
    x = torch.randn(2, 5, 16)
    with regard.capture(layer) as maps:
        _, weights = layer(x, return_weights=True)
    torch.testing.assert_close(maps[0].weights, weights.detach())
    assert maps[0].agrees


def test_heads_split_into_groups_for_the_product_have_the_shape_before():
    def grouped(q, k, v):
        weights = (q @ k.mT).softmax(-1)
        return (weights.unflatten(1, (2, 2)) @ v[:, :2].unsqueeze(2)).flatten(1, 2)

    q, k, v = (torch.randn(3, 4, 5, 4) for _ in range(3))
    model = ByHand(grouped)
    model.num_heads = 4
    with regard.capture(model) as maps:
        model(q, k, v)
    torch.testing.assert_close(maps[0].weights, (q @ k.mT).softmax(-1))
    assert maps[0].agrees


def test_several_heads_may_share_their_values():
    model = ByHand(lambda q, k, v: torch.einsum("bhij,bjd->bhid", (q @ k.mT).softmax(-1), v[:, 0]))
    with regard.capture(model) as maps:
        model(*(torch.randn(2, 3, 5, 4) for _ in range(3)))
    assert maps[0].weights.shape == (2, 3, 5, 5)
    assert maps[0].agrees


# Each writes the two largest weights (or scores) of each row back into a map.
LARGEST = {
    "softmax of the largest": lambda s: _put(torch.zeros_like(s), s.topk(2)[1], s.topk(2)[0].softmax(-1)),
    "largest of a softmax": lambda s: _put(torch.zeros_like(s), s.topk(2)[1], s.softmax(-1).topk(2, -1)[0]),
    "scores": lambda s: _put(torch.full_like(s, -torch.inf), s.topk(2)[1], s.topk(2)[0]).softmax(-1),
    "in place": lambda s: torch.zeros_like(s).scatter_(-1, s.topk(2)[1], s.topk(2)[0].softmax(-1)),
    "sorted": lambda s: _put(torch.zeros_like(s), s.sort(-1)[1], s.sort(-1)[0].softmax(-1)),
}


def _put(whole, index, chosen):
    return whole.scatter(-1, index, chosen)


@pytest.mark.parametrize("name", LARGEST)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_weights_that_are_written_back_where_they_were_chosen(name, dropout):
    model = ByHand(lambda q, k, v: F.dropout(LARGEST[name](q @ k.mT), dropout) @ v)
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    with torch.no_grad(), regard.capture(model) as maps:
        model(q, k, v)
    assert not maps.missed
    torch.testing.assert_close(maps[0].weights, LARGEST[name](q @ k.mT))
    assert maps[0].agrees


def test_dropout_before_weights_are_written_back_does_not_enter_the_map():
    def product(q, k, v):
        weights, index = (q @ k.mT).softmax(-1).topk(3)
        return _put(torch.zeros(2, 3, 5, 5), index, F.dropout(weights, 0.5)) @ v

    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    model = ByHand(product)
    with torch.no_grad(), regard.capture(model) as maps:
        model(q, k, v)
    weights, index = (q @ k.mT).softmax(-1).topk(3)
    torch.testing.assert_close(maps[0].weights, _put(torch.zeros(2, 3, 5, 5), index, weights))
    assert maps[0].agrees


def test_a_classifier_and_linear_attention_are_no_maps():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(7, 4))

        def forward(self, x):
            return x.softmax(-1) @ self.table  # the mean of learned vectors: nothing is attended to

    class Linear(nn.Module):
        def forward(self, q, k, v):
            return q.softmax(-1) @ (k.mT @ v)

    model = Classifier()
    with pytest.warns(UserWarning, match="no attention was seen"), regard.capture(model) as maps:
        model(torch.randn(2, 5, 7))
    assert not maps
    model = Linear()
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        model(*[torch.randn(2, 3, 5, 4)] * 3)
    assert not maps
    assert "not followed by a product" in maps.missed[0].reason


def test_scores_whose_softmax_is_used_in_an_unknown_way_are_missed_and_said_so():
    class Strange(nn.Module):
        def forward(self, q, k, v):
            weights = (q @ k.mT).softmax(-1)
            return torch.gather(v, 2, weights.argmax(-1, keepdim=True).expand_as(v))

    model = Strange()
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        model(*(torch.randn(2, 3, 5, 4) for _ in range(3)))
    assert not maps
    assert maps.missed[0].name == "Strange"
    assert "not followed by a product" in str(maps.missed[0])


def test_a_map_is_a_copy_that_the_model_cannot_change():
    class Reusing(nn.Module):
        def forward(self, q, k, v):
            weights = (q @ k.mT).softmax(-1)
            out = weights @ v
            weights.zero_()
            return out

    model = Reusing()
    with torch.no_grad(), regard.capture(model) as maps:
        model(*(torch.randn(2, 3, 5, 4) for _ in range(3)))
    torch.testing.assert_close(maps[0].weights.sum(-1), torch.ones(2, 3, 5))


def test_alignments_of_additive_attention_are_seen():
    from regard.layers import AdditiveAttention

    layer = AdditiveAttention(4, 6)
    with regard.capture(layer) as maps:
        _, weights = layer(torch.randn(2, 3, 4), torch.randn(2, 5, 6), return_weights=True)
    torch.testing.assert_close(maps[0].weights[:, 0], weights.detach())


def test_other_uses_of_weights_do_not_disturb_the_model():
    class Everything(nn.Module):
        def forward(self, q, k, v):
            weights = (q @ k.mT).softmax(-1)
            three = torch.einsum("bhij,bhjd,bhjd->bhid", weights, v, v)
            one = torch.einsum("bhij->bij", weights)
            traced = torch.einsum(weights, [0, 1, 2, 3], v, [0, 1, 3, 4], [0, 1, 2, 4])
            sparse = weights[0, 0].to_sparse() @ v[0, 0]
            inside = torch.func.vmap(lambda w: (w * 2).mT)(weights)
            return (weights @ v).sum() + sum(x.sum() for x in (three, one, traced, sparse, inside))

    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    model = Everything()
    plain = model(q, k, v)
    with regard.capture(model) as maps:
        assert torch.equal(model(q, k, v), plain)
    assert maps[0].agrees


# Alignments of one query, as decoders of recurrent networks write them: scores (batch, keys), memory (batch, keys, width).
ALIGNMENTS = {
    "sum": lambda scores, memory: (scores.softmax(-1).unsqueeze(-1) * memory).sum(1),
    "sum, axis kept": lambda scores, memory: (memory * scores.softmax(1)[..., None]).sum(dim=1, keepdim=True)[:, 0],
    "sum, keys first": lambda scores, memory: (scores.T.softmax(0)[..., None] * memory.transpose(0, 1)).sum(0),
    "sum, width first": lambda scores, memory: (scores.softmax(-1)[:, None] * memory.mT).sum(-1),
    "einsum": lambda scores, memory: torch.einsum("bk,bkd->bd", scores.softmax(-1), memory),
    "bmm": lambda scores, memory: torch.bmm(scores.softmax(-1)[:, None], memory)[:, 0],
    "dropout": lambda scores, memory: (F.dropout(scores.softmax(-1)[..., None], 0.3) * memory).sum(1),
}


@pytest.mark.parametrize("name", list(ALIGNMENTS))
def test_an_alignment_of_one_query_is_recognized_and_can_be_changed(name):
    class Decoder(nn.Module):
        def forward(self, scores, memory):
            return ALIGNMENTS[name](scores, memory)

    model, scores, memory = Decoder(), torch.randn(2, 5), torch.randn(2, 5, 4)
    torch.manual_seed(1)
    plain = model(scores, memory)
    torch.manual_seed(1)
    with regard.capture(model) as maps:
        out = model(scores, memory)
    assert torch.equal(out, plain)
    torch.testing.assert_close(maps["Decoder"].weights[:, 0, 0], scores.softmax(-1))
    assert maps[0].agrees
    with mask_heads(model, {"Decoder": [0]}):
        assert torch.equal(model(scores, memory), torch.zeros(2, 4))


def test_weights_that_gate_channels_are_no_attention():
    class Gate(nn.Module):
        def forward(self, x):
            return (x.mean(1, keepdim=True).softmax(-1) * x).sum(1)

    model = Gate()
    with pytest.warns(UserWarning, match="no attention was seen"), regard.capture(model) as maps:
        model(torch.randn(2, 5, 4))
    assert not maps


# Talking heads: a parameter mixes the heads of scores, or of weights.
MIXTURES = {
    "einsum": lambda x, matrix: torch.einsum("bhij,hg->bgij", x, matrix),
    "einsum, matrix first": lambda x, matrix: torch.einsum("hg,bhij->bgij", matrix, x),
    "product": lambda x, matrix: (x.permute(0, 2, 3, 1) @ matrix).permute(0, 3, 1, 2),
}


class TalkingHeads(nn.Module):
    num_heads = 3

    def __init__(self, mix, of_scores=3, of_softmax=3):
        super().__init__()
        self.mix = mix
        self.before = nn.Parameter(torch.randn(of_scores, of_softmax))
        self.after = nn.Parameter(torch.randn(of_softmax, 3))

    def weights(self, q, k):
        return self.mix(self.mix(q @ k.mT, self.before).softmax(-1), self.after)

    def forward(self, q, k, v):
        return self.weights(q, k) @ v


@pytest.mark.parametrize("name", list(MIXTURES))
def test_heads_are_mixed_by_a_parameter(name):
    model, (q, k, v) = TalkingHeads(MIXTURES[name]), torch.randn(3, 2, 3, 5, 4).unbind(0)
    with regard.capture(model) as maps:
        model(q, k, v)
    torch.testing.assert_close(maps["TalkingHeads"].weights, model.weights(q, k).detach())
    assert maps["TalkingHeads"].agrees
    assert not maps.missed


@pytest.mark.parametrize("name", list(MIXTURES))
@pytest.mark.parametrize(("of_scores", "of_softmax"), [(6, 4), (2, 4), (4, 2)])
def test_heads_are_mixed_to_more_or_fewer(name, of_scores, of_softmax):
    model, v = TalkingHeads(MIXTURES[name], of_scores, of_softmax), torch.randn(2, 3, 5, 4)
    q, k = torch.randn(2, 2, of_scores, 5, 4).unbind(0)
    with regard.capture(model) as maps:
        model(q, k, v)
    torch.testing.assert_close(maps["TalkingHeads"].weights, model.weights(q, k).detach())
    assert not maps.missed


def test_learned_values_are_not_taken_for_a_mixture_of_heads():
    class Memory(nn.Module):
        num_heads = 3

        def __init__(self):
            super().__init__()
            self.values = nn.Parameter(torch.randn(5, 5))  # as wide as there are keys

        def forward(self, q, k, v):
            return ((q @ k.mT).softmax(-1) @ self.values) @ v

    model, (q, k, v) = Memory(), torch.randn(3, 2, 3, 5, 4).unbind(0)
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        model(q, k, v)
    assert not maps


def test_two_softmaxes_that_become_one_map_are_both_accounted_for():
    class Mixed(nn.Module):
        def forward(self, q, k, v):
            weights = 0.3 * (q @ k.mT).softmax(-1) + 0.7 * (k @ q.mT).softmax(-1)
            return weights @ v

    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    model = Mixed()
    with regard.capture(model) as maps:
        out = model(q, k, v)
    assert not maps.missed
    torch.testing.assert_close(maps["Mixed"].weights @ v, out)


def test_heads_mixed_by_a_matrix_are_no_product_with_values():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mix", torch.randn(2, 2))

        def forward(self, x):
            return torch.einsum("hg,bgij->bhij", self.mix, (x @ x.mT).softmax(-1)) @ x

    network = Mixed()
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(network) as maps:
        network(torch.randn(1, 2, 4, 8))
    assert [(missed.name, missed.shape) for missed in maps.missed] == [("Mixed", (1, 2, 4, 4))]


def test_values_shared_by_all_samples_are_values():
    class Shared(nn.Module):
        def forward(self, x):
            return torch.einsum("bhij,jd->bhid", (x @ x.mT).softmax(-1), torch.ones(4, 3))

    network = Shared()
    with regard.capture(network) as maps:
        network(torch.randn(1, 2, 4, 8))
    assert maps[0].shape == (1, 2, 4, 4)
    assert maps[0].agrees


def _set_to_zero(weights, dropped):
    weights[dropped] = 0
    return weights


# Dropout, written out. Each takes weights and the probability to keep one.
MASKS = {
    "a product with a mask": lambda w, p: w * (torch.rand_like(w) < p) / p,
    "a mask that is scaled": lambda w, p: w * ((torch.rand(w.shape) < p).float() / p),
    "bernoulli": lambda w, p: torch.bernoulli(torch.full_like(w, p)).div(p) * w,
    "where": lambda w, p: torch.where(torch.rand_like(w) < p, w, torch.zeros(())) / p,
    "filled": lambda w, p: w.masked_fill(torch.rand_like(w) >= p, 0.0) * (1 / p),
    "scaled before": lambda w, p: (w / p) * (torch.rand_like(w) < p),
    "filled in place": lambda w, p: w.clone().masked_fill_(torch.rand_like(w) >= p, 0.0) / p,
    "set": lambda w, p: _set_to_zero(w.clone(), torch.rand_like(w) >= p) / p,
    "of normal numbers": lambda w, p: w * (torch.randn_like(w) < 0.5) / p,
    "with its mask": lambda w, p: torch.native_dropout(w, 1 - p, True)[0],
    "in place": lambda w, p: w.mul_(torch.empty_like(w).bernoulli_(p)).div_(p),
}


def _of_numpy(like, p):
    return torch.from_numpy(np.random.default_rng(0).random(tuple(like.shape)) < p)


# The same by masks that are not drawn by torch: only the zeros and the scale show it.
UNSEEN = {
    "a mask that is scaled": lambda w, p: w * (_of_numpy(w, p).float() / p),
    "scaled in place": lambda w, p: w.mul_(_of_numpy(w, p) / p),
    "scaled later": lambda w, p: w * _of_numpy(w, p) / p,
    "scaled before": lambda w, p: (w / p) * _of_numpy(w, p),
    "weights filled": lambda w, p: w.masked_fill(~_of_numpy(w, p), 0.0) * (1 / p),
}


def _added(scores, mask):
    scores += mask
    return scores


def _set_lowest(scores, dropped):
    mask = torch.zeros_like(scores)
    mask[dropped] = -torch.inf
    return scores + mask


def _divided(weights):
    return weights / weights.sum(-1, keepdim=True)


# Keys hidden at random before the softmax (DropKey). Each takes scores and the probability to hide one.
HIDDEN = {
    "filled": lambda s, p: s.masked_fill(torch.rand_like(s) < p, -torch.inf).softmax(-1),
    "added": lambda s, p: (s + torch.bernoulli(torch.full_like(s, p)) * -1e9).softmax(-1),
    "added in place": lambda s, p: _added(s, torch.zeros(s.shape).masked_fill_(torch.rand(s.shape) < p, -1e4)).softmax(
        -1
    ),
    "set": lambda s, p: _set_lowest(s, torch.rand_like(s) < p).softmax(-1),
    "where, then scaled": lambda s, p: F.softmax(torch.where(torch.rand_like(s) < p, -torch.inf, s / 2) * 2, dim=-1),
    "by logarithms": lambda s, p: s.masked_fill(torch.rand_like(s) < p, -torch.inf).log_softmax(-1).exp(),
    "exponentials": lambda s, p: _divided(s.masked_fill(torch.rand_like(s) < p, -torch.inf).exp()),
    "dropped exponentials": lambda s, p: _divided(s.exp() * (torch.rand_like(s) > p)),
    "and dropout": lambda s, p: F.dropout(s.masked_fill(torch.rand_like(s) < p, -torch.inf).softmax(-1), 0.5),
    "a mask of positions follows": lambda s, p: (
        s.masked_fill(torch.rand_like(s) < p, -torch.inf)
        .masked_fill(torch.ones(6, 6).triu(4) > 0, -torch.inf)
        .softmax(-1)
    ),
}


class Weighing(nn.Module):
    num_heads = 2

    def __init__(self, weigh):
        super().__init__()
        self.weigh = weigh

    def forward(self, q, k, v):
        return self.weigh(q @ k.mT) @ v


@pytest.mark.parametrize("name", [*UNSEEN, *HIDDEN])
def test_no_random_mask_enters_the_map(name):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 4) for _ in range(3))
    weigh = HIDDEN.get(name) if name in HIDDEN else None
    network = Weighing((lambda s: weigh(s, 0.3)) if weigh else (lambda s: UNSEEN[name](s.softmax(-1), 0.7)))
    with torch.no_grad(), regard.capture(network) as maps:
        network(q, k, v)
    scores = q @ k.mT
    if "positions" in name:
        scores = scores.masked_fill(torch.ones(6, 6).triu(4) > 0, -torch.inf)
    torch.testing.assert_close(maps[0].weights, scores.softmax(-1))
    assert maps[0].agrees
    assert not maps.missed
    assert ["as dropout does" in note for note in maps.notes] == [True] * (weigh is None)


def _mixed_mask(scores):
    return torch.where(torch.rand_like(scores) < 0.1, 1.0, torch.ones(6, 6).triu(4)) > 0


class WithMask(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=~_mixed_mask(q @ k.mT), scale=1.0)


@pytest.mark.parametrize(
    "network", [Weighing(lambda s: s.masked_fill(_mixed_mask(s), -torch.inf).softmax(-1)), WithMask()]
)
def test_a_mask_that_is_partly_random_is_in_the_map_and_named(network):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 4) for _ in range(3))
    with torch.no_grad(), regard.capture(network) as maps:
        network(q, k, v)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 4) for _ in range(3))
    scores = q @ k.mT
    torch.testing.assert_close(maps[0].weights, scores.masked_fill(_mixed_mask(scores), -torch.inf).softmax(-1))
    assert ["random numbers" in note for note in maps.notes] == [True]


@pytest.mark.parametrize(
    "weigh", [lambda s: (s + torch.randn(6, 6)).softmax(-1), lambda s: F.gumbel_softmax(s, dim=-1)]
)
def test_noise_in_the_scores_is_named(weigh):
    with torch.no_grad(), regard.capture(network := Weighing(weigh)) as maps:
        network(*(torch.randn(2, 2, 6, 4) for _ in range(3)))
    assert ["random numbers" in note for note in maps.notes] == [True]


def test_masks_of_a_model_that_draws_its_input_stay_in_the_map():
    def causal(scores):
        noise = torch.randn(2, 2, 6, 6)
        return scores.masked_fill(torch.ones_like(noise).triu(1) > 0, -torch.inf).softmax(-1)

    q, k, v = (torch.randn(2, 2, 6, 4) for _ in range(3))
    with torch.no_grad(), regard.capture(network := Weighing(causal)) as maps:
        network(q, k, v)
    torch.testing.assert_close(maps[0].weights, causal(q @ k.mT))
    assert not maps.notes


@pytest.mark.parametrize("name", MASKS)
def test_dropout_that_is_written_out_does_not_enter_the_map(name):
    class Dropped(nn.Module):
        num_heads = 2

        def forward(self, q, k, v):
            return MASKS[name]((q @ k.mT).softmax(-1), 0.7) @ v

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 4) for _ in range(3))
    network = Dropped()
    with torch.no_grad(), regard.capture(network) as maps:
        network(q, k, v)
    torch.testing.assert_close(maps[0].weights, (q @ k.mT).softmax(-1))
    assert maps[0].agrees
    assert not maps.missed


MIXED = torch.rand(2, 2, generator=torch.Generator().manual_seed(0))

# What models do with weights after dropout. Each takes the weights and the dropout.
BEHIND_DROPOUT = {
    "heads mixed": lambda w, drop: torch.einsum("bhij,hg->bgij", drop(w), nn.Parameter(MIXED)),
    "heads mixed by a convolution": lambda w, drop: F.conv2d(drop(w), MIXED[:, :, None, None]),
    "divided by their sums": lambda w, drop: _divided(drop(w)),
    "divided in place": lambda w, drop: (dropped := drop(w)).div_(dropped.sum(-1, keepdim=True)),
    "normalized": lambda w, drop: F.normalize(drop(w), p=1, dim=-1),
    "heads mixed, then divided": lambda w, drop: _divided(torch.einsum("bhij,hg->bgij", drop(w), nn.Parameter(MIXED))),
    "two maps with dropout of their own": lambda w, drop: drop(w) - 0.3 * drop(w.flip(1)),
    "squared": lambda w, drop: drop(w) ** 2,
    "halved": lambda w, drop: drop(w) * 0.5,
    "halved in place": lambda w, drop: drop(w).mul_(0.5),
    "clamped in place": lambda w, drop: drop(w).clamp_(max=0.2),
    "clipped in place": lambda w, drop: drop(w).clip_(0.05, 0.3),
    "squared in place": lambda w, drop: drop(w).pow_(2),
    "filled in place": lambda w, drop: drop(w).masked_fill_(MIXED[:, :, None, None] > 0.4, 0.1),
    "heads stacked": lambda w, drop: torch.stack([drop(w[:, head]) for head in range(2)], 1),
    "heads joined": lambda w, drop: torch.cat(tensors=[drop(w[:, :1]), drop(w[:, 1:])], dim=1),
    "split and joined": lambda w, drop: torch.cat(drop(w).chunk(2, 1)[::-1], 1),
}
DROP = {
    "torch's": lambda w: F.dropout(w, 0.3),
    "in place": lambda w: F.dropout(w.clone(), 0.3, inplace=True),
    "by a mask": lambda w: w * (torch.rand_like(w) < 0.7) / 0.7,
    "by a mask from elsewhere": lambda w: w * (_of_numpy(w, 0.7) / 0.7),
}


@pytest.mark.parametrize("drop", DROP)
@pytest.mark.parametrize("name", BEHIND_DROPOUT)
def test_functions_of_weights_behind_dropout_are_applied_to_those_before_it(name, drop):
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, 2, 6, 4) for _ in range(3))
    network = Weighing(lambda scores: BEHIND_DROPOUT[name](scores.softmax(-1), DROP[drop]))
    with torch.no_grad(), regard.capture(network) as maps:
        network(q, k, v)
    expected = BEHIND_DROPOUT[name]((q @ k.mT).softmax(-1), torch.clone)
    torch.testing.assert_close(maps[0].weights, expected.detach())
    assert maps[0].agrees
    assert not maps.missed


@pytest.mark.parametrize("name", ["heads mixed", "divided by their sums", "two maps with dropout of their own"])
def test_weights_behind_dropout_that_are_not_those_before_it_do_not_agree(name):
    def spoil(weights):
        dropped = F.dropout(weights, 0.3)
        dropped.data = torch.rand_like(dropped) * (dropped != 0)
        return dropped

    network = Weighing(lambda scores: BEHIND_DROPOUT[name](scores.softmax(-1), spoil))
    torch.manual_seed(3)
    with torch.no_grad(), pytest.warns(UserWarning, match="do not reproduce"), regard.capture(network) as maps:
        network(*(torch.randn(2, 2, 6, 4) for _ in range(3)))
    assert maps[0].residual > 0.01


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize(
    "apply",
    [
        lambda w, v: w @ v,
        lambda w, v: w.squeeze(0) @ v,
        lambda w, v: w.view(4, 5, 5) @ v,
        lambda w, v: (v.mT @ w.squeeze(0).mT).mT,
        lambda w, v: w[0, 0] @ v,
    ],
    ids=["as it is", "squeezed", "viewed", "the other way round", "one head"],
)
def test_a_map_that_all_samples_share_is_that_of_each(samples, apply):
    class Shared(nn.Module):
        num_heads = 4

        def forward(self, v):
            return apply(weights(), v)

    q, k = torch.randn(2, 1, 4, 5, 8).unbind(0)
    weights = lambda: (q @ k.mT).softmax(-1)  # noqa: E731
    model, v = Shared(), torch.randn(samples, 4, 5, 3)
    maps = captured_alone(model, v)
    torch.testing.assert_close(maps[0].weights, apply(weights(), torch.eye(5).expand(samples, 4, 5, 5)))


def captured_alone(model, *tensors):
    with regard.capture(model) as maps:
        model(*tensors)
    assert not maps.missed
    assert len(maps) == 1
    assert maps[0].agrees
    return maps
