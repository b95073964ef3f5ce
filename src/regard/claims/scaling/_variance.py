"""How scores grow with the width, and what they are divided by."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import functional, layers
from regard.claims._claim import Evidence, fails, holds, holds_under
from regard.claims._pictures import curves
from regard.claims._symbols import normal_moments, proof, symbols, written
from regard.claims._trials import STANDARD_ERRORS, Comparison, Trial, trials

WIDTHS = (1, 2, 4, 16, 64, 128)


SAMPLES = 10_000


class Growth(NamedTuple):
    """Dot products are of the order of the width to this power, for entries with this mean."""

    power: float
    mean: float


@holds_under(
    "hw4-beta-scale",
    "question 1.1 (b)",
    says=Growth(0.5, mean=1.0),
    condition=(
        "queries are independent of keys, and the entries of each are uncorrelated and have mean zero",
        Growth(0.5, mean=0.0),
    ),
    mutant=("dot products grow like $d$", Growth(1.0, mean=0.0)),
)
def beta_scale(growth: Growth) -> Evidence:
    r"""$\beta = 1/\sqrt{d}$ is convenient, because dot products of width $d$ grow like $\sqrt{d}$.

    For independent entries of mean 0 and variance $\sigma^2$ the $d$ products have mean 0 and variance $\sigma^4$, so
    $\mathbb{E}[(q \cdot k)^2] = d \, \sigma^4$: typical scores grow like $\sqrt{d}$, and $\beta = 1/\sqrt{d}$ keeps
    them at $\sigma^2$. With mean $\mu$ the expected score is $d \, \mu^2$, which grows like $d$. (That part is common
    to all keys and drops out of the softmax; with correlated entries, however, the differences between scores grow
    like $d$, too. Between query and key it is not enough to be uncorrelated: for $k = \pm q$ with a random sign every
    $q_i k_i$ has mean zero, but $|q \cdot k| = \|q\|^2$ grows like $d$.)

    The check draws normal queries and keys and tests the mean of $(q \cdot k)^2$ against $d^{2p}$ times its value at
    $d = 1$, at 5 standard errors: a right formula is rejected in 6 of 10 million tests.
    """
    found = Comparison(STANDARD_ERRORS, "standard errors")
    at_one = (growth.mean**2 + 1) ** 2  # E[q²]E[k²]
    measured = []
    for d in WIDTHS:
        trial = Trial(d, seed=1)
        q, k = (growth.mean + trial.normal(SAMPLES, d) for _ in "qk")
        squares = (q * k).sum(-1).square()
        measured.append(float(squares.mean()) ** 0.5)
        guess = at_one * d ** (2 * growth.power)
        found.mean(
            squares,
            guess,
            f"entries of mean {growth.mean:g}, d = {d}: scores are of the order of {measured[-1]:.3g}, not {guess**0.5:.3g}",
        )
    widths = list(map(float, WIDTHS))
    series = {"measured": (widths, measured), "√d": (widths, [d**0.5 for d in WIDTHS]), "d": (widths, widths)}
    draw = curves(
        f"Size of scores, entries of mean {growth.mean:g}",
        "width d",
        "root mean square",
        series,
        log_x=True,
        log_y=True,
    )
    return found.evidence("widths", draw=draw)


def _variance_of_product() -> tuple[Any, Any, Any]:
    """μ, σ and Var[qk] of two independent normal numbers, from their moments."""
    mu, sigma, moments = normal_moments()
    return mu, sigma, symbols().expand(moments[2] ** 2 - moments[1] ** 4)


@holds("c182-variance-order", "problem (b), i", says=1, mutant=(r"the variance stays bounded, $O(1)$", 0))
def variance_order(power: int) -> Evidence:
    r"""The variance of $q \cdot k$ is $O(d)$, for independent normal entries whose means and variances are $O(1)$.

    The products $q_i k_i$ are independent, so their variances add. Each is $\sigma^2 (2 \mu_i^2 + \sigma^2)$, which
    is $O(1)$, and there are $d$ of them. The check takes the moments from the density by integration, forms the sum,
    and lets sympy find the limit of $\Var / d^p$, which must be finite. (The source writes the sum as $d$ times the
    first term; that needs one mean for all entries, but the order is the same.)
    """
    sympy = symbols()
    mu, sigma, each = _variance_of_product()
    d = sympy.Symbol("d", positive=True)
    ratio = sympy.limit((d * each / d**power).subs({mu: 1, sigma: 1}), d, sympy.oo)
    bounded = bool(ratio.is_finite)
    line = f"Var/d^{power} → {written(ratio)} as d → ∞ (μ = σ = 1), each product has variance {written(sympy.factor(each))}"
    measured = []
    for width in WIDTHS:
        trial = Trial(width, seed=2)
        measured.append(float(((1 + trial.normal(SAMPLES, width)) * (1 + trial.normal(SAMPLES, width))).sum(-1).var()))
    widths = list(map(float, WIDTHS))
    series = {"measured": (widths, measured), "3d": (widths, [3 * width for width in widths])}
    draw = curves("Variance of the score, μ = σ = 1", "width d", "variance", series, log_x=True, log_y=True)
    return Evidence(
        bounded,
        line,
        {"limit": written(ratio), "error": float(not bounded), "tolerance": 0.5},
        "" if bounded else line,
        draw,
    )


def _product_samples(mean: float, std: float, seed: int) -> Tensor:
    """Squared deviations of qk from its mean, whose mean is the variance."""
    trial = Trial(0, seed)
    product = (mean + std * trial.normal(SAMPLES)) * (mean + std * trial.normal(SAMPLES))
    return (product - mean**2).square()


@fails(
    "c182-variance-product",
    "problem (b), i",
    says=lambda mu, sigma: sigma**2 * (mu**2 + sigma**2),
    instead=(r"$\Var[q_1 k_1] = \sigma^2 (2 \mu^2 + \sigma^2)$", lambda mu, sigma: sigma**2 * (2 * mu**2 + sigma**2)),
    mutant=(r"$\sigma^2 (\mu^2 + 2 \sigma^2)$", lambda mu, sigma: sigma**2 * (mu**2 + 2 * sigma**2)),
)
def variance_product(formula: Callable[[Any, Any], Any]) -> Evidence:
    r"""The product of two independent normal numbers of mean $\mu$ and deviation $\sigma$ has variance $\sigma^2
    (\mu^2 + \sigma^2)$.

    $\Var[q k] = \mathbb{E}[q^2] \mathbb{E}[k^2] - \mathbb{E}[q]^2 \mathbb{E}[k]^2 = (\mu^2 + \sigma^2)^2 - \mu^4 = 2
    \sigma^2 \mu^2 + \sigma^4$. The mean of each factor moves the other, so $\mu^2$ counts twice; the two formulas
    agree only at $\mu = 0$. The exact formula later in the same text has the 2.
    """
    mu, sigma, right = _variance_of_product()
    proved = proof({"Var[qk]": formula(mu, sigma) - right})
    found = Comparison(STANDARD_ERRORS, "standard errors")
    for number, (mean, std) in enumerate(((1.0, 1.0), (2.0, 0.5), (0.0, 1.5))):
        samples = _product_samples(mean, std, seed=10 + number)
        guess = formula(mean, std)
        found.mean(
            samples,
            guess,
            f"μ = {mean:g}, σ = {std:g}: the formula gives {guess:g}, {SAMPLES} samples {float(samples.mean()):.2f}",
        )
    measured = found.evidence("samples")
    means = [0.25 * i for i in range(9)]
    series = {
        "measured, σ = 1": (means, [float(_product_samples(m, 1.0, 20).mean()) for m in means]),
        "this formula": (means, [formula(m, 1.0) for m in means]),
    }
    return Evidence(
        proved.accepted and measured.accepted,
        f"{proved.line}; {measured.line}",
        {**measured.numbers, "symbolic": proved.line},
        measured.counterexample,
        curves("Variance of a product of two normal numbers", "mean μ", "variance", series),
    )


@holds("c182-scale", "problem (b), ii", says=0.5, mutant=("dividing by $d$ (the scores then vanish)", 1.0))
def scale(power: float) -> Evidence:
    r"""Dividing the score by $\sqrt{d}$ removes the growth of its variance.

    $\Var(q^\top k / s) = (2 \sigma^2 \mu^\top \mu + d \sigma^4) / s^2$. Entries of order one have $\mu^\top \mu =
    O(d)$, so $s = \sqrt{d}$ leaves $2 \sigma^2 \bar{\mu^2} + \sigma^4$, neither growing nor vanishing. (The mean of
    the score still grows like $\sqrt{d}$ where $\mu \ne 0$; it is the same for all keys.) The check needs a limit
    that is finite and positive.
    """
    sympy = symbols()
    mu, sigma, each = _variance_of_product()
    d = sympy.Symbol("d", positive=True)
    left = sympy.limit(d * each / d ** (2 * sympy.Rational(power)), d, sympy.oo)
    fine = bool(left.subs({mu: 1, sigma: 1}).is_finite and left.subs({mu: 1, sigma: 1}) > 0)
    found = Comparison(STANDARD_ERRORS, "standard errors")
    measured = []
    for width in WIDTHS:
        trial = Trial(width, seed=3)
        scores = ((1 + trial.normal(SAMPLES, width)) * (1 + trial.normal(SAMPLES, width))).sum(-1) / width**power
        deviations = (scores - width ** (1 - power)).square()
        measured.append(float(deviations.mean()))
        found.mean(deviations, 3.0, f"d = {width}: the variance is {measured[-1]:.3g}, at d = 1 it is 3")
    series = {"measured": (list(map(float, WIDTHS)), measured)}
    sampled = found.evidence(
        "widths",
        draw=curves(f"Variance of the score over d^{power:g}, μ = σ = 1", "width d", "variance", series, log_x=True),
    )
    line = f"the variance tends to {written(sympy.factor(left))}; {sampled.line}"
    return Evidence(fine and sampled.accepted, line, sampled.numbers, sampled.counterexample, sampled.draw)


@holds(
    "c182-mean-exact",
    "problem (b), iii",
    says=lambda d, square, sigma: square,
    mutant=(r"$\mu^\top \mu + d \sigma^2$, as for $q = k$", lambda d, square, sigma: square + d * sigma**2),
)
def mean_exact(formula: Callable[[Any, Any, Any], Any]) -> Evidence:
    r"""The mean of $q^\top k$ is $\mu^\top \mu$.

    Expectation is linear, and $\mathbb{E}[q_i k_i] = \mathbb{E}[q_i] \mathbb{E}[k_i] = \mu_i^2$ because query and key
    are independent. Nothing depends on $\sigma$.
    """
    return _exact(formula, lambda first, second: first**2, "E[qᵀk]", lambda scores, mean: scores)


@fails(
    "c182-variance-exact",
    "problem (b), iv, last line",
    says=lambda d, square, sigma: 2 * d * sigma**2 * square + d * sigma**4,
    instead=(
        r"$\Var(q^\top k) = 2 \sigma^2 \mu^\top \mu + d \, \sigma^4$",
        lambda d, square, sigma: 2 * sigma**2 * square + d * sigma**4,
    ),
    mutant=(r"$2 \sigma^2 \mu^\top \mu + \sigma^4$", lambda d, square, sigma: 2 * sigma**2 * square + sigma**4),
)
def variance_exact(formula: Callable[[Any, Any, Any], Any]) -> Evidence:
    r"""The variance of $q^\top k$ is $2 d \sigma^2 \mu^\top \mu + d \sigma^4$.

    The products are independent, so $$\Var(q^\top k) = \sum_{i=1}^d (2 \sigma^2 \mu_i^2 + \sigma^4) = 2 \sigma^2
    \mu^\top \mu + d \, \sigma^4.$$ The sum over $i$ is already inside $\mu^\top \mu$. The source's derivation is
    right up to its last line, where a further factor $d$ appears. The two formulas agree at $d = 1$ and where $\mu =
    0$.
    """
    return _exact(
        formula,
        lambda first, second: second**2 - first**4,
        "Var(qᵀk)",
        lambda scores, mean: (scores - mean).square(),
    )


def _exact(
    formula: Callable[[Any, Any, Any], Any],
    of_product: Callable[[Any, Any], Any],
    name: str,
    statistic: Callable[[Tensor, float], Tensor],
) -> Evidence:
    """A formula of d, μᵀμ and σ against the sum over coordinates, symbolically for every d, and against samples."""
    sympy = symbols()
    mu, sigma, moments = normal_moments()
    d, square = sympy.symbols("d mu2", positive=True)
    each = sympy.Poly(of_product(*moments[1:]), mu)  # of one coordinate: a μᵢ² + b
    total = each.coeff_monomial(mu**2) * square + each.coeff_monomial(1) * d
    if each.degree() > 2 or each.coeff_monomial(mu) != 0:
        raise ValueError(f"{each} is not of the form a μ² + b, so its sum is no function of μᵀμ and d")
    proved = proof({name: formula(d, square, sigma) - total})
    found = Comparison(STANDARD_ERRORS, "standard errors")
    widths, measured, guesses = (1, 2, 4, 8, 16, 32), [], []
    for width in widths:
        trial = Trial(width, seed=4)
        mean = [1.0 if i % 2 == 0 else -0.5 for i in range(width)]
        q, k = (torch.tensor(mean).double() + trial.normal(SAMPLES, width) for _ in "qk")
        length = sum(m * m for m in mean)
        samples = statistic((q * k).sum(-1), length)
        measured.append(float(samples.mean()))
        guesses.append(float(formula(width, length, 1.0)))
        shown = ", ".join(f"{m:g}" for m in mean[:4]) + (", …" if width > 4 else "")
        case = f"d = {width}, μ = ({shown}), σ = 1: the formula gives {guesses[-1]:g}"
        found.mean(samples, guesses[-1], f"{case}, {SAMPLES} samples {measured[-1]:.2f}")
    sampled = found.evidence("widths")
    series = {"measured": (widths, measured), "this formula": (widths, guesses)}
    return Evidence(
        proved.accepted and sampled.accepted,
        f"{proved.line}; {sampled.line}",
        {**sampled.numbers, "symbolic": proved.line, "widths": widths, "measured": measured, "formula": guesses},
        sampled.counterexample,
        curves(f"{name}, μ = (1, −½, 1, −½, …), σ = 1", "width d", name, series, log_x=True, log_y=True, marks=True),
    )


class Divisor(NamedTuple):
    """What scores are divided by, given the model's width, and for how many heads that is tested."""

    of_width: Callable[[int], float]
    heads: tuple[int, ...]


