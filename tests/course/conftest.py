"""Tests here share course_notebooks.py, which they import by its name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
