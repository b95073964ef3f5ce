"""Large tensors on a CPU lie in huge pages, so that their first write causes few page faults."""

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from regard import gaussian_attention
from regard.support import huge_pages

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
OFFERED = SETTING.exists() and "[never]" not in SETTING.read_text()
needs_huge_pages = pytest.mark.skipif(not OFFERED, reason="the system offers no huge pages")


def page_faults(call: Callable[[], object]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def pages(tensor_bytes: int) -> int:
    return tensor_bytes // resource.getpagesize()


@needs_huge_pages
def test_a_large_tensor_has_few_page_faults():
    like = torch.zeros(1)
    assert page_faults(lambda: huge_pages.empty(2**24, like=like).zero_()) < pages(2**26) // 4


@needs_huge_pages
def test_large_results_and_gradients_of_gaussian_heads_lie_in_huge_pages():
    value = torch.randn(1, 9, 128 * 128, 64, requires_grad=True)
    center, sharpness = torch.zeros(9, 2, requires_grad=True), torch.full((9,), 4.0, requires_grad=True)
    above = torch.ones_like(value)

    def step():
        out = gaussian_attention(value, center, sharpness, (128, 128))
        torch.autograd.grad(out, (value, center, sharpness), above)

    step()
    assert value.nbytes > huge_pages.LARGE
    assert page_faults(step) < pages(value.nbytes) // 2  # in small pages: all of the result and of the gradient


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_small_tensor_is_an_ordinary_one(dtype):
    made = huge_pages.empty(2, 0, 3, like=torch.zeros(1, dtype=dtype))
    assert made.shape == (2, 0, 3)
    assert made.dtype == dtype


def test_systems_without_huge_pages_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    huge_pages._madvise.cache_clear()
    try:
        assert not huge_pages.prefer_huge_pages(2**20, 2**20)
        assert huge_pages.empty(2**23 + 1, like=torch.zeros(1)).fill_(2.0)[-1] == 2.0
    finally:
        huge_pages._madvise.cache_clear()


def test_a_range_within_one_page_is_left_alone():
    assert not huge_pages.prefer_huge_pages(2**20 + 1, 100)
