"""Damaged recipes, killed saves and wrong files: restored, removed or refused in words."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import regard
from regard.models import ResNet18
from regard.support import processes
from regard.support.checks import UnusableInputError
from regard.support.reading import UnreadableError
from regard.training import Checkpoints, DamagedCheckpointError, start_fabric
from regard.training._fitting import check_data
from regard.training._head_trajectory import HeadTrajectory
from regard.training._start import check_form


@pytest.fixture(scope="module")
def finished(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    regard.train(toy.toy_recipe(), folder=folder, accelerator="cpu", tensorboard=False)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b'{"kind": "Recipe", "name": "other"}', None])
def test_a_damaged_recipe_is_restored_by_resuming(toy, run, damage, capsys):
    whole = (run / "recipe.json").read_bytes()
    if damage is None:
        (run / "recipe.json").unlink()
    else:
        (run / "recipe.json").write_bytes(damage)
    regard.train(toy.toy_recipe(), folder=run, resume="auto", accelerator="cpu", tensorboard=False)
    assert (run / "recipe.json").read_bytes() == whole
    assert "restored from the checkpoint" in "".join(capsys.readouterr())
    assert regard.load_run(run).network() is not None


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "heads.jsonl"])
def test_a_link_or_a_pipe_in_the_folder_is_refused_and_what_it_leads_to_is_kept(toy, run, tmp_path, name):
    """Training locks, cuts off and appends. In a folder from somebody else these may be links to files of yours."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim)
    with pytest.raises(UnreadableError, match="links to a place outside"):
        regard.train(toy.toy_recipe(), folder=run, resume="auto", accelerator="cpu", tensorboard=False)
    assert victim.read_text() == "precious"
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(UnreadableError, match="is a pipe"):
        regard.train(toy.toy_recipe(), folder=run, resume="auto", accelerator="cpu", tensorboard=False)


STRANGE = [
    ("step", "x"), ("step", 5), ("optimizers", [[1]]), ("seconds", None), ("process_seconds", []), ("evaluation", [1]),
    ("best", None), ("logs", []), ("logs", {"metrics.jsonl": 1.5}), ("recipe", 3), ("versions", None),
]  # fmt: skip


def test_a_state_of_another_form_is_a_damaged_checkpoint_although_its_digest_is_right(run):
    checkpoints = Checkpoints(run / "checkpoints")
    step = checkpoints.steps()[-1]
    state = checkpoints.load(step).state
    check_form(state, checkpoints.path(step))
    missing = [{key: value for key, value in state.items() if key != name} for name in ("step", "recipe", "logs")]
    for strange in [{**state, name: value} for name, value in STRANGE] + missing:
        with pytest.raises(DamagedCheckpointError, match="the state "):
            check_form(strange, checkpoints.path(step))


def test_a_checkpoint_of_another_form_is_passed_over_by_resuming(toy, run, capsys):
    checkpoints = Checkpoints(run / "checkpoints")
    step = checkpoints.steps()[-1]
    tensors, state = checkpoints.load(step)
    shutil.rmtree(checkpoints.path(step))
    checkpoints.save(step, tensors, {**state, "logs": None})
    (checkpoints.folder / f"step-{step + 1:08d}").write_bytes(b"no folder")
    (checkpoints.folder / f".writing-{step:08d}").symlink_to(run)  # where the next save would write
    regard.train(toy.toy_recipe(), folder=run, resume="auto", accelerator="cpu", tensorboard=False)
    assert "the state has logs None" in "".join(capsys.readouterr())
    assert regard.load_run(run).checkpoints.steps()[-1] == step


def test_classes_of_another_form_are_other_classes(toy, run):
    for classes in (5, "x", {"a": 1}, ["x" * 10**6]):
        with pytest.raises(UnusableInputError, match="was trained on the classes") as refused:
            check_data(toy.toy_recipe(), {"data": {"classes": classes}}, run)
        assert len(str(refused.value)) < 1000


def test_what_a_killed_save_left_is_removed(toy, run):
    (run / "model").mkdir(exist_ok=True)
    for stray in (run / ".summary.json.1-2.writing", run / "model" / ".model.safetensors.1-2.writing"):
        stray.write_bytes(b"half")
    (run / "summary.json").unlink()
    regard.train(toy.toy_recipe(), folder=run, resume="auto", accelerator="cpu", tensorboard=False)
    assert list(run.rglob("*.writing")) == []
    assert (run / "summary.json").exists()


