"""The last measurement, runs of several seeds, and result files."""

import dataclasses
import itertools
import json
from typing import ClassVar

import pytest
import torch

import regard
from regard.training import (
    FlipAveraged,
    ImageEncoderSettings,
    ImageTask,
    Recipe,
    SeedRuns,
    evaluate_run,
    score,
    start_fabric,
    train_seeds,
    write_result,
)

QUIET = {"accelerator": "cpu", "tensorboard": False}
TINY = Recipe(
    "tiny",
    ImageTask("fashion-mini", validation=20, limit=32),
    ImageEncoderSettings(patch_size=4, dim=9, depth=1, hidden=4),
    epochs=1,
    batch_size=16,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return regard.train(TINY, folder=tmp_path_factory.mktemp("run") / "tiny", **QUIET)


def test_evaluation_is_on_the_test_set_with_and_without_flip_averaging(run):
    found = evaluate_run(run, accelerator="cpu")
    test, network = regard.data.load("fashion-mini").test(), run.network()
    images = regard.data.normalize(test.images, test.mean, test.std)
    with torch.no_grad():
        logits, mirrored = network(images), network(images.flip(-1))
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == test.labels).float().mean().item())
    together = logits.softmax(-1) + mirrored.softmax(-1)
    assert found["accuracy_flip"] == pytest.approx((together.argmax(-1) == test.labels).float().mean().item())
    loss = torch.nn.functional.cross_entropy(logits, test.labels).item()
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["targets"] == 1000
    assert json.loads((run.folder / "evaluation.json").read_text()) == found


def test_nothing_but_the_evaluation_touches_the_test_set(tmp_path, monkeypatch):
    def refuse(data):
        raise AssertionError("the test set was touched")

    monkeypatch.setattr(regard.data.DataSet, "test", refuse)
    done = regard.train(TINY, folder=tmp_path / "run", **QUIET)
    done.network("best")
    with pytest.raises(AssertionError, match="touched"):
        evaluate_run(done, accelerator="cpu")


@pytest.mark.parametrize("batch_size", [1, 7, 20, 1000])
def test_the_score_does_not_depend_on_the_batches(run, batch_size):
    fabric, task = start_fabric(accelerator="cpu"), TINY.task
    examples = task.examples("validation", torch.device("cpu"))
    whole = score(fabric, task, run.network(), examples, batch_size=20)
    found = score(fabric, task, run.network(), examples, batch_size=batch_size)
    assert found.accuracy == whole.accuracy
    assert found.loss == pytest.approx(whole.loss, rel=1e-5)
    assert found.targets == 20


def test_scoring_leaves_the_network_in_the_mode_it_was_in(run):
    fabric, task = start_fabric(accelerator="cpu"), TINY.task
    for training in (True, False):
        network = run.network().train(training)
        score(fabric, task, network, task.examples("validation", torch.device("cpu")))
        assert network.training is training
    assert FlipAveraged(run.network())(torch.randn(2, 1, 28, 28)).shape == (2, 10)


@dataclasses.dataclass(frozen=True)
class Fragile(ImageEncoderSettings):
    """Cannot be built twice in a row."""

    def build(self, task):
        if torch.initial_seed() == regard.data.random_number(2**63, 1, "parameters"):
            raise RuntimeError("out of luck")
        return super().build(task)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    recipe = dataclasses.replace(TINY, network=Fragile(patch_size=4, dim=9, depth=1, hidden=4))
    folder, known = tmp_path_factory.mktemp("seeds"), []
    made = train_seeds(
        recipe, range(3), folder=folder, evaluate=True, after_each=lambda done: known.append(list(done.runs)), **QUIET
    )
    assert known == [[0], [0], [0, 2]]  # so that a result file of the seeds so far can be written
    return made


def test_a_member_that_fails_does_not_stop_the_others(seeds):
    assert list(seeds.runs) == [0, 2]
    assert seeds.errors == {1: "RuntimeError: out of luck"}
    assert seeds.runs[0].folder.name == "seed-0"
    accuracies = seeds.accuracy()
    assert accuracies == [seeds.evaluations[0]["accuracy"], seeds.evaluations[2]["accuracy"]]
    mean, spread = 50 * sum(accuracies), 100 * abs(accuracies[0] - accuracies[1]) / 2**0.5
    assert f"tiny, test: {mean:.2f} ± {spread:.2f} %" in str(seeds)
    assert "seed 1 failed: RuntimeError: out of luck" in str(seeds)


@dataclasses.dataclass(frozen=True)
class Moody(ImageEncoderSettings):
    """Refuses a training batch of the first seed, as networks of a user's own may."""

    batch: ClassVar = 1

    def build(self, task):
        network = super().build(task)
        batches = itertools.count(1)

        def refuse(module, inputs):
            if module.training and next(batches) == self.batch:
                raise ValueError("not this one")

        if torch.initial_seed() == regard.data.random_number(2**63, 0, "parameters"):
            network.register_forward_pre_hook(refuse)
        return network


def test_what_the_first_seed_cannot_use_is_an_error_until_it_has_taken_a_step(tmp_path, monkeypatch):
    recipe = dataclasses.replace(TINY, network=Moody(patch_size=4, dim=9, depth=1, hidden=4))
    with pytest.raises(ValueError, match="not this one"):
        train_seeds(recipe, [0, 1], folder=tmp_path / "first", **QUIET)
    monkeypatch.setattr(Moody, "batch", 2)
    found = train_seeds(recipe, [0, 1], folder=tmp_path / "second", log_every=1, **QUIET)
    assert list(found.runs) == [1]
    assert found.errors == {0: "ValueError: not this one"}
    with pytest.raises(
        ValueError, match="started with another recipe"
    ):  # now it is what was typed, though there are steps
        train_seeds(dataclasses.replace(recipe, epochs=2), [1, 2], folder=tmp_path / "second", resume="auto", **QUIET)


