"""Overviews of long maps: equal to the dense map, whatever hides or changes keys."""

import functools
import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regard
from regard.maps import AttentionRecord, Check, Computation
from regard.maps.weights import _building, _overview_pass, _tiles
from regard.maps.weights._attention_scores import AttentionScores
from regard.maps.weights._band import Band, alignment
from regard.support.reading import UnreadableError


class Long(nn.Module):
    """One attention of which keys and queries are made to look at the same place, far back, or at the first token."""

    def __init__(self, heads=2, width=8, causal=True):
        super().__init__()
        self.heads, self.causal, self.qkv = heads, causal, nn.Linear(heads * width, 3 * heads * width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)


@pytest.fixture
def small_tiles(monkeypatch):
    """Several tiles also in short maps."""
    monkeypatch.setattr(_overview_pass, "TILE", 96)
    monkeypatch.setattr(_overview_pass, "ROWS", 8)
    monkeypatch.setattr(_overview_pass, "GROUP", 2)
    monkeypatch.setattr(_tiles, "TILE", 64)


def record_of(scores, logsumexp=True, dtype=torch.float32):
    """A record as a kernel would leave it, of these scores; and its weights."""
    batch, heads, _, keys = scores.shape
    value = torch.randn(batch, heads, keys, 4, dtype=dtype)
    weights, total = scores(slice(None), slice(None))
    given = Computation(scores, output=weights @ value, value=value, logsumexp=total if logsumexp else None)
    record = AttentionRecord("attention", "test", scores.shape, Check("kernel"), computation=given)
    record.check.allowed = given.rounding(keys)
    return record, weights


def assert_equals_dense(overview, weights, shift):
    """Every number of an overview, recomputed from the map."""
    (rows, columns), (queries, keys) = overview.cell, weights.shape[-2:]
    whole = F.pad(weights, (0, -keys % columns, 0, -queries % rows))
    cells = whole.unflatten(-1, (-1, columns)).unflatten(-3, (-1, rows))
    close = {"atol": 2e-5, "rtol": 2e-5}
    torch.testing.assert_close(overview.mass, cells.sum((-1, -3)), **close)
    torch.testing.assert_close(overview.largest, cells.amax((-1, -3)), **close)
    shift = shift if isinstance(shift, int) else shift[:, None, None, None]
    away = (torch.arange(keys) - torch.arange(queries)[:, None] - shift).abs()
    query, key = overview.per_query, overview.per_key
    torch.testing.assert_close(query.entropy, torch.special.entr(weights).sum(-1), **close)
    torch.testing.assert_close(query.first, weights[..., :4].sum(-1), **close)
    torch.testing.assert_close(query.distance, (weights * away).sum(-1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(key.received, weights.sum(-2), **close)
    for found, place, axis in ((query.largest, query.where, -1), (key.largest, key.source, -2)):
        torch.testing.assert_close(found, weights.amax(axis), **close)
        there = weights.gather(axis, place.long().clamp_min(0).unsqueeze(axis)).squeeze(axis)
        torch.testing.assert_close(there, weights.amax(axis), **close)
        assert bool(((place < 0) == (weights.amax(axis) == 0)).all())


@st.composite
def attentions(draw):
    """Scores with every kind of mask and bias."""
    torch.manual_seed(draw(st.integers(0, 99)))
    batch, groups, shared = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    queries, keys = draw(st.integers(1, 23)), draw(st.integers(1, 23))
    heads, scores = groups * shared, {}
    if draw(st.booleans()):
        limits = st.none() | st.integers(0, 9)
        shift = draw(st.sampled_from([0, keys - queries, torch.randint(-3, 4, (batch,))]))
        scores["band"] = Band(draw(limits), draw(st.none() | st.just(0) | st.integers(-2, 9)), shift)
    kind = draw(
        st.sampled_from(["none", "keep", "padding", "bias", "hidden", "present", "slopes", "softcap", "functions"])
    )
    mask = torch.rand(batch, heads, queries, keys) < 0.7
    scores |= {
        "none": {},
        "keep": {"keep": mask},
        "padding": {"keep": mask[:, :1, :1]},
        "bias": {"bias": torch.randn(heads, queries, keys)},
        "hidden": {"bias": torch.zeros(batch, 1, queries, keys).masked_fill(~mask[:, :1], -math.inf)},
        "present": {"present": (mask[:, 0, :, 0], mask[:, 0, 0])},
        "slopes": {"slopes": torch.rand(batch, heads)},
        "softcap": {"softcap": 2.0},
        "functions": {
            "change": lambda s, b, h, q, k: s + 0.1 * b - 0.2 * h * (q - k).abs(),
            "mask": lambda b, h, q, k: (q + k + b + h) % 3 > 0,
        },
    }[kind]
    query, key = torch.randn(batch, heads, queries, 4), torch.randn(batch, shared, keys, 4)
    return AttentionScores(query, key, 0.7, **scores)


@settings(max_examples=30, deadline=None)
@given(scores=attentions(), cells=st.integers(1, 30), known=st.booleans())
def test_equals_the_dense_map(scores, cells, known):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_overview_pass, "TILE", 96)
        patch.setattr(_overview_pass, "ROWS", 8)
        patch.setattr(_overview_pass, "GROUP", 2)
        record, weights = record_of(scores, known)
        overview = _overview_pass.overview_of(record, slice(None), cells)
    assert_equals_dense(overview, weights, alignment(scores.band, *scores.shape[2:]))
    assert record.residual < 1e-4
    assert max(overview.mass.shape[2:]) <= cells


@settings(max_examples=30, deadline=None)
@given(scores=attentions())
def test_whole_maps_in_tiles_equal_the_dense_map(scores):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tiles, "TILE", 64)
        patch.setattr(_building, "AT_ONCE", 0)  # which small maps would be built
        record, weights = record_of(scores)
        room = _building.Room(lambda batch: torch.zeros(batch, *scores.shape[1:]), torch.float32)
        found = _building.build(record, slice(None), slice(None), room, 1)
    torch.testing.assert_close(found, weights)
    assert record.residual < 1e-5
    assert record.logsumexp_residual < 1e-4