@holds_under(
    "ex05-scale",
    "section 1, the attention equation",
    says=Divisor(lambda width: width**0.5, heads=(1, 2, 4)),
    condition=(
        r"there is one head, as wide as the model; $h$ heads divide by $\sqrt{d_{model}/h}$",
        Divisor(lambda width: width**0.5, heads=(1,)),
    ),
    mutant=("one head, divided by $d_{model}$ itself", Divisor(float, heads=(1,))),
)
def divided_by(divisor: Divisor) -> Evidence:
    r"""Scores are divided by $\sqrt{d_{model}}$.

    A score is a sum over the width of a *head's* queries and keys, $d_{head} = d_{model}/h$, so unit variance needs
    $\sqrt{d_{head}}$. The equation implicitly has one head, and for one head the two are the same. With more heads
    $\sqrt{d_{model}}$ would leave a variance of $1/h$. The check compares with the library's layer and with torch's.
    """
    found = Comparison()
    for trial in trials(12):
        for heads in divisor.heads:
            dim, tokens = heads * trial.size(2, 5), trial.size(2, 6)
            theirs = torch.nn.MultiheadAttention(dim, heads, bias=False, batch_first=True, dtype=torch.float64)
            layer = layers.MultiHeadAttention.from_torch(theirs)
            x = trial.normal(1, tokens, dim)
            _, weights = layer(x, return_weights=True)
            _, torch_weights = theirs(x, x, x, average_attn_weights=False)
            q, k = (x @ w.mT for w in layer.input_weights()[:2])
            q, k = (y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in (q, k))
            guess = functional.softargmax(q @ k.mT / divisor.of_width(dim))
            right = f"√{dim // heads} = {(dim // heads) ** 0.5:.3g}"
            case = f"width {dim}, {heads} heads: the divisor is {right}, not {divisor.of_width(dim):.3g}"
            found.same(weights, guess, case)
            found.same(torch_weights, guess, case)
    return found.evidence("layers")
