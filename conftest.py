"""Doctests see torch, math and regard without importing them each time."""

import math

import pytest
import torch

import regard


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, math=math, regard=regard)
