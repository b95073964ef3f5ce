"""The names of ``regard`` itself are loaded on first use."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import regard

NAMES = dir(regard)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_loads(name):
    assert getattr(regard, name) is not None


def test_type_checkers_see_the_same_names():
    (block,) = (node for node in ast.parse(Path(regard.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {alias.asname for statement in block.body for alias in statement.names}
    assert seen == set(NAMES) - {"__version__"}


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match=r"module 'regard' has no attribute 'atention'; it has .*attention"):
        regard.atention  # noqa: B018


def test_importing_regard_loads_nothing_else():
    code = "import sys, regard; print([name for name in sys.modules if name.startswith(('regard.', 'torch'))])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert loaded == "['regard._version']"


@pytest.mark.parametrize("name", ["train", "load_run", "recipes", "data", "training", "course"])
def test_a_missing_extra_is_named_with_how_to_install_it(name, monkeypatch):
    def absent(module):
        raise ModuleNotFoundError("No module named 'numpy.typing'", name="numpy.typing")

    monkeypatch.setattr(regard, "import_module", absent)
    monkeypatch.delitem(vars(regard), name, raising=False)
    with pytest.raises(ImportError, match=rf"regard.{name} needs numpy: pip install 'regard\[all\]'"):
        getattr(regard, name)
    monkeypatch.setattr(regard, "import_module", importlib.import_module)
    assert getattr(regard, name) is not None
