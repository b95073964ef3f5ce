"""A write is complete or absent, whatever fails in between."""

import errno
import os
import threading

import pytest
import torch

import regard
from regard.support.files import (
    DiskFullError,
    check_writable,
    reporting_full_disk,
    sync_folder,
    write_atomic,
    write_output,
)


def test_a_file_is_replaced_and_nothing_else_stays(tmp_path):
    for content in (b"old", "new: ä"):
        write_atomic(tmp_path / "file", content)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "new: ä"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace"])
def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch, failing):
    write_atomic(tmp_path / "file", b"old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(failing, full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_a_view_or_figure_that_cannot_be_written_keeps_the_old_one(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    weights = torch.eye(3)[None]
    writes = {
        "page.html": regard.show(weights).save,
        "view.png": regard.show(weights).save,
        "map.svg": lambda path: regard.figures.gelu(path=path),
    }
    for name in writes:
        (tmp_path / name).write_bytes(b"old")
    monkeypatch.setattr("os.fsync", full)
    for name, write in writes.items():
        with pytest.raises(OSError, match=f"No space left on device: .*{name}"):
            write(tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(writes, b"old")


def test_concurrent_writers_leave_one_complete_file(tmp_path):
    contents = [bytes([number]) * 100_000 for number in range(4)]
    threads = [threading.Thread(target=write_atomic, args=(tmp_path / "file", content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_missing_folder_needs_no_sync(tmp_path):
    sync_folder(tmp_path / "nothing")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_names_the_file_and_its_size(tmp_path, number):
    says = pytest.raises(DiskFullError, match=r"no room for the report in .*it needs 2\.5 MB and .*B are free")
    with says, reporting_full_disk(tmp_path, "report", 2_500_000):
        raise OSError(number, os.strerror(number))


def test_other_errors_pass(tmp_path):
    with pytest.raises(PermissionError), reporting_full_disk(tmp_path, "report", 0):
        raise PermissionError(errno.EACCES, "denied")
    with pytest.raises(DiskFullError, match=r"^the first report$"), reporting_full_disk(tmp_path, "report", 0):
        raise DiskFullError(errno.ENOSPC, "the first report")


def test_what_a_user_names_is_replaced_unless_it_is_a_link_or_a_pipe(tmp_path):
    plain, link, pipe = (tmp_path / name for name in ("plain", "link", "pipe"))
    for path in (plain, plain):
        write_output(path, "old")
    link.symlink_to(plain)
    os.mkfifo(pipe)
    check_writable("--result", pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (link, pipe):
        write_output(path, "new")
    assert (link.is_symlink(), plain.read_text()) == (True, "new")
    assert (pipe.is_fifo(), os.read(reader, 9)) == (True, b"new")
    os.close(reader)


def test_an_error_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere/report\.html"):
        write_atomic(tmp_path / "nowhere" / "report.html", "text")
