"""What happens to the weights when one key changes."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from regard import functional
from regard.claims._claim import Evidence, fails
from regard.claims._pictures import curves
from regard.claims._symbols import proof, symbols
from regard.claims._trials import Comparison, show, trials


class Perturbed(NamedTuple):
    """One key was changed: its weight before and after, its change of score in units of 1/β, and the mean of its
    weight over perturbations of either sign.
    """

    before: float
    after: float
    change: float
    mean: float


def _factor(found: Perturbed) -> float:
    return math.exp(found.change) / (1 + found.before * (math.exp(found.change) - 1))


@fails(
    "hw4-key-noise",
    "question 1.1 (e)",
    says=lambda found: found.after < found.before,
    instead=(
        r"the weight is multiplied by $e^{s} / (1 + w (e^{s} - 1))$ with $s = \beta \, \epsilon \cdot q$: up or down with "
        r"the sign of $s$; on average up where $w < 1/2$ and down where $w > 1/2$",
        lambda found: (
            math.isclose(found.after, found.before * _factor(found), rel_tol=1e-9)
            and (found.mean - found.before) * (0.5 - found.before) > 0
        ),
    ),
    mutant=(
        r"the weight is multiplied by $e^{s}$",
        lambda found: math.isclose(found.after, found.before * math.exp(found.change), rel_tol=1e-9),
    ),
)
def key_noise(predicts: Callable[[Perturbed], bool]) -> Evidence:
    r"""A small perturbation of one key, with mean zero, scales the attention to it down, whatever its score.

    The key's score moves by $\epsilon \cdot q$, its exponential by the factor $e^{s}$, $s = \beta \, \epsilon \cdot
    q$, and the sum of all by $1 + w (e^{s} - 1)$. To first order $w' = w + w (1 - w) s$: up for one half of the
    perturbations and down for the other. On average the second order remains,

    $$\mathbb{E}[w'] \approx w + \frac{1}{2} w (1 - w)(1 - 2 w) \Var(s),$$

    a pull toward one half. The check moves a key of the library's attention, and averages over a normal $s$ by
    quadrature.
    """
    nodes = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = torch.exp(-nodes.square() / 2) / torch.exp(-nodes.square() / 2).sum()
    found = Comparison()
    for trial in trials(36):
        m, d = trial.size(2, 7), trial.size(1, 5)
        beta = trial.uniform(0.3, 1.5)
        q, k, v = trial.normal(1, d), trial.normal(m, d), torch.eye(m).double()
        noise = 0.1 * trial.normal(d)
        if trial.number == 0:
            q, k, v, noise, beta = (
                *(x.double() for x in (torch.ones(1, 1), torch.zeros(3, 1), torch.eye(3), torch.full((1,), 0.1))),
                1.0,
            )
        moved = k.clone()
        moved[0] += noise
        before, after = (float(functional.attention(q, keys, v, beta=beta)[0, 0]) for keys in (k, moved))
        std = 0.1 * beta * float(q.norm())
        averaged = before * torch.exp(std * nodes) / (1 + before * torch.expm1(std * nodes))
        if abs(before - 0.5) < 0.02:
            continue  # too close to one half for the sign of the mean to be told
        outcome = Perturbed(before, after, beta * float(noise @ q[0]), float((density * averaged).sum()))
        case = f"a weight of {before:.3f} becomes {after:.3f} when its score rises by {outcome.change / beta:.2g}"
        found.true(
            predicts(outcome),
            case if after >= before else f"a weight of {before:.3f} becomes {outcome.mean:.5f} on average",
        )
    w = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    spread = torch.exp(nodes)[None] * w[:, None] / (1 + w[:, None] * torch.expm1(nodes)[None])
    line = {"E[w′] − w, noise of one in β ε·q": (w.tolist(), ((spread * density).sum(-1) - w).tolist())}
    return found.evidence(
        draw=curves("Noise on a key pulls its weight toward one half", "weight w", "mean change", line)
    )


@fails(
    "hw4-key-stretch",
    "question 1.1 (f)",
    says=lambda w, growth, factor, keys: (1 / factor, factor / (keys - 1)),
    instead=(
        r"with $r = e^{\beta (\alpha - 1) z_a}$ its weight becomes $w_a r / (1 + w_a (r - 1))$ and every other "
        r"$w_i / (1 + w_a (r - 1))$: up where $z_a > 0$, down where $z_a < 0$",
        lambda w, growth, factor, keys: _stretched(w, growth),
    ),
    mutant=(r"the same with $r = \alpha$", lambda w, growth, factor, keys: _stretched(w, factor)),
)
def key_stretch(multiplies: Callable[[Any, Any, Any, Any], tuple[Any, Any]]) -> Evidence:
    r"""Stretching one key by $\alpha > 1$ divides its attention by $\alpha$ and multiplies the others' by $\alpha/(m
    - 1)$.

    The score $z_a = q \cdot k_a$ becomes $\alpha z_a$, so only the exponential of key $a$ changes, by the factor $r =
    e^{\beta (\alpha - 1) z_a}$, and the sum of all by $1 + w_a (r - 1)$. The others share one common factor and the
    weights still sum to one, which the quoted factors do not guarantee. Whether the key gains or loses depends on the
    sign of its score. The check proves both factors symbolically, for any number of keys, and stretches a key of the
    library's attention.
    """
    sympy = symbols()
    own, others, growth = sympy.symbols("E S r", positive=True)  # the key's exponential, the others' sum, and r
    stretch, count = sympy.symbols("alpha m", positive=True)
    of_own, of_others = multiplies(own / (own + others), growth, stretch, count)
    proved = proof(
        {
            "the weight of the key": of_own * own / (own + others) - own * growth / (own * growth + others),
            "the sum of the other weights": of_others * others / (own + others) - others / (own * growth + others),
        }
    )
    found = Comparison()
    for trial in trials():
        m, d = trial.size(2, 7), trial.size(1, 5)
        beta, factor = trial.uniform(0.3, 1.5), trial.uniform(1.1, 3)
        q, k = trial.normal(1, d), trial.normal(m, d)
        if trial.number == 0:
            q, k, beta, factor = torch.ones(1, 1).double(), torch.tensor([[1.0], [0.0]]).double(), 1.0, 2.0
        stretched = k.clone()
        stretched[0] *= factor
        before, after = (functional.attention(q, keys, torch.eye(m).double(), beta=beta)[0] for keys in (k, stretched))
        z = float(q[0] @ k[0])
        own_factor, other_factor = multiplies(float(before[0]), math.exp(beta * (factor - 1) * z), factor, m)
        guess = torch.cat([before[:1] * own_factor, before[1:] * other_factor])
        found.same(
            after,
            guess,
            f"scores {show(q[0] @ k.mT)}, α = {factor:g}: the weights go from {show(before)} to {show(after)}",
        )
    alpha = torch.linspace(1, 4, 61, dtype=torch.float64)
    series = {
        f"score {z:+g}": (
            alpha.tolist(),
            [0.25 * _stretched(0.25, math.exp((float(a) - 1) * z))[0] for a in alpha],
        )
        for z in (1.0, 0.0, -1.0)
    }
    measured = found.evidence(draw=curves("Weight of a stretched key, 1/4 before", "stretch α", "weight", series))
    return Evidence(
        proved.accepted and measured.accepted,
        f"{proved.line}; {measured.line}",
        {**measured.numbers, "symbolic": proved.line},
        measured.counterexample,
        measured.draw,
    )


def _stretched(w: Any, r: Any) -> tuple[Any, Any]:
    """What multiplies the weight w of a key whose exponential grows by the factor r, and the others' weights."""
    return r / (1 + w * (r - 1)), 1 / (1 + w * (r - 1))
