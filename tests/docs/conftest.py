"""What the tests of the documentation share."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _load(path: Path) -> ModuleType:
    """A script of the repository as a module; its neighbors can be imported meanwhile."""
    before = sys.path.copy()
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location(f"regard_scripts_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look themselves up
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path[:] = before


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def script():
    """``script("scripts/results.py")`` is that file as a module."""
    return lambda path: _load(ROOT / path)


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """For other processes: one thread, and this Python's commands first on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, "NO_MKDOCS_2_WARNING": "1"}
