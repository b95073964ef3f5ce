"""What a step does: the same step, however it is cut up, watched, averaged or rounded."""

import math

import pytest
import torch

import regard
from regard.training import (
    AdamWSettings,
    LostProcessError,
    MuonSettings,
    NonFiniteError,
    ScheduleSettings,
    SGDSettings,
)
from regard.training._average import Average
from regard.training.events import Stepped


def _losses(run):
    return torch.tensor([line["loss"] for line in run.metrics if "loss" in line])


def _parameters(run):
    return run.checkpoint().part("network")


def test_the_same_recipe_gives_the_same_run_and_another_seed_another(train_toy, toy):
    network = toy.ToyNetwork(dropout=0.3)
    first, again, other = (train_toy(network=network, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(_losses(first), _losses(again))
    assert all(torch.equal(value, _parameters(again)[name]) for name, value in _parameters(first).items())
    assert not torch.equal(_losses(first), _losses(other))


def test_how_often_one_looks_and_saves_changes_nothing(train_toy):
    usual, often = train_toy(log_every=100), train_toy(log_every=1, save_every=1)
    assert torch.equal(_losses(usual), _losses(often))
    assert all(torch.equal(value, _parameters(often)[name]) for name, value in _parameters(usual).items())


def test_the_callers_random_numbers_are_left_alone(train_toy):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_toy(epochs=1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("parts", [2, 3, 6])
def test_accumulating_parts_is_the_whole_batch(train_toy, toy, parts):
    task = toy.ToyTask(unequal=True)  # parts with different numbers of targets
    whole, in_parts = train_toy(task), train_toy(task, accumulate=parts)
    torch.testing.assert_close(_losses(in_parts), _losses(whole), rtol=1e-5, atol=1e-6)


def test_the_loop_is_the_plain_one_written_out(train_toy, toy):
    recipe = toy.toy_recipe(optimizer=SGDSettings(0.1, weight_decay=0.01, center_factor=3.0, momentum=0.5), clip=0.05)
    run = regard.train(recipe, folder=train_toy(epochs=1).folder / "again", accelerator="cpu", tensorboard=False)

    torch.manual_seed(regard.data.random_number(2**63, recipe.seed, "parameters"))
    network = recipe.network.build(recipe.task)
    loader = regard.data.Loader(recipe.task.examples("train", torch.device("cpu")), recipe.batch_size, seed=0)
    centers = [p for name, p in network.named_parameters() if "center" in name]
    matrices = [p for name, p in network.named_parameters() if p.ndim == 2 and "center" not in name]
    rest = [p for p in network.parameters() if p.ndim < 2]
    optimizer = torch.optim.SGD(
        [
            {"params": centers, "weight_decay": 0.0, "times": 3.0},
            {"params": matrices, "weight_decay": 0.01, "times": 1.0},
            {"params": rest, "weight_decay": 0.0, "times": 1.0},
        ],
        lr=0.1,
        momentum=0.5,
    )
    losses, total = [], recipe.epochs * len(loader)
    for step in range(total):
        batch = loader.batch(*divmod(step, len(loader)))
        loss = recipe.task.outcome(network, batch).loss / len(batch.indices)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in network.parameters()]))
        for parameter in network.parameters():
            parameter.grad *= min(1.0, 0.05 / (norm.item() + 1e-6))
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * group["times"] * ScheduleSettings(warm_up=0.2).factor(step, total)
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(_losses(run), torch.tensor(losses), rtol=1e-5, atol=1e-6)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(_parameters(run)[name], parameter.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "optimizer", [AdamWSettings(1e-2), SGDSettings(0.03), MuonSettings(1e-2, matrix_learning_rate=0.05)], ids=type
)
def test_every_optimizer_learns(train_toy, toy, optimizer):
    losses = _losses(train_toy(toy.ToyTask(samples=60), optimizer=optimizer, epochs=12, evaluate_every=12))
    assert losses[-10:].mean() < 0.85 * losses[:5].mean()


