"""Files that may be hostile: regular, limited, finite, inside their folder, or an error in words."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.support import reading
from regard.support.reading import (
    UnreadableError,
    file_inside,
    is_plain_name,
    open_regular,
    parse_json,
    read_json,
    read_limited,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcé😀", max_size=5), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(values)
def test_json_comes_back_as_it_was(value):
    for ascii in (True, False):
        assert parse_json(json.dumps(value, ensure_ascii=ascii).encode()) == value


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_anything_is_json_or_a_value_error(content):
    try:
        parse_json(content)
    except ValueError:
        return


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[Infinity]",
        "1e999",
        "9" * 30,
        "9" * 5000,
        str(2**63),
        '"\\ud800"',
        '{"\\udc00": 1}',
        "[" * 65 + "]" * 65,
    ],
)
def test_what_not_every_reader_understands_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


@given(st.text(max_size=30))
def test_a_plain_name_stays_in_its_folder(name):
    if is_plain_name(name):
        assert os.path.normpath(os.path.join("folder", name)) == os.path.join("folder", name)  # noqa: PTH118
        assert "\\" not in name


def test_files_are_read_up_to_their_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"[1]")
    assert read_limited(path, 3) == b"[1]"
    assert read_json(path) == [1]
    with pytest.raises(UnreadableError, match="more than 2"):
        read_limited(path, 2)
    with pytest.raises(FileNotFoundError):
        read_limited(tmp_path / "none", 3)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_pipes_folders_and_links_that_lead_out_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "inner").mkdir()
    (tmp_path / "outside").write_bytes(b"x")
    (tmp_path / "inner" / "link").symlink_to(tmp_path / "outside")
    for name in ("pipe", "inner"):
        with pytest.raises(UnreadableError, match=r"a pipe|a folder"):
            read_limited(tmp_path / name, 10)
    with pytest.raises(UnreadableError, match="outside its folder"):
        file_inside(tmp_path / "inner", "link")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_file_that_becomes_a_pipe_while_it_is_opened_keeps_nobody_waiting(tmp_path, monkeypatch):
    path = tmp_path / "file"
    os.mkfifo(path)
    monkeypatch.setattr(reading, "check_regular", lambda *_: 0)  # it was a file when it was looked at
    with pytest.raises(UnreadableError, match="is a pipe"):
        open_regular(path)
