"""Which query and key a number means, in calls whose keys are more than their queries."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.layers import KeyValueCache


def changed_rows(maps):
    """The queries with a key of no weight."""
    return sorted({row for _, _, row, _ in (maps[-1].weights == 0).nonzero().tolist()})


@pytest.mark.parametrize(("queries", "keys"), [(4, 5), (5, 4), (1, 7), (3, 9)])
def test_queries_of_cross_attention_are_numbered_as_in_the_map(queries, keys):
    x, context = torch.randn(2, queries, 8), torch.randn(2, keys, 8)
    ours, torchs = regard.MultiHeadAttention(8, 2), nn.MultiheadAttention(8, 2, batch_first=True)
    for layer, inputs in ((ours, (x, context)), (torchs, (x, context, context))):
        for query in {0, queries - 1, -1}:
            with regard.edit(layer, "*", queries=query, keys=2), regard.capture(layer) as maps:
                layer(*inputs)
            assert changed_rows(maps) == [query % queries]


def test_keys_that_a_layer_adds_follow_those_of_the_tokens():
    x = torch.randn(2, 4, 8)
    for bias, zero, needed in itertools.product((False, True), repeat=3):
        layer = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=bias, add_zero_attn=zero)
        with regard.edit(layer, "*", queries=[0, 2], keys=1), regard.capture(layer) as maps:
            layer(x, x, x, need_weights=needed)
        assert (maps[-1].weights[:, :, [0, 2], 1] == 0).all()
        assert changed_rows(maps) == [0, 2]


class Decoder(nn.Module):
    """Self-attention by hand with a pair of keys and values as its cache."""

    def __init__(self):
        super().__init__()
        self.qkv, self.output = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x, cache=None):
        query, key, value = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            key, value = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        keep = torch.ones(x.shape[1], key.shape[2], dtype=torch.bool).tril(key.shape[2] - x.shape[1])
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=keep)
        return self.output(mixed.transpose(1, 2).flatten(2)), (key, value)


def run_by_pair(model, parts):
    cache, outs = None, []
    for part in parts:
        out, cache = model(part, cache)
        outs.append(out)
    return torch.cat(outs, 1)


def run_by_layer_cache(layer, parts):
    cache = KeyValueCache()
    return torch.cat([layer(part, causal=True, cache=cache) for part in parts], 1)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1, 1), (3, 1, 1, 2), (2, 5), (7,)])
@pytest.mark.parametrize(
    ("layer", "run"), [(Decoder, run_by_pair), (lambda: regard.MultiHeadAttention(8, 2), run_by_layer_cache)]
)
def test_with_a_cache_queries_are_numbered_in_the_whole_sequence(layer, run, sizes):
    model, x = layer().double().eval(), torch.randn(2, 7, 8, dtype=torch.float64)
    with torch.no_grad():
        for queries, keys in (([4, 5], [0, 2]), (slice(3, None), 3), (2, None)):
            with regard.edit(model, "*", queries=queries, keys=keys, heads=1):
                want = run(model, [x])
            with regard.edit(model, "*", queries=queries, keys=keys, heads=1):
                torch.testing.assert_close(run(model, x.split(sizes, 1)), want)
        with regard.capture(model) as maps:
            run(model, x.split(sizes, 1))
        with regard.capture(model) as whole:
            run(model, [x])
    torch.testing.assert_close(maps.generation()[-1].weights, whole[-1].weights)


def test_a_cache_of_cross_attention_states_no_positions():
    layer, cache = regard.MultiHeadAttention(8, 2).eval(), KeyValueCache()
    x, context = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x, context, cache=cache)
        layer(x, context, cache=cache)
    assert [call.positions for call in maps[-1].calls] == [None, None]
    with torch.no_grad(), regard.edit(layer, "*", queries=0, keys=4), regard.capture(layer) as maps:
        layer(x, context, cache=cache)
    assert changed_rows(maps) == [0]


class Written:
    """A cache that says how many tokens it has seen."""

    def __init__(self, length):
        self.length = length

    def get_seq_length(self):
        return self.length


class WithPooledKeys(nn.Module):
    """Attention to the tokens and to two keys of no token, the means of both halves, as in DeepSeek V4."""

    def forward(self, x):
        cache = Written(x.shape[1])  # noqa: F841  # capture reads it
        heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
        keys = torch.cat([heads, *(half.mean(2, keepdim=True) for half in heads.chunk(2, 2))], 2)
        return F.scaled_dot_product_attention(heads, keys, keys).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("weights", "factor"),
    [(0.0, 0.0), (torch.zeros(1, 1, 1, 1), 0.0), (None, 0.0), (lambda part: 0.5 * part, 0.5)],
    ids=["number", "tensor", "block", "function"],
)
def test_all_keys_are_also_those_of_no_token(weights, factor):
    model, x = WithPooledKeys(), torch.randn(1, 6, 8)
    with torch.no_grad():
        expected = model(x)
        expected[..., :4] *= factor
        with regard.edit(model, "*", heads=0, weights=weights):
            found = model(x)
    assert (found - expected).abs().max() < 1e-6


def test_keys_of_no_token_have_no_number():
    model, x = WithPooledKeys(), torch.randn(1, 6, 8)
    with torch.no_grad(), regard.capture(model) as plain:
        model(x)
    edit = regard.edit(model, "*", keys=slice(None), weights=0.0, renormalize=False)
    with torch.no_grad(), edit, regard.capture(model) as maps:
        model(x)
    assert plain[0].key_positions.tolist() == [0, 1, 2, 3, 4, 5, -1, -1]
    assert (maps[0].weights[..., :6] == 0).all()
    assert torch.allclose(maps[0].weights[..., 6:], plain[0].weights[..., 6:])
