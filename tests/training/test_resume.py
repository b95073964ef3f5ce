"""A run that is killed, stopped, damaged or out of room, and what a resumed one makes of it."""

import dataclasses
import errno
import io
import itertools
import json
import os
import pickle
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.training import DamagedCheckpointError, DiskFullError, TrainingInterrupted
from regard.training._json_lines import JsonLines, read_lines
from regard.training._machine import resume_command
from regard.training._run import RunLock
from regard.training._stop import StopRequest
from regard.training.events import Stepped


@pytest.mark.slow
def test_killed_at_any_moment_a_resumed_run_ends_bit_for_bit_where_an_undisturbed_one_ends(tmp_path):
    script = Path(__file__).parent / "kill_script.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path, "8"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["steps"] == 12
    assert len(report["kills"]) == 8 + 8 + 6
    assert all(kill["died"] for kill in report["kills"])
    assert [kill for kill in report["kills"] if kill["differs"]] == []


@pytest.fixture(scope="module")
def whole(toy, tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return regard.train(
        toy.toy_recipe(), folder=folder, accelerator="cpu", log_every=4, save_every=3, keep=10, tensorboard=False
    )


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of it, to be damaged."""
    return regard.load_run(shutil.copytree(whole.folder, tmp_path / "copy"))


def _same(left, right):
    tensors = right.checkpoint().tensors
    return tensors.keys() == left.checkpoint().tensors.keys() and all(
        torch.equal(value, tensors[name]) for name, value in left.checkpoint().tensors.items()
    )


def _steps(run):
    return [line["step"] for line in run.metrics if "loss" in line]


def _break(run, file, how):
    path = run.checkpoints.path(run.checkpoints.steps()[-1]) / file
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "absent":
        path.unlink()
    else:
        middle = len(content) * 3 // 4
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


@pytest.mark.parametrize("how", ["truncated", "changed", "absent"])
@pytest.mark.parametrize("file", ["state.json", "state.safetensors"])
def test_a_damaged_last_checkpoint_is_reported_and_the_one_before_it_used(train_toy, whole, copied, capfd, file, how):
    run = copied
    _break(run, file, how)
    resumed = train_toy(save_every=3, folder=run.folder, resume=True)
    said = capfd.readouterr().err
    assert "damaged checkpoint" in said
    assert "step-00000012" in said
    assert (run.checkpoints.folder / "step-00000012.damaged").is_dir()
    assert _same(resumed, whole)
    assert _steps(resumed) == list(range(1, 13))


def test_all_checkpoints_damaged_is_an_error_and_nothing_is_begun_anew(train_toy):
    run = train_toy(keep=1, epochs=1)
    _break(run, "state.safetensors", "changed")
    written = (run.folder / "metrics.jsonl").read_bytes()
    for _ in range(2):  # nor the second time, when they are set aside
        with pytest.raises(DamagedCheckpointError, match=r"all checkpoints.*\(steps 4\)"):
            train_toy(folder=run.folder, resume="auto", epochs=1)
    assert (run.folder / "metrics.jsonl").read_bytes() == written


def test_a_damaged_checkpoint_is_not_passed_over_in_silence(copied, capfd):
    _break(copied, "state.safetensors", "changed")
    assert copied.checkpoint().state["step"] == 9
    assert "step-00000012" in capfd.readouterr().err


def test_an_end_that_was_cut_off_is_made_up_for(train_toy, whole, copied):
    (copied.folder / "summary.json").unlink()
    resumed = train_toy(save_every=3, folder=copied.folder, resume="auto")
    assert resumed.summary["steps"] == 12
    assert resumed.summary["validation_accuracy"] == whole.summary["validation_accuracy"]


def test_what_a_run_came_to_before_goes_when_it_goes_on(train_toy, copied):
    regard.training.evaluate_run(copied, accelerator="cpu")
    shutil.rmtree(copied.checkpoints.path(12))

    class Stopped(Exception):
        pass

    def stop(event):
        if isinstance(event, Stepped):
            raise Stopped

    with pytest.raises(Stopped):
        train_toy(save_every=3, folder=copied.folder, resume="auto", listeners=[stop])
    assert copied.summary is None
    assert copied.evaluation is None


def test_a_best_checkpoint_is_kept_wherever_else_is_saved(train_toy, toy):
    accuracies = iter([0.2, 0.9, 0.5])

    class Scripted(toy.ToyTask):
        def outcome(self, network, batch):
            found = super().outcome(network, batch)
            return found if network.training else found._replace(correct=torch.tensor(10 * next(accuracies)))

    run = train_toy(Scripted(), epochs=3, save_every=5, keep=1)
    assert run.checkpoints.steps() == [8, 12]
    assert run.checkpoints.best() == 8


def test_channels_last_a_resumed_run_ends_bit_for_bit_where_an_undisturbed_one_ends(tmp_path):
    task = regard.training.ImageTask("fashion-mini", validation=20, limit=64, channels_last=True)
    for optimizer in (regard.training.SGDSettings(0.1), regard.training.MuonSettings(1e-2, convolutions=True)):
        recipe = regard.training.Recipe(
            "last", task, regard.training.ResNet18Settings(width=4), optimizer, epochs=2, batch_size=16
        )
        folder = tmp_path / type(optimizer).__name__
        options = {"accelerator": "cpu", "tensorboard": False, "save_every": 3, "keep": 9}
        whole = regard.train(recipe, folder=folder, **options)
        expected, last = whole.checkpoint().tensors, whole.checkpoints.steps()[-1]
        for step in whole.checkpoints.steps()[1:]:
            shutil.rmtree(whole.checkpoints.path(step))
        resumed = regard.train(recipe, folder=folder, resume=True, **options)
        assert resumed.checkpoints.steps()[-1] == last
        found = resumed.checkpoint().tensors
        assert [name for name, value in expected.items() if not torch.equal(found[name], value)] == []


def test_what_is_not_a_run_is_not_overwritten(train_toy, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metrics.jsonl").write_text("mine")
    with pytest.raises(FileExistsError, match="not written by regard"):
        train_toy(folder=tmp_path / "other", resume="auto")
    assert (tmp_path / "other" / "metrics.jsonl").read_text() == "mine"


def test_a_start_that_failed_does_not_take_the_name(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"accelerator": "cpu", "tensorboard": False}
    with pytest.raises(ValueError, match="batch"):
        regard.train(toy.toy_recipe(toy.ToyTask(samples=3), epochs=1), **options)
    assert regard.train(toy.toy_recipe(epochs=1), **options).folder == Path("runs/toy")


class TestFullDisk:
    def test_a_checkpoint_without_room_stops_with_a_clear_message_and_loses_nothing(
        self, train_toy, whole, tmp_path, monkeypatch
    ):
        folder = tmp_path / "full"
        calls = itertools.count(1)

        def fsync(handle, actual=os.fsync):
            path = Path(f"/proc/self/fd/{handle}").readlink()
            if path.name == "state.json" and next(calls) == 2:  # of the second checkpoint
                os.truncate(path, 10)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            actual(handle)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            with pytest.raises(DiskFullError, match=r"checkpoint of step 4.*No space left.*Nothing written before"):
                train_toy(save_every=3, folder=folder)
        run = regard.load_run(folder)
        assert run.checkpoints.steps() == [3]
        assert [path for path in run.checkpoints.folder.iterdir() if path.name.startswith(".")] == []
        assert _same(train_toy(save_every=3, folder=folder, resume="auto"), whole)

    def test_the_system_refusing_a_large_file_is_the_same(self, train_toy, whole, tmp_path):
        folder = tmp_path / "limited"
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
        try:
            with pytest.raises(DiskFullError, match="File too large"):
                train_toy(save_every=3, folder=folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert _same(train_toy(save_every=3, folder=folder, resume="auto"), whole)

    def test_a_line_that_does_not_fit_is_not_left_in_half(self, tmp_path, monkeypatch):
        lines = JsonLines(tmp_path / "metrics.jsonl")
        lines.add({"step": 1})

        class Full(io.FileIO):
            def write(self, content):
                super().write(content[:5])
                raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", lambda path, mode, **options: Full(path, mode))
            with pytest.raises(DiskFullError, match=r"next lines of metrics\.jsonl"):
                lines.add({"step": 2})
        lines.add({"step": 3})
        assert list(read_lines(lines.path)) == [{"step": 1}, {"step": 3}]


class TestStopping:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_asked_to_stop_it_saves_where_it_is_and_says_how_to_go_on(self, train_toy, whole, tmp_path, number):
        folder = tmp_path / "stopped"

        def ask(event):
            if event == Stepped(5):
                os.kill(os.getpid(), number)

        with pytest.raises(TrainingInterrupted, match=r"stopped at step 5.*resume='auto'") as stopped:
            train_toy(folder=folder, listeners=[ask])
        assert stopped.value.step == 5
        assert regard.load_run(folder).checkpoints.steps()[-1] == 5
        resumed = train_toy(folder=folder, resume="auto")
        assert _same(resumed, whole)
        assert _steps(resumed) == list(range(1, 13))

    def test_the_handlers_are_put_back(self, train_toy):
        before = signal.getsignal(signal.SIGINT)
        train_toy(epochs=1)
        assert signal.getsignal(signal.SIGINT) is before

    def test_a_second_ctrl_c_does_not_wait(self):
        with StopRequest() as request:
            os.kill(os.getpid(), signal.SIGINT)
            assert request.asked
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    @pytest.mark.parametrize(
        ("typed", "named"),
        [
            ("regard train toy --clip 1", "regard train toy --clip 1 --folder {seed} --resume auto"),
            ("regard train toy --folder=x --resume y", "regard train toy --folder {seed} --resume auto"),
            ("regard train toy --seeds 5", "regard train toy --seeds 5 --folder {all} --resume auto"),
            ("/bin/regard demo --smoke", "regard train demo --smoke --folder {seed} --resume auto"),
            (
                "{regard}/cli/__main__.py train toy --name 'a b'",
                "python -m regard.cli train toy --name 'a b' --folder {seed} --resume auto",
            ),
            (
                "{regard}/__main__.py train toy --clip 1",
                "python -m regard train toy --clip 1 --folder {seed} --resume auto",
            ),
            ("{regard}/__main__.py demo", "python -m regard train demo --folder {seed} --resume auto"),
            ("notebook.py", "regard.train(recipe, folder={seed!r}, resume='auto') with the same recipe, 'toy'"),
        ],
    )
    def test_the_command_to_resume_is_the_one_that_was_typed(self, monkeypatch, typed, named):
        monkeypatch.setattr(sys, "argv", shlex.split(typed.format(regard=Path(regard.__file__).parent)))
        expected = named.format(seed="runs/toy-seeds/seed-0", all="runs/toy-seeds")
        assert resume_command("toy", 0, Path("runs/toy-seeds/seed-0")) == expected

    @pytest.mark.parametrize(("world", "launcher"), [(2, ""), (6, "--nnodes 3 ")])
    def test_the_command_to_resume_starts_as_many_processes(self, monkeypatch, world, launcher):
        monkeypatch.setattr(sys, "argv", [str(Path(regard.__file__).parent / "__main__.py"), "train", "toy"])
        for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        expected = f"torchrun {launcher}--nproc-per-node 2 -m regard train toy --folder run --resume auto"
        assert resume_command("toy", 0, Path("run")) == expected


class TestResumeWords:
    def test_false_refuses_a_folder_that_holds_a_run(self, train_toy, copied):
        with pytest.raises(FileExistsError, match="--resume auto"):
            train_toy(folder=copied.folder)

    def test_true_needs_a_checkpoint_and_auto_does_not(self, train_toy, tmp_path):
        with pytest.raises(FileNotFoundError, match="no checkpoint to resume"):
            train_toy(folder=tmp_path / "new", resume=True, epochs=1)
        assert train_toy(folder=tmp_path / "new", resume="auto", epochs=1).summary["steps"] == 4

    def test_a_finished_run_is_left_as_it_is_and_says_that_it_was_finished(self, train_toy, copied, capfd):
        run = copied
        before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
        capfd.readouterr()
        train_toy(folder=run.folder, resume="auto", keep=10)
        assert {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()} == before
        said = capfd.readouterr().err
        assert f"{run.folder} was finished before: all 12 steps" in said
        assert f"{run.summary['validation_accuracy']:.2%}" in said
        assert "--epochs 6" in said

    def test_a_run_that_goes_on_is_not_called_finished(self, train_toy, copied, capfd):
        shutil.rmtree(copied.checkpoints.path(12))
        train_toy(save_every=3, folder=copied.folder, resume="auto")
        assert "was finished before" not in capfd.readouterr().err

    def test_another_recipe_is_refused_with_what_differs(self, train_toy, copied):
        with pytest.raises(ValueError, match="epochs: 3 and 4"):
            train_toy(folder=copied.folder, resume="auto", epochs=4)

    def test_a_run_from_before_a_field_existed_goes_on_with_its_default(self, train_toy, toy, copied):
        checkpoint = copied.checkpoint(9)
        state = {key: value for key, value in checkpoint.state.items() if key != "tensors"}
        del state["recipe"]["schedule"]["final"]  # the default is what the run was started with
        for step in (9, 12):
            shutil.rmtree(copied.checkpoints.path(step))
        copied.checkpoints.save(9, checkpoint.tensors, state)
        with pytest.raises(ValueError, match=r"final: 0\.0 and 0\.1"):
            train_toy(
                folder=copied.folder, resume=True, schedule=dataclasses.replace(toy.toy_recipe().schedule, final=0.1)
            )
        assert train_toy(folder=copied.folder, resume=True).checkpoints.steps()[-1] == 12

    def test_a_path_goes_on_in_another_folder(self, train_toy, whole, tmp_path):
        for path in (whole.checkpoints.path(6), whole.folder):
            branch = train_toy(folder=tmp_path / path.name, resume=path, save_every=3, keep=10)
            assert _same(branch, whole)
            assert _steps(branch) == list(range(1, 13))
            assert (branch.folder / "heads.jsonl").read_text() == (whole.folder / "heads.jsonl").read_text()

    def test_a_path_to_an_older_checkpoint_does_not_overwrite_what_came_later(self, train_toy, copied):
        run = copied
        with pytest.raises(ValueError, match="give another folder"):
            train_toy(resume=run.checkpoints.path(run.checkpoints.steps()[0]), folder=run.folder, save_every=3)

    def test_a_path_to_nothing_is_refused(self, train_toy, tmp_path, user_errors):
        with pytest.raises(FileNotFoundError, match="resume must be"):
            train_toy(resume=tmp_path / "nowhere")
        with pytest.raises(TypeError, match=r"resume must be False, True, 'auto' or the path .*, got None"):
            train_toy(resume=None)

    def test_without_a_folder_the_next_free_name_is_taken(self, toy, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        recipe = toy.toy_recipe(epochs=1)
        folders = [regard.train(recipe, accelerator="cpu", tensorboard=False).folder for _ in range(2)]
        assert folders == [Path("runs/toy"), Path("runs/toy-2")]

    def test_two_processes_do_not_train_in_one_folder(self, train_toy, tmp_path):
        (tmp_path / "taken").mkdir()
        with RunLock(tmp_path / "taken"), pytest.raises(RuntimeError, match="another process is training"):
            train_toy(folder=tmp_path / "taken")


def test_nothing_is_unpickled(train_toy, copied, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a file was unpickled")

    run = copied
    shutil.rmtree(run.checkpoints.path(12))
    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    assert train_toy(folder=run.folder, resume="auto", save_every=3).checkpoints.steps()[-1] == 12
    run.network("best")


def test_logs_that_are_shorter_than_the_checkpoint_says_are_refused(train_toy, copied):
    run = copied
    shutil.rmtree(run.checkpoints.path(12))
    os.truncate(run.folder / "metrics.jsonl", 10)
    with pytest.raises(ValueError, match="part of it is missing"):
        train_toy(folder=run.folder, resume="auto", save_every=3)