def test_of_a_model_with_rows_kept_before_and_after(small_tiles, tmp_path):
    model, x = Long(), torch.randn(2, 37, 16)
    with torch.no_grad(), regard.capture(model) as whole:
        model(x)
    weights = whole[0].weights
    with torch.no_grad(), regard.capture(model, overview=10, rows=[3, 30], heads=1, keep_keys=True) as maps:
        model(x)
    found = maps["Long"]
    assert (found.overview.shape, found.cell) == ((2, 1, 10, 10), (4, 4))
    torch.testing.assert_close(found.overview.sum((-1, -2)), torch.full((2, 1), 37.0))
    assert found.overview_largest.amax() == found.per_query.largest.amax() == found.per_key.largest.amax()
    assert found.agrees
    assert found.residual < 1e-5
    assert found.logsumexp_residual < 1e-5
    assert found.against == "kernel, at 4 random rows; all row sums"
    torch.testing.assert_close(found.weights, weights[:, 1:, [3, 30]])
    torch.testing.assert_close(found.row(-1), weights[:, 1:, -1])
    torch.testing.assert_close(found.block(slice(2, 9), [0, 5]), weights[:, 1:, 2:9, [0, 5]])
    assert "in 10×10 cells" not in str(maps)
    again = regard.maps.Maps.load(maps.save(tmp_path / "long"))["Long"]
    for name, kept in found.latest.overview.tensors.items():
        assert torch.equal(again.latest.overview.tensors[name], kept)
    torch.testing.assert_close(again.row(30), weights[:, 1:, 30])
    with pytest.raises(ValueError, match="row 5 of 'Long' was not kept"):
        again.row(5)


def test_handwritten_and_declared_attention():
    class Written(Long):
        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            return (torch.softmax(q @ k.mT, -1) @ v).transpose(1, 2).flatten(2)

    for model, x in (
        (Written(), torch.randn(2, 9, 16)),
        (regard.GaussianAttention(16, 2, axes=1), torch.randn(2, 9, 16)),
    ):
        with torch.no_grad(), regard.capture(model) as whole:
            model(x)
        with torch.no_grad(), regard.capture(model, overview=3, keep_keys=True) as maps:
            model(x)
        assert any("keep_keys= keeps none" in note for note in maps.notes)
        expected = whole[0].weights.unflatten(-1, (3, 3)).unflatten(-3, (3, 3)).sum((-1, -3))
        torch.testing.assert_close(maps[0].overview, expected)
        assert maps[0].agrees
        with pytest.raises(ValueError, match="keep_keys="):
            maps[0].row(0)


