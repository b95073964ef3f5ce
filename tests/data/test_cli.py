"""``regard data`` on the command line."""

import pytest

from regard.cli import main
from regard.cli._data import run
from regard.data import DataMissingError


def test_list_says_what_is_here_and_where(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")  # nothing is cut to fit a narrow terminal
    (folder / "cifar10").mkdir()
    (folder / "cifar10" / "test_batch.bin").write_bytes(b"damaged")
    assert run(["list"]) == 0
    out = capsys.readouterr().out
    for words in (
        "cifar10",
        "not downloaded",
        "170 MB to download",
        "fashion-mini",
        "in the package, verified",
        "3.07 MB",
        "MIT",
    ):
        assert words in out
    assert f"data folder: {folder}" in out
    assert "test_batch.bin: checksum" in out


def test_path_prints_the_folder(folder, capsys):
    assert run(["path"]) == 0
    assert capsys.readouterr().out == f"{folder}\n"


def test_fetch_says_where_it_is(folder, capsys):
    assert run(["fetch", "fashion-mini"]) == 0
    assert capsys.readouterr().out.startswith("fashion-mini: ")


def test_fetch_fails_plainly(folder, capsys, monkeypatch):
    def fail(name):
        raise DataMissingError("Put that file there") if name == "cifar10" else OSError(28, "disk is full")

    monkeypatch.setattr("regard.data.fetch", fail)
    assert run(["fetch", "cifar10", "fashion-mnist"]) == 1
    errors = capsys.readouterr().err
    assert "Put that file there" in errors
    assert "fashion-mnist: " in errors
    assert "disk is full" in errors


def test_an_unknown_name_is_refused(capsys):
    assert main(["data", "fetch", "imagenet"]) == 2
    assert "unknown data set imagenet; choose from cifar10" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run([])
