"""``regard.show`` finds the right view for what it is given, and says what would fit otherwise."""

import json
import math
import re

import pytest
import torch
from torch import nn

import regard
from regard.maps import AttentionRecord, Check, Map, Maps
from regard.models import Seq2SeqRNN, Transformer, VisionTransformer
from regard.training import HeadPositions, HeadTrajectory
from regard.views import Show


def random_maps(layers, heads, queries, keys=None, names="blocks.{}.attn"):
    calls = [torch.randn(1, heads, queries, keys or queries).mul(3).softmax(-1) for _ in range(layers)]
    made = [AttentionRecord.given(w, check=Check("kernel", torch.tensor(1e-7), torch.tensor(1e-5))) for w in calls]
    return Maps(Map(names.format(i), [call]) for i, call in enumerate(made))


def captured(model, *inputs, **options):
    with torch.no_grad(), regard.capture(model.eval()) as maps:
        model(*inputs, **options)
    return maps


@pytest.fixture
def vit_maps():
    model = VisionTransformer((16, 24), 4, 3, dim=16, depth=3, heads=2, registers=1)
    return captured(model, torch.randn(2, 3, 16, 24))


class TestImages:
    def test_the_model_says_how_its_tokens_lie(self, vit_maps):
        meta = regard.show(vit_maps, image=torch.rand(3, 16, 24)).payload.meta
        assert [layer["grid"] for layer in meta["layers"]] == [[4, 6]] * 3
        assert [(layer["prefix"], layer["query_prefix"]) for layer in meta["layers"]] == [(2, 2)] * 3
        assert meta["rollout"]
        for layer, found in zip(meta["layers"], vit_maps.values(), strict=True):
            assert layer["residual"] == found.residual < 1e-5
            assert layer["agrees"]

    def test_the_sample_that_is_asked_for_is_shown(self, vit_maps):
        images = torch.rand(2, 3, 16, 24)
        payload = regard.show(vit_maps, image=images, sample=1).payload
        assert torch.allclose(payload.arrays["map0"].values, vit_maps[0].weights[1], atol=1 / 255)
        assert torch.equal(payload.arrays["image"], (images[1].permute(1, 2, 0) * 255).round().byte())

    @pytest.mark.parametrize(
        "image",
        [
            torch.rand(3, 8, 12),
            torch.rand(8, 12, 3),
            torch.rand(1, 8, 12),
            torch.rand(8, 12),
            torch.randn(3, 8, 12) * 4,
            torch.randint(256, (3, 8, 12), dtype=torch.uint8),
            torch.rand(8, 12, 3).numpy(),
        ],
        ids=["chw", "hwc", "gray", "plane", "normalized", "bytes", "numpy"],
    )
    def test_images_of_every_usual_kind(self, vit_maps, image):
        pixels = regard.show(vit_maps, image=image).payload.arrays["image"]
        assert pixels.shape == (8, 12, 3)
        assert pixels.dtype == torch.uint8

    def test_pictures_as_low_as_there_are_channels(self, vit_maps):
        from PIL import Image

        for height in (1, 3, 4):
            photo = Image.new("RGB", (6, height), (200, 100, 50))
            pixels = regard.show(vit_maps, image=photo).payload.arrays["image"]
            assert pixels.shape == (height, 6, 3)
            assert pixels[0, 0].tolist() == [200, 100, 50]

    def test_a_mask_is_black_and_white(self, vit_maps):
        pixels = regard.show(vit_maps, image=torch.eye(6).bool()).payload.arrays["image"]
        assert torch.equal(pixels[..., 0], 255 * torch.eye(6).byte())

    def test_a_photo_of_many_pixels_is_made_smaller(self, vit_maps):
        from PIL import Image

        photo = Image.new("RGB", (2000, 1000), (200, 100, 50))
        pixels = regard.show(vit_maps, image=photo).payload.arrays["image"]
        assert pixels.shape == (384, 768, 3)
        assert pixels[0, 0].tolist() == [200, 100, 50]

    def test_maps_elsewhere_are_left_out_and_named(self, vit_maps):
        both = Maps([*vit_maps.values(), *random_maps(1, 2, 5, names="text.{}").values()])
        meta = regard.show(both, image=torch.rand(3, 16, 24)).payload.meta
        assert len(meta["layers"]) == 3
        assert "text.0" in meta["notes"][0]

    def test_without_an_image_the_grid_is_enough(self):
        payload = regard.show(random_maps(2, 2, 13), grid=(3, 4)).payload
        assert (payload.view, payload.meta["image"]) == ("image", False)
        assert payload.meta["layers"][0]["prefix"] == 1

    def test_rollout_is_offered_where_the_library_has_one(self):
        def maps(*layouts, rows=None):
            made = []
            for grid, prefix in layouts:
                tokens = math.prod(grid) + prefix
                weights = torch.rand(1, 2, 2 if rows else tokens, tokens).softmax(-1)
                layout = regard.maps.Layout(grid, prefix)
                made.append(AttentionRecord.given(weights, rows=rows, layout=layout))
            return Maps(Map(f"layer{number}", [call]) for number, call in enumerate(made))

        cases = [
            (((4, 4), 0), ((2, 2), 0)),
            (((8, 8), 1), ((4, 4), 1), ((4, 4), 1), ((2, 2), 1)),  # as a Swin, and with a class token
            (((6, 4), 0), ((2, 2), 0)),
            (((2, 2), 0), ((4, 4), 0)),  # tokens do not become more
            (((4, 4), 0), ((3, 3), 0)),
            (((4, 4), 1), ((2, 2), 0)),  # and a class token does not go
        ]
        for layouts in cases:
            found = maps(*layouts)
            try:
                regard.rollout(found)
            except ValueError:
                offered = False
            else:
                offered = True
            assert offered == (cases.index(layouts) < 3)
            assert regard.show(found, image=torch.rand(3, 8, 8)).payload.meta["rollout"] == offered
            assert regard.show(found).payload.meta["rollout"] == offered
        some = maps(((4, 4), 0), ((2, 2), 0), rows=(0, 1))
        assert not regard.show(some, image=torch.rand(3, 8, 8)).payload.meta["rollout"]

    def test_a_query_that_pools_is_asked_by_number(self):
        model = VisionTransformer(16, 4, 3, dim=16, depth=2, heads=2, pool="attention")
        maps = captured(model, torch.randn(1, 3, 16, 16))
        layers = regard.show(maps, image=torch.rand(3, 16, 16), grid=(4, 4)).payload.meta["layers"]
        assert layers[-1]["query_grid"] is None
        assert layers[-1]["query_prefix"] == layers[-1]["queries"] == 1

    def test_what_does_not_fit_is_said(self, vit_maps, user_errors):
        with pytest.raises(ValueError, match=r"grid \(5, 5\) with prefix 0 makes 25 tokens, but must make 26"):
            regard.show(vit_maps, image=torch.rand(3, 8, 8), grid=(5, 5), prefix=0)
        with pytest.raises(ValueError, match="image has 7 channels"):
            regard.show(vit_maps, image=torch.rand(7, 8, 8))
        with pytest.raises(ValueError, match=r"sample must lie in 0 … 1"):
            regard.show(vit_maps, image=torch.rand(3, 8, 8), sample=2)
        with pytest.raises(ValueError, match="NaN"):
            regard.show(vit_maps, image=torch.full((3, 8, 8), math.nan))
        with pytest.raises(
            TypeError, match="image must be a tensor, an array, a PIL image or the path of a file, got set"
        ):
            regard.show(vit_maps, image={1})

    def test_an_image_may_be_the_path_of_a_file(self, vit_maps, tmp_path):
        image = pytest.importorskip("PIL.Image")
        file = tmp_path / "photo.png"
        image.frombytes("RGB", (8, 8), bytes(range(192))).save(file)
        drawn = regard.show(vit_maps, image=file).payload.arrays["image"]
        assert drawn.flatten().tolist() == list(range(192))
        assert torch.equal(regard.show(vit_maps, image=str(file)).payload.arrays["image"], drawn)

    def test_a_file_that_is_no_image_is_named(self, vit_maps, tmp_path, user_errors):
        with pytest.raises(
            ValueError, match=r"image must be an image file, but .*none\.png cannot be read: No such file"
        ):
            regard.show(vit_maps, image=tmp_path / "none.png")
        (tmp_path / "text.png").write_text("no image")
        with pytest.raises(ValueError, match=r"image must be an image file, but .*text\.png is none that we can read"):
            regard.show(vit_maps, image=tmp_path / "text.png")


