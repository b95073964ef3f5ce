"""``regard.figures.attention``: the map of a module, head by head."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import regard
from regard.figures import weight_map
from regard.maps import AttentionRecord, Layout, Map, Overview, visible_keys
from regard.views import _static_figure as static_figure

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


def test_a_query_is_called_by_its_number_where_rows_were_chosen():
    found = random_map(layout=Layout((2, 2), 1), rows=(4, 0, 3, 1, 2))
    figure = regard.figures.attention(found, query=3)
    assert figure.get_suptitle() == "attn, query 3"
    _, image = drawn(figure)[1]
    torch.testing.assert_close(image, position(found.weights[0, 1, 2, 1:].reshape(2, 2), 5))
    some = Map("attn", [AttentionRecord.given(torch.rand(1, 1, 1, 5), rows=(3,), layout=Layout((2, 2), 1))])
    with pytest.raises(ValueError, match=r"query must be one of the rows of 'attn' that were kept, \[3\], got 0"):
        regard.figures.attention(some, query=0)


def captured(prefix, **options):
    pool = "class" if prefix else "average"
    torch.manual_seed(0)
    model = regard.models.VisionTransformer(16, 4, 3, dim=12, depth=1, heads=3, pool=pool).eval()
    with torch.no_grad(), regard.capture(model, **options) as maps:
        model(torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    return maps


@pytest.mark.parametrize("prefix", [0, 1])
def test_rows_and_heads_on_an_image_keep_their_numbers(prefix):
    image, query = torch.zeros(3, 16, 16, dtype=torch.uint8), (1, 2)
    number = 0 if prefix else 6
    panels = drawn(regard.figures.image_attention(captured(prefix), image, query=query))
    chosen = captured(prefix, heads=[2, 0], rows=[3, number])
    some = drawn(regard.figures.image_attention(chosen, image, query=query))
    assert [title for title, _ in some[1:]] == ["head 2", "head 0"]
    for (_, found), (_, expected) in zip(some[1:], (panels[3], panels[1]), strict=True):
        torch.testing.assert_close(found, expected)
    assert regard.figures.image_attention(captured(prefix, rows=[3]), image, query=query) is None


def test_labels_are_no_formulas_and_may_hold_halves_of_characters():
    tokens = ["$_{$", "\ud83d", "a"]
    weights = torch.eye(3)
    figure = regard.figures.alignment(weights, tokens, tokens)
    figure.canvas.draw()
    shown = static_figure.figure(regard.show(weights[None], tokens=tokens).payload)
    shown.canvas.draw()
    assert [label.get_text() for label in shown.axes[0].get_xticklabels()] == [r"\$_{\$", "?", "a"]


@pytest.mark.parametrize("rows", [[0], [0, 4], [3, 1]])
def test_rows_of_a_causal_map_see_as_many_keys_as_in_the_whole_map(rows):
    logits = torch.randn(2, 5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
    weights = logits.softmax(-1)[:, rows]
    counts, mask = visible_keys(weights, "sdpa", rows, 5)
    assert counts.tolist() == [row + 1 for row in rows]
    assert torch.equal(mask, torch.ones(5, 5).tril().bool()[rows])


@pytest.mark.parametrize("tokens", [5, 129, 1000])
@pytest.mark.parametrize("key", [0, -2])
def test_heads_that_all_look_at_one_key_are_no_mask(tokens, key):
    """A mask that leaves one key would make all of the attention as pale as uniform attention."""
    weights = torch.zeros(1, 2, tokens, tokens)
    weights[..., key] = 1
    if key == 0:  # causal: no weight after the query
        assert visible_keys(weights[0])[0].tolist() == list(range(1, tokens + 1))
    else:
        assert visible_keys(weights[0])[0].tolist() == [tokens] * tokens
    image = regard.figures.attention(Map("x", [AttentionRecord.given(weights)])).axes[0].images[0].get_array()
    assert image.max() == 1
    assert image[-1].max() == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("queries", "keys"), [(1, 50), (2, 3000)])
def test_a_map_of_few_queries_has_room_for_its_rows(queries, keys):
    weights, visible = torch.rand(queries, keys).softmax(-1), torch.full((queries,), keys)
    for labels in (None, [f"international{key}" for key in range(keys)]):
        pair = [(None, labels)] * 2
        for figure in (
            regard.figures.weight_map(weights, visible, keys=labels, title="x"),
            regard.figures.weight_maps([weights] * 2, ["a", "b"], pair, title="x"),
        ):
            figure.draw_without_rendering()
            assert figure.axes[0].get_window_extent().height > 0.3 * figure.dpi


def long_map(tokens=500, cells=20):
    """Two heads and their overview: one looks at the first token alone, one at all tokens evenly."""
    weights = torch.zeros(1, 2, tokens, tokens)
    weights[0, 0, :, 0], weights[0, 1] = 1, 1 / tokens
    record = AttentionRecord.given(weights, heads=(3, 5))
    overview = Overview.empty((1, 2, tokens, tokens), cells, torch.device("cpu"))
    parts = weights.unflatten(3, (cells, -1)).unflatten(2, (cells, -1))
    overview.mass.copy_(parts.sum((3, 5)))
    overview.largest.copy_(parts.amax((3, 5)))
    return Map("attn", [record]), overview


def test_a_large_map_shows_the_largest_weights_or_the_mass():
    found, _ = long_map()
    cells = 128  # of about 4 × 4 weights
    sink, even = (image for _, image in drawn(regard.figures.attention(found)))
    assert sink.shape == (cells, cells)
    torch.testing.assert_close(sink[:, 0], torch.ones(cells).double())
    sink, uniform = (image for _, image in drawn(regard.figures.attention(found, pool="mass")))
    torch.testing.assert_close(uniform, even)  # uniform attention looks the same
    torch.testing.assert_close(sink[:, 0], position(torch.tensor(1 / 4), 500).expand(cells))
    assert float(sink[:, 1:].max()) == 0


@pytest.mark.usefixtures("user_errors")
def test_a_way_to_pool_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="pool must be"):
        regard.figures.attention(random_map(), pool="mean")


def test_an_overview_is_drawn_in_its_cells():
    """At any length a head that looks at one key is dark in one column."""
    found, overview = long_map()
    found.latest.overview, found.latest.stored = overview, None
    panels = drawn(figure := regard.figures.attention(found))
    assert [title for title, _ in panels] == ["head 3", "head 5"]
    assert figure.get_suptitle().replace("\n", " ") == "attn, in cells of 25 × 25 tokens"
    (_, sink), (_, even) = panels
    torch.testing.assert_close(sink[:, 0], torch.ones(20).double())
    assert float(sink[:, 1:].max()) == 0
    torch.testing.assert_close(even, position(torch.full((20, 20), 1 / 20), 20))
    (_, sink), (_, even) = drawn(regard.figures.attention(found, pool="largest"))
    torch.testing.assert_close(sink[:, 0], torch.ones(20).double())
    torch.testing.assert_close(even, position(torch.full((20, 20), 1 / 500), 500))
    with pytest.raises(ValueError, match="sample must"):
        regard.figures.attention(found, sample=1)


def test_a_saved_figure_shows_what_is_asked_for(tmp_path):
    """``pool=`` of a figure of a view, as the switch of its page."""
    found, overview = long_map()
    whole = regard.show(found)
    found.latest.overview = overview.kept()
    for shown in (whole, regard.show(found)):
        made = [static_figure.figure(shown.payload, head=3, pool=pool) for pool in ("mass", "largest")]
        mass, largest = (drawn(figure)[0][1] for figure in made)
        assert float(largest[:, 0].min()) == 1
        assert (float(mass[:, 0].min()) < 1) == (shown is whole)  # the mean of a pixel, or the whole mass of a cell
        images = [shown.save(tmp_path / f"{pool}.png", head=5, pool=pool).read_bytes() for pool in ("mass", "largest")]
        assert (images[0] == images[1]) == (shown is whole)  # even attention: only of cells mass differs from weights
    assert made[1].get_suptitle().replace("\n", " ").endswith("in cells of 25 × 25 tokens, the largest weight of each")
    with pytest.raises(ValueError, match="pool must be"):
        whole.save(tmp_path / "x.png", pool="sum")
    on_image = regard.show(random_map(layout=Layout((2, 2), 1)), image=torch.rand(3, 8, 8))
    with pytest.raises(ValueError, match="pool is for maps over tokens"):
        on_image.save(tmp_path / "x.png", pool="mass")


@pytest.mark.parametrize(("queries", "keys"), [(1, 300), (300, 2), (20, 20), (10, 60)])
def test_few_queries_over_many_keys_are_no_thin_line(queries, keys):
    figure = regard.figures.attention(Map("x", [AttentionRecord.given(torch.rand(1, 2, queries, keys).softmax(-1))]))
    figure.draw_without_rendering()
    for panel in figure.axes[:2]:
        box = panel.get_window_extent()
        assert min(box.width, box.height) > 15
        if queries in (10, 20):  # to scale
            assert box.height / box.width == pytest.approx(queries / keys, rel=0.05)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("keys", [3, 40, 1500, 131072])
def test_marks_of_the_color_bar_do_not_lie_on_each_other(keys, signed):
    weights = torch.rand(4, 50).softmax(-1) - (0.1 if signed else 0)
    figure = weight_map(weights, torch.full((4,), keys), title="x")
    figure.draw_without_rendering()
    labels = figure.axes[-1].get_xticklabels()
    names, boxes = [label.get_text() for label in labels], [label.get_window_extent() for label in labels]
    boxes.sort(key=lambda box: box.x0)
    assert all(one.x1 < two.x0 for one, two in pairwise(boxes))
    assert any(name.endswith("uniform") for name in names)
    assert keys == 3 or "100 %" in names


def darkest(figure):
    """The darkest pixel of the first panel, as the sum of red, green and blue."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure.axes[0].get_window_extent()
    whole = torch.frombuffer(bytearray(canvas.buffer_rgba()), dtype=torch.uint8).reshape(
        *canvas.get_width_height()[::-1], 4
    )
    rows = slice(len(whole) - int(box.y1) + 3, len(whole) - int(box.y0) - 3)
    return int(whole[rows, int(box.x0) + 3 : int(box.x1) - 3, :3].int().sum(-1).min())


