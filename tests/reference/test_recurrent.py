"""Recurrent cells: equal to torch's, with torch's weights as they are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.reference import gru_cell, lstm_cell, rnn_cell

CELLS = {"rnn": (nn.RNNCell, rnn_cell), "gru": (nn.GRUCell, gru_cell), "lstm": (nn.LSTMCell, lstm_cell)}


@pytest.mark.parametrize("kind", CELLS)
@given(batch=st.integers(1, 3), inputs=st.integers(1, 4), width=st.integers(1, 4), bias=st.booleans())
def test_equals_torchs_cell_over_several_steps(kind, batch, inputs, width, bias):
    module, formula = CELLS[kind]
    cell = module(inputs, width, bias=bias).double()
    theirs = torch.randn(batch, width, dtype=torch.float64)
    if kind == "lstm":
        theirs = (theirs, torch.randn(batch, width, dtype=torch.float64))
    ours = theirs
    for x in torch.randn(4, batch, inputs, dtype=torch.float64):
        theirs, ours = cell(x, theirs), formula(x, ours, *cell.parameters())
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", CELLS)
def test_gradients(kind):
    module, formula = CELLS[kind]
    parameters = tuple(module(2, 3).double().parameters())
    x, hidden, memory = (torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (2, 3, 3))
    if kind == "lstm":
        assert torch.autograd.gradcheck(lambda x, h, c, *p: formula(x, (h, c), *p), (x, hidden, memory, *parameters))
    else:
        assert torch.autograd.gradcheck(formula, (x, hidden, *parameters))
