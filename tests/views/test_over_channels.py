"""Maps whose keys are not tokens: channels (XCiT), and keys that differ from query to query. No view takes them for tokens."""

import pytest
import torch

import regard
from regard.maps import AttentionRecord, Layout, Map, MapAxes, Maps, Overview


def maps_over(*kinds, count=8, long=False):
    made = []
    for number, kind in enumerate(kinds):
        weights = torch.eye(count).roll(1, 1).expand(1, 2, count, count)
        record = AttentionRecord.given(weights, f"layers.{number}", axes=MapAxes("known", kind))
        if long:
            record.overview = Overview.empty(tuple(weights.shape), 4, torch.device("cpu")).kept()
            record.stored = None
        made.append(Map(record.name, [record]))
    return Maps(made)


@pytest.mark.parametrize("kind", ["channels", "samples"])
def test_there_is_no_order_among_them(kind):
    """The same numbers are a head that looks at the next token, and a rollout, if they are tokens."""
    meta = regard.show(maps_over("tokens", "tokens")).payload.meta
    about = meta["layers"][0]
    assert (meta["rollout"], about["patterns"], about["over"]) == (True, ["next", "next"], "tokens")
    assert about["statistics"]["distance"][0] > 0
    for kinds in ((kind, kind), ("tokens", kind)):
        meta = regard.show(maps_over(*kinds)).payload.meta
        about = meta["layers"][1]
        assert (meta["rollout"], about["patterns"], about["over"]) == (False, ["other", "other"], kind)
        assert about["statistics"]["distance"] == about["statistics"]["locality"] == [None, None]
    first = torch.zeros(1, 1, 8, 8)
    first[..., 0] = 1
    found = Map("x", [AttentionRecord.given(first, axes=MapAxes("known", kind))])
    assert regard.show(found).payload.meta["layers"][0]["patterns"] == ["one key" if kind == "channels" else "other"]


@pytest.mark.parametrize("long", [False, True])
def test_tokens_do_not_name_channels_although_there_are_as_many(long):
    words = [f"w{n}" for n in range(8)]
    shown = regard.show(maps_over("channels", "tokens", long=long), tokens=words)
    assert [(about["asks"], about["reads"]) for about in shown.payload.meta["layers"]] == [
        (None, None),
        ("text", "text"),
    ]
    with pytest.raises(ValueError, match=r"tokens name nothing in these maps: 'layers\.0' attends over channels"):
        regard.show(maps_over("channels", long=long), tokens=words)
    # More channels than tokens do not hide that the last token was not read.
    maps = Maps([*maps_over("tokens", long=long).values()])
    more = maps_over("tokens", "channels", count=16, long=long)["layers.1"]
    shown = regard.show(Maps([*maps.values(), more]), tokens=[*words, "unread"])
    assert shown.payload.meta["tokens"] == {"text": words}


def test_keys_of_a_query_have_no_names_but_queries_have():
    shown = regard.show(maps_over("samples"), tokens=[f"w{n}" for n in range(8)])
    assert [(about["asks"], about["reads"]) for about in shown.payload.meta["layers"]] == [("text", None)]


@pytest.mark.parametrize(
    ("kind", "says"), [("channels", "channels"), ("samples", "keys that differ from query to query")]
)
def test_they_have_no_place_on_an_image(kind, says):
    with pytest.raises(ValueError, match=rf"'layers\.0' attends over {says}, which have no place on an image"):
        regard.show(maps_over(kind), grid=(2, 4))
    shown = regard.show(maps_over(kind, "tokens"), grid=(2, 4))
    assert [about["name"] for about in shown.payload.meta["layers"]] == ["layers.1"]
    assert any("left out" in note and "layers.0" in note for note in shown.payload.meta["notes"])
    with pytest.raises(ValueError, match="segments have 8 tokens"):
        regard.show(maps_over(kind), segments=[("text", 4), ("image", (2, 2))])
    maps = maps_over(kind)
    maps[0].latest.layout = Layout((2, 4), 0)
    assert regard.show(maps).payload.meta["tokens"] == {}


def test_words_and_comparisons_do_not_name_them():
    words = ["▁so", "▁it", "▁go", "es", "▁", "o", "n", "."]
    with pytest.raises(ValueError, match=r"words=True: 'layers\.0' attends over channels"):
        regard.show(maps_over("channels"), tokens=words, words=True)
    shown = regard.show(maps_over("channels"), maps_over("channels"), tokens=words)
    assert [side["named"] for side in shown.payload.meta["layers"][0]["sides"]] == [[False, False], [False, False]]


def test_figures_say_what_cells_hold():
    pytest.importorskip("matplotlib")
    found = maps_over("channels", long=True)
    figure = regard.figures.attention(found[0])
    assert figure.get_suptitle().replace("\n", " ") == "layers.0, in cells of 2 × 2 channels"
