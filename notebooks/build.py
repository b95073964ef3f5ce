"""Build the course: from each source the student's notebook, the solved one, the public checks and an autograder.

    python notebooks/build.py --secret 4711                all five, what `make course` runs
    python notebooks/build.py --students students.csv      one folder for each student, with numbers of their own
    python notebooks/build.py 1-attention-by-hand          one of them
    python notebooks/build.py --check                      are the committed files in step with the sources?

Otter Assign takes answers and hidden checks out of a notebook; what grades is regard.course.grading:

    build/course/student/                  what to hand out: notebooks, tests/<notebook>/, the wheel of this version
    build/course/<name>/checks.json        all checks and the secret, for `python -m regard.course` (not committed)
    build/course/<name>/autograder.zip     the same for Gradescope, with the wheel and pinned requirements
    notebooks/student/<name>.ipynb         the student's notebook, for Colab
    notebooks/solved/<name>.ipynb          the solved notebook, run from top to bottom
    src/regard/course/checks/<name>.json   the public checks, for a notebook that comes without its folder
"""

import argparse
import csv
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import assignment  # noqa: E402
import handout  # noqa: E402

from regard.course.grading import Package, one_spelling, seed_for  # noqa: E402
from regard.support.reading import is_plain_name  # noqa: E402

SOURCES, STUDENT, SOLVED = HERE / "source", HERE / "student", HERE / "solved"
CHECKS = HERE.parent / "src" / "regard" / "course" / "checks"
OUT = HERE.parent / "build" / "course"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
TIMEOUT = 600  # seconds, for one cell of a solved notebook


def names() -> list[str]:
    """The notebooks, in order."""
    return sorted(path.stem for path in SOURCES.glob("*.py"))


