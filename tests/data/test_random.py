"""Looked-up randomness: the same for any split of the indices, even, and independent between keys."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import random_below, random_bits, random_coin, random_number, random_order, random_uniform
from regard.data._random import _mix_number

COUNT = 50_000
SIGMAS = 5  # a test that allows 5 standard deviations fails by chance once in 1.7 million


def splitmix(state):
    """The published generator: its n-th output is the finalizer of n golden steps."""
    return _mix_number((state + 0x9E3779B97F4A7C15) & ((1 << 64) - 1))


def test_the_finalizer_is_splitmix64():
    # The first outputs of the reference generator for seed 1234567, as its author publishes them.
    state, outputs = 1234567, []
    for _ in range(3):
        outputs.append(splitmix(state))
        state = (state + 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.integers(0, 2**62), st.integers(0, 2**40))
def test_tensors_and_numbers_are_hashed_alike(index, seed):
    """torch's signed, wrapping arithmetic against Python's exact one."""
    from regard.data._random import _key_hash

    expected = _mix_number(_mix_number((index + 0x9E3779B97F4A7C15) & ((1 << 64) - 1)) ^ _key_hash((seed, "x")))
    assert random_bits(torch.tensor(index), seed, "x").item() & ((1 << 64) - 1) == expected


@given(st.integers(0, 2**31), st.integers(1, 999))
def test_each_index_has_its_own_number_whatever_its_neighbors(seed, cut):
    index = torch.arange(1000)
    whole = random_bits(index, seed, "x")
    assert torch.equal(whole, torch.cat([random_bits(index[:cut], seed, "x"), random_bits(index[cut:], seed, "x")]))
    assert len(whole.unique()) == 1000


def test_uniform_numbers_are_even():
    sample = random_uniform(torch.arange(COUNT), 3, "even")
    assert sample.dtype == torch.float32
    counts = torch.histc(sample, 50, 0, 1)
    expected = COUNT / 50
    chi = ((counts - expected) ** 2 / expected).sum().item()
    assert abs(chi - 49) < SIGMAS * math.sqrt(2 * 49)


@pytest.mark.parametrize("other", [(1, 0, "a"), (0, 1, "a"), (0, 0, "b"), (0, 0, "a", 0)])
def test_keys_are_independent(other):
    """No correlation between the same samples' numbers under neighboring seeds, epochs and purposes."""
    index = torch.arange(COUNT)
    pair = torch.stack((random_uniform(index, 0, 0, "a"), random_uniform(index, *other)))
    assert abs(torch.corrcoef(pair)[0, 1].item()) < SIGMAS / math.sqrt(COUNT)


def test_neighboring_indices_are_independent():
    sample = random_uniform(torch.arange(COUNT + 1), 0, "a")
    assert abs(torch.corrcoef(torch.stack((sample[1:], sample[:-1])))[0, 1].item()) < SIGMAS / math.sqrt(COUNT)


@given(st.integers(1, 2**31), st.integers(0, 100))
def test_numbers_below_a_bound_are_below_it(bound, seed):
    sample = random_below(torch.arange(200), bound, seed)
    assert sample.min() >= 0
    assert sample.max() < bound
    assert 0 <= random_number(bound, seed) < bound


def test_bounds_may_differ_between_samples():
    index = torch.arange(1000)
    bound = index % 7 + 1
    sample = random_below(index, bound, 0)
    assert bool((sample < bound).all())
    assert set(sample[bound == 7].tolist()) == set(range(7))


def test_coins_are_fair():
    assert abs(random_coin(torch.arange(COUNT), 0).float().mean().item() - 0.5) < SIGMAS * 0.5 / math.sqrt(COUNT)


@given(st.integers(0, 300), st.integers(0, 1000))
def test_orders_are_permutations(count, seed):
    assert torch.equal(random_order(count, seed).sort().values, torch.arange(count))


def test_orders_differ():
    orders = [random_order(1000, seed, epoch) for seed in range(3) for epoch in range(3)]
    fixed = [(a == b).sum().item() for i, a in enumerate(orders) for b in orders[:i]]
    assert max(fixed) <= 10  # two random orders agree in one place on average, in more than ten once in 10⁸


def test_bad_keys_and_indices_are_refused(user_errors):
    with pytest.raises(TypeError, match="index must be a tensor of integers"):
        random_bits(torch.rand(3), 0)
    with pytest.raises(TypeError, match="each part of a key"):
        random_bits(torch.arange(3), 0.5)
    with pytest.raises(ValueError, match="bound must be 1 or more"):
        random_below(torch.arange(3), 0, 0)
    with pytest.raises(ValueError, match="count must be"):
        random_order(-1, 0)
