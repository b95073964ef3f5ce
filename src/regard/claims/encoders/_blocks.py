"""What a block is made of."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import figures, layers, reference
from regard.claims._claim import Evidence, holds, holds_under
from regard.claims._pictures import curves
from regard.claims._trials import Comparison, Trial, trials


@holds(
    "hw4-ffn",
    "question 1.4 (c)",
    says=lambda x, w1, b1, w2, b2: (x @ w1 + b1).clamp(min=0) @ w2 + b2,
    mutant=("the second bias inside the maximum", lambda x, w1, b1, w2, b2: ((x @ w1 + b1) @ w2 + b2).clamp(min=0)),
)
def feed_forward(formula: Callable[..., Tensor]) -> Evidence:
    r"""The feed-forward network computes $\max(0, x W_1 + b_1) W_2 + b_2$ with the same weights at every position.

    Two linear maps with a ReLU between them, applied to each token by itself. Attention averages values, so it is
    linear in the values once the weights are given; this network changes each token separately, and nonlinearly.
    (BERT has a GELU instead of the ReLU.) The check compares the library's layer with the formula, computes the
    tokens one by one, and changes one token, which must leave the others' outputs alone.
    """
    found = Comparison()
    for trial in trials(16):
        dim, hidden, n = trial.size(1, 5), trial.size(1, 9), trial.size(2, 6)
        layer = layers.FeedForward(dim, hidden, activation="relu").double()
        weights = (layer.expand.weight.mT, layer.expand.bias, layer.contract.weight.mT, layer.contract.bias)
        x = trial.normal(1, n, dim)
        out = layer(x)
        found.same(out, formula(x, *weights), f"{n} tokens of width {dim}")
        found.same(torch.stack([layer(x[:, i]) for i in range(n)], 1), out, "a position has weights of its own")
        changed = x.clone()
        changed[:, 0] += 1
        found.same(layer(changed)[:, 1:], out[:, 1:], "a token changes another's output")
    return found.evidence("layers")


@holds(
    "hw4-postnorm",
    "question 1.4 (e)",
    says="after",
    mutant=("the norm before the sub-layer, $h + f(\\text{layernorm}(h))$", "before"),
)
def post_norm(place: str) -> Evidence:
    r"""Each sub-layer of the Transformer is $h \mapsto \text{layernorm}(h + f(h))$.

    This is the order in the original: the residual is added, then the sum is normalized (post-norm). Layer norm works
    on each token separately, over its features:

    $$\text{layernorm}(x) = \frac{x - \bar{x}}{\sqrt{\frac{1}{d} \sum_i (x_i - \bar{x})^2 + \varepsilon}} \odot w + b, \qquad
    \bar{x} = \frac{1}{d} \sum_i x_i,$$

    with a learned scale $w$ and shift $b$ per feature. It keeps the scale of the features the same from layer to layer,
    whatever their sub-layers add, and needs neither a batch nor a fixed length, as batch norm would. The check takes the
    library's post-norm block apart, and torch's `nn.TransformerEncoderLayer` with the same weights. Many later models
    normalize before the sub-layer instead and leave the residual path free; that is the mutant here.
    """
    found = Comparison()
    for trial in trials(10):
        heads, n = trial.size(1, 3), trial.size(2, 6)
        dim = 2 * heads
        theirs = nn.TransformerEncoderLayer(dim, heads, 3 * dim, dropout=0.0, batch_first=True, dtype=torch.float64)
        block = layers.EncoderBlock(dim, heads, 3 * dim, activation="relu", norm="post").double()
        with torch.no_grad():
            block.attention = layers.MultiHeadAttention.from_torch(theirs.self_attn)
            for ours, other in (
                (block.feed_forward.expand, theirs.linear1),
                (block.feed_forward.contract, theirs.linear2),
            ):
                ours.load_state_dict(other.state_dict())
            for norm in (block.attention_norm, block.feed_forward_norm):  # so that a norm in another place shows
                norm.load_state_dict({"weight": trial.normal(dim), "bias": trial.normal(dim)})
            theirs.norm1.load_state_dict(block.attention_norm.state_dict())
            theirs.norm2.load_state_dict(block.feed_forward_norm.state_dict())
        x = trial.normal(2, n, dim)
        h = x
        for f, norm in ((block.attention, block.attention_norm), (block.feed_forward, block.feed_forward_norm)):
            h = norm(h + f(h)) if place == "after" else h + f(norm(h))
        found.same(block(x), h, f"a block of width {dim}")
        found.same(theirs(x), h, f"torch's block of width {dim}")
    return found.evidence("blocks")


class Updates(NamedTuple):
    """Residual updates f: random attention blocks scaled to this Lipschitz constant, and whether f(x) = −x is among
    them.
    """

    lipschitz: float
    any_update: bool
    residual: bool


@holds_under(
    "ex05-residual",
    "section 2.2",
    says=Updates(0.5, any_update=True, residual=True),
    condition=(
        r"updates do not cancel the input; it is enough that each changes less than its input does, "
        r"$\|f(x) - f(y)\| \le L \|x - y\|$ with $L < 1$",
        Updates(0.5, any_update=False, residual=True),
    ),
    mutant=("the same without the residual path", Updates(0.5, any_update=False, residual=False)),
)
def residual(updates: Updates) -> Evidence:
    r"""The residual update $x \leftarrow x + f(x)$ keeps gradients flowing and keeps the input in the representation.

    Through $l$ updates $x_l = x_0 + \sum_i f_i(x_{i-1})$: the input is a term of the result. The Jacobian of one
    update is $I + J_f$, whose smallest singular value is at least $1 - \|J_f\|$, so with $\|J_f\| \le L < 1$ a
    gradient shrinks by $(1 - L)^l$ at most, and a fixed-point iteration recovers the input from the output. Without
    the residual path a gradient shrinks at least like $L^l$. But $f(x) = -x$ is also an update, and leaves nothing.
    The check measures Jacobians of attention scaled to $L = 1/2$, and recovers inputs.
    """
    depth, found = 5, Comparison()
    smallest: list[float] = []
    for trial in trials(8):
        x = trial.normal(1, trial.size(2, 4), 2 * trial.size(1, 2))
        functions: list[Callable[[Tensor], Tensor]] = [*_updates(trial, x, depth, updates.lipschitz, updates.residual)]
        if updates.any_update and trial.number == 0:
            functions[0] = torch.neg
        smallest.append(_smallest_singular_value(functions, x, updates.residual))
        if smallest[-1] == 0:
            case = "with the update −x nothing is left: the output is 0, and so is its gradient"
        else:
            case = f"{depth} updates: some gradient shrinks to {smallest[-1]:.1g} of its size"
        found.true(smallest[-1] >= (1 - updates.lipschitz) ** depth * 0.999, case)
        back = _run(functions, x, updates.residual)
        for f in reversed(functions):
            target = back
            for _ in range(60):  # y + f(y) = target
                back = target - f(back)
        found.true(float((back - x).abs().max()) < 1e-6, "the input cannot be got back from the output")
    series = {
        "with the residual path, at least": (list(range(13)), [(1 - updates.lipschitz) ** i for i in range(13)]),
        "without, at most": (list(range(13)), [updates.lipschitz**i for i in range(13)]),
    }
    return found.evidence(
        "stacks",
        smallest_singular_value=min(smallest),
        draw=curves("What is left of a gradient, L = ½", "updates", "factor", series, log_y=True),
    )


def _run(functions: list[Callable[[Tensor], Tensor]], x: Tensor, residual: bool) -> Tensor:
    for f in functions:
        x = x + f(x) if residual else f(x)
    return x


def _smallest_singular_value(functions: list[Callable[[Tensor], Tensor]], x: Tensor, residual: bool) -> float:
    """Of the Jacobian of all updates together: what is left, at least, of a gradient."""
    jacobian = torch.autograd.functional.jacobian(lambda y: _run(functions, y, residual), x)
    return float(torch.linalg.svdvals(jacobian.reshape(x.numel(), x.numel()))[-1])


def _updates(trial: Trial, x: Tensor, depth: int, lipschitz: float, residual: bool) -> list[nn.Module]:
    """Attention layers, each scaled so that its Jacobian at the point that reaches it has this norm."""
    functions: list[nn.Module] = []
    for _ in range(depth):
        layer = layers.MultiHeadAttention(x.shape[-1], 1, bias=False).double()
        jacobian = torch.autograd.functional.jacobian(layer, x).reshape(x.numel(), x.numel())
        with torch.no_grad():
            layer.output.weight.mul_(lipschitz / torch.linalg.matrix_norm(jacobian, 2))
            x = x + layer(x) if residual else layer(x)
        functions.append(layer.requires_grad_(False))
    return functions


class Gap(NamedTuple):
    """The two forms differ by at most ``largest``, and somewhere by at least ``somewhere``."""

    somewhere: float
    largest: float


@holds(
    "a6-gelu",
    "question 2 (b)",
    says=Gap(4.7e-4, 4.8e-4),
    mutant=("they are never more than 0.0001 apart", Gap(0.0, 1e-4)),
)
def gelu(gap: Gap) -> Evidence:
    r"""The exact GELU $x \Phi(x)$ and its tanh form $\frac{x}{2} (1 + \tanh(\sqrt{2/\pi} (x + 0.044715 x^3)))$ differ
    by at most 0.00048, and by 0.00047 near $|x| = 2.7$.

    $\operatorname{gelu}(x) - x/2 = \frac{x}{2} \erf(x/\sqrt{2})$ is even, a product of two odd functions, and so is the
    tanh form less $x/2$; the gap is their difference, so it is even and $x \ge 0$ is enough. On a grid of step $h$
    the largest gap between its points is at most the largest one on it plus $h/2$ times the largest slope, and the
    slope of the gap is below 2 (each form's lies between −0.2 and 1.2). Beyond $|x| = 8$ both equal $\max(0, x)$ to ten
    digits. The check bounds the gap that way, and compares the library's activations.
    """
    step = 4e-6
    x = torch.arange(0, 8 + step, step, dtype=torch.float64)
    distance = (reference.gelu(x) - reference.gelu_tanh(x)).abs()
    top, at = float(distance.max()), float(x[int(distance.argmax())])
    bound = top + step / 2 * 2
    far = torch.tensor([-40.0, -8.0, 8.0, 40.0], dtype=torch.float64)
    tails = max(float((form(far) - far.clamp(min=0)).abs().max()) for form in (reference.gelu, reference.gelu_tanh))
    found = Comparison()
    found.true(bound <= gap.largest, f"at |x| = {at:.2f} they are {top:.6f} apart")
    found.true(top >= gap.somewhere, f"they are at most {bound:.6f} apart")
    found.same(tails, 0.0, "beyond |x| = 8 they differ from ReLU")
    for name, form in (("gelu", reference.gelu), ("gelu_tanh", reference.gelu_tanh)):
        layer = layers.FeedForward(1, 1, activation=name, bias=False).double()
        with torch.no_grad():
            layer.expand.weight.fill_(1)
            layer.contract.weight.fill_(1)
        some = x[::1000, None]
        found.same(layer(some), form(some), f"the library's {name}")
    return found.evidence("comparisons", largest_gap=top, at=at, proved_bound=bound, draw=figures.gelu)