def test_a_figure_with_fewer_pixels_than_cells_shows_a_sharp_head():
    empty = torch.full((400, 400), 1e-6)
    draw = lambda weights: weight_map(weights, torch.full((400,), 400), width=1.2)  # noqa: E731
    assert darkest(draw(empty)) > 600
    for key in (100, 101, 102):
        weights = empty.clone()
        weights[:, key] = 1
        assert darkest(draw(weights)) < 200


def test_signed_maps_on_an_image_share_one_scale():
    weights = torch.rand(1, 2, 4, 4).softmax(-1)
    weights[0, 0, :, 1] -= 0.9  # the second head has no negative weight
    found = Map("x", [AttentionRecord.given(weights, layout=Layout((2, 2), 0))])
    figure = regard.figures.image_attention([found], torch.zeros(3, 4, 4, dtype=torch.uint8))
    first, second = (panel.images[0] for panel in figure.axes[1:3])
    assert first.get_clim() == second.get_clim() == (-1, 1)
    assert first.get_cmap().name == second.get_cmap().name
    assert any(label.get_text().startswith("−") for label in figure.axes[-1].get_xticklabels())


def test_queries_on_an_image_are_those_of_their_own_grid():
    """Learned queries have no place; of queries on a finer grid than that of the keys, the one at the place is drawn."""
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    learned = Map("x", [AttentionRecord.given(torch.rand(1, 2, 3, 16).softmax(-1), layout=Layout((4, 4), 0))])
    assert regard.figures.image_attention([learned], image) is None
    weights = torch.rand(1, 1, 16, 4).softmax(-1)
    record = AttentionRecord.given(weights, layout=Layout((2, 2), 0))
    record.axes = replace(record.axes, query_layout=Layout((4, 4), 0))
    (_, _), (_, shown) = drawn(regard.figures.image_attention([Map("x", [record])], image, query=(1, 3)))
    torch.testing.assert_close(shown.flatten(), position(weights[0, 0, 7], 4))


@pytest.mark.usefixtures("user_errors")
def test_weights_that_are_no_numbers_are_refused():
    """NaN has no color: it would look like a weight of zero."""
    weights = torch.rand(1, 2, 4, 4)
    weights[0, 1, 2, 3] = math.nan
    found = Map("x", [AttentionRecord.given(weights, layout=Layout((2, 2), 0))])
    image = torch.zeros(3, 4, 4, dtype=torch.uint8)
    for draw in (
        lambda: regard.figures.attention(found),
        lambda: regard.figures.image_attention([found], image),
        lambda: regard.figures.alignment(weights[0, 1], "abcd", "abcd"),
        lambda: regard.figures.matrices("x", {"a": weights[0, 1]}),
        lambda: regard.figures.absolute_positions(weights[0, 1]),
    ):
        with pytest.raises(ValueError, match="must be finite to be drawn"):
            draw()
