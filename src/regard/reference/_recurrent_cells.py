"""Recurrent cells: one step of a plain RNN, a GRU and an LSTM, with torch's weights and order of gates."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.reference._linear import linear


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
    return torch.tanh(linear(x, w_input, b_input) + linear(hidden, w_hidden, b_hidden))


def gru_cell(
    x: Float[Tensor, "*batch inputs"],
    hidden: Float[Tensor, "*batch width"],
    w_input: Float[Tensor, "3*width inputs"],
    w_hidden: Float[Tensor, "3*width width"],
    b_input: Float[Tensor, "3*width"] | None = None,
    b_hidden: Float[Tensor, "3*width"] | None = None,
) -> Float[Tensor, "*batch width"]:
    r"""One step of a gated recurrent unit; the rows of the weights are (reset, update, new).

    .. math:: r &= \sigma(W_{xr} x + b_{xr} + W_{hr} h + b_{hr}) \\
              z &= \sigma(W_{xz} x + b_{xz} + W_{hz} h + b_{hz}) \\
              n &= \tanh(W_{xn} x + b_{xn} + r \odot (W_{hn} h + b_{hn})) \\
              h' &= (1 - z) \odot n + z \odot h

    >>> gru_cell(torch.ones(1), torch.tensor([4.0]), torch.zeros(3, 1), torch.zeros(3, 1))  # half of the old state
    tensor([2.])
    """
    reset_x, update_x, new_x = linear(x, w_input, b_input).chunk(3, -1)
    reset_h, update_h, new_h = linear(hidden, w_hidden, b_hidden).chunk(3, -1)
    reset = torch.sigmoid(reset_x + reset_h)
    update = torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + reset * new_h)
    return (1 - update) * new + update * hidden


def lstm_cell(
    x: Float[Tensor, "*batch inputs"],
    state: tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch width"]],
    w_input: Float[Tensor, "4*width inputs"],
    w_hidden: Float[Tensor, "4*width width"],
    b_input: Float[Tensor, "4*width"] | None = None,
    b_hidden: Float[Tensor, "4*width"] | None = None,
) -> tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch width"]]:
    r"""One step of long short-term memory; the rows of the weights are (input, forget, new, output).

    .. math:: i &= \sigma(W_{xi} x + b_{xi} + W_{hi} h + b_{hi}) \\
              f &= \sigma(W_{xf} x + b_{xf} + W_{hf} h + b_{hf}) \\
              g &= \tanh(W_{xg} x + b_{xg} + W_{hg} h + b_{hg}) \\
              o &= \sigma(W_{xo} x + b_{xo} + W_{ho} h + b_{ho}) \\
              c' &= f \odot c + i \odot g, \qquad h' = o \odot \tanh(c')

    ``state`` is (h, c). Returns the new (h, c).

    >>> state = torch.zeros(1), torch.tensor([4.0])
    >>> hidden, cell = lstm_cell(torch.ones(1), state, torch.zeros(4, 1), torch.zeros(4, 1))
    >>> cell  # half of what was remembered
    tensor([2.])
    """
    hidden, cell = state
    gates = linear(x, w_input, b_input) + linear(hidden, w_hidden, b_hidden)
    write, forget, new, output = gates.chunk(4, -1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(write) * torch.tanh(new)
    return torch.sigmoid(output) * torch.tanh(cell), cell
