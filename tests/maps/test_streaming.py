"""A folder of streamed maps has all that the capture had: what was missed, contributions, and maps without rows."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import regard
from regard.maps import AttentionRecord, Map, Maps
from regard.support.reading import UnreadableError


class Linear(nn.Module):
    """Linear attention, which has no map."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        return self.q(x).softmax(-1) @ (self.k(x).softmax(1).mT @ self.v(x))


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)


def captured(model, x, **options):
    with torch.no_grad(), regard.capture(model, **options) as maps:
        model(x)
    return maps


def test_a_folder_says_what_was_missed(tmp_path):
    model = nn.Sequential(encoder(), Linear())
    maps = captured(model, torch.randn(2, 6, 8), stream=tmp_path)
    maps.notes.append("not in the folder, which is complete when the block ends")
    read = Maps.load(tmp_path)
    assert maps.missed
    assert read.missed == maps.missed
    assert read.notes == maps.notes[:-1]


def test_a_folder_says_which_tokens_are_images(tmp_path):
    model = encoder()
    model.config = SimpleNamespace(image_token_id=7, mm_tokens_per_image=4)
    maps = captured(model, torch.randn(2, 6, 8), stream=tmp_path)
    assert Maps.load(tmp_path).image_tokens == maps.image_tokens == regard.maps.ImageTokens(7, (2, 2))


@pytest.mark.parametrize("options", [{}, {"rows": [3, 1], "heads": [1]}])
def test_a_folder_has_contributions(tmp_path, options):
    maps = captured(encoder(), torch.randn(2, 6, 8), stream=tmp_path, values=True, **options)
    read = Maps.load(tmp_path)
    for name, found in maps.items():
        torch.testing.assert_close(read[name].contributions(), found.contributions())
        torch.testing.assert_close(read[name].head_contributions(), found.head_contributions())


def test_a_folder_has_maps_without_rows(tmp_path):
    model, steps = encoder(), [torch.randn(1, n, 8) for n in (3, 1, 2)]
    with torch.no_grad(), regard.capture(model, rows=slice(1, None), stream=tmp_path, values=True) as maps:
        for x in steps:
            model(x)
    read = Maps.load(tmp_path)
    assert list(read) == list(maps)
    shapes = [tuple(call.weights.shape) for call in read[0].calls]
    assert shapes == [(1, 2, 2, 3), (1, 2, 0, 1), (1, 2, 1, 2)]
    index = tmp_path / "maps.json"
    about = json.loads(index.read_text())
    [empty] = [call for call in about["calls"] if "file" not in call][:1]
    empty["shape"] = [1, 2, 7, 1]
    index.write_text(json.dumps(about))
    with pytest.raises(UnreadableError, match="names no file"):
        Maps.load(tmp_path)


def test_a_folder_of_overviews_is_not_written_over(tmp_path):
    """Its queries and keys are mapped into memory: rows that are computed from others would be wrong."""
    model, x = encoder(), torch.randn(1, 6, 8)
    maps = captured(model, x, stream=tmp_path, overview=2, keep_keys=True)
    row = maps[0].row(4).clone()
    with pytest.raises(ValueError, match="already contains maps"):
        regard.capture(model, stream=tmp_path, overview=2, keep_keys=True)
    torch.testing.assert_close(maps[0].row(4), row)


def test_negative_weights_are_saved_in_bytes(tmp_path):
    """Those of differential attention, of which one map is subtracted from another."""
    weights = torch.rand(2, 3, 4, 4).softmax(-1) - 0.6 * torch.rand(2, 3, 4, 4).softmax(-1)
    weights[:, 0] = weights[:, 0].abs()
    maps = Maps([Map("attn", [AttentionRecord.given(weights, "attn")])])
    read = Maps.load(maps.save(tmp_path / "maps.safetensors", dtype="uint8"))
    step = (weights.amax((-2, -1)) - weights.amin((-2, -1)).clamp_max(0)) / 255
    assert bool(((read[0].weights - weights).abs().amax((-2, -1)) <= 0.51 * step).all())
