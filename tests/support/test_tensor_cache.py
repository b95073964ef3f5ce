"""Tensors of shapes alone: made once, and never lost to a CUDA graph."""

import pytest
import torch

from regard.support import tensor_cache
from regard.support.tensor_cache import TensorCache, constant, filled

CPU = torch.device("cpu")


@pytest.fixture
def capturing(monkeypatch):
    """As if a CUDA graph were being captured."""
    return lambda on: monkeypatch.setattr(tensor_cache, "is_captured", lambda device: on)


def test_the_same_key_is_made_once_and_the_oldest_is_forgotten():
    tensors, made = TensorCache(2), []

    def make(key):
        return tensors.get(key, CPU, lambda: made.append(key) or torch.tensor([key]))

    assert [make(key).item() for key in (1, 2, 1, 3, 2, 1)] == [1, 2, 1, 3, 2, 1]
    assert made == [1, 2, 3, 1]


def test_what_a_graph_reads_is_never_forgotten(capturing):
    tensors = TensorCache(1)
    first = tensors.get("a", CPU, lambda: torch.ones(1))
    capturing(True)
    assert tensors.get("a", CPU, lambda: torch.zeros(1)) is first
    capturing(False)
    for key in "bcd":
        tensors.get(key, CPU, lambda: torch.zeros(1))
    assert tensors.get("a", CPU, lambda: torch.zeros(1)) is first


def test_what_is_made_inside_a_graph_is_not_kept(capturing):
    tensors = TensorCache(4)
    capturing(True)
    inside = tensors.get("a", CPU, lambda: torch.ones(1))
    capturing(False)
    assert tensors.get("a", CPU, lambda: torch.ones(1)) is not inside


def test_what_inference_made_can_be_differentiated_through():
    tensors = TensorCache(4)
    with torch.inference_mode():
        tensors.get("a", CPU, lambda: torch.ones(1))
    x = torch.ones(1, requires_grad=True)
    (x * tensors.get("a", CPU, lambda: torch.ones(1))).backward()
    assert x.grad == 1


@pytest.mark.parametrize("numbers", [(3, 1, 2), ((1, 2), (3, 4)), (7,)])
@pytest.mark.parametrize("dtype", [torch.long, torch.float64])
def test_a_constant_is_the_same_with_and_without_a_copy(numbers, dtype):
    wanted = torch.tensor(numbers, dtype=dtype)
    assert filled(numbers, CPU, dtype).equal(wanted)
    assert constant(numbers, CPU, dtype).equal(wanted)
    assert constant(numbers, torch.device("meta"), dtype) is constant(numbers, torch.device("meta"), dtype)
