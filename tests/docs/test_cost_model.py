"""The cost model counts as ``regard.cost`` does, agrees with rows it was not made from, and its file is in step."""

import json
import math

import pytest

import regard


@pytest.fixture(scope="module")
def model(script):
    return script("benchmarks/cost_model.py")


@pytest.fixture(scope="module")
def made(model):
    return model.result()


@pytest.mark.parametrize("way", ["separable", "dense", "content, fused"])
def test_multiply_adds_are_those_that_cost_counts(model, way):
    grid, depth = (4, 6), 3
    network = model.Network(grid, way, depth)
    found = regard.cost(network, (1, math.prod(grid), model.DIM))
    linear = sum(row.multiply_adds for row in found.rows if row.kind == "Linear")
    expected = (found.multiply_adds, found.multiply_adds - linear, found.parameters)
    assert model.count(grid, way, depth) == expected


@pytest.mark.parametrize("grid", [(5,), (6, 7), (3, 4, 5)])
def test_multiply_adds_are_those_of_the_formula(model, grid):
    tokens, features = math.prod(grid), model.HEADS * model.WIDTH
    mixing = {"separable": tokens * sum(grid) * features, "dense": tokens**2 * features,
              "content, fused": 2 * tokens**2 * features}  # fmt: skip
    for way, expected in mixing.items():
        whole, mixed, _ = model.count(grid, way, depth=2)
        projections = 4 if way == "content, fused" else 2  # query, key, value and output, or the last two alone
        linear = tokens * model.DIM * (projections * features + 2 * model.HIDDEN)
        assert mixed == 2 * expected
        assert whole == 2 * (expected + linear) + model.DIM * model.CLASSES


def test_it_agrees_with_measured_rows_that_it_was_not_made_from(made):
    held_out = [row for row in made["checks"] if not row["used"] and 32 <= int(row["grid"][:-1]) <= 128]
    assert {row["way"] for row in held_out} == {"dense", "separable", "content, fused"}
    for row in held_out:
        assert 1 / 1.5 < row["ratio"] < 1.5, row


def test_rates_reproduce_the_rows_they_were_made_from(made):
    used = [row for row in made["checks"] if row["used"]]
    assert len(used) == 4
    for row in used:
        assert row["ratio"] == pytest.approx(1, abs=2e-3), row
    assert all(0 < share < 1 for share in made["share_of_peak"].values())


def test_a_wrong_rate_would_be_noticed(model):
    gaussian, trained = model.measured()
    found = model.rates(gaussian, trained)
    slower = type(found)(**{**vars(found), "dense_products": found.dense_products / 3})
    assert any(not 1 / 1.5 < row["ratio"] < 1.5 for row in model.checks(gaussian, slower) if row["way"] == "dense")


def test_a_log_with_or_without_steps_and_seeds_says_how_many_images_there_were(model):
    _, trained = model.measured()
    recipe = regard.recipes.get(trained["recipe"])
    lines = [{"epoch": 2, "step": 174}]
    assert model._images({**trained, "log": lines}) == 174 * recipe.batch_size
    assert model._images({**trained, "log": [lines, lines]}) == 174 * recipe.batch_size
    shown = 2 * (50_000 - recipe.task.data_set.validation_count)
    assert model._images({**trained, "log": [[{"epoch": 1}, {"epoch": 2}]]}) == shown
    assert model._images({**trained, "log": []}) == 0


def test_more_gpus_are_faster_and_never_more_than_their_number(made):
    for row in made["rows"]:
        one, eight, many = (row["epoch_seconds"][n] for n in ("1", "8", "64"))
        if one is None:
            assert row["attention"] == "dense"
            assert eight is many is None
        else:
            assert one / 8 <= eight < one
            assert eight / 8 <= many < eight


def test_the_separable_way_wins_more_the_larger_the_grid(made):
    seconds = {(tuple(row["grid"]), row["attention"]): row["epoch_seconds"]["8"] for row in made["rows"]}
    ratios = [seconds[(side, side), "dense"] / seconds[(side, side), "separable"] for side in (14, 56, 112)]
    assert ratios == sorted(ratios)
    assert ratios[-1] > 5


def test_all_reduce_moves_every_gradient_twice_but_for_ones_own_share(model):
    assert model.all_reduce_seconds(10**6, 1) == 0
    inside = 2 * 7 / 8 * 4e6 / (model.ASSUMPTIONS.node_bandwidth * model.ASSUMPTIONS.link_efficiency)
    assert model.all_reduce_seconds(10**6, 8) == pytest.approx(inside)
    between = 2 * 7 / 8 * 4e6 / 8 / (model.ASSUMPTIONS.network_bandwidth * model.ASSUMPTIONS.link_efficiency)
    assert model.all_reduce_seconds(10**6, 64) == pytest.approx(inside + between)


def test_the_file_is_what_the_script_writes(model, made, root):
    kept = json.loads((root / "benchmarks/results/cost-model.json").read_text("utf-8"))
    advice = "run python benchmarks/cost_model.py: other results have changed since"
    assert kept["rates_from"] == made["rates_from"], advice
    assert kept["rates"] == pytest.approx(made["rates"], rel=1e-3), advice
    assert [row["multiply_adds"] for row in kept["rows"]] == [row["multiply_adds"] for row in made["rows"]], advice
    for old, new in zip(kept["rows"], made["rows"], strict=True):
        assert _seconds(old) == pytest.approx(_seconds(new), rel=1e-3), advice


def _seconds(row):
    return [math.inf if seconds is None else seconds for seconds in row["epoch_seconds"].values()]


def test_without_measurements_it_says_what_to_run(model, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"needs a run of benchmarks/gaussian\.py"):
        model.measured(tmp_path)
