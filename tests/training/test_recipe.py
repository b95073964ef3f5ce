"""Recipes: frozen, whole in JSON, and refused where they do not fit."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.data import Augmentation
from regard.support.checks import UnusableInputError
from regard.training import (
    AdamWSettings,
    ImageEncoderSettings,
    ImageTask,
    MuonSettings,
    Recipe,
    ScheduleSettings,
    SGDSettings,
    decode,
    differences,
    encode,
)

positive = st.floats(1e-6, 1.0, allow_nan=False)


@given(positive, positive, st.text(max_size=5), st.one_of(st.none(), positive), st.integers(0, 2**40))
def test_json_gives_back_the_very_same_recipe(rate, share, word, clip, seed):
    schedule = ScheduleSettings(share, "linear", rate)
    optimizer = (
        AdamWSettings(rate, share),
        SGDSettings(rate, momentum=share / 2),
        MuonSettings(rate, apart=(word, "x")),
    )[seed % 3]
    task = ImageTask("fashion-mini", augmentation=Augmentation(crop=2, flip="alternate", mixup=0.3))
    recipe = Recipe("any", task, ImageEncoderSettings(hidden=None), optimizer, schedule, clip=clip, seed=seed)
    assert decode(json.loads(json.dumps(encode(recipe)))) == recipe


def test_it_cannot_be_changed():
    recipe = regard.recipes.get("demo")
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.epochs = 3


def test_an_unknown_kind_or_field_is_refused():
    known = encode(ScheduleSettings())
    with pytest.raises(ValueError, match="unknown kind of part 'Pickle'"):
        decode({**known, "kind": "Pickle"})
    with pytest.raises(ValueError, match="ScheduleSettings has no field cooldown"):
        decode({**known, "cooldown": 0.1})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"kind": "Recipe"}, "Recipe lacks name, task, network: is the file complete?"),
        ({"kind": "Recipe", "name": "any", "task": 3, "network": 4}, r"Recipe: task must be Task, got 3 \(int\)"),
    ],
)
def test_a_file_that_does_not_hold_a_recipe_is_refused_as_a_value(user_errors, written, said):
    with pytest.raises(ValueError, match=said):
        decode(written)


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(TypeError, match="a recipe holds numbers, strings"):
        encode(ScheduleSettings(final=1e-3).__class__)


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of a part."""

    width: int = 1


class WideStage(Stage):
    pass


def _with_field(name, kind, value):
    """A recipe whose schedule, a class of the user's own, has one more field."""
    field = dataclasses.field(default_factory=lambda: value)
    if kind == "not in the constructor":
        kind, field = int, dataclasses.field(default=value, init=False)
    own = dataclasses.make_dataclass(
        f"Own{name.title()}", [(name, kind, field)], bases=(ScheduleSettings,), frozen=True
    )
    return dataclasses.replace(regard.recipes.get("demo").smoke(), schedule=own())


@pytest.mark.parametrize(
    ("name", "kind", "value", "words"),
    [
        ("kind", str, "fast", "has a field called kind"),
        ("place", Path, Path("here"), "a recipe holds numbers, strings"),
        ("table", dict, {"a": 1}, "a recipe holds numbers, strings"),
        ("count", int, "three", "count must be int"),
        ("later", "not in the constructor", 3, "unexpected keyword"),
    ],
)
def test_a_recipe_that_could_not_be_read_again_is_refused_before_it_is_trained(tmp_path, name, kind, value, words):
    with pytest.raises(UnusableInputError, match=words):
        regard.train(_with_field(name, kind, value), folder=tmp_path / "run", accelerator="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("places", list, [1, 2]),
        ("sizes", list[int], [1]),
        ("limit", float, math.nan),
        ("words", tuple, ("a", ("b",))),
        ("stage", Stage | None, WideStage(3)),
        ("stages", tuple[Stage, ...], (Stage(2), WideStage(3))),
    ],
)
def test_a_field_of_ones_own_is_read_again_and_resumes(tmp_path, name, kind, value):
    recipe = _with_field(name, kind, value)
    options = {"folder": tmp_path / "run", "accelerator": "cpu", "tensorboard": False}
    regard.train(recipe, **options)
    assert differences(encode(regard.load_run(tmp_path / "run").recipe), encode(recipe)) == []
    assert regard.train(recipe, resume="auto", **options).network() is not None


def test_differences_are_named_by_their_path():
    left = regard.recipes.get("demo")
    right = dataclasses.replace(left, epochs=1, optimizer=dataclasses.replace(left.optimizer, weight_decay=0.5))
    found = differences(encode(left), encode(right))
    assert sorted(line.partition(":")[0] for line in found) == ["epochs", "optimizer.weight_decay"]
    assert differences(encode(left), encode(left)) == []
    assert differences(encode(left), encode(dataclasses.replace(left, optimizer=SGDSettings()))) == [
        "optimizer: AdamWSettings and SGDSettings"
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, "epochs must be 1 or more"),
        ({"batch_size": 10, "accumulate": 3}, "accumulate=3 must divide"),
        ({"clip": 0.0}, "clip must be a positive number or None"),
        ({"average": 1.0}, "average must lie in"),
        ({"precision": "fp16"}, "precision must be one of"),
        ({"non_finite": "ignore"}, "non_finite must be one of"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(user_errors, changes, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(regard.recipes.get("demo"), **changes)


def test_a_part_of_the_wrong_kind_is_refused(user_errors):
    with pytest.raises(TypeError, match="optimizer must be of type OptimizerSettings, got Schedule"):
        dataclasses.replace(regard.recipes.get("demo"), optimizer=ScheduleSettings())
    with pytest.raises(TypeError, match=r"as regard\.recipes\.get\('demo'\) returns, got 'demo'"):
        regard.train("demo")


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("network", "depth", "many"), ("network", "depth", 1.5), ("network", "depth", [1]), ("network", "depth", True),
        ("network", "depth", None), ("task", "data", ["x"]), ("task", "data", None), ("schedule", "decay", "never"),
        ("network", "kind", ["x"]), ("optimizer", "learning_rate", "fast"), ("task", None, []), ("network", None, 3),
    ],
)  # fmt: skip
def test_a_value_of_another_type_in_a_file_is_refused_by_name(part, field, value):
    """The reader says it, before any network is built from it."""
    recipe = encode(regard.recipes.get("demo"))
    if field is None:
        recipe[part] = value
    else:
        recipe[part][field] = value
    with pytest.raises(ValueError, match=f"{field or part} must be|unknown kind of part"):
        decode(recipe)
