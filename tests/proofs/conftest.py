"""The proofs: their reader, and one build that all test processes share."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import filelock
import pytest

ROOT = Path(__file__).parents[2]
PROOFS = ROOT / "proofs"


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"regard_proofs_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def read() -> ModuleType:
    """``proofs/read.py``."""
    return _module(PROOFS / "read.py")


@pytest.fixture(scope="session")
def certificates() -> ModuleType:
    """``proofs/certificates.py``."""
    return _module(PROOFS / "certificates.py")


def copy(into: Path) -> Path:
    """The sources, without what an earlier build left."""
    shutil.copytree(PROOFS, into, ignore=shutil.ignore_patterns("*.vo*", "*.glob", "*.aux", "CoqMakefile*", ".*"))
    return into


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder with every file compiled, from the sources, as ``make proofs`` does it."""
    shared = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    folder, done = shared / "proofs", shared / "proofs-built"
    with filelock.FileLock(shared / "proofs.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            (shared / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
            copy(folder)
            made = subprocess.run(["make", "proofs"], cwd=shared, capture_output=True, text=True, timeout=900)
            assert made.returncode == 0, f"{made.stdout[-2000:]}\n{made.stderr[-4000:]}"
            done.touch()
    return folder


@pytest.fixture
def coqc(built: Path, tmp_path: Path):
    """Compile a text beside the finished proofs: whether Coq accepts it, and what it says."""

    def run(text: str, name: str = "extra") -> tuple[bool, str]:
        path = tmp_path / f"{name}.v"
        path.write_text(text, "utf-8")
        words = ["coqc", "-w", "-notation-overridden,-ambiguous-paths", "-Q", str(built), "regard", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600)
        return done.returncode == 0, done.stdout + done.stderr

    return run
