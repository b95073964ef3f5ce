"""Attention without a softmax before the product, linear attention, and what only looks like either."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.analysis import mask_heads


class ByHand(nn.Module):
    num_heads = 3

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def after(a, v):
    return (a @ v) / a.sum(-1, keepdim=True)


def after_in_place(a, v):
    out = a @ v
    out /= a.sum(-1, keepdim=True)
    return out


def features(x):
    return F.elu(x) + 1


# name -> (output, map) of q, k, v, which are (batch, heads, tokens, width)
NORMALIZED = {
    "after the product": (
        lambda q, k, v: after((q @ k.mT / 2).exp(), v),
        lambda q, k: (q @ k.mT / 2).softmax(-1),
    ),
    "after the product, in place": (
        lambda q, k, v: after_in_place((q @ k.mT / 2).exp(), v),
        lambda q, k: (q @ k.mT / 2).softmax(-1),
    ),
    "after the product, by a factor": (
        lambda q, k, v: (q @ k.mT).exp().sum(-1)[..., None].reciprocal() * ((q @ k.mT).exp() @ v),
        lambda q, k: (q @ k.mT).softmax(-1),
    ),
    "after an einsum, tokens first": (
        lambda q, k, v: (
            torch.einsum("bhij,bhjd->bihd", (q @ k.mT).exp(), v) / (q @ k.mT).exp().sum(-1).transpose(1, 2)[..., None]
        ).transpose(1, 2),
        lambda q, k: (q @ k.mT).softmax(-1),
    ),
    "after the transposed product": (
        lambda q, k, v: ((v.mT @ (q @ k.mT).exp().mT) / (q @ k.mT).exp().sum(-1).unsqueeze(-2)).mT,
        lambda q, k: (q @ k.mT).softmax(-1),
    ),
    "a factor before": (
        lambda q, k, v: ((q @ k.mT).exp() * (q @ k.mT).exp().sum(-1, keepdim=True).reciprocal()) @ v,
        lambda q, k: (q @ k.mT).softmax(-1),
    ),
    "powers of two": (
        lambda q, k, v: after(torch.exp2(q @ k.mT), v),
        lambda q, k: (q @ k.mT * 0.6931471805599453).softmax(-1),
    ),
    "features": (
        lambda q, k, v: after(features(q) @ features(k).mT, v),
        lambda q, k: F.normalize(features(q) @ features(k).mT, p=1, dim=-1),
    ),
    "squares": (
        lambda q, k, v: F.normalize((q @ k.mT).square(), p=1, dim=-1) @ v,
        lambda q, k: F.normalize((q @ k.mT).square(), p=1, dim=-1),
    ),
}


def plus_one(a):
    return a / (1 + a.sum(-1, keepdim=True))


FREE = {
    "softmax plus one": (
        lambda q, k, v: plus_one((q @ k.mT / 2).exp()) @ v,
        lambda q, k: plus_one((q @ k.mT / 2).exp()),
    ),
    "softmax plus one, after": (
        lambda q, k, v: ((q @ k.mT).exp() @ v) / (1 + (q @ k.mT).exp().sum(-1, keepdim=True)),
        lambda q, k: plus_one((q @ k.mT).exp()),
    ),
    "sigmoid": (lambda q, k, v: (q @ k.mT / 2).sigmoid() @ v, lambda q, k: (q @ k.mT / 2).sigmoid()),
    "sigmoid, einsum": (
        lambda q, k, v: torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).sigmoid(), v),
        lambda q, k: (q @ k.mT).sigmoid(),
    ),
}
ALL = {**NORMALIZED, **FREE}


@pytest.mark.parametrize("name", list(ALL))
def test_the_map_is_what_the_values_are_multiplied_with(name):
    output, expected = ALL[name]
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    model = ByHand(output)
    plain = model(q, k, v)
    with regard.capture(model) as maps:
        assert torch.equal(model(q, k, v), plain)
    assert list(maps) == ["ByHand"]
    assert not maps.missed
    torch.testing.assert_close(maps[0].weights, expected(q, k), atol=1e-5, rtol=1e-4)
    assert maps[0].agrees
    sums = maps[0].weights.sum(-1)
    assert torch.allclose(sums, torch.ones(()), atol=1e-5) is (name in NORMALIZED)
    with mask_heads(model, {"ByHand": [1]}):
        changed = model(q, k, v)
    assert not changed[:, 1].any()
    torch.testing.assert_close(changed[:, [0, 2]], plain[:, [0, 2]])


@pytest.mark.parametrize("name", list(ALL))
def test_a_wrong_map_is_noticed(name, spoiled):
    model = ByHand(ALL[name][0])
    with pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model) as maps:
        model(*(torch.randn(2, 3, 5, 4) for _ in range(3)))
    assert maps[0].residual > 0.01


def test_dropout_before_a_late_division_does_not_enter_the_map():
    def dropping(q, k, v):
        a = (q @ k.mT).exp()
        return (F.dropout(a, 0.5) @ v) / a.sum(-1, keepdim=True)

    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    model = ByHand(dropping)
    with regard.capture(model) as maps:
        model(q, k, v)
    torch.testing.assert_close(maps[0].weights, (q @ k.mT).softmax(-1))
    assert maps[0].agrees


def test_many_sigmoids_agree_within_what_rounding_explains():
    q, k, v = (torch.randn(1, 1, 2000, 4) for _ in range(3))
    model = ByHand(lambda q, k, v: (q @ k.mT).sigmoid() @ v)
    with regard.capture(model, rows=slice(0, 10)) as maps:
        model(q, k, v)
    assert maps[0].agrees


def test_exponentials_that_are_never_divided_are_missed_and_said_so():
    """The blocks of an online softmax, as kernels written in Python have them."""

    def online(q, k, v):
        out, total = torch.zeros_like(q), 0.0
        for keys, values in zip(k.split(2, -2), v.split(2, -2), strict=True):
            a = (q @ keys.mT).exp()
            out, total = out + a @ values, total + a.sum(-1, keepdim=True)
        return out / total

    model = ByHand(online)
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        model(*(torch.randn(2, 3, 6, 4) for _ in range(3)))
    assert {missed.name for missed in maps.missed} == {"ByHand"}
    assert "were not divided by anything" in maps.missed[0].reason


LINEAR = {
    "products": lambda q, k, v: q.softmax(-1) @ (k.softmax(-2).mT @ v),
    "scaled": lambda q, k, v: (q.softmax(-1) * 0.5) @ (k.softmax(-2).mT @ (v / 5)).to(q.dtype),
    "einsum": lambda q, k, v: (
        torch.einsum(
            "...de,...dn->...en", torch.einsum("...dn,...en->...de", k.mT.softmax(-1), v.mT), q.mT.softmax(-2)
        ).mT
    ),
}


@pytest.mark.parametrize("axes", [3, 4])
@pytest.mark.parametrize("name", list(LINEAR))
@pytest.mark.parametrize("reduce", [None, lambda total, weights: weights if total is None else total + weights])
def test_linear_attention_is_missed_as_a_whole(name, axes, reduce):
    model = ByHand(LINEAR[name])
    q, k, v = (torch.randn(2, 3, 5, 4).flatten(0, 4 - axes) for _ in range(3))
    with pytest.warns(UserWarning, match="linear attention has no map"), regard.capture(model, reduce=reduce) as maps:
        model(q, k, v)
    assert not maps
    assert [(missed.name, missed.count) for missed in maps.missed] == [("ByHand", 1)]


def test_what_follows_linear_attention_is_numbered_from_one():
    model = ByHand(lambda x: F.scaled_dot_product_attention(*[LINEAR["products"](x, x, x)] * 3))
    with regard.capture(model) as maps:
        model(torch.randn(2, 3, 5, 4))
    assert list(maps) == ["ByHand"]
    assert maps[0].kind == "sdpa"


def test_tokens_that_are_pooled_twice_and_agents_are_attention():
    def pooled(x):
        few = x[..., :3].softmax(-2).mT @ x  # 3 of 6 tokens
        return few[..., :1].softmax(-2).mT @ few

    def agents(x):
        few = x[:, :2]
        return (x @ few.mT).softmax(-1) @ ((few @ x.mT).softmax(-1) @ x)

    for function, shapes in ((pooled, [(3, 6), (1, 3)]), (agents, [(2, 6), (6, 2)])):
        model = ByHand(function)
        with regard.capture(model) as maps:
            model(torch.randn(2, 6, 4))
        assert [found.shape[-2:] for found in maps.values()] == shapes
        assert not maps.missed


class Attend(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class Learned(nn.Module):
    """A sigmoid (and an exponential) between products with learned matrices, written out."""

    def __init__(self, function, views):
        super().__init__()
        self.function, self.views = function, views
        self.inner, self.outer = nn.Parameter(torch.randn(2, 8, 6)), nn.Parameter(torch.randn(2, 8, 6))

    def forward(self, x):
        inner = self.inner[:] if self.views else self.inner
        return self.function(x @ inner) @ self.outer.mT


class Masks(nn.Module):
    """Masks of objects and their classes, mixed into a picture, as detectors do it."""

    def forward(self, x):
        masks = (x[:, :3] @ x.mT).sigmoid()
        classes = x[:, :3].softmax(-1)
        return torch.einsum("bqc,bqn->bnc", classes, masks) + (classes.mT @ masks).mT


class Excite(nn.Module):
    def __init__(self):
        super().__init__()
        self.squeeze, self.excite = nn.Linear(8, 2), nn.Linear(2, 8)

    def forward(self, x):
        return x * self.excite(self.squeeze(x.mean(1, keepdim=True)).relu()).sigmoid()


class Sample(nn.Module):
    def __init__(self):
        super().__init__()
        self.both = nn.Linear(8, 16)

    def forward(self, x):
        mean, logarithm = self.both(x).chunk(2, -1)
        return mean + (logarithm / 2).exp() * torch.randn_like(mean)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(8, 8)

    def forward(self, x):
        state = None
        for token in x.unbind(1):
            state = self.cell(token, state)
        return state[0][:, None]


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(8, 2), nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        gates = self.router(x).softmax(-1)
        return sum(gates[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Metric(nn.Module):
    """Likenesses that are counted, not used to average anything."""

    def forward(self, x):
        likeness = F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).mT
        growth = likeness.exp()
        return (growth / growth.sum(-1, keepdim=True)).log().mean() * 0 + likeness.sigmoid().mean() + x


INNOCENT = {
    "squeeze and excite": Excite,
    "glu": lambda: nn.Sequential(nn.Linear(8, 16), nn.GLU()),
    "silu": lambda: nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)),
    "sigmoids between learned matrices": lambda: Learned(torch.sigmoid, False),
    "sigmoids between views of learned matrices": lambda: Learned(torch.sigmoid, True),
    "exponentials between views of learned matrices": lambda: Learned(torch.exp, True),
    "masks of objects": Masks,
    "variational": Sample,
    "recurrent": Recurrent,
    "experts": Experts,
    "classifier": lambda: nn.Sequential(nn.Linear(8, 3), nn.Softmax(-1)),
    "gram": lambda: ByHand(lambda x: (x @ x.mT) @ x / x.norm(dim=-1, keepdim=True)),
    "group norm": lambda: nn.Sequential(nn.Conv1d(2, 4, 1), nn.GroupNorm(2, 4), nn.Sigmoid()),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", list(INNOCENT))
def test_ordinary_models_raise_no_alarm(name, grad):
    model = nn.Sequential(Attend(), INNOCENT[name]())
    with torch.set_grad_enabled(grad), regard.capture(model) as maps:
        model(torch.randn(2, 5, 8) if name != "group norm" else torch.randn(2, 2, 8))
    assert list(maps) == ["0"]
    assert not maps.missed


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("factor", ["number", "per head"])
def test_differential_attention_has_one_signed_map(fused, factor):
    class Differential(nn.Module):
        num_heads = 3

        def forward(self, q1, k1, q2, k2, v):
            scale = 0.3 if factor == "number" else torch.tensor([0.1, 0.5, 0.9]).reshape(1, 3, 1, 1)
            if fused:
                one = F.scaled_dot_product_attention(q1, k1, v)
                return one - scale * F.scaled_dot_product_attention(q2, k2, v)
            return ((q1 @ k1.mT / 2).softmax(-1) - scale * (q2 @ k2.mT / 2).softmax(-1)) @ v

    torch.manual_seed(0)
    q1, k1, q2, k2, v = (torch.randn(2, 3, 5, 4) for _ in range(5))
    model = Differential()
    with torch.no_grad(), regard.capture(model) as maps:
        model(q1, k1, q2, k2, v)
    scale = torch.tensor([0.3] * 3 if factor == "number" else [0.1, 0.5, 0.9]).reshape(1, 3, 1, 1)
    assert list(maps) == ["Differential"]
    expected = (q1 @ k1.mT / 2).softmax(-1) - scale * (q2 @ k2.mT / 2).softmax(-1)
    torch.testing.assert_close(maps[0].weights, expected)
    assert maps[0].weights.min() < 0
    assert maps[0].agrees


def test_two_kernels_that_are_not_subtracted_stay_two_maps():
    class Both(nn.Module):
        def forward(self, q, k, v):
            one, two = (F.scaled_dot_product_attention(x, k, v) for x in (q, -q))
            return one + 0.5 * two

    model = Both()
    with torch.no_grad(), regard.capture(model) as maps:
        model(*(torch.randn(2, 3, 5, 4) for _ in range(3)))
    assert list(maps) == ["Both", "Both#2"]
