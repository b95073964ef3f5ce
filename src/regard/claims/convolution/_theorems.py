"""The theorems: when attention is a convolution."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import convert, figures, functional, layers, reference
from regard.claims._claim import Evidence, holds, holds_under
from regard.claims._pictures import curves
from regard.claims._shifts import SHARP, shifts
from regard.claims._symbols import proof, symbols, written
from regard.claims._trials import Comparison, Trial, full, trials


class ScoreKind(NamedTuple):
    """Scores by content with absolute positions, or by the offset alone; at this β."""

    by_offset: bool
    beta: float


@holds_under(
    "hw4-conv-from-beta",
    "question 1.3 (e)",
    says=ScoreKind(by_offset=False, beta=1.0),
    condition=(
        "the scores depend on the offset between key and query alone (a relative encoding, no content), away from the ends",
        ScoreKind(by_offset=True, beta=1.0),
    ),
    mutant=(r"the same at $\beta = \infty$, where the kernel has one tap", ScoreKind(by_offset=True, beta=math.inf)),
)
def conv_from_beta(scores: ScoreKind) -> Evidence:
    r"""A $\beta$ that is neither very large nor very small makes self-attention a convolution with a kernel larger
    than 1.

    A convolution is linear in its input and commutes with shifts. Content attention is not linear at any $\beta > 0$:
    its weights change with the input. Without positions it does commute with (cyclic) shifts, as with every
    permutation; with absolute positions it does not. If the score is a function of $k - q$ alone, the weights are the
    same for every query (away from the ends), and attention *is* a convolution, whose kernel is $\softargmax_\beta$
    of that function: one tap at $\beta = \infty$, a global mean at $\beta = 0$, and in between a kernel larger than
    1. The kernel of one head is positive and sums to one; several heads can form any kernel (a6-main-theorem).
    """
    found = Comparison()
    n, margin, dim = 41, 10, 3
    inside = slice(margin, n - margin)
    offset = reference.relative_offsets((n,), dtype=torch.float64)[..., 0]
    position = reference.sinusoidal_positions(n, dim, dtype=torch.float64)

    def attend(x: Tensor) -> Tensor:
        if scores.by_offset:
            return functional.softargmax(-(offset - 0.3).square(), scores.beta) @ x
        return functional.attention(x + position, x + position, x, beta=scores.beta)

    for trial in trials(8):
        x, y = trial.normal(n, dim), trial.normal(n, dim)
        found.same(
            attend(x + 2 * y),
            attend(x) + 2 * attend(y),
            "the output for a sum of two inputs is not the sum of their outputs",
        )
        found.same(
            attend(x.roll(1, 0))[inside],
            attend(x).roll(1, 0)[inside],
            "a shifted input does not give the shifted output",
        )
        impulse = torch.zeros(n, dim).double()
        impulse[n // 2] = 1
        kernel = attend(impulse)[:, 0].flip(0)[n // 2 - margin : n // 2 + margin + 1]
        found.true(int((kernel > 1e-12).sum()) > 1, "the kernel has a single tap")
        convolved = reference.convolution(x.mT[:, None], kernel[None, None], padding=margin)[:, 0].mT
        found.same(attend(x)[inside], convolved[inside], "it is not the convolution with its impulse response")
    lines = {}
    for beta in (0.1, 0.5, 2.0, math.inf):
        row = functional.softargmax(-(offset - 0.3).square()[n // 2], beta)
        lines[f"β = {beta:g}"] = (list(range(-margin, margin + 1)), row[n // 2 - margin : n // 2 + margin + 1].tolist())
    return found.evidence(
        "properties", draw=curves("Scores by offset: the kernel at several β", "offset key − query", "weight", lines)
    )


class OneHotHeads(NamedTuple):
    """One-hot heads at query − key = f(h), for these kernel sizes; ``flip``: head h has the kernel's weight at −f(h)."""

    kernels: tuple[int, ...]
    flip: bool


