"""What regard adds to the sources: which scores by position cost no more than a Gaussian, and content beside them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard import figures, functional, reference
from regard.claims._claim import Evidence, holds
from regard.claims._pictures import matrices
from regard.claims._trials import Comparison, Trial, trials
from regard.functional import DecayProfile, GaussianProfile, Profile, TableProfile


def _places(grid: Sequence[int]) -> Tensor:
    """The coordinates of the tokens of a grid, (tokens, axes), in row-major order."""
    sides = torch.meshgrid(*(torch.arange(size) for size in grid), indexing="ij")
    return torch.stack([side.flatten() for side in sides], -1)


def _profiles(trial: Trial, grid: Sequence[int]) -> list[Profile]:
    """A profile of each kind in turn, for two heads."""
    made: list[Profile] = []
    for axis, size in enumerate(grid):
        kind = (trial.number + axis) % 3
        if kind == 0:
            made.append(GaussianProfile(trial.normal(2), trial.normal(2).abs()))
        elif kind == 1:
            made.append(DecayProfile(trial.normal(2).abs(), ("both", "before", "after")[trial.number % 3]))  # type: ignore[arg-type]
        else:
            made.append(TableProfile(trial.normal(2, 2 * size - 1)))
    return made


def _scores(profile: Profile, offset: Tensor) -> Tensor:
    """The formula of a profile, for offsets key − query: (heads, *offsets)."""
    if isinstance(profile, GaussianProfile):
        return -profile.sharpness[:, None, None] * (offset - profile.center[:, None, None]) ** 2
    if isinstance(profile, TableProfile):
        return profile.scores[:, offset.long() + profile.scores.shape[1] // 2]
    hidden = {"both": offset != offset, "before": offset > 0, "after": offset < 0}[profile.side]
    return (-profile.rate[:, None, None] * offset.abs()).masked_fill(hidden, -torch.inf)


@holds(
    "regard-separable",
    "theory, “The family”",
    says=lambda axes: axes.sum(0),
    mutant=("scores that are a product over the axes factorize, too", lambda axes: axes.clamp_min(-50).prod(0)),
)
def separable(combine: Callable[[Tensor], Tensor]) -> Evidence:
    r"""Whatever score is a *sum over axes* costs no more than a Gaussian: its map is the product of one small map per
    axis, exactly and with borders, for any number of axes.

    $\exp \sum_a f_a = \prod_a \exp f_a$, and the keys of a grid are all combinations of their coordinates, so the sum
    over keys in the denominator is a product of sums: $A_{qk} = \prod_a A^{(a)}_{q_a k_a}$. Neither step needs $f_a$ to
    be a parabola, or the query to be far from a border. The check compares `separable_attention` for Gaussian, decaying
    and learned profiles, one-sided ones among them, with the softmax of the whole matrix of scores on grids of one to
    three axes; scores that do not add up are rejected.
    """
    found = Comparison()
    for trial in trials(18):
        grid = tuple(trial.size(1, 4) for _ in range(1 + trial.number % 3))
        profiles = _profiles(trial, grid)
        offsets = reference.relative_offsets(grid, dtype=torch.float64).unbind(-1)
        axes = torch.stack([_scores(*each) for each in zip(profiles, offsets, strict=True)])
        weights = reference.softargmax(combine(axes))
        value = trial.normal(1, 2, weights.shape[-1], 2)
        for plan in ("matrices", "scans"):
            out = functional.separable_attention(value, profiles, grid, plan=plan)
            found.same(out, weights @ value, f"grid {grid}, {plan}")
    drawn = {"decay": _map(DecayProfile(torch.full((1,), 0.7).double())), "causal decay": _map(_BEFORE)}
    return found.evidence("grids", draw=matrices("One head along an axis of 8 tokens", drawn))


_BEFORE = DecayProfile(torch.full((1,), 0.7).double(), "before")


def _map(profile: Profile) -> Tensor:
    return functional.separable_weights([profile], (8,))[0]


class VisibleKeys(NamedTuple):
    """Which keys a query sees, by the coordinates of both: (queries, keys, axes) each."""

    sees: Callable[[Tensor, Tensor], Tensor]


def _raster(query: Tensor, key: Tensor) -> Tensor:
    row, column = (key - query).unbind(-1)
    return (row < 0) | ((row == 0) & (column <= 0))


@holds(
    "regard-quadrant",
    "theory, “The family”",
    says=VisibleKeys(lambda query, key: (key <= query).all(-1)),
    mutant=("a query sees what comes before it in raster order", VisibleKeys(_raster)),
)
def quadrant(visible: VisibleKeys) -> Evidence:
    r"""Attention that looks only back along each axis of a plane sees the quadrant above *and* to the left of the query,
    itself included, and not all that comes before it in raster order.

    A condition on each axis, $k_a \le q_a$, leaves the product of two half-lines, which is a quadrant. Raster order also
    lets a query see keys above it to the *right*: that is no condition on one axis at a time, so it does not factorize,
    and generating an image pixel by pixel needs a mask instead. The check reads off which weights are zero.
    """
    found = Comparison()
    for trial in trials(9):
        grid = (1 + trial.size(1, 4), 1 + trial.size(1, 4))
        rates = (trial.normal(1).abs(), trial.normal(1).abs())
        weights = functional.separable_weights([DecayProfile(rate, "before") for rate in rates], grid)[0]
        place = _places(grid)
        pairs = place[:, None].expand(len(place), -1, -1), place[None].expand(len(place), -1, -1)
        found.true(torch.equal(weights > 0, visible.sees(*pairs)), f"grid {grid}")
    weights = functional.separable_weights([_BEFORE, _BEFORE], (4, 4))[0]
    return found.evidence("grids", draw=matrices("4 × 4 tokens, one-sided along both axes", {"weights": weights}))


class Columns(NamedTuple):
    """The columns beside the content of a query and of a key, from t = position + center, the key's place, and S."""

    query: Callable[[Tensor, Tensor], Tensor]
    key: Callable[[Tensor, Tensor], Tensor]


