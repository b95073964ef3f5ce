"""A download is resumed, checked and never half-written, whatever the server does."""

import hashlib
import socket
import sys

import pytest
import requests

from regard.data import DownloadError
from regard.data._download import _session, download, note, part_of, progress

CONTENT = bytes(hashlib.sha256(b"regard").digest()) * 20_000  # 640 kB: several reads
MD5 = hashlib.md5(CONTENT).hexdigest()
CHUNK = 2**14  # bytes that an interruption may lose


def get(site, target, **options):
    return download([f"{site.address}/file"], target, MD5, pause=0.0, timeout=5.0, **options)


@pytest.fixture
def target(site, tmp_path):
    site.files["/file"] = CONTENT
    return tmp_path / "file"


def behave(site, *answers):
    for answer in answers:
        site.behave(**answer)


def test_a_download_arrives_and_leaves_nothing_else(site, target):
    seen = []
    get(site, target, report=lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_connection_is_resumed_from_where_it_stopped(site, target, reset):
    behave(site, {"cut": 300_000, "reset": reset}, {"cut": 100_000, "reset": reset})
    get(site, target)
    assert target.read_bytes() == CONTENT
    starts = [
        0 if wanted is None else int(wanted.removeprefix("bytes=").removesuffix("-")) for _, wanted in site.requests
    ]
    # A reset may lose more bytes that were on their way than an orderly end.
    assert starts == sorted(starts)
    if not reset:
        assert starts[0] == 0
        assert 300_000 - CHUNK < starts[1] <= 300_000
        assert starts[1] + 100_000 - CHUNK < starts[2] <= starts[1] + 100_000


def test_a_server_that_ignores_ranges_sends_everything_again(site, target):
    site.ranges = False
    behave(site, {"cut": 300_000})
    get(site, target)
    assert target.read_bytes() == CONTENT
    assert [wanted is None for _, wanted in site.requests] == [True, False]


def test_a_part_left_by_an_earlier_run_is_resumed(site, target):
    part_of(target).write_bytes(CONTENT[:1000])
    get(site, target)
    assert target.read_bytes() == CONTENT
    assert site.requests == [("/file", "bytes=1000-")]


def test_a_part_that_is_already_whole_is_taken(site, target):
    part_of(target).write_bytes(CONTENT)
    get(site, target)
    assert target.read_bytes() == CONTENT
    assert len(site.requests) == 1


@pytest.mark.parametrize("part", [b"x" * 1000, CONTENT + b"more"], ids=["corrupt", "too long"])
def test_a_bad_part_is_thrown_away(site, target, part):
    part_of(target).write_bytes(part)
    get(site, target)
    assert target.read_bytes() == CONTENT


def test_a_range_from_another_place_is_not_appended(site, target):
    part_of(target).write_bytes(CONTENT[:1000])
    behave(site, {"offset": 7})
    seen = []
    get(site, target, report=lambda done, total: seen.append(done))
    assert target.read_bytes() == CONTENT
    assert seen == sorted(seen), "refused before its bytes are taken"


def test_corruption_is_detected_and_replaced(site, target):
    behave(site, {"instead": b"x" + CONTENT[1:]})
    get(site, target)
    assert target.read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(site, target):
    behave(site, {"status": 503})
    get(site, target)
    assert target.read_bytes() == CONTENT


def test_wrong_bytes_never_get_the_name(site, target):
    site.files["/file"] = CONTENT[:-1] + b"x"
    target.write_bytes(b"what was there before")
    with pytest.raises(DownloadError, match="does not match the known hash") as error:
        get(site, target, attempts=2)
    assert target.read_bytes() == b"what was there before"
    assert not part_of(target).exists()
    assert len(error.value.tried) == 2


def test_the_next_address_is_tried(site, target):
    download([f"{site.address}/nothing", f"{site.address}/file"], target, MD5, pause=0.0)
    assert target.read_bytes() == CONTENT
    assert [path for path, _ in site.requests] == ["/nothing", "/file"], "a missing file is asked for once"


def test_an_unreachable_server_is_said_at_once(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/file"
        with pytest.raises(DownloadError) as error:
            download([address], tmp_path / "file", MD5, pause=100.0)
    assert len(error.value.tried) == 1
    assert address in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_silence_is_given_up_and_what_came_is_kept(site, target):
    behave(site, {"cut": 100_000, "stall": True})
    with pytest.raises(DownloadError, match="timed out"):
        download([f"{site.address}/file"], target, MD5, attempts=1, timeout=0.2)
    part = part_of(target).read_bytes()
    assert 100_000 - CHUNK < len(part) <= 100_000
    assert CONTENT.startswith(part)
    assert [path.name for path in target.parent.iterdir()] == ["file.part"]


def test_progress_is_shown_on_a_terminal_and_nowhere_else(site, target, capsys, monkeypatch):
    for terminal in (False, True):
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
        with progress("a file", len(CONTENT)) as report:
            get(site, target, report=report)
        note("a note")
        shown = capsys.readouterr()
        assert shown.out == ""
        assert ("a file" in shown.err) is terminal
        assert "a note" not in shown.err
        target.unlink()


def test_downloads_do_without_rich(site, target, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress("a file", len(CONTENT)) as report:
        get(site, target, report=report)
    assert target.read_bytes() == CONTENT


def test_a_mirror_that_sends_too_much_is_given_up(site, target):
    """Before its bytes fill the disk, whether it says how many they are or not."""
    site.files["/file"] = CONTENT * 50
    with pytest.raises(DownloadError, match="sends more than") as error:
        get(site, target, most=2 * len(CONTENT))
    assert len(error.value.tried) == 1
    assert not part_of(target).exists()
    assert not target.exists()


def test_encrypted_mirrors_come_first():
    from regard.data import names, source_of

    for name in names():
        for wanted in source_of(name).downloads:
            assert wanted.addresses[0].startswith("https://")


@pytest.mark.parametrize(
    "target", ["http://mirror.example/file", "//mirror.example/file", "file:///etc/passwd", "/file"]
)
def test_no_redirect_leads_from_an_encrypted_address_to_another(target):
    response = requests.Response()
    response.status_code, response.url, response.headers["location"] = 302, "https://data.example/file", target
    with _session(requests) as session:
        if target.startswith("/"):
            assert session.get_redirect_target(response) == target
        else:
            with pytest.raises(requests.RequestException, match="not encrypted"):
                session.get_redirect_target(response)
