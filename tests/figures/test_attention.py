"""``regard.figures.attention``: the map of a module, head by head."""

import pytest
import torch

import regard
from regard.maps import AttentionRecord, Layout, Map

pytest.importorskip("matplotlib")


def random_map(**more):
    return Map("attn", [AttentionRecord.given(torch.randn(2, 3, 5, 5).softmax(-1), **more)])


def drawn(figure):
    return [(panel.get_title(), torch.as_tensor(panel.images[0].get_array())) for panel in figure.axes if panel.images]


def test_every_head_has_a_panel():
    found = random_map()
    panels = drawn(regard.figures.attention(found, sample=1))
    assert [title for title, _ in panels] == ["head 0", "head 1", "head 2"]
    for (_, image), weights in zip(panels, found.weights[1], strict=True):
        torch.testing.assert_close(image, weights.double())


def test_heads_keep_their_numbers():
    panels = drawn(regard.figures.attention(random_map(heads=(1, 4, 7))))
    assert [title for title, _ in panels] == ["head 1", "head 4", "head 7"]


def test_a_query_is_drawn_on_the_image():
    found = random_map(layout=Layout((2, 2), 1))
    _, image = drawn(regard.figures.attention(found, query=0))[1]
    torch.testing.assert_close(image, found.weights[0, 1, 0, 1:].reshape(2, 2).double())
    with pytest.raises(ValueError, match="pass grid="):
        regard.figures.attention(random_map(), query=0)


def test_what_does_not_exist_is_an_error(tmp_path, user_errors):
    found = random_map(layout=Layout((2, 2), 1))
    with pytest.raises(ValueError, match="batch size 2"):
        regard.figures.attention(found, sample=2)
    with pytest.raises(ValueError, match="number of queries 5"):
        regard.figures.attention(found, query=5)
    with pytest.raises(TypeError, match="one map"):
        regard.figures.attention(found.weights)
    regard.figures.attention(found, path=tmp_path / "attention.png")
    assert (tmp_path / "attention.png").stat().st_size > 1000