def test_a_wrong_overview_is_noticed(monkeypatch, spoiled):
    model, x = Long(), torch.randn(1, 40, 16)
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match="do not reproduce"),
        regard.capture(model, overview=8) as maps,
    ):
        model(x)
    assert maps[0].residual > 0.01


@pytest.mark.parametrize("wrong", ["order", "scale"])
def test_tiles_that_are_wrong_are_noticed(monkeypatch, wrong):
    """Keys in another order leave all sums as they are: the rows in full show it."""
    tiles = _overview_pass._logits

    def spoil(*args):
        tile = tiles(*args)
        return tile.flip(-1) if wrong == "order" else tile + 0.01

    monkeypatch.setattr(_overview_pass, "_logits", spoil)
    capture = regard.capture(model := Long(causal=False), overview=8)
    with torch.no_grad(), pytest.warns(UserWarning, match="do not reproduce"), capture as maps:
        model(torch.randn(1, 40, 16))
    assert not maps[0].agrees


def test_the_budget_is_counted_before_anything_is_computed(monkeypatch, tmp_path):
    model, x = Long(), torch.randn(1, 300, 16)
    with torch.no_grad(), regard.capture(model, overview=16, keep_keys=True) as maps:
        model(x)
    size = maps[0].latest.overview.nbytes
    keys = 2 * 300 * 16 * 4
    assert maps[0].latest.scores.nbytes == keys
    calls = []
    monkeypatch.setattr("regard.maps._keeping.overview_of", lambda *args: calls.append(args))
    capture = regard.capture(model, overview=16, keep_keys=True, budget=size + keys - 1)
    with torch.no_grad(), pytest.warns(UserWarning, match="dropped"), capture as maps:
        model(x)
    assert not calls
    assert "has no room for this overview and its keys: 0 B are in use" in maps.missed[0].reason
    monkeypatch.undo()
    with torch.no_grad(), regard.capture(model, overview=16, keep_keys=True, budget=size, stream=tmp_path) as maps:
        model(x)
    assert maps[0].row(7).shape == (1, 2, 300)
    with torch.no_grad(), pytest.warns(UserWarning, match="overview=128"), regard.capture(model, budget=1) as maps:
        model(x)
    assert "overview=128 keeps its exact mass in cells, in" in maps.missed[0].reason


def test_the_budget_holds_for_the_peak(monkeypatch):
    """A large overview is computed in float32 and copied then: both are in memory at once."""
    model, x = Long(), torch.randn(1, 300, 16)
    with torch.no_grad(), regard.capture(model, overview=16) as maps:
        model(x)
    size = maps[0].latest.overview.nbytes
    with torch.no_grad(), regard.capture(model, overview=16, budget=size) as maps:  # less than a chunk
        model(x)
    assert len(maps) == 1
    monkeypatch.setattr(regard.maps.Capture, "chunk_bytes", 1000)
    with torch.no_grad(), pytest.warns(UserWarning, match="dropped"), regard.capture(model, overview=16, budget=size):
        model(x)
    working = regard.maps._overview.working_size((1, 2, 300, 300), 16)
    with torch.no_grad(), regard.capture(model, overview=16, budget=size + working) as maps:
        model(x)
    assert len(maps) == 1


@pytest.mark.parametrize("in_folder", [False, True])
def test_a_retracted_overview_gives_its_memory_back(tmp_path, in_folder):
    capture = regard.capture(model := Long(), overview=4, keep_keys=True, stream=tmp_path if in_folder else None)
    x = torch.randn(1, 20, 16)
    with torch.no_grad(), capture:
        model(x)
        once = capture.storage.used
        model(x)
        capture.retract("Long")
    assert capture.storage.used == once > 0
    assert len(list(tmp_path.glob("*.keys"))) == (2 if in_folder else 0)


