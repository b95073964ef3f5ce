"""Networks and optimizers of a user's own, which need not look like ours."""

import math
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from regard.cli import main
from regard.training import (
    MuonSettings,
    NetworkSettings,
    OptimizerSettings,
    SGDSettings,
    Task,
    TrainingInterrupted,
    evaluate_run,
    score,
    start_fabric,
)
from regard.training.events import Stepped


@dataclass(frozen=True)
class PlainSGD(OptimizerSettings):
    """As a user would write it: nothing but torch's optimizer."""

    def build(self, network):
        return [torch.optim.SGD(network.parameters(), lr=self.learning_rate)]


class Slowing(torch.optim.Optimizer):
    """Counts its steps in its group, as optimizers without a schedule do."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "count": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] / group["count"])


@dataclass(frozen=True)
class SlowingSettings(OptimizerSettings):
    def build(self, network):
        return [Slowing(network.parameters(), self.learning_rate)]


@dataclass(frozen=True)
class HeadOnly(OptimizerSettings):
    def build(self, network):
        return [torch.optim.SGD(network.head.parameters(), lr=self.learning_rate)]


@dataclass(frozen=True)
class Alone(OptimizerSettings):
    def build(self, network):
        return torch.optim.SGD(network.parameters(), lr=self.learning_rate)


def test_an_optimizer_without_peaks_follows_the_schedule_from_the_rate_it_was_built_with(train_toy):
    run = train_toy(optimizer=PlainSGD(0.25))
    written_out = train_toy(optimizer=SGDSettings(0.25, momentum=0.0))
    assert [line["loss"] for line in run.metrics if "loss" in line] == [
        pytest.approx(line["loss"], rel=1e-5) for line in written_out.metrics if "loss" in line
    ]


@pytest.mark.parametrize(
    "optimizer", [SlowingSettings(0.3), PlainSGD(0.3), MuonSettings(1e-2)], ids=lambda each: type(each).__name__
)
def test_a_resumed_run_ends_bit_for_bit_where_an_undisturbed_one_ends(train_toy, tmp_path, optimizer):
    def stop(event):
        if isinstance(event, Stepped) and event.step == 5:
            raise TrainingInterrupted("enough", 5)

    whole = train_toy(optimizer=optimizer)
    folder = tmp_path / "resumed"
    with pytest.raises(TrainingInterrupted):
        train_toy(optimizer=optimizer, folder=folder, save_every=3, listeners=[stop])
    resumed = train_toy(optimizer=optimizer, folder=folder, resume=True, save_every=3)
    for name, value in whole.checkpoint().part("network").items():
        assert torch.equal(resumed.checkpoint().part("network")[name], value), name


def test_gradients_of_parameters_without_an_optimizer_do_not_add_up(train_toy):
    run = train_toy(optimizer=HeadOnly(0.0), epochs=20)
    norms = [line["gradient_norm"] for line in run.metrics if "loss" in line]
    assert sum(norms[-4:]) < 3 * sum(norms[:4])


def test_a_single_optimizer_is_refused_with_what_would_fit(train_toy, user_errors):
    with pytest.raises(ValueError, match=r"Alone\.build must return a list of torch\.optim\.Optimizer, got SGD"):
        train_toy(optimizer=Alone(0.1))


class Odd(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.layer = nn.LazyLinear(3) if "lazy" in kind else nn.Linear(8, 3)

    def forward(self, x):
        return self.layer(x.mean((1, 2)))


class Counting(Odd):
    def get_extra_state(self) -> Any:
        return {"count": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


@dataclass(frozen=True)
class OddSettings(NetworkSettings):
    which: str = "lazy"

    def build(self, task):
        network = (Counting if self.which == "counting" else Odd)(self.which)
        if self.which == "lazy, called":
            network(torch.zeros(1, 3, 4, 8))
        return network


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("lazy", r"lazy modules left layer\.weight, layer\.bias without: call the network once"),
        ("counting", "whose state are tensors, but _extra_state is none"),
    ],
)
def test_a_network_that_a_checkpoint_cannot_hold_is_refused_before_training(
    train_toy, tmp_path, user_errors, kind, words
):
    with pytest.raises(ValueError, match=words):
        train_toy(network=OddSettings(kind), folder=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_lazy_modules_that_were_called_once_train_and_are_found_again(train_toy):
    run = train_toy(network=OddSettings("lazy, called"))
    found = score(
        start_fabric(accelerator="cpu"), run.recipe.task, run.network(), run.recipe.task.examples("validation", "cpu")
    )
    assert math.isclose(found.loss, run.summary["validation_loss"], rel_tol=1e-6)


@dataclass(frozen=True)
class Measuring(Task):
    """The toy task with metrics of its own."""

    returned: str = "perplexity"

    metric_names = {"accuracy": "test accuracy", "perplexity": "perplexity"}  # noqa: RUF012

    def examples(self, split, device):
        return toy_task().examples(split, device)

    def outcome(self, network, batch):
        return toy_task().outcome(network, batch)

    def metrics(self, network, examples, accuracy):
        return {self.returned: torch.tensor(31.25)}


def toy_task():
    return sys.modules["toy_training"].ToyTask()


def test_metrics_that_are_no_shares_are_shown_as_they_are(train_toy, capsys):
    run = train_toy(task=Measuring())
    assert main(["evaluate", str(run.folder), "--accelerator", "cpu"]) == 0
    assert "     31.25  perplexity" in capsys.readouterr().out
    assert run.evaluation["perplexity"] == 31.25


def test_a_metric_that_is_announced_and_not_measured_is_named(train_toy, user_errors):
    run = train_toy(task=Measuring("surprise"))
    with pytest.raises(ValueError, match=r"Measuring\.metrics must return perplexity, which its metric_names announce"):
        evaluate_run(run, accelerator="cpu")
