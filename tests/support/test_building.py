"""Networks that are described and not made."""

import subprocess
import sys

import torch
from torch import nn

from regard.support.building import shapes_only


def test_nothing_is_allocated_and_nothing_is_drawn():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with shapes_only():
        network = nn.Sequential(nn.Embedding(10**9, 1000), nn.Linear(1000, 10**9))
        nn.init.normal_(network[1].weight)
        made = torch.zeros(2, device="cpu").normal_()
    assert [tuple(tensor.shape) for tensor in network.state_dict().values()] == [
        (10**9, 1000),
        (10**9, 1000),
        (10**9,),
    ]
    assert all(tensor.is_meta for tensor in network.state_dict().values())
    assert bool((made != 0).all())  # what has memory is drawn
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_is_opened_without_the_compiler():
    """Its import takes longer than all the rest."""
    code = (
        "import sys; from regard.training import load_run; from regard.views import shipped_run\n"
        "for name in ('cifar10-small', 'induction'): load_run(shipped_run(name)).network()\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
