"""Depthwise convolution in the place of attention: the baseline for positional heads."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from regard.layers import flat_tokens, like_input
from regard.support.checks import check_flag, check_positive


class DepthwiseMixing(nn.Module):
    r"""Mix each channel of a token with those of its neighbors, between the linear layers that attention has.

    .. math:: \mathrm{out} = \mathrm{concat}_h(K_h * V_h)\, W_o + b_o

    where head h has a k × k kernel for each of its channels, instead of one center and sharpness for all of them. With
    ``full_width`` every head convolves the whole input, as in :class:`regard.GaussianAttention`.

    Args:
        dim: width of the input and output.
        heads: number of heads of the attention that this replaces.
        head_dim: width of each head, ``dim / heads`` by default.
        full_width: every head reads the whole input.
        kernel: k, odd.

    >>> from regard.models._depthwise import DepthwiseMixing
    >>> DepthwiseMixing(12, heads=9, full_width=True)(torch.randn(2, 8, 5, 12)).shape
    torch.Size([2, 8, 5, 12])
    """

    attends = False  # in a model it is named "attention", but regard.capture must not expect a map from it

    def __init__(
        self, dim: int, heads: int, *, head_dim: int | None = None, full_width: bool = False, kernel: int = 3
    ) -> None:
        check_flag("full_width", full_width)
        super().__init__()
        check_positive("dim", dim)
        check_positive("heads", heads)
        check_positive("kernel", kernel)
        if kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {kernel}")
        if head_dim is None:
            if not full_width and dim % heads:
                raise ValueError(f"dim {dim} is not divisible by heads {heads}; pass head_dim, or full_width=True")
            head_dim = dim if full_width else dim // heads
        self.dim, self.heads, self.head_dim = dim, heads, head_dim
        self.value = None if full_width else nn.Linear(dim, heads * head_dim)
        self.mixing = nn.Conv2d(
            heads * head_dim, heads * head_dim, kernel, padding=kernel // 2, groups=heads * head_dim, bias=False
        )
        self.output = nn.Linear(heads * head_dim, dim)

    def forward(self, x: Float[Tensor, "batch *tokens dim"], grid: Sequence[int] | None = None) -> Tensor:
        """``(batch, rows, columns, dim)``, or ``(batch, tokens, dim)`` with ``grid``, in and out."""
        tokens, grid = flat_tokens(x, grid, 2, self.dim)
        # Libraries are slow if a channel has several kernels, so each kernel gets a copy of its channel.
        value = tokens.repeat_interleave(self.heads, -1) if self.value is None else self.value(tokens)
        image = value.unflatten(1, grid).permute(0, 3, 1, 2)  # channels last in memory, which is fast in cuDNN
        mixed = self.mixing(image).permute(0, 2, 3, 1).flatten(1, 2)
        return like_input(self.output(mixed), x, grid)
