"""What a run's folder has to show, for every kind of task."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import regard
from regard.training import shut_down
from regard.views import _story, run_views


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """``trained(recipe)``: a small run of it."""
    folder = tmp_path_factory.mktemp("runs")

    def train(recipe):
        options = {"accelerator": "cpu", "tensorboard": False}
        return regard.train(recipe, folder=folder / recipe.name, **options)

    yield train
    shut_down()


def test_heads_without_a_center_are_shown_by_what_fits_them(trained):
    run = trained(regard.recipes.get("fashion-vit").smoke())
    shown = run_views(run)
    assert list(shown) == ["heads", "image"]
    meta, steps = shown["heads"].meta, run.checkpoints.steps()
    assert meta["steps"] == steps
    assert all(layer["fitted"] for layer in meta["layers"])
    assert [point[0] for point in meta["curve"]] == [line["step"] for line in run.evaluations]

    examples = run.recipe.task.examples("validation", torch.device("cpu"))
    images = examples.batch(torch.arange(8), seed=0, epoch=0).images
    with torch.no_grad(), regard.capture(network := run.network()) as maps:
        network(images)
    last = regard.locality(maps)
    for number, head in enumerate(head for head in last if head.name == meta["layers"][0]["name"]):
        found = shown["heads"].arrays["center0"][-1, number]
        assert torch.allclose(found, torch.tensor(head.center), atol=1e-4)


def test_an_image_is_shown_with_the_maps_of_that_image(trained):
    run = trained(regard.recipes.get("fashion-gaussian").smoke())
    shown = run_views(run)
    assert list(shown) == ["heads", "image"]
    assert shown["heads"].meta["steps"] == list(run.heads.steps)
    examples = run.recipe.task.examples("validation", torch.device("cpu"))
    gray = shown["image"].arrays["image"][..., 0]
    assert torch.equal(gray, examples.set.images[0, 0])
    assert all(layer["residual"] < 1e-4 for layer in shown["image"].meta["layers"])


def test_layers_with_merged_tokens_are_shown_on_their_own_grids(trained):
    for attention, sizes in (("gaussian", [14, 7]), ("content", [14, 7])):
        recipe = regard.recipes.get("cifar10-transformer").smoke()
        network = replace(recipe.network, attention=attention, init="normal", head_dim=None, merge=(1,))
        shown = run_views(trained(replace(recipe, name=f"merged-{attention}", network=network)))
        assert list(shown) == ["heads", "image"]
        for name, payload in shown.items():
            assert [layer["grid"] for layer in payload.meta["layers"]] == [[n, n] for n in sizes], name
        meta = shown["image"].meta
        assert [layer["query_grid"] for layer in meta["layers"]] == [[n, n] for n in sizes]
        assert any("ignore content" in note for note in meta["notes"]) == (attention == "gaussian")
        assert meta["rollout"]


@pytest.mark.parametrize("limit", ["LARGE", "LARGEST"])
def test_maps_that_are_too_large_for_a_page_are_left_out_and_named(trained, monkeypatch, limit):
    """The page of a run warned in terms of capture and show, which its reader never called, or showed no maps at all."""
    recipe = regard.recipes.get("cifar10-transformer").smoke()
    network = replace(recipe.network, attention="content", init="normal", head_dim=None, merge=(1,))
    run = trained(replace(recipe, name=f"too-{limit}", network=network))
    first, last = run_views(run)["image"].meta["layers"]  # 196 and 49 tokens
    for name in ("LARGE", limit):
        monkeypatch.setattr(f"regard.views._sheets.{name}", len(first["heads"]) * 100**2)
    meta = run_views(run)["image"].meta  # a warning would be an error
    assert [layer["name"] for layer in meta["layers"]] == [last["name"]]
    assert not meta["rollout"]
    assert any(first["name"] in note and "too large for a page" in note for note in meta["notes"])
    source = _story._Source(run)
    assert _story._three_lines(source, source) is None  # the example is shown instead
    monkeypatch.setattr("regard.views._story.MOST_WEIGHTS", 100)
    assert [layer["name"] for layer in _story._images(source)["maps0"].meta["layers"]] == [last["name"]]


def test_maps_that_do_not_fit_into_memory_are_no_warning_of_a_run(trained, monkeypatch):
    run = trained(replace(regard.recipes.get("fashion-gaussian").smoke(), name="no-room"))
    monkeypatch.setattr("regard.maps._storage.Storage.take", lambda *sizes, **what: "the budget has no room")
    assert "image" not in run_views(run)


def test_the_report_s_picture_says_the_grid_of_each_layer_where_they_differ():
    center, sharpness = [torch.zeros(1, 2)] * 2, [torch.ones(1)] * 2
    merged = regard.figures.heads(center, sharpness, [(16, 16), (8, 8)], titles=["a", "b"])
    assert [panel.get_title() for panel in merged.axes[:2]] == ["a, 16×16 tokens", "b, 8×8 tokens"]
    same = regard.figures.heads(center, sharpness, [(8, 8), (8, 8)], titles=["a", "b"])
    assert [panel.get_title() for panel in same.axes[:2]] == ["a", "b"]


def test_a_sentence_that_is_read_and_written(trained):
    run = trained(regard.recipes.get("case-transformer").smoke())
    shown = run_views(run)
    assert list(shown) == ["tokens"]
    meta = shown["tokens"].meta
    assert meta["tokens"]["told"] == ["<begin>", *meta["tokens"]["target"][:-1]]  # what the decoder reads
    assert "<pad>" not in meta["tokens"]["source"]
    kinds = {(layer["asks"], layer["reads"]) for layer in meta["layers"]}
    assert kinds == {("source", "source"), ("target", "told"), ("target", "source")}


def test_an_alignment_is_labeled_with_what_is_said(trained):
    run = trained(regard.recipes.get("case-rnn-attention").smoke())
    payload = run_views(run)["tokens"]
    (layer,) = payload.meta["layers"]
    assert (layer["asks"], layer["reads"]) == ("target", "source")
    assert payload.meta["tokens"]["target"][0] != "<begin>"


def test_text_with_masked_words(trained):
    shown = run_views(trained(regard.recipes.get("text-mlm").smoke()))
    assert list(shown) == ["heads", "tokens"]
    assert shown["heads"].meta["layers"][0]["axes"] == 1
    assert len(shown["tokens"].meta["tokens"]["text"]) == shown["tokens"].meta["layers"][0]["keys"]


def test_what_does_not_attend_has_nothing_to_show(trained):
    assert run_views(trained(regard.recipes.get("case-rnn").smoke())) == {}


def test_a_task_of_ones_own_shows_its_heads(trained, monkeypatch):
    path = Path(__file__).parents[1] / "training" / "toy_training.py"
    spec = importlib.util.spec_from_file_location("toy_training_of_views", path)
    toy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, toy)
    spec.loader.exec_module(toy)
    shown = run_views(trained(toy.toy_recipe()))
    assert list(shown) == ["heads", "tokens"]
    assert shown["heads"].meta["layers"][0]["grid"] == [3, 4]
    assert shown["tokens"].meta["layers"][0]["keys"] == 12


def test_a_long_training_is_shown_by_some_of_its_lines(tmp_path):
    """What was measured on held-out samples is all there, and so is the end."""
    from types import SimpleNamespace

    from regard.views import training_view

    lines = [{"step": step, "loss": 1 / step, "accuracy": 0.5, "learning_rate": 0.1} for step in range(1, 3500)]
    held = [{"step": step, "validation_loss": 2.0, "validation_accuracy": 0.4} for step in range(333, 3500, 333)]
    run = SimpleNamespace(
        metrics=sorted(lines + held, key=lambda line: line["step"]), recipe=SimpleNamespace(name="long")
    )
    shown = training_view(run).meta["lines"]
    assert len(shown) <= 1000 + len(held) + 1
    assert [line for line in shown if "validation_loss" in line] == held
    assert shown[-1]["step"] == 3499
    assert set().union(*shown) == {"step", "loss", "accuracy", "validation_loss", "validation_accuracy"}
