"""Recurrent cells: one step of a plain RNN, a GRU and an LSTM, with torch's weights and order of gates."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.support.checks import check_shapes


def rnn_cell(
    x: Float[Tensor, "*batch inputs"],
    hidden: Float[Tensor, "*batch width"],
    w_input: Float[Tensor, "width inputs"],
    w_hidden: Float[Tensor, "width width"],
    b_input: Float[Tensor, "width"] | None = None,
    b_hidden: Float[Tensor, "width"] | None = None,
) -> Float[Tensor, "*batch width"]:
    r"""One step of a plain recurrent network.

    .. math:: h' = \tanh(W_x x + b_x + W_h h + b_h)

    >>> rnn_cell(torch.ones(1), torch.zeros(2), torch.zeros(2, 1), torch.eye(2))
    tensor([0., 0.])
    """
    from_input, from_hidden = _parts(x, hidden, w_input, w_hidden, b_input, b_hidden, gates=1)
    return torch.tanh(from_input[0] + from_hidden[0])


def gru_cell(
    x: Float[Tensor, "*batch inputs"],
    hidden: Float[Tensor, "*batch width"],
    w_input: Float[Tensor, "three_widths inputs"],
    w_hidden: Float[Tensor, "three_widths width"],
    b_input: Float[Tensor, "three_widths"] | None = None,
    b_hidden: Float[Tensor, "three_widths"] | None = None,
) -> Float[Tensor, "*batch width"]:
    r"""One step of a gated recurrent unit; the rows of the weights are (reset, update, new).

    .. math:: r &= \sigma(W_{xr} x + b_{xr} + W_{hr} h + b_{hr}) \\
              z &= \sigma(W_{xz} x + b_{xz} + W_{hz} h + b_{hz}) \\
              n &= \tanh(W_{xn} x + b_{xn} + r \odot (W_{hn} h + b_{hn})) \\
              h' &= (1 - z) \odot n + z \odot h

    >>> gru_cell(torch.ones(1), torch.tensor([4.0]), torch.zeros(3, 1), torch.zeros(3, 1))  # half of the old state
    tensor([2.])
    """
    from_input, from_hidden = _parts(x, hidden, w_input, w_hidden, b_input, b_hidden, gates=3)
    reset = torch.sigmoid(from_input[0] + from_hidden[0])
    update = torch.sigmoid(from_input[1] + from_hidden[1])
    new = torch.tanh(from_input[2] + reset * from_hidden[2])
    return (1 - update) * new + update * hidden


def lstm_cell(
    x: Float[Tensor, "*batch inputs"],
    state: tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch width"]],
    w_input: Float[Tensor, "four_widths inputs"],
    w_hidden: Float[Tensor, "four_widths width"],
    b_input: Float[Tensor, "four_widths"] | None = None,
    b_hidden: Float[Tensor, "four_widths"] | None = None,
) -> tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch width"]]:
    r"""One step of long short-term memory; the rows of the weights are (input, forget, new, output).

    .. math:: i &= \sigma(W_{xi} x + b_{xi} + W_{hi} h + b_{hi}) \\
              f &= \sigma(W_{xf} x + b_{xf} + W_{hf} h + b_{hf}) \\
              g &= \tanh(W_{xg} x + b_{xg} + W_{hg} h + b_{hg}) \\
              o &= \sigma(W_{xo} x + b_{xo} + W_{ho} h + b_{ho}) \\
              c' &= f \odot c + i \odot g, \qquad h' = o \odot \tanh(c')

    ``state`` is (h, c), and so is what is returned.

    >>> state = torch.zeros(1), torch.tensor([4.0])
    >>> hidden, cell = lstm_cell(torch.ones(1), state, torch.zeros(4, 1), torch.zeros(4, 1))
    >>> cell  # half of what was remembered
    tensor([2.])
    """
    hidden, cell = state
    check_shapes(x=(x, "... inputs"), hidden=(hidden, "... width"), cell=(cell, "... width"))
    from_input, from_hidden = _parts(x, hidden, w_input, w_hidden, b_input, b_hidden, gates=4)
    write = torch.sigmoid(from_input[0] + from_hidden[0])
    forget = torch.sigmoid(from_input[1] + from_hidden[1])
    new = torch.tanh(from_input[2] + from_hidden[2])
    output = torch.sigmoid(from_input[3] + from_hidden[3])
    cell = forget * cell + write * new
    return output * torch.tanh(cell), cell


def _parts(
    x: Tensor,
    hidden: Tensor,
    w_input: Tensor,
    w_hidden: Tensor,
    b_input: Tensor | None,
    b_hidden: Tensor | None,
    *,
    gates: int,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Wx + b of the input and of the hidden state, one part per gate."""
    sizes = check_shapes(
        x=(x, "... inputs"),
        hidden=(hidden, "... width"),
        w_input=(w_input, "rows inputs"),
        w_hidden=(w_hidden, "rows width"),
        b_input=(b_input, "rows"),
        b_hidden=(b_hidden, "rows"),
    )
    if sizes["rows"] != gates * sizes["width"]:
        raise ValueError(
            f"w_input has {sizes['rows']} rows, but {gates} gate(s) of width {sizes['width']} (hidden's) need "
            f"{gates * sizes['width']}"
        )
    from_input = x @ w_input.mT if b_input is None else x @ w_input.mT + b_input
    from_hidden = hidden @ w_hidden.mT if b_hidden is None else hidden @ w_hidden.mT + b_hidden
    return from_input.chunk(gates, -1), from_hidden.chunk(gates, -1)
