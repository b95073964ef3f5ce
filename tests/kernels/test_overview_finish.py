"""The finishing pass of the overview trial: from groups of keys and pairs of queries to the very places."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

LAST = 2147483647
ROWS, COLUMNS, HEIGHT = (
    64,
    128,
    72,
)  # queries and keys of a tile, queries of a row of cells: the second tile of each is short
QUERIES, KEYS, HEADS, SHARED, WIDTH = 144, 256, 4, 2, 16


@pytest.fixture
def finishing():
    path = Path(__file__).parents[2] / "benchmarks/_overview_finish.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def attention():
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(HEADS, QUERIES, WIDTH, generator=generator).half()
    key = torch.randn(SHARED, KEYS, WIDTH, generator=generator).half()
    scores = query.float() @ key.float().repeat_interleave(HEADS // SHARED, 0).mT / math.sqrt(WIDTH)
    return query, key, scores


def numbers(query, key):
    scale = math.log2(math.e) / math.sqrt(WIDTH)
    return scale, (0, *query.stride()[:2], 0, *key.stride()[:2], 16, WIDTH)


def test_the_key_of_a_group_is_found(finishing, attention):
    query, key, scores = attention
    total = scores.logsumexp(2) / math.log(2)
    weights = scores.softmax(2)
    # As the kernel of full tiles: the group's number counts the neighbors a thread holds, then every other eight, then which.
    largest, where = weights.max(2)
    inside = where % COLUMNS
    tag = inside % 8 // 2 * 4 + inside // 8 % 2 * 2 + inside % 2
    bits = (largest * 2**12).half().view(torch.int16).long()
    best = (bits << 48) | (15 - tag << 32) | (LAST - (where - inside))
    best[0, 0] = 0  # no tile had this query
    scale, strides = numbers(query, key)
    finishing.finish_queries[(QUERIES // 16, HEADS, 1)](
        query, key, total, best, QUERIES, HEADS, HEADS // SHARED, scale, *strides
    )
    assert best[0, 0] == 0
    rest = torch.ones_like(where, dtype=torch.bool)
    rest[0, 0] = False
    assert (LAST - (best & LAST))[rest].equal(where[rest])
    torch.testing.assert_close((best >> 32).to(torch.int32).view(torch.float32)[rest], largest[rest])


def test_the_query_of_a_pair_is_found(finishing, attention):
    query, key, scores = attention
    total = scores.logsumexp(2) / math.log(2)
    largest, where = scores.softmax(2).max(1)
    below = where % HEIGHT % ROWS
    first = (where - below % 16 // 8 * 8).int()
    top = largest.half().float()
    top[0, 0], first[0, 0] = 0.0, -1  # no tile had this key
    scale, strides = numbers(query, key)
    sizes = QUERIES, KEYS, HEADS, HEADS // SHARED, HEIGHT
    finishing.finish_keys[(KEYS // 16, HEADS, 1)](query, key, total, top, first, *sizes, scale, *strides)
    where[0, 0], largest[0, 0] = -1, 0.0
    assert first.equal(where.int())
    torch.testing.assert_close(top, largest)
