"""A linear map."""

from jaxtyping import Float
from torch import Tensor


def linear(
    x: Float[Tensor, "*any inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, "outputs"] | None = None,
) -> Float[Tensor, "*any outputs"]:
    r"""What ``nn.Linear`` computes.

    .. math:: y = W x + b

    >>> linear(torch.tensor([1.0, 2.0]), torch.tensor([[3.0, 4.0]]), torch.tensor([5.0]))
    tensor([16.])
    """
    return x @ weight.mT if bias is None else x @ weight.mT + bias