@holds_under(
    "a6-theorem-1",
    "question 1, theorem 1 and (c.2)",
    says=OneHotHeads(kernels=(1, 2, 3, 4, 5), flip=True),
    condition=(
        r"$K$ is odd and the window lies inside the image; with $f(h) = k - q$ it holds for even $K$, too",
        OneHotHeads(kernels=(1, 3, 5), flip=True),
    ),
    mutant=(
        r"$K$ odd, head $h$ with the kernel's weight at $f(h)$ itself",
        OneHotHeads(kernels=(1, 3, 5), flip=False),
    ),
)
def theorem_1(theorem: OneHotHeads) -> Evidence:
    r"""$K^2$ heads, each attending with all its weight to the one pixel with $q - k = f(h)$, where $f$ maps heads one
    to one to the shifts $\Delta_K$, give exactly the convolution $\sum_{\delta \in \Delta_K} Z_{q + \delta} W_\delta
    + b$, for odd and even $K$.

    Head $h$ reads $Z_{q - f(h)}$, so the layer is $\sum_h Z_{q - f(h)} W^{(h)} + b$: a convolution over the shifts
    $-f(h)$. With $W^{(h)} = W_{-f(h)}$ it is the given one if $-\Delta_K = \Delta_K$. That is so for odd $K$. For
    even $K$ the set runs from $-K/2$ to $K/2 - 1$, and the shift $-K/2$ has no head. With $f(h) = k - q$ head $h$
    reads $Z_{q + f(h)}$, $W^{(h)} = W_{f(h)}$, and every $K$ is fine; the check proves that part as well. At the
    border some heads find no pixel. ($W^{(h)} = W_v^{(h)} W_{out}^{(h)}$ is free to choose for $D_o \ge D_{out}$,
    with, say, $W_{out}^{(h)} = I$.)
    """
    found = Comparison()
    always = [(kernel, False, False) for kernel in (1, 2, 3, 4, 5)]  # key − query, for every K
    for trial in trials(4):
        for kernel, minus, flip in [(kernel, True, theorem.flip) for kernel in theorem.kernels] + always:
            error = _one_hot_heads(trial, kernel, query_minus_key=minus, flip=flip)
            sign = "query − key" if minus else "key − query"
            found.same(error, 0.0, f"K = {kernel}, heads at {sign}: off by {error:.2g} inside the image")
    return found.evidence("kernels")