def test_bf16_is_near_fp32_and_keeps_its_parameters_in_fp32(train_toy):
    exact, rounded = train_toy(), train_toy(precision="bf16")
    assert all(value.dtype == torch.float32 for value in _parameters(rounded).values() if value.is_floating_point())
    torch.testing.assert_close(_losses(rounded), _losses(exact), rtol=0.03, atol=0.02)
    assert not torch.equal(_losses(rounded), _losses(exact))


class TestAverage:
    def test_it_follows_the_formula(self, toy):
        network = toy.ToyModule(0.0, batch_norm=True)
        average = Average(network, decay=0.8)
        expected = {name: value.clone() for name, value in network.named_parameters()}
        for step in range(1, 6):
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.add_(torch.randn_like(parameter))
                network.norm.running_mean.add_(1.0)
            average.update(step)
            decay = min(0.8, (1 + step) / (10 + step))
            expected = {
                name: decay * expected[name] + (1 - decay) * value for name, value in network.named_parameters()
            }
        for name, value in average.network.named_parameters():
            torch.testing.assert_close(value, expected[name].detach())
            assert not value.requires_grad
        assert torch.equal(average.network.norm.running_mean, network.norm.running_mean)

    def test_it_is_what_is_evaluated_and_kept(self, train_toy):
        run = train_toy(average=0.9)
        kept = run.network().state_dict()
        assert all(torch.equal(value, kept[name]) for name, value in run.checkpoint().part("average").items())
        assert any(not torch.equal(value, kept[name]) for name, value in run.checkpoint().part("network").items())


@pytest.mark.parametrize("said", ["[/x/third_party/gloo/transport/tcp/pair.cc:537] Read error: reset by peer", "mine"])
def test_only_a_lost_process_is_called_one_and_the_error_says_how_to_go_on(train_toy, tmp_path, said):
    def fail(event):
        if isinstance(event, Stepped) and event.step == 6:
            raise RuntimeError(said)

    with pytest.raises(RuntimeError) as lost:
        train_toy(folder=tmp_path / "run", save_every=5, listeners=[fail])
    assert type(lost.value) is (LostProcessError if "gloo" in said else RuntimeError)
    assert said in str(lost.value)
    assert ("The last checkpoint is of step 5. To resume: " in str(lost.value)) == ("gloo" in said)


