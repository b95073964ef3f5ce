"""Large maps: their thumbnails are made once, and a page shows them before it has read the maps."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.views import Payload, _token_maps
from regard.views._thumbnails import SIDE


@pytest.fixture(autouse=True)
def many(monkeypatch):
    monkeypatch.setattr(_token_maps, "MANY", 0)


def by_hand(weights, visible, top):
    """The sizes of one head's pixels, 0 … 1: each weight goes to its pixel, as in the browser."""
    (queries, keys), (rows, columns) = weights.shape, (min(SIDE, size) for size in weights.shape)
    pixel = (torch.arange(queries) * rows // queries)[:, None] * columns + torch.arange(keys) * columns // keys
    lift = (weights * visible[:, None]).abs()
    most = torch.zeros(rows * columns).scatter_reduce(0, pixel.flatten(), lift.flatten(), "amax")
    return (most.log1p() / math.log1p(max(1, top))).clamp_max(1).reshape(rows, columns)


@settings(max_examples=30)
@given(queries=st.integers(1, 130), keys=st.integers(1, 130), signed=st.booleans(), seed=st.integers(0, 99))
def test_a_pixel_is_the_largest_weight_that_it_stands_for(queries, keys, signed, seed):
    torch.manual_seed(seed)
    weights = torch.randn(2, queries, keys) * 0.3 if signed else torch.randn(2, queries, keys).softmax(-1)
    payload = regard.show(weights).payload
    about = payload.meta["layers"][0]
    visible = payload.arrays.get("visible0", torch.full((queries,), about["visible"] or 0))
    steps = 127 if about["signed"] else 255
    for head in range(2):
        expected = by_hand(payload.arrays["map0"].values[head], visible, int(visible.max()))
        found = payload.arrays["small0"][head].float()
        torch.testing.assert_close(found.abs() / steps, expected, atol=0.51 / steps, rtol=0)


def test_the_sign_is_that_of_the_largest_weight():
    weights = torch.zeros(1, 96, 96)
    weights[0, 0, :2] = torch.tensor([0.5, -0.6])
    weights[0, 2, :2] = torch.tensor([0.6, -0.5])
    small = regard.show(weights).payload.arrays["small0"][0]
    assert int(small[0, 0]) == -int(small[1, 0]) < 0


def test_what_a_view_begins_with_comes_first():
    maps = {f"blocks.{i}.attn": torch.randn(3, 60, 60).softmax(-1) for i in range(2)}
    payload = regard.show(maps).payload
    early = sum(map(len, payload.early))
    places = {name: info["offset"] for name, info in json.loads(payload.header)["arrays"].items()}
    assert {name for name, place in places.items() if place >= early} == {
        f"map{layer}{part}" for layer in (0, 1) for part in ("", ".scale")
    }
    assert b"".join([*payload.early, *payload.rest]) == payload.buffer
    opened = payload.meta["opening"]
    whole = payload.arrays[f"map{opened['layer']}"]
    assert torch.equal(payload.arrays["opening"].values, whole.values[opened["head"]])


def test_small_maps_come_whole(monkeypatch):
    monkeypatch.undo()
    payload = regard.show(torch.rand(2, 60, 60).softmax(-1)).payload
    assert set(payload.arrays) == {"map0"}
    assert payload.rest == []
    assert Payload("tokens", {}).early == []


def test_thumbnails_of_layers_share_one_scale():
    """A layer with few keys is measured against the layer with most."""
    few, lots = torch.eye(4)[None], torch.full((1, 100, 100), 0.01)
    payload = regard.show([few, lots]).payload
    place = math.log1p(4) / math.log1p(100)
    assert int(payload.arrays["small0"].max()) == round(255 * place)
