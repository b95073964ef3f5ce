"""Whole maps on a CPU: tiles, their products, masks and memory give the map of the formula."""

import ctypes
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.maps import AttentionRecord, Check, Computation
from regard.maps.weights import _cpu_products, _tiles
from regard.maps.weights._attention_scores import AttentionScores
from regard.maps.weights._band import Band
from regard.maps.weights._cpu_products import products
from regard.maps.weights._map_memory import zeros
from regard.maps.weights._masking import hide
from regard.maps.weights._threads import each_in_a_thread

CPU = torch.device("cpu")


@pytest.fixture
def always(monkeypatch):
    """oneDNN also for small products, where there is an operator for it."""
    monkeypatch.setattr(_cpu_products, "_WORTHWHILE", 0)


def in_tiles(scores, shared=1, threads=1):
    """The map in small tiles, its record and the dense map."""
    batch, heads, _, keys = scores.shape
    value = torch.randn(batch, heads // shared, keys, 4)
    weights, total = scores(slice(None), slice(None))
    output = weights @ value.repeat_interleave(shared, 1)
    given = Computation(scores, output=output, value=value, logsumexp=total)
    record = AttentionRecord("attention", "test", scores.shape, Check("kernel"), computation=given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tiles, "TILE", 64)
        patch.setattr(_tiles, "LARGE", 0)
        patch.setattr(_tiles, "LONG", 8)
        patch.setattr(_tiles, "LOW", 4)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return _tiles.in_tiles(record, lambda size: torch.zeros(size, *scores.shape[1:])), record, weights
        finally:
            torch.set_num_threads(before)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 9)] * 4),
    scale=st.sampled_from([1.0, 0.3]),
    layout=st.sampled_from(["rows", "columns", "apart"]),
    room=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_products_are_those_of_torch(shape, scale, layout, room, dtype):
    count, rows, columns, width = shape
    x = torch.randn(rows, count, width, dtype=dtype).transpose(0, 1)
    y = torch.randn(count, columns, width, dtype=dtype)
    y = {"rows": y, "columns": y.mT.contiguous().mT, "apart": y.repeat(1, 1, 2)[..., :width]}[layout]
    out = torch.empty(count, rows, columns, dtype=dtype) if room else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cpu_products, "_WORTHWHILE", 0)
        found = products(x, y, scale, out)
    torch.testing.assert_close(found, scale * x @ y.mT)


def test_products_keep_their_gradients(always):
    x, y = torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 5, 4, requires_grad=True)
    products(x, y, 0.5).sum().backward()
    torch.testing.assert_close(x.grad, 0.5 * y.detach().sum(1, keepdim=True).expand(2, 3, 4))
    torch.testing.assert_close(y.grad, 0.5 * x.detach().sum(1, keepdim=True).expand(2, 5, 4))


def test_products_that_may_be_rounded_to_bfloat16_are_left_to_torch(always, monkeypatch):
    x = torch.randn(1, 3, 4)
    monkeypatch.setattr(_cpu_products, "_operator", lambda: torch.nn.functional.linear)
    assert _cpu_products._linear(x, x) is torch.nn.functional.linear
    before = torch.backends.mkldnn.matmul.fp32_precision
    try:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        assert _cpu_products._linear(x, x) is None
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
    assert _cpu_products._linear(x, x) is torch.nn.functional.linear


