"""A network whose scores do not fit the task is refused, not trained on a loss that means something else."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import regard
from regard.support.checks import UnusableInputError
from regard.training import AdamWSettings, ImageTask, NetworkSettings, Recipe
from regard.training.tasks import Repetition


class Returning(nn.Module):
    """Ignores its inputs."""

    def __init__(self, made):
        super().__init__()
        self.made, self.factor = made, nn.Parameter(torch.ones(1))

    def forward(self, *inputs):
        return self.made


@pytest.mark.parametrize("shape", [(8, 7), (8, 12), (8, 10, 1), (8,), (4, 10)])
def test_scores_of_images(shape):
    task = ImageTask("fashion-mini", limit=32)
    batch = task.batch("train", range(8))
    assert task.outcome(Returning(torch.zeros(8, 10)), batch).loss.isfinite()
    with pytest.raises(
        UnusableInputError, match=r"scores \(batch, classes\) = \(8, 10\), got a float32 tensor of shape"
    ):
        task.outcome(Returning(torch.zeros(shape)), batch)


@pytest.mark.parametrize("given", [(torch.zeros(8, 10),), {"logits": torch.zeros(8, 10)}, torch.zeros(8, 10).long()])
def test_what_is_no_tensor_of_scores(given):
    task = ImageTask("fashion-mini", limit=32)
    with pytest.raises(UnusableInputError, match=r"the network must return scores .* got "):
        task.outcome(Returning(given), task.batch("train", range(8)))


def test_scores_with_the_tokens_first():
    """Their loss would compare each score with the target of another token."""
    task = Repetition(length=24, size=64, held_out=16)
    batch = task.examples("train", torch.device("cpu")).batch(torch.arange(8), seed=0, epoch=0)
    tokens = batch.targets.shape[1]
    scores = torch.zeros(8, tokens, len(task.vocabulary))
    assert task.outcome(Returning(scores), batch).loss.isfinite()
    with pytest.raises(UnusableInputError, match=r"scores \(batch, tokens, vocabulary\) = \(8, "):
        task.outcome(Returning(scores.transpose(0, 1)), batch)


@dataclass(frozen=True)
class NothingSettings(NetworkSettings):
    def build(self, task):
        return None


def test_a_network_that_is_no_module(tmp_path):
    recipe = Recipe(
        "nothing", ImageTask("fashion-mini", limit=32), NothingSettings(), AdamWSettings(1e-3), batch_size=8
    )
    with pytest.raises(UnusableInputError, match=r"NothingSettings\.build must return an nn\.Module, got None"):
        regard.train(recipe, folder=tmp_path / "run", accelerator="cpu", tensorboard=False)
