"""The text networks that come with the package: trained as their recipes say, and equal in torch and in the browser."""

import json
import runpy
from pathlib import Path

import pytest
import torch

import regard
from regard.training import encode, load_run
from regard.views import shipped_run

SCRIPT = runpy.run_path(str(Path(__file__).parent / "network_numbers.py"))


def differences(found, stored, place=""):
    if isinstance(found, dict):
        return [line for key in found for line in differences(found[key], stored[key], f"{place}.{key}")]
    if isinstance(found, list):
        assert len(found) == len(stored), place
        pairs = enumerate(zip(found, stored, strict=True))
        return [line for at, (a, b) in pairs for line in differences(a, b, f"{place}[{at}]")]
    same = abs(found - stored) <= 1e-6 if isinstance(found, float) else found == stored
    return [] if same else [f"{place}: {found} and {stored}"]


def test_the_browser_is_compared_with_what_torch_computes():
    stored = json.loads(SCRIPT["FILE"].read_text(encoding="utf-8"))
    found = SCRIPT["numbers"]()
    assert not differences(found, stored), "run tests/views/network_numbers.py again"
    stored["induction"][0]["scores"][7] += 1e-4
    assert len(differences(found, stored)) == 1


@pytest.mark.parametrize("name", ["case-transformer", "induction"])
def test_a_shipped_network_is_that_of_its_command(name):
    run = load_run(shipped_run(name))
    recipe = encode(regard.recipes.get(name))
    for field, value in zip(*[iter(run.summary["command"].split()[3:])] * 2, strict=True):
        part, key = field.removeprefix("--").split(".")
        recipe[part][key] = type(recipe[part][key])(value)
    assert encode(run.recipe) == recipe
    assert all(value.dtype == torch.float16 for value in run.checkpoint("last").tensors.values())
    assert run.summary["validation_accuracy"] > 0.99


def test_a_wrong_name_is_refused():
    with pytest.raises(ValueError, match="case-transformer"):
        shipped_run("case")


def test_the_next_letter_is_found_where_the_text_came_before():
    run = load_run(shipped_run("induction"))
    task, network = run.recipe.task, run.network()
    seen = task.attend(network, task.read_text("harry potter met Harry p", ""))
    assert seen.answer["masked"][0][0]["label"] == "o"
    assert seen.tokens[-1] == "p"
    # The last layer looks at the letter that followed the first "harry p".
    assert seen.maps[-1].weights[0, :, -1].argmax(-1).tolist() == [7, 7]
    with pytest.raises(ValueError, match="trained on 64"):
        task.read_text("x" * 65, "")
    with pytest.raises(ValueError, match="no characters"):
        task.read_text("", "")
