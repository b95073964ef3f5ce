"""Pages of overviews: what they hold, and that they stay small."""

import math

import pytest
import torch

import regard
import regard.views._static_figure as static_figure
from regard.maps import AttentionRecord, Check, Map, MapAxes, Maps, Overview, Positions


def random_overview(heads, tokens, cells=128, batch=1):
    overview = Overview.empty((batch, heads, tokens, tokens), cells, torch.device("cpu"))
    for name, x in overview.tensors.items():
        x.copy_(torch.rand(x.shape) if x.is_floating_point() else torch.randint(0, tokens, x.shape))
        if name == "per_query.entropy":
            x.add_(torch.arange(heads)[:, None])
    return overview.kept()


def long_maps(layers, heads, tokens, **options):
    overview = random_overview(heads, tokens, **options)
    records = [AttentionRecord(f"layers.{n}", "sdpa", overview.shape, Check("kernel")) for n in range(layers)]
    for record in records:
        record.overview = overview
    return Maps(Map(record.name, [record]) for record in records)


def test_masses_and_curves_add_up():
    maps = long_maps(1, 2, 1001, cells=100)
    overview = maps[0].latest.overview
    shown = regard.show(maps)
    about, arrays = shown.payload.meta["layers"][0], shown.payload.arrays
    assert shown.view == "long"
    assert (about["cell"], about["bin"], about["queries"]) == ([11, 11], [1, 1], 1001)
    assert shown.payload.meta["opening"]["head"] == 0
    each = torch.tensor([11.0] * 91)
    torch.testing.assert_close(arrays["mass0"].values * each[:, None], overview.mass[0], atol=0.01, rtol=0.01)
    torch.testing.assert_close(arrays["largest0"].values, overview.largest[0].float(), atol=0.003, rtol=0.01)
    torch.testing.assert_close(arrays["received0"].values, overview.per_key.received[0], atol=0.003, rtol=0.01)


def test_long_curves_and_many_heads_are_pooled():
    maps = long_maps(1, 2, 9001)
    about, arrays = regard.show(maps).payload.meta["layers"][0], regard.show(maps).payload.arrays
    assert about["bin"] == [5, 5]
    assert arrays["received0"].stored.shape == (2, 1801)
    received = maps[0].per_key.received[0]
    torch.testing.assert_close(arrays["received0"].values[:, 3], received[:, 15:20].sum(-1), atol=0.02, rtol=0.02)


def test_a_page_of_32_by_32_heads_is_small(tmp_path):
    """Random numbers, which nothing compresses: real maps take less."""
    shown = regard.show(long_maps(32, 32, 4096))
    assert shown.payload.meta["layers"][0]["cell"] == [64, 64]
    assert shown.save(tmp_path / "page.html").stat().st_size <= 15e6


def test_a_static_figure_shows_the_share_of_each_cell(tmp_path):
    maps = long_maps(2, 2, 1001, cells=100)
    maps[0].latest.overview.mass.fill_(11 / 91)  # each query gives every cell as much
    shown = regard.show(maps, tokens=[f"w{number}" for number in range(1001)])
    assert shown.save(tmp_path / "long.svg", head=1).stat().st_size > 1000
    figure = static_figure.figure(shown.payload, layer=0, head="mean")
    [image] = figure.axes[0].images
    uniform = math.log(2) / math.log(92)
    torch.testing.assert_close(
        torch.as_tensor(image.get_array()), torch.full((91, 91), uniform).double(), atol=1e-2, rtol=0
    )
    assert figure.get_suptitle() == "layers.0 · mean over heads · in cells of 11 × 11 tokens"
    assert figure.axes[0].get_xticklabels()[1].get_text() == "33 w33"
    with pytest.raises(ValueError, match="head must be"):
        static_figure.figure(shown.payload, head=7)


