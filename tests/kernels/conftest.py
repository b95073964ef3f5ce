"""Triton decides when it is imported whether kernels are interpreted, and reads their source, which run-time type checks
would have wrapped: these tests have a process of their own (``make test``)."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    reason = None
    if importlib.util.find_spec("triton") is None:
        reason = "needs Triton"
    elif torch.cuda.is_available():
        reason = "with a GPU the kernels are compiled (tests/functional/test_gpu.py)"
    elif os.environ.get("TRITON_INTERPRET") != "1" or os.environ.get("REGARD_TYPECHECK") != "0":
        reason = "run with TRITON_INTERPRET=1 REGARD_TYPECHECK=0, as make test does"
    for item in items:
        if reason is not None and item.path.parent == here:
            item.add_marker(pytest.mark.skip(reason=reason))
