"""What a recipe's docstring expects is in the file that it names, with the number of seeds."""

import json
import re
import statistics

import pytest

from regard import recipes

NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
MEASURED = [name for name in recipes.names() if "Expected: test accuracy" in recipes.summary(name)]


def _close(value, shown):
    """Equal up to a unit in the last decimal shown: a half may be rounded either way."""
    unit = 10.0 ** -len(shown.partition(".")[2])
    return abs(100 * value - float(shown)) <= 0.501 * unit


@pytest.mark.parametrize("name", MEASURED)
def test_the_number_of_seeds_is_said(name):
    text = " ".join(recipes.summary(name).split())
    assert re.search(r"\b(one seed|(two|three|four|five) seeds)\b", text)


@pytest.mark.parametrize("name", MEASURED)
def test_accuracy_spread_and_seeds_are_those_of_the_file(pytestconfig, name):
    text = " ".join(recipes.summary(name).split())
    text = text[text.index("Expected:") :]
    file = json.loads((pytestconfig.rootpath / re.search(r"benchmarks/results/\S+?\.json", text)[0]).read_text())
    assert NUMBERS[re.search(r"(\w+) seeds?\b", text)[1]] == len(file["seeds"])
    shown = re.search(r"([\d.]+)(?: ± ([\d.]+))? %", text)
    assert _close(statistics.mean(file["accuracy"]), shown[1])
    if shown[2] is not None:
        assert _close(statistics.stdev(file["accuracy"]), shown[2])
    flip = re.search(r"([\d.]+) % with flip averaging", text)
    if flip is not None:
        assert _close(statistics.mean(file["accuracy_flip"]), flip[1])
    if (seconds := re.search(r"([\d.]+) s of training", text)) is not None:
        known = [each for each in file["train_seconds"] if each is not None]
        assert f"{statistics.mean(known):.{len(seconds[1].partition('.')[2])}f}" == seconds[1]


def test_the_run_that_is_shipped_has_the_accuracy_of_its_recipe(pytestconfig):
    shown = re.search(
        r"validation accuracy ([\d.]+) %.*\((src/\S+)\)", " ".join(recipes.summary("cifar10-small").split())
    )
    assert _close(json.loads((pytestconfig.rootpath / shown[2]).read_text())["validation_accuracy"], shown[1])