class Kinds(nn.Module):
    """Attention of one kind or another, of 4 heads over 2."""

    def __init__(self, kind, dtype):
        super().__init__()
        self.kind, self.num_heads = kind, 4
        self.proj = nn.Linear(32, 48, dtype=dtype)

    def forward(self, x):
        q, k, v = self.proj(x).split((32, 8, 8), -1)
        q, k, v = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in (q, k.repeat(1, 1, 2), v.repeat(1, 1, 2)))
        kept = torch.ones(len(x), 1, 1, x.shape[1], dtype=torch.bool)
        kept[0, ..., -9:] = False
        masks = {"padded": kept, "biased": torch.arange(x.shape[1], dtype=q.dtype) / 40, "causal": None}
        mask = masks[self.kind] if self.kind != "biased" else masks["biased"].expand(1, 1, x.shape[1], -1)
        options = {"is_causal": self.kind == "causal", "enable_gqa": True}
        return nn.functional.scaled_dot_product_attention(q, k, v, mask, **options)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("causal", torch.bfloat16), ("padded", torch.float32), ("biased", torch.float64)]
)
def test_kept_keys_come_from_the_folder(tmp_path, kind, dtype):
    torch.manual_seed(0)
    model, x = Kinds(kind, dtype), torch.randn(2, 70, 32, dtype=dtype)
    options = {"overview": 16, "keep_keys": True, "rows": [3, 5], "heads": [0, 3]}
    with torch.no_grad(), regard.capture(model) as dense:
        model(x)
    with torch.no_grad(), regard.capture(model, stream=tmp_path / "first", **options) as maps:
        model(x)
    folder = (tmp_path / "first").rename(tmp_path / "moved")  # nothing of the capture is needed
    found, whole = regard.maps.Maps.load(folder)[0], dense[0].weights[:, [0, 3]]
    torch.testing.assert_close(found.row(-1).to(whole.dtype), whole[:, :, -1])
    rows, columns = [1, 69, 40], slice(10, 60)
    torch.testing.assert_close(found.block(rows, columns).to(whole.dtype), whole[:, :, rows, columns])
    torch.testing.assert_close(found.weights.to(whole.dtype), whole[:, :, [3, 5]])
    assert torch.equal(found.block([0]), maps[0].block([0]))
    assert torch.equal(found.overview, maps[0].overview)
    assert torch.equal(found.per_key.source, maps[0].per_key.source)
    assert (found.residual, found.agrees, found.cell) == (maps[0].residual, True, maps[0].cell)


def test_a_folder_whose_keys_do_not_fit_is_refused(tmp_path):
    model = Kinds("padded", torch.float32)
    with torch.no_grad(), regard.capture(model, stream=tmp_path, overview=4, keep_keys=True):
        model(torch.randn(2, 20, 32))
    index = tmp_path / "maps.json"
    text = index.read_text()
    about = json.loads(text)["calls"][0]["parts"]
    for name, shape in (
        ("query", [2, 4, 10, 16]),
        ("key", [2, 4, 20, 4]),
        ("keep", [1, 1, 1, 40]),
        ("key", [4, 2, 20, 4]),
    ):
        wrong = json.loads(text)
        wrong["calls"][0]["parts"][f"scores.{name}"]["shape"] = shape
        assert math.prod(shape) == math.prod(about[f"scores.{name}"]["shape"])
        index.write_text(json.dumps(wrong))
        with pytest.raises(UnreadableError, match="does not describe maps"):
            regard.maps.Maps.load(tmp_path)


def test_analyses_refuse_overviews():
    with torch.no_grad(), regard.capture(model := Long(), overview=4) as maps:
        model(torch.randn(1, 9, 16))
    assert "1×2×9×9 in 3×3 cells" in str(maps)
    assert all("1×2×9×9 in 3×3 cells" in repr(found) for found in maps.values())
    for analysis in (regard.rollout, regard.locality):
        with pytest.raises(ValueError, match="needs whole maps, but 'Long' is an overview"):
            analysis(maps)
    with pytest.raises(ValueError, match="only an overview of 'Long' was kept"):
        maps.stack()
    with pytest.raises(ValueError, match="no overview"):
        regard.maps.Map("x", [AttentionRecord.given(torch.ones(1, 1, 1, 1))]).overview  # noqa: B018


def test_reduce_by_rows_and_at_once(monkeypatch):
    """A function of three arguments gets some rows at a time; one of two needs room for the whole map."""
    model, x = Long(), torch.randn(1, 30, 16)
    with torch.no_grad(), regard.capture(model) as whole:
        model(x)
    monkeypatch.setattr(regard.maps.Capture, "chunk_bytes", 4 * 2 * 30 * 7)
    seen = []

    def received(total, weights, rows):
        seen.append(rows)
        return weights.sum(-2) if total is None else total + weights.sum(-2)

    with torch.no_grad(), regard.capture(model, reduce=received, budget=0) as maps:
        model(x)
        model(x)
    torch.testing.assert_close(maps[0].reduced, 2 * whole[0].weights.sum(-2))
    assert seen == 2 * [slice(a, min(a + 7, 30)) for a in range(0, 30, 7)]
    assert len(maps[0].calls) == 2
    for kind in (lambda total, weights: weights.dtype, lambda total, weights, rows: weights.dtype):
        with torch.no_grad(), regard.capture(model, reduce=kind, dtype=torch.bfloat16) as maps:
            model(x)
        assert maps[0].reduced is torch.bfloat16
    capture = regard.capture(model, reduce=lambda total, weights: weights, budget=100)
    with torch.no_grad(), pytest.warns(UserWarning, match="dropped"), capture as maps:
        model(x)
    assert "folds some rows at a time" in maps.missed[0].reason
    for wrong in (
        lambda total, weights: weights @ weights[..., :1, :1],
        lambda total, weights, rows: weights @ weights[..., :1, :1],
    ):
        with pytest.raises(TypeError, match="reduce must be a function of"), regard.capture(model, reduce=wrong):
            model(torch.randn(1, 5, 16))


