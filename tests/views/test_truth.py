"""What the colors mean, which head a view opens on, and figures without a browser."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.maps import AttentionRecord, Map, Maps, visible_keys
from regard.views import _static_figure
from regard.views._head_statistics import statistics
from regard.views._payload import Scaled

SVG = "{http://www.w3.org/2000/svg}"


def previous(count):
    weights = torch.zeros(count, count)
    weights[torch.arange(count), (torch.arange(count) - 1).clamp_min(0)] = 1
    return weights


def uniform(count, causal=False):
    weights = torch.ones(count, count).tril() if causal else torch.ones(count, count)
    return weights / weights.sum(-1, keepdim=True)


class TestVisibleKeys:
    @given(st.integers(2, 12), st.integers(0, 5))
    def test_a_causal_mask_is_read_off_the_zeros(self, queries, before):
        logits = torch.randn(2, queries, queries + before)
        future = torch.ones(queries, queries + before).triu(before + 1).bool()
        counts, mask = visible_keys(logits.masked_fill(future, -torch.inf).softmax(-1))
        assert counts.tolist() == list(range(before + 1, queries + before + 1))
        assert mask is not None
        assert torch.equal(mask, ~future)

    def test_padding_is_not_seen_and_without_a_mask_all_is(self):
        weights = torch.randn(3, 5, 8)
        assert visible_keys(weights.softmax(-1)) == (pytest.approx(torch.full((5,), 8)), None)
        padded = weights.clone()
        padded[:, :, 6:] = -torch.inf
        assert visible_keys(padded.softmax(-1))[0].tolist() == [6] * 5

    def test_a_sharp_gaussian_has_no_mask(self):
        sharp = torch.stack([previous(9), torch.eye(9)])
        assert visible_keys(sharp, "gaussian")[0].tolist() == [9] * 9


class TestStatistics:
    def numbers(self, weights):
        counts, mask = visible_keys(weights)
        places = torch.arange(float(weights.shape[-1]))[:, None]
        return statistics(weights, counts, mask, places)

    @pytest.mark.parametrize("causal", [False, True])
    def test_uniform_heads_and_sinks_have_no_structure(self, causal):
        sink = torch.eye(16)[0].expand(16, 16)
        found = self.numbers(torch.stack([uniform(16, causal), sink, previous(16)]))
        assert found["structure"][0] == 0
        assert found["structure"][1] < 1 < found["structure"][2]
        assert found["surprise"][1] > 1  # but a sink is far from uniform
        assert found["entropy"][0] == pytest.approx(1, abs=1e-3)

    def test_distance_and_locality(self):
        found = self.numbers(torch.stack([torch.eye(10), uniform(10)]))
        assert found["distance"] == [0.0, pytest.approx(3.3)]
        assert found["locality"] == [1.0, pytest.approx(0.28)]


class TestOpening:
    def test_it_opens_on_the_most_structured_head_and_says_why(self):
        layers = [torch.stack([uniform(12), previous(12)]), torch.stack([uniform(12), uniform(12)])]
        opening = regard.show(layers).payload.meta["opening"]
        assert (opening["layer"], opening["head"]) == (0, 1)
        assert opening["why"].startswith("the most structured head")

    def test_one_query_or_no_structure_is_said_otherwise(self):
        one = torch.tensor([[[0.25, 0.25, 0.25, 0.25]], [[0.97, 0.01, 0.01, 0.01]]])
        assert "furthest from uniform" in regard.show(one).payload.meta["opening"]["why"]
        assert "nearly uniform" in regard.show(uniform(5)[None]).payload.meta["opening"]["why"]


def test_weights_with_a_sign_are_shown():
    weights = torch.randn(2, 4, 4)
    payload = regard.show(weights).payload
    assert payload.meta["layers"][0]["signed"]
    assert torch.allclose(payload.arrays["map0"].values, weights, atol=float(weights.abs().max()) / 10_000)


def test_weights_beside_a_sink_are_shown_with_their_digits():
    """In a map, in a comparison, and on a page of so many weights that each has one byte."""
    for count in (50, 1200):
        weights = torch.full((1, count, count), 0.5 / count)  # half of uniform attention
        weights[..., 0] = 0.99
        known = {
            "map0": weights,
            "first0": weights,
            "second0": weights.flip(-1),
            "difference0": weights.flip(-1) - weights,
        }
        arrays = {**regard.show(weights).payload.arrays, **regard.show(weights, weights.flip(-1)).payload.arrays}
        for name, expected in known.items():
            torch.testing.assert_close(arrays[name].values, expected, rtol=0.005 if count == 50 else 0.3, atol=0)


@given(st.lists(st.floats(0, 5, width=32), min_size=1, max_size=20))
def test_bytes_keep_a_row_to_half_a_step(row):
    weights = torch.tensor([row])
    kept = Scaled.rows(weights)
    assert float((kept.values - weights).abs().max()) <= float(kept.scale.max()) * 0.51 + 1e-12


def test_gaussian_heads_are_said_to_ignore_content():
    weights = torch.rand(1, 2, 4, 4).softmax(-1)
    for kind, said in (("gaussian", True), ("sdpa", False)):
        maps = Maps([Map("a", [AttentionRecord.given(weights, kind=kind)])])
        notes = regard.show(maps).payload.meta["notes"]
        assert any("ignore content" in note for note in notes) == said


class TestFigures:
    WORDS = ("so", "it", "goes", "$5")

    def test_a_map_becomes_a_labeled_figure_of_one_column(self, tmp_path):
        shown = regard.show([uniform(4)[None], previous(4)[None]], tokens=list(self.WORDS))
        import matplotlib as mpl

        with mpl.rc_context({"svg.fonttype": "none"}):
            path = shown.save(tmp_path / "deep" / "figure.svg")
        root = ElementTree.fromstring(path.read_text())
        texts = {"".join(each.itertext()).strip() for each in root.iter(f"{SVG}text")}
        assert {"so", "it", "goes", "$5", "100 %", "layer 1 · head 0"} <= texts
        assert any("uniform" in text for text in texts)
        assert float(root.get("width").removesuffix("pt")) == pytest.approx(3.4 * 72)

    @pytest.mark.parametrize(("name", "start"), [("x.pdf", b"%PDF"), ("x.png", b"\x89PNG")])
    def test_other_formats(self, tmp_path, name, start):
        shown = regard.show(torch.rand(2, 5, 5).softmax(-1))
        assert shown.save(tmp_path / name).read_bytes().startswith(start)

    def test_layer_and_head_are_chosen(self, tmp_path):
        shown = regard.show({"a": torch.rand(2, 5, 5).softmax(-1), "b": torch.rand(3, 5, 5).softmax(-1)})
        pictures = {
            shown.save(tmp_path / "x.png", layer=layer, head=head).read_bytes()
            for layer, head in (("a", 0), ("a", 1), (1, 2), (-1, "mean"))
        }
        assert len(pictures) == 4
        with pytest.raises(ValueError, match="layer must be one of a, b"):
            shown.save(tmp_path / "x.png", layer="c")
        with pytest.raises(ValueError, match="head must be"):
            shown.save(tmp_path / "x.png", layer="a", head=7)
        with pytest.raises(TypeError, match="head is only for a figure"):
            shown.save(tmp_path / "x.html", head=1)

    def test_an_image_and_heads_have_a_figure_and_a_claim_has_none(self, tmp_path):
        weights = torch.rand(2, 12, 12).softmax(-1)
        shown = regard.show(weights, image=torch.rand(3, 6, 8), grid=(3, 4))
        assert (
            shown.save(tmp_path / "a.png", query=3).read_bytes() != shown.save(tmp_path / "b.png", query=8).read_bytes()
        )
        with pytest.raises(ValueError, match="query must be one of the 12"):
            shown.save(tmp_path / "a.png", query=12)
        from regard.training import HeadTrajectory

        heads = HeadTrajectory((0, 9), ("a",), (6, 9), (torch.randn(2, 4, 2),), (torch.rand(2, 4),))
        assert regard.show(heads).save(tmp_path / "c.png").stat().st_size > 1000
        with pytest.raises(ValueError, match="has no static figure"):
            regard.show("mechanism").save(tmp_path / "m.png")

    def test_a_figure_of_an_image_shows_the_query_that_the_page_opens_on(self, tmp_path):
        def title(shown, **options):
            return _static_figure.figure(shown.payload, **options).get_suptitle()

        image, weights = torch.rand(3, 6, 8), torch.rand(2, 12, 12).softmax(-1)
        on_image = regard.show(weights, image=image, grid=(3, 4))
        assert title(on_image, head=0) == "weights · head 0 · from patch (1, 2)"
        assert title(on_image, head=0, query=1) == "weights · head 0 · from patch (0, 1)"
        assert title(on_image, title="Mine") == "Mine"
        classed = regard.show(weights[:, :7, :7].softmax(-1), image=image, grid=(2, 3))
        assert title(classed, head=1) == "weights · head 1 · query 0"
        in_text = regard.show(weights, image=image, tokens=list("ab"), segments=[("text", 2), ("image", (2, 5))])
        assert title(in_text, head=0) == "weights · head 0 · from b"
        assert title(in_text, head=0, query=3) == "weights · head 0 · from patch (0, 1)"
        patches = AttentionRecord.given(weights[None, :, [3, 5]], "weights", rows=(3, 5))
        without_words = regard.show(
            Maps([Map("weights", [patches])]), tokens=list("ab"), segments=[("text", 2), ("image", (2, 5))]
        )
        assert title(without_words, head=0) == "weights · head 0 · from patch (0, 3)"

    def test_a_figure_of_heads_is_as_wide_as_asked_and_does_not_stretch_the_plane(self):
        from regard.training import HeadTrajectory

        names = tuple("abcde")
        center, sharpness = torch.randn(2, 4, 2) * torch.tensor([1.0, 9.0]), torch.rand(2, 4)
        heads = HeadTrajectory((0, 9), names, (6, 9), (center,) * 5, (sharpness,) * 5)
        figure = _static_figure.figure(regard.show(heads).payload, width=3.4)
        assert figure.get_size_inches()[0] == pytest.approx(3.4)
        assert [panel.get_title() for panel in figure.axes if panel.axison] == list(names)
        figure.draw_without_rendering()
        for panel in figure.axes[:5]:
            steps = panel.transData.transform([(0, 0), (1, 0), (0, 1)])
            assert steps[1, 0] - steps[0, 0] == pytest.approx(abs(steps[2, 1] - steps[0, 1]), rel=0.01)

    def test_a_head_that_looks_one_back_is_seen_in_a_figure_of_1500_tokens(self, tmp_path):
        from PIL import Image

        path = regard.show(previous(1500)[None]).save(tmp_path / "x.png")
        with Image.open(path) as opened:
            red, height = opened.convert("RGB").getchannel("R").tobytes(), opened.height
        picture = torch.frombuffer(bytearray(red), dtype=torch.uint8).reshape(height, -1)
        middle = picture[picture.shape[0] // 3 : int(0.8 * picture.shape[0]), 200:-30]
        assert int((middle.amin(1) < 120).sum()) == len(middle)

    def test_colors_are_those_of_the_views(self):
        from regard.figures._color_scale import STOPS

        source = (Path(__file__).parents[2] / "frontend/src/core/color.ts").read_text()
        assert tuple(re.findall(r"#\w{6}", re.search(r"const paper = ramp\((.*)\)", source)[1])) == STOPS


class TestWhatIsShown:
    def test_a_run_is_shown_by_its_folder(self, monkeypatch):
        from regard.studio._run_folders import EXAMPLE

        monkeypatch.chdir(EXAMPLE.parent)
        for folder in (str(EXAMPLE), EXAMPLE, f"./{EXAMPLE.name}", EXAMPLE.name):
            assert regard.show(folder).view == "heads"

    def test_tokens_may_be_one_longer_after_generation(self):
        weights = torch.rand(2, 4, 4).softmax(-1)
        meta = regard.show(weights, tokens=list("abcde")).payload.meta
        assert meta["tokens"]["text"] == list("abcd")
        with pytest.raises(ValueError, match="tokens has 6 entries"):
            regard.show(weights, tokens=list("abcdef"))

    def test_a_folder_that_is_no_run_is_refused_by_its_name(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no such folder"):
            regard.show("runs/nowhere")
        with pytest.raises(FileNotFoundError, match=r"recipe\.json"):
            regard.show(str(tmp_path))
        with pytest.raises(ValueError, match="what must be one of"):
            regard.show("nothing")

    def test_a_locality_has_a_title_of_its_own(self):
        maps = Maps([Map("a", [AttentionRecord.given(torch.rand(1, 2, 9, 9).softmax(-1))])])
        assert "fit" in regard.show(regard.analysis.locality(maps, (3, 3))).title


def test_a_pattern_is_named_where_half_of_the_weight_follows_it():
    from regard.views._head_statistics import patterns

    count = 6
    itself, first = torch.eye(count), torch.zeros(count, count).index_fill(1, torch.tensor([0]), 1.0)
    previous = torch.eye(count).roll(-1, 1)
    even = torch.full((count, count), 1 / count)
    weak = 0.4 * previous + 0.6 * even
    weights = torch.stack([itself, previous, previous.T, first, first.roll(3, 1), even, weak])
    line = torch.arange(count, dtype=torch.float32)[:, None]
    found = patterns(weights, [2.0] * 5 + [0.0, 1.0], line)
    assert found == ["itself", "previous", "next", "first", "one key", "uniform", "previous"]
    assert patterns(0.2 * previous[None] + 0.8 * even, [0.3], line) == ["other"]


def test_a_grid_that_is_given_decides_what_is_near():
    """Below each other on a grid is near, however far apart in the sequence."""
    down = torch.eye(16).roll(4, 1)[None]
    shown = regard.show(down, grid=(4, 4)).payload.meta["layers"][0]
    assert shown["patterns"] == ["neighbors"]
    assert shown["statistics"]["distance"][0] < 2
    assert regard.show(down).payload.meta["layers"][0]["statistics"]["distance"][0] == 6.0
