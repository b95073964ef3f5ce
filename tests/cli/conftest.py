import pytest

import regard
from regard.training import ImageEncoderSettings, ImageTask, Recipe


@pytest.fixture(scope="session")
def image_run(tmp_path_factory):
    """A finished run of a tiny network of Gaussian heads."""
    task = ImageTask("fashion-mini", validation=20, limit=32)
    recipe = Recipe("tiny", task, ImageEncoderSettings(patch_size=4, dim=9, depth=2, hidden=4), epochs=1, batch_size=16)
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return regard.train(recipe, folder=folder, accelerator="cpu", tensorboard=False)


@pytest.fixture(scope="session")
def case_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("case-runs")
    return [
        regard.train(regard.recipes.get(name).smoke(), folder=folder / name, accelerator="cpu", tensorboard=False)
        for name in ("case-rnn", "case-rnn-attention")
    ]