def test_what_does_not_fit_is_refused():
    maps = long_maps(1, 1, 40, batch=2)
    with pytest.raises(ValueError, match=r"tokens has 3 entries .*, but needs 40, which 'layers\.0' attends over"):
        regard.show(maps, tokens=["a", "b", "c"])
    with pytest.raises(TypeError, match="tokens must be a list of strings"):
        regard.show(maps, tokens="text")
    with pytest.raises(ValueError, match="sample must lie in 0 … 1"):
        regard.show(maps, sample=2)
    with pytest.raises(ValueError, match="no places on an image"):
        regard.show(maps, grid=(5, 8))
    whole = Map("whole", [AttentionRecord.given(torch.ones(1, 1, 2, 2))])
    notes = regard.show(Maps([*maps.values(), whole])).payload.meta["notes"]
    assert "left out, because they have no overview: whole" in notes
    maps[0].latest.overview.mass[1, 0, 0, 0] = math.nan
    assert regard.show(maps, sample=0)
    with pytest.raises(ValueError, match=r"must have finite weights.*'layers\.0' holds NaN or infinity"):
        regard.show(maps, sample=1)


@pytest.mark.parametrize("tokens", [2048, 131072])
def test_what_lies_beside_a_sink_is_kept(tokens):
    """Nearly all attention goes to the first key: the rest must not round to nothing, in cells, curves and rows."""
    maps = long_maps(1, 2, tokens)
    record, overview = maps[0].latest, maps[0].latest.overview
    overview.mass[..., 0].fill_(0.99 * overview.cell[0])
    overview.mass[..., 1:].fill_(0.01 * overview.cell[0] / 127)
    overview.per_key.received.fill_(0.01)
    overview.per_key.received[..., 0] = 0.99 * tokens
    record.rows, record.stored = (tokens - 1,), torch.full((1, 2, 1, tokens), 0.01 / tokens)
    record.stored[..., 0] = 0.99
    arrays = regard.show(maps).payload.arrays
    step = math.ceil(tokens / 2048)
    received = overview.per_key.received[0].unflatten(-1, (-1, step)).sum(-1)
    torch.testing.assert_close(arrays["received0"].values, received, rtol=0.05, atol=0)
    torch.testing.assert_close(arrays["mass0"].values, overview.mass[0] / overview.cell[0], rtol=1e-3, atol=0)
    torch.testing.assert_close(arrays["rows0"].values, record.stored[0], rtol=0.5, atol=1e-7)
    assert arrays["rows0"].values.min() > 0


def test_a_page_says_which_rows_it_has_no_room_for():
    maps = long_maps(1, 20, 131072)
    maps[0].latest.rows, maps[0].latest.stored = (5,), torch.zeros(1, 20, 1, 131072)
    payload = regard.show(maps).payload
    assert "rows0" not in payload.arrays
    assert any("no room" in note and "layers.0" in note for note in payload.meta["notes"])


def long_map(name, queries, keys, place=None):
    """A map with an overview, of a call that has this place in a text."""
    record = AttentionRecord(name, "sdpa", (1, 2, queries, keys), Check("kernel"), axes=MapAxes(positions=place))
    record.overview = Overview.empty(record.shape, 8, torch.device("cpu")).kept()
    return Map(name, [record])


def naming(shown):
    return [(layer["asks"], layer["reads"], layer["first"]) for layer in shown.payload.meta["layers"]]


@pytest.mark.parametrize("unread", [0, 1])
def test_source_and_target_name_an_encoder_and_a_decoder(unread):
    maps = Maps(
        [long_map("encoder.attn", 30, 30), long_map("decoder.attn", 20, 20), long_map("decoder.cross_attn", 20, 30)]
    )
    source, target = ([f"{kind}{n}" for n in range(count)] for kind, count in (("s", 30), ("t", 20 + unread)))
    shown = regard.show(maps, tokens=(source, target))
    assert naming(shown) == [
        ("source", "source", [0, 0]),
        ("target", "target", [0, 0]),
        ("target", "source", [0, 0]),
    ]
    assert shown.payload.meta["tokens"] == {"source": source, "target": target[:20]}
    axes = static_figure.figure(shown.payload, layer="decoder.cross_attn").axes[0]
    assert axes.get_xticklabels()[1].get_text().startswith("4 s4")
    assert axes.get_yticklabels()[1].get_text().startswith("3 t3")
    with pytest.raises(ValueError, match=r"tokens has 29 source and .* target entries, but 'encoder\.attn' attends"):
        regard.show(maps, tokens=(source[1:], target))