@settings(max_examples=40, deadline=None)
@given(
    mask=st.tuples(*[st.booleans()] * 4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    value=st.sampled_from([-math.inf, -1e9]),
    inner=st.booleans(),
)
def test_hidden_scores_are_set_whatever_they_were(mask, dtype, value, inner):
    special = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-40, 3.4e38, -2.0])
    scores = special[torch.randint(0, 8, (2, 3, 5, 7))].to(dtype)
    scores = scores[..., 1:4] if inner else scores
    keep = torch.rand([size if full else 1 for size, full in zip(scores.shape, mask, strict=True)]) < 0.6
    expected = torch.where(keep, scores, value)
    torch.testing.assert_close(hide(scores, keep, value), expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(scores, expected, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99),
    queries=st.integers(1, 19),
    keys=st.integers(1, 19),
    axes=st.tuples(*[st.booleans()] * 3),
    causal=st.booleans(),
    density=st.sampled_from([0.0, 0.1, 0.7, 1.0]),
    threads=st.integers(1, 3),
)
def test_keys_that_a_mask_hides_from_a_tile_are_left_out_and_no_others(
    seed, queries, keys, axes, causal, density, threads
):
    torch.manual_seed(seed)
    keep = torch.rand([size if full else 1 for size, full in zip((2, 4, queries), axes, strict=True)] + [keys])
    keep = (keep < density).expand(2, 4, -1, -1)
    keep = keep & (torch.rand(keys) < 0.5)  # some keys are seen by nobody
    query, key = torch.randn(2, 4, queries, 4), torch.randn(2, 2, keys, 4)
    scores = AttentionScores(query, key, 0.7, keep, band=Band(right=0) if causal else None)
    made, record, dense = in_tiles(scores, shared=2, threads=threads)
    torch.testing.assert_close(made, dense)
    assert record.residual < 1e-5
    assert record.logsumexp_residual < 1e-4
    columns = scores.seen(slice(0, queries), slice(0, 4), slice(0, 2))
    assert 0 <= columns.start < columns.stop <= keys
    outside = torch.ones(keys, dtype=torch.bool)
    outside[columns] = False
    assert not dense[..., outside].any()


def test_of_padding_on_both_sides_only_the_rest_is_computed():
    keep = torch.zeros(1, 1, 1, 20, dtype=torch.bool)
    keep[..., 5:9] = True
    scores = AttentionScores(torch.randn(1, 2, 6, 4), torch.randn(1, 2, 20, 4), 1.0, keep)
    assert scores.seen(slice(0, 6), slice(0, 2), slice(0, 1)) == slice(5, 9)
    # A function that changes scores may bring keys back, so all of them are computed.
    changed = AttentionScores(scores.query, scores.key, 1.0, keep, change=lambda s, b, h, q, k: s.clamp_min(-1.0))
    assert changed.seen(slice(0, 6), slice(0, 2), slice(0, 1)) == slice(0, 20)
    torch.testing.assert_close(*(x for x in in_tiles(changed) if isinstance(x, torch.Tensor)))


@pytest.mark.parametrize("masked", [False, True])
def test_an_error_in_any_tile_is_noticed(always, masked):
    keep = (torch.arange(24) < 17).view(1, 1, 1, 24) if masked else None
    scores = AttentionScores(torch.randn(2, 4, 24, 8), torch.randn(2, 2, 24, 8), 0.5, keep)
    for item, head, row in ((0, 0, 0), (1, 3, 23), (1, 1, 11)):
        _, record, _ = in_tiles(scores, shared=2)
        assert record.residual < 1e-5
        running = record.running
        running.output[item, head, row, 2] += 1
        running.logsumexp[item, head, row] += 2
        _tiles.in_tiles(record, lambda size: torch.zeros(size, 4, 24, 24))
        assert record.residual > 0.9
        assert record.logsumexp_residual > 1.9


@pytest.mark.parametrize("shape", [(2, 3), (1, 3, 700, 777), (2, 2**20), (0, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_memory_for_maps_is_zero_and_can_be_written(shape, dtype):
    made = zeros(shape, dtype, CPU)
    assert (made.shape, made.dtype, made.is_contiguous()) == (shape, dtype, True)
    assert not made.any()
    made += 1
    assert made.sum(dtype=torch.float64) == made.numel()


def test_operations_in_threads_use_one_core_each():
    """Also products of matrices, which ask OpenMP, whose number of threads belongs to each thread."""
    maps = Path("/proc/self/maps")
    loaded = [line.split()[-1] for line in maps.read_text().splitlines() if "libgomp" in line] if maps.exists() else []
    if not loaded:
        pytest.skip("torch does not use GNU OpenMP here")
    cores, before, found = ctypes.CDLL(loaded[0]).omp_get_max_threads, torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        each_in_a_thread(lambda _: found.append(cores()), [0, 1], 2)
        assert cores() == 2
    finally:
        torch.set_num_threads(before)
    assert found == [1, 1]
