"""The studio opens a model of the user's own, or saved maps, and shows what it attends to."""

import io
import json
import re
import struct
import sys
import textwrap
from types import ModuleType, SimpleNamespace

import pytest
import torch
from PIL import Image

import regard
from regard.studio import open_model

CODE = """
    import torch
    from torch import nn
    from regard.models import VisionTransformer

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Embedding(256, 16)
            self.layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
            self.head = nn.Linear(16, 256)

        def forward(self, letters):
            ahead = nn.Transformer.generate_square_subsequent_mask(letters.shape[1])
            return self.head(self.layer(self.embed(letters), ahead))

    class Encoder(Reader):
        def forward(self, letters):
            return self.layer(self.embed(letters))

    class Masked(Reader):
        def forward(self, letters):
            return self.head(self.layer(self.embed(letters)))

    class Tagger(Reader):
        def forward(self, letters):
            return super().forward(letters)[..., :7]

    def text_model():
        def read(text):
            return torch.tensor([list(text.encode())]), list(text)
        return Reader(), read

    def encoder():
        return Encoder(), text_model()[1]

    def masked():
        return Masked(), text_model()[1]

    def tagger():
        return Tagger(), text_model()[1]

    def image_model():
        torch.manual_seed(0)
        def read(image):
            return nn.functional.interpolate(image[None].float() / 255, (24, 24))
        return VisionTransformer(24, 4, 3, dim=16, depth=2, heads=2), read

    def alone():
        return Reader()

    def unclear():
        return Reader(), lambda thing: thing
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "my_models.py"
    path.write_text(textwrap.dedent(CODE), encoding="utf-8")
    return path


def header(answer):
    assert answer.status_code == 200, answer.text
    (length,) = struct.unpack("<I", answer.content[:4])
    return json.loads(answer.content[4 : 4 + length])


def test_a_text_is_read_and_answered(file, client_of, tmp_path):
    client = client_of(tmp_path, model=open_model(f"{file}:text_model"))
    assert client.get("/api/about").json()["model"]["takes"] == "text"
    shown = header(client.post("/api/model/text", json={"text": "look here"}))
    assert shown["view"] == "tokens"
    assert shown["meta"]["tokens"]["text"] == list("look here")
    model, read = open_model(f"{file}:text_model").look.model, open_model(f"{file}:text_model").look.read
    with torch.no_grad():
        expected = model(read("look here")[0])[0, -1].softmax(-1).max()
    assert shown["meta"]["studio"]["guesses"][0]["chance"] == pytest.approx(float(expected), rel=1e-4)
    unnamed = header(client.post("/api/model/text", json={"text": "é"}))  # two bytes, one name
    (note,) = (note for note in unnamed["meta"]["notes"] if "token names are not shown" in note)
    assert re.search(r"\b1\b.*\b2\b", note)
    assert client.get("/api/model/maps").status_code == 409


@pytest.mark.parametrize("name", ["encoder", "masked", "tagger"])
def test_rows_that_do_not_score_the_next_token_are_no_guesses(file, client_of, tmp_path, name):
    """States of an encoder were shown as the chances of tokens; so were the scores of a tagger and of a masked model."""
    client = client_of(tmp_path, model=open_model(f"{file}:{name}"))
    shown = header(client.post("/api/model/text", json={"text": "look here"}))
    assert "guesses" not in shown["meta"]["studio"]


def test_an_image_is_read_and_answered(file, client_of, tmp_path):
    client = client_of(tmp_path, model=open_model(f"{file}:image_model"))
    content = io.BytesIO()
    Image.new("RGB", (40, 30), "teal").save(content, "PNG")
    shown = header(client.post("/api/model/image", files={"image": content.getvalue()}))
    assert shown["view"] == "image"
    assert shown["meta"]["image"] is True
    assert [guess["label"] for guess in shown["meta"]["studio"]["guesses"]].count("class 0") == 1
    assert client.post("/api/model/image", files={"image": b"no image"}).status_code == 400
    assert client.post("/api/model/text", json={"text": "x"}).status_code == 409


def test_saved_maps_are_opened(client_of, tmp_path):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(torch.randn(1, 5, 8))
    saved = maps.save(tmp_path / "kept.safetensors")
    client = client_of(tmp_path, model=open_model(str(saved)))
    assert client.get("/api/about").json()["model"] == {
        "name": "kept.safetensors",
        "takes": "nothing",
        "suggestion": None,
    }
    assert header(client.get("/api/model/maps"))["meta"]["layers"][0]["keys"] == 5


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nonsense", "package.module:function"),
        ("{file}:missing", "has no function 'missing'"),
        ("{file}:alone", "returned a Reader alone"),
        ("{file}:unclear", "no parameter named text or image"),
        ("no.such.module:function", "there is no module 'no.such.module'"),
    ],
)
def test_what_cannot_be_opened_says_what_would_fit(file, source, says):
    with pytest.raises(Exception, match=says):
        open_model(source.format(file=file))


def test_without_a_model_there_is_none(client_of, tmp_path):
    client = client_of(tmp_path)
    assert client.get("/api/about").json()["model"] is None
    assert client.post("/api/model/text", json={"text": "x"}).status_code == 409


class Letters:
    """What a tokenizer of transformers looks like, without a vocabulary to download."""

    def __call__(self, text, return_tensors):
        return {"input_ids": torch.tensor([[ord(letter) % 50 for letter in text]])}

    def convert_ids_to_tokens(self, ids):
        return [f"t{one}" for one in ids]

    def decode(self, ids):
        return f"<{ids[0]}>"


class LanguageModel(torch.nn.Module):
    """Takes and returns what a model of transformers does."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)

    def forward(self, input_ids):
        ahead = torch.nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1])
        return SimpleNamespace(logits=self.layer(self.embed(input_ids), ahead) @ self.embed.weight.T)


def test_a_tokenizer_names_tokens_and_guesses(client_of, tmp_path, monkeypatch):
    made_up = ModuleType("made_up")
    made_up.language_model = lambda: (LanguageModel(), Letters())
    monkeypatch.setitem(sys.modules, "made_up", made_up)
    client = client_of(tmp_path, model=open_model("made_up:language_model"))
    shown = header(client.post("/api/model/text", json={"text": "abcd"}))
    assert shown["meta"]["tokens"]["text"] == ["t47", "t48", "t49", "t0"]
    assert shown["meta"]["studio"]["guesses"][0]["label"].startswith("<")
