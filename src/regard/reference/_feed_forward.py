"""The feed-forward part of a block, the same at every token, and its activations."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from regard.reference._linear import linear
from regard.support.checks import check_choice


def gelu(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    r"""x times the probability that a standard normal variable is below x.

    .. math:: \mathrm{gelu}(x) = x\,\Phi(x) = \frac x2 \Big(1 + \mathrm{erf}\frac{x}{\sqrt 2}\Big)

    >>> gelu(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """
    return x / 2 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    r"""The approximation of :func:`gelu` by a hyperbolic tangent.

    .. math:: \frac x2 \Big(1 + \tanh\big(\sqrt{2/\pi}\,(x + 0.044715\,x^3)\big)\Big)

    >>> gelu_tanh(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1588,  0.0000,  0.8412])
    """
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    r"""The positive part: :math:`\max(0, x)`.

    >>> relu(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    return torch.clamp(x, min=0)


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh}


def feed_forward(
    x: Float[Tensor, "*any dim"],
    w1: Float[Tensor, "hidden dim"],
    b1: Float[Tensor, "hidden"] | None,
    w2: Float[Tensor, "out hidden"],
    b2: Float[Tensor, "out"] | None,
    activation: str = "relu",
) -> Float[Tensor, "*any out"]:
    r"""Two linear maps with an activation between them, applied to each token separately.

    .. math:: y = W_2\, \phi(W_1 x + b_1) + b_2, \qquad \phi \in \{\mathrm{relu}, \mathrm{gelu}\}

    Args:
        w1, w2: in the layout of ``nn.Linear``, (outputs, inputs). b1, b2: their biases, or None.
        activation: ``"relu"``, ``"gelu"`` or ``"gelu_tanh"``.

    >>> feed_forward(torch.tensor([-2.0, 3.0]), torch.eye(2), None, torch.ones(1, 2), None)
    tensor([3.])
    """
    check_choice("activation", activation, tuple(ACTIVATIONS))
    phi = ACTIVATIONS[activation]
    return linear(phi(linear(x, w1, b1)), w2, b2)
