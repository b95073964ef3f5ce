"""Several processes: the same run, whatever their number."""

import contextlib
import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

import regard
from regard.training import _fabric

RTOL = 1e-5


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, streamed):
    """The folder of runs that two gloo processes made together, started by torchrun."""
    folder = tmp_path_factory.mktemp("processes")
    streamed.write_photos(folder / "photos")
    script = Path(__file__).parent / "process_script.py"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, str(script), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "REGARD_DATA": str(folder / "data")},
    )
    assert done.returncode == 0, done.stderr
    return folder


def _curve(run, *names):
    return torch.tensor([[line[name] for name in names] for line in run.metrics if names[0] in line])


@pytest.mark.parametrize("name", ["plain", "unequal", "muon", "uneven"])
def test_two_processes_have_the_loss_curve_of_one_with_the_same_batch(two_processes, toy, train_toy, name):
    changes = {}
    if name == "unequal":  # the last batches' halves ask for different numbers of predictions
        changes = {"task": toy.ToyTask(unequal=True), "accumulate": 1, "clip": 0.5, "average": 0.9}
    if name == "muon":
        changes = {"optimizer": regard.training.MuonSettings(1e-2, matrix_learning_rate=0.02)}
    alone, together = train_toy(epochs=6, **changes), regard.load_run(two_processes / name)
    for names in (("loss", "accuracy", "gradient_norm"), ("validation_loss", "validation_accuracy")):
        expected = _curve(alone, *names)
        assert len(expected) == (24 if names[0] == "loss" else 6)
        torch.testing.assert_close(_curve(together, *names), expected, rtol=RTOL, atol=1e-6)
    for key, value in alone.checkpoint().tensors.items():
        torch.testing.assert_close(together.checkpoint().tensors[key], value, rtol=1e-3, atol=1e-4)


def test_resumed_processes_end_where_undisturbed_ones_do(two_processes):
    resumed, undisturbed = (regard.load_run(two_processes / name) for name in ("resumed", "plain"))
    assert [line["step"] for line in resumed.metrics] == [line["step"] for line in undisturbed.metrics]
    for key, value in undisturbed.checkpoint().tensors.items():
        assert torch.equal(resumed.checkpoint().tensors[key], value), key


class TestStreamedImages:
    def test_processes_share_every_batch_without_overlap(self, two_processes):
        """Over the ten undisturbed steps, both ask for as many images, never for the same, and miss none of an epoch."""
        count, steps = 40, 10  # training images; 4 of 44 are held out
        asked = []
        for rank in (0, 1):
            lines = [json.loads(line) for line in (two_processes / f"rows-{rank}.jsonl").read_text().splitlines()]
            training = [index for size, *index in lines if size == count]
            asked.append(training[: 2 * steps : 2])  # a batch and its partners in turn
        for first in (0, 5):
            epoch = [row for rank in (0, 1) for index in asked[rank][first : first + 5] for row in index]
            assert sorted(epoch) == list(range(count))
        assert {len(index) for rank in (0, 1) for index in asked[rank]} == {4}

    def test_two_processes_train_as_one_does_from_memory(self, two_processes, streamed, tmp_path, monkeypatch):
        monkeypatch.setenv("REGARD_DATA", str(tmp_path))
        alone = regard.train(
            streamed.streamed_recipe(two_processes / "photos"),
            folder=tmp_path / "run",
            accelerator="cpu",
            tensorboard=False,
        )
        together = regard.load_run(two_processes / "streamed")
        torch.testing.assert_close(_curve(together, "loss"), _curve(alone, "loss"), rtol=RTOL, atol=1e-6)

    def test_they_resume_in_the_middle_of_an_epoch_bit_for_bit(self, two_processes):
        resumed, undisturbed = (regard.load_run(two_processes / name) for name in ("streamed-resumed", "streamed"))
        assert _curve(resumed, "loss").equal(_curve(undisturbed, "loss"))
        for key, value in undisturbed.checkpoint().tensors.items():
            assert torch.equal(resumed.checkpoint().tensors[key], value), key


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two processes need two processors")
def test_processes_that_fabric_started_die_with_the_first_and_resume_bit_for_bit(two_processes, tmp_path):
    """The first is killed at work, as by the system when memory runs out: it can tell nobody."""
    folder = tmp_path / "run"
    command = [sys.executable, str(Path(__file__).parent / "fabric_script.py"), str(folder)]
    options = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **options) as first:
        until = time.monotonic() + 240
        while not list(folder.glob("checkpoints/step-*")) and first.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        members = processes_of(first.pid)
        first.kill()
        first.wait()
        assert len(members) == 2, first.stderr.read()
        until = time.monotonic() + 20
        while processes_of(first.pid) and time.monotonic() < until:
            time.sleep(0.05)
        assert processes_of(first.pid) == []
    assert regard.load_run(folder).summary is None  # it was not finished
    done = subprocess.run(command, timeout=240, **options)
    assert done.returncode == 0, done.stderr
    resumed, undisturbed = regard.load_run(folder), regard.load_run(two_processes / "plain")
    assert [line["step"] for line in resumed.metrics] == [line["step"] for line in undisturbed.metrics]
    for key, value in undisturbed.checkpoint().tensors.items():
        assert torch.equal(resumed.checkpoint().tensors[key], value), key


