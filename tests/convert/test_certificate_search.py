"""A small part of ``benchmarks/certificates.py``, which attacks every bound in 10,000 cases."""

import importlib.util
import random
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "certificates.py"


@pytest.fixture(scope="module")
def certificates():
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        spec = importlib.util.spec_from_file_location("certificates", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        sys.modules["certificates"] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(SCRIPT.parent))
        sys.modules.pop("certificates", None)


def test_no_bound_is_broken(certificates):
    found = certificates.search(0, 37, seed=5, climbs=1)
    assert {kind: each for kind, each in found.items() if each.ratio > 1} == {}
    assert all(each.cases for each in found.values())


def test_a_bound_that_forgets_rounding_is_broken(certificates):
    """The search finds a false bound: one of the leak alone."""
    draw, broken = random.Random(0), 0
    for _ in range(20):
        target = certificates.attacked_layer(certificates.Case.draw(draw), certificates.torch.bfloat16, autocast=False)
        if target is None:
            continue
        forgetful = certificates.replace(target, bound=lambda x, target=target: target.leaked * float(x.abs().max()))
        broken += certificates.worst_ratio(forgetful, draw, climbs=0)[0] > 1
    assert broken >= 3
