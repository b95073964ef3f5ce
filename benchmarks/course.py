"""How long grading takes: many submissions of every notebook, each check in a process of its own, side by side.

Submissions are the solved notebook and versions of it with one answer changed, so that most of each runs to its end. The
bars: 10 s of processor time for each submission, and 60 s from the start of the command to the first mark.

    python benchmarks/course.py                       100 submissions of each notebook
    python benchmarks/course.py --submissions 4       a look
"""

import importlib.util
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat

from _measure import arguments, positive, print_table, write
from regard.course.grading import Package, grade_files

ROOT = Path(__file__).resolve().parents[1]
BAR_PROCESSOR, BAR_START = 10.0, 60.0
COLUMNS = ("notebook", "submissions", "checks", "processor s each", "wall s each", "first mark s", "points")


def build() -> ModuleType:
    """notebooks/build.py, which is a script."""
    spec = importlib.util.spec_from_file_location("course_build", ROOT / "notebooks" / "build.py")
    if spec is None or spec.loader is None:
        raise ImportError("notebooks/build.py is not there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def submissions(package: Package, solved: Path, folder: Path, count: int) -> list[tuple[Path, str]]:
    """Notebooks as students hand them in: right, or with one answer taken back to nothing."""
    notebook = nbformat.read(solved, nbformat.NO_CONVERT)
    answers = [each for each in package.questions if not each.manual]
    files = []
    for number in range(count):
        changed = json.loads(json.dumps(notebook))
        slip = answers[number % (len(answers) + 1) - 1]
        for cell in changed["cells"]:
            if number and cell["cell_type"] == "code" and cell["source"].strip() == _shown(slip.reference):
                cell["source"] = "\n".join(f"{name} = None" for name in slip.names)
        path = folder / f"student-{number:03}.ipynb"
        path.write_text(json.dumps(changed), encoding="utf-8")
        files.append((path, path.stem))
    return files


def _shown(reference: str) -> str:
    """A right answer as the solved notebook has it, without Otter's marks."""
    lines = [line for line in reference.split("\n") if line.strip() not in ("# BEGIN SOLUTION", "# END SOLUTION")]
    return "\n".join(line.removesuffix("  # SOLUTION") for line in lines).strip()


def measured(name: str, maker: ModuleType, folder: Path, count: int, jobs: int) -> dict[str, Any]:
    """One notebook: processor and wall seconds for each submission, and the wait for the first mark."""
    built = maker.assign(name, folder / name)
    package = maker.package(name, built, "benchmark")
    place = folder / f"{name}-in"
    place.mkdir()
    files = submissions(package, built / "solved" / f"{name}.ipynb", place, count)
    before, start = _processor(), time.perf_counter()
    first, points, checks = 0.0, 0.0, 0
    for marks in grade_files(files, package, jobs=jobs):
        first = first or time.perf_counter() - start
        points += marks.points / marks.possible / count
        checks = sum(len(result.outcomes) for result in marks.results)
    wall = time.perf_counter() - start
    return {
        "notebook": name,
        "submissions": count,
        "checks": checks,
        "processor s each": (_processor() - before) / count,
        "wall s each": wall / count,
        "first mark s": first,
        "points": points,
    }


def _processor() -> float:
    """Processor seconds of this process and of those it has waited for."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in found)


def main() -> int:
    parser = arguments(__doc__.split("\n")[0], device="cpu", rounds=1)
    parser.add_argument("--submissions", type=positive, default=100, help="of each notebook")
    parser.add_argument("--jobs", type=positive, default=2, help="submissions at a time")
    parser.add_argument("--notebook", action="append", help="default: all five")
    options = parser.parse_args()
    maker = build()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.notebook or maker.names():
            rows.append(measured(name, maker, Path(folder), options.submissions, options.jobs))
            print_table(rows[-1:], COLUMNS)
    slow = [
        row["notebook"] for row in rows if row["processor s each"] > BAR_PROCESSOR or row["first mark s"] > BAR_START
    ]
    print("over the bar: " + ", ".join(slow) if slow else "every notebook keeps the bars")
    # Seconds on the clock grow with what else the machine does; processor seconds hardly do.
    print(write("course", options, rows, jobs=options.jobs, load=round(os.getloadavg()[1], 1)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