class TestTokens:
    def test_words_are_those_of_queries_and_keys(self):
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), 2)
        maps = captured(encoder, torch.randn(1, 5, 16))
        payload = regard.show(maps, tokens=list("hello")).payload
        assert payload.meta["tokens"] == {"text": list("hello")}
        assert all((layer["asks"], layer["reads"]) == ("text", "text") for layer in payload.meta["layers"])
        assert payload.meta["rollout"]

    def test_a_model_that_reads_and_writes_has_three_kinds_of_maps(self):
        model = Transformer(20, dim=16, depth=1, heads=2)
        source, target = torch.randint(20, (1, 5)), torch.randint(20, (1, 5))  # of one length: names must tell
        layers = regard.show(captured(model, source, target), tokens=(list("abcde"), list("ABCDE"))).payload.meta[
            "layers"
        ]
        kinds = {layer["name"]: (layer["asks"], layer["reads"]) for layer in layers}
        assert kinds == {
            "encoder.0.attention": ("source", "source"),
            "decoder.0.attention": ("target", "target"),
            "decoder.0.cross_attention": ("target", "source"),
        }

    @pytest.mark.parametrize("attention", ["dot", "additive"])
    def test_the_alignment_of_a_recurrent_model(self, attention):
        model = Seq2SeqRNN(12, dim=8, hidden=8, attention=attention)
        maps = captured(model, torch.randint(12, (1, 6)), torch.randint(12, (1, 4)))
        payload = regard.show(maps, tokens=(list("source"), list("said"))).payload
        (layer,) = payload.meta["layers"]
        assert (layer["asks"], layer["reads"], layer["queries"], layer["keys"]) == ("target", "source", 4, 6)

    def test_without_a_text_patches_are_named_by_their_places(self, vit_maps):
        meta = regard.show(vit_maps).payload.meta
        (words,) = meta["tokens"].values()
        assert words[:4] == ["[class]", "[prefix1]", "(0, 0)", "(0, 1)"]
        assert len(words) == meta["layers"][0]["keys"]
        assert meta["layers"][0]["asks"] == meta["layers"][0]["reads"] == next(iter(meta["tokens"]))
        assert regard.show(random_maps(1, 1, 4)).payload.meta["tokens"] == {}

    def test_tokens_of_a_video_are_named_by_frame_row_and_column(self):
        maps = captured(regard.GaussianAttention(8, 2, axes=3), torch.randn(1, 2, 3, 4, 8))
        (words,) = regard.show(maps).payload.meta["tokens"].values()
        assert words[:5] == ["(0, 0, 0)", "(0, 0, 1)", "(0, 0, 2)", "(0, 0, 3)", "(0, 1, 0)"]
        assert (len(words), words[-1]) == (24, "(1, 2, 3)")

    def test_calls_that_go_on_from_each_other_become_one_map(self):
        steps = [torch.rand(1, 2, 1, 3 + i).softmax(-1) for i in range(4)]
        first = torch.rand(1, 2, 2, 2).softmax(-1)
        calls = [
            AttentionRecord.given(w, check=Check("kernel", torch.tensor(float(i))))
            for i, w in enumerate([first, *steps])
        ]
        payload = regard.show(Maps([Map("attn", calls)]), tokens=list("abcdef")).payload
        (layer,) = payload.meta["layers"]
        assert (layer["queries"], layer["keys"], layer["joined"], layer["calls"]) == (6, 6, True, 5)
        assert layer["residual"] == 4.0  # the largest of them
        whole = payload.arrays["map0"].values
        assert torch.allclose(whole[:, 3, :4], steps[1][0, :, 0], atol=0.01)
        assert not whole[:, 2, 3:].any()

    def test_calls_that_do_not_are_shown_by_the_latest(self):
        calls = [AttentionRecord.given(torch.rand(1, 1, 3, 3).softmax(-1)) for _ in range(2)]
        payload = regard.show(Maps([Map("attn", calls)])).payload
        assert payload.meta["layers"][0]["calls"] == 2
        assert payload.meta["layers"][0]["residual"] != 0
        assert torch.allclose(payload.arrays["map0"].values, calls[1].weights[0], atol=0.01)

    def test_plain_tensors_will_do(self):
        weights = torch.rand(2, 3, 3).softmax(-1)
        for given in (weights, weights[None], [weights, weights], {"first": weights}):
            meta = regard.show(given).payload.meta
            assert meta["layers"][0]["residual"] is None or math.isnan(meta["layers"][0]["residual"])
            assert "given" in meta["layers"][0]["against"]

    def test_chosen_rows_keep_their_numbers(self):
        encoder = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True).eval()
        with torch.no_grad(), regard.capture(encoder, rows=[1, 3], heads=[1]) as maps:
            encoder(torch.randn(1, 5, 16))
        (layer,) = regard.show(maps, tokens=list("hello")).payload.meta["layers"]
        assert (layer["rows"], layer["heads"], layer["asks"]) == ([1, 3], [1], "text")

    def test_what_does_not_fit_is_said(self, user_errors):
        maps = random_maps(1, 2, 5)
        with pytest.raises(
            ValueError, match=r"tokens has 3 entries .*, but needs 5, which 'blocks\.0\.attn' attends over"
        ):
            regard.show(maps, tokens=["a", "b", "c"])
        with pytest.raises(ValueError, match="3 source and 4 target entries"):
            regard.show(maps, tokens=(list("abc"), list("abcd")))
        with pytest.raises(TypeError, match="tokens must be a list of strings"):
            regard.show(maps, tokens="hello")
        with pytest.raises(ValueError, match="one of the two"):
            regard.show(maps, tokens=list("hello"), image=torch.rand(3, 4, 4))
        with pytest.raises(ValueError, match="there are no maps"):
            regard.show(Maps())
        with pytest.raises(ValueError, match="must have finite weights"):
            regard.show(torch.full((1, 2, 2), math.nan))
        with pytest.raises(ValueError, match=r"\(heads, queries, keys\)"):
            regard.show(torch.ones(2))

    def test_more_than_a_browser_can_hold_is_refused_and_much_is_warned_of(self):
        def empty(tokens):
            return torch.zeros(1).expand(1, tokens, tokens)  # takes no memory

        # Warnings are errors here, so that the map is not prepared after the warning.
        with pytest.raises(UserWarning, match="2 maps of 128 million weights are many for a browser"):
            regard.show([empty(8000), empty(8000)])
        with pytest.raises(ValueError, match="1 maps of 400 million weights are too many for a browser: show some"):
            regard.show(empty(20_000))


