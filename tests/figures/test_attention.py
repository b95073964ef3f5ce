"""``regard.figures.attention``: the map of a module, head by head."""

import math

import pytest
import torch

import regard
from regard.maps import AttentionRecord, Layout, Map

pytest.importorskip("matplotlib")


def random_map(**more):
    return Map("attn", [AttentionRecord.given(torch.randn(2, 3, 5, 5).softmax(-1), **more)])


def drawn(figure):
    """Title and picture of each panel; the last of the axes is the color bar."""
    return [(panel.get_title(), torch.as_tensor(panel.images[0].get_array())) for panel in figure.axes if panel.images]


def position(weights, keys):
    """Where weights lie on the scale of colors: 0 for none, log(1 + 1) / log(1 + keys) for uniform, 1 for all."""
    return torch.log1p(weights.double() * keys) / math.log1p(keys)


def test_every_head_has_a_panel():
    found = random_map()
    panels = drawn(regard.figures.attention(found, sample=1))
    assert [title for title, _ in panels] == ["head 0", "head 1", "head 2"]
    for (_, image), weights in zip(panels, found.weights[1], strict=True):
        torch.testing.assert_close(image, position(weights, 5))


def test_heads_keep_their_numbers():
    panels = drawn(regard.figures.attention(random_map(heads=(1, 4, 7))))
    assert [title for title, _ in panels] == ["head 1", "head 4", "head 7"]


def test_a_query_is_drawn_on_the_image():
    found = random_map(layout=Layout((2, 2), 1))
    _, image = drawn(regard.figures.attention(found, query=0))[1]
    torch.testing.assert_close(image, position(found.weights[0, 1, 0, 1:].reshape(2, 2), 5))
    with pytest.raises(ValueError, match="pass grid="):
        regard.figures.attention(random_map(), query=0)


def test_all_heads_share_one_scale_on_which_uniform_attention_is_pale():
    uniform, sharp = torch.full((50, 50), 1 / 50), torch.eye(50)
    figure = regard.figures.attention(Map("attn", [AttentionRecord.given(torch.stack([uniform, sharp])[None])]))
    (_, pale), (_, dark) = drawn(figure)
    assert float(pale.max()) == pytest.approx(math.log(2) / math.log(51))
    assert float(dark.max()) == 1
    names = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    assert names == ["0", "2 %\nuniform", "10 %", "50 %", "100 %"]


def test_a_map_larger_than_its_panel_keeps_its_sharpest_head():
    previous = torch.eye(1500).roll(-1, 1)
    [(_, image)] = drawn(regard.figures.attention(Map("attn", [AttentionRecord.given(previous[None, None])])))
    assert max(image.shape) < 500
    assert bool((image.amax(-1) == 1).all())


def test_signed_weights_diverge_from_zero():
    signed = torch.tensor([[1.2, -0.2], [-0.5, 1.5]])[None, None]
    [(_, image)] = drawn(figure := regard.figures.attention(Map("attn", [AttentionRecord.given(signed)])))
    assert image.sign().tolist() == signed[0, 0].sign().tolist()
    assert [panel.images[0].get_clim() for panel in figure.axes[:1]] == [(-1, 1)]


def test_what_does_not_exist_is_an_error(tmp_path, user_errors):
    found = random_map(layout=Layout((2, 2), 1))
    with pytest.raises(ValueError, match="batch size 2"):
        regard.figures.attention(found, sample=2)
    with pytest.raises(ValueError, match="number of queries 5"):
        regard.figures.attention(found, query=5)
    with pytest.raises(TypeError, match="one map"):
        regard.figures.attention(found.weights)
    regard.figures.attention(found, path=tmp_path / "new" / "attention.png")
    assert (tmp_path / "new" / "attention.png").stat().st_size > 1000
