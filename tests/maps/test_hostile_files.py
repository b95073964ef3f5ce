"""Files of maps that lie: each is one clear error, and nothing outside the folder is read."""

import json
import os
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regard
from regard.maps import Maps
from regard.support.reading import UnreadableError


class Attention(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps") / "stream"
    model = Attention()
    with regard.capture(model, stream=folder) as maps:
        model(torch.rand(1, 2, 3, 4))
    assert len(maps) == 1
    return folder


@pytest.fixture
def folder(streamed, tmp_path):
    return shutil.copytree(streamed, tmp_path / "maps")


def change(folder, **fields):
    index = folder / "maps.json"
    about = json.loads(index.read_text())
    about["calls"][0] |= fields
    index.write_text(json.dumps(about))


def test_what_was_streamed_comes_back(folder):
    weights = Maps.load(folder)[0].weights
    assert weights.shape == (1, 2, 3, 3)
    assert torch.allclose(weights.sum(-1), torch.ones(1, 2, 3))


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "..", "", ".", "a/../../secret", "..\\secret", "c:secret", "nul", 3, None, ["x"], "x\x00y"],
)  # fmt: skip
def test_only_plain_names_inside_the_folder_are_read(folder, name):
    (folder.parent / "secret").write_bytes(bytes(72))
    change(folder, file=name)
    with pytest.raises(UnreadableError, match="plain names of files inside the folder"):
        Maps.load(folder)


@pytest.mark.parametrize("field", ["against", "kernel", "residual", "allowed", "axes", "over"])
@pytest.mark.parametrize("value", [[], {}, [[1]], True])
def test_what_is_said_about_a_map_is_text_or_a_number(folder, field, value):
    """Printing the maps would fail."""
    change(folder, **{field: value})
    with pytest.raises(UnreadableError, match=r"stands where a (text|number) is due"):
        Maps.load(folder)


def test_a_link_out_of_the_folder_is_not_followed(folder):
    (file,) = folder.glob("*.map")
    shutil.move(file, folder.parent / "outside.map")
    file.symlink_to(folder.parent / "outside.map")
    with pytest.raises(UnreadableError, match="outside its folder"):
        Maps.load(folder)


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop"])
def test_what_is_no_file_is_refused_without_waiting(folder, kind):
    (file,) = folder.glob("*.map")
    file.unlink()
    {"pipe": lambda: os.mkfifo(file), "folder": file.mkdir, "loop": lambda: file.symlink_to(file.name)}[kind]()
    with pytest.raises((UnreadableError, OSError)):
        Maps.load(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": [10**9, 10**9, 1, 1]}, {"shape": [1, 2, 3, 4]}, {"shape": [-1, 2, -3, 3]}, {"shape": "x"}, {"shape": None},
        {"shape": [1, 2, 3, 3.0]}, {"shape": [18]}, {"dtype": "int8"}, {"dtype": "Tensor"}, {"dtype": "float64"},
        {"dtype": ["float32"]}, {"whole": [1, 2]}, {"whole": None}, {"rows": [5]}, {"rows": [0, 1, -1]}, {"heads": ["a", "b"]},
        {"windows": {"grid": [10**6, 10**6], "window": [1, 1], "shift": [0, 0]}}, {"windows": 3}, {"windows": {"x": 1}},
        {"layouts": 3}, {"layouts": [[["a"], 0], None]}, {"layouts": []}, {"residual": "x"}, {"name": None, "whole": []},
    ],
)  # fmt: skip
def test_a_description_that_does_not_fit_is_refused(folder, fields):
    change(folder, **fields)
    with pytest.raises(UnreadableError):
        Maps.load(folder)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"calls": 3}', b'{"calls": [3]}', b"[" * 10**5, b"\xff", b'{"calls": [{}]}']
)
def test_an_index_of_another_form_is_refused(folder, content):
    (folder / "maps.json").write_bytes(content)
    with pytest.raises(UnreadableError):
        Maps.load(folder)


@pytest.mark.parametrize(
    "fields",
    [3, {}, {"token": "7", "grid": None, "grids": []}, {"token": 7, "grid": [2], "grids": []},
     {"token": 7, "grid": None, "grids": [[0, 2]]}, {"token": 7, "grid": [2.0, 2], "grids": []}],
)  # fmt: skip
def test_image_tokens_that_are_none_are_refused(folder, fields):
    index = folder / "maps.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "image_tokens": fields}))
    with pytest.raises(UnreadableError):
        Maps.load(folder)


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10**6), value=st.integers(0, 255), cut=st.integers(0, 10**6))
def test_a_damaged_file_is_read_or_refused(streamed, tmp_path_factory, at, value, cut):
    path = tmp_path_factory.mktemp("saved") / "maps.safetensors"
    Maps.load(streamed).save(path)
    content = bytearray(path.read_bytes())
    content[at % len(content)] = value
    path.write_bytes(content[: len(content) - cut % 40])
    try:
        Maps.load(path)
    except UnreadableError as error:
        named = str(path) in str(error)
    else:
        named = True
    assert named
