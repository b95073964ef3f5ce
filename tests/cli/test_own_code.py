"""Recipes and networks of one's own, in a file or a module."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.cli import main
from regard.training import OwnCodeError, load_recipe
from regard.training._own_code import import_sources

OPTIONS = ["--accelerator", "cpu", "--no-tensorboard"]
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "your_recipe.md"


@pytest.fixture(autouse=True)
def own_notes(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def recipe_file(tmp_path):
    """The complete example of the guide."""
    [text] = re.findall(r"```python title=\"my_recipe.py\"\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(text.splitlines()) <= 31
    path = tmp_path / "my_recipe.py"
    path.write_text(text)
    return path


def fresh(*words):
    """The command in another process, which has imported nothing yet."""
    return subprocess.run([sys.executable, "-m", "regard.cli", *words], capture_output=True, text=True, check=False)


def test_the_guides_example_trains_and_every_command_knows_the_run(recipe_file, tmp_path):
    assert main(["train", "my_recipe.py", *OPTIONS, "--folder", "run", "--epochs", "1"]) == 0
    assert regard.load_run("run").summary["steps"] > 0
    done = fresh("evaluate", "run", "--accelerator", "cpu")
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout
    recipe_file.rename(tmp_path / "moved.py")
    gone = fresh("evaluate", "run", "--accelerator", "cpu")
    assert gone.returncode == 2
    assert f"trained with code from {recipe_file}" in gone.stderr
    assert len(gone.stderr.strip().splitlines()) == 1


def test_a_strangers_run_executes_nothing(recipe_file, tmp_path, monkeypatch):
    assert main(["train", "my_recipe.py", *OPTIONS, "--folder", "run", "--epochs", "1"]) == 0
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "other-machine"))
    (tmp_path / "my_recipe.py").write_text("print('executed')\n" + recipe_file.read_text())
    refused = fresh("evaluate", "run", "--accelerator", "cpu")
    assert refused.returncode == 2
    assert "executed" not in refused.stdout
    assert f"--import {recipe_file}" in refused.stderr
    trusted = fresh("evaluate", "run", "--accelerator", "cpu", "--import", str(recipe_file))
    assert trusted.returncode == 0, trusted.stderr


def test_a_run_from_another_machine_takes_the_file_from_where_it_is_now(recipe_file, tmp_path):
    assert main(["train", "my_recipe.py", *OPTIONS, "--folder", "run", "--epochs", "1"]) == 0
    (tmp_path / "here").mkdir()
    recipe_file.rename(tmp_path / "here" / "my_recipe.py")
    done = fresh("evaluate", "run", "--accelerator", "cpu", "--import", "here/my_recipe.py")
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("1 / 0", "", "raises ZeroDivisionError: division by zero"),
        ("def a():\n    raise KeyError('x')", "", r"a\(\) in .* raises KeyError: 'x'"),
        ("def a():\n    return 3", "", "must return a regard.training.Recipe, not int"),
        ("def a():\n    return 3\ndef b():\n    return 4", "", "has 2 recipes; choose one of .*:a, .*:b"),
        ("def a():\n    return 3", ":c", "has no recipe 'c'; there is a"),
        ("import sys; sys.exit(3)", "", "raises SystemExit: 3"),
        ("x = 1", "", "a function that takes no arguments and returns"),
        ("import nothing_of_this_name", "", "needs a module that is missing"),
    ],
)
def test_bad_recipes_are_one_sentence(tmp_path, text, name, message, capsys, user_errors):
    (tmp_path / "bad.py").write_text(text)
    assert main(["train", f"bad.py{name}", *OPTIONS]) == 2
    found = capsys.readouterr().err
    assert re.search(message, found)
    assert len(found.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("return self.classify(", "return (", r"must return scores \(batch, classes\) = \(128, 10\), got"),
        ("tokens = self", "raise ValueError('out of luck')\n        tokens = self", "out of luck"),
        ("return PatchNet(", "return nn.Identity(", r"the network \(Identity\) has no parameters to train"),
    ],
)
def test_a_network_that_fails_before_or_in_its_first_step_leaves_nothing(
    recipe_file, tmp_path, right, wrong, message, capsys, user_errors
):
    recipe_file.write_text(recipe_file.read_text().replace(right, wrong))
    assert main(["train", "my_recipe.py", *OPTIONS]) == 2
    found = capsys.readouterr().err
    assert re.search(message, found)
    assert len(found.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_an_import_of_nothing_is_one_sentence(capsys, user_errors):
    assert main(["train", "demo", "--import", "--smoke"]) == 2
    assert "--import needs the name of a module or the path of a .py file" in capsys.readouterr().err


def test_one_of_several_by_name(tmp_path):
    (tmp_path / "two.py").write_text(
        "import dataclasses, regard\n"
        "from regard.training import Recipe\n"
        "def small_one() -> Recipe:\n    return dataclasses.replace(regard.recipes.get('demo'), epochs=3)\n"
        "def other() -> Recipe:\n    return regard.recipes.get('demo')\n"
        "def helper(x):\n    return x\n"
    )
    assert load_recipe("two.py:small-one").epochs == 3
    with pytest.raises(OwnCodeError, match="2 recipes"):
        load_recipe("two.py")


def test_a_file_that_was_edited_is_read_again(tmp_path):
    text = (
        "import dataclasses, regard\nfrom regard.training import Recipe\n"
        "def own() -> Recipe:\n    return dataclasses.replace(regard.recipes.get('demo'), epochs=3)\n"
    )
    file = tmp_path / "edited.py"
    file.write_text(text)
    assert load_recipe("edited.py").epochs == 3
    file.write_text(text.replace("epochs=3", "epochs=4"))  # of the same length, within the same second
    assert load_recipe("edited.py").epochs == 4
    file.write_text(text.replace("epochs=3", "epochs=1/0"))
    with pytest.raises(OwnCodeError, match="ZeroDivisionError"):
        load_recipe("edited.py")
    file.write_text("an error\n")
    with pytest.raises(OwnCodeError, match="SyntaxError"):
        load_recipe("edited.py")
    file.write_text(text)
    assert load_recipe("edited.py").epochs == 3


def test_recipes_of_a_file_are_listed_and_its_name_needs_its_ending(recipe_file, capsys, user_errors):
    recipe_file.write_text(recipe_file.read_text().replace("-> Recipe:\n", '-> Recipe:\n    """A net of patches."""\n'))
    for typed in ("my_recipe.py", "my_recipe.py:patch-net"):
        assert main(["train", "--list", typed]) == 0
        assert capsys.readouterr().out.split("\n\n")[:2] == ["my_recipe.py:patch_net", "A net of patches."]
    assert main(["train", "--list", "my_recipe.py:nothing"]) == 2
    assert "there is patch_net" in capsys.readouterr().err
    assert main(["train", "my_recipe"]) == 2
    assert capsys.readouterr().err.strip().endswith("for your own file, type regard train my_recipe.py")


def sums_to_the_bias(run):
    """Whether the network is the variant of the guide's network that ignores its image."""
    network = run.network()
    return torch.allclose(network(torch.ones(1, 1, 28, 28)), network.classify.bias)


