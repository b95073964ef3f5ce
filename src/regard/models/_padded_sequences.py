"""Recurrent networks on padded sequences. Padding does not change a state."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.support.checks import is_exporting

# h, or (h, c) of an LSTM, each (depth, batch, hidden)
State = Tensor | tuple[Tensor, Tensor]
_CELLS: dict[str, Any] = {"RNN_TANH": torch.rnn_tanh_cell, "GRU": torch.gru_cell, "LSTM": torch.lstm_cell}


def run_padded(
    network: nn.RNNBase, x: Float[Tensor, "batch tokens inputs"], keep: Bool[Tensor, "batch tokens"]
) -> tuple[Float[Tensor, "batch tokens hidden"], State]:
    """The outputs (zeros on padding) and the last states of a network that reads each row up to its end.

    ``keep`` is True on the first tokens of a row and False on its padding. The first token is always read.
    """
    if is_exporting():
        return unrolled(network, x, keep)
    lengths = keep.sum(1).clamp(min=1).cpu()
    packed, state = network(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])[0], state


def unrolled(
    network: nn.RNNBase, x: Float[Tensor, "batch tokens inputs"], keep: Bool[Tensor, "batch tokens"]
) -> tuple[Float[Tensor, "batch tokens hidden"], State]:
    """The same step by step, with lengths that may depend on data, so that it can be exported.

    >>> network, x = torch.nn.LSTM(3, 4, 2, batch_first=True), torch.randn(2, 5, 3)
    >>> outputs, (hidden, cell) = unrolled(network, x, torch.ones(2, 5, dtype=torch.bool))
    >>> torch.allclose(outputs, network(x)[0], atol=1e-6), cell.shape
    (True, torch.Size([2, 2, 4]))
    """
    keep = torch.cat([torch.ones_like(keep[:, :1]), keep[:, 1:]], 1)
    cell, finals = _CELLS[network.mode], []
    for layer in range(network.num_layers):
        weights = [getattr(network, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        zeros = x.new_zeros(x.shape[0], network.hidden_size)
        state = [zeros, zeros] if network.mode == "LSTM" else [zeros]
        outputs = []
        for step in range(x.shape[1]):
            new = cell(x[:, step], state if len(state) == 2 else state[0], *weights)
            here = keep[:, step, None]
            parts = new if isinstance(new, tuple) else (new,)
            state = [torch.where(here, after, before) for after, before in zip(parts, state, strict=True)]
            outputs.append(torch.where(here, state[0], 0.0))
        x = torch.stack(outputs, 1)
        if layer < network.num_layers - 1:
            x = F.dropout(x, network.dropout, network.training)
        finals.append(state)
    last = [torch.stack(parts) for parts in zip(*finals, strict=True)]
    return x, (last[0], last[1]) if len(last) == 2 else last[0]
