"""The position-wise feed-forward network."""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.support.checks import check_choice, check_dtype, check_flag, check_positive, check_probability, check_width


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}


class FeedForward(nn.Module):
    r"""Two linear maps with a non-linearity between them, the same at every position.

    .. math:: y = \phi(x W_1 + b_1)\, W_2 + b_2

    Args:
        dim: width of x and of y.
        hidden: width between the two maps, default ``4 · dim``.
        activation: φ, ``"gelu"`` (exact), ``"gelu_tanh"``, ``"relu"`` or ``"silu"``.
        dropout: probability of dropping a hidden feature in training.
        bias: whether there are biases b₁ and b₂.

    ``expand`` holds W₁, ``contract`` holds W₂. Shapes: ``(..., dim)`` to ``(..., dim)``.

    >>> from regard.layers import FeedForward
    >>> FeedForward(8, 32)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        *,
        activation: str = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        check_flag("bias", bias)
        super().__init__()
        check_positive("dim", dim)
        hidden = 4 * dim if hidden is None else hidden
        check_positive("hidden", hidden)
        check_choice("activation", activation, tuple(ACTIVATIONS))
        check_probability("dropout", dropout)
        self.dim, self.hidden, self.activation, self.dropout = dim, hidden, activation, dropout
        self.expand = nn.Linear(dim, hidden, bias=bias)
        self.contract = nn.Linear(hidden, dim, bias=bias)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        check_width("x", x, self.dim)
        check_dtype("x", x, self.expand.weight)
        hidden = ACTIVATIONS[self.activation](self.expand(x))
        return self.contract(F.dropout(hidden, self.dropout, self.training))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, hidden={self.hidden}, activation={self.activation!r}, dropout={self.dropout}"