def assign(name: str, folder: Path, *, numbers_seed: int = 0, release: str = "") -> Path:
    """Run Otter Assign on one source: ``folder/student/<name>.ipynb`` and ``folder/solved/<name>.ipynb``."""
    from otter.assign import main as otter_assign

    notebook = assignment.read(SOURCES / f"{name}.py", numbers_seed)
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.source = cell.source.replace('RELEASE = ""', f"RELEASE = {json.dumps(release)}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    master = folder / f"{name}.ipynb"
    nbformat.write(notebook, master)
    otter_assign(str(master), str(folder), no_pdfs=True, no_run_tests=True)
    master.unlink()
    for made, form in (("autograder", "solved"), ("student", "student")):
        found = nbformat.read(folder / made / f"{name}.ipynb", nbformat.NO_CONVERT)
        shutil.rmtree(folder / made)
        (folder / form).mkdir()
        assignment.write_tidy(found, folder / form / f"{name}.ipynb")
    return folder


def package(name: str, built: Path, secret: str, *, students: Iterable[str] = ()) -> Package:
    """What grades a notebook that was built."""
    student = nbformat.read(built / "student" / f"{name}.ipynb", nbformat.NO_CONVERT)
    found = assignment.package(SOURCES / f"{name}.py", secret, students=students)
    found.given.extend(assignment.given(student))
    return found


def public_checks(name: str) -> dict[str, str]:
    """By question, the source of its public checks."""
    found = assignment.package(SOURCES / f"{name}.py", "")
    return {each.name: assignment.public_part(each) for each in found.questions if not each.manual}


def run(path: Path, *, keep: bool = True) -> NotebookNode:
    """Run a solved notebook from top to bottom, with its checks, and keep its outputs; the first error ends it."""
    from nbclient import NotebookClient

    notebook = nbformat.read(path, nbformat.NO_CONVERT)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": folder}})
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "application/vnd.jupyter.widget-view+json" in data:  # nothing without its Python
                kept = {kind: data[kind] for kind in ("image/png", "text/plain") if kind in data}
                output.data = nbformat.from_dict(kept)
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = nbformat.from_dict(METADATA["language_info"])
    if keep:
        nbformat.write(notebook, path)
    return notebook


def sources_of(path: Path) -> list[tuple[str, str]] | None:
    """What a person wrote in a notebook, cell by cell; None if there is none."""
    if not path.is_file():
        return None
    return [(cell.cell_type, cell.source) for cell in nbformat.read(path, nbformat.NO_CONVERT).cells]


def packed(name: str) -> str:
    """The public checks in one file."""
    return json.dumps(public_checks(name), indent=1, ensure_ascii=False) + "\n"


def differences(name: str, built: Path) -> list[Path]:
    """The committed files that are not what the source gives."""
    stale = []
    checks = CHECKS / f"{name}.json"
    if not checks.is_file() or checks.read_text(encoding="utf-8") != packed(name):
        stale.append(checks)
    student = STUDENT / f"{name}.ipynb"
    if not student.is_file() or student.read_bytes() != (built / "student" / f"{name}.ipynb").read_bytes():
        stale.append(student)
    if sources_of(SOLVED / f"{name}.ipynb") != sources_of(built / "solved" / f"{name}.ipynb"):
        stale.append(SOLVED / f"{name}.ipynb")
    return stale


def put_in_place(name: str, built: Path) -> None:
    """Refresh the committed files; a solved notebook is only run again if it has changed."""
    for path in differences(name, built):
        print(f"  {os.path.relpath(path)}", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent == CHECKS:
            path.write_text(packed(name), encoding="utf-8")
        elif path.parent == STUDENT:
            shutil.copy(built / "student" / path.name, path)
        else:
            run(built / "solved" / path.name)
            shutil.copy(built / "solved" / path.name, path)


def students(path: Path) -> Iterator[str]:
    """The names in a CSV file with a column ``name``."""
    with path.open(newline="", encoding="utf-8-sig") as file:  # Excel begins a file with a byte order mark
        rows = list(csv.DictReader(file))
    if not rows or "name" not in rows[0]:
        raise ValueError(f"{path} needs a column called name, with one student in each row")
    seen: dict[str, str] = {}
    for row in rows:
        name = row["name"] or ""
        if not is_plain_name(name) or name != name.strip():
            raise ValueError(f"{path}: {name!r} cannot be the name of a folder")
        spelled = one_spelling(name)
        if spelled in seen:
            raise ValueError(f"{path}: {name!r} and {seen[spelled]!r} would share a folder")
        seen[spelled] = name
        yield name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("notebook", nargs="*", choices=[[], *names()], help="default: all")
    parser.add_argument("--secret", help="what the seeds of hidden checks are made from; default: a random one")
    parser.add_argument("--students", type=Path, help="CSV with a column name: a hand-out for each, with other numbers")
    parser.add_argument("--release", default="", help="address of the wheel, for a notebook that comes without it")
    parser.add_argument(
        "--wheels", type=Path, help="folder of wheels to put into the zip, for machines without a network"
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a committed file is out of step")
    parser.add_argument("--notebooks-only", action="store_true", help="neither hand-outs nor autograders")
    options = parser.parse_args()
    try:
        people = list(students(options.students)) if options.students else []
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if options.wheels and not any(options.wheels.glob("*.whl")):
        parser.error(f"--wheels {options.wheels} is no folder with wheels in it")
    secret = options.secret or secrets.token_hex(16)
    chosen = options.notebook or names()
    stale: list[Path] = []
    for name in chosen:
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            built = assign(name, Path(folder) / name)
            if options.check:
                stale += differences(name, built)
            else:
                put_in_place(name, built)
    for path in stale:
        print(f"out of step: {os.path.relpath(path)}; run make course", file=sys.stderr)
    if options.check or options.notebooks_only:
        return bool(stale)
    wheel = handout.wheel(HERE.parent, OUT)
    for name in chosen:
        for person in people or [""]:
            seed = seed_for(secret, name, "numbers", person) if person else 0
            folder = OUT / "students" / person if person else OUT / "student"
            built = assign(name, OUT / name, numbers_seed=seed, release=options.release)
            handout.put(name, built, folder, public_checks(name), wheel)
        graded = package(name, built, secret, students=people)
        handout.autograder(graded, OUT / name, wheel, HERE.parent / "constraints.txt", options.wheels)
        shutil.rmtree(OUT / name / "student"), shutil.rmtree(OUT / name / "solved")
    print(f"hand out: {os.path.relpath(folder.parent if people else folder)}")
    print(f"autograders, secret {secret}: {os.path.relpath(OUT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