def _quadratic(x: Tensor, matrix: Tensor) -> Tensor:
    return torch.einsum("ni,ij,nj->n", x, matrix, x)[:, None]


def _key_columns(place: Tensor, matrix: Tensor) -> Tensor:
    return torch.cat([place, _quadratic(place, matrix), -torch.ones(len(place), 1).double()], -1)


@holds(
    "regard-placed",
    "theory, “Content and place together”",
    says=Columns(
        lambda t, matrix: torch.cat([2 * t @ matrix, -torch.ones(len(t), 1).double(), _quadratic(t, matrix)], -1),
        _key_columns,
    ),
    mutant=(
        "the term of the query alone may be left out although a class token is among the keys",
        Columns(
            lambda t, matrix: torch.cat([2 * t @ matrix, -torch.ones(len(t), 1).double(), 0 * t[:, :1]], -1),
            _key_columns,
        ),
    ),
)
def placed(columns: Columns) -> Evidence:
    r"""Attention by content *and* by a Gaussian of the offset, $\beta\, q \cdot k - (\delta - \Delta)^\top S (\delta -
    \Delta)$, is ordinary attention whose queries and keys have a few more columns: axes + 2 of them.

    With $t$ the place that a query looks at and $p$ the key's, the Gaussian's part is $2 (S t) \cdot p - p^\top S p -
    t^\top S t$: products of something of the query and something of the key. So stock kernels compute it. The last term
    depends on the query alone and a softmax does not see it, until a key has no place (a class token: its columns are
    zero, and so is its part of the score). The check builds the columns and compares with the whole matrix of scores and
    with `placed_attention`.
    """
    found = Comparison()
    for trial in trials(12):
        grid, width, prefix = (trial.size(1, 3), 1 + trial.size(0, 3)), trial.size(1, 4), trial.number % 3
        place = _places(grid).double()
        root, center = trial.normal(2, 2), trial.normal(2)
        matrix = root @ root.mT
        query, key, value = (trial.normal(prefix + len(place), width) for _ in range(3))
        beta = width**-0.5
        sides = (columns.query(place + center, matrix) / beta, columns.key(place, matrix))
        wide_query, wide_key = (
            torch.cat([x, torch.cat([torch.zeros(prefix, side.shape[1]).double(), side])], -1)
            for x, side in zip((query, key), sides, strict=True)
        )
        weights = reference.softargmax(beta * wide_query @ wide_key.mT)
        away = place[None] - place[:, None] - center
        scores = torch.nn.functional.pad(-torch.einsum("qki,ij,qkj->qk", away, matrix, away), (prefix, 0, prefix, 0))
        expected = reference.softargmax(beta * query @ key.mT + scores)
        found.same(weights, expected, f"grid {grid}, {prefix} tokens without a place")
        q, k, v = (each[None, None] for each in (query, key, value))
        out = functional.placed_attention(q, k, v, center[None], matrix[None], grid, prefix=prefix)
        found.same(torch.as_tensor(out)[0, 0], expected @ value, f"placed_attention on {grid}")
    return found.evidence(
        "grids",
        draw=lambda: figures.relative_positions(
            torch.tensor([[0.0, 2.0]]), torch.tensor([0.2]), (9, 9), queries=[(4, 4)]
        ),
    )
