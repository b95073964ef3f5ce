"""Names of files that are no UTF-8, and outputs that cannot hold every character."""

import io
import json
import os
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

import regard
from regard.cli import main
from regard.data.own_images import open_images
from regard.support.checks import UnusableInputError

LATIN = os.fsdecode(b"caf\xe9")  # as an archive from another system names a folder
SMOKE = ["--smoke", "--accelerator", "cpu", "--no-tensorboard"]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    random = np.random.default_rng(0)
    for kind in (LATIN, os.fsdecode(b"caf\xe8"), "dog"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / kind / f"{number} {LATIN}.png")
    open_images.cache_clear()
    return tmp_path / "photos"


def test_a_run_whose_classes_have_such_names_is_read_again(photos, capsys):
    typed = ["train", "demo", *SMOKE, "--task.data", "photos", "--folder", "run"]
    assert main(typed) == 0
    open_images.cache_clear()
    run = regard.load_run("run")
    run.network()
    assert run.recipe.task.class_names == ("caf\\xe8", "caf\\xe9", "dog")
    assert main(["evaluate", "run", "--accelerator", "cpu"]) == 0
    assert main([*typed, "--resume", "auto"]) == 0
    assert "damaged" not in capsys.readouterr().err


def test_a_folder_of_images_of_such_a_name_is_refused_before_the_work(photos, tmp_path, capsys):
    photos.rename(tmp_path / LATIN)
    assert main(["train", "demo", *SMOKE, "--task.data", LATIN, "--folder", "run"]) == 2
    assert "holds '/" in (said := capsys.readouterr().err)
    assert "rename the file or folder" in said
    assert not (tmp_path / "run").exists()


def test_whole_numbers_that_a_file_cannot_hold_are_refused_before_the_work(tmp_path):
    recipe = regard.recipes.get("demo").smoke()
    object.__setattr__(recipe, "seed", 2**70)
    with pytest.raises(UnusableInputError, match="cannot be saved and read again: the number 118059162071"):
        regard.train(recipe, folder=tmp_path / "run", accelerator="cpu", tensorboard=False)


def test_a_run_in_a_folder_of_such_a_name_has_a_summary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "demo", *SMOKE, "--folder", LATIN]
    monkeypatch.setattr(sys, "argv", ["regard", *arguments])
    assert main(arguments) == 0
    summary = json.loads((tmp_path / LATIN / "summary.json").read_text(encoding="utf-8"))
    assert summary["command"].endswith("--folder 'caf?'")
    shutil.rmtree(tmp_path / LATIN)  # pytest's own clean-up need not know such names


@pytest.mark.parametrize(
    ("encoding", "errors", "shown"),
    [
        ("cp1252", "strict", "? café ?"),
        ("ascii", "surrogateescape", "? caf? ?"),
        ("utf-8", "strict", "β café ?"),
    ],
)
def test_what_the_output_cannot_hold_becomes_a_question_mark(monkeypatch, encoding, errors, shown):
    monkeypatch.setattr("regard.cli._data.run", lambda arguments: print("β café \udce9") or 0)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, errors, write_through=True))
    assert main(["data"]) == 0
    assert written.getvalue().decode(encoding).strip() == shown


def test_a_terminal_that_takes_names_of_files_as_they_are_gets_them(monkeypatch):
    monkeypatch.setattr("regard.cli._data.run", lambda arguments: print(LATIN) or 0)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "utf-8", "surrogateescape", write_through=True))
    assert main(["data"]) == 0
    assert written.getvalue() == os.fsencode(LATIN) + b"\n"


def test_claims_as_json_are_the_same_in_every_encoding(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", write_through=True))
    assert main(["verify", "temperature", "--json"]) == 0
    assert "β" in str(json.loads(written.getvalue()))


def test_a_process_without_standard_output_and_error_works(tmp_path, monkeypatch):
    """As on Windows without a console, or after ``2>&-``."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["train", "demo", *SMOKE, "--folder", str(tmp_path / "run")]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--accelerator", "cpu"]) == 0
    assert main(["fly"]) == 2
    sys.stdout.close()
    sys.stderr.close()


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(monkeypatch, capsys):
    """As in ``regard data list | head -1``, for output of any length."""
    for length in (1, 100_000):
        monkeypatch.setattr("regard.cli._data.run", lambda arguments, length=length: print("x" * length) or 0)
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            monkeypatch.setattr(sys, "stdout", pipe)
            assert main(["data"]) == 1
        assert capsys.readouterr().err == ""