def test_of_several_processes_none_goes_on_alone(seeds, tmp_path, monkeypatch):
    """The others may not have its error: they would wait for it, or mix its next seed with this one."""
    monkeypatch.setattr("regard.training._results.several_processes", lambda: True)
    with pytest.raises(RuntimeError, match="out of luck"):
        train_seeds(seeds.recipe, [0, 1, 2], folder=tmp_path, **QUIET)


def test_a_first_seed_that_cannot_be_measured_does_not_stop_the_others(seeds, monkeypatch):
    def measure(run, **options):
        if run.recipe.seed == 0:
            raise ValueError("no")
        return {"accuracy": 0.5}

    monkeypatch.setattr("regard.training._results._known", lambda run: None)
    monkeypatch.setattr("regard.training._results.evaluate_run", measure)
    folder = seeds.runs[0].folder.parent
    found = train_seeds(seeds.recipe, [0, 2], folder=folder, resume="auto", evaluate=True, **QUIET)
    assert (found.errors, found.evaluations) == ({0: "ValueError: no"}, {2: {"accuracy": 0.5}})


def test_members_differ_in_their_seed_alone(seeds):
    for seed, run in seeds.runs.items():
        assert run.recipe == dataclasses.replace(seeds.recipe, seed=seed)
    first, second = (run.checkpoint().part("network") for run in seeds.runs.values())
    assert not torch.equal(first["head.weight"], second["head.weight"])


def test_finished_members_are_not_trained_again(seeds):
    folder = seeds.runs[0].folder.parent
    before = (seeds.runs[0].folder / "metrics.jsonl").stat().st_mtime_ns
    again = train_seeds(seeds.recipe, [0, 2], folder=folder, resume="auto", **QUIET)
    assert list(again.runs) == [0, 2]
    assert (seeds.runs[0].folder / "metrics.jsonl").stat().st_mtime_ns == before
    assert "tiny, validation:" in str(again)


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        (["/somewhere/bin/regard", "train", "tiny", "--result", "r.json"], "regard train tiny"),
        (["benchmarks/reproduction.py", "--seeds", "3", "--output", "there"], "python benchmarks/reproduction.py --seeds 3"),
        (["/elsewhere/mine.py", "--folder", "there"], "python mine.py"),
    ],
)  # fmt: skip
def test_a_result_file_says_what_was_typed_and_not_where(seeds, tmp_path, monkeypatch, typed, written):
    monkeypatch.setattr("sys.argv", typed)
    assert write_result(seeds, tmp_path / "result.json")["command"] == written


def test_finished_members_are_measured_once(seeds):
    folder = seeds.runs[0].folder.parent
    kept = seeds.runs[2].evaluation
    evaluate_run(seeds.runs[2], which="best", accelerator="cpu")  # not what seeds are compared by
    files = [seeds.runs[seed].folder / "evaluation.json" for seed in (0, 2)]
    before = [file.stat().st_mtime_ns for file in files]
    found = train_seeds(seeds.recipe, [0, 2], folder=folder, resume="auto", evaluate=True, **QUIET)
    assert [file.stat().st_mtime_ns == time for file, time in zip(files, before, strict=True)] == [True, False]
    assert found.evaluations == {0: seeds.evaluations[0], 2: kept}


def test_an_evaluation_that_lacks_a_metric_is_made_again(seeds):
    file = seeds.runs[0].folder / "evaluation.json"
    before = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in before.items() if name != "accuracy_flip"}))
    found = train_seeds(seeds.recipe, [0], folder=file.parents[1], resume="auto", evaluate=True, **QUIET)
    assert found.evaluations[0] == json.loads(file.read_text()) == before


def test_a_result_file_has_what_the_design_says(seeds, tmp_path):
    result = write_result(seeds, tmp_path / "results" / "tiny.json")
    assert json.loads((tmp_path / "results" / "tiny.json").read_text())["seeds"] == [0, 2]
    assert list(result)[:13] == [
        "recipe",
        "date",
        "hardware",
        "command",
        "commit",
        "seeds",
        "accuracy",
        "accuracy_flip",
        "train_seconds",
        "process_seconds",
        "compile_seconds",
        "parameters",
        "log",
    ]
    assert result["accuracy"] == seeds.accuracy()
    assert len(result["log"]) == len(result["train_seconds"]) == 2
    for log, run in zip(result["log"], seeds.runs.values(), strict=True):
        [epoch] = log
        losses = [line["loss"] for line in run.metrics if "loss" in line]
        assert epoch["loss"] == pytest.approx(sum(losses) / len(losses))
        assert epoch["validation_accuracy"] == run.summary["validation_accuracy"]
    assert result["failed"] == {1: "RuntimeError: out of luck"}


def test_a_result_file_needs_evaluated_runs(run, tmp_path):
    with pytest.raises(ValueError, match="every run measured on the test set"):
        write_result(SeedRuns(TINY, (0,), {0: run}), tmp_path / "result.json")


def test_seeds_must_be_distinct(user_errors, tmp_path):
    with pytest.raises(ValueError, match=r"seeds must be distinct, and at least one, got \[1, 1\]"):
        train_seeds(TINY, [1, 1], folder=tmp_path)
    with pytest.raises(TypeError, match=r"seeds must be several seeds, such as range\(3\), got 3"):
        train_seeds(TINY, 3, folder=tmp_path)
