"""What commands say where a folder, a machine or a file refuses."""

import json
import struct
import zlib

import pytest

from regard.cli import main
from regard.training import Run


@pytest.mark.parametrize("as_json", [True, False])
def test_numbers_are_shown_though_they_cannot_be_kept(image_run, capsys, monkeypatch, as_json):
    def refuse(run, name, content):
        raise PermissionError(13, "Permission denied", str(run.folder / name))

    monkeypatch.setattr(Run, "write", refuse)
    assert main(["evaluate", str(image_run.folder), "--accelerator", "cpu", *["--json"] * as_json]) == 1
    shown = capsys.readouterr()
    if as_json:
        assert json.loads(shown.out)["targets"] == 1000
    else:
        assert "test accuracy (1,000 images)" in shown.out
    assert "could not be saved in the run's folder" in shown.err
    assert "evaluation.json" in shown.err


@pytest.mark.parametrize("side", [8_000, 12_000, 40_000])
def test_a_picture_too_large_is_refused_in_our_words(image_run, tmp_path, capsys, side):
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    file = tmp_path / "huge.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)))
    with file.open("ab") as rest:
        rest.write(struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT")))
    assert main(["report", str(image_run.folder), "--image", str(file)]) == 2
    assert "more than 24,000,000" in capsys.readouterr().err


def test_a_machine_without_a_card_is_a_message(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    words = ["train", "demo", "--smoke", "--accelerator", "cuda", "--folder", str(tmp_path / "run")]
    assert main(words) == 2
    assert "accelerator is 'cuda', but this machine has only cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["train", "demo", "--smoke", "--accelerator", "cpu", "--folder", "{run}"], "--result"),
        (["convert", "{image}", "--to", "convolution"], "--json"),
        (["report", "{image}"], "--output"),
        (["verify", "hw4-beta-spread"], "--html"),
        (["verify", "hw4-beta-spread"], "--misconceptions"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_what_cannot_be_written_is_said_before_the_work(image_run, tmp_path, capsys, words, option):
    filled = [word.format(run=tmp_path / "run", image=image_run.folder) for word in words]
    (tmp_path / "file").write_text("not a folder")
    for path, says in ((tmp_path, "must be a file, but"), (tmp_path / "file" / "x.html", "cannot be written")):
        assert main([*filled, option, str(path)]) == 2
        shown = capsys.readouterr()
        assert f"{option} " in shown.err
        assert says in shown.err
        assert not shown.out
    assert not (tmp_path / "run").exists()


def test_the_best_of_a_run_without_validation_is_said_to_be_the_last(tmp_path, capsys):
    words = ["train", "demo", "--smoke", "--accelerator", "cpu", "--no-tensorboard", "--task.validation", "0"]
    assert main([*words, "--folder", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--which", "best", "--accelerator", "cpu"]) == 0
    assert "no checkpoint with a validation accuracy: the last one stands for the best" in capsys.readouterr().err
