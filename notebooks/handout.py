"""What is given away: the folder for students, and the autograder for Gradescope, each with the wheel inside."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from regard.course.grading import Package

_SETUP = """\
#!/usr/bin/env bash
# Installs what grading needs, at the versions the checks were made with. With a folder wheels/ nothing is downloaded.
set -euo pipefail
root=${AUTOGRADER:-/autograder}
cd "$root/source"
if ! command -v python3 > /dev/null; then
  apt-get update && apt-get install -y --no-install-recommends python3 python3-venv
fi
python3 -m venv "$root/venv"
pip() { "$root/venv/bin/python" -m pip install --quiet --constraint constraints.txt "$@"; }
if [ -d wheels ]; then
  pip --no-index --find-links wheels -r requirements.txt ./regard-*.whl
else
  # A CPU build of torch is a tenth of the size; any other build of that version grades the same. Where its address cannot
  # be reached, one attempt is enough.
  pip --retries 0 --timeout 15 --no-deps --index-url https://download.pytorch.org/whl/cpu torch || true
  pip -r requirements.txt ./regard-*.whl
fi
chmod -R go-rwx "$root/source"
"""

_RUN = """\
#!/usr/bin/env bash
# The checks go in by pipe and are no longer on the disk while a submission runs.
set -euo pipefail
cd "${AUTOGRADER:-/autograder}"
checks=$(cat source/checks.json)
student=$(venv/bin/python - <<'PY'
import json, pathlib
about = pathlib.Path("submission_metadata.json")
users = json.loads(about.read_text(encoding="utf-8")).get("users") if about.exists() else None
print(users[0]["email"] if users else "")
PY
)
rm -f source/checks.json
mkdir -p results
printf '%s' "$checks" | venv/bin/python -m regard.course - submission \\
  --student "$student" --gradescope results/results.json
"""

REQUIREMENTS = ("torch", "numpy", "matplotlib", "einops", "jaxtyping")


def wheel(project: Path, folder: Path) -> Path:
    """The wheel of this version, made by pip."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("regard-*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(project)]
    subprocess.run(command, check=True)
    (made,) = folder.glob("regard-*.whl")
    return made


def put(name: str, built: Path, folder: Path, checks: dict[str, str], made: Path) -> None:
    """A notebook into the folder that is handed out. Notebooks share it: each has checks in a folder of its own."""
    tests = folder / "tests" / name
    shutil.rmtree(tests, ignore_errors=True)
    tests.mkdir(parents=True)
    shutil.copy(built / "student" / f"{name}.ipynb", folder)
    for question, source in checks.items():
        (tests / f"{question}.py").write_text(source, encoding="utf-8")
    if not (folder / made.name).is_file() or (folder / made.name).read_bytes() != made.read_bytes():
        shutil.copy(made, folder)


def pinned(constraints: Path) -> list[str]:
    """What grading needs, each at the version of the constraints."""
    pins = dict(
        line.strip().split("==") for line in constraints.read_text(encoding="utf-8").splitlines() if "==" in line
    )
    return [f"{name}=={pins[name]}" for name in REQUIREMENTS]


def autograder(package: Package, folder: Path, made: Path, constraints: Path, wheels: Path | None = None) -> Path:
    """checks.json for the command line, and the zip that Gradescope takes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checks.json").write_text(package.to_json(), encoding="utf-8")
    path = folder / "autograder.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (("setup.sh", _SETUP), ("run_autograder", _RUN)):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o755 << 16
            archive.writestr(entry, text)
        archive.write(folder / "checks.json", "checks.json")
        archive.writestr("requirements.txt", "\n".join(pinned(constraints)) + "\n")
        archive.write(constraints, "constraints.txt")
        archive.write(made, made.name)
        for each in sorted(wheels.glob("*.whl")) if wheels else []:
            archive.write(each, f"wheels/{each.name}")
    return path