@pytest.mark.parametrize("unread", [0, 1])
def test_steps_of_a_generation_have_their_place_in_the_text(unread):
    """The caches of a sliding window and of all tokens, and one with room for more."""
    places = [Positions(44, 1, 29, 16, 45, True), Positions(44, 1, 0, 45, 45, True), Positions(44, 1, 0, 64, 45, True)]
    maps = Maps(long_map(f"layers.{n}.attn", 1, place.keys, place) for n, place in enumerate(places))
    words = [f"w{n}" for n in range(45 + unread)]
    shown = regard.show(maps, tokens=words)
    assert naming(shown) == [("text", "text", [44, 29]), ("text", "text", [44, 0]), ("text", "text", [44, 0])]
    for layer, last in ((0, "43 w43"), (2, "56")):
        axes = static_figure.figure(shown.payload, layer=layer).axes[0]
        assert axes.get_yticklabels()[0].get_text() == "44 w44"
        assert axes.get_xticklabels()[-1].get_text() == last
    with pytest.raises(ValueError, match=r"tokens has 16 entries .* needs 45, which 'layers\.0\.attn' attends over"):
        regard.show(maps, tokens=words[:16])


def test_a_generation_is_shown_as_a_whole():
    """Not its latest step alone; calls that do not continue each other are not put together."""
    calls, steps = [], [(0, 40), (40, 1), (41, 1)]
    for first, count in steps:
        place = Positions(first, count, 0, first + count, first + count, cached=True)
        [call] = long_map("attn", count, first + count, place).calls
        call.overview.mass.fill_(call.overview.cell[0] / call.overview.mass.shape[3])
        call.overview.per_key.received.fill_(count / (first + count))
        calls.append(call)
    words = [f"w{n}" for n in range(43)]
    shown = regard.show(Maps([Map("attn", calls)]), tokens=words)
    [about] = shown.payload.meta["layers"]
    assert (about["queries"], about["keys"], about["first"], about["cell"]) == (42, 42, [0, 0], [5, 5])
    assert (about["calls"], about["joined"], about["asks"]) == (3, True, "text")
    assert shown.payload.meta["tokens"]["text"] == words[:42]
    mass = shown.payload.arrays["mass0"].values
    first = torch.tensor([1 / 8] * 8 + [(5 / 41 + 5 / 42) / 2])
    torch.testing.assert_close(mass[:, :, 0], first.expand(2, -1), rtol=0.01, atol=0)
    received = shown.payload.arrays["received0"].values
    torch.testing.assert_close(received[:, -1], torch.tensor([1 / 42] * 2), rtol=0.01, atol=0)
    [about] = regard.show(Maps([Map("attn", [calls[0], calls[2]])])).payload.meta["layers"]
    assert (about["queries"], about["calls"], about["joined"]) == (1, 2, False)


@pytest.mark.parametrize("sample", [True, "0", 0.0, None])
def test_a_sample_that_is_no_number_is_refused(sample, user_errors):
    with pytest.raises(TypeError, match="sample must be a whole number, got"):
        regard.show(long_maps(1, 1, 40), sample=sample)


def test_what_needs_whole_maps_says_so():
    maps = long_maps(1, 2, 40)
    words = [f"▁w{n}" for n in range(40)]
    for options in ({"other": maps}, {"segments": [("text", 4), ("image", (6, 6))]}, {"tokens": words, "words": True}):
        with pytest.raises(ValueError, match=r"only an overview of 'layers\.0' was kept"):
            regard.show(maps, **options)
