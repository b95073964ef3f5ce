"""Functions that keep the tensors which they read: rows of FlexAttention computed later are those of the call."""

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention

import regard
from regard.maps.weights._frozen_functions import Frozen

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
TABLE = torch.arange(4.0)


class Lookup(nn.Module):
    """Reads a buffer, a nested list and an embedding; is called itself, or by a method."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(4.0))
        self.parts, self.embedding = [{"more": torch.ones(4)}], nn.Embedding(4, 1)

    def forward(self, i):
        return self.table[i] + self.parts[0]["more"][i] + self.embedding(i)[..., 0]

    def read(self, i):
        return self(i) * 2


class Callable:
    def __init__(self, table):
        self.table = table

    def __call__(self, i):
        return self.table[i]


def with_default(i, table=TABLE):
    return table[i] + TABLE[i]


def helper(i):
    return with_default(i) + 1


def test_a_frozen_function_keeps_what_it_read():
    table, module = torch.arange(4.0), Lookup()

    def recursive(i, depth=1):
        return table[i] if depth == 0 else recursive(i, depth - 1) + 1

    functions = [
        lambda i: table[i],
        with_default,
        lambda i: helper(i) * 3,
        functools.partial(lambda other, i: other[i], table),
        recursive,
        module,
        module.read,
        lambda i: module.read(i) + module.table[i],
        Callable(table),
        and_masks(lambda b, h, q, k: table[q] > 1, lambda b, h, q, k: table[k] < 3),
    ]
    given = [(torch.arange(4),)] * 9 + [(torch.tensor(0), torch.tensor(0), torch.arange(4), torch.arange(4))]
    before = [function(*args) for function, args in zip(functions, given, strict=True)]
    copies = [Frozen(function) for function in functions]
    with torch.no_grad():
        for copied, args in zip(copies, given, strict=True):
            copied(*args)
        for x in (table, TABLE, module.table, module.parts[0]["more"], module.embedding.weight):
            kept = x.clone()
            x.fill_(math.nan)
            for copied, args, expected in zip(copies, given, before, strict=True):
                torch.testing.assert_close(copied(*args), expected)
            x.copy_(kept)
    assert copies[0].nbytes == 16
    assert copies[5].nbytes == 48


class Documents(nn.Module):
    """Attention inside of documents, with slopes; both are overwritten by the next call."""

    def __init__(self):
        super().__init__()
        self.documents, self.slopes = torch.zeros(40, dtype=torch.long), torch.zeros(2)

    def forward(self, x, length):
        self.documents.copy_(torch.arange(40) // length)
        self.slopes.fill_(1 / length)
        inside = create_block_mask(lambda b, h, q, k: self.documents[q] == self.documents[k], None, None, 40, 40, "cpu")
        change = lambda s, b, h, q, k: s - self.slopes[h] * (q - k).abs()  # noqa: E731
        return flex_attention(x, x, x, score_mod=change, block_mask=inside)


def test_rows_of_flex_attention_are_those_of_their_call(tmp_path):
    torch.manual_seed(0)
    model, x = Documents(), torch.randn(1, 2, 40, 8)
    with torch.no_grad(), regard.capture(model) as whole:
        model(x, 10)
    with torch.no_grad(), regard.capture(model, overview=8, keep_keys=True) as maps:
        model(x, 10)
    assert not maps.notes
    assert maps[0].latest.scores.nbytes == 2 * x.nbytes + 40 * 8 + 2 * 4
    model(x, 7)
    torch.testing.assert_close(maps[0].block(), whole[0].weights)
    with torch.no_grad(), regard.capture(model, overview=8, keep_keys=True, stream=tmp_path) as maps:
        model(x, 10)
    model(x, 7)
    torch.testing.assert_close(maps[0].row(30), whole[0].weights[:, :, 30])
    loaded = regard.maps.Maps.load(tmp_path)
    assert "its keys are not in the folder" in loaded.notes[0]
    with pytest.raises(ValueError, match="no rows of"):
        loaded[0].row(30)


def test_a_function_that_cannot_be_copied_is_noted():
    class Odd:
        def __getitem__(self, q):
            return q % 2 == 0

    odd, x = Odd(), torch.randn(1, 2, 20, 8)

    class Strange(nn.Module):
        def forward(self, x):
            return flex_attention(x, x, x, score_mod=lambda s, b, h, q, k: torch.where(odd[q], s, 2 * s))

    with torch.no_grad(), regard.capture(model := Strange()) as whole:
        model(x)
    with torch.no_grad(), regard.capture(model, overview=8, keep_keys=True) as maps:
        model(x)
    assert "functions read objects that the model may change" in maps.notes[0]
    torch.testing.assert_close(maps[0].block(), whole[0].weights)