def test_a_map_that_almost_fills_the_budget_is_built_in_smaller_chunks():
    model, x = Long(), torch.randn(1, 3000, 16)
    size = 4 * 2 * 3000**2
    with torch.no_grad(), regard.capture(model, budget=size + 24 * 2**20) as maps:
        model(x)
    assert maps[0].shape == (1, 2, 3000, 3000)
    assert maps[0].agrees
    capture = regard.capture(model, budget=size + 23 * 2**20)
    with torch.no_grad(), pytest.warns(UserWarning, match="dropped"), capture as maps:
        model(x)
    assert "and 24 MiB while it is computed" in maps.missed[0].reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_folded_within_the_budget(dtype):
    """Of the largest chunks, two or three would be in memory at once, more than a small budget allows."""
    model, x = Long().to(dtype), torch.randn(1, 2000, 16, dtype=dtype)
    bytes_of_row = dtype.itemsize * 2 * 2000
    for budget, least in (("30MiB", 30 * 2**20 // 3 // bytes_of_row), (0, 8 * 2**20 // bytes_of_row), (None, 2000)):
        seen = []

        def received(total, weights, rows, *, seen):
            seen.append(rows.stop - rows.start)
            return weights.sum(-2) if total is None else total + weights.sum(-2)

        with (
            torch.no_grad(),
            regard.capture(model, reduce=functools.partial(received, seen=seen), budget=budget) as maps,
        ):
            model(x)
        assert (max(seen), sum(seen)) == (min(least, 2000), 2000)
        torch.testing.assert_close(maps[0].reduced.sum(-1), torch.full((1, 2), 2000.0, dtype=dtype), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"overview": 0}, "overview must be"),
        ({"overview": True}, "overview must be"),
        ({"overview": 8, "reduce": max}, "exclude"),
        ({"keep_keys": True}, "goes with overview"),
        ({"overview": 8, "keep_keys": "yes"}, "keep_keys must be"),
    ],
)
def test_wrong_options(options, match, user_errors):
    with pytest.raises((TypeError, ValueError), match=match):
        regard.capture(Long(), **options)


def test_heads_in_threads_leave_the_number_of_threads_as_it_was(monkeypatch):
    model, x = Long(heads=3, width=4), torch.randn(2, 40, 12)
    with torch.no_grad(), regard.capture(model, overview=8) as expected:
        model(x)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        monkeypatch.setattr(_overview_pass, "TILE", 400)
        with torch.no_grad(), regard.capture(model, overview=8) as maps:
            model(x)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(maps[0].overview, expected[0].overview)


