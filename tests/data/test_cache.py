"""Data sets are found, fetched, unpacked and, where they cannot be had, asked for in plain words."""

import dataclasses
import gzip
import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from regard.data import DataMissingError, data_folder, fetch, load, names, status
from regard.data._cache import _lock, fetch_source
from regard.data._sources import CIFAR10, FASHION_MNIST, SOURCES, Download

RECORD = 3073


def md5(data):
    return hashlib.md5(data).hexdigest()


def batch_bytes(seed, count=20):
    bytes_ = random.Random(seed)
    return b"".join(bytes([index % 10]) + bytes_.randbytes(RECORD - 1) for index in range(count))


def idx(seed, shape):
    count = 1
    for size in shape:
        count *= size
    values = random.Random(seed).randbytes(count)
    if len(shape) == 1:
        values = bytes(value % 10 for value in values)
    return bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape) + values


def archive_of(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def cifar(site, folder, monkeypatch):
    """A small data set of CIFAR-10's form, at its home on the local server; gives its archive."""
    files = {name: batch_bytes(name) for name in CIFAR10.members}
    inside = {f"cifar-10-batches-bin/{name}": data for name, data in files.items()}
    packed = archive_of({"cifar-10-batches-bin/readme.html": b"hello", "../escape.bin": b"no", **inside})
    site.files["/cifar.tar.gz"] = packed
    download = dataclasses.replace(
        CIFAR10.downloads[0], addresses=(f"{site.address}/cifar.tar.gz",), size=len(packed), md5=md5(packed)
    )
    source = dataclasses.replace(
        CIFAR10, members={name: md5(data) for name, data in files.items()}, downloads=(download,), train_count=100
    )
    monkeypatch.setitem(SOURCES, "cifar10", source)
    return packed


@pytest.fixture
def fashion(site, folder, monkeypatch):
    """A small data set of Fashion-MNIST's form; gives its decompressed files."""
    shapes = {"images": (30, 28, 28), "labels": (30,)}
    files = {name: idx(name, shapes["images" if "images" in name else "labels"]) for name in FASHION_MNIST.members}
    for name, data in files.items():
        site.files[f"/{name}.gz"] = gzip.compress(data)
    source = dataclasses.replace(
        FASHION_MNIST,
        members={name: md5(data) for name, data in files.items()},
        downloads=tuple(
            Download(f"{name}.gz", (f"{site.address}/{name}.gz",), 1, md5(site.files[f"/{name}.gz"]), (name,))
            for name in files
        ),
        folders=("fashion-mnist", "FashionMNIST/raw", ".", str(folder / "system")),
        train_count=30,
    )
    monkeypatch.setitem(SOURCES, "fashion-mnist", source)
    return files


def test_an_archive_is_fetched_unpacked_and_read(cifar, folder, site):
    assert status("cifar10").state == "absent"
    data = load("cifar10", validation=20)
    assert (len(data.train), len(data.validation), len(data.test())) == (80, 20, 20)
    assert fetch("cifar10") == folder / "cifar10"
    assert status("cifar10").state == "present"
    assert len(site.requests) == 1
    left = {path.name for path in (folder / "cifar10").iterdir()}
    assert left == {*CIFAR10.members, ".lock"}, "neither the archive nor parts of files stay"
    assert not (folder / "escape.bin").exists()


def test_records_are_read_as_label_and_channels(cifar):
    data = load("cifar10", validation=0)
    record = batch_bytes("data_batch_2.bin")[3 * RECORD : 4 * RECORD]
    assert data.train.labels[20 + 3] == record[0]
    assert data.train.images[20 + 3].flatten().tolist() == list(record[1:])
    assert data.train.images[20 + 3, 1, 2, 5] == record[1 + 1024 + 2 * 32 + 5]


@pytest.mark.parametrize("place", ["cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "."])
def test_unpacked_batches_count_as_present(cifar, folder, site, place):
    (folder / place).mkdir(parents=True, exist_ok=True)
    for name in CIFAR10.members:
        (folder / place / name).write_bytes(batch_bytes(name))
    assert status("cifar10").state == "present"
    assert len(load("cifar10", download=False).test()) == 20
    assert site.requests == []


def test_an_archive_put_there_by_hand_is_unpacked_and_left(cifar, folder, site):
    (folder / "cifar10").mkdir()
    archive = folder / "cifar10" / "cifar-10-binary.tar.gz"
    archive.write_bytes(cifar)
    fetch("cifar10")
    assert site.requests == []
    assert archive.read_bytes() == cifar


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"\xff" + data[1:]], ids=["cut", "corrupt"])
def test_a_damaged_file_is_replaced(cifar, folder, site, damage):
    fetch("cifar10")
    path = folder / "cifar10" / "data_batch_3.bin"
    path.write_bytes(damage(path.read_bytes()))
    found = status("cifar10")
    assert found.state == "incomplete"
    assert any("data_batch_3.bin: checksum" in problem for problem in found.problems)
    load("cifar10", validation=0).train  # noqa: B018
    assert status("cifar10").state == "present"
    assert len(site.requests) == 2


def test_a_damaged_archive_is_replaced(cifar, folder, site):
    (folder / "cifar10").mkdir()
    (folder / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(cifar[:5000])
    fetch("cifar10")
    assert status("cifar10").state == "present"


def test_gzipped_files_are_judged_by_what_is_in_them(fashion, folder, site):
    """Another packing of the same bytes, in the system's folder, is as good; what is missing is fetched."""
    (folder / "system").mkdir()
    for name in list(fashion)[:3]:
        (folder / "system" / f"{name}.gz").write_bytes(gzip.compress(fashion[name], 1, mtime=5))
    data = load("fashion-mnist", validation=0)
    assert len(data.train) == 30
    assert site.requests == []
    assert len(data.test()) == 30
    assert [path for path, _ in site.requests] == [f"/{list(fashion)[3]}.gz"]


def test_plain_files_count_too(fashion, folder, site):
    (folder / "FashionMNIST/raw").mkdir(parents=True)
    for name, data in fashion.items():
        (folder / "FashionMNIST/raw" / name).write_bytes(data)
    assert load("fashion-mnist").test().images[4].flatten().tolist() == list(
        fashion["t10k-images-idx3-ubyte"][16 + 4 * 784 : 16 + 5 * 784]
    )
    assert site.requests == []


def test_a_truncated_gzip_file_is_replaced(fashion, folder, site):
    fetch("fashion-mnist")
    path = folder / "fashion-mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    assert status("fashion-mnist").state == "incomplete"
    fetch("fashion-mnist")
    assert status("fashion-mnist").state == "present"
    assert len(site.requests) == 5


def test_a_wrong_file_at_the_home_is_refused(fashion, folder, site, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    site.files["/train-images-idx3-ubyte.gz"] = gzip.compress(b"something else")
    with pytest.raises(DataMissingError, match=r"MD5 hash of downloaded file .* does not match"):
        fetch("fashion-mnist")
    assert not (folder / "fashion-mnist" / "train-images-idx3-ubyte.gz").exists()


def test_offline_and_absent_says_which_file_to_put_where(cifar, folder, site):
    site.files.clear()
    with pytest.raises(DataMissingError) as error:
        load("cifar10").train  # noqa: B018
    message = str(error.value)
    for words in ("cifar-10-binary.tar.gz", str(folder / "cifar10"), "data_batch_1.bin", "REGARD_DATA", "404"):
        assert words in message
    assert f"{site.address}/cifar.tar.gz" in message


def test_without_leave_nothing_is_downloaded(cifar, site):
    with pytest.raises(DataMissingError, match="nothing was downloaded"):
        load("cifar10", download=False).train  # noqa: B018
    assert site.requests == []


def test_an_archive_without_the_right_batches_is_refused(cifar, site, monkeypatch):
    packed = archive_of({"cifar-10-batches-bin/test_batch.bin": b"not the test batch"})
    site.files["/cifar.tar.gz"] = packed
    download = dataclasses.replace(SOURCES["cifar10"].downloads[0], md5=md5(packed))
    monkeypatch.setitem(SOURCES, "cifar10", dataclasses.replace(SOURCES["cifar10"], downloads=(download,)))
    with pytest.raises(DataMissingError, match="does not contain the official"):
        fetch("cifar10")


def test_a_file_in_the_folders_place_is_named(cifar, folder):
    (folder / "cifar10").write_text("a file where the folder should be")
    with pytest.raises(FileExistsError, match=str(folder / "cifar10")):
        fetch("cifar10")


@pytest.mark.parametrize(("number", "words"), [(28, "its disk is full"), (30, "it is not writable")])
def test_a_full_or_locked_disk_is_explained(cifar, folder, monkeypatch, number, words):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match=words) as error:
        fetch("cifar10")
    assert "REGARD_DATA" in str(error.value)
    assert str(folder / "cifar10") in str(error.value)
    assert status("cifar10").state == "absent"


def test_the_folder_is_the_users_choice_or_the_platforms(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("REGARD_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder().is_absolute()
    assert "regard" in data_folder().parts


def test_names_are_known(user_errors):
    assert names() == ("cifar10", "fashion-mnist", "fashion-mini")
    for call in (load, fetch, status):
        with pytest.raises(ValueError, match="name must be one of 'cifar10'"):
            call("cifar100")


PROGRAM = textwrap.dedent(
    """
    import dataclasses, json, sys
    from regard.data import status
    from regard.data._cache import fetch_source
    from regard.data._sources import SOURCES, Download

    given = json.loads(sys.argv[1])
    downloads = [Download(**{**given["download"], "addresses": tuple(given["download"]["addresses"])})]
    source = dataclasses.replace(SOURCES["cifar10"], members=given["members"], downloads=tuple(downloads))
    SOURCES["cifar10"] = source
    print("ready", flush=True)
    sys.stdin.readline()
    fetch_source(source)
    sys.exit(status("cifar10").state != "present")
    """
)


@pytest.fixture
def process(cifar, folder):
    """Starts other processes that fetch the same data set; each waits for a word before it begins."""
    source, started = SOURCES["cifar10"], []
    given = json.dumps({"members": source.members, "download": dataclasses.asdict(source.downloads[0])})

    def start():
        one = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, given],
            env={**os.environ, "REGARD_DATA": str(folder), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(one)
        return one

    yield start
    for one in started:
        one.kill()
        one.communicate()


def test_two_processes_that_fetch_at_once_fetch_once(process, site):
    other = process()
    assert other.stdout.readline() == "ready\n"
    site.behave(cut=50_000, stall=True)  # the first answer is slow: the second process comes in while it lasts
    other.stdin.write("go\n")
    other.stdin.flush()
    assert site.stalled.wait(20)
    with ThreadPoolExecutor() as pool:
        mine = pool.submit(fetch_source, SOURCES["cifar10"])
        time.sleep(0.3)
        assert not mine.done()
        assert len(site.requests) == 1, "this process waits"
        site.release.set()
        mine.result(timeout=30)
    _, errors = other.communicate(timeout=30)
    assert other.returncode == 0, errors
    assert errors == "", "quiet where there is no terminal"
    assert [wanted is None for _, wanted in site.requests] == [True, False], "the second request asks for the rest"
    assert status("cifar10").state == "present"


def test_a_killed_fetch_is_resumed_and_its_lock_is_free(process, site, folder):
    one = process()
    one.stdout.readline()
    site.behave(cut=200_000, stall=True)
    one.stdin.write("go\n")
    one.stdin.flush()
    assert site.stalled.wait(20)
    part = folder / "cifar10" / "cifar-10-binary.tar.gz.part"
    for _ in range(2000):
        if part.exists() and part.stat().st_size:
            break
        time.sleep(0.005)
    one.send_signal(signal.SIGKILL)
    one.wait()
    had = part.stat().st_size
    assert 0 < had <= 200_000
    assert status("cifar10").state == "absent"
    fetch_source(SOURCES["cifar10"])
    assert site.requests[-1] == ("/cifar.tar.gz", f"bytes={had}-")
    assert status("cifar10").state == "present"


def test_the_lock_is_held_by_one(tmp_path):
    from filelock import FileLock, Timeout

    with _lock(tmp_path, "a data set"), pytest.raises(Timeout):
        FileLock(tmp_path / ".lock").acquire(timeout=0)
    FileLock(tmp_path / ".lock").acquire(timeout=0).lock.release()
