"""Check a release before it is published: build it, install it as a user would, and run what the README shows.

    make release-check        (or: python scripts/release/check.py [--keep FOLDER])

Builds the wheel and the source distribution; installs each into a clean environment, the wheel without and with its
extras; runs the README's examples and one notebook of the course there, from a folder outside the checkout; and checks
that version, changelog, citation and README name the same release. Only the standard library is needed to run it.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "solved" / "1-attention-by-hand.ipynb"
# What a plain `pip install regard` must be able to do; `prove` runs claims, which need the extra `train`.
CORE_EXAMPLES = ("Prove", "Speed up")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="leave the built files there")
    parser.add_argument("--tag", help="the tag to be published; must name the package's version, as in v0.1.0")
    chosen = parser.parse_args(arguments)
    if chosen.tag is not None and chosen.tag != f"v{version(ROOT)}":
        parser.error(f"the tag is {chosen.tag}, but the package is {version(ROOT)}")
    for problem in (problems := disagreements(ROOT)):
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return 1
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        wheel, sdist = build(chosen.keep or place / "dist")
        try_core(wheel, place / "core")
        try_everything(wheel, place / "all")
        try_core(sdist, place / "source")
    print(f"release {version(ROOT)} is ready: {wheel.name}, {sdist.name}")
    return 0


def version(root: Path) -> str:
    found = re.search(r'__version__ = "([^"]+)"', (root / "src/regard/_version.py").read_text("utf-8"))
    if found is None:
        raise SystemExit("src/regard/_version.py has no __version__")
    return found[1]


def disagreements(root: Path) -> list[str]:
    """Files that name another version than the package."""
    wanted = version(root)
    said = {
        "CITATION.cff": re.search(r"^version: (\S+)", (root / "CITATION.cff").read_text("utf-8"), re.MULTILINE),
        "CHANGELOG.md": re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE),
    }
    citation = re.search(r"version\s*=\s*\{([^}]+)\}", (root / "README.md").read_text("utf-8"))
    if citation is not None:  # the README may leave the citation to CITATION.cff
        said["README.md"] = citation
    return [
        f"{name} says {found[1] if found else 'no version'}, the package is {wanted}"
        for name, found in said.items()
        if found is None or found[1] != wanted
    ]


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution."""
    python = environment(folder.parent / "build-tools")
    install(python, "build")
    run(python, "-m", "build", "--outdir", folder, ROOT, cwd=folder.parent)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def try_core(distribution: Path, folder: Path) -> None:
    """Nothing but the core: it imports, and the examples that need no extra run."""
    python = environment(folder)
    install(python, "torch")
    install(python, str(distribution))
    for title, code in examples().items():
        if title in CORE_EXAMPLES:
            run_code(python, code, f"README, {title}, core, {distribution.name}", folder)


def try_everything(wheel: Path, folder: Path) -> None:
    """All extras: every example, the command line and one notebook."""
    python = environment(folder)
    install(python, "torch")
    install(python, f"{wheel}[all]", "nbclient", "nbformat")
    for title, code in examples().items():
        run_code(python, code, f"README, {title}, all extras", folder)
    run(python.parent / "regard", "verify", "e182", cwd=folder)
    code = (
        "import sys, nbformat\nfrom nbclient import NotebookClient\n"
        f"notebook = nbformat.read({str(NOTEBOOK)!r}, 4)\n"
        "NotebookClient(notebook, timeout=600, kernel_name='python3').execute()\n"
    )
    run(python, "-m", "ipykernel", "install", "--sys-prefix", "--name", "python3", cwd=folder)
    run_code(python, code, NOTEBOOK.name, folder)


def examples() -> dict[str, str]:
    """The README's Python examples by the heading they stand under."""
    found: dict[str, str] = {}
    heading = ""
    for part in re.split(r"^(## .*)$", (ROOT / "README.md").read_text("utf-8"), flags=re.MULTILINE):
        if part.startswith("## "):
            heading = part[3:].strip()
        elif code := re.search(r"```python\n(.*?)```", part, re.DOTALL):
            found[heading] = code[1]
    missing = set(CORE_EXAMPLES) - set(found)
    if missing:
        raise SystemExit(f"the README has no Python example under: {', '.join(sorted(missing))}")
    return found


def environment(folder: Path) -> Path:
    """A clean environment's Python."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def install(python: Path, *what: str) -> None:
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *what)


def run_code(python: Path, code: str, name: str, folder: Path) -> None:
    print(f"running {name}", flush=True)
    (folder / "work").mkdir(exist_ok=True)
    run(python, "-c", code, cwd=folder / "work")


def run(*command: str | Path, cwd: Path | None = None) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run([str(part) for part in command], cwd=cwd, env=clean, check=False)
    if finished.returncode:
        raise SystemExit(f"failed ({finished.returncode}): {' '.join(map(str, command))[:300]}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
