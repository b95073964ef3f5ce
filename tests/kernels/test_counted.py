"""Kernels count as much as the plain path that they replace."""

import pytest

import regard
from regard.analysis import cost
from regard.models import ImageEncoder


@pytest.mark.parametrize("size", [6, 20])
def test_kernels_are_counted_as_the_passes_they_do(size, monkeypatch):
    layer = regard.GaussianAttention(18, 9)
    monkeypatch.setenv("REGARD_KERNELS", "0")
    layer.plan = "separable"
    plain = cost(layer, (2, size, size, 18))
    monkeypatch.delenv("REGARD_KERNELS")
    found = cost(layer, (2, size, size, 18))
    assert any(name.startswith("regard.") for name in found.operations)
    assert found.multiply_adds == plain.multiply_adds
    assert found.activation_bytes == plain.activation_bytes
    assert not found.uncounted


def test_nothing_of_a_network_with_kernels_is_uncounted():
    found = cost(ImageEncoder(16, 1, 3, dim=18, depth=1), (1, 3, 16, 16))
    assert any(name.startswith("regard.") for name in found.operations)
    assert not found.uncounted
