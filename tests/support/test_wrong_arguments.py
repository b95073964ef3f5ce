"""A wrong argument is a clear error: a part of ``scripts/fuzz/arguments.py``, which tries 20,000 of them."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz" / "arguments.py"


def test_wrong_arguments_are_named():
    """In a process without the type checks of the test run, as users have it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "REGARD_TYPECHECK": "0"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "800", "0"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("0 unclear errors of 800 wrong calls")
