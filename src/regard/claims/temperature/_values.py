"""When values pass through unchanged, and when they are mixed."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard import functional, reference
from regard.claims._claim import Evidence, fails, holds_under
from regard.claims._pictures import curves, matrices
from regard.claims._trials import Comparison, full, show, trials


class Sums(NamedTuple):
    """What a key's weights, over all queries, sum to when every query picks one key."""

    of_key: Callable[[Tensor, int], Tensor]


@fails(
    "hw4-doubly-stochastic",
    "question 1.1 (c)",
    says=Sums(lambda picked, keys: torch.ones(keys)),
    instead=(
        "each query's weights sum to one, at every β; where attention is hard, a key's sum to the number of queries that "
        "picked it",
        Sums(lambda picked, keys: torch.bincount(picked, minlength=keys).double()),
    ),
    mutant=(
        "a key's weights sum to the number of queries, divided by the number of keys",
        Sums(lambda picked, keys: full(len(picked) / keys, keys)),
    ),
)
def doubly_stochastic(sums: Sums) -> Evidence:
    r"""When attention preserves values, the rows and the columns of $A$ all sum to one.

    Softmax normalizes only the weights of each query (the columns of $A = \softargmax(K^\top Q)$). With hard weights
    the row of key $j$ counts the queries that picked it, and two queries may pick the same key while no query picks
    another key. Every output is still one of the values, so preserving values does not need rows that sum to one.
    Rows sum to one exactly when the choice is a permutation.
    """
    found = Comparison()
    example = None
    for trial in trials():
        n, m, d = trial.size(2, 7), trial.size(2, 7), trial.size(1, 4)
        q, k, v = trial.normal(n, d), trial.normal(m, d), trial.normal(m, 2)
        if trial.number == 0:
            q, k = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([[1.0], [0.0]]).double()
        out, w = functional.attention(q, k, v, beta=math.inf, return_weights=True)
        picked = w.argmax(-1)
        example = w if example is None else example
        given = f"queries {show(q.flatten())}, keys {show(k.flatten())}"
        case = f"{given}: both pick the first key, whose weights sum to {show(w.sum(0)[0])}"
        found.same(w.sum(-1), torch.ones(n), "a query's weights do not sum to one")
        found.same(out, v[picked], "a value is not preserved")
        found.same(w.sum(0), sums.of_key(picked, m), case)
    return found.evidence(
        draw=matrices("Two queries, one popular key", {"weights": example if example is not None else torch.eye(2)})
    )


@fails(
    "hw4-preserve",
    "question 1.1 (c)",
    says=1.0,
    instead=(r"as $\beta \to \infty$, where one key scores best, the output is that key's value", math.inf),
    mutant=(r"values are preserved as $\beta \to 0$", 0.0),
)
def preserve(beta: float) -> Evidence:
    r"""Values pass through attention unchanged as $\beta \to 1$, which makes it hard.

    $\beta = 1$ is nothing special. With a gap $g$ between the best of $m$ scores and the next,

    $$\| h - v_{best} \| \le 2 (m - 1) e^{-\beta g} \max_j \| v_j \|,$$

    so a value is preserved in the limit $\beta \to \infty$ (the library's `beta=math.inf`), and at any finite $\beta$
    up to this error. Where scores tie, the tied values are averaged at every $\beta$.
    """
    found = Comparison()
    for trial in trials():
        m, d = trial.size(2, 8), trial.size(1, 5)
        q, k, v = trial.normal(3, d), trial.normal(m, d), trial.normal(m, 2)
        if trial.number == 0:
            q, k, v = (torch.tensor(x).double() for x in ([[1.0]], [[0.0], [1.0]], [[0.0], [1.0]]))
        h = functional.attention(q, k, v, beta=beta)
        best = v[(q @ k.mT).argmax(-1)]
        found.same(
            h, best, f"query 1, keys and values {show(k.flatten())}, β = {beta:g}: the output is {show(h.flatten()[0])}"
        )
        if math.isinf(beta):
            top = (q @ k.mT).topk(2).values
            bound = 2 * (m - 1) * torch.exp(-5.0 * (top[:, 0] - top[:, 1])) * v.norm(dim=-1).max()
            off = (functional.attention(q, k, v, beta=5.0) - best).norm(dim=-1)
            found.true(bool((off <= bound + 1e-12).all()), "the bound on the distance is exceeded")
    betas = torch.linspace(0, 12, 61)
    z = torch.tensor([[1.0]]), torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]])
    line = [float(functional.attention(*z, beta=float(b))) for b in betas]
    draw = curves(
        "The output between two values, 0 and 1, as β grows", "β", "output", {"output": (betas.tolist(), line)}
    )
    return found.evidence(draw=draw)


