"""The two facts about a row of weights that bounds rest on: how far it is from its kernel, and how it is rounded."""

import math

import pytest
import torch

from regard.convert._bounds import FLOAT32, Arithmetic, MapRow
from regard.convert._kernels import head_kernels
from regard.functional import axis_matrix, gaussian_weights

PLAIN = Arithmetic(torch.float32, FLOAT32, FLOAT32, lowered=False)


def added_in_order(row, value):
    """The weighted sum of equal values in float32, one after the other: the order that rounds most."""
    total = torch.zeros(())
    for term in (row * value).unbind():
        total = total + term
    return total.item() / value


def rounding_of(alpha, center, size=4001):
    """The error of a row in float32 in L1, and of a weighted sum over it, each relative to the row's sum."""
    target, sharpness = torch.tensor([[size // 2 + center]]), torch.tensor([alpha])
    exact = axis_matrix(target.double(), sharpness.double(), size)[0, 0]
    found = axis_matrix(target, sharpness, size)[0, 0]
    summed = max(abs(added_in_order(found, value) - 1) for value in (1.1, 0.7))
    return (found.double() - exact).abs().sum().item(), summed


@pytest.mark.parametrize("center", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("alpha", [1e-5, 1e-3, 0.1, 1.0, 5.0, 16.0])
def test_rows_and_their_sums_round_within_their_bounds(alpha, center):
    row = MapRow.along_axis(center, torch.tensor(alpha).item())
    of_row, of_sum = rounding_of(alpha, center)
    assert of_row <= math.expm1(PLAIN.weights(row))
    assert of_sum <= math.expm1(PLAIN.mix(row))


def test_bounds_without_a_term_are_too_small(monkeypatch):
    """A soft row has thousands of weights, each of which is rounded, and so is each sum."""
    row = MapRow.along_axis(0.0, 1e-5)
    of_row, of_sum = rounding_of(1e-5, 0.0)
    assert of_row > 2 * FLOAT32
    monkeypatch.setattr(Arithmetic, "matter", lambda self, row: 0.0)
    assert of_sum > math.expm1(PLAIN.mix(row))


@pytest.mark.parametrize("tolerance", [0.5, 1e-2, 1e-5])
@pytest.mark.parametrize("center", [0.0, 0.3, -0.5])
@pytest.mark.parametrize("alpha", [0.02, 0.3, 2.0])
def test_leak_counts_all_weight_outside_the_kernel(alpha, center, tolerance):
    """Also that of keys beyond those whose weights are computed. One axis has no slack: the kernel's distance is its leak."""
    place, sharpness, middle = torch.tensor([[center]]).double(), torch.tensor([alpha]).double(), 500
    (kernel,) = head_kernels(place, sharpness, tolerance)
    row = axis_matrix(place + middle, sharpness, 2 * middle + 1)[0, 0]
    row[middle + kernel.start[0] : middle + kernel.stop[0]] -= kernel.taps
    distance = row.abs().sum().item()
    assert distance - 1e-15 <= kernel.leak <= min(tolerance, (1 + 1e-3) * distance + 1e-15)


@pytest.mark.parametrize("tolerance", [0.5, 1e-2])
def test_leak_of_a_full_matrix_counts_all_weight_outside_the_kernel(tolerance):
    place, middle = torch.tensor([[0.3, -0.4]]).double(), 30
    sharpness = torch.tensor([[[0.2, 0.05], [0.05, 0.1]]]).double()
    (kernel,) = head_kernels(place, sharpness, tolerance)
    size = 2 * middle + 1
    queries = [torch.tensor([float(middle)]).double()] * 2
    row = gaussian_weights(place, sharpness, (size, size), queries=queries).reshape(size, size).clone()
    row[tuple(slice(middle + low, middle + high) for low, high in zip(kernel.start, kernel.stop, strict=True))] -= (
        kernel.taps
    )
    assert row.abs().sum().item() <= kernel.leak <= tolerance
