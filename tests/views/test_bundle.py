"""The front end: what is committed is what its sources give, it is type-checked, and its own tests pass."""

from pathlib import Path

import pytest

import regard.views

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[2]
FRONTEND = ROOT / "frontend"
STATIC = Path(regard.views.__file__).parent / "static"


def test_the_committed_bundle_is_what_the_sources_give(npm, tmp_path):
    npm("run", "build", REGARD_STATIC=str(tmp_path))
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in STATIC.glob("*.js")}
    assert set(built) == set(committed)
    different = [name for name in built if built[name] != committed[name]]
    assert different == [], "run `make frontend` and commit src/regard/views/static"


def test_it_is_type_checked(npm):
    npm("run", "check")


def test_its_own_tests_pass(npm):
    assert "passed" in npm("test", NO_COLOR="1")


def test_packages_are_pinned_and_the_lock_names_no_server():
    import json

    package = json.loads((FRONTEND / "package.json").read_text())
    versions = {**package["dependencies"], **package["devDependencies"]}
    assert all(version[0].isdigit() for version in versions.values())
    assert '"resolved"' not in (FRONTEND / "package-lock.json").read_text()


def test_it_names_nothing_on_the_network():
    """Names of XML's dialects look like addresses; nothing is ever loaded from them. Without a slash it is an address only where
    a string begins: `condition ? ws : other`, with a name that the minifier chose, is none."""
    import re

    for path in STATIC.glob("*.js"):
        found = set(re.findall(r"\b(?:https?|wss?):/[\w./-]*|(?<=[\"'`])(?:https?|wss?):[\w./-]*", path.read_text()))
        assert {address for address in found if not address.startswith("http://www.w3.org/")} == set()
