"""What the README shows runs as it stands."""

import re
from pathlib import Path

import pytest

EXAMPLES = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "README.md").read_text("utf-8"), re.S)


def test_it_has_an_example_to_see_to_prove_and_to_speed_up():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("code", EXAMPLES, ids=["see", "prove", "speed-up"])
def test_an_example_runs_in_ten_lines(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    exec(compile(code, "README.md", "exec"), {})
