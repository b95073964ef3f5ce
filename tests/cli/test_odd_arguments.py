"""Arguments that are empty, files in place of folders, and names that only look like files."""

import json
import math

import pytest
import torch

import regard
from regard.cli import main
from regard.models import ResNet18
from regard.training import load_recipe

RECIPE = """
import regard

def mine() -> "regard.training.Recipe":
    return regard.recipes.get("demo")
"""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "demo", "--smoke", "--folder", ""], "--folder is empty"),
        (["train", "demo", "--smoke", "--folder="], "--folder is empty"),
        (["convert", "run", "--output", ""], "--output is empty"),
        (["demo", "--smoke", "--folder", ""], "--folder is empty"),
        (["evaluate", ""], "an argument is empty"),
    ],
)
def test_an_empty_argument_is_not_the_current_folder(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["train", "demo", "--smoke", "--accelerator", "cpu"], "--folder"),
        (["demo", "--smoke"], "--folder"),
        (["convert", "{image}", "--to", "convolution"], "--output"),
        (["verify", "hw4-beta-spread"], "--answers"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_file_in_place_of_a_folder_is_said_before_the_work(image_run, tmp_path, capsys, words, option):
    file = tmp_path / "file"
    file.write_text("not a folder")
    for path in (file, file / "sub"):
        assert main([*(word.format(image=image_run.folder) for word in words), option, str(path)]) == 2
        shown = capsys.readouterr()
        assert f"{option} must be a folder, but {file} is a file" in shown.err
        assert not shown.out


def test_a_conversion_overwrites_only_an_earlier_one(image_run, tmp_path, capsys):
    words = ["convert", str(image_run.folder), "--to", "convolution", "--output"]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text("years of work")
    assert main([*words, str(tmp_path / "theirs")]) == 2
    assert "holds something other than an earlier conversion" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["config.json"]
    assert (tmp_path / "theirs" / "config.json").read_text() == "years of work"

    source = tmp_path / "source"
    ResNet18(width=4).save_pretrained(source)
    assert main(["convert", str(source), "--output", str(source)]) == 2
    assert sorted(path.name for path in source.iterdir()) == ["config.json", "model.safetensors"]
    for _ in range(2):
        assert main(["convert", str(source), "--output", str(tmp_path / "converted")]) == 0


@pytest.mark.parametrize(("value", "code", "says"), [(0.0, 0, "by 0.0e+00; before"), (math.nan, 1, "by nan")])
def test_a_conversion_of_odd_weights_is_json_that_parses(tmp_path, capsys, value, code, says):
    network = ResNet18(width=4)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(value)
    network.save_pretrained(tmp_path / "source")
    words = ["convert", str(tmp_path / "source"), "--input", "3", "16", "16", "--json", str(tmp_path / "report.json")]
    with pytest.warns(RuntimeWarning) if code else torch.no_grad():
        assert main(words) == code
    assert says in capsys.readouterr().out

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    rows = json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse)["rows"]
    assert (rows[0]["error"] is None) == math.isnan(value)


@pytest.mark.parametrize("as_json", [True, False])
def test_an_evaluation_that_is_not_finite_is_json_that_parses(image_run, capsys, monkeypatch, as_json):
    found = {"which": "last", "step": 2, "loss": math.inf, "accuracy": 0.1, "targets": 10, "accuracy_flip": 0.1}
    monkeypatch.setattr("regard.cli._evaluate.measure_run", lambda *args, **options: found)
    assert main(["evaluate", str(image_run.folder), *["--json"] * as_json]) == 0
    printed = capsys.readouterr().out
    written = (image_run.folder / "evaluation.json").read_text()
    for text in [written, printed] if as_json else [written]:
        assert "Infinity" not in text
        assert json.loads(text)["loss"] is None


def test_a_file_lies_in_any_folder(tmp_path, capsys):
    folder = tmp_path / "my.pyenv" / "recipes.python"
    folder.mkdir(parents=True)
    (folder / "recipes.py").write_text(RECIPE)
    assert load_recipe(str(folder / "recipes.py")).name == "demo"
    assert load_recipe(f"{folder / 'recipes.py'}:mine").name == "demo"
    assert main(["train", "my.python"]) == 2
    assert "there is no recipe 'my.python'" in capsys.readouterr().err


def test_own_code_is_imported_in_either_spelling(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    (tmp_path / "first_spelling.py").write_text("print('imported')")
    (tmp_path / "second_spelling.py").write_text("print('also imported')")
    assert (
        main(
            [
                "data",
                "path",
                f"--import={tmp_path / 'first_spelling.py'}",
                "--import",
                str(tmp_path / "second_spelling.py"),
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.splitlines()[:2] == ["imported", "also imported"]


def test_a_machine_with_too_little_memory_is_a_message(capsys, monkeypatch):
    def fill(arguments):
        torch.empty(2**60)

    monkeypatch.setattr("regard.cli._data.run", fill)
    assert main(["data"]) == 1
    assert "too little memory for these sizes" in capsys.readouterr().err


def test_a_lack_of_memory_without_words_has_no_empty_brackets(capsys, monkeypatch):
    def fill(arguments):
        raise MemoryError

    monkeypatch.setattr("regard.cli._data.run", fill)
    assert main(["data"]) == 1
    assert capsys.readouterr().err.endswith("too little memory for these sizes: choose smaller ones\n")


def test_a_recipe_comes_first_and_mistakes_go_to_stderr(capsys):
    assert main(["train", "--smoke", "demo"]) == 2
    shown = capsys.readouterr()
    assert "the first argument must be a recipe, got '--smoke'" in shown.err
    assert not shown.out


def test_a_missing_image_is_named_with_its_option(image_run, tmp_path, capsys):
    assert main(["report", str(image_run.folder), "--image", str(tmp_path / "none.png")]) == 2
    assert f"--image must be an image file, but {tmp_path / 'none.png'} does not exist" in capsys.readouterr().err


def test_a_model_function_that_returns_something_else_is_a_message(tmp_path, capsys):
    (tmp_path / "model.py").write_text("def make():\n    return 3\n")
    assert main(["studio", str(tmp_path), "--no-browser", "--model", f"{tmp_path / 'model.py'}:make"]) == 2
    assert "would fit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "name"), [("--picture", "figure.xyz"), ("--picture", "figure"), ("--html", "x.pdf")]
)
def test_an_ending_that_cannot_be_written_is_said_before_the_work(tmp_path, capsys, option, name):
    assert main(["verify", "hw4-beta-spread", option, str(tmp_path / name)]) == 2
    shown = capsys.readouterr()
    assert f"{option} must end in" in shown.err
    assert not shown.out


def test_what_was_asked_for_and_not_written_is_said(tmp_path, capsys):
    slow = next(claim.id for claim in regard.claims.all_claims() if claim.slow)
    assert main(["verify", slow, "--picture", str(tmp_path / "figure.png")]) == 0
    assert "there is no figure" in capsys.readouterr().err
    assert main(["verify", "hw4-beta-spread", "--answers", str(tmp_path / "pages")]) == 0
    assert "no page is written" in capsys.readouterr().err
