"""A part of ``benchmarks/zoo.py``: maps compared with a witness that imports nothing of regard."""

import argparse
import importlib
import json
import pathlib
import sys

import pytest
import torch
from torch import nn

import regard

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
FAULTS = (
    "as many windows as heads", "heads one after the other", "heads folded into the batch", "heads folded before the batch",
    "two kernels merged by their logsumexp", "keys gathered for each query", "channels attend to channels",
    "dropout by hand", "torch.linalg.matmul", "baddbmm", "einsum of three operands",
    "linear attention", "one-hot attention", "sparsemax", "a scripted function", "a custom operator", "another thread",
)  # fmt: skip


@pytest.fixture(scope="module")
def zoo():
    """The modules of the zoo, by name."""
    sys.path.insert(0, str(BENCHMARKS))
    yield lambda name: importlib.import_module(f"_zoo.{name}")
    sys.path.remove(str(BENCHMARKS))


def test_the_witness_imports_nothing_of_ours():
    assert "regard" not in "".join(
        line for line in (BENCHMARKS / "_zoo/witness.py").read_text("utf-8").splitlines() if "import" in line
    )


def test_all_faults_are_tested(zoo):
    assert tuple(zoo("faults").model_types()) == FAULTS


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_former_faults(zoo, name):
    row = zoo("judge").row(zoo("faults").animal(name))
    assert not row["problems"]
    assert row["verdict"] in ("complete", "in missed")


@pytest.mark.parametrize("kind", ["bert", "t5", "gpt_oss", "falcon", "longt5", "minimax"])
def test_model_types_of_transformers(zoo, transformers, kind):
    row = zoo("judge").row(zoo("hugging_face").animal(kind))
    assert not row["problems"]
    assert row["maps"] > 0
    assert row["worst difference"] < 2e-5
    assert (row["missed"] > 0) == (kind == "minimax")


@pytest.mark.parametrize(
    "name", ["Attention", "AttentionRope", "HaloAttn", "DiffAttention", "LambdaLayer", "Attention2d"]
)
def test_attention_classes_of_timm(zoo, timm, name):
    row = zoo("judge").row(zoo("timm_models").animal(f"class {name}"))
    assert not row["problems"]
    assert row["maps"] == (name != "LambdaLayer")


def test_a_wrong_map_and_a_missing_one_are_noticed(zoo, monkeypatch):
    judge = zoo("judge")
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    animal = judge.Animal("test", "layer", layer.eval(), {"src": torch.randn(2, 5, 16)})
    assert judge.row(animal)["verdict"] == "complete"
    given = regard.maps.Capture.attended

    def exchanged(self, record):
        given(self, record)
        record.stored = record.stored.roll(1, -1)

    monkeypatch.setattr(regard.maps.Capture, "attended", exchanged)
    assert judge.row(animal)["verdict"] == "silently wrong"
    monkeypatch.undo()
    monkeypatch.setattr(regard.maps.Capture, "attended", lambda self, record: None)
    assert judge.row(animal)["verdict"] == "silently incomplete"


def test_only_rows_that_were_not_run_are_run_again_and_say_when(zoo, tmp_path, monkeypatch):
    program = importlib.import_module("zoo")
    monkeypatch.setattr(zoo("faults"), "model_types", lambda: ["baddbmm", "sparsemax", "dropout by hand"])
    rows = [
        {"family": "faults", "model": "baddbmm", "verdict": "not run", "maps": 0, "missed": 0},
        {"family": "faults", "model": "sparsemax", "verdict": "in missed", "maps": 0, "missed": 1},
    ]
    path = tmp_path / "zoo.json"
    path.write_text(json.dumps({"rows": rows, "versions": {"other": "1"}}))
    options = argparse.Namespace(
        again=path, only=[], families=["faults"], seconds=60, minutes=1.0, verdicts=["not run"]
    )
    found = {row["model"]: row for row in program.again(options)}
    assert found["baddbmm"]["verdict"] == found["dropout by hand"]["verdict"] == "complete"
    assert found["baddbmm"]["commit"]
    assert found["sparsemax"] == rows[1]
    written = json.loads(path.read_text())
    assert written["rows"] == list(found.values())
    assert written["versions"]["other"] == "1"
    assert written["summary"][0]["not run"] == 0
