"""A task and a network that regard does not know: trained, evaluated, reported and shown like any other."""

import json
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.cli import main
from regard.layers import MultiHeadAttention
from regard.training import (
    AdamWSettings,
    NetworkSettings,
    Outcome,
    Recipe,
    Sample,
    SampleAttention,
    Task,
    attention_maps,
)

NAMES = ("left", "right")


class Dots(NamedTuple):
    images: Tensor
    labels: Tensor
    indices: Tensor


class DotExamples:
    """4 × 4 images with one bright pixel, in the left or the right half."""

    index_device = torch.device("cpu")

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def batch(self, index, *, seed, epoch):
        place = (7 * index + 3) % 16
        return Dots(F.one_hot(place, 16).float().view(-1, 1, 4, 4), (place % 4) // 2, index)


@dataclass(frozen=True)
class PlainDots(Task):
    """Only what a task must define."""

    size: int = 24

    def examples(self, split, device):
        return DotExamples(self.size if split == "train" else 16)

    def outcome(self, network, batch):
        scores = network(batch.images)
        loss = F.cross_entropy(scores, batch.labels, reduction="sum")
        return Outcome(loss, (scores.argmax(-1) == batch.labels).sum().float())


@dataclass(frozen=True)
class ShownDots(PlainDots):
    """The same, and what makes it an image task in reports and in the studio."""

    kind = "image"
    target_name = "dots"
    metric_names = {"accuracy": "test accuracy", "brightness": "of the pixels are bright"}  # noqa: RUF012
    image_shape = (1, 4, 4)
    class_names = NAMES

    def metrics(self, network, examples, accuracy):
        assert 0 <= accuracy(network) <= 1
        return {"brightness": 1 / 16}

    def sample(self, split, index):
        batch = self.batch(split, [index])
        return Sample(batch, (255 * batch.images[0]).to(torch.uint8), NAMES[batch.labels[0]])

    def read_image(self, pixels):
        zero = torch.zeros(1, dtype=torch.long)
        return Sample(Dots(pixels[None] / 255, zero, zero), pixels)

    def labeled(self, batch):
        return batch.images, batch.labels

    def attend(self, network, sample):
        chances = network(sample.batch.images)[0].softmax(-1)
        guesses = [{"label": name, "chance": chance} for name, chance in zip(NAMES, chances.tolist(), strict=True)]
        maps = attention_maps(network, sample.batch.images)
        return SampleAttention(maps, image=sample.image, grid=(4, 4), answer={"guesses": guesses})


class DotModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Linear(1, 8)
        self.attention = MultiHeadAttention(8, heads=2)
        self.head = nn.Linear(8, 2)

    def forward(self, images):
        x = self.tokens(images.flatten(2).mT)
        return self.head((x + self.attention(x)).mean(1))


@dataclass(frozen=True)
class DotNetwork(NetworkSettings):
    def build(self, task):
        return DotModule()


@pytest.fixture(scope="module", params=[PlainDots, ShownDots])
def run(request, tmp_path_factory):
    recipe = Recipe("dots", request.param(), DotNetwork(), AdamWSettings(1e-2), epochs=2, batch_size=8)
    folder = tmp_path_factory.mktemp(request.param.__name__) / "dots"
    return regard.train(recipe, folder=folder, accelerator="cpu", progress=False)


def test_it_is_trained_and_read_back(run):
    assert [line["epoch"] for line in run.evaluations] == [1, 2]
    assert regard.load_run(run.folder).recipe == run.recipe


def test_it_is_evaluated(run, capsys):
    assert main(["evaluate", str(run.folder), "--accelerator", "cpu"]) == 0
    shown = capsys.readouterr().out
    found = json.loads((run.folder / "evaluation.json").read_text())
    assert found["targets"] == 16
    examples = DotExamples(16).batch(torch.arange(16), seed=0, epoch=0)
    right = (run.network()(examples.images).argmax(-1) == examples.labels).float().mean().item()
    assert found["accuracy"] == pytest.approx(right)
    if run.recipe.task.kind == "image":
        assert "test accuracy (16 dots)" in shown
        assert "6.25%  of the pixels are bright" in shown
    else:
        assert "test accuracy (16 samples)" in shown


def test_it_is_reported(run, tmp_path):
    output = tmp_path / "report.html"
    assert main(["report", str(run.folder), "--samples", "8", "--output", str(output)]) == 0
    page = output.read_text()
    shown = run.recipe.task.kind == "image"
    assert 'data-regard-payload="image"' in page if shown else 'data-regard-payload="tokens"' in page
    assert ("How many heads it needs" in page) == shown
    assert ("on 8 validation dots" in page) == shown


def test_the_studio_shows_it(run, client_of):
    client = client_of(run.folder.parent)
    [listed] = client.get("/api/runs").json()
    assert (listed["recipe"], listed["problem"], listed["state"]) == ("dots", None, "finished")
    detail = client.get("/api/runs/dots").json()
    if run.recipe.task.kind == "other":
        assert (listed["views"], detail["samples"], detail["shape"]) == ([], {}, None)
        return
    assert (listed["kind"], listed["views"]) == ("image", ["image"])
    assert (detail["shape"], detail["classes"], detail["samples"]) == ([1, 4, 4], list(NAMES), {"test": 16})
    samples = client.get("/api/runs/dots/images?source=test").json()["samples"]
    assert samples[1]["label"] == NAMES[(10 % 4) // 2]
    answer = client.get(samples[1]["address"] + "/attention")
    assert answer.status_code == 200
    assert b'"guesses"' in answer.content
