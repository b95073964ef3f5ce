"""What the README shows runs as it stands, its numbers are those of the result files, and its links lead somewhere."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def tables():
    """scripts/readme_results.py."""
    before = sys.path.copy()
    spec = importlib.util.spec_from_file_location("readme_results", ROOT / "scripts" / "readme_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_it_has_an_example_to_see_to_prove_and_to_speed_up():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("code", EXAMPLES, ids=["see", "prove", "speed-up"])
def test_an_example_runs_in_ten_lines(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    exec(compile(code, "README.md", "exec"), {})


def test_tables_are_in_step_with_the_result_files(tables):
    for page in tables.PAGES:
        text = (ROOT / page).read_text("utf-8")
        assert "<!-- results: " in text
        assert tables.updated(page, text) == text, f"{page}: run python scripts/readme_results.py (or make results)"


def test_a_new_result_changes_a_table_and_an_older_one_does_not(tables):
    results = tables.load()
    run = next(found for found in results if found.get("recipe") == "cifar10-speedrun")
    newer = {**run, "date": "2999-01-01", "accuracy": [0.5, 0.7], "seeds": [0, 1], "file": "newer.json"}
    older = {**newer, "date": "2000-01-01"}
    assert "60.00 ± 14.14" in tables.updated("README.md", README, [*results, newer])
    assert tables.updated("README.md", README, [older, *results]) == tables.updated("README.md", README, results)


def test_rows_that_were_not_trained_alike_do_not_make_a_table(tables):
    results = tables.load()
    page = "docs/guides/reproduction.md"
    text = (ROOT / page).read_text("utf-8")
    made = next(found for found in results if found.get("benchmark") == "reproduction")
    longer = {**made["rows"][0], "epochs": 99}
    unequal = {**made, "date": "2999-01-01", "rows": [longer, *made["rows"][1:]]}
    with pytest.raises(ValueError, match="differ where they must not"):
        tables.updated(page, text, [*results, unequal])


def test_a_marker_without_its_end_is_refused(tables):
    with pytest.raises(ValueError, match="needs its <!-- end -->"):
        tables.updated("README.md", "<!-- results: gaussian -->\n")
    with pytest.raises(ValueError, match="no table is called 'none'"):
        tables.updated("README.md", "<!-- results: none -->\n<!-- end -->")


def test_it_is_read_in_one_sitting():
    """A first screen with the moving picture and the two commands, three examples, one table of six results."""
    lines = README.splitlines()
    assert len(lines) <= 120
    screen = "\n".join(lines[:20])
    assert "docs/images/heads.svg" in screen
    assert "make demo" in screen
    assert "make test" in screen
    assert README.count("<!-- results: ") == 1
    table = README.partition("<!-- results: highlights -->\n")[2].partition("\n<!-- end -->")[0]
    assert len(table.splitlines()) == 2 + 6


def test_pictures_are_for_light_and_dark_and_the_first_one_moves():
    pictures = re.findall(
        r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(.*?)">\s*<img alt="(.*?)" src="(.*?)">',
        README,
    )
    assert len(pictures) == README.count("<picture>") == 2
    for dark, words, light in pictures:
        assert words
        assert (ROOT / dark).exists()
        assert (ROOT / light).exists()
    moving = (ROOT / pictures[0][2]).read_text("utf-8")
    assert "@keyframes" in moving
    assert "prefers-reduced-motion" in moving
    assert len(moving) < 150_000


def test_the_moving_picture_is_of_the_run_that_comes_with_the_package(tmp_path):
    spec = importlib.util.spec_from_file_location("moving_picture", ROOT / "scripts" / "moving_picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(["--folder", str(tmp_path)])
    for name in ("heads.svg", "heads-dark.svg"):
        assert (tmp_path / name).read_text("utf-8") == (ROOT / "docs" / "images" / name).read_text("utf-8")


def test_its_links_and_pictures_are_there():
    local = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(local) > 8
    for path in local:
        assert (ROOT / path).exists(), path


def test_its_commands_exist():
    make = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"^make (\w+)|`make (\w+)`", README, re.MULTILINE)
    assert len(targets) >= 3
    for target in targets:
        assert re.search(rf"^{''.join(target)}:", make, re.MULTILINE), target
    from regard.cli import commands

    named = re.findall(r"`regard (\w+)", README)
    assert named
    assert set(named) <= set(commands())


def test_how_to_cite_names_this_version():
    cite = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"version: {regard.__version__}\n" in cite
    assert f"version = {{{regard.__version__}}}" in README
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(cite)
    assert found["license"] == "Apache-2.0"
    assert found["cff-version"] == "1.2.0"
