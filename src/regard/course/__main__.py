"""Grade notebooks of the course: ``python -m regard.course CHECKS SUBMISSION…`` (``-`` reads the checks from a pipe)."""

import argparse
import csv
import json
import re
import sys
from pathlib import Path

from regard.course.grading import (
    Package,
    as_gradescope,
    as_manual_sheet,
    as_table,
    as_text,
    grade_files,
    one_spelling,
)


def main(arguments: list[str] | None = None) -> int:
    """Print marks, and write the requested files."""
    parser = argparse.ArgumentParser(prog="python -m regard.course", description=__doc__)
    parser.add_argument("checks", help="checks.json of a notebook, made by make course; - reads it from standard input")
    parser.add_argument("submission", nargs="+", type=Path, help="notebooks, or folders of them")
    parser.add_argument(
        "--students", type=Path, help="CSV with columns name and file (or folder), if these are not names"
    )
    parser.add_argument("--student", help="the name of the one student whose submission this is")
    parser.add_argument("--table", type=Path, help="write the points of all as CSV")
    parser.add_argument("--gradescope", type=Path, help="write results.json for Gradescope (one submission)")
    parser.add_argument("--manual", type=Path, help="write a sheet of the answers to be graded by hand, with rubrics")
    parser.add_argument("--hide-hidden", action="store_true", help="do not say what a hidden check found")
    parser.add_argument("--jobs", type=int, help="submissions at a time")
    parser.add_argument("--seconds", type=float, default=10.0, help="processor time for one check")
    options = parser.parse_args(arguments)
    try:
        text = sys.stdin.read() if options.checks == "-" else Path(options.checks).read_text(encoding="utf-8")
        package = Package.from_json(text)
        names = _names(options.students) if options.students else {}
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    paths = [file for path in options.submission for file in (_notebooks(path) if path.is_dir() else [path])]
    if not paths:
        print("there are no notebooks there", file=sys.stderr)
        return 2
    files = [(path, options.student or _name(path, package.notebook, names)) for path in paths]
    for path, student in files:
        if names and student not in names.values():
            print(f"{path} is not in {options.students}; it is graded as that of {student!r}", file=sys.stderr)
        if not package.knows(student):
            told = (
                "the checks were built for other students, so the numbers in the exercises are not those of a hand-out"
            )
            print(f"{path}, {student!r}: {told}", file=sys.stderr)
    found = []
    for marks in grade_files(files, package, jobs=options.jobs, seconds=options.seconds):
        found.append(marks)
        if len(files) == 1:
            print(as_text(marks, show_hidden=not options.hide_hidden), end="")
        else:
            print(f"{marks.student or paths[len(found) - 1].name}: {marks.points:g} of {marks.possible:g}", flush=True)
    if options.table:
        options.table.write_text(as_table(found), encoding="utf-8")
    if options.manual:
        options.manual.write_text(as_manual_sheet(found, package), encoding="utf-8")
    if options.gradescope:
        result = as_gradescope(found[0], show_hidden=not options.hide_hidden)
        options.gradescope.write_text(json.dumps(result, ensure_ascii=False), encoding="utf-8")
    return 0


def _notebooks(folder: Path) -> list[Path]:
    """The notebooks in a folder and its folders, without the copies that Jupyter and macOS put into folders of their own."""
    found = sorted(folder.rglob("*.ipynb"))
    return [path for path in found if not re.search(r"(^|/)(\.|__MACOSX/)", path.relative_to(folder).as_posix())]


def _name(path: Path, notebook: str, names: dict[str, str]) -> str:
    """The student of a file: by the table, or the name of the file; of its folder if the file has the name that was handed
    out (browsers and Jupyter number a second copy)."""
    as_handed_out = re.fullmatch(re.escape(notebook) + r"( ?\(\d+\)|-Copy\d+)?", path.stem)
    name = path.parent.name if as_handed_out else path.stem
    return names.get(one_spelling(path.name)) or names.get(one_spelling(path.parent.name)) or name


def _names(path: Path) -> dict[str, str]:
    with path.open(newline="", encoding="utf-8-sig") as file:  # Excel begins a file with a byte order mark
        rows = list(csv.DictReader(file))
    if not rows or not {"file", "name"} <= set(rows[0]):
        raise ValueError(f"{path} needs the columns name and file, with one submission in each row")
    return {one_spelling(row["file"] or ""): row["name"] for row in rows}


if __name__ == "__main__":
    sys.exit(main())
