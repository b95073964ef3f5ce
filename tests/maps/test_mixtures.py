"""Softmaxes that weigh streams, experts, layers or codes are told apart from attention; and what names say."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard

BATCH, TOKENS, WIDTH, PARTS = 2, 7, 8, 4


class LinearAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return F.elu(self.q(x)) @ (F.elu(self.k(x)).mT @ self.v(x))


class GatedNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.down, self.up = nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH)

    def forward(self, x):
        return self.norm(x) * self.up(self.down(x)).sigmoid()


class Block(nn.Module):
    """Attention over the tokens, and a mixture of parts of each token that ``mix`` computes."""

    def __init__(self, mix=None, inner=None):
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.post_attention_layernorm = GatedNorm()
        self.gate, self.mixing = nn.Linear(WIDTH, PARTS), nn.Linear(PARTS * WIDTH, PARTS**2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(PARTS))
        self.codes = nn.Parameter(torch.randn(PARTS, WIDTH))
        self.mix, self.inner = mix, inner

    def forward(self, numbers):
        x = self.embedding(numbers)
        x = x + self.attn(x, x, x)[0]
        parts = torch.stack([expert(x) for expert in self.experts], 2)
        if self.inner is not None:
            x = self.inner(x)
        x = self.post_attention_layernorm(x)
        return x if self.mix is None else self.mix(self, x, parts)


def _doubly_stochastic(block, parts):
    weights = block.mixing(parts.flatten(2)).unflatten(-1, (PARTS, PARTS)).softmax(-1)
    for _ in range(2):
        weights = weights / weights.sum(-2, keepdim=True)
        weights = weights / weights.sum(-1, keepdim=True)
    return weights


MIXTURES = {
    "streams": lambda block, x, parts: _doubly_stochastic(block, parts).mT @ parts,
    "streams, folded": lambda block, x, parts: torch.bmm(
        _doubly_stochastic(block, parts).flatten(0, 1), parts.flatten(0, 1)
    ),
    "streams first": lambda block, x, parts: torch.einsum(
        "bsij,bjsd->bisd", _doubly_stochastic(block, parts), parts.transpose(1, 2)
    ),
    "layers": lambda block, x, parts: (block.gate(x).softmax(-1)[..., None] * parts).sum(2),
    "experts": lambda block, x, parts: torch.einsum(
        "te,ted->td", block.gate(x).flatten(0, 1).softmax(-1), parts.flatten(0, 1)
    ),
    "codes": lambda block, x, parts: block.gate(x).softmax(-1) @ (2 * block.codes),
    "kernels": lambda block, x, parts: block.gate(x).softmax(-1).flatten(0, 1) @ block.codes.unsqueeze(-1).flatten(1),
}


@pytest.mark.parametrize("name", list(MIXTURES))
def test_a_mixture_of_what_is_no_token_is_told_apart(name):
    model = Block(MIXTURES[name])
    with regard.capture(model) as maps:
        model(torch.randint(0, 50, (BATCH, TOKENS)))
        model(torch.randint(0, 50, (BATCH, 1)))  # as in generation
    assert list(maps) == ["attn"]
    assert not maps.missed
    assert len(maps.notes) == 1
    assert maps.notes[0].startswith(f"Block: a softmax weighs {PARTS} vectors that")
    alone = []
    for found in (model, copy.deepcopy(model)):  # what was seen in an earlier capture does not change this one
        with regard.capture(found) as maps:
            found(torch.zeros(BATCH, 1, dtype=torch.long))
        alone.append((list(maps), maps.notes, maps.missed))
    assert alone[0] == alone[1]


def test_attention_over_the_layers_of_each_token_has_queries_that_are_tokens():
    def over_layers(block, x, parts):
        return F.scaled_dot_product_attention(x.unsqueeze(2), parts, parts).squeeze(2)

    model = Block(over_layers)
    with regard.capture(model) as maps:
        model(torch.randint(0, 50, (BATCH, TOKENS)))
    found = maps["Block"]
    assert (found.shape, found.over, found.axes) == ((BATCH, 1, TOKENS, PARTS), "samples", "known")


def test_a_softmax_of_an_average_over_tokens_stays_a_map():
    """One token is written at a time, so that tokens and samples are as many: the averages are over the source."""

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.score = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 1)

        def forward(self, numbers, source):
            weights = self.score((source + self.embedding(numbers)).tanh()).softmax(1)
            return (weights * source).sum(1)

    model = Decoder()
    with regard.capture(model) as maps:
        model(torch.randint(0, 50, (BATCH, 1)), torch.randn(BATCH, TOKENS, WIDTH))
    assert maps["Decoder"].shape[-1] == TOKENS
    assert not maps.notes


@pytest.mark.filterwarnings("ignore:.*computed but not captured")
def test_linear_attention_inside_a_module_that_attends_is_missed():
    """A map of the module around is not a map of it; a norm after attention is none, whatever it is called."""

    class Around(Block):
        def forward(self, numbers):
            x = self.embedding(numbers)
            return self.inner(F.scaled_dot_product_attention(x, x, x))

    model = Around(inner=LinearAttention())
    with regard.capture(model) as maps:
        model(torch.randint(0, 50, (BATCH, TOKENS)))
    assert list(maps) == ["Around"]
    assert [missed.name for missed in maps.missed] == ["inner"]


def test_a_softmax_over_channels_or_classes_is_no_attention():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, WIDTH)
            self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
            self.image = nn.Conv2d(1, 5, 1)

        def forward(self, numbers):
            x = self.embedding(numbers)
            x = self.attn(x, x, x)[0]
            heat = self.image(x[:, None]).softmax(1)[:, :-1]  # keypoints of an image
            return (x @ self.embedding.weight.T).softmax(-1) * 2, heat.reshape(len(x), -1)

    model = Head()
    with regard.capture(model) as maps:
        model(torch.randint(0, 50, (BATCH, TOKENS)))
    assert list(maps) == ["attn"]
    assert not maps.missed
