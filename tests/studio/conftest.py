import shutil

import pytest

pytest.importorskip("fastapi", reason="the studio's extra is not installed")

import runpy
from pathlib import Path

from starlette.testclient import TestClient

from regard.studio import create_app

LOCAL = "http://127.0.0.1:8642"


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a run of every kind. Nobody writes to it."""
    helpers = runpy.run_path(str(Path(__file__).parent / "trained_runs.py"))
    return helpers["train_runs"](tmp_path_factory.mktemp("runs"))


@pytest.fixture
def runs(trained, tmp_path):
    """The same, to be changed at will."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


@pytest.fixture
def client_of():
    """A client of a studio that is opened on a folder."""

    def make(folder, **options):
        return TestClient(create_app(folder, **{"example": None, **options}), base_url=LOCAL)

    return make


@pytest.fixture(scope="session")
def client(trained):
    return TestClient(create_app(trained, example=None), base_url=LOCAL)


@pytest.fixture
def example(trained, tmp_path):
    """A run that stands in for the one that comes with the package."""
    return Path(shutil.copytree(trained / "gaussian", tmp_path / "example"))
