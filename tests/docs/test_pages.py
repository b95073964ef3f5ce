"""Every block of Python in the documentation runs: those of one page one after the other, as a reader would.

A block that is marked ``py`` instead of ``python`` is shown and not run: it needs a GPU or a download.
"""

import re
from pathlib import Path

import pytest

from regard import recipes
from regard.cli import commands
from regard.cli._train import parse

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
    assert {
        "index.md",
        "guides/change.md",
        "guides/see.md",
        "guides/long.md",
        "guides/convert.md",
        "guides/train.md",
        "guides/models.md",
        "guides/teach.md",
        "guides/your_network.md",
    } <= set(RUNNABLE)


@pytest.mark.parametrize("page", RUNNABLE)
@pytest.mark.usefixtures("user_errors")  # torch.export cannot trace the checks of shapes
def test_its_examples_run(page, tmp_path, monkeypatch, capsys, request):
    monkeypatch.chdir(tmp_path)
    if any("timm" in block for block in PAGES[page]):
        request.getfixturevalue("timm")
    names: dict[str, object] = {}
    for number, block in enumerate(PAGES[page], 1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)


def _commands(word):
    """Lines of bash blocks that begin with this word, on any page, without their comments."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```bash\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line.partition("#")[0].split() for line in lines if line.startswith(f"{word} ")]
    return found


def test_commands_on_the_pages_exist():
    make = (DOCS.parent / "Makefile").read_text("utf-8")
    text = "\n".join((DOCS / page).read_text("utf-8") for page in PAGES)
    targets = set(re.findall(r"`make (\w+)`", text)) | {words[1] for words in _commands("make")}
    assert {"demo", "test", "course"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", make, re.MULTILINE), f"make {target}"
    named = set(re.findall(r"`regard ([a-z]+)", text)) | {words[1] for words in _commands("regard")}
    assert {"train", "verify", "studio", "report"} <= named
    assert named <= set(commands())


def test_training_commands_on_the_pages_are_understood():
    lines = [words[2:] for words in _commands("regard") if words[1] == "train" and "--list" not in words]
    lines += [words[words.index("train") + 1 :] for words in _commands("torchrun")]
    lines += [words[words.index("scripts/slurm/train.sbatch") + 1 :] for words in _commands("sbatch")]
    assert len(lines) >= 8
    for name, *options in lines:
        recipe = recipes.get(name)
        chosen, _ = parse(recipe, [word for word in options if word != "--smoke"])
        assert chosen.name == name


def test_the_guide_names_every_recipe():
    text = (DOCS / "guides" / "train.md").read_text("utf-8").partition("## Which recipe\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w-]+)`", text))
    for name in recipes.names():
        assert {name, name.removesuffix("-short")} & named, name


def test_the_changelog_names_every_command():
    text = (DOCS.parent / "CHANGELOG.md").read_text("utf-8")
    assert all(f"`{name}`" in text for name in commands())
