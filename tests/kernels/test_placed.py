"""Content with place: kernels beside plain operations, in float16 (the interpreter has no products in bfloat16)."""

import math

import pytest
import torch

from regard.functional import _placed, kernels, placed_attention
from regard.functional._place_moments import place_moments, plain_moments

CASES = [
    {"grid": (6, 7)},
    {"grid": (6, 20), "prefix": 2, "masked": True},
    {"grid": (11, 5), "prefix": 1, "causal": True, "width": 24},
    {"grid": (130,), "prefix": 1, "sharpness": 0.3},
    {"grid": (2, 3, 9), "masked": True, "causal": True},
    {"grid": (5, 2, 3), "sharpness": 0.5},
    {"grid": (70, 2), "sharpness": 3.0, "away": 3.0},  # of the last queries, few lines count
]


def problem(grid, prefix=0, masked=False, causal=False, width=16, sharpness=1.0, away=1.0):
    generator = torch.Generator().manual_seed(0)
    tokens, axes = prefix + math.prod(grid), len(grid)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    batch = 1 + masked
    contents = [draw(batch, 2, tokens, width).half() for _ in range(4)]
    root = draw(2, axes, axes).double()
    keep = torch.rand(batch, tokens, generator=generator) > 0.3
    keep[0] = False
    matrix = sharpness * (root @ root.mT + 0.1 * torch.eye(axes))
    return contents, away * draw(2, axes).double(), matrix, keep if masked else None, causal


def rows(query, key, value, center, matrix, keep, grid, prefix, beta, causal):
    """What a fused kernel returns, and what it keeps: without a class token a query's own term is not in its scores."""
    bias = torch.nn.functional.pad(_placed.position_scores(center, matrix, grid), (prefix, 0, prefix, 0))
    scores = beta * (query @ key.mT) + bias
    if keep is not None:
        scores = scores.masked_fill(~keep[:, None, None, :], -1e9)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -1e9)
    target = _placed.coordinates(grid, center) + center[:, None, :]
    own = torch.einsum("hta,hab,htb->ht", target, matrix, target)
    return scores.softmax(-1) @ value, (scores.logsumexp(-1) + (0.0 if prefix else own)).float()


def error(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("case", CASES, ids=lambda case: "×".join(map(str, case["grid"])))
def test_moments_and_columns_are_those_of_plain_operations(case):
    (*contents, grad), center, matrix, keep, causal = problem(**case)
    grid, prefix, beta = case["grid"], case.get("prefix", 0), contents[0].shape[3] ** -0.5
    heads = kernels.three_axes(center, matrix, grid)
    exact = [x.double() for x in contents]
    expected = plain_moments(grad.double(), *exact, center, matrix, keep, grid, prefix, beta, causal)
    out, sums = rows(*exact, center, matrix, keep, grid, prefix, beta, causal)
    for known in (sums, None):
        found = kernels.place_moments(grad, out.half(), tuple(contents), known, heads, keep, prefix, beta, causal)
        for one, wanted in zip(found, expected, strict=True):
            assert error(one, wanted) < 2e-3
    check_columns(contents, center, matrix, keep, grid, prefix, causal)


def check_columns(contents, center, matrix, keep, grid, prefix, causal):
    """Pieces of a coefficient may be rounded elsewhere, but not what they add up to."""
    beta, width = contents[0].shape[3] ** -0.5, contents[0].shape[3]
    seen = None if keep is None else (keep.cumsum(-1) > 0 if causal else keep.any(-1, keepdim=True).expand_as(keep))
    ours, theirs = (
        _placed.joined(*contents, center, matrix, keep, seen, grid, prefix, beta, way) for way in (True, False)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert one[..., :width].equal(other[..., :width])
    assert ours[2].equal(theirs[2])
    some = slice(None, None, max(1, ours[0].shape[2] // 100))
    scores = [(query[..., some, width:].double() @ key[..., width:].double().mT) for query, key, _ in (ours, theirs)]
    assert error(scores[0], scores[1]) < 1e-6


@pytest.mark.parametrize("grid", [(700,), (515, 1, 2)])
def test_columns_of_long_axes_are_those_of_plain_operations(grid):
    """Coordinates of two digits, which bfloat16 needs first."""
    (*contents, _), center, matrix, keep, _ = problem(grid, 1, masked=True, width=1, sharpness=1e-3)
    check_columns([x[1:].bfloat16() for x in contents], center, matrix, keep[1:], grid, 1, False)


def test_the_whole_of_it_in_half_precision():
    (*contents, grad), center, matrix, keep, _ = problem((7, 16), 1, masked=True, width=16)
    results = []
    for dtype in (torch.float16, torch.float64):
        inputs = [x.to(dtype).requires_grad_() for x in contents] + [
            x.detach().requires_grad_() for x in (center, matrix)
        ]
        out = placed_attention(*inputs, (7, 16), prefix=1, keep=keep)
        results.append([out, *torch.autograd.grad(out, inputs, grad.to(dtype))])
    for found, expected in zip(*results, strict=True):
        assert error(found, expected) < 5e-3


def test_a_card_without_room_leaves_it_to_plain_operations(monkeypatch):
    (*contents, grad), center, matrix, _, _ = problem((4, 5))

    def refuse(*_):
        raise MemoryError

    monkeypatch.setattr(kernels, "place_moments", refuse)
    places = (center, matrix, None)
    with torch.no_grad():
        found = place_moments(grad, grad, *contents, *places, None, (4, 5), 0, 0.25, False)
        torch.testing.assert_close(found, plain_moments(grad, *contents, *places, (4, 5), 0, 0.25, False))


def test_compiled_gradients_of_positions_are_the_same():
    (*contents, grad), center, matrix, _, _ = problem((4, 5), 1)

    def gradients(function):
        places = [x.detach().requires_grad_() for x in (center, matrix)]
        out = function(*contents, *places, (4, 5), prefix=1)
        return torch.autograd.grad(out, places, grad)

    compiled = torch.compile(placed_attention, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradients(compiled), gradients(placed_attention), atol=0.0, rtol=1e-6)
