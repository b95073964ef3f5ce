"""GELU: exact, approximated by tanh, and the difference of the two."""

import math

import torch

from regard.figures.style import COLORS, GRAY, Figure, PathArgument, finish, new_figure, tidy
from regard.reference import gelu as exact_gelu
from regard.reference import gelu_tanh
from regard.support.checks import describe


def gelu(low: int | float = -5.0, high: int | float = 5.0, *, path: PathArgument = None) -> Figure:
    r"""Both forms of GELU beside ReLU, and their difference.

    .. math:: \mathrm{gelu}(x) = \frac x2 \Big(1 + \mathrm{erf}\frac{x}{\sqrt 2}\Big) \approx
        \frac x2 \Big(1 + \tanh\big(\sqrt{2/\pi}\,(x + 0.044715\,x^3)\big)\Big)

    Args:
        low, high: the range of x.
        path: where to save the figure.

    >>> figure = regard.figures.gelu()
    >>> figure.axes[1].get_title()
    'tanh form − exact form: at most 4.7e-04 apart'
    """
    for name, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise TypeError(f"{name} must be a finite number, got {describe(value)}")
    if not low < high:
        raise ValueError(f"low must be below high, got low={low} and high={high}")
    x = torch.linspace(float(low), float(high), 1001, dtype=torch.float64)
    exact, approximate = exact_gelu(x), gelu_tanh(x)
    gap = approximate - exact

    figure, (left, right) = new_figure(1, 2, width=5.0, height=3.8)
    left.plot(x.tolist(), x.clamp(min=0).tolist(), color=GRAY, linewidth=1, linestyle=":", label="ReLU")
    left.plot(x.tolist(), exact.tolist(), color=COLORS[0], linewidth=2.5, label="exact (erf)")
    left.plot(x.tolist(), approximate.tolist(), color=COLORS[1], linewidth=1.5, linestyle="--", label="tanh form")
    left.legend(fontsize=9, frameon=False)
    tidy(left, title="GELU: the two forms coincide", x="x", y="gelu(x)")
    right.axhline(0, color=GRAY, linewidth=0.6)
    right.plot(x.tolist(), gap.tolist(), color=COLORS[2], linewidth=1.8)
    worst = int(gap.abs().argmax())
    right.plot([float(x[worst])], [float(gap[worst])], "o", color=COLORS[2], markersize=5)
    right.annotate(
        f"x = {float(x[worst]):.2f}",
        (float(x[worst]), float(gap[worst])),
        xytext=(8, 0),
        textcoords="offset points",
        fontsize=8,
        va="center",
    )
    tidy(right, title=f"tanh form − exact form: at most {float(gap[worst].abs()):.1e} apart", x="x", y="difference")
    right.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    return finish(figure, path)
