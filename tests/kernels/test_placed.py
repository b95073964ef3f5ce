"""Content with place: kernels beside plain operations, in float16 (the interpreter has no products in bfloat16)."""

import math

import pytest
import torch
import triton
import triton.language as tl

from regard.functional import _place_columns, _placed, kernels, placed_attention
from regard.functional._place_moments import place_moments, plain_moments
from regard.functional.kernels._placed_reach import lines_of_strip

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


@pytest.mark.parametrize("case", CASES[:5:2], ids=lambda case: "×".join(map(str, case["grid"])))
def test_moments_of_float32_have_its_digits(case):
    """Where all goes through half precision, errors are a hundred times as large."""
    (*contents, grad), center, matrix, keep, causal = problem(**case)
    grid, prefix, beta = case["grid"], case.get("prefix", 0), contents[0].shape[3] ** -0.5
    exact = [x.double() for x in contents]
    expected = plain_moments(grad.double(), *exact, center, matrix, keep, grid, prefix, beta, causal)
    out, sums = rows(*exact, center, matrix, keep, grid, prefix, beta, causal)
    heads, given = kernels.three_axes(center, matrix, grid), tuple(x.float() for x in contents)
    found = kernels.place_moments(grad.float(), out.float(), given, sums, heads, keep, prefix, beta, causal)
    for one, wanted in zip(found, expected, strict=True):
        assert error(one, wanted) < 1e-5


def check_columns(contents, center, matrix, keep, grid, prefix, causal):
    """Pieces of a coefficient may be rounded elsewhere, but not what they add up to."""
    beta, width = contents[0].shape[3] ** -0.5, contents[0].shape[3]
    seen = None if keep is None else (keep.cumsum(-1) > 0 if causal else keep.any(-1, keepdim=True).expand_as(keep))
    ours, theirs = (
        _placed.joined(*contents, center, matrix, keep, seen, grid, prefix, beta, way) for way in (True, False)
    )
    for one, other in zip(ours[:3], theirs[:3], strict=True):
        assert one.shape == other.shape
        assert one[..., :width].equal(other[..., :width])
    assert ours[2].equal(theirs[2])
    some = slice(None, None, max(1, ours[0].shape[2] // 100))
    scores = [(query[..., some, width:].double() @ key[..., width:].double().mT) for query, key, *_ in (ours, theirs)]
    assert error(scores[0], scores[1]) < 1e-6


@pytest.mark.parametrize("grid", [(700,), (515, 1, 2)])
def test_columns_of_long_axes_are_those_of_plain_operations(grid):
    """Coordinates of two digits, which bfloat16 needs first."""
    (*contents, _), center, matrix, keep, _ = problem(grid, 1, masked=True, width=1, sharpness=1e-3)
    check_columns([x[1:].bfloat16() for x in contents], center, matrix, keep[1:], grid, 1, False)


@pytest.mark.parametrize("narrow", [False, True])
def test_the_whole_of_it_in_half_precision(narrow, monkeypatch):
    """Also with values that stay as wide as they are, as where torch takes cuDNN's kernel."""
    monkeypatch.setattr(_place_columns, "values_stay_narrow", lambda *_: narrow)
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


@triton.jit
def strips(table, targets, room, found, m, n, strip, PC: tl.constexpr, PL: tl.constexpr):
    of = tl.arange(0, 4)
    t0, t1, t2 = tl.load(targets + of * 3), tl.load(targets + of * 3 + 1), tl.load(targets + of * 3 + 2)
    begin, end = lines_of_strip(table + 8, strip * PC, 0 - t0, t1, 0, t2, tl.load(room + of), of >= 0, m, n, PC, PL)
    tl.store(found + strip * 2, begin)
    tl.store(found + strip * 2 + 1, end)


@pytest.mark.parametrize("kind", ["round", "slanted", "thin", "three axes"])
def test_lines_of_a_strip_hold_all_keys_within_reach_and_few_others(kind):
    """Against the cost of every key; of a thin ellipse outside its plane all are taken."""
    m, n, columns, lines = 60, 90, 8, 2
    generator = torch.Generator().manual_seed(len(kind))
    root = torch.zeros(3, 3, dtype=torch.float64)
    root[1, 1], root[2, 2], root[1, 2] = {"round": (0.3, 0.3, 0.0), "thin": (0.0, 0.3, 0.2)}.get(kind, (0.1, 0.4, 0.3))
    if kind == "three axes":
        root[0] = torch.tensor([0.5, 0.1, -0.2])
    matrix = root @ root.mT
    targets = torch.rand(4, 3, generator=generator) * torch.tensor([2.0, 80.0, 110.0]) - torch.tensor([1.0, 10.0, 10.0])
    room = 20.0 * torch.rand(4, generator=generator)
    found = torch.zeros(math.ceil(n / columns), 2, dtype=torch.int32)
    table = kernels.three_axes(torch.zeros(1, 3), matrix[None] / math.log2(math.e), (1, m, n)).table
    for strip in range(len(found)):
        strips[(1,)](table, targets, room, found, m, n, strip, PC=columns, PL=lines)
    places = torch.stack(torch.meshgrid(*map(torch.arange, (1, m, n)), indexing="ij"), -1).double()
    away = places.reshape(1, -1, 3) - targets.double()[:, None]
    near = (torch.einsum("qka,ab,qkb->qk", away, matrix, away) < room[:, None]).any(0).view(m, n)
    near = (
        torch.nn.functional.pad(near, (0, -n % columns)).view(m // lines, lines, -1, columns).any(3).any(1)
    )  # groups, strips
    group = torch.arange(m // lines)[:, None]
    taken = (group >= found[:, 0]) & (group < found[:, 1])
    assert near.any()
    assert not (near & ~taken).any()
    between = near.cummax(0).values & near.flip(0).cummax(0).values.flip(0)
    few = 1.1 * between.sum() + 2.0 * len(found)  # a line more at each end, for what is rounded
    assert taken.sum() <= few or kind == "thin"


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
