"""Every recipe: what it says, that it fits, and that it runs from end to end in small."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

import regard
from regard.layers import GatedPositionalAttention
from regard.models import paper_image_encoder
from regard.training import (
    ImageTask,
    MuonSettings,
    Recipe,
    SGDSettings,
    evaluate_run,
    generation_accuracy,
    sweep_lengths,
)

NAMES = regard.recipes.names()
ISSUE = {
    "demo",
    "ex05-vit",
    "ex05-vit-plain",
    "a6-gaussian",
    "a6-general",
    "a6-learned",
    "a6-content",
    "a6-gated",
    "resnet18",
    "fashion-vit",
    "fashion-gaussian",
    "case-rnn",
    "case-rnn-attention",
    "case-transformer",
    "text-mlm",
}


def _build(recipe):
    with torch.device("meta"):
        return recipe.network.build(recipe.task)


def _parameters(recipe):
    return sum(parameter.numel() for parameter in _build(recipe).parameters())


def test_all_that_are_promised_are_there():
    assert set(NAMES) >= ISSUE


@pytest.mark.parametrize("name", NAMES)
class TestEach:
    def test_it_goes_by_its_name_and_says_what_to_expect(self, name):
        recipe = regard.recipes.get(name)
        assert isinstance(recipe, Recipe)
        assert recipe.name == name
        text = regard.recipes.summary(name)
        assert "Expected:" in text
        assert f"``regard train {name}``" in text or f"``regard {name}``" in text

    def test_it_runs_from_end_to_end_in_small(self, name, tmp_path):
        recipe = regard.recipes.get(name).smoke()
        run = regard.train(recipe, folder=tmp_path / "run", accelerator="cpu", tensorboard=False)
        samples = len(recipe.task.examples("train", torch.device("cpu")))
        assert run.summary["steps"] == recipe.epochs * (samples // recipe.batch_size) > 0
        assert len(run.evaluations) == recipe.epochs
        assert type(run.recipe.network) is type(recipe.network)
        run.network()

    def test_small_is_the_same_kind_on_embedded_data(self, name):
        recipe, small = regard.recipes.get(name), regard.recipes.get(name).smoke()
        assert small.optimizer == recipe.optimizer
        assert small.schedule == recipe.schedule
        assert type(_build(small)) is type(_build(recipe))
        if isinstance(small.task, ImageTask):
            assert small.task.data == "fashion-mini"
        if hasattr(recipe.network, "attention"):
            assert small.network.attention == recipe.network.attention


def test_ex05_has_five_layers_of_width_64_and_no_more_parameters_than_the_sheet():
    recipe = regard.recipes.get("ex05-vit")
    network = _build(recipe)
    assert (len(network.blocks), network.dim) == (5, 64)
    assert all(isinstance(block.attention, GatedPositionalAttention) for block in network.blocks)  # content and place
    assert _parameters(recipe) <= 140_618
    assert (recipe.epochs, recipe.optimizer.learning_rate) == (50, 1e-3)


def test_a6_is_the_papers_network_by_the_papers_recipe():
    recipe = regard.recipes.get("a6-gaussian")
    assert _parameters(recipe) == sum(p.numel() for p in paper_image_encoder().parameters()) == 12_086_844
    assert recipe.optimizer == SGDSettings(0.1, weight_decay=1e-4, momentum=0.9)
    assert (recipe.epochs, recipe.batch_size) == (300, 100)
    kinds = {
        "a6-general": "gaussian-full",
        "a6-learned": "relative",
        "a6-content": "relative-content",
        "a6-gated": "gated",
    }
    for name, kind in kinds.items():
        assert regard.recipes.get(name).network.attention == kind
        short = regard.recipes.get(f"{name}-short")
        assert short.network == dataclasses.replace(regard.recipes.get(name).network, dropout=0.0)
        assert short.epochs * 30 == 300


def test_the_poolings_differ_in_the_pooling_alone():
    recipes = [regard.recipes.get(f"fashion-vit{suffix}") for suffix in ("", "-average", "-attention")]
    assert [recipe.network.pool for recipe in recipes] == ["class", "average", "attention"]
    for recipe in recipes[1:]:
        same = dataclasses.replace(recipe.network, pool="class")
        assert dataclasses.replace(recipe, name="fashion-vit", network=same) == recipes[0]


def test_the_case_recipes_differ_in_the_network_alone():
    first, *others = (regard.recipes.get(name) for name in ("case-rnn", "case-rnn-attention", "case-transformer"))
    for other in others:
        assert dataclasses.replace(other, name=first.name, network=first.network) == first
    assert first.network.attention == "none"


def test_the_speedrun_has_muon_and_faster_centers():
    recipe = regard.recipes.get("cifar10-speedrun")
    assert isinstance(recipe.optimizer, MuonSettings)
    assert recipe.optimizer.center_factor == 5.0


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'a6-gaussian'"):
        regard.recipes.get("a6-gausian")


@pytest.fixture(scope="module")
def case_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("case")
    return [
        regard.train(
            regard.recipes.get(name).smoke(), folder=folder / name, accelerator="cpu", tensorboard=False
        ).folder
        for name in ("case-rnn", "case-rnn-attention", "case-transformer")
    ]


class TestSweep:
    def test_it_has_every_run_at_every_length_and_is_drawn(self, case_runs, tmp_path):
        found = sweep_lengths(case_runs, [3, 5, 9], samples=4)
        assert list(found) == ["case-rnn", "case-rnn-attention", "case-transformer"]
        assert all(list(by_length) == [3, 5, 9] for by_length in found.values())
        figure = regard.figures.length_sweep(found, trained=(3, 6), path=tmp_path / "lengths.png")
        for line, by_length in zip(figure.axes[0].lines, found.values(), strict=True):
            assert line.get_xdata().tolist() == [3, 5, 9]
            assert line.get_ydata().tolist() == [100 * metrics["characters"] for metrics in by_length.values()]
        assert (tmp_path / "lengths.png").stat().st_size > 1000

    def test_no_run_takes_the_place_of_another_with_its_names(self, case_runs, tmp_path):
        same = [Path(shutil.copytree(case_runs[0], tmp_path / place / "run")) for place in ("a", "b", "c")]
        found = sweep_lengths([*same, case_runs[1]], [3], samples=4)
        assert list(found) == ["case-rnn (a/run)", "case-rnn (b/run)", "case-rnn (c/run)", "case-rnn-attention"]
        with pytest.raises(ValueError, match="each run can be passed once"):
            sweep_lengths([same[0], same[1], same[0].parent / ".." / "a" / "run"], [3], samples=4)

    def test_other_runs_are_refused(self, tmp_path):
        recipe = regard.recipes.get("text-mlm").smoke()
        run = regard.train(recipe, folder=tmp_path / "text", accelerator="cpu", tensorboard=False)
        with pytest.raises(ValueError, match="no sentences of different lengths"):
            sweep_lengths([run.folder])

    def test_the_evaluation_of_a_case_run_lets_it_write_by_itself(self, case_runs):
        found = evaluate_run(case_runs[1], accelerator="cpu")
        run = regard.load_run(case_runs[1])
        expected = generation_accuracy(run.network(), run.recipe.task.examples("test", torch.device("cpu")))
        assert (found["characters"], found["sentences"]) == expected
