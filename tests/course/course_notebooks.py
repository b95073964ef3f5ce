"""What the tests of the course share: notebooks built once, answers run in this process, and grading as Otter does it."""

import atexit
import gc
import importlib.util
import shutil
import tempfile
import threading
import warnings
import zipfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
from nbformat import NotebookNode

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of ipylab, which otter imports
    from otter.api import grade_submission
    from otter.nbmeta_config import NBMetadataConfig
    from otter.test_files import create_test_file

ROOT = Path(__file__).parents[2]
SEED = 11


@cache
def build() -> ModuleType:
    """notebooks/build.py, which is a script."""
    spec = importlib.util.spec_from_file_location("course_build", ROOT / "notebooks" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NAMES = build().names()


@cache
def built(name: str) -> Path:
    """Student's and solved notebook and the autograder, with its tests unpacked beside it."""
    outer = Path(tempfile.mkdtemp(prefix="regard-course-"))
    atexit.register(shutil.rmtree, outer, ignore_errors=True)
    folder = outer / name
    build().assign(name, folder, seed=SEED)
    with zipfile.ZipFile(folder / "autograder.zip") as archive:
        archive.extractall(folder / "autograder")
    return folder


def notebook(name: str, form: str) -> NotebookNode:
    return nbformat.read(built(name) / form / f"{name}.ipynb", nbformat.NO_CONVERT)


@cache
def questions(name: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (built(name) / "autograder" / "tests").glob("*.py")))


@cache
def _answers(name: str) -> str:
    """The imports and the right answers of a notebook, without pictures and training."""
    first, *rest = [cell for cell in notebook(name, "solved").cells if cell.cell_type == "code"]
    lines = first.source.split("\n")
    start = lines.index("import math")
    kept = [line for line in lines[start:] if not line.startswith(("%", "grader", "import otter"))]
    solutions = [cell.source for cell in rest if "otter_assign_solution_cell" in cell.metadata.get("tags", [])]
    return "\n\n".join(["\n".join(kept), *solutions])


def answer_to(name: str, question: str) -> str:
    """The cell that answers a question: the one before its check."""
    cells = [cell.source for cell in notebook(name, "solved").cells if cell.cell_type == "code"]
    return cells[cells.index(f'grader.check("{question}")') - 1]


def check(name: str, question: str, code: str = "", seed: int = SEED) -> Any:
    """Otter's result for one question: the right answers, after which ``code`` has run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(_answers(name) + "\n\n" + code, f"<{name}>", "exec"), names)
    names["SEED"] = seed
    tests = create_test_file(str(built(name) / "autograder" / "tests" / f"{question}.py"), NBMetadataConfig())
    tests.run(names)
    return tests


def grade(submission: NotebookNode, name: str, folder: Path) -> Any:
    """What ``otter run`` says about a notebook, in a kernel of its own."""
    path = folder / f"{name}.ipynb"
    nbformat.write(submission, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Otter's thread leaves a socket open
        results = grade_submission(str(path), str(built(name) / "autograder.zip"), quiet=True)
        for thread in threading.enumerate():
            if "serve_until_stopped" in thread.name:
                thread.join()
        gc.collect()
    return results


def errors(executed: NotebookNode) -> list[str]:
    """What went wrong in the cells of a notebook that was run."""
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    return [f"{output.ename}: {output.evalue}" for output in outputs if output.output_type == "error"]
