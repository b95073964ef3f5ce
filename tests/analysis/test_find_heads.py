"""Heads with a name: planted ones are found, and random networks have none."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regard
from regard.analysis import FoundHeads
from regard.maps import AttentionRecord, Layout, Map, Maps

NAMES = ("previous", "first", "duplicate", "induction", "local")


def planted(name, ids, causal):
    """Rows of a head of this kind, where there is something to attend to; even rows elsewhere."""
    batch, n = ids.shape
    seen = torch.ones(n, n).tril() if causal else torch.ones(n, n)
    rows = (seen / seen.sum(-1, keepdim=True)).expand(batch, n, n).clone()
    for b in range(batch):
        for q in range(n):
            before = range(q) if causal or name == "induction" else [k for k in range(n) if k != q]
            same = [k for k in before if ids[b, k] == ids[b, q]]
            keys = {
                "previous": [q - 1] if q else [],
                "first": [0],
                "duplicate": same,
                "induction": [k + 1 for k in same if k + 1 != q],
                "local": [k for k in range(max(0, q - 2), min(n, q + 3)) if k <= q or not causal],
            }[name]
            if keys:
                rows[b, q] = 0
                rows[b, q, keys] = 1 / len(keys)
    return rows


def as_maps(**weights):
    return Maps(Map(name, [AttentionRecord.given(each, name)]) for name, each in weights.items())


@settings(max_examples=12)
@given(name=st.sampled_from(NAMES), noise=st.floats(0, 0.5), causal=st.booleans(), seed=st.integers(0, 99))
def test_a_planted_head_of_each_kind_is_found_and_comes_first(name, noise, causal, seed):
    torch.manual_seed(seed)
    ids = torch.randint(0, 6, (2, 24))
    seen = torch.ones(24, 24).tril() if causal else torch.ones(24, 24)
    others = torch.rand(2, 5, 24, 24) * seen
    others = others / others.sum(-1, keepdim=True)
    others[:, 3] = (1 - noise) * planted(name, ids, causal) + noise * others[:, 3]
    found = regard.find_heads(as_maps(attn=others), name, ids=ids)
    assert isinstance(found, FoundHeads)
    assert [(head.name, head.head) for head in found.found] == [("attn", 3)]
    assert found[0].head == 3
    assert abs(found[0].lift - (1 - noise)) < 0.08
    assert all(abs(head.lift) < 0.1 for head in found.heads[1:])


@settings(max_examples=8)
@given(name=st.sampled_from(NAMES), causal=st.booleans(), seed=st.integers(0, 99))
def test_a_random_network_has_none_above_chance(name, causal, seed):
    torch.manual_seed(seed)
    ids = torch.randint(0, 8, (4, 32))
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for parameter in model.parameters():  # layers begin as copies of each other
        if parameter.ndim == 2:
            nn.init.xavier_uniform_(parameter)
    x = nn.Embedding(8, 32)(ids) + nn.Embedding(32, 32)(torch.arange(32))
    mask = nn.Transformer.generate_square_subsequent_mask(32) if causal else None
    with torch.no_grad(), regard.capture(model) as maps:
        model(x, mask=mask, is_causal=causal)
    found = regard.find_heads(maps, name, ids=ids)
    assert len(found) == 8
    assert not found.found, found


def test_patterns_of_ones_own():
    previous = torch.eye(8).roll(-1, 1).tril()
    weights = torch.stack([torch.full((8, 8), 1 / 8), previous])[None]
    maps = as_maps(attn=weights)
    for pattern in (
        previous.bool(),
        lambda q, k: k == q - 1,
        previous,
        Map("p", [AttentionRecord.given(previous[None, None])]),
    ):
        found = regard.find_heads(maps, pattern)
        assert (found[0].head, found[0].score) == (1, 1.0)
        assert found[1].score == pytest.approx(found[1].chance) == pytest.approx(1 / 8)


def test_local_means_near_on_the_image():
    near = torch.zeros(17, 17)
    for q in range(16):
        for k in range(16):
            near[q + 1, k + 1] = float(max(abs(q // 4 - k // 4), abs(q % 4 - k % 4)) <= 1)
    near[0] = 1
    weights = (near / near.sum(-1, keepdim=True))[None, None]
    maps = Maps([Map("attn", [AttentionRecord.given(weights, "attn", layout=Layout((4, 4), 1))])])
    assert regard.find_heads(maps, "local", radius=1)[0].score == pytest.approx(1.0)


def test_padding_is_no_key_and_no_query():
    keep = torch.tensor([[True] * 4 + [False] * 2])
    weights = torch.zeros(1, 1, 6, 6)
    weights[..., :4, :4] = 1 / 4
    found = regard.find_heads(as_maps(attn=weights), "previous", keep=keep)
    assert found[0].lift == pytest.approx(0)


@pytest.mark.parametrize("name", ["previous", "first"])
@pytest.mark.parametrize("padded", [slice(0, 2), slice(4, 6)], ids=["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("everywhere", [False, True])
def test_padding_on_either_side_does_not_change_a_score(name, padded, causal, everywhere):
    torch.manual_seed(0)
    seen = torch.ones(4, 4).tril() if causal else torch.ones(4, 4)
    real = torch.rand(1, 2, 4, 4) * seen
    real = real / real.sum(-1, keepdim=True)
    keep = torch.ones(1, 6, dtype=torch.bool)
    keep[:, padded] = False
    at = keep[0].nonzero()[:, 0]
    weights = torch.zeros(1, 2, 6, 6)
    weights[..., at[:1]] = 1.0  # a token of the padding may look anywhere that is before it
    weights[:, :, : at[0]] = torch.eye(6)[: at[0]]
    if everywhere:  # as eager attention of transformers computes it
        weights[:] = 1 / 6
    weights[:, :, at] = 0
    weights[:, :, at[:, None], at] = real
    expected = regard.find_heads(as_maps(attn=real), name)
    assert [
        (head.head, pytest.approx(head.score), pytest.approx(head.chance))
        for head in regard.find_heads(as_maps(attn=weights), name, keep=keep)
    ] == [(head.head, head.score, head.chance) for head in expected]


def test_errors_say_what_is_missing(user_errors):
    maps = as_maps(attn=torch.rand(1, 2, 3, 5).softmax(-1))
    for message, options in {
        "ids is needed": {"pattern": "induction"},
        "pattern must be one of": {"pattern": "curious"},
        "attends from 3 queries to 5 keys": {"pattern": "previous"},
        "pattern has shape": {"pattern": torch.ones(5, 5)},
        "keep must be a boolean": {"pattern": "first", "keep": torch.ones(1, 5)},
    }.items():
        with pytest.raises((ValueError, TypeError), match=message):
            regard.find_heads(maps, **options)
