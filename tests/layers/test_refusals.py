"""Arguments that layers refuse, each with an error that names the argument."""

import pytest
import torch

import regard
from regard.layers import (
    AbsolutePositionalEmbedding,
    DecoderBlock,
    GaussianHeads,
    KeyValueCache,
    RelativePositionalEmbedding,
    SeparableAttention,
    keep_from_torch,
)

pytestmark = pytest.mark.usefixtures("user_errors")


def decode(**options):
    return DecoderBlock(8, 2)(torch.zeros(2, 3, 8), torch.zeros(2, 5, 8), **options)


def put(center, sharpness, **options):
    GaussianHeads(2, **options).set(torch.tensor(center), torch.tensor(sharpness))


def on_grid(shape, grid):
    return SeparableAttention(4, 2)(torch.zeros(shape), grid)


PLACES = [[0.0, 1.0], [2.0, 0.0]]
SPLIT = torch.zeros(4, 3, 5)  # batch · heads, queries, keys
REFUSED = [
    (lambda: AbsolutePositionalEmbedding(4, kind="sinusoidal").positions(), "grid is needed"),
    (lambda: decode(memory_keep=torch.ones(2, 1, 1, 5)), "memory_keep must be a boolean tensor"),
    (lambda: decode(memory_keep=torch.ones(2, 1, 1, 4, dtype=torch.bool)), "memory_keep has shape"),
    (lambda: decode(cache=KeyValueCache()), "cache must be a DecoderCache"),
    (lambda: regard.MultiHeadAttention(8, 2)(torch.zeros(1, 3, 8), cache=[]), "cache must be a KeyValueCache"),
    (lambda: put(PLACES, [1.0]), "center and sharpness must have shapes"),
    (lambda: put(PLACES, [1.0, float("nan")]), "sharpness must be finite"),
    (lambda: put(PLACES, [1.0, 0.0]), "sharpness must be positive"),
    (lambda: put(PLACES, [[[1.0, 2.0], [2.0, 1.0]]] * 2, covariance="full"), "positive semi-definite"),
    (lambda: put(PLACES[:1], [1.0]), "center and sharpness must have shapes"),
    (lambda: on_grid((1, 6, 4), (6,)), "grid is"),
    (lambda: on_grid((1, 2, 3, 4), (3, 2)), "with grid, x must be"),
    (lambda: on_grid((2, 4), (3, 2)), "with grid, x must be"),
    (lambda: on_grid((1, 4, 6), (3, 2)), "pass x.movedim"),
    (lambda: SeparableAttention(4, 2, extent=(3,)), "extent .* has 1 sizes, but axes is 2"),
    (lambda: RelativePositionalEmbedding(3, (4, 4)), "is not divisible by the 2 axes"),
    (lambda: keep_from_torch(SPLIT, torch.zeros(3, 5), heads=2), "attn_mask is for a batch of 2"),
    (lambda: keep_from_torch(SPLIT, torch.zeros(2, 4), heads=2), "attn_mask has 5 keys"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_arguments_that_do_not_fit_are_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
