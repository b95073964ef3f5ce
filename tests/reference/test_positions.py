"""Positions as vectors, and how they enter the scores."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.reference import (
    absolute_scores,
    encoding_by_offset,
    gaussian_scores,
    grid_coordinates,
    learned_positions,
    one_hot_positions,
    relative_offsets,
    relative_scores,
    sinusoidal_positions,
)


def random(*shape, grad=False):
    return torch.randn(shape, dtype=torch.float64, requires_grad=grad)


@given(length=st.integers(1, 20), width=st.integers(1, 9), base=st.sampled_from([10.0, 10000.0]))
def test_each_pair_of_sinusoidal_columns_turns_at_its_own_frequency(length, width, base):
    table = sinusoidal_positions(length, width, base, dtype=torch.float64)
    for t in range(length):
        for column in range(width):
            angle = t / base ** (2 * (column // 2) / width)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[t, column].item() == pytest.approx(expected, abs=1e-12)


def test_a_shift_of_sinusoidal_positions_is_one_rotation_for_all_positions():
    table = sinusoidal_positions(30, 6, dtype=torch.float64)
    shift = torch.linalg.lstsq(table[:-3], table[3:]).solution
    torch.testing.assert_close(table[:-3] @ shift, table[3:])
    torch.testing.assert_close(shift @ shift.T, torch.eye(6, dtype=torch.float64))


@given(length=st.integers(1, 5), extra=st.integers(0, 3))
def test_one_hot_positions_are_unit_vectors(length, extra):
    table = one_hot_positions(length, length + extra)
    torch.testing.assert_close(table, torch.eye(length + extra)[:length])
    torch.testing.assert_close(one_hot_positions(length), torch.eye(length))


def test_learned_positions_pass_gradients_to_the_rows_that_are_used():
    table = random(4, 2, grad=True)
    learned_positions(table, 3).sum().backward()
    assert table.grad.tolist() == [[1, 1]] * 3 + [[0, 0]]


@given(tokens=st.integers(1, 4), lead=st.lists(st.integers(1, 2), max_size=2))
def test_the_four_absolute_terms_sum_to_the_scores_of_the_summed_input(tokens, lead):
    content, position, w_query, w_key = random(*lead, tokens, 3), random(tokens, 3), random(2, 3), random(2, 3)
    terms = absolute_scores(content, position, w_query, w_key)
    whole = (content + position) @ w_query.mT @ w_key @ (content + position).mT
    torch.testing.assert_close(terms.total, whole)
    torch.testing.assert_close(sum(terms), whole)
    silent = absolute_scores(content, torch.zeros_like(position), w_query, w_key)
    torch.testing.assert_close(terms.content_content, silent.total)
    mirrored = absolute_scores(content, position, w_key, w_query)
    torch.testing.assert_close(terms.content_position, mirrored.position_content.mT)


@given(tokens=st.integers(1, 4), lead=st.lists(st.integers(1, 2), max_size=2))
def test_the_four_relative_terms_are_written_out_pair_by_pair(tokens, lead):
    content, encoding = random(*lead, tokens, 3), random(tokens, tokens, 5)
    w_query, w_key, w_position, u, v = random(2, 3), random(2, 3), random(2, 5), random(2), random(2)
    terms = relative_scores(content, encoding, w_query, w_key, w_position, u, v)
    first = content.reshape(-1, tokens, 3)[0]
    total = terms.total.reshape(-1, tokens, tokens)[0]
    for q in range(tokens):
        for k in range(tokens):
            query, key, place = w_query @ first[q], w_key @ first[k], w_position @ encoding[q, k]
            torch.testing.assert_close(total[q, k], (query + u) @ key + (query + v) @ place)


@given(grid=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_offsets_are_key_minus_query(grid):
    coordinates, offsets = grid_coordinates(grid), relative_offsets(grid)
    torch.testing.assert_close(offsets + coordinates[:, None], coordinates.expand(len(coordinates), -1, -1))
    strides = torch.tensor([math.prod(grid[axis + 1 :]) for axis in range(len(grid))], dtype=torch.float32)
    torch.testing.assert_close(coordinates @ strides, torch.arange(len(coordinates)).float())


@given(grid=st.lists(st.integers(1, 3), min_size=1, max_size=2))
def test_a_table_by_offset_holds_the_offsets_themselves_at_their_places(grid):
    axes = [torch.arange(1 - size, size, dtype=torch.float32) for size in grid]
    table = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
    torch.testing.assert_close(encoding_by_offset(table, grid), relative_offsets(grid))


@given(grid=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_gaussian_scores_are_relative_scores_with_the_right_vector(grid):
    axes, tokens = len(grid), math.prod(grid)
    center, sharpness = random(1, axes), torch.rand(1, dtype=torch.float64)
    offset = relative_offsets(grid, dtype=torch.float64)
    encoding = torch.cat([offset.square().sum(-1, keepdim=True), offset], -1)
    v = -sharpness * torch.cat([torch.ones(1, dtype=torch.float64), -2 * center[0]])
    nothing = torch.zeros(axes + 1, 2, dtype=torch.float64)
    eye = torch.eye(axes + 1, dtype=torch.float64)
    terms = relative_scores(random(tokens, 2), encoding, nothing, nothing, eye, nothing[:, 0], v)
    constant = sharpness * center.square().sum()
    torch.testing.assert_close(terms.total - constant, gaussian_scores(center, sharpness, grid)[0])


def test_gradients_of_the_scores():
    shapes = ((3, 2), (3, 2), (2, 2), (2, 2))
    assert torch.autograd.gradcheck(
        lambda *given: absolute_scores(*given).total, [random(*s, grad=True) for s in shapes]
    )
    shapes = ((2, 2), (2, 2, 3), (2, 2), (2, 2), (2, 3), (2,), (2,))
    assert torch.autograd.gradcheck(
        lambda *given: relative_scores(*given).total, [random(*s, grad=True) for s in shapes]
    )


@pytest.mark.usefixtures("user_errors")
def test_bad_input_is_named():
    with pytest.raises(ValueError, match="width is 2, but 3 positions need a width of 3 or more"):
        one_hot_positions(3, 2)
    with pytest.raises(ValueError, match=r"length is 3, but table of shape \(2, 4\) has 2 positions"):
        learned_positions(torch.ones(2, 4), 3)
    with pytest.raises(ValueError, match=r"table has shape \(3, 1\) but grid \(3,\) needs"):
        encoding_by_offset(torch.ones(3, 1), (3,))
    with pytest.raises(TypeError, match="grid must be a sequence of sizes"):
        grid_coordinates(5)
    with pytest.raises(ValueError, match=r"grid must have sizes of 1 or more, got \(3, 0\)"):
        grid_coordinates((3, 0))
