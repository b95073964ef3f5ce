"""A linear layer with a block-diagonal weight, stored without the zeros."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.support.checks import check_dtype, check_flag, check_positive, check_width


class BlockLinear(nn.Module):
    r"""Each block of the input has its own linear map to its own block of the output.

    .. math:: y_b = W_b\, x_b + c_b, \qquad x = (x_1, \dots, x_B), \quad y = (y_1, \dots, y_B)

    It equals a linear layer with the weight :math:`\mathrm{diag}(W_1, \dots, W_B)`, with 1/B of its numbers and of its
    multiplications.

    Args:
        in_features, out_features: widths of x and y; ``blocks`` divides both.
        blocks: B.
        bias: whether there is a bias c.

    ``weight`` is ``(blocks, out_features / blocks, in_features / blocks)``, ``bias`` is
    ``(blocks, out_features / blocks)``.

    >>> from regard.layers import BlockLinear
    >>> layer = BlockLinear(6, 4, blocks=2)
    >>> x = torch.randn(5, 6)
    >>> torch.allclose(layer(x), x @ torch.block_diag(*layer.weight).T + layer.bias.flatten())
    True
    """

    def __init__(self, in_features: int, out_features: int, blocks: int, *, bias: bool = True) -> None:
        check_flag("bias", bias)
        super().__init__()
        for name, size in (("blocks", blocks), ("in_features", in_features), ("out_features", out_features)):
            check_positive(name, size)
            if size % blocks:
                raise ValueError(f"{name} is {size}, but must be divisible by blocks, {blocks}")
        self.in_features, self.out_features, self.blocks = in_features, out_features, blocks
        self.weight = nn.Parameter(torch.empty(blocks, out_features // blocks, in_features // blocks))
        self.bias = nn.Parameter(torch.empty(blocks, out_features // blocks)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize as ``nn.Linear`` does, with the width of a block."""
        bound = 1 / math.sqrt(self.weight.shape[-1])
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Float[Tensor, "*batch in_features"]) -> Float[Tensor, "*batch out_features"]:
        check_width("x", x, self.in_features)
        check_dtype("x", x, self.weight)
        return block_product(x, self.weight, self.bias).flatten(-2)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, blocks={self.blocks}, "
            f"bias={self.bias is not None}"
        )


def block_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product as ``(*batch, blocks, out / blocks)``, a view of its block-major layout."""
    blocks = weight.shape[0]
    split = x.reshape(-1, blocks, weight.shape[-1]).transpose(0, 1)  # (blocks, rows, in / blocks)
    if bias is None:
        out = torch.bmm(split, weight.mT)
    else:
        out = torch.baddbmm(bias[:, None], split, weight.mT)
    return out.transpose(0, 1).reshape(*x.shape[:-1], blocks, weight.shape[1])