def test_equal_weights_are_equal_bytes(tmp_path):
    """The library's table of metadata has another order each time."""
    model = ResNet18(num_classes=3, width=4)
    contents = set()
    for _ in range(12):
        model.save_pretrained(tmp_path)
        contents.add((tmp_path / "model.safetensors").read_bytes())
    assert len(contents) == 1
    assert torch.equal(ResNet18.from_pretrained(tmp_path).fc.bias, model.fc.bias)


def test_a_network_of_another_recipe_is_refused_in_one_line(toy, run):
    other = replace(toy.toy_recipe(), network=toy.ToyNetwork(batch_norm=True))
    regard.training.Run(run).write_recipe(other)
    with pytest.raises(ValueError, match="does not fit the network of the recipe") as refused:
        regard.load_run(run).network()
    assert "\n" not in str(refused.value)


def test_a_recipe_of_any_depth_takes_no_memory(tmp_path):
    recipe = regard.recipes.get("demo").smoke()
    regard.train(recipe, folder=tmp_path, accelerator="cpu", tensorboard=False)
    about = json.loads((tmp_path / "recipe.json").read_text())
    begin = time.process_time()
    # A billion blocks were a list of a billion grids before the first tensor was counted.
    for depth, refusal in ((10_000, "more parts than"), (10**9, "depth must be 1 or more, and 10000 at most")):
        about["network"]["depth"] = depth
        (tmp_path / "recipe.json").write_text(json.dumps(about))
        with pytest.raises(ValueError, match=refusal):
            regard.load_run(tmp_path).network()
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("content", ["[]", "{}", '{"steps": "many"}', "3"])
def test_a_summary_of_another_form_is_refused_in_words(run, content):
    (run / "summary.json").write_text(content)
    with pytest.raises(ValueError, match=r"summary\.json"):
        regard.load_run(run).summary  # noqa: B018


def test_more_processes_than_processors_are_refused():
    with pytest.raises(ValueError, match=r"devices is 9999, but this machine has \d+ processors"):
        start_fabric(accelerator="cpu", devices=9999)


def test_a_name_that_cannot_be_a_folder_is_refused(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("../elsewhere", "a/b", "con", "c:x"):
        with pytest.raises(ValueError, match="cannot name a folder"):
            regard.train(replace(toy.toy_recipe(), name=name), accelerator="cpu", tensorboard=False)


WORKER = """
import time
time.sleep({wait})
from regard.support.processes import end_with_parent
end_with_parent()
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys, time
from regard.support.processes import announce_parent
announce_parent()
worker = subprocess.Popen([sys.executable, "-c", {worker!r}], env={{**os.environ, "LOCAL_RANK": "1"}})
print(worker.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends no process with another")
@pytest.mark.parametrize("wait", [0.0, 2.0])
def test_a_worker_ends_with_its_parent_whenever_that_dies(wait):
    """Also where the parent dies before the worker asks to be told."""
    code = PARENT.format(worker=WORKER.format(wait=wait))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        time.sleep(1.5 if wait == 0 else 0.1)
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 20
    while _runs(worker) and time.monotonic() < until:
        time.sleep(0.1)
    assert not _runs(worker)


def _runs(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text() if sys.platform == "linux" else ""
        os.kill(process, 0)
    except OSError:
        return False
    return ") Z" not in state


def test_other_programs_are_no_workers(monkeypatch):
    monkeypatch.setenv(processes.PARENT, "1")
    processes.end_with_parent()  # would end this process, were it a worker
    monkeypatch.setenv("LOCAL_RANK", "0")
    processes.end_with_parent()


def test_positions_of_heads_are_read_up_to_a_limit(tmp_path):
    """Some millions of short lines would keep the studio for a minute."""
    path = tmp_path / "heads.jsonl"
    path.write_text(
        '{"version": 1, "grid": [7, 7], "layers": []}\n' + '{"step": 1, "center": [], "sharpness": []}\n' * 30_000
    )
    with pytest.raises(UnreadableError, match="more than 20,000 lines"):
        HeadTrajectory.read(path)