def _one_hot_heads(trial: Trial, kernel: int, *, query_minus_key: bool, flip: bool) -> float:
    """The largest error of one-hot heads, inside the image, against the convolution of the same weights."""
    size, inputs, outputs = kernel + trial.size(2, 4), trial.size(1, 3), trial.size(1, 3)
    z = trial.normal(size * size, inputs)
    weights = {delta: trial.normal(inputs, outputs) for delta in shifts(kernel)}
    offset = reference.relative_offsets((size, size), dtype=torch.float64)  # key − query
    out = torch.zeros(size * size, outputs).double()
    for delta in shifts(kernel):
        wanted = torch.tensor(delta).double() * (-1 if query_minus_key else 1)
        attention = (offset == wanted).all(-1).double()
        tap = (-delta[0], -delta[1]) if flip else delta
        out += attention @ z @ weights.get(tap, torch.zeros(inputs, outputs).double())
    stacked = torch.stack([weights[delta] for delta in shifts(kernel)]).reshape(kernel, kernel, inputs, outputs)
    image = z.mT.reshape(1, inputs, size, size)
    pads = [(kernel // 2, (kernel - 1) // 2)] * 2
    convolved = reference.convolution(image, stacked.permute(3, 2, 0, 1), padding=pads)[0]
    inside = slice(kernel // 2, size - kernel // 2)
    return float((out.mT.reshape(outputs, size, size) - convolved)[:, inside, inside].abs().max())


class Limit(NamedTuple):
    """The limit of the weights of a row, by the squared distances of its keys from the target and the smallest of them."""

    of: Callable[[Tensor, Tensor], Tensor]


def _nearest(distance: Tensor, nearest: Tensor) -> Tensor:
    return (distance == nearest).double() / (distance == nearest).sum(-1, keepdim=True)


@holds(
    "a6-limit",
    "question 1 (d.1)",
    says=Limit(_nearest),
    mutant=(
        "the four neighbors keep a fifth each",
        Limit(lambda distance, nearest: ((distance <= nearest + 1) / 5).double()),
    ),
)
def limit(answer: Limit) -> Evidence:
    r"""As $\alpha \to \infty$ the weight tends to 1 at $\delta = \Delta$ and to 0 elsewhere, at the rate
    $e^{-\alpha}$; where no pixel is at $\Delta$, the nearest ones share.

    The constant $c$ cancels. With $r_k = \|\delta_k - \Delta\|$ the weight is $e^{-\alpha r_k^2} / \sum_j e^{-\alpha
    r_j^2}$. Divide by the largest term: if one key has $r = 0$, it is $1 / (1 + \sum_{j \ne k} e^{-\alpha r_j^2}) \to
    1$, and every other one is below $e^{-\alpha r_k^2} \le e^{-\alpha} \to 0$: equation 10. If $q - \Delta$ is
    outside the image or between pixels, the weights of the $m$ nearest pixels tend to $1/m$. The check finds the
    limits of a grid symbolically, and measures library weights against the limit and the rate.
    """
    sympy = symbols()
    alpha = sympy.Symbol("alpha", positive=True)
    squares = [a * a + b * b for a, b in product((-1, 0, 1), repeat=2)]
    total = sum(sympy.exp(-alpha * r) for r in squares)
    distance = torch.tensor([squares]).double()
    predicted = answer.of(distance, torch.zeros(1, 1).double())[0].tolist()
    found = Comparison()
    for square, guess in zip(squares, predicted, strict=True):
        exact = sympy.limit(sympy.exp(-alpha * square) / total, alpha, sympy.oo)
        found.same(float(exact), guess, f"distance² {square}: the limit is {written(exact)}")
    for trial in trials(16):
        rows, columns = 2 + trial.size(1, 5), 2 + trial.size(1, 5)
        center = torch.tensor([[trial.size(-4, 4), trial.size(-4, 4)]]).double() / 2  # on pixels, and between them
        offset = reference.relative_offsets((rows, columns), dtype=torch.float64)
        distance = (offset - center[0]).square().sum(-1)
        nearest = distance.amin(-1, keepdim=True)
        goal = answer.of(distance, nearest)
        found.same(
            functional.gaussian_weights(center, full(SHARP, 1), (rows, columns))[0],
            goal,
            f"grid {rows}×{columns}, Δ = {center[0].tolist()}",
        )
        weights = functional.gaussian_weights(center, full(3.0, 1), (rows, columns))[0]
        beyond = torch.exp(-3.0 * (distance - nearest)) * (distance > nearest)
        found.true(bool(((weights - goal).abs() <= beyond.sum(-1, keepdim=True) + 1e-12).all()), "slower than the rate")
    alphas = [1.0, 2.0, 4.0, 8.0]
    middle = [torch.tensor([4.0]).double()] * 2
    maps = [functional.gaussian_weights(torch.zeros(1, 2).double(), full(a, 1), (9, 9), queries=middle) for a in alphas]
    falling = [each[0, 0].sort(descending=True).values for each in maps]
    return found.evidence(
        "limits",
        draw=figures.limit,
        sharpness=alphas,
        weight_at_the_target=[float(row[0]) for row in falling],
        largest_weight_elsewhere=[float(row[1]) for row in falling],
        rate=[math.exp(-a) for a in alphas],
    )


@holds(
    "a6-constant",
    "question 1 (d.2)",
    says=lambda square: -square,
    mutant=(r"$c = +\|\Delta\|^2$", lambda square: square),
)
def constant(c: Callable[[Any], Any]) -> Evidence:
    r"""Equation 12, $A_{q,k} = -\alpha (\|\delta - \Delta\|^2 + c)$, holds with $c = -\|\Delta\|^2$.

    $\|\delta - \Delta\|^2 = \|\delta\|^2 - 2 \delta \cdot \Delta + \|\Delta\|^2$, and the encoding's score is
    $-\alpha (\|\delta\|^2 - 2 \delta \cdot \Delta)$: what it lacks is $\|\Delta\|^2$. The constant is the same for
    all keys, so the softmax does not see it. Proved symbolically, in one, two and three axes.
    """
    sympy = symbols()
    alpha = sympy.Symbol("alpha", positive=True)
    differences = {}
    for axes in (1, 2, 3):
        delta, center = sympy.symbols(f"delta1:{axes + 1}"), sympy.symbols(f"Delta1:{axes + 1}")
        v = -alpha * sympy.Matrix([1, *(-2 * x for x in center)])
        r = sympy.Matrix([sum(x**2 for x in delta), *delta])
        distance = sum((x - y) ** 2 for x, y in zip(delta, center, strict=True))
        differences[f"{axes} axes"] = (v.T * r)[0] + alpha * (distance + c(sum(x**2 for x in center)))
    return proof(differences)


class ImitatingHeads(NamedTuple):
    """A Gaussian layer that imitates a convolution: how many heads are missing, how wide heads are, and where it is
    compared.
    """

    missing: int
    width: Callable[[int, int], int]
    everywhere: bool


@holds_under(
    "a6-main-theorem",
    "question 1, main theorem",
    says=ImitatingHeads(missing=0, width=lambda inputs, outputs: 1, everywhere=True),
    condition=(
        r"heads are at least $\min(D_{in}, D_{out})$ wide, the window lies inside the image (or padding is attended, "
        r"too), and in the limit $\alpha \to \infty$: at a finite $\alpha$ at most $T/(1 + T)$ of the attention lies "
        r"elsewhere, per axis, $T = 2 \sum_{r \ge 1} e^{-\alpha r^2}$",
        ImitatingHeads(missing=0, width=min, everywhere=False),
    ),
    mutant=("$K^2 - 1$ heads are enough", ImitatingHeads(missing=1, width=min, everywhere=False)),
)
def main_theorem(heads: ImitatingHeads) -> Evidence:
    r"""A multi-head self-attention layer with $K^2$ heads and a relative (Gaussian) encoding can express any $K
    \times K$ convolution.

    By construction: head $h$ looks at shift $h$ of the kernel ($\Delta$ = the shift, $\alpha$ large), and $W_v^{(h)}
    W_{out}^{(h)}$ is the kernel's matrix at that shift, whose rank is at most $\min(D_{in}, D_{out})$: narrower heads
    cannot represent it. On one axis, before normalization, the target has the weight 1 and all other keys together at
    most $T$. So at most $T/(1+T)$ of the weight is on other keys. The row is then at most $2T/(1+T)$ from the one-hot
    row in $L_1$ (the weight missing at the target is on the others), and `.leak` returns that distance. The check
    builds the library's Gaussian layer that way. It also builds `conv_to_attention` for every size, stride, dilation
    and padding, whose error must stay below its own bound; sharper heads must have a smaller bound; and weights of
    the library, at many sharpnesses, must keep both bounds. At the border the nearest pixel replaces a missing one
    (a6-padding).
    """
    found = Comparison()
    for trial in trials(8):
        kernel, inputs, outputs = trial.size(1, 3), 1 + trial.size(1, 2), 1 + trial.size(1, 2)
        error = _gaussian_error(trial, kernel, inputs, outputs, heads)
        case = f"K = {kernel}, {inputs} → {outputs} channels, heads of width {heads.width(inputs, outputs)}: off by {error:.2g}"
        found.same(error, 0.0, case)
        conv = nn.Conv2d(
            inputs, outputs, kernel, trial.size(1, 2), trial.size(0, kernel - 1), trial.size(1, 2)
        ).double()
        image = trial.normal(2, inputs, 9, 10)
        bounds = []
        for tolerance in (1e-2, 1e-5, 1e-8):
            attention = convert.conv_to_attention(conv, tolerance=tolerance)
            off = float((attention(image) - conv(image)).detach().abs().max())
            bounds.append(attention.error_bound(image))
            found.true(
                off <= bounds[-1] and attention.leak <= tolerance, f"{off:.2g} is beyond the bound {bounds[-1]:.2g}"
            )
        found.true(bounds == sorted(bounds, reverse=True), "sharper heads have a larger bound")
    alphas = [0.5 + 0.25 * i for i in range(47)]
    tails = [2 * sum(math.exp(-a * r * r) for r in range(1, 30)) for a in alphas]
    elsewhere, distance = [t / (1 + t) for t in tails], [2 * t / (1 + t) for t in tails]
    for alpha, most, far in zip(alphas, elsewhere, distance, strict=True):
        row = functional.softargmax(-alpha * torch.arange(-20.0, 21.0, dtype=torch.float64).square(), 1.0)
        found.true(1 - float(row[20]) <= most + 1e-12, f"α = {alpha:g}: more than T/(1+T) lies elsewhere")
        one_hot = torch.zeros(41, dtype=torch.float64)
        one_hot[20] = 1
        found.true(float((row - one_hot).abs().sum()) <= far + 1e-12, f"α = {alpha:g}: further than 2T/(1+T) in L1")
    return found.evidence(
        "layers",
        draw=curves(
            "How far a row is from a shift, per axis, at most",
            "sharpness α",
            "",
            {"attention elsewhere, T/(1+T)": (alphas, elsewhere), "L1 distance (.leak), 2T/(1+T)": (alphas, distance)},
            log_y=True,
        ),
    )


def _gaussian_error(trial: Trial, kernel: int, inputs: int, outputs: int, heads: ImitatingHeads) -> float:
    """How far a sharp Gaussian layer with the kernel's weights is from the (zero-padded) convolution."""
    size, width, taps = kernel + 3, heads.width(inputs, outputs), kernel * kernel
    weight, bias, image = (
        trial.normal(outputs, inputs, taps),
        trial.normal(outputs),
        trial.normal(1, size, size, inputs),
    )
    layer = layers.GaussianAttention(inputs, taps, head_dim=width, out_dim=outputs, bias=True).double()
    with torch.no_grad():
        layer.positions.set(torch.tensor(shifts(kernel)).double(), full(SHARP, taps))
        if layer.value is None:
            raise TypeError("the layer has no values of its own")
        layer.value.bias.zero_()
        layer.output.bias.copy_(bias)
        for h in range(taps):
            u, s, v = torch.linalg.svd(weight[:, :, h], full_matrices=False)
            block = slice(h * width, (h + 1) * width)
            keep = h < taps - heads.missing
            layer.value.weight[block] = v[:width]
            layer.output.weight[:, block] = u[:, :width] * s[:width] * keep
        got = layer(image)[0].movedim(-1, 0)
    pads = [(kernel // 2, (kernel - 1) // 2)] * 2
    right = reference.convolution(
        image.movedim(-1, 1), weight.reshape(outputs, inputs, kernel, kernel), bias, padding=pads
    )[0]
    inside = slice(None) if heads.everywhere else slice(kernel // 2, size - kernel // 2)
    return float((got - right)[:, inside, inside].abs().max())
