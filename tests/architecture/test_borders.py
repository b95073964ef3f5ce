"""The rules of the architecture (CONTRIBUTING, "The order of packages"), read from the source."""

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _load() -> ModuleType:
    specification = importlib.util.spec_from_file_location("borders", Path(__file__).with_name("borders.py"))
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["borders"] = module  # dataclasses look their module up there
    specification.loader.exec_module(module)
    return module


borders = _load()
RULES = sorted(borders.RULES)


@pytest.fixture(scope="module")
def source():
    return borders.Source(ROOT / "src" / "regard")


@pytest.mark.parametrize("rule", RULES)
def test_the_source_keeps_the_rule(source, rule):
    found = [str(violation) for violation in borders.RULES[rule](source)]
    assert not found, "\n" + "\n".join(found)


def test_every_package_has_one_place_in_the_order(source):
    packages = {module.package for module in source.modules.values()} - {""}
    assert packages == set(borders.ORDER)
    assert len(borders.ORDER) == len(set(borders.ORDER))


def test_contributing_shows_the_order(source):
    """The picture in CONTRIBUTING names every package, each below the packages that it may import."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    picture = text.split("## The order of packages")[1].split("```")[1]
    first_words = [line.split()[0] for line in picture.splitlines() if line.strip()]
    shown = [word for word in first_words if word not in ("text", "↓")]
    assert shown == [package for package in borders.ORDER if not package.startswith("_")]


def test_the_api_reference_has_the_same_order():
    text = (ROOT / "scripts" / "docs" / "api.py").read_text()
    order = next(
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ORDER"
    )
    assert list(order) == [package for package in borders.ORDER if package in order]


# For each rule, a package that breaks it: name of the file -> its text.
BROKEN = {
    "order": {"support/a.py": "from regard.layers import b\n", "layers/b.py": ""},
    "private": {"layers/a.py": "from regard.functional._plan import plan\n", "functional/_plan.py": "plan = 1\n"},
    "cycle": {
        "layers/_a.py": "def f():\n    from regard.layers import _b\n",
        "layers/_b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from regard.layers._a import f\n",
    },
    "class name": {"layers/a.py": "class Head: ...\n", "models/b.py": "class Head: ...\n"},
    "file name": {"layers/_a.py": "", "models/_a.py": "", "maps/_a.py": ""},
    "function": {"layers/a.py": "def f(x):\n" + "    x += 1\n" * 60},
    "constructor": {
        "layers/a.py": "class A:\n    def __init__(self, " + ", ".join(f"a{index}" for index in range(13)) + "): ...\n",
    },
    "file length": {"layers/a.py": "\n" * 401},
}


def _package(folder: Path, files: dict[str, str]) -> Path:
    root = folder / "regard"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return root


@pytest.mark.parametrize("rule", RULES)
def test_a_source_that_breaks_the_rule_is_found(tmp_path, rule):
    broken = borders.Source(_package(tmp_path, BROKEN[rule]))
    assert {name for name in RULES if list(borders.RULES[name](broken))} == {rule}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(x):\n" + "    if x:\n        pass\n" * 15, False),
        ("def f(x):\n" + "    if x:\n        pass\n" * 16, True),
        ("def f(x):\n    '''" + "words\n" * 90 + "    '''\n    # why\n" * 1 + "    return x\n", False),
        ("@triton.jit\ndef f(x):\n" + "    if x:\n        pass\n" * 90, False),
    ],
    ids=["15 branches", "16 branches", "a long docstring", "a Triton kernel"],
)
def test_what_counts_in_a_function(tmp_path, text, found):
    assert bool(list(borders.functions(borders.Source(_package(tmp_path, {"layers/a.py": text}))))) is found


def test_inherited_fields_of_a_dataclass_are_arguments(tmp_path):
    six = "".join(f"    NAME{index}: int = 0\n" for index in range(7))
    text = "@dataclass\nclass A:\n" + six + "@dataclass\nclass B(A):\n" + six.replace("NAME", "other")
    (violation,) = borders.constructors(borders.Source(_package(tmp_path, {"layers/a.py": text})))
    assert "B takes 14 arguments" in str(violation)


def test_the_files_that_docstrings_name_exist():
    source = {path: path.read_text("utf-8") for path in (ROOT / "src" / "regard").rglob("*.py")}
    names = {path.name for path in source}
    named = {(path.name, name) for path, text in source.items() for name in re.findall(r"``(_\w+\.py)``", text)}
    assert len(named) > 50
    assert not {(where, name) for where, name in named if name not in names}


def test_the_walks_in_contributing_are_true_to_the_code():
    root = Path(__file__).parents[2]
    section = (root / "CONTRIBUTING.md").read_text("utf-8").split("## Two walks through the code")[1]
    walks = [re.findall(r"(?m)^\d+\. `([^`]+)`: ((?:`\w+`(?:, )?)+)", walk) for walk in section.split("A call through")]
    assert [len(walk) for walk in walks] == [9, 10]
    for path, names in (hop for walk in walks for hop in walk):
        source = (root / "src" / "regard" / path).read_text("utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"(?m)^(def|class) {name}\b|^{name}\b.*=", source), f"{path} does not define {name}"
