"""What a run leaves to look at: metrics, heads, TensorBoard, the terminal; and reading it back."""

import io
import json
import resource
import shutil
import sys

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import regard
from regard.training import (
    DiskFullError,
    HeadPositions,
    HeadTrajectory,
    ImageEncoderSettings,
    ImageTask,
    Recipe,
    Seq2SeqRNNSettings,
)
from regard.training._json_lines import JsonLines
from regard.training._listeners import HeadWriter
from regard.training._meter import StepRecord
from regard.training._progress import ProgressBar
from regard.training.events import Evaluated, Logged, Started


def test_metrics_have_a_line_for_each_step_and_each_evaluation(train_toy):
    run = train_toy(evaluate_every=2)
    steps = [line for line in run.metrics if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 13))
    assert all(line.keys() == {"step", "loss", "accuracy", "gradient_norm", "learning_rate"} for line in steps)
    assert [(line["step"], line["epoch"]) for line in run.evaluations] == [(8, 2), (12, 3)]
    assert [line["step"] for line in run.metrics] == sorted(line["step"] for line in run.metrics)


def test_the_summary_says_what_where_and_how(train_toy):
    summary = train_toy().summary
    assert summary["steps"] == 12
    assert summary["parameters"] == 265
    assert summary["validation_accuracy"] is not None
    assert 0 < summary["train_seconds"] < 60
    assert 0 < summary["process_seconds"] < 60
    assert summary["compile_seconds"] == 0
    assert {"hardware", "date", "command", "commit", "versions"} <= summary.keys()