class TestHeads:
    def test_sharpness_of_every_form_becomes_a_matrix(self):
        center = torch.randn(4, 3, 2)
        forms = (torch.rand(4, 3), torch.rand(4, 3, 2), torch.rand(4, 3, 2, 2))
        for sharpness in forms:
            found = HeadTrajectory((0, 1, 2, 3), ("a",), (5, 7), (center,), (sharpness,))
            payload = regard.show(found).payload
            whole = payload.arrays["sharpness0"]
            assert whole.shape == (4, 3, 2, 2)
            assert torch.equal(whole, whole.mT)
            diagonal = sharpness if sharpness.ndim < 4 else sharpness.diagonal(dim1=-2, dim2=-1)
            assert torch.allclose(whole.diagonal(dim1=-2, dim2=-1), diagonal.reshape(4, 3, -1).expand(4, 3, 2))
            assert payload.meta["layers"][0]["grid"] == [5, 7]

    def test_one_axis_one_moment_and_fits(self):
        line = HeadTrajectory((0, 5), ("text",), (9,), (torch.randn(2, 3, 1),), (torch.rand(2, 3),))
        assert regard.show(line).payload.meta["layers"][0]["axes"] == 1
        now = HeadPositions(("a",), (torch.randn(3, 2),), (torch.rand(3),))
        assert regard.show(now).payload.meta["steps"] == [0]
        fitted = regard.show(regard.locality(random_maps(2, 2, 12), grid=(3, 4))).payload
        assert fitted.meta["layers"][1]["fitted"]
        assert fitted.arrays["fit0"].shape == (1, 2)

    def test_checkpoints_over_time(self, tmp_path):
        from safetensors.torch import save_file

        model = VisionTransformer(8, 4, 3, dim=8, depth=1, heads=2)
        for step in (5, 10):
            (tmp_path / f"step-{step}").mkdir()
            save_file(model.state_dict(), tmp_path / f"step-{step}" / "model.safetensors")
        found = regard.analysis.trajectory(model, tmp_path, torch.randn(2, 3, 8, 8))
        assert regard.show(found).payload.meta["steps"] == [5, 10]

    def test_what_has_no_place_on_a_plane_is_refused(self, user_errors):
        solid = HeadTrajectory((0,), ("a",), None, (torch.randn(1, 2, 3),), (torch.rand(1, 2),))
        with pytest.raises(ValueError, match="heads over 3 axes cannot be drawn"):
            regard.show(solid)
        with pytest.raises(TypeError, match="a locality or verified claims, got 7"):
            regard.show(7)
        with pytest.raises(TypeError, match="what must be maps where image or tokens are given"):
            regard.show(solid, tokens=["a"])

    def test_a_model_is_told_how_its_maps_are_had(self, user_errors):
        with pytest.raises(TypeError, match=r"regard\.capture\(model\).*got a Sequential$"):
            regard.show(torch.nn.Sequential(torch.nn.Linear(2, 2)))

    @pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0)])
    def test_a_map_of_nothing_is_refused(self, user_errors, shape):
        # A page of it would never be drawn.
        with pytest.raises(ValueError, match="what must have a head, a query and a key at least"):
            regard.show(torch.zeros(shape))


