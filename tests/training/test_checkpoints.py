"""Checkpoints: whole or not at all, the last and the best kept, every damage seen."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.training import Checkpoints, DamagedCheckpointError
from regard.training._checkpoints import read_checkpoint

TENSORS = {
    "network.weight": torch.arange(6.0).reshape(2, 3),
    "network.steps": torch.tensor(3),
    "optimizer.flags": torch.tensor([True, False]),
    "average.half": torch.ones(2, dtype=torch.bfloat16),
}


def test_what_is_saved_comes_back(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, TENSORS, {"score": 0.25, "nested": {"list": [1, 2.5, None]}})
    found = checkpoints.load(7)
    assert found.tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert torch.equal(found.tensors[name], value)
        assert found.tensors[name].dtype == value.dtype
    assert found.state["nested"] == {"list": [1, 2.5, None]}
    assert found.part("network").keys() == {"weight", "steps"}


def test_tensors_that_share_memory_are_saved(tmp_path):
    shared = torch.arange(4.0)
    Checkpoints(tmp_path).save(1, {"a": shared, "b": shared[:2], "c": shared.reshape(2, 2).T}, {})
    found = Checkpoints(tmp_path).load(1).tensors
    assert torch.equal(found["b"], shared[:2])
    assert torch.equal(found["c"], shared.reshape(2, 2).T)


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=8), st.integers(1, 3))
@settings(max_examples=15)
def test_the_last_ones_and_the_best_are_kept(tmp_path_factory, scores, keep):
    checkpoints = Checkpoints(tmp_path_factory.mktemp("kept"), keep)
    kept, best = [], None
    for step, score in enumerate(scores, 1):
        checkpoints.save(step, {"x": torch.ones(1)}, {"score": score})
        if score is not None and (best is None or score > best[0]):
            best = (score, step)
        kept = sorted({*range(max(1, step - keep + 1), step + 1), *([best[1]] if best else [])})
        assert checkpoints.steps() == kept
        assert checkpoints.best() == (best[1] if best else None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return Checkpoints(tmp_path_factory.mktemp("saved")).save(1, TENSORS, {"score": 0.5, "note": "abc"})


@given(st.sampled_from(["state.json", "state.safetensors"]), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_any_changed_byte_is_seen(saved, file, where, change):
    path = saved / file
    content = path.read_bytes()
    at = int(where * len(content))
    path.write_bytes(content[:at] + bytes([content[at] ^ change]) + content[at + 1 :])
    try:
        with pytest.raises(DamagedCheckpointError):
            read_checkpoint(saved)
    finally:
        path.write_bytes(content)
    read_checkpoint(saved)


@given(st.sampled_from(["state.json", "state.safetensors"]), st.floats(0, 1, exclude_max=True))
def test_any_missing_end_is_seen(saved, file, share):
    path = saved / file
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    try:
        with pytest.raises(DamagedCheckpointError):
            read_checkpoint(saved)
    finally:
        path.write_bytes(content)


def test_a_checkpoint_that_is_there_stays(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": torch.zeros(1)}, {})
    checkpoints.save(1, {"x": torch.ones(1)}, {})
    assert checkpoints.load(1).tensors["x"].item() == 0


def test_keep_must_be_a_number(user_errors, tmp_path):
    with pytest.raises(ValueError, match="keep must be a whole number of 1 or more, got 0"):
        Checkpoints(tmp_path, keep=0)
