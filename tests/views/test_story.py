"""The page that is scrolled: whose networks it shows, and that its parts are those of the views."""

import json

import pytest
import torch

import regard
from regard.training import load_run
from regard.views import page, shipped_run, story


@pytest.fixture(scope="module")
def alone():
    return story()


def owned(payload):
    return {name for name, part in payload.meta["parts"].items() if part["own"]}


def test_without_a_run_everything_came_with_the_package(alone):
    assert alone.meta["run"] is None
    assert owned(alone) == set()
    assert len(page.story(alone, "x")) <= 3e6
    parts = alone.meta["parts"]
    assert parts["images"]["meta"]["same"]  # Gaussian heads: one set of maps for all photos
    assert [sample["label"] for sample in parts["images"]["meta"]["samples"]][:2] == ["cat", "ship"]


def test_arrays_of_a_part_are_those_of_its_view(alone):
    lines = alone.meta["parts"]["yours"]["meta"]["code"]
    run = load_run(shipped_run("cifar10-small"))
    assert lines == "with regard.capture(model) as maps:\n    model(x)\nregard.show(maps, image=x)"
    stored = alone.arrays["yours/map3"].values
    with torch.no_grad(), regard.capture(network := run.network()) as maps:
        network(torch.zeros(1, 3, 32, 32))  # these heads ignore what they see
    assert (stored - maps[3].weights[0]).abs().max() < 1 / 255
    header = json.loads(alone.header)
    assert header["arrays"]["yours/map3"]["scale"] == "yours/map3.scale"


@pytest.mark.parametrize(
    ("name", "own"), [("case-transformer", {"case", "yours"}), ("induction", {"induction", "yours"})]
)
def test_a_text_network_is_shown_where_it_fits(name, own):
    payload = story(load_run(shipped_run(name)))
    assert owned(payload) == own
    assert payload.meta["run"] == name
    assert payload.meta["parts"]["yours"]["view"] == "tokens"


def test_a_trajectory_is_thinned_and_keeps_its_ends(alone):
    heads = alone.meta["parts"]["heads"]["meta"]
    run = load_run(shipped_run("cifar10-small"))
    assert (heads["steps"][0], heads["steps"][-1]) == (run.heads.steps[0], run.heads.steps[-1])
    assert len(heads["steps"]) == len(alone.arrays["heads/center0"]) <= 120
    assert torch.equal(alone.arrays["heads/center2"][-1], run.heads.center[2][-1].float())


def test_views_by_name_include_it(alone):
    shown = regard.show("story")
    assert shown.payload.meta["parts"].keys() == alone.meta["parts"].keys()
    text = shown.html()
    assert '<div class="story-opening"><h1>Watch a network learn where to look</h1>' in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")
