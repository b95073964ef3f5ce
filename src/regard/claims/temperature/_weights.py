"""What β does to the weights."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard import functional
from regard.claims._claim import Evidence, fails, holds
from regard.claims._pictures import curves
from regard.claims._trials import Comparison, full, show, trials

Z = torch.tensor([0.0, 1.0], dtype=torch.float64)


@holds("hw4-beta-spread", "question 1.1 (b)", says=-1, mutant=("large $\\beta$ spreads attention", +1))
def beta_spread(direction: int) -> Evidence:
    r"""A small $\beta$ spreads attention over many keys, a large one concentrates it on few.

    Measure the spread by the entropy $H = -\sum_i w_i \log w_i$ of $w = \softargmax_\beta(z)$. With $\log w_i = \beta
    z_i - \log \sum_j e^{\beta z_j}$,

    $$\frac{\partial H}{\partial \beta} = -\beta \, \Var_w(z) \le 0,$$

    so from $\beta = 0$ on the spread never grows, and it falls unless all scores are equal. The check differentiates the
    library's softargmax and compares with this formula and its sign.
    """
    found = Comparison()
    for trial in trials():
        z = 3 * trial.normal(trial.size(2, 12))
        beta = torch.tensor(trial.uniform(0.01, 4), dtype=torch.float64, requires_grad=True)
        w = functional.softargmax(z, beta)
        entropy = -(w * w.clamp_min(1e-300).log()).sum()
        (slope,) = torch.autograd.grad(entropy, beta)
        w, beta = w.detach(), beta.detach()
        variance = (w * z.square()).sum() - (w * z).sum().square()
        case = f"z = {show(z)}, β = {show(float(beta))}: the entropy changes by {float(slope):.2g} per unit of β"
        found.same(slope, direction * beta * variance, case)
    betas = torch.linspace(0, 8, 81, dtype=torch.float64)
    spread = {
        f"z = {show(z)}": functional.softargmax(z.expand(81, -1), betas[:, None])
        for z in (Z, torch.tensor([0.0, 1, 2, 3]).double())
    }
    lines = {name: (betas.tolist(), torch.special.entr(w).sum(-1).tolist()) for name, w in spread.items()}
    return found.evidence(draw=curves("Entropy of the weights falls as β grows", "β", "entropy", lines))


@fails(
    "hw4-softargmax-sign",
    "question 1.1 (b), the formula of softargmax",
    says=lambda z, beta: (-beta * z).exp() / (-beta * z).exp().sum(),
    instead=(
        r"$\softargmax_\beta(z)_i = e^{\beta z_i} / \sum_j e^{\beta z_j}$",
        lambda z, beta: (beta * z).exp() / (beta * z).exp().sum(),
    ),
    mutant=(r"$\beta$ in the numerator alone", lambda z, beta: (beta * z).exp() / z.exp().sum()),
)
def softargmax_sign(formula: Callable[[Tensor, float], Tensor]) -> Evidence:
    r"""Softargmax is $e^{-\beta z_i} / \sum_j e^{-\beta z_j}$.

    A soft arg *max* gives the largest score the largest weight, and all of it as $\beta \to \infty$. With a minus
    sign the smallest score wins: that is the soft arg *min*, the right formula where $z$ is a cost or a distance.
    Attention scores are similarities, so the sign is plus. The check compares with the library, and with the arg max
    at a large $\beta$.
    """
    found = Comparison()
    for trial in trials():
        z, beta = trial.normal(trial.size(2, 9)), trial.uniform(0.1, 3)
        if trial.number == 0:
            z, beta = Z, 1.0
        got, right = formula(z, beta), functional.softargmax(z, beta)
        found.same(
            got, right, f"z = {show(z)}, β = {show(beta)}: {show(got)}, but the larger score weighs more, {show(right)}"
        )
        distinct = trial.order(len(z)).double()
        sharp = formula(distinct, 50.0)
        found.same(
            sharp,
            (distinct == distinct.max()).double(),
            f"z = {show(distinct)}, β = 50: {show(sharp)} is not the arg max",
        )
    betas = torch.linspace(0, 5, 51, dtype=torch.float64)
    line = [float(formula(Z, float(beta))[1]) for beta in betas]
    right_line = [float(functional.softargmax(Z, float(beta))[1]) for beta in betas]
    series = {"this formula": (betas.tolist(), line), "softargmax": (betas.tolist(), right_line)}
    return found.evidence(draw=curves("Weight of the larger of two scores, z = (0, 1)", "β", "weight", series))


class Choice(NamedTuple):
    """At this β attention picks one key: the one with the smallest or the largest score."""

    beta: float
    largest: bool


@fails(
    "hw4-beta-one",
    "question 1.1 (b)",
    says=Choice(1.0, largest=False),
    instead=(
        r"at $\beta = 1$ it is the ordinary softmax; the arg max is the limit $\beta \to \infty$",
        Choice(math.inf, largest=True),
    ),
    mutant=(r"the limit $\beta \to \infty$ is the arg min", Choice(math.inf, largest=False)),
)
def beta_one(choice: Choice) -> Evidence:
    r"""At $\beta = 1$ attention picks the key with the smallest score, the arg min.

    At any finite $\beta$ every weight is positive: $w_i / w_j = e^{\beta (z_i - z_j)} > 0$, whatever the sign in the
    exponent, so nothing is picked. With a gap $g$ between the best score and the next of $m$, $1 - w_{best} \le (m -
    1) e^{-\beta g}$, which goes to 0 as $\beta \to \infty$: the arg *max*. The arg min would be $\beta \to -\infty$.
    """
    found = Comparison()
    for trial in trials():
        z = trial.order(trial.size(2, 9)).double() / 2 if trial.number else Z
        picked = (z == (z.max() if choice.largest else z.min())).double()
        w = functional.softargmax(z, choice.beta)
        found.same(w, picked, f"z = {show(z)}, β = {choice.beta:g}: the weights are {show(w)}")
        if math.isinf(choice.beta):  # the limit is what large β come close to, at this rate
            gap, beta = 0.5, 20.0
            off = float((functional.softargmax(z, beta) - picked).abs().sum())
            found.true(
                off <= 2 * (len(z) - 1) * math.exp(-beta * gap),
                f"z = {show(z)}, β = {beta:g}: {off:.2g} from the limit",
            )
        else:  # the source's own formula, with its minus sign, picks nothing either
            found.same(functional.softargmax(-z, choice.beta), picked, f"z = {show(z)}, β = 1 with the minus sign")
    betas = torch.linspace(0, 10, 101, dtype=torch.float64)
    z = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    w = functional.softargmax(z.expand(101, 3), betas[:, None])
    series = {f"score {float(score):g}": (betas.tolist(), w[:, i].tolist()) for i, score in enumerate(z)}
    return found.evidence(draw=curves("Weights of three scores", "β", "weight", series))


@holds("hw4-beta-zero", "question 1.1 (b)", says=0.0, mutant=(r"weights are uniform at $\beta = 1$", 1.0))
def beta_zero(beta: float) -> Evidence:
    r"""At $\beta = 0$ all weights are equal.

    $e^{0 \cdot z_i} = 1$ for every score, so each of $m$ keys weighs $1/m$, and the output is the mean of the values,
    whatever the query.
    """
    found = Comparison()
    for trial in trials():
        m, d, n = trial.size(2, 9), trial.size(1, 6), trial.size(1, 5)
        q, k, v = trial.normal(n, d), trial.normal(m, d), trial.normal(m, 3)
        out, w = functional.attention(q, k, v, beta=beta, return_weights=True)
        case = f"{m} keys, β = {beta:g}: the first query's weights are {show(w[0])}"
        found.same(w, full(1 / m, n, m), case)
        found.same(out, v.mean(0).expand(n, -1), case)
    return found.evidence()


@fails(
    "hw4-uniform-weight",
    "question 1.1 (d)",
    says=lambda width, keys, queries: 1 / width,
    instead=("each of $m$ keys weighs $1/m$", lambda width, keys, queries: 1 / keys),
    mutant=("each weighs one over the number of queries", lambda width, keys, queries: 1 / queries),
)
def uniform_weight(formula: Callable[[int, int, int], float]) -> Evidence:
    r"""As $\beta \to 0$ every weight is $1/d$, one over the width of the keys.

    The softmax runs over the $m$ keys, and weights that are equal and sum to one are $1/m$. The width $d$ of a key is
    summed over inside the score and plays no part in how many weights there are. (The letter $d$ stands for the
    length of a score vector in that answer's softargmax, and for the width of keys elsewhere in it.)
    """
    found = Comparison()
    for trial in trials():
        d, m, n = trial.size(2, 7), trial.size(3, 9), trial.size(1, 6)
        _, w = functional.attention(
            trial.normal(n, d), trial.normal(m, d), trial.normal(m, 1), beta=0.0, return_weights=True
        )
        case = f"width {d}, {m} keys: every weight is {show(w[0, 0])}, not {show(formula(d, m, n))}"
        found.same(w, full(formula(d, m, n), n, m), case)
        # It is a limit, not a jump.
        _, close = functional.attention(
            trial.normal(n, d), trial.normal(m, d), trial.normal(m, 1), beta=1e-13, return_weights=True
        )
        found.same(close, full(formula(d, m, n), n, m), case)
    return found.evidence()
