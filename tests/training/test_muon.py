"""Stacked matrices take the steps that torch's own Muon takes one by one."""

import copy

import pytest
import torch

from regard.training._muon import StackedMuon, orthogonal

SHAPES = [(8, 24), (8, 24), (24, 8), (16, 16), (5, 3), (1, 7)]


@pytest.mark.parametrize(
    "options", [{}, {"nesterov": False}, {"weight_decay": 0.0}, {"adjust_lr_fn": "match_rms_adamw"}]
)
def test_steps_equal_those_of_torch(options):
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    theirs = copy.deepcopy(ours)
    start = copy.deepcopy(ours)
    optimisers = StackedMuon(ours, lr=0.05, **options), torch.optim.Muon(theirs, lr=0.05, **options)
    for _ in range(3):
        for own, other in zip(ours, theirs, strict=True):
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        for optimiser in optimisers:
            optimiser.step()
    for own, other, before in zip(ours, theirs, start, strict=True):
        # The iteration runs in bfloat16: rounding is all that may differ.
        assert (own - other).norm() <= 0.03 * (other - before).norm()
        torch.testing.assert_close(
            optimisers[0].state[own]["momentum_buffer"], optimisers[1].state[other]["momentum_buffer"]
        )


def test_a_matrix_without_a_gradient_stays():
    idle, moving = torch.nn.Parameter(torch.ones(3, 3)), torch.nn.Parameter(torch.ones(3, 3))
    moving.grad = torch.randn(3, 3)
    StackedMuon([idle, moving]).step()
    assert (idle == 1).all()
    assert not (moving == 1).all()


def test_singular_values_come_near_one():
    matrices = torch.randn(4, 10, 30)
    values = torch.linalg.svdvals(orthogonal(matrices, (3.4445, -4.7750, 2.0315), 5, 1e-7).float())
    assert values.min() > 0.6
    assert values.max() < 1.3
