"""Explanations are text that no check reads; what they state as formulas is proved here, or computed."""

import math

import pytest
import sympy as sp
import torch

from regard.claims import all_claims

TEXT = {claim.id: claim.derivation + " " + (claim.true.text if claim.true else "") for claim in all_claims()}
x, w, s, beta, sigma, mu, d = sp.symbols("x w s beta sigma mu d", real=True)


def test_entropy_falls_with_the_variance_of_the_scores():
    z = sp.symbols("z0:3", real=True)
    weights = [sp.exp(beta * each) for each in z]
    total = sum(weights)
    entropy = -sum(a / total * sp.log(a / total) for a in weights)
    mean = sum(a / total * each for a, each in zip(weights, z, strict=True))
    variance = sum(a / total * (each - mean) ** 2 for a, each in zip(weights, z, strict=True))
    point = {z[0]: 0.3, z[1]: -1.1, z[2]: 0.8, beta: 0.7}
    assert float((sp.diff(entropy, beta) + beta * variance).subs(point)) == pytest.approx(0, abs=1e-12)
    assert r"-\beta \, \Var_w(z)" in TEXT["hw4-beta-spread"]


def test_noise_on_a_key_pulls_its_weight_toward_one_half():
    moved = w * sp.exp(s) / (1 + w * (sp.exp(s) - 1))
    assert sp.simplify(sp.diff(moved, s).subs(s, 0) - w * (1 - w)) == 0
    assert sp.simplify(sp.diff(moved, s, 2).subs(s, 0) - w * (1 - w) * (1 - 2 * w)) == 0
    both = sp.simplify((moved + moved.subs(s, -s) - 2 * w).subs({w: sp.Rational(1, 5), s: 2}))
    assert both > 0  # up below one half, for noise of any size and either sign
    assert "w (1 - w)(1 - 2 w)" in TEXT["hw4-key-noise"]


def test_the_two_gelus_less_half_of_x_are_even():
    exact = x / 2 * (1 + sp.erf(x / sp.sqrt(2)))
    tanh = x / 2 * (1 + sp.tanh(sp.sqrt(2 / sp.pi) * (x + sp.Rational(44715, 1000000) * x**3)))
    for form in (exact, tanh):
        rest = form - x / 2
        assert sp.simplify(rest - rest.subs(x, -x)) == 0
        assert sp.simplify(rest + rest.subs(x, -x)) != 0
    points = torch.linspace(-8, 8, 20001, dtype=torch.float64).requires_grad_()
    for approximate in ("none", "tanh"):
        (slope,) = torch.autograd.grad(torch.nn.functional.gelu(points, approximate=approximate).sum(), points)
        assert -0.2 < float(slope.min()) < float(slope.max()) < 1.2
    assert "is even, a product of two odd functions" in TEXT["a6-gelu"]


def test_attention_by_content_commutes_with_shifts_and_is_not_linear():
    from regard.functional import attention

    torch.manual_seed(0)
    tokens, other = torch.randn(7, 3).double(), torch.randn(7, 3).double()

    def attend(x):
        return attention(x, x, x, beta=0.7)

    assert torch.allclose(attend(tokens.roll(2, 0)), attend(tokens).roll(2, 0))
    assert not torch.allclose(attend(tokens + other), attend(tokens) + attend(other))
    assert "does commute with (cyclic) shifts" in TEXT["hw4-conv-from-beta"]


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("target", [0, 2, 9])
def test_weight_elsewhere_and_distance_from_the_shift(alpha, target):
    tail = 2 * sum(math.exp(-alpha * r * r) for r in range(1, 200))
    row = torch.softmax(-alpha * (torch.arange(20.0).double() - target) ** 2, 0)
    elsewhere = 1 - float(row[target])
    distance = float((row - torch.eye(20).double()[target]).abs().sum())
    assert elsewhere <= tail / (1 + tail) + 1e-12
    assert distance == pytest.approx(2 * elsewhere)
    assert distance <= 2 * tail / (1 + tail) + 1e-12
    assert "$T/(1 + T)$ of the attention lies elsewhere" in TEXT["a6-main-theorem"]


def test_soft_attention_may_return_a_value_that_is_a_mean_of_others():
    values = torch.tensor([[-1.0], [0.0], [1.0]])
    assert float(torch.tensor([0.3, 0.4, 0.3]) @ values) == pytest.approx(0)
    assert "weighted mean of the others" in TEXT["hw4-four-types"]


def test_uncorrelated_is_not_independent():
    torch.manual_seed(0)
    size = {}
    for width in (16, 1024):
        query = torch.randn(4000, width)
        key = query * torch.randn(4000, 1).sign()
        assert abs(float((query * key).mean())) < 0.05
        size[width] = float((query * key).sum(-1).abs().mean())
    assert size[1024] / size[16] == pytest.approx(64, rel=0.1)  # like d, not like √d
    assert "independent of keys" in TEXT["hw4-beta-scale"]


def test_moments_of_a_score():
    product = (mu**2 + sigma**2) ** 2 - mu**4
    assert sp.expand(product - (2 * mu**2 * sigma**2 + sigma**4)) == 0
    assert (
        sp.limit((2 * d * sigma**2 * mu**2 + d * sigma**4) / sp.sqrt(d) ** 2, d, sp.oo)
        == 2 * sigma**2 * mu**2 + sigma**4
    )


def test_numbers_that_are_stated():
    assert round(10000 ** (2 / 512) - 1, 3) == 0.037
    assert round(303 / 14.2) == 21
    assert round(303 / 1.281167) == 237
    assert round(math.log10(math.exp(-202))) == -88
    assert "21 times the one and 237 times the other" in TEXT["c182-data-scale"].replace("\n", " ").replace("  ", " ")


def test_cost_crosses_where_it_is_said_to():
    n, d_q, d_v = sp.symbols("n d_q d_v", positive=True)
    width = sp.Symbol("d", positive=True)
    (crossing,) = sp.solve(n * width * (2 * d_q + d_v) - n**2 * (d_q + d_v), n)
    assert sp.simplify(crossing - width * (2 * d_q + d_v) / (d_q + d_v)) == 0
    assert sp.simplify(crossing.subs({d_q: width, d_v: width}) - sp.Rational(3, 2) * width) == 0


def test_nobody_says_that_the_distance_is_attention_elsewhere():
    from pathlib import Path

    root = Path(__file__).parents[2]
    for path in [
        *(root / "docs").rglob("*.md"),
        *(root / "src").rglob("*.py"),
        *(root / "notebooks" / "source").glob("*.py"),
    ]:
        text = " ".join(path.read_text(encoding="utf-8").split()).replace(" ", "")
        for place in range(len(text)):
            place = text.find("2T/(1+T)", place)
            if place < 0:
                break
            around = text[max(0, place - 140) : place + 140]
            assert "L1" in around or "L_1" in around or "one-hot" in around, f"{path}: …{around}…"
            break
