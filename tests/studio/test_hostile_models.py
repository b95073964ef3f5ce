"""Models of the user's own that fail, and hostile requests to them: each is one message, never an answer of 5xx."""

import json
import struct

import pytest
import torch
from fastapi.testclient import TestClient
from torch import nn

from regard.maps import AttentionRecord, Map, Maps
from regard.studio import OwnModel, create_app, open_model
from regard.studio._own_model import _Looker


class Letters(nn.Module):
    """One attention over the letters; what it returns, and what it does first, is up to the test."""

    def __init__(self, result, before=lambda x: x):
        super().__init__()
        self.result, self.before = result, before

    def forward(self, x):
        x = self.before(x)
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        return self.result(x) if callable(self.result) else self.result


def read(text):
    return torch.randn(1, 1, max(len(text), 1), 4), list(text or " ")


def fail(error):
    raise error if isinstance(error, BaseException) else ValueError(error)


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no words")


nan, inf = float("nan"), float("inf")
MODELS = {
    **{type(error).__name__: (Letters(None, lambda x, error=error: fail(error)), read) for error in (
        ZeroDivisionError("x"), AttributeError("x"), AssertionError(), OSError(28, "full"), StopIteration(), MemoryError(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), NotImplementedError(), LookupError("x"), RecursionError("x"),
        Unprintable(), ValueError("\ud800"), torch.OutOfMemoryError("x"),
    )},
    "scores that are NaN": (Letters(torch.full((1, 5), nan)), read),
    "infinite scores": (Letters(torch.full((1, 5), inf)), read),
    "no classes": (Letters(torch.zeros(1, 0)), read),
    "no samples": (Letters(torch.zeros(0, 5)), read),
    "no tokens": (Letters(torch.zeros(1, 0, 5)), read),
    "complex scores": (Letters(torch.zeros(1, 5, dtype=torch.complex64)), read),
    "weights that are NaN": (Letters(None, lambda x: x * nan), read),
    "huge numbers": (Letters(None, lambda x: x * 1e38), read),
    "an input that is None": (Letters(None), lambda text: None),
    "an input that is text": (Letters(None), lambda text: text),
    "tokens of another number": (Letters(None), lambda text: (read(text)[0], ["a"])),
    "tokens that are half a pair": (Letters(None), lambda text: (read(text)[0], ["\ud800"] * max(len(text), 1))),
    "tokens that are no strings": (Letters(None), lambda text: (read(text)[0], [object()] * max(len(text), 1))),
    "nothing attends": (nn.Identity(), read),
}  # fmt: skip
TEXTS = ["look", "", "a" * 200, "\0\n\u202e", "é𝒳", "</script><script>alert(1)</script>"]


class Studio:
    """One studio for all models here, of which the test sets the current one."""

    def __init__(self, folder):
        model = OwnModel("changing", "text", None, lambda text: self.look(text))
        self.client = TestClient(create_app(folder, example=None, model=model), base_url="http://127.0.0.1")
        self.look = _Looker(Letters(None), read, "text")


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    return Studio(tmp_path_factory.mktemp("empty"))


@pytest.mark.parametrize("name", list(MODELS))
def test_a_model_that_fails_is_a_message(name, studio):
    studio.look, client = _Looker(*MODELS[name], "text"), studio.client
    for text in TEXTS:
        answer = client.post("/api/model/text", json={"text": text})
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            assert answer.json()["error"]
        else:  # JavaScript knows no NaN
            (length,) = struct.unpack("<I", answer.content[:4])
            json.loads(answer.content[4 : 4 + length], parse_constant=fail)
    assert client.get("/api/about").status_code == 200


BODIES = {
    "empty": b"", "list": b"[]", "number": b'{"text": 3}', "null": b'{"text": null}', "half a pair": b'{"text": "\\ud800"}',
    "deep": b"[" * 9000, "long": b'{"text": "' + b"a" * 10**6 + b'"}', "not UTF-8": b"\xff",
}  # fmt: skip


@pytest.mark.parametrize("body", list(BODIES.values()), ids=list(BODIES))
def test_a_body_of_another_form_is_refused(body, studio):
    studio.look = _Looker(Letters(None), read, "text")
    answer = studio.client.post("/api/model/text", content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize("value", [nan, inf, -1.0])
def test_saved_maps_without_sense_are_a_message(value, client_of, tmp_path):
    weights = torch.full((1, 2, 3, 3), value)
    saved = Maps([Map("attn", [AttentionRecord.given(weights, "attn")])]).save(tmp_path / "maps.safetensors")
    client = client_of(tmp_path, model=open_model(str(saved)))
    assert client.get("/api/model/maps").status_code < 500


SOURCES = {
    "an error": "def model():\n    return 1 / 0\n",
    "an exit": "import sys\ndef model():\n    sys.exit(3)\n",
    "an exit on import": "import sys\nsys.exit(3)\n",
    "not Python": "def model(:\n",
    "zeros": "\0\0",
    "recursion": "def model():\n    return model()\n",
    "an argument": "def model(x):\n    return x\n",
    "nothing": "def model():\n    pass\n",
    "another read": "from torch import nn\ndef model():\n    return nn.Identity(), print\n",
    "a built-in read": "from torch import nn\ndef model():\n    return nn.Identity(), dict.fromkeys\n",
}


@pytest.mark.parametrize("name", list(SOURCES))
def test_a_file_that_gives_no_model_is_refused_in_words(name, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCES[name])
    with pytest.raises((ValueError, TypeError), match="mine"):
        open_model(f"{path}:model")


@pytest.mark.parametrize(
    "source", ["", ":", "x:", ":x", "\0:x", "\ud800.py:x", "/dev/zero:x", "nowhere.safetensors", ".:model"]
)
def test_a_source_of_another_form_is_refused_in_words(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, OSError), match=r"\w"):
        open_model(source)


def test_maps_of_other_files_are_refused(tmp_path):
    for number, content in enumerate((b"", b"{}", b"\xff" * 9, json.dumps([1]).encode())):
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"safetensors"):
            open_model(str(path))
