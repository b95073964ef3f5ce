import importlib.util
import sys
from pathlib import Path

import pytest

from regard.training import shut_down


def _load(name):
    """A module beside the tests that scripts in other processes import too."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def toy():
    return _load("toy_training")


@pytest.fixture(scope="session")
def streamed():
    return _load("streamed_photos")


@pytest.fixture(scope="session")
def power_loss():
    return _load("power_loss")


@pytest.fixture
def train_toy(toy, tmp_path):
    """Train the toy recipe with some of its fields changed, quietly, on the CPU."""
    import regard

    count = iter(range(1000))

    def run(
        task=None,
        network=None,
        *,
        folder=None,
        resume=False,
        log_every=4,
        save_every=None,
        keep=2,
        listeners=(),
        **changes,
    ):
        return regard.train(
            toy.toy_recipe(task, network, **changes),
            folder=folder or tmp_path / f"run{next(count)}",
            resume=resume,
            accelerator="cpu",
            log_every=log_every,
            save_every=save_every,
            keep=keep,
            tensorboard=False,
            listeners=listeners,
        )

    return run


@pytest.fixture(autouse=True)
def _no_process_group_is_left():
    yield
    shut_down()