def trained(recipe, folder):
    return regard.train(recipe, folder=folder, accelerator="cpu", tensorboard=False)


def test_two_files_with_classes_of_one_name_are_kept_apart(recipe_file, tmp_path):
    """A copy of a recipe to try a variant: each run has the code of its own file, whichever was imported last."""
    (tmp_path / "variant.py").write_text(recipe_file.read_text().replace("tokens + self.heads(tokens)", "0 * tokens"))
    for name in ("my_recipe", "variant"):
        trained(dataclasses.replace(load_recipe(f"{name}.py"), epochs=1), name)
    assert sums_to_the_bias(regard.load_run("variant"))
    assert not sums_to_the_bias(regard.load_run("my_recipe"))
    assert regard.load_run("my_recipe").recipe.network == load_recipe("my_recipe.py").network
    trained(dataclasses.replace(load_recipe("my_recipe.py"), epochs=1), "my_recipe-2")
    assert not sums_to_the_bias(regard.load_run("my_recipe-2"))


def test_a_run_is_opened_with_the_classes_that_were_defined_last(recipe_file):
    trained(dataclasses.replace(load_recipe("my_recipe.py"), epochs=1), "run")
    recipe_file.write_text(recipe_file.read_text().replace("tokens + self.heads(tokens)", "0 * tokens"))
    assert not sums_to_the_bias(regard.load_run("run"))  # a process keeps the code that it has, as in training
    load_recipe("my_recipe.py")
    assert sums_to_the_bias(regard.load_run("run"))


@pytest.fixture
def two_files(recipe_file, tmp_path):
    """The guide's example as two files: the recipe, and its network in a module beside it."""
    parts, recipe = recipe_file.read_text().split("def patch_net")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "parts_beside.py").write_text(parts)
    names = "AdamWSettings, ImageTask, PatchNetSettings, Recipe"
    (folder / "recipe.py").write_text(f"from parts_beside import {names}\n\n\ndef patch_net{recipe}")
    yield folder
    sys.modules.pop("parts_beside", None)