class Dense(NamedTuple):
    """A fully connected layer across tokens: whether one matrix has to serve inputs that pick different keys, and
    what the equal weights are.
    """

    any_input: bool
    equal: Callable[[int], float]


@holds_under(
    "hw4-dense-equivalent",
    "questions 1.1 (c) and (d)",
    says=Dense(any_input=True, equal=lambda m: 1 / m),
    condition=(
        "the layer runs across the tokens, for a fixed number of them and for choices fixed in advance: one 1 per output "
        "in $W$ to preserve, $1/m$ everywhere to dilute",
        Dense(any_input=False, equal=lambda m: 1 / m),
    ),
    mutant=("equal weights of 1", Dense(any_input=False, equal=lambda m: 1.0)),
)
def dense_equivalent(dense: Dense) -> Evidence:
    r"""A fully connected layer can preserve values (sparse weights) or dilute them (equal weights), as attention
    does.

    $H = V W$ with a $W$ that has a single 1 in each column copies values, and with $W = 1/m$ it averages them:
    exactly what hard attention and attention at $\beta = 0$ do. But $W$ is fixed, while attention chooses by content.
    Two inputs whose queries pick different keys need different $W$, and so does another number of tokens.
    """
    found = Comparison()
    for trial in trials():
        m, t = trial.size(2, 6), trial.size(1, 3)
        values = [trial.normal(m, t) + 1 for _ in range(2 + m)]
        q, k = trial.normal(m, m), torch.eye(m).double()
        # Queries of the second input pick other keys, if they may.
        queries = [q, q.roll(1, -1) if dense.any_input else q] + [q] * m
        h = [functional.attention(q, k, v, beta=math.inf) for q, v in zip(queries, values, strict=True)]
        w = torch.linalg.lstsq(torch.cat([v.mT for v in values]), torch.cat([x.mT for x in h])).solution
        misses = float((torch.cat([v.mT for v in values]) @ w - torch.cat([x.mT for x in h])).abs().max())
        case = f"{m} keys, two inputs that pick different ones: the best common W misses by {misses:.2g}"
        found.same(misses, 0.0, case)
        spread = functional.attention(q, k, values[0], beta=0.0)
        found.same(spread, full(dense.equal(m), m, m) @ values[0], f"{m} keys: equal weights give another average")
    return found.evidence()


class Kinds(NamedTuple):
    """Which attention preserves values, and in which cases that is tested."""

    preserving: str
    general: bool


@holds_under(
    "hw4-four-types",
    "questions 1.1 (c) and (d)",
    says=Kinds("hard", general=True),
    condition=(
        "no two keys tie for the best score, and there are two or more values, none of them a weighted mean of the others",
        Kinds("hard", general=False),
    ),
    mutant=("preserving is soft, diluting is hard", Kinds("soft", general=False)),
)
def four_types(kinds: Kinds) -> Evidence:
    r"""Attention comes as self or cross, hard or soft; the hard kind preserves values, the soft kind dilutes them.

    The two distinctions are independent: the library computes all four combinations. Hard attention outputs one value
    if one key is best. Soft weights are all positive, so an output is a mean of all values, and a value can come out
    unchanged only if it is itself such a mean. There are exceptions at the edges: hard attention averages keys that
    tie, soft attention has nothing to mix if there is a single key, and from the values −1, 0 and 1 soft attention
    may return 0.
    """
    found = Comparison()
    for trial in trials():
        d, n, m = trial.size(2, 5), trial.size(1, 5), trial.size(2, 6)
        x, other, v = trial.normal(n + 1, d), trial.normal(m, d), 2.0
        if kinds.general and trial.number == 0:
            other = torch.ones(2, d).double() * torch.tensor([[1.0], [1.0]])  # a tie
        if kinds.general and trial.number == 1:
            other = trial.normal(1, d)  # a single key
        for name, context in (("self", x), ("cross", other)):
            values = context * v + torch.arange(len(context))[:, None]
            if kinds.general and trial.number == 2 and name == "cross":  # −v, 0 and v, the outer two equally likely
                context = torch.stack([x[0], 0 * x[0], x[0]])
                values = torch.stack([-x[0], 0 * x[0], x[0]])
            for kind, beta in (("hard", math.inf), ("soft", 0.7)):
                out = functional.attention(x, context, values, beta=beta)
                kept = bool((torch.cdist(out, values) < 1e-9).any(-1).all())
                mixed = bool((torch.cdist(out, values) > 1e-9).all())
                what = "two keys that tie" if len(context) > 1 else "a single key"
                found.true(
                    kept if kind == kinds.preserving else mixed,
                    f"{what}: {kind} {name}-attention {'preserves' if kept else 'mixes'} the values",
                )
    return found.evidence("combinations")