class TestNonFinite:
    def _first(self, toy, poisoned):
        """The step, from 1 on, whose batch has the poisoned sample."""
        recipe = toy.toy_recipe()
        loader = regard.data.Loader(recipe.task.examples("train", torch.device("cpu")), recipe.batch_size, seed=0)
        return next(step for step in range(4) if poisoned in loader.index(0, step)) + 1, loader

    @pytest.mark.parametrize("log_every", [1, 3, 100])
    def test_it_stops_and_names_the_step_and_the_samples(self, train_toy, toy, tmp_path, log_every):
        step, loader = self._first(toy, 7)
        with pytest.raises(NonFiniteError, match=f"at step {step} the loss is nan") as stopped:
            train_toy(toy.ToyTask(poisoned=7), folder=tmp_path / "run", log_every=log_every)
        assert stopped.value.step == step
        assert stopped.value.indices == loader.index(0, step - 1).tolist()
        assert "7" in str(stopped.value)
        run = regard.load_run(tmp_path / "run")
        assert [line["step"] for line in run.metrics] == list(range(1, step + 1))
        assert run.metrics[-1]["loss"] is None
        assert run.heads.steps == tuple(range(step))  # where heads were before, and nothing of what is nowhere

    def test_nothing_spoiled_is_ever_saved(self, train_toy, toy, tmp_path):
        with pytest.raises(NonFiniteError):
            train_toy(toy.ToyTask(poisoned=7), folder=tmp_path / "run", save_every=1, log_every=100)
        run = regard.load_run(tmp_path / "run")
        step, _ = self._first(toy, 7)
        assert step > 1
        assert run.checkpoints.steps() == list(range(max(1, step - 2), step))  # none of the bad step or a later one
        for saved in run.checkpoints.steps():
            assert all(value.isfinite().all() for value in run.checkpoint(saved).tensors.values())

    def test_by_choice_it_leaves_such_steps_out_and_says_so(self, train_toy, toy, capfd):
        step, _ = self._first(toy, 7)
        run = train_toy(toy.ToyTask(poisoned=7), non_finite="skip", average=0.5)
        skipped = [line["step"] for line in run.metrics if line.get("loss", 0.0) is None]
        assert len(skipped) == 3  # once in every epoch
        assert skipped[0] == step
        assert all(value.isfinite().all() for value in run.checkpoint().tensors.values())
        assert capfd.readouterr().err.count("is skipped") == 3

    @pytest.mark.parametrize("choice", ["stop", "skip"])
    @pytest.mark.parametrize("rate", [1e3, 1e38])
    def test_a_step_that_leaves_what_layers_refuse_is_told(self, train_toy, toy, tmp_path, user_errors, rate, choice):
        # The loss was finite; the layer then refuses the sharpness that the step left, without knowing of steps.
        with pytest.raises(NonFiniteError, match=r"at step 1 the update left .*sharpness") as stopped:
            train_toy(optimizer=AdamWSettings(rate), folder=tmp_path / "run", non_finite=choice, log_every=100)
        _, loader = self._first(toy, 7)
        assert stopped.value.step == 1
        assert stopped.value.indices == loader.index(0, 0).tolist()
        assert (tmp_path / "run" / "non_finite.json").exists()

    def test_it_is_told_where_the_last_step_did_it(self, train_toy, toy, user_errors):
        with pytest.raises(NonFiniteError, match="at step 1 the update left"):  # evaluation comes next, no step
            train_toy(toy.ToyTask(samples=6), optimizer=AdamWSettings(1e3), epochs=1)

    def test_other_errors_stay_what_they_are(self, train_toy, toy):
        class Strict(toy.ToyTask):
            def outcome(self, network, batch):
                raise ValueError("this batch is refused")

        with pytest.raises(ValueError, match="this batch is refused"):
            train_toy(Strict())

    def test_a_skipped_step_changes_nothing(self, train_toy, toy):
        # All samples of the only batch are bad: the parameters stay as they were drawn.
        task = toy.ToyTask(samples=6, poisoned=3)
        run = train_toy(task, non_finite="skip", epochs=2)
        torch.manual_seed(regard.data.random_number(2**63, 0, "parameters"))
        drawn = toy.ToyNetwork().build(task).state_dict()
        assert all(torch.equal(value, drawn[name]) for name, value in _parameters(run).items())

    def test_nor_does_it_reach_statistics(self, train_toy, toy):
        run = train_toy(toy.ToyTask(poisoned=3), toy.ToyNetwork(batch_norm=True), non_finite="skip", epochs=2)
        network = run.network()
        assert network.norm.running_mean.isfinite().all()
        assert network.norm.num_batches_tracked == 2 * 3  # one batch of four is bad, in each epoch
        assert run.evaluations[-1]["validation_loss"] is not None


def test_held_out_samples_are_scored_without_dropout_and_smoothing(toy):
    class Flat(torch.nn.Module):
        def forward(self, images):
            return torch.zeros(len(images), 10)

    task = regard.training.ImageTask("fashion-mini", validation=20, label_smoothing=0.3)
    batch = task.examples("validation", torch.device("cpu")).batch(torch.arange(20), seed=0, epoch=0)
    network = Flat()
    assert task.outcome(network.train(), batch).loss.item() == pytest.approx(20 * math.log(10), rel=1e-5)
    sharp = torch.nn.Module()
    sharp.forward = lambda images: 20.0 * torch.nn.functional.one_hot(batch.labels, 10).float()
    plain, smoothed = (task.outcome(sharp.train(mode), batch).loss.item() / 20 for mode in (False, True))
    assert plain == pytest.approx(0, abs=1e-6)
    assert smoothed == pytest.approx(0.3 * 20 * 9 / 10, rel=1e-5)


def test_a_batch_that_processes_cannot_share_is_refused(user_errors, train_toy, toy):
    with pytest.raises(ValueError, match="batch_size 100 is larger than the 24 samples"):
        train_toy(batch_size=100)
