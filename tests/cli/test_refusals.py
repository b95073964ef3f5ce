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
    assert main(["report", str(image_run.folder), "--image", str(file)]) == 1
    assert "more than 50,000,000" in capsys.readouterr().err


def test_a_machine_without_a_card_is_a_message(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    words = ["train", "demo", "--smoke", "--accelerator", "cuda", "--folder", str(tmp_path / "run")]
    assert main(words) == 1
    assert "accelerator is 'cuda', but this machine has only cpu" in capsys.readouterr().err
