"""Training with ``torch.compile``: the same run, and the time it took to compile stated apart."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import regard


@pytest.fixture(scope="module")
def toy():
    path = Path(__file__).parents[1] / "training" / "toy_training.py"
    spec = importlib.util.spec_from_file_location("toy_training", path)
    module = sys.modules["toy_training"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_compiled_run_is_the_eager_one_with_its_compile_time_apart(toy, tmp_path):
    losses, runs = [], []
    for compiled in (False, True):
        # Dropout, too, is the eager one: a compiled step draws with the same kernel.
        recipe = toy.toy_recipe(network=toy.ToyNetwork(dropout=0.3, batch_norm=True), compile=compiled)
        run = regard.train(recipe, folder=tmp_path / str(compiled), accelerator="cpu", tensorboard=False)
        runs.append(run)
        losses.append(torch.tensor([line["loss"] for line in run.metrics if "loss" in line]))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    assert runs[0].summary["compile_seconds"] == 0
    assert runs[1].summary["compile_seconds"] > 0
    # Compiling ran a batch: what it did to running statistics was undone, and names are the network's own.
    eager, compiled = (run.checkpoint().part("network") for run in runs)
    assert compiled.keys() == eager.keys()
    assert compiled["norm.num_batches_tracked"] == eager["norm.num_batches_tracked"] == 12
    torch.testing.assert_close(compiled["norm.running_var"], eager["norm.running_var"], rtol=1e-3, atol=1e-4)
