"""After a power loss at any moment, in any state that the disk may be in, a resumed run ends where an undisturbed one does."""

import random
import shutil
import sys

import pytest
import torch

import regard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the names of open files as Linux has them")
STATES = 20


def train(toy, folder):
    return regard.train(
        toy.toy_recipe(), folder=folder, resume="auto", accelerator="cpu", log_every=2, save_every=5, tensorboard=False
    )


def ending(run):
    network = run.network()
    metrics = [{name: value for name, value in line.items() if name != "seconds"} for line in run.metrics]
    return metrics, {name: tensor.clone() for name, tensor in network.state_dict().items()}


def test_a_run_survives_any_loss_of_power(toy, power_loss, tmp_path):
    metrics, weights = ending(train(toy, tmp_path / "undisturbed"))
    draw, crashed = random.Random(0), []
    (tmp_path / "run").mkdir()

    def moment(journal):
        target = tmp_path / f"state-{len(crashed):03d}"
        journal.crash(target, draw)
        crashed.append(target)

    with power_loss.recording(tmp_path / "run", moment):
        train(toy, tmp_path / "run")
    assert len(crashed) > STATES
    kept_steps = 0
    for folder in draw.sample(crashed, STATES):
        before = regard.training.Checkpoints(folder / "checkpoints").steps()
        kept_steps += bool(before)
        found = ending(train(toy, folder))
        assert found[0] == metrics, folder
        assert all(torch.equal(found[1][name], value) for name, value in weights.items()), folder
        assert [path.name for path in folder.rglob(".*") if path.name != ".lock"] == []
        shutil.rmtree(folder)
    assert kept_steps > STATES // 4  # most states have a checkpoint that is kept


def test_what_was_announced_as_written_is_there(power_loss, tmp_path):
    """After write_atomic has returned, no loss of power takes the file back; without flushing the folder it would."""
    from regard.support.files import write_atomic, write_synced

    root, draw = tmp_path / "files", random.Random(0)
    root.mkdir()
    with power_loss.recording(root, lambda journal: None) as journal:
        write_atomic(root / "kept.json", b"new")
        write_synced(root / "unnamed.json", b"new")
    names = []
    for number in range(30):
        journal.crash(tmp_path / f"state-{number}", draw)
        assert (tmp_path / f"state-{number}" / "kept.json").read_bytes() == b"new"
        names.append((tmp_path / f"state-{number}" / "unnamed.json").exists())
    assert not all(names)  # the model does lose what was not flushed
