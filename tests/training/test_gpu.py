"""On a GPU: steps never wait for the device, and the run is the CPU's but for rounding."""

import pytest
import torch

import regard
from regard.training import ImageEncoderSettings, ImageTask, MuonSettings, Recipe
from regard.training._learner import Learner
from regard.training.events import Stepped

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")]


def _recipe(**changes):
    task = ImageTask("fashion-mini", validation=100, limit=512)
    network = ImageEncoderSettings(patch_size=4, dim=36, depth=2, hidden=36, init="grid")
    settings = {"optimizer": MuonSettings(2e-3, matrix_learning_rate=0.01), "epochs": 3, "batch_size": 64, "clip": 1.0}
    return Recipe("gpu", task, network, **{**settings, **changes})


def _losses(run):
    return torch.tensor([line["loss"] for line in run.metrics if "loss" in line])


@pytest.mark.parametrize("changes", [{}, {"average": 0.9, "accumulate": 2, "precision": "bf16"}])
def test_a_step_does_not_wait_for_the_device(tmp_path, monkeypatch, changes):
    steps = []
    actual = Learner.step

    def begin(*args):
        torch.cuda.set_sync_debug_mode("error" if len(steps) > 2 else "default")
        return actual(*args)

    def end(event):
        if isinstance(event, Stepped):
            torch.cuda.set_sync_debug_mode("default")
            steps.append(event.step)

    monkeypatch.setattr(Learner, "step", begin)
    options = {"accelerator": "cuda", "tensorboard": False, "listeners": [end]}
    regard.train(_recipe(**changes), folder=tmp_path / "run", **options)
    assert len(steps) == 24


def test_the_run_is_that_of_the_cpu_but_for_rounding(tmp_path):
    recipe = _recipe(optimizer=regard.training.SGDSettings(0.02))
    runs = [
        regard.train(recipe, folder=tmp_path / kind, accelerator=kind, tensorboard=False) for kind in ("cpu", "cuda")
    ]
    torch.testing.assert_close(_losses(runs[1]), _losses(runs[0]), rtol=1e-3, atol=1e-3)


def test_a_resumed_run_goes_on_from_the_same_state(tmp_path):
    whole = regard.train(_recipe(), folder=tmp_path / "whole", accelerator="cuda", tensorboard=False, save_every=8)
    branch = regard.train(
        _recipe(),
        folder=tmp_path / "branch",
        resume=whole.checkpoints.path(16),
        accelerator="cuda",
        tensorboard=False,
    )
    torch.testing.assert_close(_losses(branch), _losses(whole), rtol=1e-2, atol=1e-2)
