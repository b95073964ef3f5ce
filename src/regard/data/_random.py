"""Random numbers without a generator state.

Each number is a hash of its purpose: (seed, epoch, name) and the index of the sample. There is no state to save, so a
resumed run, another number of processes or another device sees the same numbers.
"""

import hashlib
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.support.checks import describe

Key = int | str

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
# (shift, multiplier) of splitmix64's finalizer; the last shift has no multiplier.
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def random_bits(index: Int[Tensor, "*shape"], *key: Key) -> Int[Tensor, "*shape"]:
    """64 random bits for each index, as a signed integer: ``mix(mix(index) ⊕ hash(key))``.

    ``mix`` is splitmix64's finalizer, a bijection of 64-bit numbers. The parts of the key are integers and strings.

    >>> from regard.data import random_bits
    >>> index = torch.arange(4)
    >>> bool((random_bits(index, 0, "flip") == random_bits(index.flip(0), 0, "flip").flip(0)).all())
    True
    >>> bool((random_bits(index, 0, "flip") == random_bits(index, 0, "crop")).any())
    False
    """
    if not isinstance(index, Tensor) or index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise TypeError(f"index must be a tensor of integers, got {describe(index)}")
    return _mix(_mix(index.long() + _signed(_GOLDEN)) ^ _signed(_key_hash(key)))


def random_uniform(index: Int[Tensor, "*shape"], *key: Key) -> Float[Tensor, "*shape"]:
    """A number in [0, 1) for each index, in steps of 2⁻²⁴ (float32 holds each exactly).

    >>> from regard.data import random_uniform
    >>> sample = random_uniform(torch.arange(100_000), 0, "example")
    >>> bool(sample.min() >= 0 and sample.max() < 1), round(sample.mean().item(), 2)
    (True, 0.5)
    """
    return ((random_bits(index, *key) >> 40) & 0xFFFFFF).float() * 2.0**-24


def random_below(index: Int[Tensor, "*shape"], bound: int | Int[Tensor, "*#shape"], *key: Key) -> Int[Tensor, "*shape"]:
    """An integer in 0 … bound − 1 for each index; ``bound`` is at most 2³¹ (the relative error of each probability is at
    most ``bound``·2⁻³²).

    >>> from regard.data import random_below
    >>> random_below(torch.arange(1000), 3, 0, "example").unique()
    tensor([0, 1, 2])
    """
    if not isinstance(bound, Tensor):
        _check_bound(bound)
    return (((random_bits(index, *key) >> 32) & 0xFFFFFFFF) * bound) >> 32


def random_coin(index: Int[Tensor, "*shape"], *key: Key) -> Bool[Tensor, "*shape"]:
    """True for each index with probability ½.

    >>> from regard.data import random_coin
    >>> random_coin(torch.arange(6), 0, "example").dtype
    torch.bool
    """
    return random_bits(index, *key) < 0


def random_order(count: int, *key: Key, device: torch.device | str | None = None) -> Int[Tensor, "count"]:
    """A permutation of 0 … count − 1: the indices sorted by their hash.

    >>> from regard.data import random_order
    >>> random_order(5, 0, "example").sort().values
    tensor([0, 1, 2, 3, 4])
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"count must be a whole number of 0 or more, got {describe(count)}")
    return random_bits(torch.arange(count, device=device), *key).argsort(stable=True)


def random_number(bound: int, *key: Key) -> int:
    """One integer in 0 … bound − 1, for values that are made on the host one by one.

    >>> from regard.data import random_number
    >>> {random_number(3, 0, "example", draw) for draw in range(20)}
    {0, 1, 2}
    """
    _check_bound(bound)
    return _key_hash(key) * bound >> 64


def _mix(x: Tensor) -> Tensor:
    for shift, multiplier in _ROUNDS:
        # The shift of signed numbers copies the sign: mask it away.
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * _signed(multiplier)
    return x


def _mix_number(x: int) -> int:
    for shift, multiplier in _ROUNDS:
        x = ((x ^ (x >> shift)) * multiplier) & _MASK
    return x


@lru_cache(maxsize=1024)
def _key_hash(key: tuple[Key, ...]) -> int:
    value = 0
    for part in key:
        if isinstance(part, str):
            number = int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "little")
        elif isinstance(part, int):
            number = part & _MASK
        else:
            raise TypeError(f"each part of a key must be an integer or a string, got {describe(part)}")
        value = _mix_number((value + _GOLDEN + _mix_number(number)) & _MASK)
    return value


def _signed(value: int) -> int:
    """The same 64 bits as a signed number, as torch expects."""
    return value - (1 << 64) if value >> 63 else value


def _check_bound(bound: object) -> None:
    """Check for a whole number of 1 or more. It may exceed tensor sizes: seeds are drawn below 2⁶³."""
    if isinstance(bound, bool) or not isinstance(bound, int):
        raise TypeError(f"bound must be a whole number of 1 or more, got {describe(bound)}")
    if bound < 1:
        raise ValueError(f"bound must be 1 or more, got {bound}")
