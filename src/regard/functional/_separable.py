"""Attention by position whose score is a sum over axes: exact, without an N×N matrix."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.functional._gaussian import gaussian_attention
from regard.functional._maps import kronecker
from regard.functional._mix import AxisBlocks, HeadGroup, mix
from regard.functional._profiles import DecayProfile, GaussianProfile, Profile, TableProfile, check_one_device
from regard.observation import observe, unobserved
from regard.support.checks import check_choice, check_grid, check_ndim, describe

# plan="auto" computes a decaying axis by a scan if it is longer than this, else by its matrix.
SCAN_SIZE = 512


def separable_attention(
    value: Float[Tensor, "batch value_heads tokens width"],
    profiles: Sequence[Profile],
    grid: Sequence[int],
    *,
    plan: str = "auto",
) -> Float[Tensor, "batch heads tokens width"]:
    r"""Attention by position with one profile per axis.

    .. math:: \mathrm{out}_q = \sum_k A_{qk} v_k, \qquad
              A_{qk} = \mathrm{softmax}_k\Bigl(\sum_a f_a(k_a - q_a)\Bigr) = \prod_a A^{(a)}_{q_a k_a}

    The exponential of a sum is a product, and the keys of a grid are all combinations of their coordinates, so the
    softmax factorizes exactly into one per axis, borders included. :func:`regard.gaussian_attention` is the case of a
    :class:`GaussianProfile` on every axis (and offers queries off the grid and other borders besides).

    Args:
        value: ``(batch, heads, tokens, width)``; tokens of the grid in row-major order. A single head is shared by all.
        profiles: one per axis: :class:`GaussianProfile`, :class:`DecayProfile` or :class:`TableProfile`.
        grid: the size of each axis.
        plan: ``"matrices"`` mixes along each axis with its matrix, O(tokens · size); ``"scans"`` computes decaying axes
            by recurrences, O(tokens); ``"auto"`` chooses by the size of each axis. The result is the same.

    >>> value = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 1, 3, 1)
    >>> decay = DecayProfile(torch.tensor([math.log(2.0)]), side="before")      # causal, half as much each step
    >>> separable_attention(value, [decay], (3,)).flatten()
    tensor([1.0000, 0.3333, 0.1429])
    """
    sizes = check_separable(value, profiles, grid, plan)
    if all(isinstance(profile, GaussianProfile) for profile in profiles):
        center = torch.stack([profile.center for profile in profiles if isinstance(profile, GaussianProfile)], 1)
        sharpness = torch.stack([profile.sharpness for profile in profiles if isinstance(profile, GaussianProfile)], 1)
        return gaussian_attention(value, center, sharpness, sizes)
    return observe(
        None,
        lambda: mixed_along_axes(value, profiles, sizes, plan),
        lambda: separable_weights(profiles, sizes)[None],
        value=value,
        kind="separable",
        grid=sizes,
        prefix=0,
    )


def mixed_along_axes(value: Tensor, profiles: Sequence[Profile], sizes: tuple[int, ...], plan: str) -> Tensor:
    heads = profiles[0].heads
    scans = [takes_scan(profile, size, plan) for profile, size in zip(profiles, sizes, strict=True)]
    bumps = [
        isinstance(profile, GaussianProfile) and plan != "matrices" and size > SCAN_SIZE
        for profile, size in zip(profiles, sizes, strict=True)
    ]
    if not any(scans + bumps):
        axes = tuple(AxisBlocks.whole(size, size, heads) for size in sizes)
        matrices = [profile.matrix(size, value).unsqueeze(1) for profile, size in zip(profiles, sizes, strict=True)]
        return mix(value, [HeadGroup(tuple(range(heads)), axes)], [matrices])
    x = value.expand(-1, heads, -1, -1)
    for axis, (profile, scan, bump) in enumerate(zip(profiles, scans, bumps, strict=True)):
        x = along_axis(x, profile, sizes, axis, by_matrix=not (scan or bump))
    return x


def takes_scan(profile: Profile, size: int, plan: str) -> bool:
    return isinstance(profile, DecayProfile) and (plan == "scans" or (plan == "auto" and size > SCAN_SIZE))


def along_axis(x: Tensor, profile: Profile, grid: tuple[int, ...], axis: int, by_matrix: bool) -> Tensor:
    """Apply one profile to (batch, heads, tokens, width) along one axis of the grid: by its matrix, or else by its scan, or as
    Gaussian heads with one axis, of which local ones need no whole matrix."""
    batch, heads, tokens, width = x.shape
    before, size, after = math.prod(grid[:axis]), grid[axis], math.prod(grid[axis + 1 :])
    y = x.reshape(batch, heads, before, size, after * width).transpose(1, 2).flatten(0, 1)
    if by_matrix or isinstance(profile, TableProfile):
        y = profile.matrix(size, x).to(x.dtype) @ y
    elif isinstance(profile, DecayProfile):
        y = profile.scan(y)
    else:
        center, sharpness = (part.unsqueeze(1) for part in profile)
        y = gaussian_attention(y, center, sharpness, (size,))
    return y.unflatten(0, (batch, before)).transpose(1, 2).reshape(batch, heads, tokens, width)


def separable_weights(profiles: Sequence[Profile], grid: Sequence[int]) -> Float[Tensor, "heads tokens tokens"]:
    """The map itself, to inspect it. :func:`separable_attention` never forms it.

    >>> separable_weights([DecayProfile(torch.zeros(1))], (2,))[0]
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    sizes = check_profiles(profiles, grid)
    pairs = list(zip(profiles, sizes, strict=True))
    return unobserved(lambda: kronecker([profile.matrix(size) for profile, size in pairs]))


def check_profiles(profiles: Sequence[Profile], grid: Sequence[int]) -> tuple[int, ...]:
    sizes = check_grid(grid)
    if not isinstance(profiles, Sequence) or any(not isinstance(profile, Profile) for profile in profiles):
        raise TypeError(f"profiles must be a sequence of profiles, one for each axis, got {describe(profiles)}")
    if len(profiles) != len(sizes):
        raise ValueError(
            f"profiles is {profiles!r:.60}, {len(profiles)} entries, but grid {sizes} has {len(sizes)} axes"
        )
    for axis, (profile, size) in enumerate(zip(profiles, sizes, strict=True)):
        profile.check(f"profiles[{axis}]", size)
        if profile.heads != profiles[0].heads:
            raise ValueError(f"profiles[{axis}] has {profile.heads} heads but profiles[0] has {profiles[0].heads}")
        check_one_device(f"profiles[{axis}]", profile[0], "profiles[0]", profiles[0][0])
    if not torch.compiler.is_compiling() and profiles[0].heads < 1:
        raise ValueError(f"profiles[0] holds {describe(profiles[0][0])}, but there must be at least one head")
    return sizes


def check_separable(value: Tensor, profiles: Sequence[Profile], grid: Sequence[int], plan: str) -> tuple[int, ...]:
    sizes = check_profiles(profiles, grid)
    check_choice("plan", plan, ("auto", "matrices", "scans"))
    check_ndim("value", value, "batch heads tokens width")
    heads, tokens = profiles[0].heads, math.prod(sizes)
    if value.shape[1] not in (1, heads):
        raise ValueError(f"value has {value.shape[1]} heads but the profiles have {heads}; one head is shared by all")
    if value.shape[2] != tokens:
        raise ValueError(f"value has {value.shape[2]} tokens but grid {sizes} has {tokens}")
    check_one_device("value", value, "profiles[0]", profiles[0][0])
    return sizes