class TestSaving:
    def test_files_are_small_enough_to_send(self):
        report = regard.show(random_maps(12, 12, 128), tokens=[f"t{i}" for i in range(128)]).html()
        assert len(report.encode()) <= 4 * 2**20
        vit = regard.show(random_maps(12, 12, 197), image=torch.rand(3, 224, 224), grid=(14, 14)).html()
        assert len(vit.encode()) <= 8 * 2**20

    def test_a_file_needs_nothing_and_may_nothing(self, tmp_path):
        path = regard.show(random_maps(1, 1, 3), tokens=["</script>", "<b>", "&"]).save(tmp_path / "new" / "x.html")
        page = path.read_text()
        assert "default-src 'none'" in page
        assert page.count("<script") == page.count("</script>") == 4
        head = re.sub(r"'sha256-[^']*'", "", page.partition("<body>")[0])  # a hash may contain // by chance
        assert "//" not in head

    def test_another_ending_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"path must end in \.html"):
            regard.show(random_maps(1, 1, 3)).save(tmp_path / "x.docx")

    def test_a_notebook_gets_a_widget(self):
        shown = regard.show(random_maps(1, 2, 3))
        bundle = shown._repr_mimebundle_()
        assert "application/vnd.jupyter.widget-view+json" in json.dumps(bundle)
        assert shown.widget.buffer == shown.payload.buffer
        assert shown.selection == {}
        assert ".save('tokens.html')" in repr(shown)

    def test_without_anywidget_it_gets_the_file(self, monkeypatch):
        import sys

        monkeypatch.setitem(sys.modules, "anywidget", None)
        shown = regard.show(random_maps(1, 2, 3))
        assert "<iframe srcdoc=" in shown._repr_mimebundle_()["text/html"]
        with pytest.raises(ImportError, match=r"pip install 'regard\[notebook\]'"):
            shown.widget  # noqa: B018

    def test_views_by_name(self, user_errors):
        for name in ("mechanism", "convolution"):
            shown = regard.show(name)
            assert isinstance(shown, Show)
            assert shown.view == name
        with pytest.raises(
            ValueError, match="what must be one of 'claims', 'convolution', 'mechanism', 'story', got 'nothing'"
        ):
            regard.show("nothing")
        with pytest.raises(TypeError, match="color is only an option of views selected by name"):
            regard.show(random_maps(1, 1, 2), color="red")


def test_the_core_alone_saves_a_page(tmp_path, monkeypatch):
    """NumPy is no part of the core: the README's first example runs after a plain ``pip install .``."""

    def missing(*_):
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(torch.Tensor, "numpy", missing)
    page = tmp_path / "maps.html"
    regard.show(torch.rand(2, 3, 5, 5).softmax(-1)).save(page)
    assert "<script" in page.read_text()
