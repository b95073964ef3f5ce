"""Every block of Python in the documentation runs: those of one page one after the other, as a reader would.

A block that is marked ``py`` instead of ``python`` is shown and not run: it needs a GPU or a download.
"""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {
    path.relative_to(DOCS).as_posix(): BLOCK.findall(path.read_text("utf-8")) for path in sorted(DOCS.rglob("*.md"))
}
RUNNABLE = [page for page, blocks in PAGES.items() if blocks]


def test_every_fence_is_of_a_known_kind():
    kinds = {"", "python", "py", "bash", "text"}
    for page in PAGES:
        fences = re.findall(r"^```(\w*)", (DOCS / page).read_text("utf-8"), re.MULTILINE)
        assert set(fences) <= kinds, page
        assert len(fences) % 2 == 0, page


def test_the_guides_have_examples():
    assert {"index.md", "guides/see.md", "guides/convert.md", "guides/train.md", "guides/teach.md"} <= set(RUNNABLE)


@pytest.mark.parametrize("page", RUNNABLE)
def test_its_examples_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, block in enumerate(PAGES[page], 1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