def test_a_network_in_a_module_beside_the_recipe_is_found_again(two_files):
    trainer = fresh("train", "project/recipe.py", *OPTIONS, "--folder", "run", "--epochs", "1")
    assert trainer.returncode == 0, trainer.stderr
    done = fresh("evaluate", "run", "--accelerator", "cpu")
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout


def test_an_edited_module_beside_a_recipe_is_read_again(two_files):
    recipe, parts = two_files / "recipe.py", two_files / "parts_beside.py"
    shutil.copy(recipe, two_files / "second.py")
    known, text = [load_recipe(f"project/{name}.py") for name in ("recipe", "second")], parts.read_text()
    assert load_recipe("project/recipe.py") == known[0]  # of the same class: nothing changed
    assert known[0].network.dim == 27
    parts.write_text(text.replace("dim: int = 27", "dim: int = 101"))
    for name in ("recipe", "second", "recipe"):
        assert load_recipe(f"project/{name}.py").network.dim == 101
    parts.write_text("an error\n")
    with pytest.raises(OwnCodeError, match="SyntaxError"):
        load_recipe("project/recipe.py")
    parts.write_text(text)
    assert load_recipe("project/recipe.py").network.dim == 27


def test_a_module_of_another_folder_is_not_taken_for_the_one_beside_the_recipe(two_files, tmp_path):
    shutil.copytree(two_files, tmp_path / "other")
    assert load_recipe("project/recipe.py").network.dim == 27
    with pytest.raises(OwnCodeError, match=r"imports 'parts_beside' of its own folder, but .*project.parts_beside.py"):
        load_recipe("other/recipe.py")
    assert load_recipe("project/recipe.py").network.dim == 27


def test_smoke_sizes_follow_the_typed_ones(capsys):
    """The width that ``--smoke`` chooses fits the heads that were typed."""
    assert main(["train", "fashion-vit", "--smoke", *OPTIONS, "--folder", "run", "--network.heads", "3"]) == 0
    network = regard.load_run("run").recipe.network
    assert (network.heads, network.dim) == (3, 12)


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("text-mlm --network.heads 5", "--network.heads 5; the recipe text-mlm has --network.dim 64"),
        ("fashion-vit --smoke --network.heads 5 --network.dim=12", "--network.dim=12 and --network.heads 5"),
        ("demo --smoke --network.heads 5", "--network.heads 5; --smoke and the recipe choose --network.init grid"),
        *[(f"{name} --smoke --network.heads 0", "--network.heads 0")
          for name in ("demo", "fashion-vit", "case-transformer", "text-mlm")],
        ("a6-depthwise-short --smoke --network.init grid",
         "--network.init grid; --smoke and the recipe choose --network.attention depthwise"),
        ("demo --batch-size 10 --accumulate 3", "--batch-size 10 and --accumulate 3"),
        ("demo --network.patch-size 5", "--network.patch-size 5"),
        ("demo --task.label-smoothing 3", "--task.label-smoothing 3"),
        ("demo --task.validation 7000", "--task.validation 7000"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_named_as_typed(typed, named, capsys, user_errors, tmp_path):
    assert main(["train", *typed.split(), *OPTIONS]) == 2
    text = capsys.readouterr().err
    assert text.strip().endswith(f"({named})")
    assert len(text.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("recipe", ["case-transformer", "text-mlm"])
def test_every_smoke_width_follows_the_typed_heads(recipe):
    network = regard.recipes.get(recipe).network
    for heads in (3, 5):
        small = dataclasses.replace(network, heads=heads).small()
        assert (small.heads, small.dim % heads) == (heads, 0)


def test_import_needs_a_name_that_exists(capsys, user_errors):
    assert main(["train", "demo", "--import", "no_such_package.module"]) == 2
    assert "there is no module 'no_such_package.module'" in capsys.readouterr().err
    assert main(["train", "demo", "--import"]) == 2


@pytest.mark.parametrize("note", [b"[" * 100_000, b"{}", b"[1, null, [2]]", b"\xff", b"[" + b'"x",' * 10**6 + b'"x"]'])
def test_a_damaged_note_of_used_code_trusts_nothing(tmp_path, note):
    """The note says which code may be imported without being asked for: one that cannot be read names none."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "own_code.json").write_bytes(note)
    with pytest.raises(OwnCodeError, match="has not been used on this machine"):
        import_sources(["stranger.py"], "run")


def test_code_that_was_moved_is_asked_for(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "own_code.json").write_text(json.dumps(["/no/where/mine.py"]))
    with pytest.raises(OwnCodeError, match=r"cannot be used now: .* pass its new path \(--import folder/mine\.py\)"):
        import_sources(["/no/where/mine.py"], "run")