@pytest.mark.parametrize(("shared", "value_heads", "threads"), [(8, 8, 1), (4, 4, 2), (4, 2, 1), (1, 1, 1)])
def test_low_tiles_of_heads_that_share_keys_give_the_dense_map(monkeypatch, shared, value_heads, threads):
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 8, 40, 4), torch.randn(2, shared, 40, 4), torch.randn(2, value_heads, 40, 4)
    scores = AttentionScores(query, key, 0.5, band=Band(right=0))
    monkeypatch.setattr(_tiles, "LONG", 40)
    monkeypatch.setattr(_tiles, "LOW", 8)
    monkeypatch.setattr(_tiles, "TILE", 40 * 8 * 2)
    height, heads, items = _tiles._tile_sizes(scores, value_heads, threads, _tiles.TILE)
    assert (height, items) == ((8, 1) if shared > 1 else (16, 1))
    assert heads % (8 // value_heads) == 0 or heads == 1
    dense, total = scores(slice(None), slice(None))
    output = dense @ value.repeat_interleave(8 // value_heads, 1)
    running = Computation(scores, output=output, value=value, logsumexp=total)
    record = AttentionRecord("x", "test", scores.shape, Check("kernel"), computation=running)
    room = _building.Room(lambda batch: torch.zeros(batch, 8, 40, 40), torch.float32)
    torch.testing.assert_close(_tiles.in_tiles(record, room), dense)
    assert record.residual < 1e-5
    assert record.logsumexp_residual < 1e-5
    output[1, 7, 39] += 1  # the last head of the last tile is compared, too
    assert _tiles.in_tiles(record, room) is not None
    assert record.residual > 0.5


@pytest.mark.parametrize("number", [-1e4, -1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("known", [True, False])
def test_rows_whose_keys_are_all_hidden_by_a_number(small_tiles, number, known):
    """Padding on the left hides all keys of the first queries, and a softmax of equal numbers is even: they are no empty rows."""
    bias = torch.zeros(2, 1, 20, 20).masked_fill_(torch.ones(20, 20).triu(1).bool(), number)
    bias[1, :, :, :7] = number
    scores = AttentionScores(torch.randn(2, 2, 20, 4), torch.randn(2, 2, 20, 4), 0.5, bias=bias)
    record, weights = record_of(scores, known)
    assert_equals_dense(_overview_pass.overview_of(record, slice(None), 8), weights, 0)
    assert record.agrees


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_scores_and_many_queries_are_no_disagreement(dtype):
    """The logsumexp of large scores is rounded by much, and distances of many queries are long whatever the keys."""
    band = Band(right=0)
    for queries, keys, scale, hidden in ((60, 60, 1e4, band), (300, 3, 1.0, None), (300, 1, 1.0, band)):
        query, key = (torch.randn(1, 2, n, 4, dtype=dtype) for n in (queries, keys))
        record, weights = record_of(AttentionScores(query, key, scale, band=hidden), dtype=dtype)
        assert_equals_dense(_overview_pass.overview_of(record, slice(None), 8), weights.float(), 0)
        assert record.agrees, record.residual


def test_a_query_that_is_no_number_is_noticed(monkeypatch):
    """Also where its row is none of those that are computed in full."""
    monkeypatch.setattr(_overview_pass, "checked_rows", lambda queries: (0, 1))
    query, key = torch.randn(1, 2, 20, 4), torch.randn(1, 2, 20, 4)
    query[0, 0, 7, 0] = math.nan
    record, _ = record_of(AttentionScores(query, key, 0.5))
    _overview_pass.overview_of(record, slice(None), 8)
    assert not record.agrees


@pytest.mark.parametrize("shape", [(0, 2, 5, 5), (1, 2, 0, 5), (1, 2, 5, 0)])
def test_empty_maps(shape):
    batch, heads, queries, keys = shape

    class Empty(nn.Module):
        def forward(self, query, key):
            return F.scaled_dot_product_attention(query, key, key)

    model, given = Empty(), (torch.randn(batch, heads, queries, 4), torch.randn(batch, heads, keys, 4))
    with torch.no_grad(), regard.capture(model) as maps:
        model(*given)
    assert maps[0].weights.shape == shape
    assert maps[0].agrees
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match="no overview of an empty map"),
        regard.capture(model, overview=4),
    ):
        model(*given)


def test_rows_and_blocks_take_what_indices_are(user_errors):
    with torch.no_grad(), regard.capture(model := Long(), overview=4, keep_keys=True) as maps:
        model(torch.randn(1, 10, 16))
    whole = maps[0].block()
    for index in (3, torch.tensor(3), np.int64(3), -7):
        torch.testing.assert_close(maps[0].row(index), whole[:, :, 3])
    for wrong in (True, 1.5, "3", 10, torch.tensor(0.5)):
        with pytest.raises(IndexError, match="row must be a whole number from -10 to 9"):
            maps[0].row(wrong)
    torch.testing.assert_close(maps[0].block(slice(1, None, 3), [-1, 0]), whole[:, :, 1::3][..., [-1, 0]])
    for wrong in (slice(None, None, -1), slice("a", None), slice(0.5, None)):
        with pytest.raises(ValueError, match="columns must be a slice of whole numbers with a step of 1 or more"):
            maps[0].block(None, wrong)
        with pytest.raises(ValueError, match="rows must be a slice of whole numbers with a step of 1 or more"):
            regard.capture(model, rows=wrong)
