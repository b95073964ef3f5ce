"""Absolute positions equal the reference, on sequences and grids, also of other sizes where that is defined."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from regard import reference
from regard.layers import AbsolutePositionalEmbedding

COMBINE = st.sampled_from(["add", "concatenate"])


def combined(x, positions, combine):
    if combine == "add":
        return x + F.pad(positions, (0, x.shape[-1] - positions.shape[-1]))
    return torch.cat([x, positions.expand(x.shape[0], -1, -1)], -1)


def on_grid(rows, columns):
    """Position vectors of every cell, row-major, from those of the axes."""
    return torch.stack([torch.cat([row, column]) for row in rows for column in columns])


@given(tokens=st.integers(1, 6), dim=st.integers(1, 7), combine=COMBINE, grid=st.sampled_from([None, 4]))
def test_sinusoidal_sequences_of_any_length(tokens, dim, combine, grid):
    layer = AbsolutePositionalEmbedding(dim, grid, kind="sinusoidal", combine=combine)
    x = torch.randn(2, tokens, dim, dtype=torch.float64)
    expected = combined(x, reference.sinusoidal_positions(tokens, dim, dtype=torch.float64), combine)
    torch.testing.assert_close(layer(x), expected)
    assert layer(x).shape[-1] == layer.out_dim
    assert not list(layer.parameters())


@given(rows=st.integers(1, 4), columns=st.integers(1, 4), quarter=st.integers(1, 3), combine=COMBINE)
def test_sinusoidal_grids_of_any_size(rows, columns, quarter, combine):
    dim = 4 * quarter
    layer = AbsolutePositionalEmbedding(dim, (3, 3), kind="sinusoidal", combine=combine)
    x = torch.randn(2, rows * columns, dim, dtype=torch.float64)
    axes = [reference.sinusoidal_positions(size, dim // 2, dtype=torch.float64) for size in (rows, columns)]
    torch.testing.assert_close(layer(x, grid=(rows, columns)), combined(x, on_grid(*axes), combine))


@given(tokens=st.integers(1, 5), combine=COMBINE, start=st.integers(0, 2))
def test_learned_and_one_hot_sequences(tokens, combine, start):
    x = torch.randn(2, tokens, 8, dtype=torch.float64)
    learned = AbsolutePositionalEmbedding(8, 7, combine=combine).double()
    expected = reference.learned_positions(learned.table, start + tokens)[start:]
    torch.testing.assert_close(learned(x, start=start), combined(x, expected, combine))
    one_hot = AbsolutePositionalEmbedding(8, 7, kind="one-hot", combine=combine)
    expected = reference.one_hot_positions(start + tokens, 7, dtype=torch.float64)[start:]
    torch.testing.assert_close(one_hot(x, start=start), combined(x, expected, combine))


@given(rows=st.integers(1, 3), columns=st.integers(1, 4), combine=COMBINE)
def test_one_hot_grids_up_to_their_size(rows, columns, combine):
    layer = AbsolutePositionalEmbedding(8, (3, 4), kind="one-hot", combine=combine)
    x = torch.randn(2, rows * columns, 8)
    expected = on_grid(reference.one_hot_positions(rows, 3), reference.one_hot_positions(columns, 4))
    torch.testing.assert_close(layer(x, grid=(rows, columns)), combined(x, expected, combine))


def test_learned_grid_and_its_interpolation():
    layer = AbsolutePositionalEmbedding(5, (4, 6), interpolate=True).double()
    x = torch.randn(2, 24, 5, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x + layer.table.reshape(24, 5))
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(6.0), indexing="ij")
    with torch.no_grad():  # a table that is linear in the coordinates stays so inside, twice as fine
        layer.table.copy_((2 * rows + columns)[..., None].expand(-1, -1, 5))
    fine = layer.positions((8, 12)).unflatten(0, (8, 12))[..., 0]
    at_rows, at_columns = torch.arange(8) / 2 - 0.25, torch.arange(12) / 2 - 0.25
    expected = (2 * at_rows[:, None] + at_columns).double()
    torch.testing.assert_close(fine[3:-3, 3:-3], expected[3:-3, 3:-3], atol=1e-2, rtol=0.0)
    layer(torch.zeros(1, 96, 5, dtype=torch.float64), grid=(8, 12)).sum().backward()
    assert layer.table.grad.isfinite().all()
    assert layer.table.grad.abs().min() > 0


@given(rows=st.integers(1, 5), columns=st.integers(1, 5))
def test_interpolation_treats_rows_and_columns_alike(rows, columns):
    layer = AbsolutePositionalEmbedding(3, (3, 4), interpolate=True).double()
    turned = AbsolutePositionalEmbedding(3, (4, 3), interpolate=True).double()
    with torch.no_grad():
        turned.table.copy_(layer.table.transpose(0, 1))
    here = layer.positions((rows, columns)).unflatten(0, (rows, columns))
    there = turned.positions((columns, rows)).unflatten(0, (columns, rows))
    torch.testing.assert_close(here, there.transpose(0, 1))
    if min(rows, columns) > 1:  # where torch itself is right
        whole = F.interpolate(layer.table.permute(2, 0, 1)[None], (rows, columns), mode="bicubic", antialias=True)
        torch.testing.assert_close(here, whole[0].permute(1, 2, 0))


@given(kind=st.sampled_from(["sinusoidal", "learned", "one-hot"]), tokens=st.integers(2, 5))
def test_tokens_that_come_one_by_one_get_their_own_positions(kind, tokens):
    layer, x = AbsolutePositionalEmbedding(6, 6, kind=kind), torch.randn(1, tokens, 6)
    steps = [layer(x[:, i : i + 1], start=i) for i in range(tokens)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x))


def test_late_sinusoidal_positions_keep_their_digits():
    layer = AbsolutePositionalEmbedding(8, kind="sinusoidal")
    late = layer(torch.zeros(1, 1, 8), start=100_000)[0, 0]
    torch.testing.assert_close(late, reference.sinusoidal_positions(100_001, 8)[-1])
    assert layer(torch.zeros(1, 2, 8, dtype=torch.bfloat16)).dtype is torch.bfloat16


def test_bad_input_is_named(user_errors):
    for arguments, options, message in (
        ((4,), {}, "grid is None, but kind 'learned' needs one"),
        ((4, 3), {"kind": "rotary"}, "kind must be one of"),
        ((4, 3), {"combine": "multiply"}, "combine must be one of"),
        ((4, 3), {"position_dim": 2}, "position_dim is 2, but positions that are added must be as wide as dim, 4"),
        ((4, 5), {"kind": "one-hot"}, "dim is 4, but one-hot positions of grid .5,. are 5 wide"),
        ((6, (2, 2)), {"kind": "sinusoidal"}, "dim is 6, .* multiple of 4"),
        ((4, 3), {"interpolate": True}, "interpolate is True, but needs kind 'learned' and a grid"),
    ):
        with pytest.raises(ValueError, match=message):
            AbsolutePositionalEmbedding(*arguments, **options)
    with pytest.raises(TypeError, match=r"grid must be a number of tokens or \(rows, columns\)"):
        AbsolutePositionalEmbedding(4, (1, 2, 3))
    grid, line = AbsolutePositionalEmbedding(4, (2, 3)), AbsolutePositionalEmbedding(4, 3)
    for layer, tokens, options, message in (
        (grid, 5, {}, "x has 5 tokens but grid .2, 3. has 6"),
        (grid, 4, {"grid": (2, 2)}, "pass interpolate=True"),
        (grid, 6, {"grid": 6}, "grid is .6,., of 1 axes, but these positions have 2"),
        (grid, 6, {"start": 1}, "only a sequence has a start"),
        (line, 4, {}, "4 tokens from 0 go beyond the learned positions of .3,."),
        (line, 2, {"start": 2}, "2 tokens from 2 go beyond"),
        (line, 2, {"start": -1}, "start must be 0 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(torch.zeros(1, tokens, 4), **options)
    with pytest.raises(ValueError, match="last axis must be 4 wide"):
        line(torch.zeros(1, 3, 5))
    with pytest.raises(TypeError, match="start must be a whole number"):
        line(torch.zeros(1, 2, 4), start=0.5)
    assert "grid=(2, 3), kind='learned', combine='add'" in repr(grid)
