"""Run a benchmark on this machine. The benchmarks are part of a checkout of regard, not of the installed package."""

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import regard


def benchmarks() -> dict[str, Path]:
    """The benchmarks of the checkout that regard runs from, by name; none for an installed package."""
    folder = Path(regard.__file__).parents[2] / "benchmarks"
    return {path.stem: path for path in sorted(folder.glob("[!_]*.py"))}


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    found = benchmarks()
    if not found:
        raise OSError("benchmarks run from a checkout of regard; this is an installed package")
    parser = argparse.ArgumentParser(prog="regard bench", description=__doc__)
    parser.add_argument("name", choices=[*found, "list"], help="the benchmark, or list to show all")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="arguments of the benchmark; --help describes them")
    chosen = parser.parse_args(list(arguments))
    if chosen.name == "list":
        for name, path in found.items():
            print(f"{name:<18}{_first_line(path)}")
        return 0
    before = sys.argv, sys.path
    sys.argv, sys.path = [str(found[chosen.name]), *chosen.rest], [str(found[chosen.name].parent), *sys.path]
    try:
        runpy.run_path(str(found[chosen.name]), run_name="__main__")
    finally:
        sys.argv, sys.path = before
    return 0


def _first_line(path: Path) -> str:
    import ast

    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
