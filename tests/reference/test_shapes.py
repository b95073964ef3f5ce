"""Signatures state shapes and dtypes; the checker that the tests run with refuses whatever differs from them."""

import os

import jaxtyping
import pytest
import torch

from regard.reference import (
    absolute_scores,
    additive_attention,
    attention,
    convolution,
    feed_forward,
    gaussian_attention,
    gelu,
    gru_cell,
    kernel_regression,
    layer_norm,
    lstm_cell,
    multi_head_attention,
    rnn_cell,
    sliced_multi_head_attention,
    softargmax,
)

ones = torch.ones
FITTING = {
    attention: {"query": ones(2, 3), "key": ones(4, 3), "value": ones(4, 2)},
    additive_attention: {
        "query": ones(2, 3),
        "key": ones(4, 5),
        "value": ones(4, 2),
        "w_query": ones(6, 3),
        "w_key": ones(6, 5),
        "w_score": ones(6),
    },
    absolute_scores: {"content": ones(3, 2), "position": ones(3, 2), "w_query": ones(5, 2), "w_key": ones(5, 2)},
    convolution: {"x": ones(1, 2, 5, 5), "weight": ones(3, 2, 3, 3), "bias": ones(3)},
    feed_forward: {"x": ones(3), "w1": ones(4, 3), "b1": None, "w2": ones(2, 4), "b2": None},
    gaussian_attention: {
        "value": ones(1, 2, 6, 3),
        "center": ones(2, 2),
        "sharpness": ones(2),
        "grid": (2, 3),
    },
    gelu: {"x": ones(3)},
    gru_cell: {"x": ones(2, 3), "hidden": ones(2, 4), "w_input": ones(12, 3), "w_hidden": ones(12, 4)},
    kernel_regression: {
        "x": ones(2, 3),
        "x_train": ones(4, 3),
        "y_train": ones(4, 1),
        "kernel": lambda a, b: (a * b).sum(-1),
    },
    layer_norm: {"x": ones(2, 4), "weight": ones(4)},
    lstm_cell: {"x": ones(2, 3), "state": (ones(2, 4), ones(2, 4)), "w_input": ones(16, 3), "w_hidden": ones(16, 4)},
    multi_head_attention: {
        "x": ones(3, 4),
        "context": ones(5, 6),
        "heads": 2,
        "w_query": ones(4, 4),
        "w_key": ones(4, 6),
        "w_value": ones(4, 6),
        "w_out": ones(7, 4),
    },
    rnn_cell: {"x": ones(2, 3), "hidden": ones(2, 4), "w_input": ones(4, 3), "w_hidden": ones(4, 4)},
    sliced_multi_head_attention: {
        "x": ones(3, 4),
        "context": ones(3, 4),
        "heads": 2,
        "w_out": ones(1, 4),
        "w_query": ones(2, 2, 2),
        "w_key": ones(2, 2, 2),
        "w_value": ones(2, 2, 2),
    },
    softargmax: {"scores": ones(4, 2)},
}
WRONG = [
    (attention, "key", ones(2, 4, 3)),
    (attention, "key", ones(4, 2)),
    (attention, "value", ones(5, 2)),
    (attention, "query", "q"),
    (additive_attention, "w_score", ones(5)),
    (absolute_scores, "position", ones(4, 2)),
    (convolution, "bias", ones(2)),
    (feed_forward, "w2", ones(2, 3)),
    (gaussian_attention, "value", ones(2, 6, 3)),
    (gelu, "x", torch.arange(3)),
    (gru_cell, "w_input", ones(4, 3)),
    (kernel_regression, "y_train", ones(3, 1)),
    (layer_norm, "weight", ones(3)),
    (lstm_cell, "state", (ones(2, 4), ones(2, 5))),
    (multi_head_attention, "w_key", ones(4, 5)),
    (multi_head_attention, "context", ones(3, 5, 6)),
    (rnn_cell, "hidden", 0.0),
    (sliced_multi_head_attention, "w_key", ones(3, 2, 2)),
    (softargmax, "scores", ones(2, dtype=torch.long)),
]


@pytest.mark.parametrize("formula", FITTING, ids=lambda formula: formula.__name__)
def test_what_fits_is_taken(formula):
    formula(**FITTING[formula])


@pytest.mark.skipif(os.environ.get("REGARD_TYPECHECK", "1") == "0", reason="signatures are not checked")
@pytest.mark.parametrize(("formula", "name", "wrong"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_what_does_not_fit_is_refused(formula, name, wrong):
    with pytest.raises(jaxtyping.TypeCheckError):
        formula(**(FITTING[formula] | {name: wrong}))