class Tokens(NamedTuple):
    """Self-attention with identity projections on these tokens, at this β."""

    beta: float
    equal_length: bool


@holds_under(
    "hw4-identity",
    "question 1.3 (c)",
    says=Tokens(math.inf, equal_length=False),
    condition=(
        r"every token is the best key of exactly one token and $W_v = I$; so it is for $W_q = W_k = I$ and distinct tokens "
        "of equal length, which gives the identity",
        Tokens(math.inf, equal_length=True),
    ),
    mutant=(r"tokens of equal length at $\beta = 1$", Tokens(1.0, equal_length=True)),
)
def identity(tokens: Tokens) -> Evidence:
    r"""A large $\beta$ makes self-attention a permutation of its input.

    A large $\beta$ makes every output *one* of the values, but two outputs may be the same value. With $W_q = W_k =
    I$ the longest token is often the best key of all queries. For distinct tokens of equal length $\ell$, $x_i \cdot
    x_j < \ell^2 = x_i \cdot x_i$ for $j \ne i$ (Cauchy–Schwarz): each token picks itself, the identity. With $W_q$
    mapping token $i$ onto token $\pi(i)$, which linearly independent tokens allow, it is the permutation $\pi$.
    """
    found = Comparison()
    shown: dict[str, Tensor] = {}
    for trial in trials():
        n, d = trial.size(2, 7), trial.size(2, 5)
        x = trial.normal(n, d)
        if trial.number == 0:
            x = torch.tensor([[1.0, 0.0], [2.0, 1.0]]).double()
        x = x / x.norm(dim=-1, keepdim=True) if tokens.equal_length else x
        order = trial.order(n)
        for name, query, expected in (("identity", x, x), ("permutation", x[order], x[order])):
            if name == "permutation" and not tokens.equal_length:
                continue
            out, w = functional.attention(query, x, x, beta=tokens.beta, return_weights=True)
            shown.setdefault(name, w)
            sorted_out, sorted_in = (y[y[:, 0].argsort()] for y in (out, x))
            permuted = sorted_out if name == "identity" and not tokens.equal_length else out
            goal = sorted_in if name == "identity" and not tokens.equal_length else expected
            found.same(permuted, goal, f"tokens {show(x)}: hard self-attention gives {show(out)}")
    return found.evidence(draw=matrices("Weights", shown))


class Running(NamedTuple):
    """How attention is made to stay where it is."""

    beta: float


@fails(
    "hw4-running-linear",
    "question 1.3 (d)",
    says=Running(0.0),
    instead=(
        r"at $\beta = 0$ every output is the same mean; where each token attends to itself alone ($A = I$), it is a linear "
        r"map of each token, a convolution with kernel size 1",
        Running(math.inf),
    ),
    mutant=(r"the usual $\beta = 1/\sqrt{d}$", Running(0.5)),
)
def running_linear(running: Running) -> Evidence:
    r"""At $\beta = 0$ self-attention is a linear layer that runs over the tokens, applied at each place.

    With $A = I$ the output at token $i$ is $W_o W_v x_i$: the same linear map at every position. This is called a
    convolution with a kernel of size 1 (a $1 \times 1$ convolution, or position-wise layer). It requires that each
    token attends to itself, which a large $\beta$ achieves for distinct tokens of equal length. At $\beta = 0$ the
    weights are $1/n$ and every position gets the projection of the mean: global average pooling.
    """
    found = Comparison()
    for trial in trials():
        n, d = trial.size(2, 8), 4
        x = trial.normal(n, d)
        x = x / x.norm(dim=-1, keepdim=True)
        w_v, w_o = trial.normal(d, d), trial.normal(3, d)
        out = functional.attention(x, x, x @ w_v.mT, beta=running.beta) @ w_o.mT
        kernel = (w_o @ w_v)[:, :, None]  # (out, in, 1)
        goal = reference.convolution(x.mT[None], kernel)[0].mT
        same = bool((out - out[0]).abs().max() < 1e-9)
        found.same(
            out,
            goal,
            f"{n} tokens, β = {running.beta:g}: {'all outputs are the same' if same else 'outputs mix tokens'}",
        )
    return found.evidence()
