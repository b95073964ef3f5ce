"""Benchmarks that train: a trial leaves the measurements that the documentation shows alone."""

import doctest
import json
import shutil
import sys

import pytest
import torch
import torch._dynamo

from regard.training._run import RunLock


@pytest.fixture
def benchmark(script, root, tmp_path, monkeypatch, capsys):
    """Run ``benchmarks/NAME.py`` with these words in an empty folder: what it printed."""
    results = root / "benchmarks/results"
    before = {path.name: path.read_bytes() for path in results.iterdir()}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_KERNELS", "1")  # the ablation sets it; put back at the end

    def start(name, *words):
        monkeypatch.setattr(sys, "argv", [f"benchmarks/{name}.py", *words])
        script(f"benchmarks/{name}.py").main()
        return capsys.readouterr().out

    with torch._dynamo.config.patch(recompile_limit=torch._dynamo.config.recompile_limit):  # both set it
        yield start
    assert {path.name: path.read_bytes() for path in results.iterdir()} == before


def read(folder):
    return {path.name[: -len("-2026-01-01.json")]: json.loads(path.read_text("utf-8")) for path in folder.iterdir()}


def test_examples_hold(script):
    found = doctest.testmod(script("benchmarks/_measure.py"))
    assert found.attempted > 0
    assert found.failed == 0


def test_a_trial_of_the_reproduction_has_its_own_folder_and_name(benchmark, tmp_path):
    words = ("--smoke", "--names", "a6-gaussian", "--seeds", "1")
    benchmark("reproduction", *words)
    benchmark("reproduction", *words, "--epochs", "1")
    plain = read(tmp_path / "runs/reproduction-smoke/results")
    changed = read(tmp_path / "runs/reproduction-smoke-epochs-1/results")
    assert plain["a6-gaussian-short-smoke"]["recipe"] == "a6-gaussian-short (smoke)"
    assert plain["reproduction-smoke"]["rows"][0]["epochs"] == 2
    assert changed["a6-gaussian-short-smoke-epochs-1"]["recipe"] == "a6-gaussian-short (smoke, epochs 1)"
    assert changed["reproduction-smoke-epochs-1"]["rows"][0]["epochs"] == 1
    assert changed["reproduction-smoke-epochs-1"]["benchmark"] == "reproduction (smoke, epochs 1)"
    assert "a6-gaussian" in benchmark("reproduction", *words, "--collect")


def test_collecting_never_trains(benchmark, tmp_path, capsys):
    with pytest.raises(SystemExit):
        benchmark("reproduction", "--smoke", "--names", "resnet18", "--seeds", "1", "--full", "--collect")
    assert "--collect trains nothing" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_some_networks_do_not_replace_the_table_of_all(benchmark, root, tmp_path):
    results = shutil.copytree(root / "benchmarks/results", tmp_path / "kept")
    before = {path.name: path.read_bytes() for path in results.iterdir()}
    printed = benchmark("reproduction", "--collect", "--names", "resnet18", "--output", "kept")
    assert "no table is written" in printed
    assert {path.name: path.read_bytes() for path in results.iterdir()} == before


def test_a_changed_number_of_epochs_is_in_the_name(script):
    reproduction = script("benchmarks/reproduction.py")
    name = "a6-gaussian"
    assert reproduction.named(name, reproduction.recipe_of(name, epochs=3)) == "a6-gaussian-short (epochs 3)"
    assert reproduction.named(name, reproduction.recipe_of(name)) == "a6-gaussian-short"


def test_the_ablation_says_how_many_epochs_were_run(benchmark, tmp_path):
    benchmark("ablation", "--smoke", "--names", "speedrun", "--seeds", "1")
    found = read(tmp_path / "runs/ablation-smoke/results")["ablation-smoke"]
    assert (found["benchmark"], found["epochs"]) == ("ablation (smoke)", 2)


@pytest.mark.parametrize("name", ["reproduction", "ablation"])
def test_where_every_seed_failed_that_is_said(benchmark, name, tmp_path):
    network = {"reproduction": "resnet18", "ablation": "flat"}[name]
    folder = tmp_path / "taken" / network / "seed-0"
    folder.mkdir(parents=True)
    with RunLock(folder), pytest.raises(SystemExit, match=f"of {network} every seed failed"):
        benchmark(name, "--smoke", "--names", network, "--seeds", "1", "--folder", "taken")
    assert not (tmp_path / "taken/results").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ablation", ["--epochs", "0"]), ("rival", ["--seeds", "-1"]), ("reproduction", ["--epochs", "0"]),
        ("own_network", ["--seeds", "0"]), ("gaussian", ["--rounds", "0"]), ("crossover", ["--threads", "none"]),
        ("gaussian", ["--grids", "8", "0"]), ("attention", ["--device", "quantum"]),
    ],
)  # fmt: skip
def test_an_option_that_would_be_ignored_or_fail_is_refused(benchmark, tmp_path, capsys, name, words):
    with pytest.raises(SystemExit) as stopped:
        benchmark(name, *words)
    assert stopped.value.code == 2
    assert f"argument {words[0]}: must be " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
