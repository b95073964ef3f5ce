"""Encodings of a place: one-hot, sines, and learned tables."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from regard import layers, models, reference
from regard.claims._claim import Evidence, fails
from regard.claims._pictures import curves
from regard.claims._symbols import symbols
from regard.claims._trials import Comparison, Trial, trials


class OneHot(NamedTuple):
    """Whether training can change what positions contribute, and the width they need by the length."""

    learnable: bool
    width: Callable[[int], int]


@fails(
    "e182-one-hot",
    "question 1 (e), i",
    says=OneHot(learnable=False, width=lambda length: length),
    instead=(
        "they have no parameters of their own (neither has the sine encoding), but the layer that reads them does: its columns "
        "are a learned position table, with gradients. The width does grow with the length",
        OneHot(learnable=True, width=lambda length: length),
    ),
    mutant=("a width of half the length is enough", OneHot(learnable=True, width=lambda length: (length + 1) // 2)),
)
def one_hot(positions: OneHot) -> Evidence:
    r"""One-hot positions are not differentiable and hence cannot be learned; and their width grows with the length.

    With a linear layer after it, $W (x_t, e_t) = W_x x_t + w_t$ where $w_t$ is a column of $W$: a vector for each
    position that training adjusts like any weight. That *is* the learned position embedding, and the check finds the
    same outputs and the same gradients. Only one thing is fixed: position $t$ has its own column. The second part is
    right: $T$ different unit vectors need $T$ numbers each.
    """
    found = Comparison()
    for trial in trials(12):
        length, dim, out = trial.size(2, 7), trial.size(1, 4), trial.size(1, 4)
        x, goal = trial.normal(1, length, dim), trial.normal(1, length, out)
        places = layers.AbsolutePositionalEmbedding(dim, length, kind="one-hot", combine="concatenate")
        linear = nn.Linear(dim + length, out, bias=False).double()
        (linear(places(x)) - goal).square().sum().backward()
        gradient = linear.weight.grad if linear.weight.grad is not None else torch.zeros(out, dim + length)
        reaches = bool((gradient[:, dim:] != 0).any())
        found.true(
            reaches == positions.learnable,
            f"{length} positions: a gradient of {float(gradient[:, dim:].norm()):.2g} reaches what they contribute",
        )
        # The same as a learned table.
        table = linear.weight.detach()[:, dim:].mT.clone().requires_grad_()
        learned = x @ linear.weight.detach()[:, :dim].mT + reference.learned_positions(table, length)
        (from_table,) = torch.autograd.grad((learned - goal).square().sum(), table)
        found.same(learned, linear(places(x)), "a learned table gives other outputs")
        found.same(from_table.mT, gradient[:, dim:], "a learned table gets another gradient")
        needed = next(width for width in range(1, 2 * length) if _fits(length, width))
        found.same(needed, positions.width(length), f"{length} positions need a width of {needed}")
    return found.evidence("layers")


def _fits(length: int, width: int) -> bool:
    try:
        reference.one_hot_positions(length, width)
    except ValueError:
        return False
    return True


class Wavelengths(NamedTuple):
    """The shortest and the longest wavelength, by the width and by the number (0 or 1) from which k counts; and the ratio
    between neighbors, by the width.
    """

    shortest: Callable[[Any, int], Any]
    longest: Callable[[Any, int], Any]
    ratio: Callable[[Any], Any]


def _power(exponent: Any) -> Any:
    return symbols().Integer(10000) ** exponent


def _shortest(width: Any, first: int) -> Any:
    return _power(2 * first / width)


def _longest(width: Any, first: int) -> Any:
    return _power(1 - 2 * (1 - first) / width)


@fails(
    "e182-sine",
    "question 1 (e), ii",
    says=Wavelengths(lambda d, first: 1, lambda d, first: 10000, lambda d: _power(2 / d)),
    instead=(
        r"with $\omega_k = 10000^{-2k/d}$, $k = 1, \dots, d/2$ the wavelengths run from $2\pi \cdot 10000^{2/d}$ to "
        r"$2\pi \cdot 10000$; counted from $k = 0$, as usual, from $2\pi$ to $2\pi \cdot 10000^{1 - 2/d}$. "
        r"Both ends are reached only as $d \to \infty$",
        Wavelengths(_shortest, _longest, lambda d: _power(2 / d)),
    ),
    mutant=(
        "neighboring wavelengths differ by the factor $1 + 2/d$",
        Wavelengths(_shortest, _longest, lambda d: 1 + 2 / d),
    ),
)
def sine(wavelengths: Wavelengths) -> Evidence:
    r"""The sine encoding with $\omega_k = 10000^{-2k/d}$ has wavelengths in a geometric progression from $2\pi$ to
    $10000 \cdot 2\pi$.

    The wavelength of $\sin(\omega_k t)$ is $2\pi/\omega_k = 2\pi \cdot 10000^{2k/d}$, so neighbors differ by the
    factor $10000^{2/d}$: a geometric progression, as the source says. The $d/2$ values of $k$ span a factor of
    $10000^{1 - 2/d}$, not 10000: counted from 1 the first end is missed, counted from 0 the last. At $d = 512$ that
    is 3.7 %. (The frequency differs from entry to entry of a position's vector; it is the same at every position.)
    The check takes the ends symbolically for even $d$, and finds the frequencies in the library's table.
    """
    sympy = symbols()
    found = Comparison()
    for d in (2, 4, 8, 64, 512):
        width = sympy.Integer(d)
        for first in (1, 0):
            exact = [_power(sympy.Rational(2 * (k + first), d)) for k in range(d // 2)]
            for end, said, true in (
                ("shortest", wavelengths.shortest(width, first), exact[0]),
                ("longest", wavelengths.longest(width, first), exact[-1]),
            ):
                case = f"d = {d}, k from {first}: the {end} wavelength is 2π · {float(true):.4g}"
                found.same(float(said), float(true), case)
        for i in range(1, d // 2):
            found.same(
                float(wavelengths.ratio(width)),
                float(exact[i] / exact[i - 1]),
                f"d = {d}: neighbors differ by the factor {float(exact[i] / exact[i - 1]):.4g}",
            )
        table = layers.AbsolutePositionalEmbedding(d, kind="sinusoidal").positions(
            2, like=torch.empty((), dtype=torch.float64)
        )
        angle = torch.atan2(table[1, 0::2], table[1, 1::2])  # ω, from the sine and the cosine at t = 1
        usual = torch.tensor([10000.0 ** (-2 * k / d) for k in range(d // 2)], dtype=torch.float64)
        found.same(angle, usual, f"d = {d}: the library's frequencies")
    widths = list(range(2, 130, 2))
    series = {
        "shortest, k from 1": (widths, [10000 ** (2 / d) for d in widths]),
        "longest, k from 0": (widths, [10000 ** (1 - 2 / d) for d in widths]),
        "10000": ([2, 128], [10000, 10000]),
        "1": ([2, 128], [1, 1]),
    }
    return found.evidence(
        "wavelengths",
        draw=curves("Ends of the wavelengths, in units of 2π", "width d", "wavelength / 2π", series, log_y=True),
    )


@fails(
    "hw4-vit-position",
    "question 1.5 (c)",
    says="coordinates",
    instead=("the vision transformer adds a learned vector for each patch, from a table that is trained", "learned"),
    mutant=("it adds the sinusoids of the original Transformer", "sinusoidal"),
)
def vit_position(kind: str) -> Evidence:
    r"""The vision transformer uses a patch's position in the image itself as its positional embedding.

    Its embeddings are parameters: one vector per patch, random at first and trained with everything else. Nothing
    tells the model which patch is next to which; that is learned. The original Transformer's are fixed sinusoids. The
    check looks at the library's vision transformer (which runs timm's weights unchanged): are its position vectors an
    affine function of row and column, or sinusoids, the same in every model? Does training change them?
    """
    found = Comparison()
    tables, moved = [], []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = models.VisionTransformer(16, 4, 3, channels=1, dim=16, depth=1, heads=2)
        if model.positions is None:
            return Evidence(False, "the model has no positions")
        before = model.positions.positions().detach().clone()
        loss = model(Trial(0, seed).normal(4, 1, 16, 16).float()).square().sum()
        parameters = list(model.parameters())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True
        ):
            if gradient is not None:
                parameter.data -= 0.1 * gradient
        tables.append(before.double())
        moved.append(float((model.positions.positions() - before).detach().abs().max()))
    learned = not torch.equal(*tables) and min(moved) > 0
    place = reference.grid_coordinates((4, 4), dtype=torch.float64)
    design = torch.cat([place, torch.ones(16, 1).double()], 1)
    rest = tables[0] - design @ torch.linalg.lstsq(design, tables[0]).solution
    unexplained = float(rest.square().sum() / (tables[0] - tables[0].mean(0)).square().sum())
    sinusoids = layers.AbsolutePositionalEmbedding(16, (4, 4), kind="sinusoidal").positions().double()
    truth = {
        "coordinates": unexplained < 1e-6,
        "sinusoidal": math.isclose(float((tables[0] - sinusoids).abs().max()), 0, abs_tol=1e-5),
        "learned": learned,
    }
    explained = f"row and column explain {1 - unexplained:.0%} of it"
    case = f"a fresh 4×4 table: {explained}, and one training step changes it by up to {max(moved):.2g}"
    found.true(truth[kind], case)
    return found.evidence("models", unexplained_by_coordinates=unexplained, change_in_training=moved)
