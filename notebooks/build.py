"""Build the course: from each source the student's notebook, the solved one, the public checks and an autograder.

    python notebooks/build.py --seed 4711                all five, what `make course` runs
    python notebooks/build.py 1-attention-by-hand        one of them
    python notebooks/build.py --check                    are the committed files in step with the sources?

Otter Assign does the work; what is here turns a jupytext source into the notebook it takes, and puts its results in place:

    build/course/<name>/autograder.zip    for Gradescope or `otter run`, with the hidden checks (not committed)
    build/course/<name>/student/          the notebook to hand out, with its public checks (not committed)
    notebooks/student/<name>.ipynb        the same notebook, for Colab
    notebooks/solved/<name>.ipynb         the solved notebook, run from top to bottom
    src/regard/course/checks/<name>.json  the public checks, for a notebook that comes without its folder
"""

import argparse
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

HERE = Path(__file__).resolve().parent
SOURCES, STUDENT, SOLVED = HERE / "source", HERE / "student", HERE / "solved"
CHECKS = HERE.parent / "src" / "regard" / "course" / "checks"
OUT = HERE.parent / "build" / "course"
REQUIREMENT = "regard[notebook,train]"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
TIMEOUT = 600  # seconds, for one cell of a solved notebook


def names() -> list[str]:
    """The notebooks, in order."""
    return sorted(path.stem for path in SOURCES.glob("*.py"))


def assign(name: str, folder: Path, *, seed: int, requirement: str = REQUIREMENT) -> Path:
    """Run Otter Assign on one source: ``folder/student``, ``folder/solved`` and ``folder/autograder.zip``."""
    from otter.assign import main as otter_assign

    notebook = jupytext.read(SOURCES / f"{name}.py")
    notebook.metadata = nbformat.from_dict(METADATA)
    config = next(cell for cell in notebook.cells if cell.cell_type == "raw" and "ASSIGNMENT CONFIG" in cell.source)
    config.source, found = re.subn(r"(?m)^( *autograder_value:).*$", rf"\1 {seed}", config.source)
    if found != 1:
        raise ValueError(f"{name}: the assignment's configuration needs one line 'autograder_value: …', it has {found}")
    config.source += f"\nrequirements:\n  - {json.dumps(requirement)}"
    for cell in notebook.cells:
        cell.source = cell.source.replace(json.dumps(REQUIREMENT), json.dumps(requirement))

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    master = folder / f"{name}.ipynb"
    nbformat.write(notebook, master)
    otter_assign(str(master), str(folder), no_pdfs=True, no_run_tests=True)
    master.unlink()

    made = folder / "autograder"
    next(made.glob("*.zip")).rename(folder / "autograder.zip")
    (folder / "solved").mkdir()
    (made / f"{name}.ipynb").rename(folder / "solved" / f"{name}.ipynb")
    shutil.rmtree(made)
    for form in ("student", "solved"):
        path = folder / form / f"{name}.ipynb"
        nbformat.write(_tidied(nbformat.read(path, nbformat.NO_CONVERT)), path)
    return folder


def _tidied(notebook: NotebookNode) -> NotebookNode:
    """The same bytes every time: numbered cells, no outputs; and none of Otter's marks around solutions."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03}"
        cell.metadata.pop("lines_to_next_cell", None)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            lines = [line for line in cell.source.split("\n") if not re.fullmatch(r"\s*# (BEGIN|END) SOLUTION", line)]
            cell.source = re.sub(r"(?m) *# SOLUTION$", "", "\n".join(lines))
    return notebook


def run(path: Path, tests: Path) -> None:
    """Run a solved notebook from top to bottom, with its checks, and keep its outputs; the first error ends it."""
    from nbclient import NotebookClient

    notebook = nbformat.read(path, nbformat.NO_CONVERT)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(tests, Path(folder) / "tests")
        client = NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": folder}})
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "application/vnd.jupyter.widget-view+json" in output.get("data", {}):  # nothing without its Python
                output.data = nbformat.from_dict({"text/plain": "An interactive view: run this cell to see it."})
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = nbformat.from_dict(METADATA["language_info"])
    nbformat.write(notebook, path)


def sources_of(path: Path) -> list[tuple[str, str]] | None:
    """What a person wrote in a notebook, cell by cell; None if there is none."""
    if not path.is_file():
        return None
    return [(cell.cell_type, cell.source) for cell in nbformat.read(path, nbformat.NO_CONVERT).cells]


def differences(name: str, built: Path) -> list[Path]:
    """The committed files that are not what the source gives."""
    stale = []
    if sources_of(SOLVED / f"{name}.ipynb") != sources_of(built / "solved" / f"{name}.ipynb"):
        stale.append(SOLVED / f"{name}.ipynb")
    student = STUDENT / f"{name}.ipynb"
    if not student.is_file() or student.read_bytes() != (built / "student" / f"{name}.ipynb").read_bytes():
        stale.append(student)
    checks = CHECKS / f"{name}.json"
    if not checks.is_file() or checks.read_text(encoding="utf-8") != packed_checks(built):
        stale.append(checks)
    return stale


def packed_checks(built: Path) -> str:
    """The public checks in one file: by question, the source of its test file."""
    sources = {
        path.stem: path.read_text(encoding="utf-8") for path in sorted((built / "student" / "tests").glob("*.py"))
    }
    return json.dumps(sources, indent=1, ensure_ascii=False) + "\n"


def put_in_place(name: str, built: Path) -> None:
    """Refresh the committed files; a solved notebook is only run again if it has changed."""
    for path in differences(name, built):
        print(f"  {os.path.relpath(path)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent == CHECKS:
            path.write_text(packed_checks(built), encoding="utf-8")
        elif path.parent == STUDENT:
            shutil.copy(built / "student" / path.name, path)
        else:
            run(built / "solved" / path.name, built / "student" / "tests")
            shutil.copy(built / "solved" / path.name, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("notebook", nargs="*", choices=[[], *names()], help="default: all")
    parser.add_argument(
        "--seed", type=int, help="what the hidden checks draw their numbers from; default: a random one"
    )
    parser.add_argument("--requirement", default=REQUIREMENT, help="what pip installs, in Colab and on Gradescope")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a committed file is out of step")
    options = parser.parse_args()
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    stale: list[Path] = []
    for name in options.notebook or names():
        print(name)
        if options.check:
            with tempfile.TemporaryDirectory() as folder:
                stale += differences(name, assign(name, Path(folder) / name, seed=0))
        else:
            built = assign(name, OUT / name, seed=seed, requirement=options.requirement)
            if options.requirement == REQUIREMENT:
                put_in_place(name, built)
    for path in stale:
        print(f"out of step: {os.path.relpath(path)}; run make course", file=sys.stderr)
    if not options.check:
        print(f"autograders, hidden checks seeded with {seed}: {os.path.relpath(OUT)}")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
