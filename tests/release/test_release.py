"""A release names one version everywhere, and the lowest versions that it allows are known."""

import importlib.util
import re
import shutil
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "release"


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path):
    for name in ("CITATION.cff", "CHANGELOG.md", "README.md", "src/regard/_version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_version_changelog_citation_and_readme_agree():
    assert load("check").disagreements(ROOT) == []


@pytest.mark.parametrize(
    ("name", "pattern"), [("CITATION.cff", r"(?m)^version: \S+"), ("CHANGELOG.md", r"(?m)^## \S+")], ids=["cff", "log"]
)
def test_a_file_that_names_another_version_is_found(copy, name, pattern):
    text = (copy / name).read_text("utf-8")
    changed = re.sub(pattern, lambda found: found[0].rsplit(" ", 1)[0] + " 9.9.9", text, count=1)
    (copy / name).write_text(changed, "utf-8")
    (problem,) = load("check").disagreements(copy)
    assert name in problem
    assert "9.9.9" in problem


def test_a_tag_must_name_the_version(capsys):
    with pytest.raises(SystemExit):
        load("check").main(["--tag", "v9.9.9"])
    assert "v9.9.9" in capsys.readouterr().err


def test_every_dependency_of_users_has_a_floor():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    users = [
        *project["dependencies"],
        *(r for e in ("train", "notebook", "studio") for r in project["optional-dependencies"][e]),
    ]
    own = [requirement for requirement in users if not requirement.startswith("regard[")]
    assert len(own) > 15
    assert all(">=" in requirement for requirement in own)


def test_pins_are_no_lower_than_floors():
    lowest = load("lowest_versions")
    pins = dict(re.findall(r"(?m)^([A-Za-z0-9_.-]+)==(\S+)", (ROOT / "constraints.txt").read_text("utf-8")))
    pins = {name.lower().replace("_", "-"): pin for name, pin in pins.items()}
    floors = [pin.split("==") for requirement in lowest.requirements(["all"]) if (pin := lowest.lowest(requirement))]
    assert len(floors) > 15
    for name, floor in floors:
        assert numbers(pins[name.lower().replace("_", "-")]) >= numbers(floor), name


def numbers(version):
    return [int(part) for part in re.findall(r"\d+", version)]


def test_extras_of_extras_count(capsys):
    lowest = load("lowest_versions")
    assert set(lowest.requirements(["studio"])) >= set(lowest.requirements(["train"]))
    lowest.main(["studio"])
    printed = capsys.readouterr().out.split()
    assert any(line.startswith("fastapi==") for line in printed)
    assert not any(line.startswith("torch==") for line in printed)


def test_workflows_call_the_same_scripts():
    ci = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    assert "bash .ci/run" in ci
    assert all(f'"3.{minor}"' in ci for minor in (11, 12, 13))
    assert "scripts/release/check.py" in (ROOT / ".github/workflows/release.yml").read_text("utf-8")