class TestHeads:
    def test_the_file_is_the_documented_one_and_reads_back(self, train_toy):
        run = train_toy()
        header, *moments = [json.loads(line) for line in (run.folder / "heads.jsonl").read_text().splitlines()]
        assert header == {"version": 1, "grid": [3, 4], "grids": None, "layers": ["attention"]}
        assert [moment["step"] for moment in moments] == list(range(13))
        trajectory = run.heads
        assert trajectory.steps == tuple(range(13))
        assert trajectory.grid == (3, 4)
        assert trajectory.grids == ((3, 4),)
        network = run.network()
        last = trajectory.at(-1)
        torch.testing.assert_close(last.center[0], network.attention.center.detach(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(last.sharpness[0], network.attention.sharpness.detach(), rtol=1e-6, atol=1e-6)
        assert not torch.equal(trajectory.center[0][0], trajectory.center[0][-1])

    @pytest.mark.parametrize(("kind", "shape"), [("gaussian-diagonal", (9, 2)), ("gaussian-full", (9, 2, 2))])
    def test_every_form_of_sharpness_is_kept(self, tmp_path, kind, shape):
        task = ImageTask("fashion-mini", validation=10, limit=8)
        recipe = Recipe(
            "tiny", task, ImageEncoderSettings(kind, patch_size=4, dim=9, depth=1, hidden=4), epochs=1, batch_size=8
        )
        run = regard.train(recipe, folder=tmp_path / "run", accelerator="cpu", tensorboard=False)
        assert run.heads.layers == ("blocks.0.attention",)
        assert run.heads.sharpness[0].shape == (2, *shape)

    @pytest.mark.parametrize(
        ("merge", "grids"), [((), ((8, 8), (8, 8))), ((1,), ((8, 8), (4, 4))), ((0,), ((4, 4), (4, 4)))]
    )
    def test_every_layer_has_the_grid_it_sees(self, tmp_path, merge, grids):
        from regard.models import ImageEncoder

        network = ImageEncoder(16, 2, 2, dim=9, depth=2, hidden=4, merge=merge)
        writer = HeadWriter(JsonLines(tmp_path / "heads.jsonl"), network, 1)
        writer(Started(0, 1))
        writer(Logged(0, [], {}, 0.0))
        assert HeadTrajectory.read(tmp_path / "heads.jsonl").grids == grids

    def test_long_runs_leave_about_two_hundred_moments(self, toy, tmp_path):
        network = toy.ToyModule(0.0, batch_norm=False)
        for total in (1, 7, 199, 200, 1000, 46_900):
            writer = HeadWriter(JsonLines(tmp_path / "heads.jsonl"), network, total)
            due = [step for step in range(total + 1) if writer.is_due(step)]
            assert due[0] == 0
            assert due[-1] == total
            assert len(due) <= 402

    def test_a_network_without_such_heads_leaves_no_file(self, tmp_path):
        recipe = Recipe("tiny", regard.training.CaseConversion(), Seq2SeqRNNSettings()).smoke()
        run = regard.train(recipe, folder=tmp_path / "run", accelerator="cpu", tensorboard=False)
        assert run.heads is None
        assert not (run.folder / "heads.jsonl").exists()


@pytest.fixture(scope="module")
def boards(tmp_path_factory):
    """Event files of an image model with Gaussian heads and of a sequence model with alignments."""
    found = {}
    image = Recipe(
        "image",
        ImageTask("fashion-mini", validation=10, limit=16),
        ImageEncoderSettings(patch_size=4, dim=9, depth=1, hidden=4),
        epochs=2,
        batch_size=8,
    )
    sequence = Recipe("sequence", regard.training.CaseConversion(), Seq2SeqRNNSettings()).smoke()
    for recipe in (image, sequence):
        folder = tmp_path_factory.mktemp("boards") / recipe.name
        regard.train(recipe, folder=folder, accelerator="cpu", tensorboard=True, log_every=2)
        found[recipe.name] = EventAccumulator(str(folder / "tensorboard"))
        found[recipe.name].Reload()
    return found


class TestTensorBoard:
    def test_it_has_scalars_and_learning_rates(self, boards):
        tags = boards["image"].Tags()["scalars"]
        for name in ("train/loss", "train/accuracy", "validation/accuracy", "learning_rate/0_AdamW_0"):
            assert name in tags
        assert [event.step for event in boards["image"].Scalars("train/loss")] == [2, 4]  # log_every

    def test_it_has_where_each_head_looks_as_numbers_and_as_pictures(self, boards):
        board = boards["image"]
        for head in range(9):
            for what in (f"center/blocks.0.attention/{head}_row", f"center/blocks.0.attention/{head}_column"):
                assert [event.step for event in board.Scalars(what)] == [0, 1, 2, 3, 4]
            assert f"sharpness/blocks.0.attention/{head}_0" in board.Tags()["scalars"]
        assert len(board.Images("heads")) >= 2

    def test_it_has_attention_maps_of_the_same_held_out_images_and_alignments(self, boards):
        assert [event.step for event in boards["image"].Images("attention/image_0")] == [2, 4]
        assert boards["sequence"].Images("attention/alignment_0")

    @pytest.mark.parametrize("lost", ["the last checkpoint", "all checkpoints"])
    def test_a_resumed_run_shows_each_step_once(self, toy, tmp_path, monkeypatch, lost):
        def train(**options):
            return regard.train(toy.toy_recipe(), folder=tmp_path, accelerator="cpu", log_every=1, **options)

        run = train(save_every=3, keep=4, tensorboard=True)
        for step in run.checkpoints.steps() if lost == "all checkpoints" else [12]:
            shutil.rmtree(run.checkpoints.path(step))
        monkeypatch.setattr("time.time_ns", lambda: 10**18)  # the clock was set back
        [earlier] = (tmp_path / "tensorboard").iterdir()
        train(save_every=3, keep=4, tensorboard=True, resume="auto")
        names = sorted(
            path.name for path in (tmp_path / "tensorboard").iterdir()
        )  # TensorBoard reads them in this order
        assert (len(names), names[0]) == (2, earlier.name)
        board = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
        board.Reload()
        assert [event.step for event in board.Scalars("train/loss")] == list(range(1, 13))
        assert [event.step for event in board.Scalars("center/attention/1_row")] == list(range(13))

    def test_a_full_disk_is_a_message_and_leaves_whole_entries(self, toy, tmp_path):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(DiskFullError, match=r"no room for the next entry of the event file.*resume: regard"):
                regard.train(toy.toy_recipe(), folder=tmp_path, accelerator="cpu", log_every=1, tensorboard=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        board = EventAccumulator(str(tmp_path / "tensorboard"))
        board.Reload()
        assert [event.step for event in board.Scalars("sharpness/attention/0_0")] == [0]


class TestTerminal:
    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_it_is_quiet_where_there_is_none(self, train_toy, capfd, precision):
        train_toy(epochs=1, precision=precision)
        assert capfd.readouterr() == ("", "")

    def test_the_bar_shows_loss_accuracy_and_speed(self, monkeypatch):
        shown = io.StringIO()
        monkeypatch.setattr(sys, "stderr", shown)
        bar = ProgressBar("toy", shown=True)
        bar(Started(0, 10))
        bar(Evaluated(4, 1, regard.training.Score(0.5, 0.87, 10), 1.0))
        bar(Logged(5, [StepRecord(4, 0.5, 0.75, 1.0, 0.1), StepRecord(5, 0.3, 0.25, 1.0, 0.1)], {}, 1234.4))
        bar.close()
        text = shown.getvalue()
        for words in ("toy", "5/10", "loss 0.400", "train 50.0%", "validation 87.00%", "1,234/s"):
            assert words in text


class TestReading:
    def test_a_run_gives_its_recipe_and_the_network_of_any_checkpoint(self, train_toy, toy):
        run = train_toy(keep=10)
        loaded = regard.load_run(run.folder)
        assert loaded.recipe == toy.toy_recipe()
        for which in ("last", "best", 4):
            network = loaded.network(which)
            assert not network.training
            state = loaded.checkpoint(which).part("network")
            assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
        with pytest.raises(ValueError, match=r"one of the steps \[4, 8, 12\], got 5"):
            loaded.checkpoint(5)

    def test_best_is_by_what_was_held_out(self, train_toy):
        run = train_toy(keep=10, epochs=5)
        scores = {line["step"]: line["validation_accuracy"] for line in run.evaluations}
        assert scores[run.checkpoint("best").state["step"]] == max(scores.values())

    def test_loading_leaves_the_callers_random_numbers_alone(self, train_toy):
        run = train_toy(epochs=1)
        torch.manual_seed(3)
        expected = torch.rand(2)
        torch.manual_seed(3)
        run.network()
        assert torch.equal(torch.rand(2), expected)

    def test_what_is_no_run_is_refused(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"is not the folder of a run: it has no recipe\.json"):
            regard.load_run(tmp_path)
        (tmp_path / "recipe.json").write_text('{"kind": "ScheduleSettings"}')
        with pytest.raises(ValueError, match="does not hold a recipe"):
            regard.load_run(tmp_path)

    def test_the_finished_model_stands_by_itself(self, tmp_path):
        task = ImageTask("fashion-mini", validation=10, limit=8)
        recipe = Recipe(
            "tiny",
            task,
            ImageEncoderSettings(patch_size=4, dim=9, depth=1, hidden=4),
            epochs=1,
            batch_size=8,
            average=0.5,
        )
        run = regard.train(recipe, folder=tmp_path / "run", accelerator="cpu", tensorboard=False)
        alone = regard.models.Pretrained.from_pretrained(run.folder / "model")
        images = torch.randn(2, 1, 28, 28)
        assert torch.equal(alone.eval()(images), run.network()(images))


def test_heads_of_a_moment_stay_as_they_were():
    layer = regard.GaussianAttention(8, 2)
    before = HeadPositions.of({"": layer})
    place = layer.center.detach().clone()
    with torch.no_grad():
        layer.positions.center.add_(1)
    torch.testing.assert_close(before.center[0], place)
