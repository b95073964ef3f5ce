"""Stacked matrices take the steps that torch's own Muon takes one by one."""

import copy

import pytest
import torch

from regard.training import ImageTask, MuonSettings, ResNet18Settings
from regard.training._muon import StackedMuon, orthogonal

SHAPES = [(8, 24), (8, 24), (24, 8), (16, 16), (5, 3), (1, 7)]


@pytest.mark.parametrize(
    "options", [{}, {"nesterov": False}, {"weight_decay": 0.0}, {"adjust_lr_fn": "match_rms_adamw"}]
)
def test_steps_equal_those_of_torch(options):
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    theirs = copy.deepcopy(ours)
    start = copy.deepcopy(ours)
    optimizers = StackedMuon(ours, lr=0.05, **options), torch.optim.Muon(theirs, lr=0.05, **options)
    for _ in range(3):
        for own, other in zip(ours, theirs, strict=True):
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for own, other, before in zip(ours, theirs, start, strict=True):
        # The iteration runs in bfloat16: rounding is all that may differ.
        assert (own - other).norm() <= 0.03 * (other - before).norm()
        torch.testing.assert_close(
            optimizers[0].state[own]["momentum_buffer"], optimizers[1].state[other]["momentum_buffer"]
        )


def test_a_matrix_without_a_gradient_stays():
    idle, moving = torch.nn.Parameter(torch.ones(3, 3)), torch.nn.Parameter(torch.ones(3, 3))
    moving.grad = torch.randn(3, 3)
    StackedMuon([idle, moving]).step()
    assert (idle == 1).all()
    assert not (moving == 1).all()


def test_singular_values_come_near_one():
    matrices = torch.randn(4, 10, 30)
    values = torch.linalg.svdvals(orthogonal(matrices).float())
    assert values.min() > 0.6
    assert values.max() < 1.3


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_filters_are_stepped_as_the_matrices_they_are(layout):
    filters = torch.randn(6, 4, 3, 3).to(memory_format=layout)
    ours = torch.nn.Parameter(filters.clone(memory_format=layout))
    theirs = torch.nn.Parameter(filters.flatten(1).clone())
    optimizers = StackedMuon([ours], lr=0.05), torch.optim.Muon([theirs], lr=0.05)
    for _ in range(3):
        ours.grad = torch.randn(6, 4, 3, 3)
        theirs.grad = ours.grad.flatten(1).clone()
        for optimizer in optimizers:
            optimizer.step()
    assert not torch.equal(ours, filters)
    assert (ours.flatten(1) - theirs).norm() <= 0.03 * (theirs - filters.flatten(1)).norm()


def test_convolutions_go_to_muon_where_they_shall_but_never_depthwise_ones():
    def matrices(network, **options):
        built = MuonSettings(**options).build(network)
        return sum(len(group["params"]) for group in built[0].param_groups) if len(built) > 1 else 0

    network = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.Linear(8, 8))
    assert matrices(network) == 1
    assert matrices(network, convolutions=True) == 2
    resnet = ResNet18Settings().build(ImageTask("fashion-mini"))
    assert matrices(resnet, convolutions=True) == 19  # all but the first, whose images are gray


def test_matrices_that_keep_their_norm_take_the_step_from_there():
    weights = [torch.nn.Parameter(5 * torch.randn(shape)) for shape in SHAPES]
    optimizer = StackedMuon(weights, lr=0.0, weight_decay=0.0, keep_norm=True)
    before = [weight.detach().clone() for weight in weights]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    for weight, old in zip(weights, before, strict=True):
        torch.testing.assert_close(weight.detach(), old * weight.shape[0] ** 0.5 / old.norm())
    optimizer.param_groups[0]["lr"] = 0.1
    scaled = [weight.detach().clone() for weight in weights]
    optimizer.step()
    assert all(not torch.equal(weight, old) for weight, old in zip(weights, scaled, strict=True))


def test_a_matrix_of_zeros_that_keeps_its_norm_takes_its_step_from_zero():
    zeros = torch.nn.Parameter(torch.zeros(4, 6))
    optimizer = StackedMuon([zeros], lr=0.5, weight_decay=0.0, keep_norm=True)
    zeros.grad = torch.randn(4, 6)
    optimizer.step()
    assert 0.5 < zeros.detach().norm() < 0.5 * 4**0.5 * 1.3  # an orthogonal matrix times the rate
