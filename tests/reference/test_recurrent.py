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


@pytest.mark.usefixtures("user_errors")
def test_bad_input_is_named():
    x, hidden = torch.ones(2, 3), torch.ones(2, 4)
    with pytest.raises(ValueError, match=r"w_input has shape \(4, 5\).*inputs = 3, as in x"):
        rnn_cell(x, hidden, torch.ones(4, 5), torch.ones(4, 4))
    with pytest.raises(ValueError, match=r"w_input has 4 rows, but 3 gate\(s\) of width 4 .* need 12"):
        gru_cell(x, hidden, torch.ones(4, 3), torch.ones(4, 4))
    with pytest.raises(ValueError, match=r"cell has shape \(2, 5\).*width = 4, as in hidden"):
        lstm_cell(x, (hidden, torch.ones(2, 5)), torch.ones(16, 3), torch.ones(16, 4))
    with pytest.raises(TypeError, match="hidden must be a tensor"):
        rnn_cell(x, 0.0, torch.ones(4, 3), torch.ones(4, 4))