def processes_of(session):
    """The processes of a session that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state not in "ZX":
                found.append(int(path.parent.name))
    return found


def test_the_mean_is_over_all_targets_not_over_processes(two_processes, toy):
    task = toy.ToyTask(unequal=True)
    recipe = toy.toy_recipe(task)
    torch.manual_seed(regard.data.random_number(2**63, recipe.seed, "parameters"))
    network = recipe.network.build(task)
    examples = task.examples("train", torch.device("cpu"))
    halves = [regard.data.Loader(examples, 6, rank=rank, world_size=2).batch(0, 0) for rank in (0, 1)]
    losses = [task.outcome(network, half).loss.item() for half in halves]
    counts = [task.targets(half).item() for half in halves]
    first = regard.load_run(two_processes / "unequal").metrics[0]["loss"]
    assert first == pytest.approx(sum(losses) / sum(counts), rel=RTOL)
    assert first != pytest.approx(sum(loss / n for loss, n in zip(losses, counts, strict=True)) / 2, rel=100 * RTOL)


def test_a_process_that_looks_at_the_folder_late_does_not_take_its_own_run_for_another(two_processes):
    copied, plain = (regard.load_run(two_processes / name) for name in ("copied", "plain"))
    assert copied.checkpoint().state["step"] == plain.checkpoint().state["step"]


def test_the_score_is_that_of_the_saved_network_though_each_process_has_its_own_statistics(two_processes, toy):
    run = regard.load_run(two_processes / "statistics")
    examples = run.recipe.task.examples("validation", torch.device("cpu"))
    found = regard.training.score(_fabric.start_fabric(accelerator="cpu"), run.recipe.task, run.network(), examples)
    assert run.evaluations[-1]["validation_loss"] == pytest.approx(found.loss, rel=1e-6)


class TestEngineModule:
    def test_it_is_found_on_its_own_or_as_part_of_lightning(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "lightning_fabric", None)
        monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
        part = types.ModuleType("lightning.fabric")
        monkeypatch.setitem(sys.modules, "lightning.fabric", part)
        assert _fabric._fabric_module() is part

    def test_without_either_the_extra_is_named(self, monkeypatch):
        for name in ("lightning_fabric", "lightning"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=r"pip install 'regard\[train\]'"):
            _fabric.start_fabric()


@pytest.mark.parametrize(("name", "value"), [("devices", 0), ("nodes", -1)])
def test_how_many_must_be_one_or_more(user_errors, name, value):
    with pytest.raises(ValueError, match=f"{name} must be 1 or more, got {value}"):
        _fabric.start_fabric(**{name: value})
